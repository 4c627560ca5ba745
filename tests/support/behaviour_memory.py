"""The world of `behaviour` in memory: real decisions, real drains; no API server, Kafka or clock.

The controller is the leader's, told of every change by the cluster in memory. A dispatcher is the
data plane's own `Drain`. Admission is asked before anything is stored, as webhooks are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pytest
from support import fake_clock
from support.behaviour import conditions_of
from support.controlled import MemoryApi
from support.drains import ScriptedSubscriber, accept
from support.intercepted import Intercepted
from support.logs import shared_memory
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryReader, MemoryWriter
from support.memory.shared import MemoryPositionedReader
from support.memory.tail import memory_dead_letters
from support.operator_world import OperatorWorld
from support.scaling import NoSensors

from knafka.core.contract import Egress, Shard
from knafka.core.drain import DrainProgress, DrainRequest, ShardProgress
from knafka.core.errors import InvalidDocument, LogError
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.engine.drain import Drain
from knafka.dispatcher.engine.sending.broker_letters import BrokerDeadLetters
from knafka.dispatcher.shared.record import SharedParser
from knafka.dispatcher.shared.served import ServedShard
from knafka.dispatcher.shared.topic import SharedTopic
from knafka.ports.log import Assignment, LogReader, LogWriter
from knafka.ports.shared_log import PositionedReader
from knafka.ports.subscriber import Subscriber
from knafka_operator.brokers import admission
from knafka_operator.installation.settings import Settings
from knafka_operator.kube_api.cache import CachedCluster
from knafka_operator.kube_api.cluster import WatchSelection
from knafka_operator.model.conditions import Condition
from knafka_operator.model.resources import CORE, EVENTING, PAUSED_ANNOTATION, SERVING
from knafka_operator.operator import Operator
from knafka_operator.runtime import selections
from knafka_operator.runtime.controller import ClusterController
from knafka_operator.triggers.admission import check_trigger, with_trigger_defaults
from knafka_operator.wiring import OperatorClients

T = TypeVar("T")

PATIENCE: Final = 900.0
"""Seconds of a clock that costs nothing."""
LOOK_INTERVAL: Final = 0.5
HOST: Final = "http://subscriber.test/"
NAMESPACE: Final = "behaviour"

WATCHED: Final = {
    (EVENTING, "Broker"): selections.BROKERS,
    (EVENTING, "Trigger"): selections.TRIGGERS,
    (SERVING, "Service"): selections.FUNCTIONS,
    (CORE, "ConfigMap"): selections.CONFIG_MAPS,
}


class MemoryDrains(NoSensors):
    """Dispatchers: each drain that is held reads the log in memory."""

    def __init__(self, log: MemoryLog, subscriber: ScriptedSubscriber) -> None:
        self._log = log
        self._subscriber = subscriber

    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        writer, topics = MemoryWriter(self._log), MemoryAdmin(self._log)
        drain = Drain(
            egress,
            Clients(
                lambda assignment: MemoryReader(self._log, egress.group, egress.topic, assignment),
                writer,
                self._subscriber,
                topics,
                memory_dead_letters(egress, self._log, writer, topics),
            ),
            asyncio.get_running_loop().time,
        )
        drain.idle = request.idle
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: drain.stop())
        try:
            yield await drain.run()
        finally:
            stopping.cancel()

    async def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        """A process for each request, as pods come and go."""
        lines: asyncio.Queue[ShardProgress | None] = asyncio.Queue()

        async def send(message: Any) -> None:
            for line in message.get("body", b"").splitlines():
                lines.put_nowait(ShardProgress.model_validate_json(line))

        served = ServedShard(shard, MemoryShard(self._log, shard, self._subscriber), None)
        served.start(drain=False)
        stopping = asyncio.create_task(stop.wait())
        streaming = asyncio.create_task(served.stream(request, stopping, send))
        streaming.add_done_callback(lambda _: lines.put_nowait(None))
        try:
            while (progress := await lines.get()) is not None:
                yield progress
        finally:
            stopping.cancel()
            streaming.cancel()
            served.stop(0)
            await served.close()


class MemoryShard:
    """The `ShardClients` of one process."""

    def __init__(self, log: MemoryLog, shard: Shard, subscriber: ScriptedSubscriber) -> None:
        self.writer: LogWriter = MemoryWriter(log)
        self.subscriber: Subscriber = subscriber
        self._log = log
        self._shard = shard
        self._topics: dict[str, SharedTopic] = {}
        self._dead_letters: dict[str | None, BrokerDeadLetters | None] = {}

    def clients_for(self, egress: Egress, among: Callable[[], int]) -> Clients:
        def open_reader(assignment: Assignment) -> LogReader:
            if egress.topic not in self._topics:
                group = f"{self._shard.group}.{egress.topic}"
                self._topics[egress.topic] = shared_memory(self._log, group, egress.topic)
            return self._topics[egress.topic].open_reader(egress.group, assignment)

        topics = MemoryAdmin(self._log)
        name = egress.broker_dead_letter_topic
        if name not in self._dead_letters:
            self._dead_letters[name] = memory_dead_letters(egress, self._log, self.writer, topics)
        letters = self._dead_letters[name]
        return Clients(open_reader, self.writer, self.subscriber, topics, letters, SharedParser())

    def open_contract(self) -> PositionedReader:
        return MemoryPositionedReader(self._log, self._shard.contract_topic)

    async def close(self) -> None:
        for each in self._topics.values():
            await each.close()


class _Controlled(OperatorWorld):
    """An operator behind the leader's cache: changes of what it has read reconcile again."""

    subscriber: ScriptedSubscriber

    def __init__(self, subscriber: ScriptedSubscriber) -> None:
        self.subscriber = subscriber
        super().__init__()

    def _operator(self, settings: Settings) -> Operator:
        api: Any = MemoryApi(Intercepted(self.cluster, self._seen))
        cached = CachedCluster(api)
        drains = MemoryDrains(self.log, self.subscriber)
        operator = Operator(
            settings,
            cached,
            OperatorClients(self._connect, self._open_writer, drains, self._probe, self._probe),
        )
        cached.changed = operator.queue.enqueue
        self.controller = ClusterController(operator, cached, api)
        return operator


class MemoryWorld:
    """See `behaviour.World`; each call has the operator run meanwhile."""

    namespace = NAMESPACE

    def __init__(self) -> None:
        self._loop = fake_clock.new_event_loop()
        self._subscriber = ScriptedSubscriber(accept)
        self._world = self._run(self._made())
        self._tasks = self._run(self._started())

    def close(self) -> None:
        self._run(self._stopped())
        self._run(self._world.operator.close())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def apply(self, *documents: Mapping[str, Any]) -> None:
        for each in documents:
            assert not (refusal := self.refusal(each)), refusal
            self._world.cluster.put(self._defaulted(each))
        self._run(asyncio.sleep(0))

    def pause(self, trigger: str, *, paused: bool = True) -> None:
        stored = self._world.cluster.objects[EVENTING, "Trigger", self.namespace, trigger]
        metadata = {**stored["metadata"]}
        metadata["annotations"] = {
            **metadata["annotations"],
            PAUSED_ANNOTATION: str(paused).lower(),
        }
        self.apply({**stored, "metadata": metadata})

    def delete(self, kind: str, name: str) -> None:
        key = (EVENTING, kind, self.namespace, name)
        self._world.cluster.remove(*key)
        self.until(
            lambda: key not in self._world.cluster.objects, lambda: f"{kind} {name} is still there"
        )

    def refusal(self, *documents: Mapping[str, Any]) -> str:
        return "\n".join(filter(None, map(self._refusal, documents)))

    def _refusal(self, document: Mapping[str, Any]) -> str:
        new = self._defaulted(document)
        key = new["apiVersion"], new["kind"], self.namespace, new["metadata"]["name"]
        check: Any = {"Broker": admission.check_broker, "Trigger": check_trigger}.get(new["kind"])
        try:
            if check is not None:
                check(new, self._world.cluster.objects.get(key))
        except InvalidDocument as error:
            return str(error)
        return ""

    def conditions(self, kind: str, name: str) -> list[Condition]:
        stored = self._world.cluster.objects.get((EVENTING, kind, self.namespace, name), {})
        return conditions_of((stored.get("status") or {}).get("conditions") or ())

    def observes_newest(self, kind: str, name: str) -> bool:
        stored = self._world.cluster.objects[EVENTING, kind, self.namespace, name]
        observed = (stored.get("status") or {}).get("observedGeneration")
        return bool(observed == stored["metadata"]["generation"])

    def until(self, holds: Callable[[], T], what: Callable[[], str]) -> T:
        async def waited() -> T:
            deadline = self._loop.time() + PATIENCE
            while not (found := holds()):
                if self._loop.time() > deadline:
                    pytest.fail(what())
                await asyncio.sleep(LOOK_INTERVAL)
            return found

        return self._run(waited())

    def subscriber(self, name: str) -> dict[str, Any]:
        return {"uri": HOST + name}

    def arrived(self, name: str) -> list[str]:
        return [
            each.id for each in self._subscriber.posts if each.request.target.url == HOST + name
        ]

    def send(self, broker: str, *ids: str, type_: str = "made") -> None:
        stored = self._world.cluster.objects[EVENTING, "Broker", self.namespace, broker]
        for each in ids:
            named = {"specversion": "1.0", "id": each, "source": "/tests", "type": type_}
            draft = to_record(Event(named, b"{}"))
            topic = stored["status"]["annotations"]["default.topic"]
            self._world.log.store(topic, draft.key, draft.value, draft.headers)
        self._run(asyncio.sleep(LOOK_INTERVAL))

    @contextmanager
    def kafka_is_away(self) -> Iterator[Mapping[str, str]]:
        self._world.kafka_failures["describe_topic"] = LogError("it did not answer within 15 s")
        try:
            yield {"bootstrap.servers": "nowhere:9092"}
        finally:
            self._world.kafka_failures.clear()

    def kept_in_kafka(self) -> set[str]:
        log = self._world.log
        groups = {name for name, group in log.groups.items() if group.committed}
        return {each for each in (*log.topics, *groups) if self.namespace in each}

    def restart(self) -> None:
        self._run(self._stopped())
        self._run(self._world.restart())
        self._run(self._world.operator.resume())
        self._tasks = self._run(self._started())

    def _defaulted(self, document: Mapping[str, Any]) -> dict[str, Any]:
        metadata = {"namespace": self.namespace, **document["metadata"]}
        named = {**document, "metadata": metadata}
        match document["kind"]:
            case "Broker":
                return admission.with_broker_defaults(named)
            case "Trigger":
                return with_trigger_defaults(named)
        return named

    async def _made(self) -> _Controlled:
        return _Controlled(self._subscriber)

    async def _started(self) -> list[asyncio.Task[None]]:
        controller = self._world.controller
        reconciling = self._world.operator.queue.run(controller.reconcile)
        following = [self._follow(controller, *of) for of in WATCHED.items()]
        return [asyncio.create_task(each) for each in (reconciling, *following)]

    async def _stopped(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._world.controller._events.close()

    async def _follow(
        self, controller: ClusterController, kind: tuple[str, str], of: WatchSelection
    ) -> None:
        async for event in self._world.cluster.watch(*kind):
            if event.type == "DELETED":
                controller.on_objects(of, (), (event.document,))
            else:
                controller.on_objects(of, (event.document,), ())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


@pytest.fixture(scope="session")
def memory_world() -> Callable[[], Any]:
    """Makes worlds in memory: another one for each test."""

    @contextmanager
    def entered() -> Iterator[MemoryWorld]:
        world = MemoryWorld()
        try:
            yield world
        finally:
            world.close()

    return entered
