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
"""Characters of a problem, which goes into an object's status."""


def publish(
    kafka: KafkaClient,
    report: Report,
    archive: str,
    replication: int,
    broker: str,
    console: str,
    progress: Callable[[str], None],
) -> dict[str, str]:
    """Serve and announce a report; returns the problems, by `notServed` and `notAnnounced`. Raises
    nothing for them.

    `archive` is the name of the DeadLetterArchive, `replication` the number of replicas if the
    topic has to be created, `broker` the URL of the Broker to announce it to (empty: don't),
    `console` the URL of the console that serves it (empty: unknown).
    """
    problems: dict[str, str] = {}

    @contextmanager
    def noting_problem(problem_name: str) -> Iterator[None]:
        """Report an error of the body, note it under this name in `problems`, and go on."""
        try:
            yield
        except KnafkaError as error:
            progress(f"{problem_name}: {error}")
            problems[problem_name] = str(error)[:MAX_PROBLEM_CHARACTERS]

    with noting_problem("notServed"):
        served_report.write_served_report(kafka, report, archive, replication)
    if broker:
        with noting_problem("notAnnounced"):
            console_of_report = "" if problems else console  # a console can't show it otherwise
            announce.send_event(
                broker, announce.announcement_event(report, archive, console_of_report)
            )
    return problems
