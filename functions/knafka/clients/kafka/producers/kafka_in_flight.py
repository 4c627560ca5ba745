"""A writer's records in flight: the producer of each key, and groups of records with one report.

Not here: producers (`kafka_writer_producers`), and the handling of reports (`kafka_writer`).
"""

from __future__ import annotations

from typing import Generic, TypeVar

from knafka.core.errors import LogError
from knafka.ports.log import Reported

Producer = TypeVar("Producer")


class KeysInFlight(Generic[Producer]):
    """Remembers which producer has the records of a key in flight. The key's next record must
    follow them there: in two producers, records could overtake each other."""

    __slots__ = ("_more_records", "producer_of")

    def __init__(self) -> None:
        """Begin without keys."""
        self.producer_of: dict[bytes, Producer] = {}
        """The producer of each key that has a record in flight."""
        self._more_records: dict[bytes, int] = {}
        """Number of a key's records in flight besides the first; most keys have none, and no
        entry."""

    def hold(self, key: bytes, producer: Producer) -> None:
        """Count a record of the key, which `producer` has got, as in flight. The producer is
        remembered for the key if no other record of the key is in flight."""
        if key in self.producer_of:
            self._more_records[key] = self._more_records.get(key, 0) + 1
        else:
            self.producer_of[key] = producer

    def release(self, key: bytes) -> None:
        """Count off a record of the key that is no longer in flight. If it was the key's last one,
        forget the key's producer."""
        if not (more_records := self._more_records.get(key)):
            del self.producer_of[key]
        elif more_records == 1:
            del self._more_records[key]
        else:
            self._more_records[key] = more_records - 1

    def __len__(self) -> int:
        """Number of entries in both mappings; 0: no record with a key is in flight."""
        return len(self.producer_of) + len(self._more_records)


class RecordGroup:
    """Records that were appended together, and get one report once all of them have a result."""

    __slots__ = ("_error", "_overtaken", "_refused_keys", "_report", "left")

    def __init__(self, record_count: int, reported: Reported) -> None:
        """Begin a group of `record_count` records; `reported` gets the group's one report."""
        self.left = record_count
        """Number of records that have no result yet."""
        self._report = reported
        """The group's callback."""
        self._error: LogError | None = None
        """The first error of a record; None: there is none so far."""
        self._refused_keys: set[bytes] = set()
        """Keys of records that are sent again, as their batch was too large."""
        self._overtaken = False
        """Whether a later record of one of `_refused_keys` was stored at the first try, and so
        before the refused one."""

    def refuse(self, key: bytes | None) -> None:
        """Note that a record was refused in a batch that was too large, and is sent again. `key`:
        the record's key; None: it has none."""
        if key is not None:
            self._refused_keys.add(key)

    def store(self, key: bytes | None) -> None:
        """Note that Kafka has stored a record at the first try; if a record of its key was refused,
        it has overtaken that. `key`: the record's key; None: it has none."""
        if key in self._refused_keys:
            self._overtaken = True

    def settle(self, error: LogError | None, record_count: int = 1) -> None:
        """Note the result of `record_count` more records of the group: `error`, or None if they are
        stored. Once all records of the group have a result, report to its callback."""
        self._error = self._error or error
        self.left -= record_count
        if not self.left:
            self.report()

    def report(self) -> None:
        """Pass the first error to the group's callback; without one, an error if a record was
        stored out of order, else None."""
        if self._error is None and self._overtaken:
            self._error = LogError(
                "the topic takes smaller batches than one that was sent, so a later event of a key "
                "was stored before an earlier one: send all of them again"
            )
        self._report(self._error)
