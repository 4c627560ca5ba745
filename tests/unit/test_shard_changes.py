"""A shared dispatcher whose contract changes while it drains; on fake time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from support.dispatchers import SERVICE, Exchange
from support.drains import (
    FAR,
    Request,
    ScriptedSubscriber,
    World,
    accept,
    keep_busy,
    response,
    until,
)
from support.memory.log import MemoryReader
from support.shards import Shard, lines_of

from knafka.core.contract import Egress
from knafka.core.documents import dump
from knafka.core.drain import Ended, ShardProgress
from knafka.core.errors import LogError
from knafka.dispatcher.connecting import MIN_EGRESS_BYTES, SHARD_BYTES
from knafka.draining.lease import RENEWAL_PATIENCE
from knafka.ports.log import Assignment, LogReader, OffsetAndMetadata
from knafka.ports.subscriber import Response
from knafka.settings import DRAIN_AT_START, SERVICE_URL

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


async def slow(request: Request) -> Response:
    await asyncio.sleep(1.5)
    return response()


async def hang(request: Request) -> Response:
    await asyncio.sleep(FAR)
    return response()


def wanting(egress: Egress, kind: str) -> Egress:
    return Egress.model_validate({**dump(egress), "filters": [{"exact": {"type": kind}}]})


class Asked(Shard):
    """One that is asked to drain for as long as the test runs."""

    exchange: Exchange

    async def up(self) -> None:
        """On the test's clock, which isn't the fixture's."""
        await self.start()
        await self.ask_for_drain()

    async def ask_for_drain(self) -> None:
        self.exchange = self.drain(idle="PT1H", budget="PT10M")
        await until(lambda: self.exchange.status)

    @property
    def last(self) -> ShardProgress:
        return lines_of(self.exchange)[-1]

    async def told(self, position: int, within: float = 10.0) -> float:
        """When it has said that it delivers by it."""
        await until(lambda: self.last.contract >= position, within=within)
        return self.exchange.times[-1]


@pytest.fixture
async def shard() -> AsyncIterator[Asked]:
    made = Asked(World(partitions=2))
    made.add(0)
    made.add(1)
    yield made
    await made.dispatcher.stop()


async def test_one_that_is_added_changed_and_removed_leaves_its_neighbours_alone(
    shard: Asked,
) -> None:
    await shard.up()
    busy = asyncio.create_task(keep_busy(shard.world))
    await asyncio.sleep(5)
    third = shard.add(2)
    await shard.told(shard.contract.write("shard", third))
    await until(lambda: len(shard.subscribers[2].ids) >= 5)
    await shard.told(shard.contract.write("shard", wanting(third, "rare")))
    before = list(shard.subscribers[2].ids)
    shard.world.send("rare", type="rare")
    await until(lambda: shard.subscribers[2].ids == [*before, "rare"], within=3)
    await shard.told(shard.contract.remove(third))
    shard.world.send("later", type="rare")
    await asyncio.sleep(10)
    busy.cancel()
    assert "later" not in shard.subscribers[2].ids
    for neighbour in shard.subscribers[:2]:
        plain = [each for each in neighbour.ids if each.isdigit()]
        assert plain == [str(number) for number in range(len(plain))], "each once, in order"
        assert max(b - a for a, b in pairwise(neighbour.times)) < 1.3
    assert set(shard.last.egresses) <= {"group-0", "group-1"}


async def test_a_position_is_told_when_the_old_drain_has_ended_and_at_once_then(
    shard: Asked,
) -> None:
    await shard.up()
    shard.subscribers[0].answer = slow
    shard.world.send("1")
    await until(lambda: shard.subscribers[0].posts)
    began = now()
    told = await shard.told(shard.contract.write("shard", wanting(shard.egresses[0], "rare")))
    assert shard.subscribers[0].answered == ["1"]
    assert 1.4 <= told - began < 2.9
    assert shard.subscribers[0].ids == ["1"], "it was committed before"
    began = now()
    assert await shard.told(shard.contract.write("shard", shard.add(2))) - began < 0.1


async def test_an_attempt_that_hangs_holds_a_change_up_for_a_bound_only(shard: Asked) -> None:
    await shard.up()
    shard.subscribers[0].answer = hang
    shard.world.send("1")
    await until(lambda: shard.subscribers[0].posts)
    await shard.told(shard.contract.write("shard", wanting(shard.egresses[0], "t")), within=5)
    await until(lambda: shard.subscribers[0].ids == ["1", "1"], within=3)


async def test_the_last_of_many_changes_counts(shard: Asked) -> None:
    await shard.up()
    for kind in "abcdefgh":
        end = shard.contract.write("shard", wanting(shard.egresses[0], kind))
        await asyncio.sleep(0.1)
    await shard.told(end)
    for kind in "abcdefgh":
        shard.world.send(kind, type=kind)
    await until(lambda: shard.subscribers[0].ids == ["h"], within=5)
    assert len(shard.subscribers[1].ids) == 8


async def test_the_counts_of_a_request_go_on_when_one_is_changed(shard: Asked) -> None:
    await shard.up()
    shard.world.send("1", type="rare")
    await until(lambda: shard.subscribers[0].ids)
    await shard.told(shard.contract.write("shard", wanting(shard.egresses[0], "rare")))
    shard.world.send("2", type="rare")
    await until(lambda: shard.subscribers[0].ids == ["1", "2"], within=5)
    await asyncio.sleep(2)
    delivered = [
        line.egresses["group-0"].delivered
        for line in lines_of(shard.exchange)
        if "group-0" in line.egresses
    ]
    assert delivered == sorted(delivered)
    assert delivered[-1] == 2


async def test_one_that_is_removed_and_added_again_goes_on_where_it_was(shard: Asked) -> None:
    await shard.up()
    shard.world.send("1")
    await until(lambda: shard.subscribers[0].ids)
    shard.contract.remove(shard.egresses[0])
    await asyncio.sleep(0.01)
    await shard.told(shard.contract.write("shard", shard.egresses[0]))
    shard.world.send("2")
    await until(lambda: shard.subscribers[0].ids == ["1", "2"], within=5)
    await until(lambda: shard.committed(0) == 2)
    assert all(each.delivered >= 0 for line in lines_of(shard.exchange)
               for each in line.egresses.values())  # fmt: skip


async def test_a_record_that_says_the_same_again_stops_nothing(shard: Asked) -> None:
    await shard.up()
    await asyncio.sleep(5)
    opened = len(shard.among)
    await shard.told(shard.contract.write("shard", *shard.egresses))
    assert len(shard.among) == opened


async def test_what_changes_while_nothing_drains_counts_for_the_next_drain(shard: Asked) -> None:
    await shard.up()
    shard.exchange.tell(b'{"stop":true}\n')
    await shard.exchange.task
    end = shard.contract.write("shard", wanting(shard.egresses[0], "rare"))
    await asyncio.sleep(2)
    shard.world.send("1")
    await shard.ask_for_drain()
    assert lines_of(shard.exchange)[0].contract == end
    await until(lambda: shard.subscribers[1].ids == ["1"], within=5)
    assert shard.subscribers[0].ids == []


async def test_one_that_fails_begins_again_by_itself_and_says_why(shard: Asked) -> None:
    await shard.up()
    other = MemoryReader(shard.world.log, "group-2", "events", Ignored())
    await other.read(1, 0.1)
    await shard.told(shard.contract.write("shard", shard.add(2)))
    await until(lambda: shard.last.egresses.get("group-2"))
    await until(lambda: "has members" in (shard.last.egresses["group-2"].error or "")
                if "group-2" in shard.last.egresses else False)  # fmt: skip
    shard.world.send("1")
    await until(lambda: all(shard.subscribers[number].ids for number in (0, 1)), within=3)
    await asyncio.sleep(30)
    await other.close(1)
    await until(lambda: shard.subscribers[2].ids == ["1"], within=20)
    await until(lambda: any(
        each.egresses["group-2"].error is None
        for each in lines_of(shard.exchange)[-3:] if "group-2" in each.egresses
    ))  # fmt: skip


async def test_one_that_always_fails_keeps_the_others_from_ending_for_a_bound_only() -> None:
    made = Broken(World())
    made.add(0)
    made.add(1)
    await made.start()
    exchange = made.drain(idle="PT5S")
    await exchange.task
    last = lines_of(exchange)[-1]
    assert last.ended is Ended.IDLE
    assert "authorization" in (last.egresses["group-1"].error or "")
    assert now() < 70
    await made.dispatcher.stop()


class Ignored:
    def on_assigned(self, partitions: Any) -> None: ...

    async def on_revoked(self, partitions: Any) -> Any:
        return {}

    def on_lost(self, partitions: Any) -> None: ...


class Broken(Shard):
    """The second Egress can't be read."""

    def _opener(self, egress: Egress) -> Any:
        def open_reader(assignment: Assignment) -> LogReader:
            if egress.group == "group-1":
                raise LogError("Broker: Group authorization failed")
            return self.shared.open_reader(egress.group, assignment)

        return open_reader


async def test_a_record_that_can_not_be_used_is_told_with_its_position(shard: Asked) -> None:
    await shard.up()
    await shard.told(shard.contract.put(b"group-0", b'{"shard": "shard", "new": 1}'))
    await until(lambda: "group-0" in shard.last.egresses)
    assert "can't be used" in (shard.last.egresses["group-0"].error or "")
    shard.world.send("1")
    await until(lambda: shard.subscribers[1].ids == ["1"], within=3)
    assert shard.subscribers[0].ids == []


async def test_a_dispatcher_is_ready_and_drains_once_it_has_read_its_contract() -> None:
    made = Unread(World())
    made.add(0)
    made.contract.write("shard", *made.egresses)
    starting = asyncio.create_task(made.begin(**{DRAIN_AT_START: "true"}))
    await asyncio.sleep(20)
    assert (await made.ask("GET", "/health/readiness")).status == 503
    assert (await made.ask("GET", "/health/liveness")).status == 200
    asked = await made.ask("POST", "/drain", b'{"shard": "shard"}')
    assert asked.status == 503
    assert b"Topic authorization failed" in asked.body
    made.problem = ""
    await starting
    assert (await made.ask("GET", "/health/readiness")).status == 200
    made.world.send("1")
    await until(lambda: made.subscribers[0].ids == ["1"], within=20)
    await made.dispatcher.stop()


class Unread(Shard):
    problem = "Broker: Topic authorization failed"

    def open_contract(self) -> Any:
        if self.problem:
            raise LogError(self.problem)
        return super().open_contract()


async def test_another_process_reads_the_same_contract(shard: Asked) -> None:
    await shard.up()
    shard.contract.remove(shard.egresses[1])
    await shard.dispatcher.stop()
    shard.start_again()
    await shard.begin()
    await shard.ask_for_drain()
    shard.world.send("1")
    await until(lambda: shard.subscribers[0].ids == ["1"], within=5)
    assert set(lines_of(shard.exchange)[0].egresses) == {"group-0"}


async def test_a_shard_that_nobody_asks_any_more_asks_its_own_service() -> None:
    made = Renewing(World())
    made.add(0)
    await made.start(**{SERVICE_URL: SERVICE})
    busy = asyncio.create_task(keep_busy(made.world))
    exchange = made.drain(idle="PT10S")
    await asyncio.sleep(20)
    exchange.hang_up()
    await exchange.task
    left = now()
    await asyncio.sleep(60)
    assert made.asked[0] - left < RENEWAL_PATIENCE + 0.1
    assert len(made.asked) >= 3
    made.name = "another"
    count = len(made.subscribers[0].ids)
    await asyncio.sleep(60)
    busy.cancel()
    assert len(made.subscribers[0].ids) < count + 30, "412: the Service has another shard"
    await made.dispatcher.stop()


class Renewing(Shard):
    """The only pod of its Service, whose shard is `name`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.asked: list[float] = []
        made = self

        class OwnService(ScriptedSubscriber):
            async def post(self, target: Any, head: Any, body: bytes, timeout: float) -> Response:
                made.asked.append(now())
                assert b'"shard": "shard"' in body
                if made.name != "shard":
                    return response(412)
                exchange = Exchange(made.dispatcher, "POST", "/drain", body)
                await exchange.task
                return Response(exchange.status, [], exchange.body)

        self.subscriber = OwnService(accept)


async def test_shares_follow_the_number_of_egresses(shard: Asked) -> None:
    await shard.up()
    among = shard.among[0]
    assert among() == 2
    await shard.told(shard.contract.write("shard", *(shard.add(n) for n in range(2, 10))))
    assert among() == 10
    await shard.told(shard.contract.remove(*shard.egresses[1:]))
    assert among() == 1
    assert SHARD_BYTES > MIN_EGRESS_BYTES


async def test_connections_are_closed_with_the_drain_that_used_them(shard: Asked) -> None:
    await shard.up()
    closed: list[int] = []
    for number in (0, 1):
        shard.subscribers[number].close = lambda number=number: _note(closed, number)  # type: ignore[method-assign, misc]
    await shard.told(shard.contract.remove(shard.egresses[0]))
    assert closed == [0]


async def _note(closed: list[int], number: int) -> None:
    closed.append(number)


async def test_a_drain_commits_every_partition_though_nothing_has_changed(shard: Asked) -> None:
    """Kafka forgets what a group without members has committed by the age of its last commit."""
    await shard.up()
    shard.world.send("1")
    await until(lambda: shard.committed(0) == shard.committed(1) == 1)
    shard.exchange.tell(b'{"stop":true}\n')
    await shard.exchange.task
    before = {number: dict(shard.world.log.group(f"group-{number}").committed) for number in (0, 1)}
    for number in (0, 1):
        offsets = shard.world.log.group(f"group-{number}")
        offsets.committed = Stored(offsets.committed)
    await shard.ask_for_drain()
    await asyncio.sleep(10)
    for number in (0, 1):
        committed = shard.world.log.group(f"group-{number}").committed
        assert isinstance(committed, Stored)
        assert committed == before[number]
        assert sorted(each for _, each in committed.stored) == [0, 1], "each once"


class Stored(dict[tuple[str, int], OffsetAndMetadata]):
    """Offsets that note what is committed."""

    def __init__(self, *committed: Any) -> None:
        super().__init__(*committed)
        self.stored: list[tuple[str, int]] = []

    def __setitem__(self, key: tuple[str, int], value: OffsetAndMetadata) -> None:
        self.stored.append(key)
        super().__setitem__(key, value)
