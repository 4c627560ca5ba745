"""What a writer knows of its records in flight: where those of a key went, and who waits for many.

Not here: producers, and what becomes of a report; see `kafka_writer`.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from knafka.core.errors import LogError
from knafka.ports.log import Reported

Producer = TypeVar("Producer")


class KeysInFlight(Generic[Producer]):
    """All records of one key that are in flight are with one producer, or they would overtake each
    other."""

    __slots__ = ("_more_of", "producer_of")

    def __init__(self) -> None:
        self.producer_of: dict[bytes, Producer] = {}
        self._more_of: dict[bytes, int] = {}
        """How many of a key are in flight beside the first: mostly none is."""

    def hold(self, key: bytes, producer: Producer) -> None:
        """One record more of the key is in flight: with this producer, if it is the first."""
        if key in self.producer_of:
            self._more_of[key] = self._more_of.get(key, 0) + 1
        else:
            self.producer_of[key] = producer

    def release(self, key: bytes) -> None:
        """One record less of the key is in flight."""
        if not (more := self._more_of.get(key)):
            del self.producer_of[key]
        elif more == 1:
            del self._more_of[key]
        else:
            self._more_of[key] = more - 1

    def __len__(self) -> int:
        return len(self.producer_of) + len(self._more_of)


class Together:
    """Records that were appended together, and are reported together."""

    __slots__ = ("error", "left", "report")

    def __init__(self, left: int, reported: Reported) -> None:
        self.left = left
        """Records that Kafka hasn't reported on."""
        self.error: LogError | None = None
        """The first one."""
        self.report = reported

    def settle(self, error: LogError | None, records: int = 1) -> None:
        """That is what became of so many of them."""
        self.error = self.error or error
        self.left -= records
        if not self.left:
            self.report(self.error)
