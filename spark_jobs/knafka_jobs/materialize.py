"""Computes rows once that a job needs several times. `io.kept_rows` says where they are kept."""

from __future__ import annotations

from pyspark.sql import DataFrame


def compute_rows(rows: DataFrame) -> DataFrame:
    """Compute rows now, and return them as computed.

    Spark itself keeps them, or files in its checkpoint folder if one is set.
    """
    if rows.sparkSession.sparkContext.getCheckpointDir() is None:
        return rows.localCheckpoint()
    return rows.checkpoint()
