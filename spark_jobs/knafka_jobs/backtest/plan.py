"""What a backtest computes: the records of a topic or an archive, and what they fire.

    RECORDS --routed--> ROUTED, one row for each trigger that an event concerns
            --fired---> FIRINGS, and rows that only count (`counts`)

Events are read, filtered and correlated by the code that the Sensor's own function has
(`core.kafka_binding`, `core.sensor.routing`), in Spark's Python workers; Spark sorts, and `model`
says what fires. A partition is a stream to each of them, so that memory doesn't grow with the
events of a key. Pure: DataFrames and values in and out.
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
from knafka.core.kafka_binding import CONTENT_TYPE, read
from knafka.core.sensor.contract import Conditions
from knafka.core.sensor.duplicates import Seen
from knafka.core.sensor.records import correlation_of, identity_of, trigger_of
from knafka.core.sensor.routing import Router
from knafka_jobs.backtest.model import Came, Model
from knafka_jobs.schema import Columns, ddl

RECORDS: Final[Columns] = {
    "place": "string",  # the topic, or the file
    "partition": "bigint",
    "offset": "bigint",
    "at": "bigint",  # ms since the Unix epoch; null: not known
    "names": "array<string>",  # of its headers
    "values": "array<binary>",
    "value": "binary",
}
"""Records as Kafka has them; place, partition and offset are their order at one time."""

ROUTED: Final[Columns] = {
    "key": "string",  # the trigger, and its correlation key if it has any
    "at": "bigint",
    "place": "string",
    "partition": "bigint",
    "offset": "bigint",
    "number": "int",  # of the routes of one event, in their order
    "dependency": "string",
    "identity": "string",
    "fires": "boolean",  # by itself
    "counts": "string",
}
"""A row with `counts` has nothing else: what a task has counted, as JSON."""

EVENT: Final[Columns] = {
    "dependency": "string",
    "source": "string",
    "id": "string",
    "at": "timestamp",
    "topic": "string",
    "partition": "bigint",
    "offset": "bigint",
}

FIRINGS: Final[Columns] = {
    "trigger": "string",
    "correlation": "string",
    "at": "timestamp",
    "events": f"array<struct<{ddl(EVENT)}>>",
}
"""What would have fired: with the events that made it true, in the order of time."""

_FIRED: Final[Columns] = {
    "trigger": "string",
    "correlation": "string",
    "at": "bigint",
    "events": "array<struct<dependency: string, identity: string, at: bigint, place: string,"
    " partition: bigint, offset: bigint>>",
    "counts": "string",
}

READ: Final = "read"
UNDECODABLE: Final = "undecodable"
UNDATED: Final = "undated"
"""Events of an archive that have no time, or one that can't be: they can't be put in order."""
MATCHED: Final = "matched"
"""Events, as often as a trigger has one."""
ERROR: Final = "error "
"""Precedes the kind of an error of filters and correlations."""
WAITING: Final = "waiting "
"""Precedes the name of a trigger: correlation keys of it that hold events in the end."""

Counts: TypeAlias = "Counter[str]"


def records_of(headers: Column, value: Column) -> list[Column]:
    """The last columns of RECORDS, from headers as Spark's Kafka source gives them. A value is left
    out, unless it holds the attributes: in most archives it is most of the bytes."""
    is_structured = F.exists(
        headers,
        lambda each: (
            (F.lower(each["key"]) == CONTENT_TYPE)
            & F.lower(each["value"].cast("string")).startswith("application/cloudevents")
        ),
    )
    return [
        headers["key"].alias("names"),
        headers["value"].alias("values"),
        F.when(is_structured, value).alias("value"),
    ]


def taken_at(at: Column, now: int) -> Column:
    """When a topic took a record (ms), as its Sensor has it that reads it now: `times.taken_at`."""
    return F.when(at.between(0, now), at).otherwise(F.lit(now))


def possible(at: Column) -> Column:
    """A time (ms) of an archive, which says of none when it was read; null: it can't be."""
    return F.when(at.between(times.EARLIEST * 1000, times.LATEST * 1000), at)


def routed(records: DataFrame, sensor: Conditions) -> DataFrame:
    """ROUTED, of RECORDS."""
    rows = records.select(*RECORDS).rdd.mapPartitions(partial(_route, dump(sensor)))
    return records.sparkSession.createDataFrame(rows, ddl(ROUTED), verifySchema=False)


def fired(routes: DataFrame, sensor: Conditions, until: int, partitions: int) -> DataFrame:
    """What fires by this time (ms), in so many tasks: firings, and rows of `counts`."""
    alone = F.concat_ws("/", "place", "partition", "offset")
    rows = (
        # What fires by itself needs no neighbours: a trigger of all events would be one task.
        routes.repartition(partitions, F.when(F.col("fires"), alone).otherwise(F.col("key")))
        .sortWithinPartitions("key", "at", "place", "partition", "offset", "number")
        .select(*ROUTED)
        .rdd.mapPartitions(partial(_fire, dump(sensor), until))
    )
    return routes.sparkSession.createDataFrame(rows, ddl(_FIRED), verifySchema=False)


def firings(found: DataFrame) -> DataFrame:
    """FIRINGS, of what `fired` gives."""

    def event(each: Column) -> Column:
        # A source has no spaces.
        identity = F.split(each["identity"], " ", 2)
        return F.struct(
            each["dependency"].alias("dependency"),
            identity[0].alias("source"),
            identity[1].alias("id"),
            F.timestamp_millis(each["at"]).alias("at"),
            each["place"].alias("topic"),
            each["partition"].alias("partition"),
            each["offset"].alias("offset"),
        )

    return found.where("counts IS NULL").select(
        "trigger",
        "correlation",
        F.timestamp_millis("at").alias("at"),
        F.transform("events", event).alias("events"),
    )


def counts(found: DataFrame) -> Counts:
    """What all tasks have counted, of what `fired` gives."""
    rows = found.where("counts IS NOT NULL").select("counts").collect()
    return _sum(row["counts"] for row in rows)


def conditions_of(document: Any) -> Conditions:
    """What a Sensor decides by: of its own document, or as `kubectl get -o json` gives the object.
    Raises `InvalidDocument`."""
    spec = document
    if isinstance(document, dict) and isinstance(document.get("spec"), dict):
        spec = {name: each for name, each in document["spec"].items() if name not in _BUS}
        if isinstance(triggers := spec.get("triggers"), list):
            spec["triggers"] = [_condition(each) for each in triggers]
    return parse(Conditions, spec)


_BUS: Final = ("broker", "channel", "grace")
_DELIVERY: Final = frozenset(
    {"subscriber", "reply", "delivery", "payload", "retryStrategy", "rateLimit", "dlqTrigger"}
)
"""What a Sensor says of when it fires is neither of these."""


def _condition(trigger: Any) -> Any:
    if not isinstance(trigger, dict):
        return trigger
    return {name: each for name, each in trigger.items() if name not in _DELIVERY}


# In Spark's Python workers


def _route(document: Any, rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    counted: Counts = Counter()
    router = Router(parse(Conditions, document), lambda kind: counted.update([f"{ERROR}{kind}"]))
    for place, number, offset, at, names, values, value in rows:
        counted[READ] += 1
        if at is None:
            counted[UNDATED] += 1
            continue
        try:
            headers = zip(names or (), values or (), strict=True)
            attributes = read(headers, None if value is None else bytes(value)).attributes
        except InvalidEvent:
            counted[UNDECODABLE] += 1
            continue
        if routes := router.route(attributes):
            counted[MATCHED] += len(routes)
            identity = identity_of(attributes)
            where = (at, place, number, offset)
            for order, (dependency, key, fires) in enumerate(routes):
                yield key, *where, order, dependency, identity, fires, None
    yield *[None] * (len(ROUTED) - 1), json.dumps(counted)


def _fire(document: Any, until: int, rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    counted: Counts = Counter()
    conditions = parse(Conditions, document)
    rules = {each.name: each for each in conditions.rules()}
    for key, its in groupby(rows, itemgetter(0)):
        if key is None:
            counted += _sum(row[-1] for row in its)
            continue
        trigger, correlation = trigger_of(key), correlation_of(key)
        model, seen = Model(rules[trigger]), Seen(conditions.dedupe_millis)
        for _, at, place, number, offset, _, dependency, identity, fires, _ in its:
            came = Came(dependency, identity, at, place, number, offset)
            if fires:
                yield trigger, correlation, at, [came], None
                continue
            if not seen.is_new(key, dependency, identity, at):
                continue
            for each in model.add(came):
                yield trigger, correlation, each.at, list(each.events), None
        for each in model.end(until):
            yield trigger, correlation, each.at, list(each.events), None
        counted[f"{WAITING}{trigger}"] += model.waits(until)
    yield None, None, None, None, json.dumps(counted)


def _sum(texts: Iterable[str]) -> Counts:
    total: Counts = Counter()
    for text in texts:
        total.update(json.loads(text))
    return total
