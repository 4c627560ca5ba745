"""A dispatcher with many Egresses: what a request for them is told, the metrics of each, and that
no subscriber slows another Egress down. On fake time."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest
from support.dispatchers import started
from support.drains import (
    BROKER_DEAD,
    DEAD,
    FAR,
    SUBSCRIBER,
    TOPIC,
    Answer,
    Request,
    World,
    accept,
    always,
    keep_busy,
    response,
    until,
)
from support.memory.shared import MemoryPositionedReader
from support.shards import Shard, lines_of

from knafka.core.contract import Delivery, Egress
from knafka.core.documents import dump
from knafka.core.drain import STOP, Ended
from knafka.core.errors import LogError
from knafka.dispatcher.engine.intake import JOIN_PATIENCE
from knafka.dispatcher.shared.drain import IDLE_CHECK_INTERVAL
from knafka.ports.log import Record
from knafka.ports.subscriber import Response
from knafka.settings import DRAIN_AT_START, SHARD

pytestmark = pytest.mark.looptime


async def never(request: Request) -> Response:
    await asyncio.sleep(FAR)
    return response()


class Running(Shard):
    """A started dispatcher with an Egress for each answer."""

    def __init__(self, *answers: Answer, world: World | None = None, **egress: Any) -> None:
        super().__init__(world or World(**egress))
        for number, each in enumerate(answers):
            self.add(number, each)


@pytest.fixture
async def three() -> AsyncIterator[Running]:
    running = Running(accept, accept, accept, shares_topic=True)
    await running.start()
    yield running
    await running.dispatcher.stop()


async def test_one_request_drains_all_and_its_last_line_tells_of_each(three: Running) -> None:
    three.world.send("1")
    exchange = three.drain(idle="PT5S")
    await exchange.task
    last = lines_of(exchange)[-1]
    assert (exchange.status, last.ended, last.contract) == (200, Ended.IDLE, 3)
    assert {group: each.delivered for group, each in last.egresses.items()} == {
        f"group-{number}": 1 for number in range(3)
    }
    assert [three.committed(number) for number in range(3)] == [1, 1, 1]


async def test_a_request_that_comes_before_the_contract_is_read_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = MemoryPositionedReader.read

    async def read_late(
        self: MemoryPositionedReader, limit: int, timeout: float
    ) -> Sequence[Record]:
        await asyncio.sleep(2.0)
        return await read(self, limit, timeout)

    monkeypatch.setattr(MemoryPositionedReader, "read", read_late)
    running = Running(accept)
    running.contract.write(running.name, *running.egresses)
    await running.dispatcher.start({SHARD: json.dumps(dump(running.document))})
    exchange = running.drain(idle="PT5S")
    await exchange.task
    assert exchange.status == 200
    await running.dispatcher.stop()


async def test_a_line_tells_of_those_that_have_changed(three: Running) -> None:
    exchange = three.drain(idle="PT1H", budget="PT10S")
    await asyncio.sleep(5)
    documents = [dump(each) for each in three.egresses]
    documents[0] |= {"filters": [{"exact": {"type": "wanted"}}]}
    three.contract.write("shard", *(Egress.model_validate(each) for each in documents))
    await asyncio.sleep(2)
    before = len(lines_of(exchange))
    three.world.send("1")
    await exchange.task
    lines = lines_of(exchange)
    assert set(lines[0].egresses) == set(lines[-1].egresses) == {"group-0", "group-1", "group-2"}
    assert all(not each.egresses for each in lines[3:5]), "nothing happens"
    assert {group for each in lines[before:-1] for group in each.egresses} == {
        "group-0", "group-1", "group-2"
    }  # fmt: skip
    assert lines[-1].ended is Ended.BUDGET
    assert (lines[-1].egresses["group-0"].filtered, lines[-1].egresses["group-1"].delivered) == (
        1,
        1,
    )


async def test_a_second_request_is_refused_while_there_is_one(three: Running) -> None:
    exchange = three.drain(idle="PT5S")
    await until(lambda: exchange.status)
    again = three.drain()
    await again.task
    assert again.status == 409
    await exchange.task


@pytest.mark.parametrize(
    "request_", [{}, {"egress": "another"}, {"shard": "another"}, {"shard": "shard", "egress": "x"}]
)
async def test_a_request_for_another_dispatcher_is_refused(
    three: Running, request_: dict[str, str]
) -> None:
    assert (await three.ask("POST", "/drain", json.dumps(request_).encode())).status == 412


async def test_a_dispatcher_with_one_egress_refuses_a_request_for_a_shard() -> None:
    running = await started()
    assert (await running.answer("POST", "/drain", b'{"shard": "shard"}')).status == 412
    await running.dispatcher.stop()


async def test_a_request_counts_from_the_end_of_the_one_before(three: Running) -> None:
    three.world.send("1")
    await three.drain(idle="PT1H", budget="PT5S").task
    three.world.send("2")
    await asyncio.sleep(1)
    three.world.send("3")
    second = three.drain(idle="PT2S")
    await second.task
    assert [each.delivered for each in lines_of(second)[-1].egresses.values()] == [2, 2, 2]


async def test_a_caller_ends_all_drains_by_saying_so(three: Running) -> None:
    exchange = three.drain(idle="PT1H")
    await until(lambda: exchange.status)
    exchange.tell(STOP)
    await exchange.task
    assert lines_of(exchange)[-1].ended is Ended.STOPPED
    await until(lambda: three.world.log.groups["shard"].members == [], within=1)


async def test_none_ends_for_being_idle_while_another_one_has_work() -> None:
    running = Running(accept, accept)
    await running.start()
    documents = [dump(each) for each in running.egresses]
    documents[0] |= {"filters": [{"exact": {"type": "rare"}}]}
    running.contract.write("shard", Egress.model_validate(documents[0]))
    busy = asyncio.create_task(keep_busy(running.world))
    exchange = running.drain(idle="PT5S")
    await asyncio.sleep(60)
    assert not exchange.task.done()
    running.world.send("rare", type="rare")
    await until(lambda: running.subscribers[0].ids == ["rare"], within=3)
    busy.cancel()
    await asyncio.wait_for(exchange.task, 8)
    assert lines_of(exchange)[-1].ended is Ended.IDLE
    await running.dispatcher.stop()


async def test_the_cooldown_begins_when_the_last_event_of_all_is_settled() -> None:
    """Also if it is another one's than that which was asked how long it has been idle."""

    async def answer_after(seconds: float, request: Request) -> Response:
        await asyncio.sleep(seconds)
        return response()

    running = Running(partial(answer_after, 8.0), partial(answer_after, 11.0))
    await running.start()
    running.world.send("1")
    exchange = running.drain(idle="PT5S")
    await until(lambda: running.subscribers[1].answered, within=15)
    await asyncio.sleep(4.5)
    assert not exchange.task.done()
    await asyncio.wait_for(exchange.task, 0.5 + 2 * IDLE_CHECK_INTERVAL)
    await running.dispatcher.stop()


async def test_one_that_waited_for_its_partitions_ends_when_all_have_been_idle() -> None:
    """The patience that drains have before they own partitions ends as they own some: a shard slept
    for all of it, 50 s, whatever its cooldown."""
    running = Running(accept, accept)
    running.join_after(3.0)
    await running.start()
    running.world.send("1")
    exchange = running.drain(idle="PT2S")
    await asyncio.wait_for(exchange.task, 3.0 + 2.0 + 2 * IDLE_CHECK_INTERVAL)
    last = lines_of(exchange)[-1]
    assert last.ended is Ended.IDLE
    assert [each.delivered for each in last.egresses.values()] == [1, 1]
    await running.dispatcher.stop()


async def test_one_that_waits_for_its_partitions_is_not_idle() -> None:
    running = Running(accept)
    running.join_after(JOIN_PATIENCE - 5.0)
    await running.start()
    running.world.send("1")
    exchange = running.drain(idle="PT2S")
    await exchange.task
    assert running.subscribers[0].ids == ["1"]
    await running.dispatcher.stop()


async def test_metrics_are_told_of_each_trigger_under_one_name(three: Running) -> None:
    """KN-DP-15."""
    for number in range(3):
        three.world.send(str(number))
        await three.drain(idle="PT1S").task
    text = (await three.ask("GET", "/metrics")).body.decode()
    found = {
        line.partition("trigger-")[2][0]: line.rpartition(" ")[2].removesuffix(".0")
        for line in text.splitlines()
        if 'outcome="delivered"' in line
    }
    assert found == {"0": "3", "1": "3", "2": "3"}, "over all drains"
    assert text.count("# TYPE knafka_dispatcher_events_total ") == 1


@pytest.mark.slow
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


async def test_38_triggers_that_share_a_dispatcher_have_one_dead_letter_of_a_record() -> None:
    """Decision 0031; each of them had one, in a topic of its own."""
    running = Running(*[accept] * 38, shares_topic=True)
    await running.start()
    running.world.log.store(TOPIC, b"k", b"data", [("ce_specversion", b"1.0")])
    await running.drain(idle="PT2S").task
    assert len(running.world.records_of(BROKER_DEAD)) == 1
    assert DEAD not in running.world.log.topics
    assert [running.committed(number) for number in range(38)] == [1] * 38
    await running.dispatcher.stop()


async def test_a_record_that_is_no_event_is_settled_by_nobody_before_its_dead_letter_is_durable(
    three: Running,
) -> None:
    """KN-DLV-09: also by those that don't write it."""
    three.world.log.store(TOPIC, b"k", b"data", [("ce_specversion", b"1.0")])
    three.world.log.fail(LogError("Kafka is away"))
    exchange = three.drain(idle="PT2S")
    await asyncio.sleep(60)
    assert [three.committed(number) for number in range(3)] == [0, 0, 0]
    three.world.log.fail(None)
    await exchange.task
    assert len(three.world.records_of(BROKER_DEAD)) == 1
    assert [three.committed(number) for number in range(3)] == [1, 1, 1]


async def test_a_record_that_is_no_event_is_one_dead_letter_for_all(three: Running) -> None:
    """CE-K8: 38 Triggers had 38 of it; the next request doesn't report it again."""
    three.world.log.store(TOPIC, b"k", b"data", [("ce_specversion", b"1.0")])
    exchange = three.drain(idle="PT2S")
    await exchange.task
    lines = lines_of(exchange)[-1].egresses.values()
    assert sorted(each.dead_lettered for each in lines) == [0, 0, 1]
    assert sorted(each.filtered for each in lines) == [0, 1, 1]
    letters = [each.dead_letters for each in lines if each.dead_letters]
    assert letters == [{"undecodable-record": 1}]
    assert len(three.world.records_of(BROKER_DEAD)) == 1
    assert [three.committed(number) for number in range(3)] == [1, 1, 1]
    three.world.send("1")
    exchange = three.drain(idle="PT2S")
    await exchange.task
    lines = lines_of(exchange)[-1].egresses.values()
    assert [(each.delivered, each.dead_letters) for each in lines] == [(1, {})] * 3


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
