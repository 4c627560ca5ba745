"""The pure part of a backtest: turns the records of a topic or an archive into firings.

    EVENT_RECORDS --route_events--> ROUTED, one row for each trigger that an event matches
                  --compute_firings--> FIRED, one row for each firing
                  --firing_rows--> FIRINGS, the same for users
    ROUTED and FIRED also have rows with a task's counts only --sum_task_counts--> Counts

Spark's Python workers read, filter and correlate events by the same code as the Sensor's own
function (`core.kafka_binding`, `core.sensor.routing`): only events with the same correlation key
fire a trigger together. Spark sorts them, and `firing_model` computes the firings. Every step
streams its partition, so that memory does not grow with the events of a key. Pure: DataFrames and
values in and out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from knafka.core import times
from knafka.core.documents import dump, parse
from knafka.core.errors import InvalidEvent
from knafka.core.events.kafka_binding import CONTENT_TYPE, read
from knafka.core.sensor.contract import Conditions
from knafka.core.sensor.duplicates import SeenEvents
from knafka.core.sensor.records import correlation_of, identity_of, trigger_of
from knafka.core.sensor.routing import Router
from knafka_jobs.backtest.firing_model import ArrivedEvent, FiringModel
from knafka_jobs.schema import Columns, ddl

EVENT_RECORDS: Final[Columns] = {
    "place": "string",  # the topic, or the file
    "partition": "bigint",
    "offset": "bigint",
    "at": "bigint",  # ms since the Unix epoch; null: not known
    "names": "array<string>",  # of its headers
    "values": "array<binary>",
    "value": "binary",
}
"""Columns of a record; place, partition and offset order records of one time."""

ROUTED: Final[Columns] = {
    "key": "string",  # the trigger, and its correlation key if it has any
    "at": "bigint",
    "place": "string",
    "partition": "bigint",
    "offset": "bigint",
    "number": "int",  # of this route among those of one event, in their order
    "dependency": "string",
    "identity": "string",
    "fires": "boolean",  # whether the event fires the trigger by itself
    "counts": "string",  # JSON; null in the row of an event
}
"""Columns of an event that matches a trigger. A row with `counts` has the counts of one task as
JSON, and all its other columns are null."""

FIRING_EVENT: Final[Columns] = {
    "dependency": "string",
    "source": "string",
    "id": "string",
    "at": "timestamp",
    "topic": "string",
    "partition": "bigint",
    "offset": "bigint",
}
"""Columns of an event of a firing."""

FIRINGS: Final[Columns] = {
    "trigger": "string",
    "correlation": "string",
    "at": "timestamp",
    "events": f"array<struct<{ddl(FIRING_EVENT)}>>",
}
"""Columns of a firing; its events are those that completed the condition, in the order of time."""

FIRED: Final[Columns] = {
    "trigger": "string",
    "correlation": "string",
    "at": "bigint",
    "events": "array<struct<dependency: string, identity: string, at: bigint, place: string,"
    " partition: bigint, offset: bigint>>",
    "counts": "string",
}
"""Columns of a firing with its `ArrivedEvent`s. A row with `counts` has the counts of one task as
JSON, and all its other columns are null."""

READ: Final = "read"
"""Count of events that were read."""
UNDECODABLE: Final = "undecodable"
"""Count of records that hold no event."""
UNDATED: Final = "undated"
"""Count of events of an archive that have no possible time, so that they can't be put in order."""
MATCHED: Final = "matched"
"""Count of events that match a trigger, one for each trigger."""
ERROR: Final = "error "
"""Prefix of counts of errors in filters and correlations; the kind of error follows."""
WAITING: Final = "waiting "
"""Prefix of the counts of correlation keys that still hold events at the end of the backtest; the
trigger's name follows."""

Counts: TypeAlias = "Counter[str]"
"""Numbers by name: `READ`, `UNDECODABLE` and the other names above."""


def records_of(headers: Column, value: Column) -> list[Column]:
    """Return the columns `names`, `values` and `value` of EVENT_RECORDS, from a record's headers
    and value in the form of Spark's Kafka source.

    `value` is kept only for a structured event, whose attributes it holds, and else null: filters
    need no data, and values are most of the bytes.
    """
    is_structured = F.exists(
        headers,
        lambda header: (
            (F.lower(header["key"]) == CONTENT_TYPE)
            & F.lower(header["value"].cast("string")).startswith("application/cloudevents")
        ),
    )
    return [
        headers["key"].alias("names"),
        headers["value"].alias("values"),
        F.when(is_structured, value).alias("value"),
    ]


def taken_at(record_time: Column, now: int) -> Column:
    """Return the time (ms) at which a topic took a record: the record's own time, or `now` (ms),
    the time of this reading, if that is null, before 1970 or after `now`."""
    return F.when(record_time.between(0, now), record_time).otherwise(F.lit(now))


def possible_time(record_time: Column) -> Column:
    """Return a record's time (ms) in an archive, or null if no event can have that time."""
    return F.when(record_time.between(times.EARLIEST * 1000, times.LATEST * 1000), record_time)


def route_events(records: DataFrame, sensor: Conditions) -> DataFrame:
    """Match EVENT_RECORDS with the triggers of a Sensor; returns rows of ROUTED, not sorted."""
    rows = records.select(*EVENT_RECORDS).rdd.mapPartitions(partial(_route_task, dump(sensor)))
    return records.sparkSession.createDataFrame(rows, ddl(ROUTED), verifySchema=False)


def compute_firings(
    routes: DataFrame, sensor: Conditions, until: int, partitions: int
) -> DataFrame:
    """Compute the firings up to `until` (ms) from rows of ROUTED, in `partitions` tasks. Returns
    rows of FIRED."""
    position = F.concat_ws("/", "place", "partition", "offset")
    rows = (
        # Events that fire alone are spread over all tasks: by their key, all events of a trigger
        # without conditions would be in one.
        routes.repartition(partitions, F.when(F.col("fires"), position).otherwise(F.col("key")))
        .sortWithinPartitions("key", "at", "place", "partition", "offset", "number")
        .select(*ROUTED)
        .rdd.mapPartitions(partial(_fire_task, dump(sensor), until))
    )
    return routes.sparkSession.createDataFrame(rows, ddl(FIRED), verifySchema=False)


def firing_rows(outcome_rows: DataFrame) -> DataFrame:
    """Return the firings in the form for users, FIRINGS, from rows of FIRED."""

    def event_struct(event: Column) -> Column:
        """Return an event of `FIRED` as a struct of `FIRING_EVENT`."""
        # The identity is the source, which has no spaces, a space, and the id.
        identity = F.split(event["identity"], " ", 2)
        return F.struct(
            event["dependency"].alias("dependency"),
            identity[0].alias("source"),
            identity[1].alias("id"),
            F.timestamp_millis(event["at"]).alias("at"),
            event["place"].alias("topic"),
            event["partition"].alias("partition"),
            event["offset"].alias("offset"),
        )

    return outcome_rows.where("counts IS NULL").select(
        "trigger",
        "correlation",
        F.timestamp_millis("at").alias("at"),
        F.transform("events", event_struct).alias("events"),
    )


def sum_task_counts(outcome_rows: DataFrame) -> Counts:
    """Return the counts of the whole backtest: the sums of all tasks' counts in rows of FIRED."""
    rows = outcome_rows.where("counts IS NOT NULL").select("counts").collect()
    return _sum_counts(row["counts"] for row in rows)


def conditions_of(document: Any) -> Conditions:
    """Return the conditions of a Sensor: the part that decides when it fires. `document`, parsed
    from JSON, is the Sensor as `kubectl -o json` shows it, or only the fields of `Conditions`.
    Raises `InvalidDocument`."""
    spec = document
    if isinstance(document, dict) and isinstance(document.get("spec"), dict):
        spec = {
            name: value
            for name, value in document["spec"].items()
            if name not in _OTHER_SPEC_FIELDS
        }
        if isinstance(triggers := spec.get("triggers"), list):
            spec["triggers"] = [_condition_fields(trigger) for trigger in triggers]
    return parse(Conditions, spec)


_OTHER_SPEC_FIELDS: Final = ("broker", "channel", "grace")
"""Fields of a Sensor's spec that do not decide when it fires."""
_OTHER_TRIGGER_FIELDS: Final = frozenset(
    {"subscriber", "reply", "delivery", "payload", "retryStrategy", "rateLimit", "dlqTrigger"}
)
"""Fields of a Sensor's triggers that do not decide when it fires."""


def _condition_fields(trigger: Any) -> Any:
    """Return the fields of a trigger that decide when it fires. A `trigger` that is no JSON object
    is returned as it is, for `parse` to refuse."""
    if not isinstance(trigger, dict):
        return trigger
    return {name: value for name, value in trigger.items() if name not in _OTHER_TRIGGER_FIELDS}


# In Spark's Python workers


def _route_task(document: Any, rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Route the events of one task, rows of `EVENT_RECORDS`; yields rows of `ROUTED`, the last with
    the task's counts. `document` is the Sensor's `Conditions` as a JSON document."""
    counts: Counts = Counter()
    router = Router(parse(Conditions, document), lambda kind: counts.update([f"{ERROR}{kind}"]))
    for place, partition, offset, record_time, names, values, value in rows:
        counts[READ] += 1
        if record_time is None:
            counts[UNDATED] += 1
            continue
        try:
            headers = zip(names or (), values or (), strict=True)
            attributes = read(headers, None if value is None else bytes(value)).attributes
        except InvalidEvent:
            counts[UNDECODABLE] += 1
            continue
        if routes := router.route(attributes):
            counts[MATCHED] += len(routes)
            identity = identity_of(attributes)
            position = (record_time, place, partition, offset)
            for order, (dependency, key, fires) in enumerate(routes):
                yield key, *position, order, dependency, identity, fires, None
    nulls = [None] * (len(ROUTED) - 1)  # all columns but `counts`, the last
    yield *nulls, json.dumps(counts)


def _fire_task(document: Any, until: int, rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Compute the firings up to `until` (ms) from one task's sorted rows of `ROUTED`; yields rows
    of `FIRED`. The last row has the task's counts, with those of its rows of `ROUTED` added.
    `document` is the Sensor's `Conditions` as a JSON document."""
    counts: Counts = Counter()
    conditions = parse(Conditions, document)
    rules = {rule.name: rule for rule in conditions.rules()}
    for key, rows_of_key in groupby(rows, itemgetter(0)):
        if key is None:  # these rows have counts only
            counts += _sum_counts(row[-1] for row in rows_of_key)
            continue
        trigger, correlation = trigger_of(key), correlation_of(key)
        model, seen = FiringModel(rules[trigger]), SeenEvents(conditions.dedupe_millis)
        for _, time, place, partition, offset, _, dependency, identity, fires, _ in rows_of_key:
            event = ArrivedEvent(dependency, identity, time, place, partition, offset)
            if fires:  # the event fires the trigger by itself
                yield trigger, correlation, time, [event], None
                continue
            if not seen.mark_if_new(key, dependency, identity, time):
                continue  # a duplicate, which the Sensor drops
            for firing in model.add(event):
                yield trigger, correlation, firing.at, list(firing.events), None
        for firing in model.end(until):
            yield trigger, correlation, firing.at, list(firing.events), None
        counts[f"{WAITING}{trigger}"] += int(model.has_waiting_events(until))
    yield None, None, None, None, json.dumps(counts)


def _sum_counts(texts: Iterable[str]) -> Counts:
    """Return the sums of these counts, each text being a task's counts as JSON."""
    total: Counts = Counter()
    for text in texts:
        total.update(json.loads(text))
    return total
