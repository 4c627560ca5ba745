"""Keeps rows that a job has computed (`materialize`) below the tables, if Spark has executors.

Without executors, Spark itself keeps them. Rows that an executor keeps are lost with its pod, and
Spark can't compute them again: the job would fail.

    ROOT/checkpoints/rows/*    of each Spark application with executors; removed when it ends
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from knafka_jobs.io.session import has_executors

KEPT_ROWS_FOLDER: Final = "checkpoints/rows"
"""Folder below the tables' root; each Spark application has a folder of its own in it."""

MAX_KEPT_SECONDS: Final = 86_400.0
"""Age in seconds from which another application's rows are removed: it must have been killed."""


def use_folder(spark: SparkSession, root: str) -> None:
    """Make Spark keep computed rows in a folder below the tables' root from now on, and remove rows
    that killed applications left there. Does nothing if Spark has no executors, or a folder is set
    already."""
    context = spark.sparkContext
    if not has_executors(spark) or context.getCheckpointDir() is not None:
        return
    remove_others(spark, root, MAX_KEPT_SECONDS)
    context.setCheckpointDir(f"{root}/{KEPT_ROWS_FOLDER}")


def remove_own(spark: SparkSession) -> None:
    """Remove the rows that this application has kept; to be called before it ends. Failures are
    ignored."""
    # A failure must not hide the job's own error; `use_folder` of a later job removes what stays.
    with contextlib.suppress(Py4JError, OSError):
        if (own_folder := spark.sparkContext.getCheckpointDir()) is not None:
            path, system = _file(spark, own_folder)
            system.delete(path, True)


def remove_others(spark: SparkSession, root: str, age: float = 0.0) -> None:
    """Remove the rows below the root that other applications kept `age` seconds ago or earlier.
    With an `age` of 0, remove all their rows, even if the applications still run."""
    own_folder = spark.sparkContext.getCheckpointDir()
    path, system = _file(spark, f"{root}/{KEPT_ROWS_FOLDER}")
    if not system.exists(path):
        return
    for folder in system.listStatus(path):
        name = folder.getPath().getName()
        if own_folder is not None and own_folder.rstrip("/").endswith(f"/{name}"):
            continue
        # The time of the files, as an object store keeps no time of a folder.
        if not age or _last_written(system, folder.getPath()) <= time.time() - age:
            system.delete(folder.getPath(), True)


def _last_written(system: Any, folder: Any) -> float:
    """Return when the newest file below a folder was written, in Unix time; the current time if
    there is none."""
    times = []
    files = system.listFiles(folder, True)
    while files.hasNext():
        times.append(files.next().getModificationTime() / 1000)
    return max(times, default=time.time())


def _file(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return a path as Hadoop's `Path`, and its `FileSystem`."""
    file = spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
    return file, file.getFileSystem(spark._jsc.hadoopConfiguration())
