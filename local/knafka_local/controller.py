"""Controller: the real `Operator` on a LocalCluster, as `runtime.controller` runs it on Kubernetes,
and beside it that of KafkaChannels.

    watch --> Operator hears of it --> work queue --> reconcile: at once, and now and then
    apply: what the files declare, and nothing else, in the order in which it depends on another

Not here: deciding (`knafka_operator`), reading files (`manifests`), running anything (`serving`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_writer import KafkaWriter
from knafka.core.contract import Egress, Ingress
from knafka.core.errors import KnafkaError, LogError
from knafka.ports.log import LogAdmin, LogWriter
from knafka_local import localize
from knafka_local.children import Say
from knafka_local.cluster import (
    FOLDER,
    KINDS,
    RECONCILED,
    LocalCluster,
    name_of,
    ready_of,
    version_of,
)
from knafka_local.manifests import Declared
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.model.cluster import Document
from knafka_operator.model.family import CHANNELS, family_of
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EXTERNAL_TOPIC, SERVING
from knafka_operator.operator import Operator
from knafka_operator.reconcile.channels import Channels
from knafka_operator.reconcile.receivers import Positions, ReceiverRecord
from knafka_operator.reconcile.work_queue import GONE, Key, Verdict
from knafka_operator.scale.scaler import Drains

log = logging.getLogger(__name__)

RETRY: Final = 3.0
"""Seconds until what isn't Ready is looked at again. It doesn't grow: objects are few here, nobody
tells of all that they wait for (Kafka, a dependency), and a person is watching."""
RESYNC: Final = 300.0
"""Seconds until what is Ready is looked at again, a few more or less."""
DELETE_AGAIN: Final = 0.5
"""Seconds until a deletion that Kafka refused is tried again."""
SETTLE_TIMEOUT: Final = 20.0
"""Seconds for what is declared to become Ready, or say why not, before what depends on it is told
of it: a program that is slow holds nothing else up for longer."""


Probe = Callable[[str], Awaitable[None]]
"""Returns once an address answers; raises `NotReady`."""
_IN_ORDER: Final = (
    ("ConfigMap", "Service"),
    ("Broker", "KafkaChannel"),
    ("Trigger", "Subscription"),
)
"""Kinds, in the order in which objects depend on one another."""


@dataclass(frozen=True, slots=True)
class ChannelsServed:
    """What the operator asks of the KafkaChannels' receiver."""

    probe: Probe
    positions: Positions


class Controller:
    """Both operators, with one queue; `run` it, then `apply`."""

    def __init__(
        self,
        cluster: LocalCluster,
        drains: Drains,
        probe: Probe,
        channels: ChannelsServed,
        say: Say,
        connect: Callable[[Mapping[str, Any]], LogAdmin] = KafkaAdmin,
        open_writer: Callable[[Mapping[str, Any]], LogWriter] = KafkaWriter,
    ) -> None:
        self._cluster = cluster
        self._say = say
        self._operator = Operator(
            localize.SETTINGS,
            cluster,
            connect,
            drains=drains,
            probe=probe,
            wake=_is_awake,
            open_writer=open_writer,
        )
        beside = Operator(
            localize.SETTINGS,
            cluster,
            connect,
            drains=drains,
            probe=channels.probe,
            wake=_is_awake,
            open_writer=open_writer,
            beside=self._operator,
            positions=channels.positions,
        )
        self._operators = {each.family: each for each in (self._operator, beside)}
        for each in self._operators.values():
            each.moves.on_move = lambda trigger, why: say(f"{name_of(trigger)}: {why}")
        self._deleting: dict[Key, float] = {}
        """Since when each deletion is being tried, on the event loop's clock."""
        self._heard = asyncio.Event()
        """Of a change of anything."""

    async def run(self) -> None:
        """For ever; afterwards nothing of it runs, and every drain has ended."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._operator.queue.run(self._look), name="reconcile")
                for api_version, kind in (*KINDS, (SERVING, "Service")):
                    group.create_task(self._follow(api_version, kind), name=f"watch {kind}")
        finally:
            await self._operator.close()

    async def apply(self, declared: Declared) -> None:
        """Have the cluster hold what is declared; what it held beside that is deleted.

        Returns when all of it is Ready or says why not; what is slow may go on longer.
        """
        config_maps = self._all("ConfigMap")
        declared_before = self._all(*(kind for kinds in reversed(_IN_ORDER) for kind in kinds))
        gone = [each for each in declared_before if _key(each) not in declared.documents]
        for each in gone:
            self._cluster.remove(each["apiVersion"], *_key(each))
        await self._until(lambda: not any(map(self._is_there, gone)), None)
        for kinds in _IN_ORDER:
            for who, (document, folder) in declared.documents.items():
                if who.kind in kinds:
                    self._cluster.declare(document, folder)
            if config_maps != (config_maps := self._all("ConfigMap")):
                self._reconcile_configured()
            await self._until(partial(self._are_settled, *kinds), SETTLE_TIMEOUT)
        await self._withdraw_undeclared()

    def is_ours(self, document: Document) -> bool:
        """Whether a Broker's class is ours, or a Trigger's Broker may be; the same for channels."""
        if (kind := document["kind"]) not in RECONCILED:
            return True
        operator = self._of(kind)
        is_broker = kind == operator.family.broker
        return operator.brokers.is_ours(document) if is_broker else operator.may_be_ours(document)

    def _of(self, kind: str) -> Operator:
        return self._operators[family_of(kind)]

    def egresses(self) -> list[Egress]:
        """How each Trigger is delivered, or will be once it isn't paused any more; then each
        Subscription."""
        operators = self._operators.values()
        return [each.egress for of in operators for each in of.triggers.watched.values()]

    def channel_ingresses(self) -> list[Ingress]:
        """What the KafkaChannels' receiver serves of what is declared, by name."""
        served = {
            path: each for of in self._channels() for path, each in of.contract.records.items()
        }
        declared = sorted(f"/{Identity.of(each)}" for each in self._cluster.of(CHANNELS.broker))
        return [served[path] for path in declared if path in served]

    def _channels(self) -> Collection[ReceiverRecord]:
        """The receivers that KafkaChannels share."""
        channels = self._operators[CHANNELS].brokers
        assert isinstance(channels, Channels)
        return channels.receivers.records.values()

    async def _withdraw_undeclared(self) -> None:
        """Have no KafkaChannel served that left the files while nothing ran: its topic stays, as a
        Broker's does. Those of others that use the same Kafka are not ours to withdraw."""
        for who in self._cluster.undeclared(CHANNELS.broker):
            for receiver in self._channels():
                if f"/{who}" in receiver.contract.records:
                    try:
                        await receiver.contract.write(f"/{who}", None)
                    except LogError as error:  # it is tried again with the next change of a file
                        self._say(f"KafkaChannel {who} is still served: {error}")

    def scaled(self, namespace: str, name: str, kind: str = "Trigger") -> TriggerStatus | None:
        """What the scaler knows of a Trigger or Subscription; None: it isn't scaled."""
        return self._of(kind).triggers.status(Identity(namespace, name))

    async def _follow(self, api_version: str, kind: str) -> None:
        async for event in self._cluster.watch(api_version, kind):
            document, gone = event.document, event.type == "DELETED"
            if kind == "Service":
                for each in self._operators.values():
                    each.on_service(document)
            else:
                self._of(kind).on_change(document, gone=gone)
                if gone:
                    self._cluster.forget(document)
            self._heard.set()

    async def _look(self, key: Key) -> float | Literal[Verdict.GONE]:
        """One look at an object, see `work_queue`."""
        if key[0] not in RECONCILED:
            return GONE  # something else that owns a Service
        document = self._cluster.reconciled(*key)
        if document is None:
            return GONE
        if "deletionTimestamp" in document["metadata"]:
            return await self._finalize(key, document)
        if not self.is_ours(document):
            return RESYNC
        operator = self._of(key[0])
        is_broker = key[0] == operator.family.broker
        reconcile = operator.reconcile_broker if is_broker else operator.triggers.reconcile
        try:
            status = await reconcile(document) or {}
        except Exception as error:  # one that ended would be missed only when events wait
            log.exception("%s", name_of(document))
            await operator.publish_failure(document, error)
            return RETRY
        ready = any(
            each["type"] == "Ready" and each["status"] == "True"
            for each in status.get("conditions") or ()
        )
        return RESYNC * random.uniform(0.8, 1.2) if ready else RETRY

    async def _finalize(self, key: Key, document: Document) -> float | Literal[Verdict.GONE]:
        """Have its topic or group deleted, and let it go; what Kafka keeps too long stays there."""
        operator = self._of(key[0])
        is_broker = key[0] == operator.family.broker
        delete = operator.delete_broker if is_broker else operator.triggers.delete
        if self.is_ours(document):
            now = asyncio.get_running_loop().time()
            began = self._deleting.setdefault(key, now)
            try:
                await delete(document)
                if is_broker and EXTERNAL_TOPIC not in _annotations(document):
                    self._say(f"{name_of(document)} has left the files, so its topic is deleted")
            except Exception as error:  # a bug neither: its object would never go
                if not isinstance(error, KnafkaError):
                    log.exception("deleting %s", name_of(document))
                if now - began < localize.SETTINGS.deletion_timeout:
                    return DELETE_AGAIN
                operator.forget(document)
                self._say(f"{name_of(document)}: its topic or group stays in Kafka: {error}")
        self._deleting.pop(key, None)
        self._cluster.set_finalizers(version_of(key[0]), *key)
        return GONE

    def _reconcile_configured(self) -> None:
        """A ConfigMap has changed: whose it is only Brokers and KafkaChannels know."""
        for family in self._operators:
            for each in self._cluster.of(family.broker):
                self._operator.queue.enqueue(_key(each))

    def _all(self, *kinds: str) -> list[Document]:
        """What is declared of these kinds."""
        return [
            each
            for kind in kinds
            for each in self._cluster.of(kind)
            if kind != "Service" or FOLDER in _annotations(each)
        ]

    def _is_there(self, document: Document) -> bool:
        return self._cluster.find(document["apiVersion"], *_key(document)) is not None

    def _are_settled(self, *kinds: str) -> bool:
        """Whether all that is declared of these kinds is Ready, or says why not."""
        return all(
            ready_of(each).get("status") in ("True", "False")
            for each in self._all(*kinds)
            if each["kind"] != "ConfigMap" and self.is_ours(each)
        )

    async def _until(self, condition: Callable[[], bool], within: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not condition():
                    self._heard.clear()
                    await self._heard.wait()


async def _is_awake(url: str) -> None:
    """A dispatcher's process starts with its first request."""


def _annotations(document: Document) -> Mapping[str, str]:
    return document["metadata"].get("annotations") or {}


def _key(document: Document) -> Key:
    metadata = document["metadata"]
    return document["kind"], metadata["namespace"], metadata["name"]
