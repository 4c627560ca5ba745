"""LocalServing: Knative Services of a LocalCluster as processes, and their status.

    a receiver's      one process for those of all Brokers, behind the installation's port, and one
                      for that of all KafkaChannels, behind another
    a dispatcher's    Ready at once: a drain that is held starts its process (`dispatchers`)
    anybody else's    its command, kept running (`programs`); Ready while its port is open

Receivers share a process since all Brokers share an address: each in a process of its own would
need a proxy before them, and addresses could not stay as they are. KafkaChannels have an address of
their own, as one may have the name of a Broker; their receiver follows a topic, so it goes on when
one comes or goes.

An address is there from the first time that a Service is Ready, as with Knative: while its command
is started again, events wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from knafka import settings
from knafka.core.contract import Ingress, parse_ingresses
from knafka.core.contract import Receiver as ReceiverContract
from knafka.core.documents import parse, parse_json
from knafka.core.errors import InvalidDocument
from knafka_local import localize
from knafka_local.cluster import FOLDER, SERVES, LocalCluster, role_of, service_status
from knafka_local.programs import Identity, Programs, program_of
from knafka_operator.decide import services
from knafka_operator.decide.shards import DISPATCHER
from knafka_operator.decide.status import NotReady
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import Condition, Status
from knafka_operator.model.family import family_of
from knafka_operator.model.resources import SERVING, Service

STARTING: Final = "Deploying"
"""Knative's reason for what has just been applied."""
LOOK_AGAIN: Final = 1.0
"""Seconds until a receiver that did not answer is asked again."""


class Receiver(Protocol):
    """The process behind the installation's port; `ReceiverProcess` is one."""

    async def serve(self, ingresses: Sequence[Ingress]) -> bool:
        """Serve these Brokers and no others; False: they don't answer yet."""
        ...

    async def answers(self, path: str) -> bool: ...


class ChannelsReceiver(Protocol):
    """The process behind the port of KafkaChannels; `ReceiverProcess` is one."""

    async def follow(self, contract: ReceiverContract) -> bool:
        """Serve what stands in this topic, and nothing else; False: it doesn't answer yet."""
        ...

    async def position(self) -> int | None:
        """Up to where it has read the topic; None: it doesn't answer."""
        ...

    async def answers(self, path: str) -> bool: ...


class LocalServing:
    """What Knative Serving does, for one cluster."""

    def __init__(
        self,
        cluster: LocalCluster,
        programs: Programs,
        receiver: Receiver,
        channels: ChannelsReceiver,
    ) -> None:
        self._cluster = cluster
        self._programs = programs
        self._receiver = receiver
        self._channels = channels
        self._receivers_changed = {settings.INGRESSES: asyncio.Event()}
        self._receivers_changed[settings.RECEIVER] = asyncio.Event()
        """By the variable with a receiver's contract."""
        self._conditions: dict[Identity, Condition] = {}
        """The last condition of each program."""
        programs.report = self._report

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(), name="serving")
            brokers = self._keep_receiver(settings.INGRESSES, self._serve_brokers)
            group.create_task(brokers, name="receiver")
            channels = self._keep_receiver(settings.RECEIVER, self._serve_channels)
            group.create_task(channels, name="channel receiver")
            group.create_task(self._programs.follow_sources(), name="sources")

    async def probe(self, url: str) -> None:
        """Returns once a Broker's address answers; raises `NotReady` (KN-BRK-21)."""
        await _probe(self._receiver, url)

    async def probe_channel(self, url: str) -> None:
        """The same for a KafkaChannel's."""
        await _probe(self._channels, url)

    async def positions(self, namespace: str, name: str) -> Mapping[str, int | None]:
        """Up to where the KafkaChannels' receiver has read its contract, see `Positions`."""
        return {name: await self._channels.position()}

    async def _follow(self) -> None:
        async for event in self._cluster.watch(SERVING, "Service"):
            role = role_of(event.document)
            if role == services.RECEIVER:
                for variable, changed in self._receivers_changed.items():
                    if variable in _environment(event.document):
                        changed.set()
            elif role is None:
                await self._program(event.document, gone=event.type == "DELETED")

    async def _program(self, document: Document, *, gone: bool) -> None:
        who = _identity(document)
        if gone:
            await self._programs.stop(who)
            return
        try:
            folder = Path(document["metadata"]["annotations"][FOLDER])
            program = program_of(parse(Service, document), folder)
        except InvalidDocument as error:
            await self._programs.stop(who)
            await self._tell(document, Condition(SERVES, Status.FALSE, "NoCommand", str(error)))
        else:
            await self._programs.run(who, program)
            await self._tell(document, self._conditions[who])

    async def _report(self, who: Identity, serves: Status, why_not: str) -> None:
        reason = {Status.FALSE: "CommandFailed", Status.UNKNOWN: STARTING}.get(serves, "")
        condition = self._conditions[who] = Condition(SERVES, serves, reason, why_not)
        document = self._cluster.find(SERVING, "Service", *who)
        if document is not None:
            more = {"address": {"url": self._programs.url(who)}} if serves is Status.TRUE else {}
            await self._tell(document, condition, **more)

    async def _serve_brokers(self, _: Sequence[Document]) -> bool:
        return await self._receiver.serve(ingresses_of(self._cluster))

    async def _serve_channels(self, found: Sequence[Document]) -> bool:
        """There is one at most: here is one Kafka, without credentials."""
        contracts = [_environment(each)[settings.RECEIVER] for each in found]
        return not contracts or await self._channels.follow(
            parse_json(ReceiverContract, contracts[-1])
        )

    async def _keep_receiver(
        self, variable: str, serve: Callable[[Sequence[Document]], Awaitable[bool]]
    ) -> None:
        """Have one process serve all receivers' Services with this variable."""
        loop, changed = asyncio.get_running_loop(), self._receivers_changed[variable]
        while True:
            await changed.wait()
            changed.clear()
            found = list(_receivers(self._cluster, variable))
            if await serve(found):
                condition = Condition(SERVES, Status.TRUE)
            else:
                why_not = "the receiver doesn't answer yet"
                condition = Condition(SERVES, Status.UNKNOWN, STARTING, why_not)
                loop.call_later(LOOK_AGAIN, changed.set)
            for each in found:
                await self._tell(each, condition)

    async def _tell(self, document: Document, condition: Condition, **more: Any) -> None:
        """Write the status of a Service, unless it is declared otherwise by now."""
        metadata = document["metadata"]
        now = self._cluster.find(SERVING, "Service", *_identity(document))
        if now is None or now["metadata"]["generation"] != metadata["generation"]:
            return
        await self._cluster.write_status(document, service_status(now, condition, **more))


def ingresses_of(cluster: LocalCluster) -> list[Ingress]:
    """What the receivers' Services serve, in an order that doesn't change by itself."""
    found = [
        each
        for document in _receivers(cluster, settings.INGRESSES)
        for each in parse_ingresses(_environment(document)[settings.INGRESSES])
    ]
    return sorted(found, key=lambda each: (each.namespace, each.broker))


def dispatcher_of(cluster: LocalCluster, trigger: Document) -> Document | None:
    """The Service that delivers for a stored Trigger or Subscription, which others may share."""
    name = ((trigger.get("status") or {}).get("annotations") or {}).get(DISPATCHER, "")
    own = trigger["metadata"]["namespace"]
    namespace = localize.SETTINGS.namespace if family_of(trigger["kind"]).centralized else own
    return cluster.find(SERVING, "Service", namespace, name)


def most_replicas(dispatcher: Document | None) -> int:
    """Processes that a Trigger has at most, one if it shares it; 0 while it has no dispatcher's
    Service."""
    if dispatcher is None:
        return 0
    if role_of(dispatcher) == services.SHARD_ROLE:
        return 1
    return int(dispatcher["spec"]["template"]["metadata"]["annotations"][services.MAX_SCALE])


async def _probe(receiver: Receiver | ChannelsReceiver, url: str) -> None:
    path = urlsplit(url).path
    if not await receiver.answers(path):
        raise NotReady("ProbeFailed", f"the receiver doesn't answer at {path}")


def _receivers(cluster: LocalCluster, variable: str) -> Iterator[Document]:
    """The receivers' Services whose contract is in this variable."""
    return (
        each
        for each in cluster.of("Service")
        if role_of(each) == services.RECEIVER and variable in _environment(each)
    )


def _environment(document: Document) -> Mapping[str, str]:
    container = document["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each["value"] for each in container["env"]}


def _identity(document: Document) -> Identity:
    return document["metadata"]["namespace"], document["metadata"]["name"]
