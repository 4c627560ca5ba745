"""What a shard delivers, as a topic says (docs/decisions/0019-contract-topic.md).

    reader opened --> read from the beginning --at the end--> the contract; ready
    a log that begins anew, or an error --> the same again; what was known counts until the end

A contract is only known at the topic's end: before it stands what was declared once and isn't any
more. A record that can't be used takes its Egress away, and no other.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from knafka.core.contract import Egress, SharedEgress
from knafka.core.documents import parse_json
from knafka.core.errors import InvalidDocument, LogError
from knafka.dispatcher.lease import restart_after
from knafka.ports.log import Record
from knafka.ports.shared_log import BEGINNING, Position, PositionedReader

log = logging.getLogger(__name__)

PARTITION: Final = 0
"""The topic's only one, or there would be no order."""
READ_LIMIT: Final = 500
READ_TIMEOUT: Final = 1.0
CLOSE_TIMEOUT: Final = 5.0
TOO_LONG: Final = 30.0
"""Seconds without the topic's end after which another reader is opened: librdkafka looks for a
topic that didn't exist less and less often."""


@dataclass(frozen=True, slots=True)
class Contract:
    """What the shard delivers, by group, as of a position in the topic."""

    position: int = 0
    """Offset before which every record is in it."""
    egresses: Mapping[str, Egress] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why a record of this shard can't be used."""


class ContractFollower:
    """`follow` runs for as long as the process does."""

    def __init__(self, shard: str, open_reader: Callable[[], PositionedReader]) -> None:
        self.contract = Contract()
        """Another object after each change."""
        self.is_ready = False
        """Whether the topic's end was reached once."""
        self.problem = ""
        """Why it can't be read now."""
        self.listeners: list[Callable[[], None]] = []
        """Called after each change."""
        self._shard = shard
        self._open_reader = open_reader
        self._failures = 0
        self._ready = asyncio.Event()

    async def wait_until_ready(self) -> None:
        await self._ready.wait()

    async def follow(self) -> None:
        while True:
            try:
                await self._read_from_beginning()
            except LogError as error:
                self.problem = str(error)
                log.warning("the contract can't be read: %s", error)
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}"
                log.error("the contract can't be read", exc_info=error)
            await asyncio.sleep(restart_after(self._failures))
            self._failures += 1

    async def _read_from_beginning(self) -> None:
        reader = self._open_reader()
        try:
            reader.begin({PARTITION: Position(BEGINNING)})
            await self._follow(reader)
        finally:
            with suppress(LogError):
                await reader.close(CLOSE_TIMEOUT)

    async def _follow(self, reader: PositionedReader) -> None:
        loop = asyncio.get_running_loop()
        found, began, at_end = Contract(), loop.time(), False
        while True:
            records = await reader.read(READ_LIMIT, READ_TIMEOUT)
            if PARTITION in reader.restarted:
                log.warning("the contract's topic begins anew")
                found, began, at_end = Contract(), loop.time(), False
            found = self._with(found, records, reader.ends.get(PARTITION, 0))
            at_end = at_end or PARTITION in reader.ends
            if at_end:
                self._publish(found)
            elif loop.time() - began > TOO_LONG:
                raise LogError(f"no end of its topic within {TOO_LONG:.0f} s")

    def _with(self, contract: Contract, records: Sequence[Record], end: int) -> Contract:
        position = max(contract.position, end)
        if not records:
            return replace(contract, position=position)
        egresses, refused = dict(contract.egresses), dict(contract.refused)
        for record in records:
            group = (record.key() or b"").decode("utf-8", "replace")
            before = egresses.pop(group, None)
            refused.pop(group, None)
            value = record.value()
            try:
                egress = None if value is None else self._egress_of(group, value)
            except Exception as error:  # it concerns this record, and the others go on
                log.error("the contract's record of %s can't be used: %s", group, error)
                if _shard_of(value) == self._shard:
                    refused[group] = f"its contract can't be used: {error}"
            else:
                if egress is not None:
                    egresses[group] = before if before == egress else egress
        return Contract(max(position, records[-1].offset() + 1), egresses, refused)

    def _egress_of(self, group: str, value: bytes) -> Egress | None:
        shared = parse_json(SharedEgress, value.decode())
        if shared.egress.group != group:
            raise InvalidDocument("egress.group", f"invalid value: {shared.egress.group}")
        return shared.egress if shared.shard == self._shard else None

    def _publish(self, found: Contract) -> None:
        self._failures, self.problem = 0, ""
        if self.is_ready and found == self.contract:
            return
        self.contract = found
        self.is_ready = True
        self._ready.set()
        for listener in list(self.listeners):
            listener()


def _shard_of(value: bytes | None) -> object:
    """The shard that a record names, if that at least can be read."""
    with suppress(Exception):
        return json.loads(value or b"")["shard"]
    return None
