"""What idle Triggers cost the operator: `python tools/bench/idle_triggers.py [--triggers 300]`.

The operator itself with that many Triggers, on a real Kafka that this starts; nothing is sent to
them. Prints the CPU that it takes, and for how long its event loop is kept from anything else.

Included: reconciling, at first and every five minutes; looking at Kafka, at lags and for replays;
the status of each Trigger; metrics. Not included: kopf with its watches, webhooks and peering; HTTP
to the API server (objects are kept in memory, Services are Ready at once); drains, of which there
are none while there is no lag, and with them dispatchers and receivers. Kafka is a process of its
own and isn't counted.

The CPU is that of this process, librdkafka's threads included. Times by the clock depend on what
else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from aiohttp import web
from confluent_kafka import Producer

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_connection import connection
from knafka.clients.kafka_groups import REMEMBERED
from knafka.core import drain, names
from knafka.core.contract import Kafka
from knafka.core.drain import DrainProgress, Ended
from knafka.observability import prometheus_text
from knafka_local.kafka_distribution import obtain
from knafka_local.kafka_server import KafkaServer
from knafka_operator.decide.delivery_status import LAG
from knafka_operator.decide.status import is_ready, summary, why_not_ready
from knafka_operator.model.resources import BROKER_CLASS, CORE, EVENTING, SERVING
from knafka_operator.model.settings import Settings
from knafka_operator.operator import Operator
from knafka_operator.runtime.cluster import Document
from knafka_operator.runtime.handlers import RESYNC, RETRY
from knafka_operator.runtime.memory_cluster import MemoryServing
from knafka_operator.runtime.metrics import metrics

NAMESPACE: Final = "load"
SETTINGS: Final = Settings(namespace="knafka", image="unused")
AT_ONCE: Final = 4
"""Objects that are made at a time: each means topics, which one Kafka node makes one by one."""
KAFKA_HEAP: Final = "-Xmx1g"
"""A hundred topics, and a thousand groups, need more than a node for development has."""
READY_TIMEOUT: Final = 1800.0
TICK: Final = 0.01
"""Seconds between two looks at how late the event loop is."""
SAMPLE: Final = 50
"""Reconciliations, and groups, whose cost is measured."""
SCRAPES: Final = 9
EVENT_TIMEOUT: Final = 60.0


class Load:
    """An operator with so many Triggers."""

    def __init__(self, servers: str, options: argparse.Namespace) -> None:
        self._kafka = Kafka(bootstrap_servers=servers)
        self._options = options
        self._cluster = MemoryServing()
        self._operator = Operator(SETTINGS, self._cluster, KafkaAdmin, probe=_answers)
        self._keeping: list[asyncio.Task[None]] = [
            asyncio.create_task(self._watch(api_version, kind))
            for api_version, kind in (
                (EVENTING, "Broker"),
                (EVENTING, "Trigger"),
                (SERVING, "Service"),
            )
        ]
        self._making = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        for task in self._keeping:
            task.cancel()
        await asyncio.wait(self._keeping)
        await self._operator.close()

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
        for number in range(-(-options.triggers // options.per_broker)):
            self._keep("Broker", f"b{number}", {}, {BROKER_CLASS: "Kafka"})
        for number in range(options.triggers):
            broker = f"b{number // options.per_broker}"
            spec = {"broker": broker, "subscriber": {"uri": "http://127.0.0.1:9/"}}
            self._keep("Trigger", f"t{number}", spec, {})
        shown = began
        while waiting := [each for each in self._cluster.of("Trigger") if not _is_idle(each)]:
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
        seconds = self._options.seconds
        say(f"idle for {seconds:g} s ...")
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        used = (time.process_time() - cpu) / (time.monotonic() - began)
        asked = await self._cost_of_asking()
        # Remembered for 0.5 to 1 of that, which this Triggers' first minutes don't show.
        again = asked * self._options.triggers / (0.75 * REMEMBERED)
        say(f"CPU: {used:.2%} of one core")
        say(f"     + {again:.2%}: each group asked again every {0.75 * REMEMBERED:.0f} s")
        say(f"       on average, {asked * 1e3:.1f} ms each")

    async def _cost_of_asking(self) -> float:
        """Seconds of CPU to find out what one group has committed."""
        topic = names.broker_topic(NAMESPACE, "b0")
        count = min(SAMPLE, self._options.per_broker, self._options.triggers)
        groups = [names.trigger_group(NAMESPACE, f"t{number}") for number in range(count)]
        admin = KafkaAdmin(connection(self._kafka))
        await admin.lags([], topic)
        cpu = time.process_time()
        await admin.lags(groups, topic)
        used = time.process_time() - cpu
        await admin.close()
        return used / count

    async def blocked(self) -> None:
        """How long the event loop keeps a timer waiting."""
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
        costs = []
        for _ in range(SCRAPES):
            cpu = time.thread_time()
            text = prometheus_text(metrics(self._operator))
            costs.append(time.thread_time() - cpu)
            await asyncio.sleep(0.1)
        lines = text.count(b"\n")
        say(f"scrape of metrics, {lines} lines: {statistics.median(costs) * 1e3:.1f} ms of CPU")

    async def reconcile(self) -> None:
        triggers = list(self._cluster.of("Trigger"))
        chosen = random.sample(triggers, min(SAMPLE, len(triggers)))
        costs = []
        for each in chosen:
            cpu = time.thread_time()
            await self._operator.triggers.reconcile(each)
            costs.append(time.thread_time() - cpu)
            await asyncio.sleep(0)
        say(f"reconciling one Trigger: {statistics.median(costs) * 1e3:.2f} ms of CPU")

    async def take_over(self) -> None:
        """Another operator, until it has every Trigger delivered to; it reconciles nothing."""
        other = Operator(SETTINGS, self._cluster, KafkaAdmin)
        began, cpu = time.monotonic(), time.process_time()
        count = await other.resume()
        waited, used = time.monotonic() - began, time.process_time() - cpu
        say(f"a take-over: {count} Triggers are delivered to after {waited:.2f} s")
        say(f"             {used:.2f} s of CPU")
        await other.close()

    async def one_event(self) -> None:
        """An event after the quiet, until the first drain is asked for."""
        producer = Producer({**connection(self._kafka)})
        topic = names.broker_topic(NAMESPACE, "b0")
        async with _dispatcher() as (url, asked), asyncio.timeout(EVENT_TIMEOUT):
            self._operator.triggers.urls.update(dict.fromkeys(self._operator.triggers.urls, url))
            began, cpu = time.monotonic(), time.process_time()
            producer.produce(topic, b"{}")
            await asyncio.to_thread(producer.flush, EVENT_TIMEOUT)
            await asked.wait()
            waited, used = time.monotonic() - began, time.process_time() - cpu
            say(f"one event: the first drain is asked for {waited:.2f} s later")
            say(f"           {used:.2f} s of CPU")
            await self.close()

    def _keep(self, kind: str, name: str, spec: Document, annotations: Mapping[str, str]) -> None:
        """As `handlers.keep_broker` and `keep_trigger` do."""
        operator = self._operator
        reconcile = operator.reconcile_broker if kind == "Broker" else operator.triggers.reconcile
        metadata = {"namespace": NAMESPACE, "name": name, "annotations": annotations}
        heard = {"apiVersion": EVENTING, "kind": kind, "metadata": metadata, "spec": spec}
        self._cluster.put(heard)
        was_ready = False

        async def look() -> float:
            nonlocal was_ready
            document = await self._cluster.get(EVENTING, kind, NAMESPACE, name)
            assert document is not None
            async with self._making if not was_ready else contextlib.nullcontext():
                now = await reconcile(document)
            if now is None or summary(now["conditions"])["status"] != "True":
                return RETRY
            # They were all made at one time; later they are spread evenly.
            pause = random.uniform(0.8, 1.2) if was_ready else random.random()
            was_ready = True
            return RESYNC * pause

        keeping = operator.wakes.keep((kind, NAMESPACE, name), look)
        self._keeping.append(asyncio.create_task(keeping))

    async def _watch(self, api_version: str, kind: str) -> None:
        async for event in self._cluster.watch(api_version, kind):
            self._hear(event.document)

    def _hear(self, document: Document) -> None:
        match document["apiVersion"], document["kind"]:
            case _, "Broker":
                self._operator.heard_of_broker(document, gone=False)
            case _, "Trigger":
                self._operator.heard_of_trigger(document, gone=False)
            case str(api_version), "Service" if api_version == SERVING:
                self._operator.heard_of_service(document)


async def _answers(url: str) -> None:
    """A receiver that does, where there is none."""


def _is_idle(trigger: Document) -> bool:
    annotations = trigger.get("status", {}).get("annotations") or {}
    return is_ready(trigger) and annotations.get(LAG) == "0"


@contextlib.asynccontextmanager
async def _dispatcher() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A dispatcher whose drains end at once: its address, and what is set by the first."""
    asked = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        asked.set()
        return web.Response(text=DrainProgress(ended=Ended.IDLE).model_dump_json())

    app = web.Application()
    app.router.add_post(drain.PATH, answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", asked
    finally:
        await runner.cleanup()


def say(text: str) -> None:
    print(text, flush=True)


async def measure(options: argparse.Namespace) -> None:
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
            await load.reconcile()
            await load.take_over()
            await load.one_event()
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
    asyncio.run(measure(parser.parse_args()))
    os._exit(0)  # librdkafka's clients may wait for ever for a Kafka that is gone
