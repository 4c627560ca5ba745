"""The supervisor: everything `knafka up` runs, brought to what is declared and kept there.

    files -> declared -> plan -> topics and offsets -> programs -> receiver -> scaler -> dispatchers

One function, `_reconcile`, goes along that line, at the start and after every change; each part
compares what it is told with what it has. Healing is elsewhere and needs no reconciling: children
are `Supervised`, dispatchers are reopened by the scaler.
Refused here: showing anything (see `view`), and anything that happens to a single event.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Final

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_connection import connection
from knafka.core.contract import Egress, Kafka
from knafka.core.errors import KnafkaError, LogError
from knafka_local import kafka_distribution
from knafka_local.children import Child, Supervised, listen
from knafka_local.dispatchers import BUDGET, DispatcherProcesses
from knafka_local.http import HOST
from knafka_local.installation import Installation, State
from knafka_local.kafka_server import KafkaServer
from knafka_local.manifests import Identity, Manifests
from knafka_local.plan import Plan, PlannedTrigger, defaults, has_command, identity, make_plan
from knafka_local.programs import Programs
from knafka_local.receiver_process import Answered, ReceiverProcess
from knafka_local.replays import follow_replays
from knafka_local.snapshot import Snapshot, take
from knafka_local.view import View
from knafka_operator.decide.desired import Topic
from knafka_operator.model.resources import Service
from knafka_operator.scale.scaler import Scaler

LOOK_INTERVAL: Final = 0.5
"""Seconds between two looks at the receiver's counters: new events wake their Triggers."""
RETRY_INTERVAL: Final = 5.0
"""Seconds until what Kafka refused is tried again."""


class PortTaken(KnafkaError):
    """The address that Brokers should be served at belongs to somebody else."""


class NoKafka(KnafkaError):
    """The Kafka that should be used does not answer."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `knafka up` was asked for."""

    manifests: tuple[Path, ...]
    data: Path
    port: int = 8080
    """Where Brokers are served, on this machine only."""
    kafka_port: int = 9092
    bootstrap_servers: str | None = None
    """A Kafka that runs already; None: start one."""


class Supervisor:
    """One `knafka up`: inside `async with supervisor.running():` it is up."""

    def __init__(self, options: Options, view: View) -> None:
        """Raises `NoManifests` if a file isn't there."""
        self._options = options
        self._view = view
        self._manifests = Manifests(options.manifests)
        self._installation = Installation(options.data)
        self._plan = Plan()
        self._problems: tuple[str, ...] = ()
        self._answered: Answered = Answered()
        self._ensured: set[str | tuple[str, str]] = set()
        """Topics that are there, and groups that have offsets on one."""
        self._changed = asyncio.Event()
        self._server: KafkaServer | None = None
        self.url = f"http://{HOST}:{options.port}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything is up inside, and down again afterwards, Kafka last.

        Raises `KnafkaError` with what to do about it if it can't come up.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(self._installation.held())
            listener = stack.enter_context(self._listen())
            self._kafka = Kafka(bootstrap_servers=await self._start_kafka(stack))
            self._admin = KafkaAdmin(connection(self._kafka))
            await self._check_kafka()
            logs, say = self._installation.logs, self._view.say
            self._programs = Programs(logs, say, self._view.printed)
            stack.push_async_callback(self._programs.stop)
            self._receiver = ReceiverProcess(listener, logs, say)
            stack.push_async_callback(self._receiver.stop)
            self._scaler = Scaler(self._admin, DispatcherProcesses(logs), budget=BUDGET)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._scaler.run(), name="scaler")]
                try:
                    complete = await self._reconcile()
                    works = (
                        self._follow_files(),
                        self._repeat(complete),
                        self._look(),
                        follow_replays(lambda: self._plan.triggers, self._admin, self._scaler),
                    )
                    tasks += [group.create_task(work) for work in works]
                    yield
                finally:
                    for task in reversed(tasks):
                        task.cancel()

    def kill(self) -> None:
        """End every process at once, for somebody who won't wait."""
        for child in Child.running:
            child.kill()
        if self._server is not None and self._server.pid is not None:
            os.kill(self._server.pid, signal.SIGKILL)

    def snapshot(self) -> Snapshot:
        """How everything stands."""
        return take(
            self._plan,
            self._scaler.statuses(),
            self._answered,
            self._problems,
            self.kafka,
            self.url,
        )

    @property
    def kafka(self) -> str:
        """Where Kafka is, and whether it is ours."""
        if self._server is None:
            return f"{self._kafka.bootstrap_servers} (not ours)"
        return f"{self._kafka.bootstrap_servers} ({'up' if self._server.pid else 'down'})"

    def _listen(self) -> socket.socket:
        port = self._options.port
        try:
            return listen(port)
        except OSError as error:
            raise PortTaken(
                f"{HOST}:{port} can't be used ({error.strerror}): choose another with --port"
            ) from error

    async def _start_kafka(self, stack: AsyncExitStack) -> str:
        """Bootstrap servers of the Kafka that we were given, or of our own."""
        if self._options.bootstrap_servers is not None:
            return self._options.bootstrap_servers
        say = self._view.say
        distribution = await asyncio.to_thread(kafka_distribution.obtain, progress=say)
        server = KafkaServer(distribution, self._installation.kafka, port=self._options.kafka_port)
        say(f"starting Kafka on {server.directory}")
        await server.start()
        self._server = server

        async def running() -> KafkaServer:
            if server.pid is None:
                await server.start()
            return server

        supervised = Supervised("Kafka", running, say)
        stack.push_async_callback(supervised.stop)
        return server.bootstrap_servers

    async def _check_kafka(self) -> None:
        try:
            await self._admin.cluster_id()
        except LogError as error:
            raise NoKafka(
                f"no Kafka answers at {self._kafka.bootstrap_servers} ({error}): start it, or "
                "leave --bootstrap-servers out to have one started"
            ) from error

    async def _reconcile(self) -> bool:
        """Make it so; False if Kafka refused a part of it, which is worth another try."""
        declared = self._manifests.read()
        self._problems = tuple(map(str, declared.problems))
        services = [identity(each) for each in declared.all(Service) if has_command(each)]
        wanted = make_plan(
            declared,
            defaults(self._kafka),
            self.url,
            self._programs.ports(services),
            self._plan,
        )
        plan = await self._ensure(wanted)
        await self._programs.run(plan.programs)
        await self._receiver.serve([each.ingress for each in plan.brokers.values()])
        await self._scale(plan.triggers)
        self._plan = plan
        self._installation.write(
            State(
                pid=os.getpid(),
                url=self.url,
                bootstrap_servers=self._kafka.bootstrap_servers,
                manifests=tuple(map(str, self._manifests.paths)),
                ingresses=tuple(each.ingress for each in plan.brokers.values()),
                egresses=tuple(each.egress for each in plan.triggers.values()),
            )
        )
        return len(plan.refused) == len(wanted.refused)

    async def _ensure(self, plan: Plan) -> Plan:
        """Topics and offsets, before anybody writes or reads them (KN-TRG-06).

        What Kafka refuses is refused in the plan that comes back, and nothing else.
        """
        brokers, triggers, refused = {}, {}, dict(plan.refused)
        for who, broker in plan.brokers.items():
            try:
                await self._ensure_topic(broker.topic)
                brokers[who] = broker
            except LogError as error:
                refused[who] = f"Kafka refused the topic {broker.topic.name}: {error}"
        topics = {broker.topic.name for broker in brokers.values()}
        for who, trigger in plan.triggers.items():
            try:
                if trigger.egress.topic not in topics:
                    raise LogError(f"its Broker's topic {trigger.egress.topic} isn't there")
                await self._ensure_committed(trigger.egress)
                triggers[who] = trigger
            except LogError as error:
                refused[who] = f"Kafka refused its offsets: {error}"
        return replace(plan, brokers=brokers, triggers=triggers, refused=refused)

    async def _ensure_topic(self, topic: Topic) -> None:
        if topic.name in self._ensured:
            return
        if not topic.external:
            await self._admin.ensure_topic(
                topic.name, topic.partitions, topic.replication, topic.config
            )
        elif topic.name not in await self._admin.topics():
            raise LogError("it is external and does not exist")
        self._ensured.add(topic.name)

    async def _ensure_committed(self, egress: Egress) -> None:
        if (egress.group, egress.topic) not in self._ensured:
            await self._admin.ensure_committed(egress.group, egress.topic)
            self._ensured.add((egress.group, egress.topic))

    async def _scale(self, wanted: Mapping[Identity, PlannedTrigger]) -> None:
        """Tell the scaler what has changed; what has ended is waited for."""
        before = self._plan.triggers
        await asyncio.gather(
            *(self._scaler.forget(_id(who)) for who in before if who not in wanted),
            *(
                self._scaler.watch(_id(who), trigger.egress, trigger.autoscaling)
                for who, trigger in wanted.items()
                if before.get(who) != trigger
            ),
        )

    async def _follow_files(self) -> None:
        async for _ in self._manifests.changes():
            self._changed.set()

    async def _repeat(self, complete: bool) -> None:
        """Reconcile after each change, and after a while if a part was refused."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if complete else RETRY_INTERVAL):
                    await self._changed.wait()
            self._changed.clear()
            complete = await self._reconcile()

    async def _look(self) -> None:
        """Wake the Triggers of a Broker as soon as it has accepted something."""
        while True:
            before, self._answered = self._answered, await self._receiver.answered()
            for who, broker in self._plan.brokers.items():
                accepted = who.namespace, who.name, HTTPStatus.ACCEPTED.value
                if self._answered[accepted] > before[accepted]:
                    self._scaler.wake(broker.topic.name)
            await asyncio.sleep(LOOK_INTERVAL)


def _id(who: Identity) -> str:
    return f"{who.namespace}/{who.name}"
