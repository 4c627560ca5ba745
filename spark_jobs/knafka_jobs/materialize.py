"""Computes rows once that a job needs several times. `io.kept_rows` says where they are kept."""

from __future__ import annotations

from pyspark.sql import DataFrame


def compute_rows(rows: DataFrame) -> DataFrame:
    """Compute rows now, and return a DataFrame of the result, so that they are not computed again
    each time they are read.

    Spark keeps the result: in files of its checkpoint folder if one is set, else in its own memory
    and disk.
    """
    if rows.sparkSession.sparkContext.getCheckpointDir() is None:
        return rows.localCheckpoint()
    return rows.checkpoint()
