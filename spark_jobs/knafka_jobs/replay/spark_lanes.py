"""Spark lanes: sends a replay's events in Spark's Python workers, one lane for each partition.

A lane is a sequence of events that one producer sends in order. The Spark job runs in a thread;
meanwhile the calling thread notes the progress and checks for a cancellation.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row

from knafka_jobs.job_errors import JobError, worker_error_text
from knafka_jobs.replay.replay_progress import Progress, ReplayProgress
from knafka_jobs.replay.send import LaneResult, ReplaySender, progress_text

PROGRESS_CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks of a replay's progress."""
PROGRESS_LINE_INTERVAL: Final = 5.0
"""Seconds between two lines of progress."""


def send_in_lanes(
    rows: DataFrame,
    sender: ReplaySender,
    sent_so_far: Callable[[], int],
    total: int,
    is_cancelled: Callable[[], bool],
    notes: ReplayProgress,
    progress: Progress,
) -> LaneResult:
    """Send the rows in Spark's Python workers, one lane for each partition of `rows`. Returns the
    sum of the lanes' results; an empty result if `is_cancelled` returns True before the lanes have
    ended, which stops them. Raises `JobError`.

    `sent_so_far` counts the events that were sent, of `total`. Meanwhile `notes` stores this number
    in a table, and `progress` is called with lines for users.
    """
    job = _SparkJob(rows, sender)
    reporter = _ProgressReporter(sent_so_far, total, progress)
    start = time.monotonic()
    with job.running():
        while job.is_running_after(PROGRESS_CHECK_INTERVAL):
            if is_cancelled():
                return LaneResult()
            notes.note(lambda: min(sent_so_far(), total))
            reporter.report_if_due()
    result = job.result()
    progress(progress_text(result.sent, total, result.sent / (time.monotonic() - start)))
    return result


class _SparkJob:
    """A Spark job that sends all lanes. It runs in a thread of its own, so that the calling thread
    can cancel it."""

    def __init__(self, rows: DataFrame, sender: ReplaySender) -> None:
        """Prepare the job, which starts in `running`; each partition of `rows` is a lane."""
        self._rows = rows
        self._sender = sender
        self._context = rows.sparkSession.sparkContext
        self._group = f"knafka-replay-{secrets.token_hex(4)}"
        """Name of Spark's job group, by which the job is cancelled."""
        self._thread = InheritableThread(target=self._run)
        self._lanes: list[LaneResult] = []
        """The results of all lanes, once the job has ended."""
        self._error: Exception | None = None
        """Why the job failed; None: it hasn't."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the job at the beginning of a `with` block. If it still runs when the block is
        left, cancel it and wait for its end."""
        self._thread.start()
        try:
            yield
        finally:
            if self._thread.is_alive():
                self._context.cancelJobGroup(self._group)
                self._thread.join()

    def is_running_after(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the job's end; returns whether it still runs then."""
        self._thread.join(timeout)
        return self._thread.is_alive()

    def result(self) -> LaneResult:
        """Return the sum of all lanes' results, once the job has ended. Raises `JobError` if it
        failed."""
        if self._error is not None:
            raise JobError(worker_error_text(self._error)) from self._error
        return sum(self._lanes, LaneResult())

    def _run(self) -> None:
        """Run the Spark job, and keep the lanes' results or the error for `result`; the target of
        `_thread`."""
        self._context.setJobGroup(self._group, "replay", interruptOnCancel=True)
        send = partial(_send_lane, self._sender)
        try:
            self._lanes.extend(self._rows.rdd.mapPartitionsWithIndex(send).collect())
        except Exception as error:
            self._error = error


class _ProgressReporter:
    """Reports every `PROGRESS_LINE_INTERVAL` seconds how many events were sent, and how many a
    second. The rate is measured from the first report with sent events, so that the start of the
    workers doesn't lower it."""

    def __init__(self, sent_so_far: Callable[[], int], total: int, progress: Progress) -> None:
        """`sent_so_far` counts the events that were sent, of `total`; `progress` is called with
        each report, a line for users."""
        self._sent_so_far = sent_so_far
        self._total = total
        self._progress = progress
        self._reported_at = time.monotonic()
        """Monotonic time of the last report; before the first report, of the beginning."""
        self._first: tuple[float, int] | None = None
        """Monotonic time of the first report with sent events, and their number; None: there was
        none yet."""

    def report_if_due(self) -> None:
        """Report the progress if the interval has passed since the last report."""
        now = time.monotonic()
        if now - self._reported_at < PROGRESS_LINE_INTERVAL:
            return
        self._reported_at = now
        sent = min(self._sent_so_far(), self._total)
        if self._first is None and sent:
            self._first = now, sent
        first_at, first_sent = self._first or (now, sent)
        rate = (sent - first_sent) / (now - first_at) if now > first_at else 0.0
        self._progress(progress_text(sent, self._total, rate))


def _send_lane(sender: ReplaySender, lane: int, rows: Iterator[Row]) -> Iterator[LaneResult]:
    """Send one lane, and yield its result; runs in a Python worker of Spark. Raises `JobError`."""
    yield sender.send(lane, map(tuple, rows))
