"""The outcomes of replayed events: resolved, failed again, lost, or not settled yet.

    sent, records, commits --outcomes_of--> sent with `outcome`
                           --resolved_failures--> failures to be marked as resolved

A replay sends events to a Trigger's replay topic; the table `sent` has a row for each. An event is
pending until its Trigger has settled it, that is, delivered it or dead-lettered it again. A row
whose `outcome` is null is pending. Pure: DataFrames in and out.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from knafka_jobs.schema import FAILED_AGAIN, LOST, RESOLVED, SENT, TRIGGER
from knafka_jobs.topic_offsets import MAX_CLOCK_DIFFERENCE, BrokerName


def outcomes_of(sent: DataFrame, records: DataFrame, committed: DataFrame) -> DataFrame:
    """Return the rows of `sent` whose events are settled now, with their `outcome`.

    An event has failed again if `records` has a dead letter of its Trigger whose origin is the
    event's position in its replay topic, and which isn't older than the event (`not_older`).
    Without such a dead letter, it is resolved if it is settled: if it lies below the offset `until`
    that its Trigger's group has committed (`committed`: `topic_id`, `partition`, `until`). The
    commits must be read before the records, as a dead letter is written before its commit.
    """
    # Other Triggers' dead letters don't count, as they may claim any origin.
    position = [*TRIGGER, "topic", "partition", "offset"]
    dead_lettered = records.where(F.col("origin_topic").isNotNull()).select(
        *TRIGGER,
        F.col("origin_topic").alias("topic"),
        F.col("origin_partition").alias("partition"),
        F.col("origin_offset").alias("offset"),
        "appended",
    )
    pending = sent.where("outcome IS NULL")
    failed_positions = (
        pending.join(dead_lettered, position)
        # An older dead letter is of an earlier record at that position. One that is older by less
        # than clocks may differ counts: to send an event once more is better than to lose it.
        .where(not_older(F.col("appended"), F.col("sent")))
        .select(*position)
        .distinct()
    )
    failed_events = pending.join(failed_positions, position, "left_semi").withColumn(
        "outcome", F.lit(FAILED_AGAIN)
    )
    resolved_events = (
        pending.join(failed_positions, position, "left_anti")
        .join(F.broadcast(committed), ["topic_id", "partition"])
        .where("offset < until")
        .withColumn("outcome", F.lit(RESOLVED))
    )
    return (
        failed_events.select(*SENT)
        .unionByName(resolved_events.select(*SENT))
        .withColumn("judged", F.current_timestamp())
        .select(*SENT)
    )


def not_older(appended: Column, sent: Column) -> Column:
    """Return the condition that a dead letter appended at `appended` may be of an event sent at
    `sent`. Both are times of Kafka's brokers, whose clocks may differ by `MAX_CLOCK_DIFFERENCE`."""
    return appended >= sent - F.lit(MAX_CLOCK_DIFFERENCE)


def last_pending(sent: DataFrame) -> DataFrame:
    """Return each partition's pending event with the highest offset.

    Columns: `topic`, `topic_id`, `partition`, `offset`, `replay_id`, `failure_id`.
    """
    last = F.max_by(F.struct("offset", "replay_id", "failure_id"), "offset")
    return (
        sent.where("outcome IS NULL")
        .groupBy("topic", "topic_id", "partition")
        .agg(last.alias("last"))
        .select("topic", "topic_id", "partition", "last.*")
    )


def lost_events(sent: DataFrame, marked_records: DataFrame, ranges: DataFrame) -> DataFrame:
    """Return, with outcome `lost`, the pending rows of `sent` whose event is no longer at its
    offset.

    `marked_records` has the replayed events that are in these topics now, by position, `replay_id`
    and `failure_id`. `ranges` (`topic`, `topic_id`, `partition`, `start`) has the first offset of
    each partition: events below it were deleted, not lost, and are left out.
    """
    position = ["topic", "partition", "offset", "replay_id", "failure_id"]
    return (
        sent.where("outcome IS NULL")
        .join(F.broadcast(ranges), ["topic", "topic_id", "partition"])
        .where("offset >= start")
        .join(marked_records.select(*position), position, "left_anti")
        .transform(as_lost)
    )


def as_lost(events: DataFrame) -> DataFrame:
    """Return these rows of `sent` with the outcome `lost` and the present time as `judged`."""
    lost = events.withColumn("outcome", F.lit(LOST)).withColumn("judged", F.current_timestamp())
    return lost.select(*SENT)


def pending_of(sent: DataFrame, broker: BrokerName | None) -> DataFrame:
    """Return the pending rows of `sent` (events without an outcome yet): those of one Broker, or of
    all Brokers if `broker` is None."""
    pending = sent.where("outcome IS NULL")
    if broker is None:
        return pending
    return pending.where(
        (F.col("namespace") == broker.namespace) & (F.col("broker") == broker.name)
    )


def lost_with_topics(pending: DataFrame, topic_ids: Collection[str], before: datetime) -> DataFrame:
    """Return, with outcome `lost`, the pending rows whose event was sent earlier than `before`, to
    one of these topics, which Kafka doesn't have any more."""
    in_topics = pending.where(F.col("topic_id").isin(*topic_ids))
    return in_topics.where(F.col("sent") < F.lit(before)).transform(as_lost)


def deleted_unsettled(pending: DataFrame, settled: DataFrame) -> DataFrame:
    """Return, with outcome `lost`, the pending rows whose record was deleted from its topic before
    the event was settled.

    `settled` (`topic_id`, `partition`, `start`, `until`) has each partition's first offset
    (`start`), and the offset below which the topic's group has settled all events (`until`).
    """
    return (
        pending.join(F.broadcast(settled), ["topic_id", "partition"])
        .where("offset < start AND offset >= until")
        .transform(as_lost)
    )


def resolved_failures(outcomes: DataFrame) -> DataFrame:
    """Return the failures to mark as resolved, from rows of `outcomes_of`: `failure_id`, and when
    the latest of the failure's resolved events was `sent`."""
    return (
        outcomes.where(F.col("outcome") == RESOLVED)
        .groupBy("failure_id")
        .agg(F.max("sent").alias("sent"))
    )
