"""Finds partitions of the bus, the topic that a Sensor reads, that hold up all others, and stops
waiting for them after some time: events are handled in the order of all partitions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from knafka.observability import RateLimitedFilter

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))

STALLED_PARTITION_TIMEOUT: Final = 120_000
"""Milliseconds to wait for a partition that isn't read on, or has no leader; afterwards its events
may count as late. A group needs less to give a killed process's partitions to another process
(45 s) that may first have to start."""
FORGET_AFTER: Final = 30_000
"""Milliseconds without a call of `note_reads` after which what earlier calls noted is discarded.
The longest read takes less: one that asks Kafka about logs that may have lost their ends (17 s,
`kafka_undecided_partitions`)."""


class Stalls:
    """Tracks how long partitions haven't been read on while events wait for them."""

    def __init__(self, topic: str) -> None:
        """Begin without stalled partitions; `topic` is the bus's topic, for log lines."""
        self._topic = topic
        self._waiting_since: dict[int, tuple[int | None, int]] = {}
        """For each partition that may hold up the others: the time (ms) up to which it was read
        (None: not known), and since when (ms, our clock) it hasn't been read further."""
        self._noted_at = 0
        """When (ms) `note_reads` was last called."""
        self.partitions: frozenset[int] = frozenset()
        """Partitions that are no longer waited for."""

    def note_reads(self, now: int, needed_until: int, untils: Mapping[int, int | None]) -> None:
        """Note how far partitions were read, while events wait until all are read up to
        `needed_until`; updates `partitions`.

        `untils`: the time up to which each partition was read, by number; None: not known.
        Partitions that aren't in it hold up nothing. `now`: our clock's time. All times are ms
        since the Unix epoch.
        """
        waiting_since = {} if now - self._noted_at > FORGET_AFTER else self._waiting_since
        self._noted_at = now
        self._waiting_since = {}
        stalled = set[int]()
        for number, until in untils.items():
            previous_until, since = waiting_since.get(number, (until, now))
            has_advanced = previous_until != until
            is_waited_for = until is None or until <= needed_until
            if has_advanced or not is_waited_for:
                since = now
            self._waiting_since[number] = until, since
            if now - since >= STALLED_PARTITION_TIMEOUT:
                stalled.add(number)
        for number in stalled - self.partitions:
            log.warning(
                "partition %d of %s has not been read on for %d s and is waited for no longer:"
                " its further events may come too late for their order",
                number,
                self._topic,
                STALLED_PARTITION_TIMEOUT // 1000,
            )
        self.partitions = frozenset(stalled)
