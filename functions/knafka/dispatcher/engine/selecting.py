"""Selecting: lets a drain declare which records it wants to a reader that many drains share.

    `Selective`: a drain that declares which records it wants, and learns how many others were
    skipped. `SharedReader`: a reader that returns those records to the drain, and counts the
    skipped ones.

Skipped records cost a drain nothing: its offset and its counts advance by many records at once,
when they are needed (`SharedReader.catch_up`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from knafka.core.events.kafka_binding import Envelope
from knafka.core.filters.filter_index import Selection
from knafka.ports.log import LogReader, Record


class SelectedRecord(Record, Protocol):
    """A record as a shared reader returns it."""

    is_for_all: bool
    """Whether every drain gets the record and applies its own filter."""


@runtime_checkable
class Selective(Protocol):
    """A drain, as a shared reader knows it. In its methods, `number` is a partition."""

    @property
    def selection(self) -> Selection | None:
        """The condition that this drain's records match; None: it wants all records."""
        ...

    def wants_trace(self, envelope: Envelope) -> bool:
        """Whether this drain records spans of the event, even if its filter drops it."""
        ...

    def may_select(self, number: int) -> bool:
        """Whether the reader may skip records of the partition `number` that don't match the
        selection."""
        ...

    def set_selected_from(self, number: int, offset: float) -> None:
        """Learn that from `offset` on the reader returns only those records of the partition
        `number` that match or are `is_for_all`; infinity: it returns every record again."""
        ...

    def settle_skipped(self, number: int, count: int, end: int) -> None:
        """Settle the offsets of the partition `number` below `end`, of which no record is still to
        come: the reader has skipped `count` more records there."""
        ...

    def take(self, records: Sequence[Record]) -> None:
        """Take records that the reader hands over while its `read` waits, as if `read` had returned
        them."""
        ...


@runtime_checkable
class SharedReader(LogReader, Protocol):
    """Reads for one of many drains that share a read; the drain is `Selective`."""

    @property
    def commit_interval(self) -> float:
        """Seconds between commits of a drain that gets records; longer with more drains."""
        ...

    @property
    def quiet_commit_interval(self) -> float:
        """Seconds between commits of a drain that gets no records, and between commits of those of
        its partitions that bring none; at least `commit_interval`."""
        ...

    def catch_up(self) -> None:
        """Report the records that were skipped until now to the drain, by its `settle_skipped`."""
        ...

    def interrupt(self) -> None:
        """Make the read that is under way return at once."""
        ...
