"""Turns records of dead-letter topics into rows of the table `records`.

Pure: DataFrames in and out. Two dead letters are of one failed event if Trigger, source, id and
data are equal; a record without an id is identified by its position. No record is left out: one
that is no dead letter of the Trigger or Broker whose topic it is in becomes an
`undecodable-record`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from knafka.core import names
from knafka.core.dead_letter import ATTRIBUTE_PREFIX
from knafka.core.delivery import Reason
from knafka_jobs.schema import RECORDS, TRIGGER

_READABLE_LENGTH: Final = (
    names.MAX_LENGTH - len(names.DEAD_LETTERS) - len(f"-{names.short_digest('')}")
)
"""Most characters between the prefix and the digest of a dead-letter topic's name."""


def records_of(kafka: DataFrame, topics: DataFrame) -> DataFrame:
    """Turn records of Kafka into rows of the table `records`.

    `kafka` has the columns of Spark's Kafka source, with headers; `topics` has the log of each
    partition (`topic`, `partition`, `topic_id`: see `topic_offsets.log_id`).
    """
    return (
        kafka.join(F.broadcast(topics), ["topic", "partition"], "left")
        .withColumn("timestamp", _if_possible("timestamp", F.current_timestamp()))
        .withColumn("header_values", F.map_from_entries("headers"))
        .withColumn("is_own", _is_of_topic())
        .select(
            "topic",
            _or_empty("topic_id").alias("topic_id"),
            "partition",
            "offset",
            F.col("timestamp").alias("appended"),
            "key",
            "value",
            "headers",
            _or_empty(_own_attribute("namespace")).alias("namespace"),
            _or_empty(_own_attribute("broker")).alias("broker"),
            # A Broker's own dead letters have no Trigger; a record that isn't of its topic's owner
            # is known by the topic.
            F.when(F.col("is_own"), _or_empty(_own_attribute("trigger")))
            .otherwise(F.col("topic"))
            .alias("trigger"),
            *(_attribute(name).alias(name) for name in ("id", "source", "type", "subject", "time")),
            _header_text("content-type").alias("content_type"),
            F.octet_length("value").alias("data_bytes"),
            _own_attribute("topic").alias("origin_topic"),
            _own_attribute("partition").try_cast("int").alias("origin_partition"),
            _own_attribute("offset").try_cast("bigint").alias("origin_offset"),
            _trace_id().alias("trace"),
            _or_empty(_attribute("knativeerrordest")).alias("destination"),
            _own_attribute("reason").alias("reason"),
            _attribute("knativeerrorcode").try_cast("int").alias("code"),
            _attribute("knativeerrordata").alias("error"),
            F.coalesce(_knafka_attribute("attempts").try_cast("int"), F.lit(0)).alias("attempts"),
            *(
                _if_possible(
                    _knafka_attribute(name).try_cast("timestamp"), F.col("timestamp")
                ).alias(column)
                for name, column in (("firsttime", "first_attempt"), ("lasttime", "last_attempt"))
            ),
            F.to_date("timestamp").alias("day"),
        )
        .withColumn("reason", _known_reason())
        .withColumn("failure_id", _failure_id())
        .select(*RECORDS)
    )


def dead_letter_topic_of(namespace: Column, broker: Column, trigger: Column) -> Column:
    """Return the name of a dead-letter topic, as `names.dead_letter_topic` does."""
    readable = F.substring(F.concat_ws("-", namespace, broker, trigger), 1, _READABLE_LENGTH)
    digest = F.sha2(F.concat_ws("/", namespace, broker, trigger), 256)
    length = len(names.short_digest(""))
    return F.concat(F.lit(names.DEAD_LETTERS), readable, F.lit("-"), F.substring(digest, 1, length))


def _is_of_topic() -> Column:
    """Return the condition that a record's headers name the Trigger or Broker whose dead-letter
    topic it is in.

    A tenant that may write to a topic can forge a record's headers. If these were believed, it
    could have events sent to another tenant's subscriber. So a record counts as a dead letter of
    its topic's owner, or of nobody.
    """
    owner = (_or_empty(_knafka_attribute(name)) for name in TRIGGER)
    return F.col("topic") == dead_letter_topic_of(*owner)


def _known_reason() -> Column:
    """Return the column `reason`, with `undecodable-record` in place of null or unknown values."""
    is_known = F.col("reason").isin([reason.value for reason in Reason])
    return F.when(is_known, F.col("reason")).otherwise(Reason.UNDECODABLE.value)


def _failure_id() -> Column:
    """Return the failure's id for a row of `records`: a digest of Trigger, source, data and the
    event's id; without one, its position in the topic it came from, or else the record's own."""
    position = F.concat_ws("/", "topic_id", "partition", "offset")
    origin = F.concat_ws("/", "origin_topic", "origin_partition", "origin_offset")
    identity = F.when(F.col("id") != "", F.col("id")).when(origin != "", origin).otherwise(position)
    parts = [_or_empty(name) for name in (*TRIGGER, "source")]
    # It only distinguishes data sent under one source and id, so 64 bits suffice; SHA-256 of every
    # payload was a fifth of the work.
    data_hash = F.when(F.col("value").isNull(), "").otherwise(F.hex(F.xxhash64("value")))
    return _digest(*parts, identity, data_hash)


def _header_text(header: str) -> Column:
    """Return a record's header as text, null without it; bytes that aren't UTF-8 become U+FFFD."""
    return F.make_valid_utf8(F.col("header_values")[header].cast("string"))


def _attribute(name: str) -> Column:
    """Return a CloudEvents attribute in the record's headers, as text."""
    return _header_text(f"ce_{name}")


def _trace_id() -> Column:
    """Return the trace id of the header `traceparent`, else of the event's attribute, else null."""
    ids = (
        F.regexp_extract(_header_text(header), "^[0-9a-f]{2}-([0-9a-f]{32})-", 1)
        for header in ("traceparent", "ce_traceparent")
    )
    return F.coalesce(*(F.when(trace_id != "", trace_id) for trace_id in ids))


def _knafka_attribute(name: str) -> Column:
    """Return an extension attribute that Knafka adds to dead letters, as text."""
    return _attribute(f"{ATTRIBUTE_PREFIX}{name}")


def _own_attribute(name: str) -> Column:
    """Return an attribute as `_knafka_attribute` does, but null if the record isn't of the Trigger
    or Broker whose topic it is in."""
    return F.when(F.col("is_own"), _knafka_attribute(name))


def _if_possible(time: str | Column, otherwise: Column) -> Column:
    """Return the time, or `otherwise` where it is null or impossible: a record may claim any."""
    column = F.col(time) if isinstance(time, str) else time
    return F.when(is_possible_time(column), column).otherwise(otherwise)


def is_possible_time(time: Column) -> Column:
    """Return the condition that a failure may have this time: from 1970 until a day from now."""
    tomorrow = F.current_timestamp() + F.expr("INTERVAL 1 DAY")
    return (time >= F.timestamp_seconds(F.lit(0))) & (time <= tomorrow)


def _or_empty(column: str | Column) -> Column:
    """Return a column with an empty string in place of null."""
    return F.coalesce(column, F.lit(""))


def _digest(*parts: str | Column) -> Column:
    """Return a 128-bit digest of the parts in hexadecimal; (`a`, `bc`) and (`ab`, `c`) differ."""
    return F.substring(F.sha2(F.to_json(F.array(*parts)), 256), 1, 32)
