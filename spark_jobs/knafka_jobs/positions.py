"""Rows of `records` by their positions, so that only those files are read that may hold them.

    rows with POSITION --bounds--> one row a partition --within--> a predicate that Delta skips by

Delta notes each file's least and greatest `topic_id`, `partition` and `offset` (`schema.BOUNDED`).
Pure: DataFrames and values in and out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

MAX_BOUNDS: Final = 200
"""Partitions that a predicate names one by one: planning one of thousands takes longer than reading
some files too many."""


class Bounds(NamedTuple):
    """Where rows of one partition lie."""

    topic_id: str
    partition: int
    first: int
    last: int
    """Inclusive, as `first`."""


def bounds(rows: DataFrame) -> list[Bounds]:
    """Where rows with `KEY` lie, by partition; runs them."""
    found = rows.groupBy("topic_id", "partition").agg(F.min("offset"), F.max("offset")).collect()
    return [Bounds(*row) for row in found if None not in row]


def within(wanted: Iterable[Bounds]) -> Column:
    """Whether a row may lie within these bounds; of very many only topics and ends count."""
    wanted = list(wanted)
    if not wanted:
        return F.lit(False)
    if len(wanted) > MAX_BOUNDS:
        return _between(wanted) & F.col("topic_id").isin(sorted({each.topic_id for each in wanted}))
    its = (
        (F.col("topic_id") == each.topic_id)
        & (F.col("partition") == each.partition)
        & _between([each])
        for each in wanted
    )
    return reduce(Column.__or__, its)


def _between(wanted: list[Bounds]) -> Column:
    return F.col("offset").between(
        min(each.first for each in wanted), max(each.last for each in wanted)
    )
