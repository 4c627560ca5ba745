"""The leader epochs of a buffer's records, which say whether a position belongs to the same log.

A Kafka partition's leader epoch rises with each new leader, which may have lost the log's end.

offset   0 1 2 3 4 | 5 6 7 ...      A position (20, epoch 0) is of a log that is gone: the
epoch            0 | 2              records from 5 to 19 have replaced those that were read.
"""

from __future__ import annotations

from collections.abc import Sequence

from knafka.ports.shared_log import NO_EPOCH, EpochStart, Position


class KnownEpochs:
    """Where leader epochs begin, from one offset of a partition on."""

    def __init__(self, start: int, epoch: int) -> None:
        """Begin at `start`, below which records have the leader epoch `epoch` or earlier ones."""
        self.last = epoch
        """Leader epoch of the last record."""
        self._starts = [EpochStart(-1, epoch)]  # -1: before all offsets
        self._begins_at_zero = start == 0
        """Whether no record is below `start`, so that its unknown epoch forbids no position."""

    def add(self, starts: Sequence[EpochStart]) -> None:
        """Add leader epochs, at least one, that begin in records that were just read; their offsets
        are higher than all before."""
        self._starts += starts
        self.last = starts[-1].epoch

    def allows(self, position: Position) -> bool:
        """Whether a group may continue at this position: the record before the position has the
        position's leader epoch or an earlier one. True if the position has no epoch or is the
        partition's beginning. Else False if that record's epoch isn't known."""
        if position.epoch == NO_EPOCH or position.offset <= 0:
            return True
        epoch_before = next(
            start.epoch for start in reversed(self._starts) if start.offset < position.offset
        )
        is_known = epoch_before != NO_EPOCH or self._begins_at_zero
        return is_known and epoch_before <= position.epoch
