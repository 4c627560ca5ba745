"""A Spark for the tests of the jobs: one session for the whole run, started when first asked for.

Where PySpark, Java or the jars can't be had, the tests that need them are skipped with the reason,
and fail in CI (`CI=true`). Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.gate import IN_CI

from knafka_cli.shared import dead_letter_jobs
from knafka_local.kafka.kafka_distribution import LocalKafkaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_environment() -> dict[str, str]:
    """What a process needs in its environment to start the jobs' Spark."""
    try:
        import pyspark  # noqa: F401 - asks whether it is there

        return dead_letter_jobs.spark_environment(lambda _: None, s3=True)
    except (ImportError, LocalKafkaError) as error:
        if IN_CI:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(spark_environment: dict[str, str]) -> Iterator[SparkSession]:
    """The session that every job starts with."""
    from knafka_jobs.io import session

    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment.items():
            patch.setenv(name, value)
        started = session.start_session("tests")
        # Compiling code for each query takes longer than running it over some rows.
        started.conf.set("spark.sql.codegen.wholeStage", "false")
        started.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        # Rows that a test lists are pickled already: Python workers would do it once more, each
        # time that a query reads them.
        patch.setattr("pyspark.core.rdd.RDD._pickled", lambda rdd: rdd)
        yield started
        started.stop()
