"""Sets the outcomes of replayed events in the tables; `outcomes` has the rules.

A replay sends failed events to a replay topic of their Trigger. An event is pending until the
Trigger has settled it (delivered it or dead-lettered it again), or it is found to be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from knafka.core.dead_letter import REPLAY
from knafka.core.names import dead_letter_topic
from knafka_jobs.compact import compact_plan
from knafka_jobs.compact.outcomes import (
    deleted_unsettled,
    last_pending,
    lost_events,
    lost_with_topics,
    not_older,
    outcomes_of,
    pending_of,
    resolved_failures,
)
from knafka_jobs.compact.reading import headers_of
from knafka_jobs.failure_days import distinct_days, load_known_days
from knafka_jobs.io.delta import Tables, in_days
from knafka_jobs.io.kafka import KafkaClient, read_spans
from knafka_jobs.io.kafka_records import KafkaRecords
from knafka_jobs.materialize import compute_rows
from knafka_jobs.replay_marks import select_marked
from knafka_jobs.schema import Columns
from knafka_jobs.topic_offsets import (
    BrokerName,
    NamedPartition,
    OffsetSpan,
    TopicState,
    is_dead_letter_topic,
)

Progress = Callable[[str], object]
"""Called with one line of progress."""

GONE_TOPIC_AGE: Final = timedelta(hours=1)
"""Time since a replayed event was sent, from which the event's topic counts as deleted if Kafka
doesn't list it. A broker may learn later than others of a topic that was just created."""

DELETED_AND_SETTLED: Final[Columns] = {
    "topic_id": "string",
    "partition": "int",
    "start": "bigint",
    "until": "bigint",
}
"""Columns of a partition's two bounds: records below `start` are deleted, and events below `until`
are settled by the partition's group."""

STARTS: Final[Columns] = {
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "start": "bigint",
}
"""Columns with a partition's first offset."""


def read_settled_offsets(tables: Tables, kafka: KafkaClient) -> list[tuple[str, int, int]]:
    """Return how far the replay topics with pending events are settled: topic id, partition, and
    the offset that the topic's consumer group has committed, for each partition with a commit.

    Call it before dead letters are read, so that these include every settled event that failed
    again.
    """
    if tables.is_empty("sent"):
        return []
    pending = tables.read("sent").where("outcome IS NULL")
    names = [row["topic"] for row in pending.select("topic").distinct().collect()]
    return [
        (topic.id, partition, offset)
        for topic in kafka.topics(names).values()
        # A replay topic's consumer group has the topic's name.
        for partition, offset in kafka.committed(topic.name, topic).items()
    ]


def mark_lost_by_deletion(
    tables: Tables,
    kafka: KafkaClient,
    broker: BrokerName | None,
    now: datetime,
    progress: Progress,
) -> None:
    """Mark pending replayed events as lost if their records, or their replay topic, were deleted
    before they were settled. The topic may have been created anew since.

    Nobody delivers such events any more, and as long as they are pending they can't be replayed.
    Only events of `broker` are marked; None: of all Brokers. Events of other Brokers may be in
    another Kafka, so without `broker` a topic counts as deleted only if this Kafka has a
    dead-letter topic of its Broker. Raises `JobError`.
    """
    if tables.is_empty("sent"):
        return
    pending = tables.read("sent").transform(pending_of, broker)
    partition_columns = ("namespace", "broker", "trigger", "topic", "topic_id", "partition")
    partitions = pending.groupBy(*partition_columns).agg(F.min("offset").alias("first")).collect()
    topics = kafka.topics(sorted({row["topic"] for row in partitions}))
    gone_partitions, shortened_topics = _find_deletions(partitions, topics)
    if gone_partitions and broker is None:
        gone_partitions = _rows_of_brokers_here(gone_partitions, kafka.topic_names())
    if not gone_partitions and not shortened_topics:
        return
    gone_ids = {row["topic_id"] for row in gone_partitions}
    # The starts were read before the commits: what was settled meanwhile is not marked. Without a
    # commit (a group that has expired, or was deleted) it isn't known what was settled.
    settled = [
        (topic.id, partition, topic.spans[partition].start, offset)
        for topic in shortened_topics.values()
        for partition, offset in kafka.committed(topic.name, topic).items()
    ]
    gone_events = compute_rows(
        pending.transform(lost_with_topics, gone_ids, now - GONE_TOPIC_AGE).unionByName(
            pending.transform(deleted_unsettled, tables.rows(settled, DELETED_AND_SETTLED))
        )
    )
    for row in gone_events.groupBy("topic").count().orderBy("topic").collect():
        progress(
            f"{row['topic']} was deleted, or its records were: {row['count']} events that it had "
            "for its Trigger can be replayed once more"
        )
    _update_outcomes(tables, gone_events)


def _find_deletions(
    partitions: Iterable[Row], topics: Mapping[str, TopicState]
) -> tuple[list[Row], dict[str, TopicState]]:
    """Return the partitions whose topic was deleted or created anew, and the topics, by name, in
    which the record of a pending event was deleted.

    `partitions` are those with pending events: `topic` and its `topic_id` at that time,
    `partition`, and `first`, the lowest offset of a pending event. `topics` are the topics that
    Kafka has now, by name.
    """
    gone_partitions, shortened_topics = list[Row](), dict[str, TopicState]()
    for row in partitions:
        topic = topics.get(row["topic"])
        if topic is None or topic.id != row["topic_id"]:
            gone_partitions.append(row)
        elif (span := topic.spans.get(row["partition"])) and row["first"] < span.start:
            shortened_topics[topic.name] = topic
    return gone_partitions, shortened_topics


def _rows_of_brokers_here(rows: Iterable[Row], topic_names: Collection[str]) -> list[Row]:
    """Return the rows (`namespace`, `broker`, `trigger`) whose Broker or Trigger has a dead-letter
    topic among these topics, and so is in this Kafka."""
    has_topic_here: dict[BrokerName, bool] = {}
    rows_here = []
    for row in rows:
        broker = BrokerName(row["namespace"], row["broker"])
        if broker not in has_topic_here:
            has_topic_here[broker] = any(is_dead_letter_topic(name, broker) for name in topic_names)
        # A topic's name that was shortened doesn't tell its Broker, only its Trigger.
        if has_topic_here[broker] or dead_letter_topic(*broker, row["trigger"]) in topic_names:
            rows_here.append(row)
    return rows_here


def mark_lost_by_cut(tables: Tables, kafka: KafkaClient, progress: Progress) -> None:
    """Mark pending replayed events as lost if the log of their replay topic was cut before them.

    Other records may have the offsets of the lost events by now. So call this before
    `mark_outcomes`, which would take commits of these offsets for commits of the lost events.
    Raises `JobError`.
    """
    if tables.is_empty("sent"):
        return
    sent = tables.read("sent")
    last_events = sent.transform(last_pending).collect()
    topics = kafka.topics(sorted({row["topic"] for row in last_events}))
    log = KafkaRecords(kafka, {topic.id: name for name, topic in topics.items()})
    ranges: dict[NamedPartition, OffsetSpan] = {}
    for row in last_events:
        topic = topics.get(row["topic"])
        span = None if topic is None else topic.spans.get(row["partition"])
        if topic is None or span is None or topic.id != row["topic_id"]:
            continue  # the topic was deleted or created anew: `mark_lost_by_deletion`
        # Events below the first offset were deleted: `mark_lost_by_deletion`.
        if row["offset"] >= span.start and not _is_in_log(row, topic.id, span, log):
            ranges[row["topic"], row["partition"]] = span
    if not ranges:
        return
    marked_records = read_spans(tables.spark, kafka.connection, ranges).transform(select_marked)
    rows = [
        (name, topics[name].id, partition, span.start) for (name, partition), span in ranges.items()
    ]
    newly_lost = compute_rows(
        sent.transform(lost_events, marked_records, tables.rows(rows, STARTS))
    )
    for name, partition in ranges:
        progress(
            f"the log of {name}/{partition} was cut: replayed events that it lost can be "
            "replayed once more"
        )
    _update_outcomes(tables, newly_lost)


def _is_in_log(row: Row, topic_id: str, span: OffsetSpan, log: KafkaRecords) -> bool:
    """Whether the replayed event of a row of `last_pending` is still at its offset in its replay
    topic. `span` has the offsets that Kafka has of the row's partition. Raises `JobError`."""
    offset = row["offset"]
    if offset >= span.end:
        return False
    # The value of the header `REPLAY`, as `replay.send` writes it.
    header_value = f"{row['replay_id']}/{row['failure_id']}".encode()
    messages = log.messages((topic_id, row["partition"]), OffsetSpan(offset, offset + 1))
    return any((REPLAY, header_value) in headers_of(message) for message in messages)


def mark_outcomes(tables: Tables, committed: list[tuple[str, int, int]]) -> None:
    """Mark the failures that a replay resolved, then store the outcomes of the settled events.

    `committed` (topic id, partition, offset) is from `read_settled_offsets`. If the run is killed
    between these two steps, the events are still pending, and the next run does both again.
    """
    if not committed:
        return
    columns = {"topic_id": "string", "partition": "int", "until": "bigint"}
    sent = tables.read("sent")
    # No event's new dead letter is older than the event that was sent first: skip older files.
    row = sent.where("outcome IS NULL").agg(F.unix_micros(F.min("sent"))).first()
    earliest_sent = 0 if row is None else row[0] or 0
    since = F.timestamp_micros(F.lit(earliest_sent))
    records = tables.read("records").where(not_older(F.col("appended"), since))
    judged = compute_rows(sent.transform(outcomes_of, records, tables.rows(committed, columns)))
    resolved = judged.transform(resolved_failures)
    in_known_days = in_days("failures.day", distinct_days(load_known_days(tables, resolved)))
    # A failure that failed once more after the event was sent stays unresolved. If this run hasn't
    # read that dead letter yet, the fold makes it unresolved again (`merge_clauses`).
    tables.update(
        resolved,
        "failures",
        f"{in_known_days} AND {compact_plan.MERGE_ON} AND failures.last_failed <= more.sent",
        {"resolved": "more.sent"},
    )
    _update_outcomes(tables, judged)


def _update_outcomes(tables: Tables, judged: DataFrame) -> None:
    """Store `outcome` and `judged` of these rows (columns `SENT`) in the table `sent`."""
    tables.update(
        judged,
        "sent",
        "sent.replay_id = more.replay_id AND sent.failure_id = more.failure_id",
        {"outcome": "more.outcome", "judged": "more.judged"},
    )
