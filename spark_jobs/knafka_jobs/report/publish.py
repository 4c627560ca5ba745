"""A report on its way to people: served from Kafka, its Broker told. Neither fails the report.

It is in the tables' folder by then, and another run would make another one, and no better one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from knafka.core.errors import KnafkaError
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.report import announce, served
from knafka_jobs.report.document import Report

MAX_PROBLEM: Final = 400
"""Characters of what is wrong: it goes into a status."""


def publish(
    kafka: KafkaClient,
    report: Report,
    archive: str,
    replication: int,
    broker: str,
    console: str,
    progress: Callable[[str], None],
) -> dict[str, str]:
    """What failed, by `notServed` and `notAnnounced`.

    `replication` is for a topic that is missing, `broker` the address of who is told (empty:
    nobody), `console` that of the console that serves it (empty: that isn't known).
    """
    problems: dict[str, str] = {}

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        try:
            yield
        except KnafkaError as error:
            progress(f"{name}: {error}")
            problems[name] = str(error)[:MAX_PROBLEM]

    with noted("notServed"):
        served.write(kafka, report, archive, replication)
    if broker:
        with noted("notAnnounced"):
            at = "" if problems else console
            announce.send(broker, announce.event_of(report, archive, at))
    return problems
