"""Until when everything was read of this process's partitions of the trigger topic.

    the bus was routed until then --the trigger topic's ends are asked for--> read to these: known

Records of the trigger topic mostly say so themselves (`TriggerRecord.until`); this is for what
waits when no further record comes: the last events where several processes read the bus, and what
fires as nothing has come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from knafka.core.sensor.contract import Sensor
from knafka.ports.transactions import TransactionalLog

LATENESS: Final = 2_000
"""Milliseconds after which it is decided that something hasn't come, at least: an event may reach
Kafka so long after its time."""
INTERVAL: Final = 100
"""Milliseconds between two looks at what is due."""


class Watermark:
    """Asked again and again while there is something to decide."""

    def __init__(self, sensor: Sensor, log: TransactionalLog) -> None:
        self._topic = sensor.trigger_topic
        self._log = log
        self._asked: tuple[int, int, Mapping[int, int | None]] | None = None
        self.known: int | None = None
        """The time (ms) before which every event was read that concerns these partitions."""
        self.asked_at = 0
        """When (ms) the bus was asked for that, by our clock."""

    def look(
        self, routed_until: int | None, asked_at: int, positions: Mapping[int, int]
    ) -> int | None:
        """The same, as it is known now. `routed_until`: everything of the bus that is of an earlier
        time is in the trigger topic, in a transaction that was committed, as was asked at
        `asked_at`. `positions`: where each partition of ours is read on. Raises `LogError`."""
        if self._asked is not None:
            self._judge(*self._asked, positions)
        if self._asked is None and routed_until is not None and routed_until >= (self.known or 0):
            ends = self._log.reachable_ends(self._topic)
            if all(ends.get(number) is not None for number in positions):
                self._asked = routed_until, asked_at, ends
                self._judge(*self._asked, positions)
        return self.known

    def _judge(
        self,
        until: int,
        asked_at: int,
        ends: Mapping[int, int | None],
        positions: Mapping[int, int],
    ) -> None:
        if all(position >= (ends.get(number) or 0) for number, position in positions.items()):
            self._asked, self.asked_at = None, asked_at
            self.known = until if self.known is None else max(self.known, until)

    def forget(self) -> None:
        """What is known doesn't hold: partitions came, or are read again."""
        self._asked = self.known = None
