"""Writes a replay's progress into the table `replay_progress`, while Spark's tasks send its events.

Each row of the table is a note of the progress. Delta-rs writes it in the job's own process: if
Spark wrote it, it would have to wait until one of Spark's tasks ends. Without the package
`deltalake` no note is written. If a note can't be written, the replay goes on without notes.
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
    """Notes in the table `replay_progress` how many events a replay has sent."""

    def __init__(
        self,
        files: TableFiles | None,
        replay_id: str,
        sent_earlier: int,
        total: int,
        progress: Progress,
    ) -> None:
        """`files` are the files of the tables; None: deltalake is not installed, so nothing is
        noted. `sent_earlier` is the number of events that earlier runs of the replay sent, `total`
        the number that all runs, with this one, are to send. `progress` is called with a line if a
        note can't be written; then nothing more is noted."""
        self._files = files
        self._replay_id = replay_id
        self._sent_earlier = sent_earlier
        self._total = total
        self._progress = progress
        self._began = time.monotonic()
        """Monotonic time at which this run began."""
        self._next_note_at = self._began
        """Monotonic time from which on the next note is due."""

    def is_due(self) -> bool:
        """Whether `note` would write a row now."""
        return self._files is not None and time.monotonic() >= self._next_note_at

    def note(self, count_sent: Callable[[], int]) -> None:
        """Write a note of how many events the replay has sent, if a note is due. `count_sent`
        returns how many this run has sent; it is called only then, as it may ask Kafka."""
        if not self.is_due() or self._files is None:
            return
        # The count may be a little too high, as it includes markers of transactions.
        sent = min(self._sent_earlier + count_sent(), self._total)
        row = (self._replay_id, datetime.now(UTC), sent, self._total)
        try:
            self._files.append("replay_progress", REPLAY_PROGRESS, [row])
        except JobError as error:
            self._progress(f"the progress is not noted: {error}")
            self._files = None
        now = time.monotonic()
        self._next_note_at = now + max(NOTE_INTERVAL, (now - self._began) / RUN_TIME_DIVISOR)
