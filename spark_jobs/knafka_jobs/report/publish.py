"""Publishes a report: serves it from Kafka and announces it to its Broker.

A failure of either does not fail the job: the report is already stored beside the tables, and
another run would only make the same report again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from knafka.core.errors import KnafkaError
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.report import announce, served_report
from knafka_jobs.report.report_document import Report

MAX_PROBLEM_CHARACTERS: Final = 400
"""Largest number of characters of a problem, which goes into an object's status."""


def publish(
    kafka: KafkaClient,
    report: Report,
    archive: str,
    replication: int,
    broker: str,
    console: str,
    progress: Callable[[str], None],
) -> dict[str, str]:
    """Serve a report from Kafka, and announce it to its Broker by an event. Returns the problems of
    these two steps, by `notServed` and `notAnnounced`; empty if both succeed. A problem with Kafka
    or the Broker raises nothing.

    `archive` is the name of the DeadLetterArchive. `replication` is the number of replicas of the
    topic of reports if it has to be created. `broker` is the URL of the Broker that gets the event
    (empty: no event), `console` the URL of the console that serves the report (empty: unknown).
    """
    problems: dict[str, str] = {}

    @contextmanager
    def note_problem(problem_name: str) -> Iterator[None]:
        """Catch a `KnafkaError` that the `with` block raises: note it in `problems` under this
        name, and report it as progress."""
        try:
            yield
        except KnafkaError as error:
            progress(f"{problem_name}: {error}")
            problems[problem_name] = str(error)[:MAX_PROBLEM_CHARACTERS]

    with note_problem("notServed"):
        served_report.write_served_report(kafka, report, archive, replication)
    if broker:
        with note_problem("notAnnounced"):
            # A report that could not be served has no URL in the console.
            console_of_report = "" if problems else console
            announce.send_event(
                broker, announce.announcement_event(report, archive, console_of_report)
            )
    return problems
