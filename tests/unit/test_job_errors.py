"""What users read of an error in one of Spark's Python workers."""

from __future__ import annotations

import traceback

from knafka_jobs.job_errors import JobError, worker_error_text


def stack_trace(error: Exception) -> Exception:
    """Spark's error of a failed task: it has the worker's stack trace as its text."""
    try:
        raise error
    except Exception:
        return RuntimeError(f"Job aborted:\n{traceback.format_exc()}\n\tat org.apache.spark.api")


def test_a_job_error_of_a_worker_is_shown_without_its_stack_trace() -> None:
    assert worker_error_text(stack_trace(JobError("Kafka: no broker"))) == "Kafka: no broker"


def test_of_any_other_error_the_last_line_is_shown() -> None:
    assert worker_error_text(stack_trace(ValueError("odd"))) == "\tat org.apache.spark.api"
    assert worker_error_text(ValueError("")) == "ValueError"
