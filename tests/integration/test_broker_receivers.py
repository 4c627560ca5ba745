"""Fifty Brokers on a real Kafka, made and changed under load: no receiver is rolled for it.

The cluster is in memory; a Service's receiver is the real one, in this process, and started anew
whenever its Revision is another one. It is asked through what a server hands to it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from support.hosting import Hosted
from support.kafka import Kafka, MakeTopic
from support.memory.log import MemoryLog
from support.operator_world import INSTALLATION, OperatorWorld, condition
from support.waiting import until

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core import names
from knafka.ports.log import LogWriter
from knafka.receiver.function import ReceiverFunction
from knafka_operator.decide.status import NotReady, is_ready
from knafka_operator.model.resources import EVENTING, EXTERNAL_TOPIC, SERVING

BROKERS = [f"shop-{number}" for number in range(50)]
LATER = [f"later-{number}" for number in range(5)]
START_TIMEOUT = 30.0


class World(OperatorWorld):
    """An operator whose Kafka is real, and the receivers of its Brokers."""

    def __init__(self, kafka: Kafka) -> None:
        super().__init__()
        self.kafka = kafka.bootstrap_servers
        self.admin = KafkaAdmin({"bootstrap.servers": self.kafka})
        self.receivers: dict[str, ReceiverFunction] = {}
        """By namespace."""
        self.revisions: list[str] = []
        """Each that a receiver was started for."""
        self.answered: Counter[int] = Counter()
        self.configured()

    def configured(self, **data: str) -> None:
        one = {"default.topic.partitions": "1", "default.topic.replication.factor": "1"}
        data = {"bootstrap.servers": self.kafka, "external.topics": "test-*", **one, **data}
        self.configure(*INSTALLATION, **data)

    def _connect(self, configuration: Mapping[str, Any]) -> Any:
        return KafkaAdmin(configuration)

    def _open_writer(self, configuration: Mapping[str, Any]) -> LogWriter:
        return KafkaWriter(configuration)

    async def _probe(self, url: str) -> None:
        """The Service's pod has started, or is started now."""
        namespace = url.partition(".")[2].partition(".")[0]
        service = self.service(namespace)
        revision = f"{namespace}/{service['status']['latestReadyRevisionName']}"
        if revision not in self.revisions:
            self.revisions.append(revision)
            await self._start(namespace, service)
        path = f"/{namespace}/default"
        if (
            await Hosted(MemoryLog(), self.receivers[namespace]).ask(method="OPTIONS", path=path)
            != 200
        ):
            raise NotReady("ProbeFailed", f"{url} doesn't answer")

    async def _start(self, namespace: str, service: Mapping[str, Any]) -> None:
        container = service["spec"]["template"]["spec"]["containers"][0]
        receiver = ReceiverFunction()
        await receiver.start({each["name"]: each["value"] for each in container["env"]})
        await until(lambda: receiver.ready()[0], within=START_TIMEOUT)
        before, self.receivers[namespace] = self.receivers.get(namespace), receiver
        if before is not None:
            await before.stop()

    async def _positions(self, namespace: str, name: str) -> Mapping[str, int | None]:
        if (receiver := self.receivers.get(namespace)) is None:
            return {}
        contract = receiver.ingest._contract
        assert contract is not None
        return {name: contract.position}

    def service(self, namespace: str) -> dict[str, Any]:
        return self.cluster.objects[SERVING, "Service", namespace, "default-kn-receiver"]

    def ready(self) -> list[str]:
        """Namespaces of Brokers whose status says that they are Ready."""
        return [
            key[2]
            for key, each in self.cluster.objects.items()
            if key[:2] == (EVENTING, "Broker") and is_ready(each)
        ]

    async def send(self) -> None:
        """Events to every Broker that is Ready, for ever."""
        while True:
            for namespace in self.ready():
                hosted = Hosted(MemoryLog(), self.receivers[namespace])
                self.answered[await hosted.ask(path=f"/{namespace}/default")] += 1
            await asyncio.sleep(0.01)

    async def look(self, *namespaces: str) -> None:
        for status in await asyncio.gather(*map(self.reconcile_broker, namespaces)):
            assert condition(status, "Ready")["status"] == "True", status["conditions"]

    async def stored(self, *topics: str) -> int:
        ends = await self.admin.end_offsets_of_all(topics)
        return sum(sum(each.values()) for each in ends.values())

    async def close(self) -> None:
        await asyncio.gather(*(each.stop() for each in self.receivers.values()))
        topics = {names.broker_topic(each, "default") for each in (*BROKERS, *LATER)}
        for each in await self.admin.topics():
            if each in topics or "-Brokers-" in each:
                await self.admin.delete_topic(each)
        await self.operator.close()
        await self.admin.close()


@pytest.fixture
async def world(kafka: Kafka) -> AsyncIterator[World]:
    world = World(kafka)
    yield world
    await world.close()


@pytest.mark.timeout(240)
@pytest.mark.conformance("KN-BRK-01", "KN-BRK-07")
async def test_fifty_brokers_are_made_and_changed_and_no_receiver_is_rolled(
    world: World, topic: MakeTopic
) -> None:
    """KN-BRK-01: from the moment that a Broker is Ready each of its events is answered 202."""
    sending = asyncio.create_task(world.send())
    for each in BROKERS:
        world.declare_broker(each)
    await world.look(*BROKERS)
    made = list(world.revisions)
    assert len(made) == 50

    world.configured(**{"producer.compression.type": "lz4"})
    await world.look(*BROKERS)
    elsewhere = topic(max_message_bytes=500_000)
    for each in BROKERS[:25]:
        world.declare_broker(each, annotations={EXTERNAL_TOPIC: elsewhere})
    await world.look(*BROKERS)
    for each in LATER:
        world.declare_broker(each)
    await world.look(*LATER)
    for each in BROKERS[:25]:
        world.declare_broker(each)
    await world.look(*BROKERS)
    before = world.answered.total()
    await until(lambda: world.answered.total() >= before + 200, within=30)
    sending.cancel()
    await asyncio.wait([sending])

    assert set(world.answered) == {202}
    assert world.revisions[:50] == made
    assert len(world.revisions) == 55, "a receiver was rolled"
    assert {world.service(each)["metadata"]["generation"] for each in BROKERS} == {1}
    own = [names.broker_topic(each, "default") for each in (*BROKERS, *LATER)]
    elsewhere_stored = await world.stored(elsewhere)
    assert elsewhere_stored > 0
    # The last one may have been stored while nobody waited for its answer any more.
    assert await world.stored(*own) + elsewhere_stored in (
        world.answered[202],
        world.answered[202] + 1,
    )
