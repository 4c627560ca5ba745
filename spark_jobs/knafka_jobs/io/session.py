"""Starts the Spark session with the settings that every job needs.

Master, memory and jars are set by the caller: by arguments of `spark-submit`, or by
`PYSPARK_SUBMIT_ARGS` for a plain `python -m knafka_jobs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from knafka_jobs.job_errors import JobError

STATIC_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A sort of many small rows, as a backtest's, goes to disk before its index alone fills a heap.
    "spark.shuffle.spill.numElementsForceSpillThreshold": "1000000",
}
"""Settings that must be set before the session starts."""

UNREPEATED_COLUMNS: Final = (
    *("failure_id", "offset", "value", "id", "origin_offset"),
    # Of a dead letter's twenty headers a few repeat, and Snappy compresses those anyway.
    "headers.list.element.value",
)
"""Columns whose values hardly repeat in a file."""

SESSION_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    # Of record headers with the same name the last wins (CE-K6); by default Spark would refuse the
    # batch.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.streaming.stopTimeout": "30s",
    # Rows of few days are written as they come: Spark would sort them by day first, payloads too.
    "spark.sql.maxConcurrentOutputFileWriters": "2",
    # The newer Kafka source also for batches: the older one turns every record into a Row and back.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # Merge only files below the minimum, so that a record is not rewritten with every run.
    "spark.databricks.delta.optimize.minFileSize": str(32 * 1024 * 1024),
    "spark.databricks.delta.optimize.maxFileSize": str(128 * 1024 * 1024),
    # Almost every dead letter is a failure of its own: a hash table of so many groups only spills.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
    # A third smaller than INT96, Spark's default, and other readers understand it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A dictionary of values that never repeat is useless, and dropped at 1 MiB.
    **{f"parquet.enable.dictionary#{name}": "false" for name in UNREPEATED_COLUMNS},
}
"""Settings of every session."""

LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "2",  # instead of 200: each costs a task
    "spark.databricks.delta.snapshotPartitions": "1",  # instead of 50
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",  # VACUUM's, instead of 10,000
}
"""Settings of a session in local mode."""


def start_session(name: str) -> SparkSession:
    """Start the Spark session of a job. Raises `JobError` if Spark doesn't start, as without its
    jars."""
    builder = SparkSession.builder.appName(f"knafka {name}")
    for key, value in STATIC_SETTINGS.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # py4j and PySpark raise what they like here
        raise JobError(f"Spark does not start: {error}") from error
    on_one_machine = not has_executors(spark)
    configured = spark.sparkContext.getConf()
    instances = int(configured.get("spark.executor.instances", "1") or 1)
    cores = int(configured.get("spark.executor.cores", "1") or 1)
    size_settings = LOCAL_SETTINGS if on_one_machine else executor_settings(instances * cores)
    for key, value in {**SESSION_SETTINGS, **size_settings}.items():
        spark.conf.set(key, value)
    return spark


def has_executors(spark: SparkSession) -> bool:
    """Whether processes other than this one run tasks, such as executor pods: unless the master is
    `local` or `local[…]`."""
    return re.match(r"local(\[|$)", spark.sparkContext.master or "") is None


def executor_settings(cores: int) -> dict[str, str]:
    """Return the settings of a session with executors; `cores` is the number of cores of all
    executors together."""
    # Instead of Spark's 200: each is a task, and a file if rows are written without another
    # shuffle.
    return {"spark.sql.shuffle.partitions": str(max(2, 2 * cores))}


def object_store(spark: SparkSession) -> dict[str, str] | None:
    """Return delta-rs's options for the S3 that Spark's settings name; None if they name none."""
    configured = spark.sparkContext.getConf()
    endpoint = configured.get("spark.hadoop.fs.s3a.endpoint", "")
    region = configured.get("spark.hadoop.fs.s3a.endpoint.region", "")
    if not endpoint and not region:
        return None
    from knafka_jobs.io.table_files import s3_options  # deltalake is an extra

    return s3_options(endpoint, region)
