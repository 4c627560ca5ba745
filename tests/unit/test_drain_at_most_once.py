"""A drain that delivers at most once, on a log in memory and fake time (BUS-5, BUS-S7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from pydantic import ValidationError
from support.drains import DEAD, FAR, TOPIC, Answer, Request, World, accept, id_of, response, until
from support.logs import Owner
from support.memory.log import MemoryReader

from knafka.core.contract import Delivery, SharedEgress
from knafka.core.drain import DrainProgress, Ended
from knafka.core.errors import LogError
from knafka.core.filters.declared_filters import Exact
from knafka.dispatcher.engine.at_most_once import CONFIRM_TIMEOUT, ConfirmedReader
from knafka.ports.log import Commits, OffsetAndMetadata, Record
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime

RETRIES = Delivery(retry=3, backoff_delay=10)


def at_most_once(answer: Answer = accept, **more: object) -> World:
    return World(answer, at_most_once=True, **more)  # type: ignore[arg-type]


async def hang(request: Request) -> Response:
    await asyncio.sleep(FAR)
    return response()


@pytest.mark.conformance("BUS-S7")
async def test_an_event_is_begun_behind_its_commit_and_delivered() -> None:
    behind: list[int] = []

    async def answer(request: Request) -> Response:
        behind.append(world.committed[0])
        return response()

    world = at_most_once(answer, max_in_flight=1)
    for number in range(5):
        world.send(str(number), "k")
    progress = await world.run()
    assert all(committed > int(id) for id, committed in zip(world.subscriber.ids, behind))  # noqa: A001, B905
    assert world.subscriber.ids == ["0", "1", "2", "3", "4"]
    assert (progress.delivered, progress.lost, progress.ended) == (5, 0, Ended.IDLE)
    assert world.committed == {0: 5}


@pytest.mark.conformance("BUS-5")
async def test_what_a_killed_process_had_begun_is_never_begun_again() -> None:
    world = at_most_once(hang)
    world.send("1")
    running = world.begin(world.drain(), idle=FAR)
    await until(lambda: world.subscriber.under_way)
    await world.kill(running)
    world.subscriber.answer = accept
    world.send("2")
    assert (await world.run()).ended is Ended.IDLE
    assert world.subscriber.ids == ["1", "2"]


async def test_retries_and_dead_letters_are_as_declared() -> None:
    async def answer(request: Request) -> Response:
        return response(503)

    world = at_most_once(answer, delivery=RETRIES)
    world.log.create(DEAD)
    world.send("1")
    progress = await world.run(idle=2)
    assert world.subscriber.ids == ["1"] * 4, "the drain isn't idle while it waits for a retry"
    assert (progress.dead_lettered, progress.lost) == (1, 0)
    assert len(world.records_of(DEAD)) == 1


async def test_a_filtered_out_event_and_a_transactions_marker_leave_no_lag() -> None:
    world = at_most_once(filters=(Exact(exact={"type": "wanted"}),))
    world.send("1", type="unwanted")
    world.log.transact(TOPIC, [], commit=True)
    assert (await world.run()).filtered == 1
    assert world.committed == {0: 2}


async def test_a_stop_finishes_what_is_committed_retries_included() -> None:
    answers = iter([503, 503])

    async def answer(request: Request) -> Response:
        return response(next(answers, 200))

    world = at_most_once(answer, delivery=Delivery(retry=5, backoff_delay=1))
    world.send("1", "k")
    world.send("2", "k")
    drain = world.drain()
    running = world.begin(drain, idle=FAR)
    await until(lambda: world.subscriber.posts)
    drain.stop(60)
    await asyncio.sleep(0.5)  # a read under way ends
    world.send("3", "k")
    progress = await running
    assert world.subscriber.ids == ["1", "1", "1", "2"]
    assert (progress.delivered, progress.lost, progress.ended) == (2, 0, Ended.STOPPED)
    assert world.committed == {0: 2}, "the third is for the next process"


async def test_what_a_stop_cannot_finish_within_its_bound_is_lost_and_counted() -> None:
    world = at_most_once(hang)
    for number in range(3):
        world.send(str(number), "k")
    drain = world.drain()
    running = world.begin(drain, idle=FAR)
    await until(lambda: world.subscriber.posts)
    drain.stop(5)
    progress = await running
    assert (progress.delivered, progress.lost) == (0, 3)
    world.subscriber.answer = accept
    await world.run()
    assert world.subscriber.ids == ["0"]


async def test_a_partition_that_goes_takes_what_is_finished_within_the_bound() -> None:
    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.5)
        return response()

    world = at_most_once(answer, partitions=2)
    for number in range(3):
        world.store_at(1, str(number))
    first, second = world.drain(), world.drain()
    running = world.begin(first, idle=FAR)
    await until(lambda: world.subscriber.posts)
    other = world.begin(second, idle=FAR)
    await until(lambda: second.owns_partitions)
    assert world.subscriber.answered == ["0", "1", "2"]
    first.stop()
    second.stop()
    counts = [await running, await other]
    assert [each.lost for each in counts] == [0, 0]
    assert world.subscriber.ids == ["0", "1", "2"]


class Refusing(MemoryReader):
    """Its commits fail."""

    taken = False
    """Whether they are taken all the same."""
    times = 1_000_000

    async def commit_now(self, commits: Commits) -> None:
        if self.times > 0:
            type(self).times -= 1
            if self.taken:
                await super().commit_now(commits)
            raise LogError("the group moves")
        await super().commit_now(commits)


async def failing(times: int, *, taken: bool) -> tuple[World, DrainProgress]:
    reader = type("Failing", (Refusing,), {"times": times, "taken": taken})
    world = at_most_once()
    world.reads_with(reader)
    world.send("1")
    progress = await world.run()
    world.reads_with(MemoryReader)
    return world, progress


async def test_a_commit_that_fails_for_a_moment_is_made_again_before_the_event_is_begun() -> None:
    world, progress = await failing(3, taken=False)
    assert (progress.delivered, progress.ended) == (1, Ended.IDLE)
    assert world.subscriber.ids == ["1"]


async def test_an_event_whose_commit_stays_unconfirmed_is_not_begun_and_the_drain_fails() -> None:
    world, progress = await failing(1_000_000, taken=False)
    assert progress.ended is Ended.FAILED
    assert world.subscriber.ids == []
    assert asyncio.get_running_loop().time() < CONFIRM_TIMEOUT + 2
    await world.run()
    assert world.subscriber.ids == ["1"]


async def test_an_event_whose_commit_was_taken_unknown_to_us_is_never_begun() -> None:
    world, progress = await failing(1_000_000, taken=True)
    assert progress.ended is Ended.FAILED
    await world.run()
    assert world.subscriber.ids == []


async def test_a_record_that_is_read_again_is_given_once() -> None:
    class Repeating(MemoryReader):
        async def read(self, limit: int, timeout: float) -> Sequence[Record]:
            records = await super().read(limit, timeout)
            return [*records, *records]

    world = at_most_once()
    world.reads_with(Repeating)
    world.send("1")
    await world.run()
    assert world.subscriber.ids == ["1"]


async def test_what_was_settled_at_least_once_is_not_begun_again_after_the_change() -> None:
    async def answer(request: Request) -> Response:
        if id_of(request) == "0":
            await asyncio.sleep(FAR)
        return response()

    world = World(answer)
    for number in range(20):
        world.send(str(number), str(number))
    drain = world.drain()
    running = world.begin(drain, idle=FAR)
    await until(lambda: len(world.subscriber.answered) == 19)
    await asyncio.sleep(2)
    await world.kill(running)
    world.egress = world.egress.model_copy(update={"at_most_once": True, "max_in_flight": 1})
    world.subscriber.answer = hang
    running = world.begin(world.drain(), idle=FAR)
    await until(lambda: world.subscriber.ids.count("0") == 2)
    await world.kill(running)
    world.subscriber.answer = accept
    await world.run()
    assert sorted(world.subscriber.ids) == sorted(["0", *map(str, range(20))])


async def test_a_kill_loses_about_as_many_as_may_be_under_way() -> None:
    world = at_most_once(hang, max_in_flight=10)
    for number in range(1000):
        world.send(str(number), "k")
    running = world.begin(world.drain(), idle=FAR)
    await asyncio.sleep(30)
    await world.kill(running)
    assert world.committed[0] <= 20


async def test_a_shared_dispatchers_contract_has_no_such_egress() -> None:
    egress = at_most_once().egress
    with pytest.raises(ValidationError, match="at least once"):
        SharedEgress(shard="s", egress=egress)


def test_a_line_of_progress_names_lost_events_only_if_there_are_any() -> None:
    """An operator that is older than its dispatchers knows no such field."""
    assert "lost" not in DrainProgress().model_dump_json(by_alias=True, exclude_none=True)
    line = DrainProgress(lost=2).model_dump_json(by_alias=True, exclude_none=True)
    assert DrainProgress.model_validate_json(line).lost == 2


async def test_a_record_that_waits_for_its_commit_goes_with_its_partition() -> None:
    """Another process has begun it by the time that the partition is back."""
    world, owner = at_most_once(), Owner()
    world.send("1")
    world.reads_with(type("Once", (Refusing,), {"times": 1}))
    reader = ConfirmedReader(world.open_reader, owner, 0, 100)
    assert (list(await reader.read(10, 1.0)), reader.uncommitted) == ([], 1)
    reader.on_lost([0])
    reader.on_assigned({0: OffsetAndMetadata(1)})
    assert list(await reader.read(10, 1.0)) == []
    assert (owner.losses, reader.uncommitted) == ([[0]], 0)


async def test_a_commit_has_its_whole_time_after_an_earlier_one_went_with_its_partition() -> None:
    """Else Kafka might take it after the drain has given it up, and its event would be lost."""

    class Slow(Refusing):
        times = 1

        async def commit_now(self, commits: Commits) -> None:
            await super().commit_now(commits)
            await asyncio.sleep(1)

    world = at_most_once()
    world.send("1")
    world.reads_with(Slow)
    reader = ConfirmedReader(world.open_reader, Owner(), 0, 100)
    assert list(await reader.read(10, 1.0)) == []
    reader.on_lost([0])
    assert list(await reader.read(10, 1.0)) == []
    await asyncio.sleep(CONFIRM_TIMEOUT + 1)
    reader.on_assigned({0: OffsetAndMetadata(1)})
    world.send("2")
    assert [record.offset() for record in await reader.read(10, 1.0)] == [1]


async def test_an_end_that_is_reached_while_a_commit_is_repeated_ends_the_drain_soon() -> None:
    """Kafka reports an end once; without it the drain would wait for a first read of 10 s."""
    world = at_most_once(partitions=2)
    world.send("1")
    world.reads_with(type("Once", (Refusing,), {"times": 1}))
    began = asyncio.get_running_loop().time()
    assert (await world.run(idle=1)).ended is Ended.IDLE
    assert asyncio.get_running_loop().time() - began < 5
    assert world.subscriber.ids == ["1"]
