"""A dispatcher with many Egresses: which one is drained, the progress and metrics of each, and
that no subscriber slows another Egress down. On fake time."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.dispatchers import Exchange
from support.drains import (
    DEAD,
    FAR,
    SUBSCRIBER,
    TOPIC,
    Answer,
    Request,
    ScriptedSubscriber,
    World,
    accept,
    always,
    response,
    until,
)
from support.logs import shared_memory

from knafka.clients.memory_admin import MemoryAdmin
from knafka.clients.memory_log import MemoryWriter
from knafka.core.contract import Delivery, Egress, Shard
from knafka.core.documents import digest, dump
from knafka.core.drain import Ended
from knafka.dispatcher.connecting import Clients
from knafka.dispatcher.function import Dispatcher
from knafka.dispatcher.shared.record import SharedParser
from knafka.ports.log import Assignment, LogReader
from knafka.ports.subscriber import Response
from knafka.settings import DRAIN_AT_START, SHARD

pytestmark = pytest.mark.looptime


async def never(request: Request) -> Response:
    await asyncio.sleep(FAR)
    return response()


class Running:
    """A started dispatcher with an Egress for each answer; `ShardClients`."""

    def __init__(self, *answers: Answer, world: World | None = None, **egress: Any) -> None:
        self.world = world or World(**egress)
        self.shared = shared_memory(self.world.log, "shard", TOPIC)
        self.writer = MemoryWriter(self.world.log)
        self.egresses = [
            self.world.egress.model_copy(
                update={"trigger": f"trigger-{number}", "group": f"group-{number}"}
            )
            for number in range(len(answers))
        ]
        self.subscribers = [ScriptedSubscriber(each) for each in answers]
        self.dispatcher = Dispatcher(connect_shard=lambda shard: self)

    def of(self, egress: Egress) -> Clients:
        subscriber = self.subscribers[self.egresses.index(egress)]
        topics = MemoryAdmin(self.world.log)
        return Clients(self._opener(egress), self.writer, subscriber, topics, SharedParser())

    def _opener(self, egress: Egress) -> Any:
        def open_reader(assignment: Assignment) -> LogReader:
            return self.shared.reader(egress.group, assignment)

        return open_reader

    async def close(self) -> None:
        await self.shared.close()

    async def start(self, **environment: str) -> None:
        shard = Shard(group="shard", egresses=tuple(self.egresses))
        await self.dispatcher.start({SHARD: json.dumps(dump(shard))} | environment)

    def drain(self, number: int, **request: str) -> Exchange:
        body = json.dumps({"egress": digest(self.egresses[number]), **request}).encode()
        return Exchange(self.dispatcher, "POST", "/drain", body + b"\n")

    async def ask(self, method: str, path: str, body: bytes = b"") -> Exchange:
        exchange = Exchange(self.dispatcher, method, path, body)
        await exchange.task
        return exchange

    def committed(self, number: int) -> int:
        committed = self.world.log.group(f"group-{number}").committed
        return sum(each.offset for each in committed.values())


@pytest.fixture
async def three() -> AsyncIterator[Running]:
    running = Running(accept, accept, accept)
    await running.start()
    yield running
    await running.dispatcher.stop()


async def test_a_drain_is_of_the_egress_that_its_request_names(three: Running) -> None:
    three.world.send("1")
    exchange = three.drain(1, idle="PT5S")
    await exchange.task
    last = exchange.lines[-1]
    assert (exchange.status, last.ended, last.delivered) == (200, Ended.IDLE, 1)
    assert [each.ids for each in three.subscribers] == [[], ["1"], []]
    assert [three.committed(number) for number in range(3)] == [0, 1, 0]


async def test_all_may_drain_at_once_and_each_only_once(three: Running) -> None:
    exchanges = [three.drain(number, idle="PT5S") for number in range(3)]
    await until(lambda: all(each.status for each in exchanges))
    assert [each.status for each in exchanges] == [200] * 3
    again = three.drain(2)
    await again.task
    assert again.status == 409
    three.world.send("1")
    for each in exchanges:
        await each.task
        assert each.lines[-1].delivered == 1


async def test_a_request_that_names_no_egress_or_an_unknown_one_is_refused(three: Running) -> None:
    assert (await three.ask("POST", "/drain", b"{}")).status == 400
    assert (await three.ask("POST", "/drain", b'{"egress": "another"}')).status == 412


async def test_metrics_are_told_of_each_trigger_under_one_name(three: Running) -> None:
    three.world.send("1")
    await three.drain(1, idle="PT1S").task
    text = (await three.ask("GET", "/metrics")).body.decode()
    delivered = 'knafka_dispatcher_events_total{broker="broker",namespace="ns",outcome="delivered"'
    found = {
        line.partition("trigger-")[2][0]: line.rpartition(" ")[2]
        for line in text.splitlines()
        if 'outcome="delivered"' in line
    }
    assert found == {"0": "0", "1": "1", "2": "0"}, delivered
    assert text.count("# TYPE knafka_dispatcher_events_total ") == 1


async def test_one_that_hangs_and_one_that_fails_keep_no_other_from_its_events() -> None:
    delivery = Delivery(retry=1000, backoff_delay=1.0)
    running = Running(accept, never, always(response(500)), accept, delivery=delivery)
    await running.start(**{DRAIN_AT_START: "true"})
    loop = asyncio.get_running_loop()
    for number in range(6_500):
        running.world.send(str(number), f"key-{number % 100}")
    began = loop.time()
    await until(lambda: all(len(running.subscribers[each].ids) == 6_500 for each in (0, 3)))
    took = loop.time() - began
    alone = Running(accept, delivery=delivery)
    await alone.start(**{DRAIN_AT_START: "true"})
    for number in range(6_500):
        alone.world.send(str(number), f"key-{number % 100}")
    began = loop.time()
    await until(lambda: len(alone.subscribers[0].ids) == 6_500)
    assert took <= loop.time() - began + 1.0, "no more than a wait for a full buffer or two"
    for subscriber in (running.subscribers[0], running.subscribers[3]):
        by_key: dict[int, list[int]] = defaultdict(list)
        for each in map(int, subscriber.ids):
            by_key[each % 100].append(each)
        assert all(each == sorted(each) for each in by_key.values())
    await until(lambda: running.committed(0) == running.committed(3) == 6_500)
    assert running.committed(1) == 0
    await running.dispatcher.stop()
    await alone.dispatcher.stop()


async def test_a_record_that_is_no_event_is_a_dead_letter_of_each(three: Running) -> None:
    """CE-K8."""
    three.world.log.store(TOPIC, b"k", b"data", [("ce_specversion", b"1.0")])
    exchanges = [three.drain(number, idle="PT2S") for number in range(3)]
    for each in exchanges:
        await each.task
        assert each.lines[-1].dead_lettered == 1
    assert len(three.world.records_of(DEAD)) == 3
    assert [three.committed(number) for number in range(3)] == [1, 1, 1]


async def test_each_filters_and_formats_for_itself() -> None:
    world = World()
    running = Running(accept, accept, accept, world=world)
    exact = {"filters": [{"exact": {"type": "wanted"}}]}
    documents = [dump(each) for each in running.egresses]
    documents[1] |= exact
    documents[2] |= {"delivery": {"format": "json"}}
    running.egresses = [Egress.model_validate(each) for each in documents]
    await running.start(**{DRAIN_AT_START: "true"})
    world.send("1", data=b"1")
    world.send("2", data=b"2", type="wanted")
    await until(lambda: [running.committed(number) for number in range(3)] == [2, 2, 2])
    assert [each.ids for each in running.subscribers[:2]] == [["1", "2"], ["2"]]
    plain, _ = running.subscribers[0].posts
    structured, _ = running.subscribers[2].posts
    assert (plain.request.target.url, plain.request.body) == (SUBSCRIBER, b"1")
    assert structured.request.header(b"content-type") == b"application/cloudevents+json"
    assert json.loads(structured.request.body)["id"] == "1"
    await running.dispatcher.stop()


async def test_the_end_of_the_process_commits_what_each_has_delivered() -> None:
    running = Running(*[accept] * 20)
    await running.start(**{DRAIN_AT_START: "true"})
    for number in range(50):
        running.world.send(str(number))
    await until(lambda: all(len(each.ids) == 50 for each in running.subscribers))
    await running.dispatcher.stop()
    assert [running.committed(number) for number in range(20)] == [50] * 20
