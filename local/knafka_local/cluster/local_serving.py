"""LocalServing: Knative Services of a LocalCluster as processes, and their status.

    a receiver's      one process for those of all Brokers, behind the installation's port, and one
                      for that of all KafkaChannels, behind another; it follows their contract's
                      topic, so it goes on when one comes or goes
    a dispatcher's    Ready at once: a drain that is held starts its process (`dispatchers`)
    anybody else's    its command, kept running (`programs`); Ready while its port is open

Receivers share a process since all Brokers share an address: each in a process of its own would
need a proxy before them, and addresses could not stay as they are. KafkaChannels have an address of
their own, as one may have the name of a Broker.

An address is there from the first time that a Service is Ready, as with Knative: while its command
is started again, events wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from knafka import settings
from knafka.core.contract import Receiver as ReceiverContract
from knafka.core.documents import parse, parse_json
from knafka.core.errors import InvalidDocument
from knafka_local.cluster import localize
from knafka_local.cluster.local_cluster import (
    FOLDER_ANNOTATION,
    SERVES,
    LocalCluster,
    role_of,
    service_status,
)
from knafka_local.processes.programs import Identity, Programs, program_of
from knafka_operator.decide import receiver_services, sensor_manifests, services
from knafka_operator.decide.shards import DISPATCHER_KEY
from knafka_operator.decide.status import NotReady
from knafka_operator.model import identity
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import Condition, Status
from knafka_operator.model.family import BROKERS, CHANNELS, Family, family_of
from knafka_operator.model.resources import SERVING, Service
from knafka_operator.model.sensors import SENSOR, bus_of

DEPLOYING: Final = "Deploying"
"""Knative's reason for what has just been applied."""
RECEIVER_RETRY_DELAY: Final = 1.0
"""Seconds until a receiver that did not answer is asked again."""


class LocalReceiver(Protocol):
    """The process behind a port of the installation; `ReceiverProcess` is one."""

    async def follow(self, contract: ReceiverContract) -> bool:
        """Serve what stands in this topic, and nothing else; False: it doesn't answer yet."""
        ...

    async def serve_nothing(self) -> None:
        """Answer, if it follows no topic so far."""
        ...

    async def position(self) -> int | None:
        """Up to where it has read the topic; None: it doesn't answer."""
        ...

    async def answers(self, path: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class ServedFamily:
    """The receiver process of all Brokers, or of all KafkaChannels, as the operator asks it."""

    receiver: LocalReceiver

    async def probe(self, url: str) -> None:
        """Returns once an address answers; raises `NotReady` (KN-BRK-21)."""
        path = urlsplit(url).path
        if not await self.receiver.answers(path):
            raise NotReady("ProbeFailed", f"the receiver doesn't answer at {path}")

    async def positions(self, namespace: str, name: str) -> Mapping[str, int | None]:
        """Up to where it has read its contract, see `Positions`."""
        return {name: await self.receiver.position()}


class LocalServing:
    """Does for one LocalCluster what Knative Serving does: runs Services and reports their
    status."""

    def __init__(
        self,
        cluster: LocalCluster,
        programs: Programs,
        brokers: LocalReceiver,
        channels: LocalReceiver,
    ) -> None:
        self._cluster = cluster
        self._programs = programs
        self.served = {BROKERS: ServedFamily(brokers), CHANNELS: ServedFamily(channels)}
        self._receivers_changed = {role: asyncio.Event() for role in self.served}
        self._conditions: dict[Identity, Condition] = {}
        """The last condition of each program."""
        programs.report = self._report

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(), name="serving")
            for family in self.served:
                group.create_task(self._keep_receiver(family), name=f"{family.broker} receiver")
            group.create_task(self._programs.follow_sources(), name="sources")

    async def _follow(self) -> None:
        async for event in self._cluster.watch(SERVING, "Service"):
            role = role_of(event.document)
            if role == services.RECEIVER_ROLE:
                self._receivers_changed[_family(event.document)].set()
            elif role is None:
                await self._program(event.document, gone=event.type == "DELETED")

    async def _program(self, document: Document, *, gone: bool) -> None:
        identity = _identity(document)
        if gone:
            await self._programs.stop(identity)
            return
        try:
            folder = Path(document["metadata"]["annotations"][FOLDER_ANNOTATION])
            program = program_of(parse(Service, document), folder)
        except InvalidDocument as error:
            await self._programs.stop(identity)
            await self._tell(document, Condition(SERVES, Status.FALSE, "NoCommand", str(error)))
        else:
            await self._programs.run(identity, program)
            await self._tell(document, self._conditions[identity])

    async def _report(self, service: Identity, serves: Status, why_not: str) -> None:
        reason = {Status.FALSE: "CommandFailed", Status.UNKNOWN: DEPLOYING}.get(serves, "")
        condition = self._conditions[service] = Condition(SERVES, serves, reason, why_not)
        document = self._cluster.find(SERVING, "Service", *service)
        if document is not None:
            more = (
                {"address": {"url": self._programs.url(service)}} if serves is Status.TRUE else {}
            )
            await self._tell(document, condition, **more)

    async def _keep_receiver(self, family: Family) -> None:
        """Have one process serve all receivers' Services of this family."""
        loop, changed = asyncio.get_running_loop(), self._receivers_changed[family]
        receiver = self.served[family].receiver
        while True:
            await changed.wait()
            changed.clear()
            receiver_services = [
                document
                for document in self._cluster.of("Service")
                if role_of(document) == services.RECEIVER_ROLE and _family(document) is family
            ]
            # Here is one Kafka, without credentials: so one topic has what all of them serve.
            contract = _contract_of_all(receiver_services[-1]) if receiver_services else None
            if contract is None or await receiver.follow(contract):
                condition = Condition(SERVES, Status.TRUE)
            else:
                why_not = "the receiver doesn't answer yet"
                condition = Condition(SERVES, Status.UNKNOWN, DEPLOYING, why_not)
                loop.call_later(RECEIVER_RETRY_DELAY, changed.set)
            for document in receiver_services:
                await self._tell(document, condition)

    async def _tell(self, document: Document, condition: Condition, **more: Any) -> None:
        """Write the status of a Service, unless it is declared otherwise by now."""
        metadata = document["metadata"]
        now = self._cluster.find(SERVING, "Service", *_identity(document))
        if now is None or now["metadata"]["generation"] != metadata["generation"]:
            return
        await self._cluster.write_status(document, service_status(now, condition, **more))


def dispatcher_of(cluster: LocalCluster, trigger: Document) -> Document | None:
    """The Service that delivers for a stored Trigger or Subscription, which others may share, or a
    Sensor's."""
    trigger_id = identity.Identity.of(trigger)
    if trigger["kind"] == SENSOR:
        family = bus_of(trigger).family
        name = sensor_manifests.function_name(family, trigger_id)
    else:
        family = family_of(trigger["kind"])
        name = ((trigger.get("status") or {}).get("annotations") or {}).get(DISPATCHER_KEY, "")
    namespace = services.function_namespace(family, trigger_id, localize.LOCAL_SETTINGS)
    return cluster.find(SERVING, "Service", namespace, name)


def most_replicas(dispatcher: Document | None) -> int:
    """Processes that a Trigger has at most, one if it shares it; 0 while it has no dispatcher's
    Service."""
    if dispatcher is None:
        return 0
    if role_of(dispatcher) == services.SHARD_ROLE:
        return 1
    return int(dispatcher["spec"]["template"]["metadata"]["annotations"][services.MAX_SCALE])


def _contract_of_all(receiver: Document) -> ReceiverContract:
    """The contract of one receiver, without a path of its own."""
    contract = parse_json(ReceiverContract, _environment(receiver)[settings.RECEIVER])
    return contract.model_copy(update={"path": None})


def _family(receiver: Document) -> Family:
    """Whose receiver's Service it is."""
    return (
        CHANNELS if receiver_services.CHANNELS_OWNER in services.owner_uids(receiver) else BROKERS
    )


def _environment(document: Document) -> Mapping[str, str]:
    return services.environment_of(document["spec"]["template"]["spec"]["containers"][0])


def _identity(document: Document) -> Identity:
    return document["metadata"]["namespace"], document["metadata"]["name"]
