"""What the jobs raise on purpose."""

from __future__ import annotations

import re
from typing import Final

from knafka.core.errors import KnafkaError

MAX_TEXT: Final = 2_000
"""Characters of an error that nobody foresaw: Spark's may be pages."""


class JobError(KnafkaError):
    """A job can't go on; nothing is lost, and the text says what to do about it."""


class NeedsSpark(JobError):
    """Delta's files alone don't tell; the same asked of a job does."""


_IN_WORKER: Final = re.compile(r"knafka_jobs\.errors\.JobError: ([^\n]*)")


def said_by_worker(error: Exception) -> str:
    """Why a task in a Python worker failed: what our own code raised there, else the last line of
    its stack."""
    text = str(error)
    if found := _IN_WORKER.findall(text):
        return str(found[-1])
    return next(
        (line for line in reversed(text.splitlines()) if line.strip()), type(error).__name__
    )


def in_one_line(error: Exception) -> str:
    """Why a job failed, as its last line says it: whoever reads that takes one line."""
    text = " ".join(str(error).split())
    if isinstance(error, KnafkaError):
        return text
    return f"{type(error).__name__}: {text[:MAX_TEXT]}; this is a fault of Knafka: please report it"
