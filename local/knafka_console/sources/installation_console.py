"""InstallationConsole: the console's source of one `knafka up`.

Its viewer is who runs that: only this machine reaches it, and all is allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from knafka.clients.kafka_connection import connection_configuration
from knafka.core.contract import Egress, Kafka
from knafka.core.errors import KnafkaError
from knafka.core.event import Event
from knafka_client.declared import annotating, triggers
from knafka_client.declared.manifests import DeclaredObjects, ManifestPlace, ObjectIdentity
from knafka_client.state.installation import RunningState
from knafka_client.state.snapshot import Snapshot
from knafka_console.model import snapshot_document
from knafka_console.model.document import (
    Action,
    ConsoleState,
    EventName,
    Failures,
    FilterVerdict,
    ReplayResult,
    TriggerDetails,
)
from knafka_console.model.source import NotFound, TriggerName
from knafka_console.sources.dead_letter_topics import SHOWN_DEAD_LETTERS, DeadLetterTopics
from knafka_operator.model.channels import Subscription
from knafka_operator.model.family import family_of, subscription_as_trigger
from knafka_operator.model.resources import PAUSED, Trigger

REPORT_FILE: Final = Path("dead-letters/report.html")
"""In the data folder, where `knafka dead-letters report` puts it."""


class Running(Protocol):
    """What runs; a `Supervisor` is one."""

    @property
    def declared(self) -> DeclaredObjects: ...

    @property
    def state(self) -> RunningState: ...

    def snapshot(self) -> Snapshot: ...


class InstallationConsole:
    """Everything of one `knafka up`."""

    def __init__(
        self,
        running: Running,
        data: Path,
        letters: DeadLetterTopics | None = None,
    ) -> None:
        self._running = running
        self._data = data
        self._letters = letters or DeadLetterTopics()

    @property
    def reports(self) -> None:
        """There is one report, which a command makes: see `report`."""

    async def state(self) -> ConsoleState:
        declared = self._running.declared
        snapshot = self._running.snapshot()
        # A thousand Triggers take 35 ms, for which the operator needn't wait.
        return await asyncio.to_thread(
            lambda: snapshot_document.state(snapshot, _all(declared), str(self._data))
        )

    async def details(self, trigger: TriggerName) -> TriggerDetails:
        declared_trigger, place = self._declared(trigger)
        document, _ = self._running.declared.documents[_identity(trigger)]
        reply = family_of(trigger.kind).reply_of(document)
        conditions = next(
            (
                row.conditions
                for row in self._running.snapshot().triggers
                if (row.kind, row.name) == (trigger.kind, trigger.id)
            ),
            (),
        )
        return snapshot_document.details(
            declared_trigger, conditions, str(place), tuple(Action), reply
        )

    async def failures(self, trigger: TriggerName) -> Failures:
        letters = await self._letters.last(self._egress(trigger), self._kafka())
        report = "report" if (self._data / REPORT_FILE).exists() else ""
        commands = {
            "Show them": f"knafka dead-letters show {trigger.id}",
            "Report on all of them": "knafka dead-letters report --open",
        }
        return snapshot_document.failures(letters, SHOWN_DEAD_LETTERS, commands, report)

    async def verdicts(self, event: Event) -> Sequence[FilterVerdict]:
        declared = tuple(self._running.declared.all(Trigger))
        return await asyncio.to_thread(snapshot_document.verdicts, declared, event)

    async def pause(self, trigger: TriggerName, *, paused: bool) -> str:
        """Writes into the file that declares it, as `knafka trigger pause` does."""
        declared_trigger, place = self._declared(trigger)
        done = "is paused" if paused else "goes on"
        if triggers.is_paused(declared_trigger) is paused:
            return f"{trigger} {done} already"
        value = "true" if paused else "false"
        await asyncio.to_thread(annotating.annotate, place.file, _identity(trigger), PAUSED, value)
        return f"{trigger} {done}: written into {place.file}"

    async def replay(
        self, trigger: TriggerName, events: Sequence[EventName], *, dry_run: bool
    ) -> ReplayResult:
        return await self._letters.replay(
            self._egress(trigger), self._kafka(), events, dry_run=dry_run
        )

    async def report(self) -> bytes | None:
        try:
            return await asyncio.to_thread((self._data / REPORT_FILE).read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KnafkaError(f"the report can't be read: {error}") from None

    def _declared(self, trigger: TriggerName) -> tuple[Trigger, ManifestPlace]:
        resource, place = self._running.declared.resources.get(_identity(trigger), (None, None))
        if isinstance(resource, Subscription):
            resource = subscription_as_trigger(resource)
        if not isinstance(resource, Trigger) or place is None:
            raise NotFound(f"there is no {trigger.kind} {trigger.id}")
        return resource, place

    def _egress(self, trigger: TriggerName) -> Egress:
        for egress in self._running.state.egresses:
            if (egress.namespace, egress.trigger, egress.kind) == trigger:
                return egress
        raise NotFound(f"the {trigger.kind} {trigger.id} doesn't run")

    def _kafka(self) -> dict[str, Any]:
        return connection_configuration(
            Kafka(bootstrap_servers=self._running.state.bootstrap_servers)
        )


def _all(declared: DeclaredObjects) -> Iterator[Trigger]:
    """Triggers, and Subscriptions read as such."""
    yield from declared.all(Trigger)
    yield from map(subscription_as_trigger, declared.all(Subscription))


def _identity(trigger: TriggerName) -> ObjectIdentity:
    return ObjectIdentity(trigger.kind, trigger.namespace, trigger.name)
