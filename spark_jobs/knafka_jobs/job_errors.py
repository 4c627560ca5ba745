"""Errors that the jobs raise on purpose, and how any error is shown to users."""

from __future__ import annotations

import re
from typing import Final

from knafka.core.errors import KnafkaError

MAX_ERROR_CHARACTERS: Final = 2_000
"""Largest number of characters that are shown of an unexpected error: Spark's may fill pages."""


class JobError(KnafkaError):
    """A job can't go on. Nothing is lost, and the text says what to do about it."""


class NeedsSpark(JobError):
    """A question can't be answered from Delta's files alone; a job on Spark can answer it."""


_WORKER_JOB_ERROR: Final = re.compile(rf"{re.escape(JobError.__module__)}\.JobError: ([^\n]*)")
"""Finds the text of a `JobError` in the stack trace of a Python worker."""


def worker_error_text(error: Exception) -> str:
    """Return the reason why a task in a Python worker of Spark failed, in one line.

    It is the text of the `JobError` that was raised there, else the last line of the stack trace;
    if `error` has no text, the name of its type.
    """
    text = str(error)
    if job_errors := _WORKER_JOB_ERROR.findall(text):
        return str(job_errors[-1])
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def error_in_one_line(error: Exception) -> str:
    """Return the reason why a job failed, in one line. For an unexpected error, one that isn't a
    `KnafkaError`, the line asks the user to report the fault."""
    text = " ".join(str(error).split())
    if isinstance(error, KnafkaError):
        return text
    summary = f"{type(error).__name__}: {text[:MAX_ERROR_CHARACTERS]}"
    return f"{summary}; this is a fault of Knafka: please report it"
