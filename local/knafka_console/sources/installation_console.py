"""InstallationConsole: the console's source of one `knafka up`.

Only this machine reaches it, so its viewer may see and do everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from knafka.clients.kafka.kafka_connection import connection_configuration
from knafka.core.contract import Egress, Kafka
from knafka.core.errors import KnafkaError
from knafka.core.events.event import Event
from knafka_client.declared import annotating, triggers
from knafka_client.declared.declared_source import trigger_name_of
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
from knafka_operator.model.resources import PAUSED_ANNOTATION, Trigger

REPORT_FILE: Final = Path("dead-letters/report.html")
"""Path of the report of `knafka dead-letters report` in the data folder."""


class RunningInstallation(Protocol):
    """A running `knafka up`, such as a `Supervisor`."""

    @property
    def declared(self) -> DeclaredObjects:
        """The objects that the manifest files declare."""
        ...

    @property
    def state(self) -> RunningState:
        """What runs, and at which addresses."""
        ...

    def snapshot(self) -> Snapshot:
        """Return a snapshot of everything that runs."""
        ...


class InstallationConsole:
    """Shows the objects of one `knafka up`, and acts on its files and topics."""

    def __init__(
        self,
        running: RunningInstallation,
        data: Path,
        letters: DeadLetterTopics | None = None,
    ) -> None:
        """`running` is the `knafka up` to show, and `data` its data folder. `letters` reads and
        replays dead letters; None: a `DeadLetterTopics` that uses the real Kafka."""
        self._running = running
        self._data = data
        self._letters = letters or DeadLetterTopics()

    @property
    def reports(self) -> None:
        """Always None: outside a cluster there are no DeadLetterArchives, only the report of
        `knafka dead-letters report` (see `report`)."""

    async def state(self) -> ConsoleState:
        """Return the state of everything that runs."""
        declared = self._running.declared
        snapshot = self._running.snapshot()
        # In a thread: a thousand Triggers take 35 ms, which would hold up the event loop.
        return await asyncio.to_thread(
            lambda: snapshot_document.state_document(
                snapshot, _all_triggers(declared), str(self._data)
            )
        )

    async def details(self, trigger: TriggerName) -> TriggerDetails:
        """Return the details of a Trigger or Subscription; the viewer may do every action. Raises
        `NotFound`."""
        declared_trigger, place = self._declared_trigger(trigger)
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
        return snapshot_document.details_document(
            declared_trigger, conditions, str(place), tuple(Action), reply
        )

    async def failures(self, trigger: TriggerName) -> Failures:
        """Return the latest dead letters of a Trigger or Subscription (the page calls them
        failures), with commands that show more, and a link to the last report if there is one.
        Raises `NotFound` and `LogError`."""
        egress = self._egress_of(trigger)
        letters = await self._letters.read_latest(egress, self._kafka_configuration())
        report = "report" if (self._data / REPORT_FILE).exists() else ""
        commands = {
            "Show them": f"knafka dead-letters show {trigger_name_of(egress)}",
            "Report on all of them": "knafka dead-letters report --open",
        }
        return snapshot_document.failures_document(letters, SHOWN_DEAD_LETTERS, commands, report)

    async def verdicts(self, event: Event) -> Sequence[FilterVerdict]:
        """Return for each declared Trigger whether it would get an event."""
        declared = tuple(self._running.declared.of_type(Trigger))
        return await asyncio.to_thread(snapshot_document.verdicts, declared, event)

    async def pause(self, trigger: TriggerName, *, paused: bool) -> str:
        """Pause a Trigger or Subscription, or resume it if `paused` is False, by an annotation in
        its file as `knafka trigger pause` does. Returns a sentence about what was done. Raises
        `NotFound` and `NotAnnotated`."""
        declared_trigger, place = self._declared_trigger(trigger)
        sentence_end = "is paused" if paused else "goes on"
        if triggers.is_paused(declared_trigger) is paused:
            return f"{trigger} {sentence_end} already"
        value = "true" if paused else "false"
        await asyncio.to_thread(
            annotating.annotate, place.file, _identity(trigger), PAUSED_ANNOTATION, value
        )
        return f"{trigger} {sentence_end}: written into {place.file}"

    async def replay(
        self, trigger: TriggerName, events: Sequence[EventName], *, dry_run: bool
    ) -> ReplayResult:
        """Send the dead letters of these events again to a Trigger, and return which were sent.
        With `dry_run`, nothing is sent, and the result says which would be. Raises `NotFound`,
        `LogError` and `ReplayNotSent`."""
        return await self._letters.replay(
            self._egress_of(trigger), self._kafka_configuration(), events, dry_run=dry_run
        )

    async def report(self) -> bytes | None:
        """Return the report of `knafka dead-letters report`, as HTML; None if there is none. Raises
        `KnafkaError` if its file can't be read."""
        try:
            return await asyncio.to_thread((self._data / REPORT_FILE).read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KnafkaError(f"the report can't be read: {error}") from None

    def _declared_trigger(self, trigger: TriggerName) -> tuple[Trigger, ManifestPlace]:
        """Return the declared Trigger and the place of its manifest; a Subscription is returned as
        a Trigger. Raises `NotFound`."""
        resource, place = self._running.declared.resources.get(_identity(trigger), (None, None))
        if isinstance(resource, Subscription):
            resource = subscription_as_trigger(resource)
        if not isinstance(resource, Trigger) or place is None:
            raise NotFound(f"there is no {trigger.kind} {trigger.id}")
        return resource, place

    def _egress_of(self, trigger: TriggerName) -> Egress:
        """Return the Egress of a running Trigger or Subscription. Raises `NotFound`."""
        for egress in self._running.state.egresses:
            if (egress.namespace, egress.trigger, egress.kind) == trigger:  # a NamedTuple
                return egress
        raise NotFound(f"the {trigger.kind} {trigger.id} doesn't run")

    def _kafka_configuration(self) -> dict[str, Any]:
        """Return the librdkafka configuration for the Kafka that `knafka up` uses."""
        return connection_configuration(
            Kafka(bootstrap_servers=self._running.state.bootstrap_servers)
        )


def _all_triggers(declared: DeclaredObjects) -> Iterator[Trigger]:
    """Yield all declared Triggers, and Subscriptions as Triggers."""
    yield from declared.of_type(Trigger)
    yield from map(subscription_as_trigger, declared.of_type(Subscription))


def _identity(trigger: TriggerName) -> ObjectIdentity:
    """Return the identity of a Trigger or Subscription among the declared objects."""
    return ObjectIdentity(trigger.kind, trigger.namespace, trigger.name)
