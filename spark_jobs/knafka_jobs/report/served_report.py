"""Serves a report: writes it to a Kafka record, where a console finds it.

    topic    names.reports_topic(namespace, broker): compacted, one partition
    key      NAMESPACE/ARCHIVE
    value    the report as JSON, whose groups have their history: a reader needs only this record

The size of a record is limited (`fit_report`): parts that don't fit are left out, and the report
says how many. The last record of a key counts: if a Job is killed and runs again, the second report
replaces the first.
"""

from __future__ import annotations

import gzip
import itertools
from typing import Final

from knafka.core import names
from knafka_jobs.io.kafka import MAX_MESSAGE_BYTES, KafkaClient
from knafka_jobs.report.report_document import Cut, Group, Report

MAX_BATCH_BYTES: Final = 1_048_588
"""Largest size in bytes of a compressed batch that Kafka takes by default."""
BATCH_OVERHEAD_BYTES: Final = 64 * 1024
"""Bytes of a batch that are kept free for key and headers, and because libraries compress slightly
differently."""
MAX_JSON_BYTES: Final = 8 * 1024 * 1024
"""Largest size of the JSON in bytes, as its reader holds it in memory as a whole."""
REPORTS_TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    MAX_MESSAGE_BYTES: str(MAX_BATCH_BYTES),
    # Kafka compacts only closed segments, so close them after a day.
    "segment.ms": "86400000",
    "segment.bytes": str(16 * 1024 * 1024),
}
"""Configuration of the topic of reports."""
REPORT_SEND_TIMEOUT: Final = 60.0
"""Seconds to wait until Kafka has stored the record."""


def write_served_report(kafka: KafkaClient, report: Report, archive: str, replication: int) -> None:
    """Write an archive's report to the topic from which it is served. Raises `JobError`.

    A missing topic is created, with `replication` replicas.
    """
    assert report.namespace is not None, "an archive's report is about one Broker"
    assert report.broker is not None, "an archive's report is about one Broker"
    topic = names.reports_topic(report.namespace, report.broker)
    if not kafka.topics([topic]):
        kafka.create_topic(topic, 1, replication, REPORTS_TOPIC_CONFIG)
    limit = kafka.record_limit(topic) or MAX_BATCH_BYTES
    value = fit_report(report, min(limit, MAX_BATCH_BYTES) - BATCH_OVERHEAD_BYTES)
    key = names.report_key(report.namespace, archive)
    kafka.write(topic, key, value, {"content-type": b"application/json"}, REPORT_SEND_TIMEOUT)


def fit_report(report: Report, limit: int) -> bytes:
    """Return the report as JSON, shortened until it has at most `limit` bytes when compressed and
    `MAX_JSON_BYTES` when not. A report without any groups is returned even if it is larger.

    First all examples but one of each group are left out, then the last groups of the report.
    """
    if (document := _json_within(report, limit)) is not None:
        return document
    shortened_groups = tuple(
        group.model_copy(update={"examples": group.examples[:1]}) for group in report.groups
    )
    # Try first about as many groups as have at most `MAX_JSON_BYTES` of JSON together.
    total_sizes = itertools.accumulate(
        len(group.model_dump_json(by_alias=True)) for group in shortened_groups
    )
    count = sum(size <= MAX_JSON_BYTES for size in total_sizes)
    while count:
        shortened_report = _shorten_report(report, shortened_groups[:count])
        if (document := _json_within(shortened_report, limit)) is not None:
            return document
        count = count * 3 // 4
    return _report_json(_shorten_report(report, ()))


def _shorten_report(report: Report, groups: tuple[Group, ...]) -> Report:
    """Return a copy of the report with `groups`, its first groups, which may have fewer examples
    now. The copy's field `cut` says how many groups and examples are left out."""
    examples_before = sum(len(group.examples) for group in report.groups[: len(groups)])
    omissions = Cut(
        groups=len(report.groups) - len(groups),
        examples=examples_before - sum(len(group.examples) for group in groups),
    )
    return report.model_copy(update={"groups": groups, "cut": omissions})


def _json_within(report: Report, limit: int) -> bytes | None:
    """Return the report as JSON; None if it has more than `MAX_JSON_BYTES`, or more than `limit`
    bytes when compressed."""
    document = _report_json(report)
    if len(document) > MAX_JSON_BYTES or len(gzip.compress(document, 6)) > limit:
        return None
    return document


def _report_json(report: Report) -> bytes:
    """Return the report as JSON."""
    return report.model_dump_json(by_alias=True, exclude_none=True).encode()
