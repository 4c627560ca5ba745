"""A Spark for the tests of the jobs: one session for the whole run, started when first asked for.

Where PySpark, Java or the jars can't be had, the tests that need them are skipped with the reason,
and fail in CI (`CI=true`). Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pytest
from support.gate import IN_CI

from knafka_cli.shared import dead_letter_jobs
from knafka_local.kafka.kafka_distribution import LocalKafkaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEST_SETTINGS: Final[Mapping[str, str]] = {
    # Compiling code for each query takes longer than running it over some rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # What makes a plan better, or looks at it once more, is for more than some rows.
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.lightweightPlanChangeValidation": "false",
    # Nobody reads a plan as text.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "1000",
    "spark.sql.debug.maxToStringFields": "1",
}
"""Settings of the tests' session: of a job over some rows, planning is nearly all the CPU."""


def remembering(find: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Look a Java class or package up once: else Java looks into 300 jars each time that Python
    names one, to find that a package is no class."""
    known: dict[tuple[str, str], Any] = {}

    def found(where: Any, name: str) -> Any:
        key = (vars(where).get("_fqn", ""), name)
        if key not in known:
            known[key] = find(where, name)
        return known[key]

    return found


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
    from py4j import java_gateway  # type: ignore[import-untyped]

    from knafka_jobs.io import session

    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment.items():
            patch.setenv(name, value)
        started = session.start_session("tests")
        for name, value in TEST_SETTINGS.items():
            started.conf.set(name, value)
        # Rows that a test lists are pickled already: Python workers would do it once more, each
        # time that a query reads them.
        patch.setattr("pyspark.core.rdd.RDD._pickled", lambda rdd: rdd)
        # Nor does anybody ask which line of Python an expression is from.
        patch.setattr("pyspark.errors.utils._enable_debugging_cache", False)
        for kind in (java_gateway.JavaPackage, java_gateway.JVMView):
            patch.setattr(kind, "__getattr__", remembering(kind.__getattr__))
        yield started
        started.stop()
