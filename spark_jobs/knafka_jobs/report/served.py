"""A report as it is served: in a record of Kafka's, where a console finds it.

    topic    names.reports_topic(namespace, broker): compacted, one partition
    key      NAMESPACE/ARCHIVE
    value    the report as JSON, whose groups tell of earlier reports: a reader needs one record

A record is bounded (`fitted`): what doesn't fit is left out, and the report says how much. Which
report is the last one, Kafka says: a second run of a Job that was killed writes over the first.
"""

from __future__ import annotations

import gzip
import itertools
from typing import Final

from knafka.core import names
from knafka_jobs.io.kafka import MAX_MESSAGE_BYTES, KafkaClient
from knafka_jobs.report.document import Cut, Group, Report

MAX_RECORD: Final = 1_048_588
"""Bytes of a compressed batch: what Kafka takes unless it is told otherwise, on any cluster."""
OVERHEAD: Final = 64 * 1024
"""Bytes of a batch that are kept free: for its key and headers, and as libraries compress with
little differences."""
MAX_JSON: Final = 8 * 1024 * 1024
"""Bytes of the JSON: its reader has it in memory as a whole."""
CONFIG: Final = {
    "cleanup.policy": "compact",
    MAX_MESSAGE_BYTES: str(MAX_RECORD),
    # Only segments that are closed are compacted.
    "segment.ms": "86400000",
    "segment.bytes": str(16 * 1024 * 1024),
}
SEND_TIMEOUT: Final = 60.0
"""Seconds until Kafka has the record."""


def write(kafka: KafkaClient, report: Report, archive: str, replication: int) -> None:
    """Put an archive's last report where it is served from. Raises `JobError`.

    The topic is made if it is missing, with `replication` replicas.
    """
    assert report.namespace is not None
    assert report.broker is not None
    topic = names.reports_topic(report.namespace, report.broker)
    if not kafka.topics([topic]):
        kafka.create(topic, 1, replication, CONFIG)
    limit = kafka.record_limit(topic) or MAX_RECORD
    value = fitted(report, min(limit, MAX_RECORD) - OVERHEAD)
    key = names.report_key(report.namespace, archive)
    kafka.write(topic, key, value, {"content-type": b"application/json"}, SEND_TIMEOUT)


def fitted(report: Report, limit: int) -> bytes:
    """The JSON of as much of a report as compresses to `limit` bytes.

    First all examples but one of each group go, then the groups with the fewest unresolved events.
    """
    if (found := _json_within(report, limit)) is not None:
        return found
    kept = tuple(each.model_copy(update={"examples": each.examples[:1]}) for each in report.groups)
    sizes = itertools.accumulate(len(each.model_dump_json(by_alias=True)) for each in kept)
    count = sum(size <= MAX_JSON for size in sizes)
    while True:
        part = _cut(report, kept[:count])
        if (found := _json_within(part, limit)) is not None or not count:
            return found or _json(part)
        count = count * 3 // 4


def _cut(report: Report, groups: tuple[Group, ...]) -> Report:
    examples = sum(len(each.examples) for each in report.groups[: len(groups)])
    cut = Cut(
        groups=len(report.groups) - len(groups),
        examples=examples - sum(len(each.examples) for each in groups),
    )
    return report.model_copy(update={"groups": groups, "cut": cut})


def _json_within(report: Report, limit: int) -> bytes | None:
    made = _json(report)
    if len(made) > MAX_JSON or len(gzip.compress(made, 6)) > limit:
        return None
    return made


def _json(report: Report) -> bytes:
    return report.model_dump_json(by_alias=True, exclude_none=True).encode()
