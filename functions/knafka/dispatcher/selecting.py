"""Selecting: how a drain and a reader that many drains share agree on what is given.

    Selective: a drain. It says which records it wants, and is told how many were passed over
    SharedReader: a reader. It gives a drain those records, and counts the others

What isn't for a drain costs it nothing: its offset and its counts move when somebody asks for them
(`SharedReader.catch_up`), by a number of records and not by each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from knafka.core.filter_index import Selection
from knafka.core.kafka_binding import Envelope
from knafka.ports.log import LogReader, Record


class SelectedRecord(Record, Protocol):
    """A record as a shared reader gives it."""

    is_for_all: bool
    """Whether every drain is given it, and looks itself whether it is for it."""


@runtime_checkable
class Selective(Protocol):
    """A drain, as a shared reader knows it."""

    @property
    def selection(self) -> Selection | None:
        """What its records have to match; None: it wants all of them."""
        ...

    def wants_trace(self, envelope: Envelope) -> bool:
        """Whether it records what becomes of this event, also if that isn't for it."""
        ...

    def may_select(self, number: int) -> bool:
        """Whether it need not see each record of this partition, as far as it knows now."""
        ...

    def selected_from(self, number: int, offset: float) -> None:
        """From this offset on it is given what matches, and records with `is_for_all`; infinity:
        it is given every record again, from where it is."""
        ...

    def passed_over(self, number: int, count: int, behind: int) -> None:
        """`count` more records are not for it, and none below the offset `behind` is still to be
        given."""
        ...

    def take(self, records: Sequence[Record]) -> None:
        """What `read` would return next, while it waits there."""
        ...


@runtime_checkable
class SharedReader(LogReader, Protocol):
    """Reads for one of many drains, which is `Selective`."""

    @property
    def commit_interval(self) -> float:
        """Seconds between commits of a drain for which nothing comes: with many neighbours theirs
        are spread."""
        ...

    def catch_up(self) -> None:
        """Tell the drain what was passed over until now."""
        ...

    def interrupt(self) -> None:
        """Have the read that is under way return at once."""
        ...
