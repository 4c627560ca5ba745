"""What idle Triggers cost the operator: `python tools/bench/idle_triggers.py [--triggers 300]`.

With `--shared` they share dispatchers: `--triggers 1000 --per-broker 1000 --shared`.

It runs the operator itself with that many Triggers, on a real Kafka that it starts; nothing is sent
to the Triggers. Prints the CPU that the operator takes, the longest time that its event loop was
blocked, how many requests a restart makes to the API server, and after what time the last Trigger
drains. docs/performance.md has 300, 1,000 and 5,000.

Included: the work queue and the cache; reconciling, at first and every five minutes; looking at
Kafka, at lags and for replays; the status of each Trigger; metrics. Not included: HTTP to the API
server and decoding what it answers (objects are kept in memory, Services are Ready at once), and
webhooks; drains, of which there are none while there is no lag, and with them dispatchers and
receivers. Kafka is a process of its own and isn't counted.

The CPU is that of this process, librdkafka's threads included. Times by the clock depend on what
else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from confluent_kafka import Producer

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.admin.kafka_groups import KafkaGroups, cache_seconds
from knafka.clients.kafka.kafka_connection import connection_configuration
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core import names
from knafka.core.contract import Kafka
from knafka.observability import prometheus_text
from knafka_local.kafka.kafka_distribution import obtain
from knafka_local.kafka.kafka_server import KafkaServer
from knafka_operator.decisions.status import is_ready, why_not_ready
from knafka_operator.dispatchers.conditions import LAG
from knafka_operator.engine.controller import RESYNC_SECONDS, Controller
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.clusters import REST_AFTER_SECONDS
from knafka_operator.kube_api.cache import CachedCluster
from knafka_operator.kube_api.cluster import PAGE_SIZE, WatchSelection
from knafka_operator.kube_api.memory_cluster import MemoryServing
from knafka_operator.model.cluster import Document
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import BROKER_CLASS, CORE, EVENTING, FINALIZER, ISOLATION
from knafka_operator.operator import Operator
from knafka_operator.runtime.controller import ClusterController
from knafka_operator.runtime.metrics import operator_metrics
from knafka_operator.scale.scaler import Scaler
from knafka_operator.wiring import OperatorClients

# tools/ is a source root that nothing installs.
sys.path[0] = str(Path(__file__).parents[1])
from bench.fake_dispatcher import Settling, fake_dispatcher  # noqa: E402

NAMESPACE: Final = "load"
SETTINGS: Final = Settings(namespace="knafka", image="unused", local_addresses=True)
KAFKA_HEAP: Final = "-Xmx1g"
"""Java's options for Kafka: a hundred topics and a thousand groups need more heap than a
development node has."""
READY_TIMEOUT: Final = 1800.0
TICK: Final = 0.01
"""Seconds between two measurements of how late the event loop is."""
SAMPLE: Final = 50
"""Most reconciliations, and most groups, whose cost is measured."""
SCRAPES: Final = 9
EVENT_TIMEOUT: Final = 60.0


class CountedApi:
    """An API client on a cluster in memory that counts its calls, by name."""

    def __init__(self, cluster: MemoryServing) -> None:
        self.cluster = cluster
        self.calls: Counter[str] = Counter()
        self.kinds: Any = None

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self.cluster, name)

    async def patch_status(self, document: Document, status: Document) -> Document | None:
        self.calls["patch_status"] += 1
        await self.cluster.write_status(document, status)
        metadata = document["metadata"]
        return await self.cluster.get(
            EVENTING, document["kind"], metadata["namespace"], metadata["name"]
        )


class MemoryController(ClusterController):
    """A controller that gets its objects and their changes from a cluster in memory, not from the
    API server's watches."""

    def __init__(self, operator: Operator, cached: CachedCluster, api: CountedApi) -> None:
        super().__init__(operator, cached, cast(Any, api))
        self._counted = api
        self._following: list[asyncio.Task[None]] = []

    def _watch(self, selection: WatchSelection) -> None:
        documents = [
            document
            for document in self._counted.cluster.of(selection.kind)
            if document["apiVersion"] == selection.api_version and selection.matches(document)
        ]
        for start in range(0, max(1, len(documents)), PAGE_SIZE):
            self._counted.calls["list"] += 1
            self.on_objects(selection, documents[start : start + PAGE_SIZE], ())
        self.set_synced(selection, True)

        self._following.append(asyncio.create_task(self._follow(selection)))

    async def _follow(self, selection: WatchSelection) -> None:
        async for event in self._counted.cluster.watch(selection.api_version, selection.kind):
            if selection.matches(event.document):
                changed = (event.document,)
                self.on_objects(
                    selection, *(((), changed) if event.type == "DELETED" else (changed, ()))
                )

    async def close(self) -> None:
        for task in self._following:
            task.cancel()
        if self._following:
            await asyncio.wait(self._following)


class Leader:
    """An operator with its controller and API client."""

    def __init__(self, cluster: MemoryServing) -> None:
        self.api = CountedApi(cluster)
        cached = CachedCluster(cast(Any, self.api))
        self.operator = Operator(
            SETTINGS,
            cached,
            OperatorClients(KafkaAdmin, KafkaWriter, probe=_answers, wake=_answers),
        )
        self.controller = MemoryController(self.operator, cached, self.api)
        self._running: asyncio.Task[None] | None = None

    def run(self) -> None:
        self._running = asyncio.create_task(self.controller.run())

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        await self.controller.close()
        await self.operator.close()


class Load:
    """An operator with the Brokers and Triggers of the options, and the measurements of it."""

    def __init__(self, servers: str, options: argparse.Namespace) -> None:
        self._kafka = Kafka(bootstrap_servers=servers)
        self._options = options
        self._cluster = MemoryServing()
        self._leader = Leader(self._cluster)
        self._operator = self._leader.operator

    async def close(self) -> None:
        await self._leader.close()

    async def declare(self) -> None:
        """Declare everything, and wait until each Trigger is Ready and its lag known."""
        options, began, cpu = self._options, time.monotonic(), time.process_time()
        data = {
            "bootstrap.servers": self._kafka.bootstrap_servers,
            "default.topic.partitions": str(options.partitions),
            "default.topic.replication.factor": "1",
        }
        self._cluster.put(
            {
                "apiVersion": CORE,
                "kind": "ConfigMap",
                "metadata": {"namespace": SETTINGS.namespace, "name": SETTINGS.config},
                "data": data,
            }
        )
        self._leader.run()
        for number in range(-(-options.triggers // options.per_broker)):
            isolation = Isolation.SHARED if options.shared else Isolation.OWN
            annotations = {BROKER_CLASS: "Kafka", ISOLATION: isolation.value}
            self._declare("Broker", f"b{number}", {}, annotations)
        for number in range(options.triggers):
            broker = f"b{number // options.per_broker}"
            spec = {"broker": broker, "subscriber": {"uri": "http://127.0.0.1:9/"}}
            self._declare("Trigger", f"t{number}", spec, {})
        shown = began
        while waiting := [
            trigger for trigger in self._cluster.of("Trigger") if not _is_idle(trigger)
        ]:
            now = time.monotonic()
            if now - began > READY_TIMEOUT:
                raise SystemExit(f"{len(waiting)} not Ready: {why_not_ready(waiting[0])}")
            if now - shown > 10:
                shown = now
                say(f"... {options.triggers - len(waiting)} of {options.triggers} Ready")
            await asyncio.sleep(1)
        used = (time.process_time() - cpu) / options.triggers
        say(f"all Ready after {time.monotonic() - began:.0f} s, {used * 1e3:.1f} ms of CPU each")

    async def idle(self) -> None:
        """Print the CPU that the operator uses while all Triggers are idle, and how much it uses
        later on."""
        seconds, count = self._options.seconds, self._options.triggers
        say(f"resting for {REST_AFTER_SECONDS:g} s: what moved lately is looked at more often ...")
        await asyncio.sleep(REST_AFTER_SECONDS)
        say(f"idle for {seconds:g} s ...")
        committed_calls = _counted(KafkaGroups, "committed")
        reconcile_calls = _counted(Controller, "reconcile")
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        elapsed = time.monotonic() - began
        used = (time.process_time() - cpu) / elapsed
        groups, triggers = len(committed_calls), len(reconcile_calls)
        say(
            f"CPU: {used:.2%} of one core; {groups} groups asked again, {triggers} reconciled again"
        )
        # Soon after the start fewer or more groups and Triggers are due than later on.
        ask, reconcile = await self._cost_of_asking(used), await self._cost_of_reconciling()
        asks, reconciles = count / (0.75 * cache_seconds(count)), count / RESYNC_SECONDS
        used += (asks - groups / elapsed) * ask + (reconciles - triggers / elapsed) * reconcile
        say(f"     {used:.2%} later on: {asks:.1f} groups a second, {ask * 1e3:.1f} ms each")
        say(f"     and {reconciles:.1f} reconciled a second, {reconcile * 1e3:.2f} ms each")

    async def _cost_of_asking(self, meanwhile: float) -> float:
        """Return the seconds of CPU that a request for one group's lag takes, without the share
        `meanwhile` of a core that everything else uses."""
        topic = names.broker_topic(NAMESPACE, "b0")
        count = min(SAMPLE, self._options.per_broker, self._options.triggers)
        groups = [names.trigger_group(NAMESPACE, f"t{number}") for number in range(count)]
        admin = KafkaAdmin(connection_configuration(self._kafka))
        await admin.lags([], topic)
        began, cpu = time.monotonic(), time.process_time()
        await admin.lags(groups, topic)
        used = time.process_time() - cpu - meanwhile * (time.monotonic() - began)
        await admin.close()
        return max(0.0, used / count)

    async def blocked(self) -> None:
        """Print the longest stretch of the event loop, and by how much a timer was late at most."""
        say(f"idle for {self._options.seconds:g} s, with a look at the event loop every 10 ms ...")
        late = longest = 0.0
        end = time.monotonic() + self._options.seconds
        while (began := time.monotonic()) < end:
            cpu = time.thread_time()
            await asyncio.sleep(TICK)
            late = max(late, time.monotonic() - began - TICK)
            longest = max(longest, time.thread_time() - cpu)
        say(f"longest stretch of the event loop: {longest * 1e3:.0f} ms of its CPU")
        say(f"a timer was late by at most {late * 1e3:.0f} ms by the clock")

    async def scrape(self) -> None:
        """Print what a scrape of the operator's metrics costs."""
        costs = []
        for _ in range(SCRAPES):
            cpu = time.thread_time()
            text = prometheus_text(operator_metrics(self._operator))
            costs.append(time.thread_time() - cpu)
            await asyncio.sleep(0.1)
        lines = text.count(b"\n")
        say(f"scrape of metrics, {lines} lines: {statistics.median(costs) * 1e3:.1f} ms of CPU")

    async def _cost_of_reconciling(self) -> float:
        """Return the median of the seconds of CPU that it takes to reconcile one Trigger."""
        triggers = list(self._cluster.of("Trigger"))
        costs = []
        for trigger in random.sample(triggers, min(SAMPLE, len(triggers))):
            cpu = time.thread_time()
            await self._operator.triggers.reconcile(trigger)
            costs.append(time.thread_time() - cpu)
            await asyncio.sleep(0)
        return statistics.median(costs)

    async def restart(self) -> None:
        """Start another operator while an event waits for every Trigger; print how long it takes
        until each was asked to drain and all are reconciled."""
        brokers = -(-self._options.triggers // self._options.per_broker)
        producer = Producer({**connection_configuration(self._kafka)})
        async with fake_dispatcher() as (url, asked_at):
            await self.close()
            for number in range(brokers):
                producer.produce(names.broker_topic(NAMESPACE, f"b{number}"), b"{}")
            await asyncio.to_thread(producer.flush, EVENT_TIMEOUT)
            new_leader = Leader(self._cluster)
            urls = new_leader.operator.states.urls
            began, cpu = time.monotonic(), time.process_time()
            count = await new_leader.operator.resume()
            say(f"a restart: {count} Triggers are resumed after {time.monotonic() - began:.2f} s")
            urls.update(dict.fromkeys(urls, url))
            new_leader.run()
            times_idle = 0
            async with asyncio.timeout(READY_TIMEOUT):
                functions = self._functions(count)
                while (
                    len(asked_at) < functions or new_leader.operator.queue.failing or times_idle < 2
                ):
                    urls.update(dict.fromkeys(urls, url))  # reconciling knows only real Services
                    times_idle += not new_leader.operator.queue.is_busy
                    await asyncio.sleep(0.1)
            say(f"           the last one drains after {max(asked_at.values()) - began:.2f} s")
            say(f"           all are reconciled after {time.monotonic() - began:.2f} s")
            say(f"           {time.process_time() - cpu:.2f} s of CPU")
            calls = ", ".join(
                f"{name} {number}" for name, number in new_leader.api.calls.most_common()
            )
            say(f"           calls: {sum(new_leader.api.calls.values())} ({calls})")
            await new_leader.close()

    async def wake(self) -> None:
        """Send one event after the other, each once all Triggers are idle; print what waking them
        costs."""
        scalers = [each.scaler for each in self._operator._kafkas.all()]
        topic, urls = names.broker_topic(NAMESPACE, "b0"), self._operator.states.urls
        shards: dict[str, list[str]] = {}
        for scaler in scalers:
            for identity, status in scaler.statuses().items():
                group = names.trigger_group(*identity.split("/"))
                shards.setdefault(str(status.shard), []).append(group)
        settling = Settling(self._kafka, topic, shards, self._options.hold)
        producer = Producer({**connection_configuration(self._kafka)})
        committed_calls = _counted(KafkaGroups, "committed")
        waits, groups_asked, costs, idle_seconds = [], [], [], []
        async with fake_dispatcher(settling) as (url, asked_at):
            for _ in range(self._options.events + 1):
                urls.update(dict.fromkeys(urls, url))  # reconciling knows only real Services
                asked_at.clear()
                committed_calls.clear()
                cpu = time.process_time()
                producer.produce(topic, b"{}")
                await asyncio.to_thread(producer.flush, EVENT_TIMEOUT)
                began = time.monotonic()
                async with asyncio.timeout(READY_TIMEOUT):
                    while not asked_at or any(not _all_idle(each) for each in scalers):
                        urls.update(dict.fromkeys(urls, url))
                        await asyncio.sleep(0.05)
                waits.append(min(asked_at.values()) - began)
                idle_seconds.append(time.monotonic() - began)
                groups_asked.append(len(committed_calls))
                costs.append(time.process_time() - cpu)
                await asyncio.sleep(random.uniform(1, 2))
        # The operator checks a resting topic less often, so it noticed the first event later.
        waits = sorted(waits[1:])
        say(
            f"one event for {len(shards)} shards, {len(waits)} times, held for {settling.hold:g} s:"
        )
        say(f"     groups asked: {_spread(groups_asked[1:], '.0f')}")
        say(f"     CPU until all are idle, s: {_spread(costs[1:], '.2f')}")
        say(f"     all are idle after, s: {_spread(idle_seconds[1:], '.2f')}")
        p99 = waits[math.ceil(0.99 * len(waits)) - 1]
        say(
            f"     a dispatcher is asked after, s: p50 {statistics.median(waits):.2f} p99 {p99:.2f}"
        )

    def _functions(self, triggers: int) -> int:
        """Return the number of dispatchers of so many Triggers."""
        if not self._options.shared:
            return triggers
        per_broker = min(self._options.per_broker, self._options.triggers)
        of_broker = -(-per_broker // SETTINGS.shard_size)
        return of_broker * -(-self._options.triggers // self._options.per_broker)

    def memory(self) -> None:
        """Print the resident memory of this process."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        say(f"memory: {pages * os.sysconf('SC_PAGE_SIZE') / 2**20:.0f} MiB")

    def _declare(self, kind: str, name: str, spec: Document, annotations: Document) -> None:
        metadata = {
            "namespace": NAMESPACE,
            "name": name,
            "annotations": annotations,
            "finalizers": [FINALIZER],
        }
        heard = {"apiVersion": EVENTING, "kind": kind, "metadata": metadata, "spec": spec}
        self._cluster.put(heard)


def _counted(owner: type, name: str) -> list[None]:
    """Count the calls of a method from now on: return a list that gets an item for each."""
    calls: list[None] = []
    method = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        calls.append(None)
        return method(*arguments)

    setattr(owner, name, call)
    return calls


async def _answers(url: str) -> None:
    """Do nothing: stands for a probe or a wake-up call that a function answers."""


def _all_idle(scaler: Scaler) -> bool:
    """Whether no Trigger drains, and none has a lag."""
    return all(not status.replicas and status.lag == 0 for status in scaler.statuses().values())


def _spread(values: Sequence[float], how: str) -> str:
    """Return median, lowest and highest value as text; `how` is their format."""
    median = statistics.median(values)
    return f"median {median:{how}}, {min(values):{how}} to {max(values):{how}}"


def _is_idle(trigger: Document) -> bool:
    """Whether a Trigger is Ready, and its status says that its lag is 0."""
    annotations = trigger.get("status", {}).get("annotations") or {}
    return is_ready(trigger) and annotations.get(LAG) == "0"


def say(text: str) -> None:
    print(text, flush=True)


async def measure(options: argparse.Namespace) -> None:
    """Start a Kafka and an operator, and run all measurements."""
    os.environ["_JAVA_OPTIONS"] = KAFKA_HEAP
    with tempfile.TemporaryDirectory() as directory:
        server = KafkaServer(obtain(), Path(directory))
        await server.start()
        try:
            say(
                f"{options.triggers} Triggers, {options.per_broker} on each Broker, "
                f"{options.partitions} partitions"
            )
            gc.collect()  # as `replica.run` does
            gc.freeze()
            load = Load(server.bootstrap_servers, options)
            await load.declare()
            await load.idle()
            await load.blocked()
            await load.scrape()
            load.memory()
            if options.shared:
                await load.wake()
            await load.restart()
        finally:
            await server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--triggers", type=int, default=300)
    parser.add_argument("--per-broker", type=int, default=10, help="Triggers of one Broker (10)")
    parser.add_argument("--partitions", type=int, default=10, help="of each topic (10)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each idleness (30)")
    parser.add_argument("--events", type=int, default=20, help="that wake shared ones (20)")
    parser.add_argument("--hold", type=float, default=1.0, help="seconds of each drain then (1)")
    parser.add_argument("--shared", action="store_true", help="their Brokers' isolation is shared")
    asyncio.run(measure(parser.parse_args()))
    os._exit(0)  # librdkafka's clients may wait for ever for a Kafka that is gone
