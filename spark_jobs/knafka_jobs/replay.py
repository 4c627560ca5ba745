"""Replay: dead letters sent again to the Trigger that failed them, and what became of them.

    failures, records --letters--> what is sent
    sent, records, commits --outcomes--> resolved, failed again, or on their way

Refused here: sending (see `appending`), and choosing (see `failures`).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka.core.dead_letter import OMITTED
from knafka.core.delivery import Reason
from knafka_jobs.schema import SENT, TRIGGER

POSITION: Final = ("topic_id", "partition", "offset")
"""Of a dead letter in its topic."""
RESOLVED: Final = "resolved"
FAILED_AGAIN: Final = "failed-again"


def replayable(failures: DataFrame, sent: DataFrame, records: DataFrame) -> DataFrame:
    """What can be sent: an event with its data, unresolved, of a known Trigger, and not on its way
    already."""
    is_event = F.col("reason") != Reason.UNDECODABLE.value
    stubs = records.where(
        F.exists("headers", lambda header: header["key"] == f"ce_{OMITTED}")
    ).select(*POSITION)
    pending = sent.where("outcome IS NULL").select("failure_id").distinct()
    unresolved = failures.where(is_event & F.col("resolved").isNull() & (F.col("namespace") != ""))
    return unresolved.join(pending, "failure_id", "left_anti").join(stubs, [*POSITION], "left_anti")


def letters(failures: DataFrame, records: DataFrame) -> DataFrame:
    """The last dead letter of each failure, by Trigger, in the order in which they were events."""
    wanted = failures.select(
        "failure_id", *TRIGGER, *POSITION, "first_failed", "origin_partition", "origin_offset"
    )
    return (
        records.select(*POSITION, "key", "value", "headers")
        .join(wanted, [*POSITION])
        .orderBy(*TRIGGER, "origin_partition", "origin_offset", "first_failed", "failure_id")
        .select("failure_id", *TRIGGER, "key", "value", "headers")
    )


def outcomes(sent: DataFrame, records: DataFrame, committed: DataFrame) -> DataFrame:
    """What has become of events on their way: rows of `sent` with `outcome`.

    One that was buried again lies in `records` with its place in the replay topic as its origin;
    one that is settled (`committed`: `topic_id`, `partition`, `until`) without that is resolved.
    Whoever asks has read the commits before the records: a burial comes before its commit.
    """
    place = ["topic", "partition", "offset"]
    buried = records.where(F.col("origin_topic").isNotNull()).select(
        F.col("origin_topic").alias("topic"),
        F.col("origin_partition").alias("partition"),
        F.col("origin_offset").alias("offset"),
        "appended",
    )
    pending = sent.where("outcome IS NULL")
    again = pending.join(buried, place).where("appended >= sent").select(*place).distinct()
    failed = pending.join(again, place, "left_semi").withColumn("outcome", F.lit(FAILED_AGAIN))
    settled = (
        pending.join(again, place, "left_anti")
        .join(F.broadcast(committed), ["topic_id", "partition"])
        .where("offset < until")
        .withColumn("outcome", F.lit(RESOLVED))
    )
    judged = F.current_timestamp()
    both = failed.select(*SENT).unionByName(settled.select(*SENT))
    return both.withColumn("judged", judged).select(*SENT)


def resolved(outcomes: DataFrame) -> DataFrame:
    """Failures to be marked: `failure_id`, when it was `sent` last and when that was `judged`."""
    return (
        outcomes.where(F.col("outcome") == RESOLVED)
        .groupBy("failure_id")
        .agg(F.max("sent").alias("sent"), F.max("judged").alias("judged"))
    )


def runs(replays: DataFrame, sent: DataFrame) -> DataFrame:
    """Replays, the latest first, with how many events were `sent`, `resolved`, `failed_again`."""
    counts = sent.groupBy("replay_id").agg(
        F.count("*").alias("sent"),
        F.count_if(F.col("outcome") == RESOLVED).alias("resolved"),
        F.count_if(F.col("outcome") == FAILED_AGAIN).alias("failed_again"),
    )
    return (
        replays.join(counts, "replay_id", "left")
        .fillna(0, ["sent", "resolved", "failed_again"])
        .orderBy(F.desc("started"), "replay_id")
    )
