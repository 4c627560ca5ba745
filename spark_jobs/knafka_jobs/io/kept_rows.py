"""Where rows are kept that a job has computed (`materialize`): with executors below the tables.

In one process Spark keeps them itself. What an executor keeps is gone with its pod, and Spark can't
compute it anew: the job would fail.

    ROOT/checkpoints/rows/*    of each Spark application with executors; removed when it ends
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from knafka_jobs.io.session import has_executors

FOLDER: Final = "checkpoints/rows"

MAX_AGE: Final = 86_400.0
"""Seconds after which the rows of another application are removed: it was killed."""


def use_folder(spark: SparkSession, root: str) -> None:
    """Keep rows below the tables' root from now on, if Spark has executors.

    Removes what applications left that were killed.
    """
    context = spark.sparkContext
    if not has_executors(spark) or context.getCheckpointDir() is not None:
        return
    remove_others(spark, root, MAX_AGE)
    context.setCheckpointDir(f"{root}/{FOLDER}")


def remove_own(spark: SparkSession) -> None:
    """Remove the rows that this application has kept, before it ends; no error of it is raised."""
    # It must not hide the job's own error. What stays is removed by `use_folder` of a later job.
    with contextlib.suppress(Py4JError, OSError):
        if (own := spark.sparkContext.getCheckpointDir()) is not None:
            path, system = _file(spark, own)
            system.delete(path, True)


def remove_others(spark: SparkSession, root: str, age: float = 0.0) -> None:
    """Remove the rows below the root that other applications kept `age` seconds ago or earlier."""
    own = spark.sparkContext.getCheckpointDir()
    path, system = _file(spark, f"{root}/{FOLDER}")
    if not system.exists(path):
        return
    for folder in system.listStatus(path):
        name = folder.getPath().getName()
        if own is not None and own.rstrip("/").endswith(f"/{name}"):
            continue
        # An object store knows no time of a folder.
        if not age or _last_written(system, folder.getPath()) <= time.time() - age:
            system.delete(folder.getPath(), True)


def _last_written(system: Any, folder: Any) -> float:
    """When the newest file below a folder was written, in Unix time; now, if there is none."""
    times = []
    files = system.listFiles(folder, True)
    while files.hasNext():
        times.append(files.next().getModificationTime() / 1000)
    return max(times, default=time.time())


def _file(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """A path as Hadoop's `Path`, and its `FileSystem`."""
    file = spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
    return file, file.getFileSystem(spark._jsc.hadoopConfiguration())
