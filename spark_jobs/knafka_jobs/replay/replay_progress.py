"""Notes how far a replay is in the table `replay_progress`, while Spark's tasks are busy sending.

Written by delta-rs in the job's own process: a row that Spark writes would wait for a task that
ends. Without the package `deltalake` nothing is noted. A note that fails ends no replay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from knafka_jobs.job_errors import JobError
from knafka_jobs.schema import REPLAY_PROGRESS

if TYPE_CHECKING:
    from knafka_jobs.io.table_files import TableFiles

NOTE_INTERVAL: Final = 15.0
"""Seconds between two notes of a replay, at least."""
RUN_TIME_DIVISOR: Final = 50
"""Number by which a run's time so far is divided: the result is the interval between two notes, if
it exceeds `NOTE_INTERVAL`. Each note is a commit to the table, so a long run notes less often."""

Progress: TypeAlias = Callable[[str], None]
"""Called with one line of progress."""


class ReplayProgress:
    """Notes how many events a replay has sent, in the table `replay_progress`."""

    def __init__(
        self, files: TableFiles | None, replay_id: str, already: int, total: int, say: Progress
    ) -> None:
        """`files` None: deltalake is not installed, so nothing is noted. `already` is the number of
        events that earlier runs of the replay sent, `total` the number that all runs, with this
        one, are to send. `say` gets a line if a note fails; then nothing more is noted."""
        self._files = files
        self._replay_id = replay_id
        self._already = already
        self._total = total
        self._say = say
        self._began = time.monotonic()
        """Monotonic time at which this run began."""
        self._next_note_at = self._began
        """Monotonic time from which on the next note is due."""

    def is_due(self) -> bool:
        """Whether `note` would write a row now."""
        return self._files is not None and time.monotonic() >= self._next_note_at

    def note(self, count_sent: Callable[[], int]) -> None:
        """Note how many events have been sent, if a note is due. Only then `count_sent` is called,
        which returns how many this run has sent."""
        if not self.is_due() or self._files is None:
            return
        row = (
            self._replay_id,
            datetime.now(UTC),
            min(self._already + count_sent(), self._total),
            self._total,
        )
        try:
            self._files.append("replay_progress", REPLAY_PROGRESS, [row])
        except JobError as error:
            self._say(f"the progress is not noted: {error}")
            self._files = None
        now = time.monotonic()
        self._next_note_at = now + max(NOTE_INTERVAL, (now - self._began) / RUN_TIME_DIVISOR)
