"""LocalServing: Knative Services of a LocalCluster as processes, and their status.

    of a receiver     one process serves all Brokers, behind the installation's port, and another
                      serves all KafkaChannels, behind a second port; each follows a contract topic,
                      so it keeps running when a Broker or KafkaChannel is added or removed
    of a dispatcher   Ready at once: its process starts only when the scaler sends a drain, the
                      request by which it delivers events (`dispatchers`)
    declared          its command is kept running (`programs`); Ready while its port is open

All Brokers share one address, so they share a receiver process: a process for each would need a
proxy in front. KafkaChannels have an address of their own, since one may have the name of a Broker.
A family is Brokers with their Triggers, or KafkaChannels with their Subscriptions.

A Service has an address from the first time it is Ready, as with Knative; while its command is
restarted, events wait.
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
from knafka_operator.decisions.status import NotReady
from knafka_operator.functions import receiver_services, services
from knafka_operator.kafka.shards import DISPATCHER_KEY
from knafka_operator.model import identity
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import Condition, Status
from knafka_operator.model.family import BROKERS, CHANNELS, Family, family_of
from knafka_operator.model.resources import SERVING, Service
from knafka_operator.model.sensors import SENSOR, bus_of
from knafka_operator.sensors import manifests as sensor_manifests

DEPLOYING: Final = "Deploying"
"""Knative's reason of a condition while a new Revision starts."""
RECEIVER_RETRY_DELAY: Final = 1.0
"""Seconds until a receiver that did not answer is asked again."""


class LocalReceiver(Protocol):
    """The receiver process behind a port of the installation, such as `ReceiverProcess`."""

    async def follow(self, contract: ReceiverContract) -> bool:
        """Serve the Brokers or KafkaChannels in this contract topic, and no others; returns False
        if the process doesn't answer yet."""
        ...

    async def serve_nothing(self) -> None:
        """Start the receiver process before there is any Broker or KafkaChannel, so that its port
        answers. Does nothing if it runs."""
        ...

    async def position(self) -> int | None:
        """Return the offset up to which the process has read the contract topic; None if it doesn't
        answer."""
        ...

    async def answers(self, path: str) -> bool:
        """Whether the Broker or KafkaChannel at this path takes events now."""
        ...


@dataclass(frozen=True, slots=True)
class ServedFamily:
    """The receiver of all Brokers or of all KafkaChannels; the operator asks it for its state."""

    receiver: LocalReceiver
    """The receiver process, which serves all of them."""

    async def probe(self, url: str) -> None:
        """Return if the receiver takes events at `url`; raises `NotReady` otherwise (KN-BRK-21)."""
        path = urlsplit(url).path
        if not await self.receiver.answers(path):
            raise NotReady("ProbeFailed", f"the receiver doesn't answer at {path}")

    async def positions(self, namespace: str, name: str) -> Mapping[str, int | None]:
        """Return the offset up to which each Pod of the receiver Service `namespace/name` has read
        its contract topic: here one process, by the Service's name; None if it doesn't answer."""
        return {name: await self.receiver.position()}


class LocalServing:
    """Runs the Services of a LocalCluster and reports their status, as Knative Serving does."""

    def __init__(
        self,
        cluster: LocalCluster,
        programs: Programs,
        brokers: LocalReceiver,
        channels: LocalReceiver,
    ) -> None:
        """`programs` runs the commands of declared Services; `brokers` is the receiver of all
        Brokers, and `channels` that of all KafkaChannels."""
        self._cluster = cluster
        self._programs = programs
        self.served = {BROKERS: ServedFamily(brokers), CHANNELS: ServedFamily(channels)}
        """The receiver of each family; the family's operator asks it for its state."""
        self._receivers_changed = {family: asyncio.Event() for family in self.served}
        """Set for a family (Brokers or KafkaChannels) when one of its receiver Services changes."""
        self._conditions: dict[Identity, Condition] = {}
        """The last condition of each Service's program, by the Service's namespace and name."""
        # `Programs` calls this whenever a program starts, opens its port or ends.
        programs.report = self._report_program

    async def run(self) -> None:
        """Run and watch all Services, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_services(), name="serving")
            for family in self.served:
                group.create_task(self._keep_receiver(family), name=f"{family.broker} receiver")
            group.create_task(self._programs.follow_sources(), name="sources")

    async def _watch_services(self) -> None:
        """Watch Services for ever: run the programs of those that users declare, which have no
        role, and note when a receiver's Service changes. A dispatcher's Service needs nothing, as
        the scaler starts its process."""
        async for event in self._cluster.watch(SERVING, "Service"):
            role = role_of(event.document)
            if role == services.RECEIVER_ROLE:
                self._receivers_changed[_family_of_receiver(event.document)].set()
            elif role is None:
                await self._update_program(event.document, deleted=event.type == "DELETED")

    async def _update_program(self, document: Document, *, deleted: bool) -> None:
        """Run, replace or stop the program of a declared Service, and write the Service's
        status."""
        identity = _namespace_and_name(document)
        if deleted:
            await self._programs.stop(identity)
            return
        try:
            folder = Path(document["metadata"]["annotations"][FOLDER_ANNOTATION])
            program = program_of(parse(Service, document), folder)
        except InvalidDocument as error:
            await self._programs.stop(identity)
            await self._write_status(
                document, Condition(SERVES, Status.FALSE, "NoCommand", str(error))
            )
        else:
            await self._programs.run(identity, program)
            # Written again, although `_report_program` has: if the same program runs already, it
            # reports nothing, and the new generation of the Service needs a status.
            await self._write_status(document, self._conditions[identity])

    async def _report_program(self, service: Identity, serves: Status, message: str) -> None:
        """Write the status of a Service whose program changed its state. `serves` is UNKNOWN if the
        program was started, TRUE if it opened its port, and FALSE if it ended. `message` says why
        it doesn't serve; empty if it does."""
        reason = {Status.FALSE: "CommandFailed", Status.UNKNOWN: DEPLOYING}.get(serves, "")
        condition = self._conditions[service] = Condition(SERVES, serves, reason, message)
        document = self._cluster.find(SERVING, "Service", *service)
        if document is not None:
            address = (
                {"address": {"url": self._programs.url(service)}} if serves is Status.TRUE else {}
            )
            await self._write_status(document, condition, **address)

    async def _keep_receiver(self, family: Family) -> None:
        """Keep one process serving all receiver Services of this family, and write their status.
        Runs until cancelled.

        If the process doesn't answer, it is asked again after `RECEIVER_RETRY_DELAY` seconds.
        """
        loop, changed = asyncio.get_running_loop(), self._receivers_changed[family]
        receiver = self.served[family].receiver
        while True:
            await changed.wait()
            changed.clear()
            receiver_documents = [
                document
                for document in self._cluster.of("Service")
                if role_of(document) == services.RECEIVER_ROLE
                and _family_of_receiver(document) is family
            ]
            # All receivers use one Kafka without credentials, so one contract topic serves them
            # all. Without a receiver's Service there is nothing to follow.
            contract = _shared_contract(receiver_documents[-1]) if receiver_documents else None
            if contract is None or await receiver.follow(contract):
                condition = Condition(SERVES, Status.TRUE)
            else:
                message = "the receiver doesn't answer yet"
                condition = Condition(SERVES, Status.UNKNOWN, DEPLOYING, message)
                loop.call_later(RECEIVER_RETRY_DELAY, changed.set)
            for document in receiver_documents:
                await self._write_status(document, condition)

    async def _write_status(self, document: Document, condition: Condition, **fields: Any) -> None:
        """Write a Service's status with this condition; `fields` are further fields of the status.
        Does nothing if the Service is gone, or if a newer generation of it has been declared."""
        metadata = document["metadata"]
        stored = self._cluster.find(SERVING, "Service", *_namespace_and_name(document))
        if stored is None or stored["metadata"]["generation"] != metadata["generation"]:
            return
        await self._cluster.write_status(document, service_status(stored, condition, **fields))


def dispatcher_of(cluster: LocalCluster, trigger: Document) -> Document | None:
    """Return the Service of the dispatcher that delivers the events of a Trigger, Subscription or
    Sensor (`trigger`). Several Triggers may share one. None if there is none yet."""
    trigger_id = identity.Identity.of(trigger)
    if trigger["kind"] == SENSOR:
        family = bus_of(trigger).family
        name = sensor_manifests.function_name(family, trigger_id)
    else:
        family = family_of(trigger["kind"])
        # Empty until the operator has recorded it; then no Service is found.
        name = ((trigger.get("status") or {}).get("annotations") or {}).get(DISPATCHER_KEY, "")
    namespace = services.function_namespace(family, trigger_id, localize.LOCAL_OPERATOR_SETTINGS)
    return cluster.find(SERVING, "Service", namespace, name)


def most_replicas(dispatcher: Document | None) -> int:
    """Return the largest number of processes that a dispatcher's Service may have: what its
    annotation says, or 1 if several Triggers share it. 0 if there is no Service (None)."""
    if dispatcher is None:
        return 0
    if role_of(dispatcher) == services.SHARD_ROLE:
        return 1
    return int(dispatcher["spec"]["template"]["metadata"]["annotations"][services.MAX_SCALE])


def _shared_contract(receiver: Document) -> ReceiverContract:
    """Return the contract of one receiver's Service without the path that it serves. The receivers
    of a family differ only in their paths, so the result holds for all of them."""
    contract = parse_json(ReceiverContract, _environment(receiver)[settings.RECEIVER])
    return contract.model_copy(update={"path": None})


def _family_of_receiver(receiver: Document) -> Family:
    """Return the family that a receiver's Service serves: Brokers or KafkaChannels."""
    return (
        CHANNELS if receiver_services.CHANNELS_OWNER in services.owner_uids(receiver) else BROKERS
    )


def _environment(document: Document) -> Mapping[str, str]:
    """Return the environment variables of a Service's container, by name."""
    return services.environment_of(document["spec"]["template"]["spec"]["containers"][0])


def _namespace_and_name(document: Document) -> Identity:
    """Return an object's namespace and name."""
    return document["metadata"]["namespace"], document["metadata"]["name"]
