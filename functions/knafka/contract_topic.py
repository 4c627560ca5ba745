"""Follows a contract that is stored in a topic (docs/decisions/0019-contract-topic.md).

    reader opened --> read from the beginning --at the end--> the contract; ready
    a log that begins anew, or an error --> the same again; the old contract counts until the end

A contract is complete only at the topic's end, as later records may replace earlier ones. A record
that can't be used removes the entry of its key, and no other. An `EntryParser` defines what an
entry is: one of a shard's Egresses (`dispatcher.shared.entries`), or of a receiver's Ingresses
(`receiver.entries`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Protocol, TypeVar

from knafka.core.errors import LogError
from knafka.core.restarts import restart_after
from knafka.ports.log import Record
from knafka.ports.shared_log import BEGINNING, Position, PositionedReader

log = logging.getLogger(__name__)

CONTRACT_PARTITION: Final = 0
"""The topic's only partition: records of several partitions would have no common order."""
CONTRACT_READ_LIMIT: Final = 500
"""Most records of one read."""
CONTRACT_READ_TIMEOUT: Final = 1.0
"""Seconds that one read waits for a first record."""
CONTRACT_CLOSE_TIMEOUT: Final = 5.0
"""Seconds to close a reader."""
READ_TO_END_TIMEOUT: Final = 30.0
"""Seconds within which a reader must reach the topic's end; then another reader is opened, as
librdkafka looks less and less often for a topic that didn't exist when it first looked."""

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


class EntryParser(Protocol[E_co]):
    """Parses records of the topic into entries, and says which records concern this process. A
    receiver and a shared dispatcher have one each."""

    def entry_of(self, key: str, value: bytes) -> E_co | None:
        """Return the entry that a record with this key and value declares; None: it doesn't concern
        this process. May raise any exception for a record that can't be used."""
        ...

    def concerns(self, value: bytes) -> bool:
        """Whether a record with this value, for which `entry_of` has raised an error, concerns this
        process."""
        ...


@dataclass(frozen=True, slots=True)
class Contract(Generic[E]):
    """The entries of a contract topic by key, as of a position in it."""

    position: int = 0
    """The offset of the first record that isn't applied yet."""
    entries: Mapping[str, E] = field(default_factory=dict)
    """The entries; an entry that is declared again unchanged stays the same object."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """The records that concern this process and can't be used: why not, by the record's key."""


class ContractFollower(Generic[E]):
    """Reads the topic and keeps `contract` up to date while `follow` runs."""

    def __init__(self, parser: EntryParser[E], open_reader: Callable[[], PositionedReader]) -> None:
        """Begin with an empty contract. `parser` parses the topic's records; `open_reader` opens a
        reader each time that the topic is read from its beginning."""
        self.contract: Contract[E] = Contract()
        """The present contract; each change replaces the object."""
        self.is_ready = False
        """Whether the topic's end was reached once, and the listeners have applied the contract."""
        self.problem = ""
        """Why the topic can't be read or applied now; empty: it can."""
        self.listeners: list[Callable[[], None]] = []
        """Functions that are called after each change; if one raises, all are called again."""
        self._applied: Contract[E] | None = None
        """The contract that all listeners were called for; None: there was none yet."""
        self._parser = parser
        self._open_reader = open_reader
        self._failures = 0
        """Number of failed attempts since the topic was last read to its end and applied."""
        self._ready = asyncio.Event()
        """Set when `is_ready` becomes True."""

    async def wait_until_ready(self) -> None:
        """Wait until `is_ready` is True."""
        await self._ready.wait()

    async def follow(self) -> None:
        """Read the topic and its changes until cancelled. After an error, wait (`restart_after`),
        and read the topic from its beginning again."""
        while True:
            try:
                await self._follow_from_beginning()
            except LogError as error:
                self.problem = str(error)
                log.warning("the contract can't be read: %s", error)
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}"
                log.error("the contract can't be read", exc_info=error)
            await asyncio.sleep(restart_after(self._failures))
            self._failures += 1

    async def _follow_from_beginning(self) -> None:
        """Open a reader at the topic's beginning, follow the topic with it (`_follow`), and close
        it after an error or if cancelled; never returns. Raises `LogError`."""
        reader = self._open_reader()
        try:
            reader.begin({CONTRACT_PARTITION: Position(BEGINNING)})
            await self._follow(reader)
        finally:
            with suppress(LogError):
                await reader.close(CONTRACT_CLOSE_TIMEOUT)

    async def _follow(self, reader: PositionedReader) -> None:
        """Apply records as they come; publish the contract when the topic's end is reached, and
        after each later read. Never returns. Raises `LogError`, also if the end isn't reached
        within `READ_TO_END_TIMEOUT`."""
        loop = asyncio.get_running_loop()
        contract: Contract[E] = Contract()
        began_at, at_end = loop.time(), False
        while True:
            records = await reader.read(CONTRACT_READ_LIMIT, CONTRACT_READ_TIMEOUT)
            if CONTRACT_PARTITION in reader.restarted:
                log.warning("the contract's topic begins anew")
                contract, began_at, at_end = Contract(), loop.time(), False
            contract = self._apply_records(
                contract, records, reader.ends.get(CONTRACT_PARTITION, 0)
            )
            at_end = at_end or CONTRACT_PARTITION in reader.ends
            if at_end:
                self._publish(contract)
            elif loop.time() - began_at > READ_TO_END_TIMEOUT:
                raise LogError(f"no end of its topic within {READ_TO_END_TIMEOUT:.0f} s")

    def _apply_records(
        self, contract: Contract[E], records: Sequence[Record], end: int
    ) -> Contract[E]:
        """Return the contract after these records. A record sets the entry of its key; a tombstone
        removes the entry; a record that can't be used removes the entry, and is noted in `refused`
        if it concerns this process. `end`: the topic's end offset if the read has reached it, else
        0."""
        position = max(contract.position, end)
        if not records:
            return replace(contract, position=position)
        entries, refused = dict(contract.entries), dict(contract.refused)
        for record in records:
            key = (record.key() or b"").decode("utf-8", "replace")
            previous_entry = entries.pop(key, None)
            refused.pop(key, None)
            value = record.value()
            if value is None:
                continue
            try:
                entry = self._parser.entry_of(key, value)
            except Exception as error:  # only this record is refused; the others count
                log.error("the contract's record of %s can't be used: %s", key, error)
                if self._parser.concerns(value):
                    refused[key] = f"its contract can't be used: {error}"
            else:
                if entry is not None:
                    # An unchanged entry stays the same object (`Contract.entries`).
                    entries[key] = (
                        previous_entry
                        if previous_entry is not None and previous_entry == entry
                        else entry
                    )
        return Contract(max(position, records[-1].offset() + 1), entries, refused)

    def _publish(self, contract: Contract[E]) -> None:
        """Make this contract the present one, and call the listeners if it differs from the one
        that they have applied. Raises whatever a listener raises; then `follow` reads the topic
        again, and all listeners are called again, even if nothing has changed."""
        if contract != self._applied:
            self.contract = contract
            for listener in list(self.listeners):
                listener()
            self._applied = contract
            self.is_ready = True
            self._ready.set()
        self._failures, self.problem = 0, ""
