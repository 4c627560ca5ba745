"""Finds rows of `records` by their positions, reading only files that may hold them.

    rows with positions --offset_bounds--> bounds for each partition
                        --within_bounds--> a predicate by which Delta skips files

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
"""Largest number of partitions that a predicate names one by one: planning a predicate with
thousands takes longer than reading some files too many."""


class OffsetBounds(NamedTuple):
    """The offsets between which rows of one partition lie."""

    topic_id: str
    partition: int
    first: int
    """The lowest offset of a row."""
    last: int
    """The highest offset of a row."""


def offset_bounds(rows: DataFrame) -> list[OffsetBounds]:
    """Return the lowest and the highest offset of the rows in each partition, by running a Spark
    job. `rows` have `topic_id`, `partition` and `offset`; rows in which one of these is null are
    left out."""
    extremes = rows.groupBy("topic_id", "partition").agg(F.min("offset"), F.max("offset")).collect()
    return [OffsetBounds(*row) for row in extremes if None not in row]


def within_bounds(bounds: Iterable[OffsetBounds]) -> Column:
    """Return a predicate that is true for rows within these bounds; without bounds it is false.

    With more than `MAX_BOUNDS` bounds, it compares only topics and the outermost offsets, so it is
    also true for some other rows.
    """
    bounds = list(bounds)
    if not bounds:
        return F.lit(False)
    if len(bounds) > MAX_BOUNDS:
        return _between_outermost(bounds) & F.col("topic_id").isin(
            sorted({bound.topic_id for bound in bounds})
        )
    predicates = (
        (F.col("topic_id") == bound.topic_id)
        & (F.col("partition") == bound.partition)
        & _between_outermost([bound])
        for bound in bounds
    )
    return reduce(Column.__or__, predicates)


def _between_outermost(bounds: list[OffsetBounds]) -> Column:
    """Return a predicate for offsets from the lowest `first` to the highest `last` of these
    bounds."""
    return F.col("offset").between(
        min(bound.first for bound in bounds), max(bound.last for bound in bounds)
    )
