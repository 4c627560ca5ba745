"""LocalSource: the console's source of one `knafka up`.

Its viewer is who runs that: only this machine reaches it, and all is allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_client import Connection
from knafka.clients.kafka_connection import connection
from knafka.clients.kafka_writer import KafkaWriter
from knafka.core.contract import Egress, Kafka
from knafka.core.errors import KnafkaError
from knafka.core.event import Event
from knafka.ports.log import LogAdmin, LogWriter
from knafka_local import annotating, dead_letters, replaying, triggers
from knafka_local.console import local_document
from knafka_local.console.document import (
    Action,
    Chosen,
    ConsoleState,
    EventName,
    Failures,
    Replayed,
    TriggerDetails,
    Verdict,
)
from knafka_local.console.source import NotFound, TriggerName
from knafka_local.installation import State
from knafka_local.manifests import Declared, Identity, Place
from knafka_local.snapshot import Snapshot
from knafka_operator.model.resources import PAUSED, Trigger

LAST: Final = 200
"""Dead letters of one Trigger that are shown; the report is for all of them."""
CLOSE_TIMEOUT: Final = 5.0
"""Seconds for the writer to let go."""
REPORT: Final = Path("dead-letters/report.html")
"""In the data folder, where `knafka dead-letters report` puts it."""


class Running(Protocol):
    """What runs; a `Supervisor` is one."""

    @property
    def declared(self) -> Declared: ...

    @property
    def state(self) -> State: ...

    def snapshot(self) -> Snapshot: ...


class LocalSource:
    """Everything of one `knafka up`."""

    def __init__(
        self,
        running: Running,
        data: Path,
        connect: Callable[[Connection], LogAdmin] = KafkaAdmin,
        open_writer: Callable[[Connection], LogWriter] = KafkaWriter,
    ) -> None:
        self._running = running
        self._data = data
        self._connect = connect
        self._open_writer = open_writer

    async def state(self) -> ConsoleState:
        declared = tuple(self._running.declared.all(Trigger))
        snapshot = self._running.snapshot()
        # A thousand Triggers take 35 ms, for which the operator needn't wait.
        return await asyncio.to_thread(
            local_document.state, snapshot, declared, str(self._data), tuple(Action)
        )

    async def details(self, trigger: TriggerName) -> TriggerDetails:
        found, place = self._declared(trigger)
        rows = self._running.snapshot().triggers
        conditions = next((each.conditions for each in rows if each.name == str(trigger)), ())
        return local_document.details(found, conditions, str(place))

    async def failures(self, trigger: TriggerName) -> Failures:
        egress = self._egress(trigger)
        admin = self._connect(self._kafka())
        try:
            found = await dead_letters.letters(admin, egress, LAST)
        finally:
            await admin.close()
        report = "report" if (self._data / REPORT).exists() else ""
        return local_document.failures(found, LAST, str(trigger), report)

    async def verdicts(self, event: Event) -> Sequence[Verdict]:
        declared = tuple(self._running.declared.all(Trigger))
        return await asyncio.to_thread(local_document.verdicts, declared, event)

    async def pause(self, trigger: TriggerName, *, paused: bool) -> str:
        """Writes into the file that declares it, as `knafka trigger pause` does."""
        found, place = self._declared(trigger)
        done = "is paused" if paused else "goes on"
        if triggers.is_paused(found) is paused:
            return f"{trigger} {done} already"
        who = Identity("Trigger", *trigger)
        await asyncio.to_thread(
            annotating.annotate, place.file, who, PAUSED, "true" if paused else "false"
        )
        return f"{trigger} {done}: written into {place.file}"

    async def replay(
        self, trigger: TriggerName, events: Sequence[EventName], *, dry_run: bool
    ) -> Replayed:
        """Straight from the topic, without Spark: see `replaying`."""
        egress = self._egress(trigger)
        wanted = {(each.id, each.source) for each in events}
        admin = self._connect(self._kafka())
        try:
            ids = {each.id for each in events}
            found = [
                each
                for each in await replaying.choose(admin, [egress], ids, {})
                if (each.letter.id, each.letter.source) in wanted
            ]
            sendable = [each for each in found if not each.obstacle]
            replay = ""
            if sendable and not dry_run:
                writer = self._open_writer(self._kafka())
                try:
                    replay = await replaying.send(admin, writer, sendable)
                finally:
                    await writer.close(CLOSE_TIMEOUT)
        finally:
            await admin.close()
        return Replayed(
            chosen=tuple(Chosen(about=each.about, obstacle=each.obstacle) for each in found),
            replay=replay,
        )

    async def report(self) -> bytes | None:
        try:
            return await asyncio.to_thread((self._data / REPORT).read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KnafkaError(f"the report can't be read: {error}") from None

    def _declared(self, trigger: TriggerName) -> tuple[Trigger, Place]:
        found, place = self._running.declared.resources.get(
            Identity("Trigger", *trigger), (None, None)
        )
        if not isinstance(found, Trigger) or place is None:
            raise NotFound(f"there is no Trigger {trigger}")
        return found, place

    def _egress(self, trigger: TriggerName) -> Egress:
        for each in self._running.state.egresses:
            if (each.namespace, each.trigger) == trigger:
                return each
        raise NotFound(f"the Trigger {trigger} doesn't run")

    def _kafka(self) -> dict[str, Any]:
        return connection(Kafka(bootstrap_servers=self._running.state.bootstrap_servers))
