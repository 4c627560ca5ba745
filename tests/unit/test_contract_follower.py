"""What a shared dispatcher knows of its contract's topic; on fake time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from support.contracts import MemoryContract, record
from support.drains import World, until
from support.memory.log import MemoryLog
from support.memory.shared import MemoryPositionedReader

from knafka.contract_topic import ContractFollower
from knafka.core.contract import Egress
from knafka.core.errors import LogError
from knafka.dispatcher.shared.entries import ShardEntryParser
from knafka.ports.log import Record

pytestmark = pytest.mark.looptime

SHARD = "shard"


def egress(number: int, **changes: object) -> Egress:
    names = {"trigger": f"trigger-{number}", "group": f"group-{number}"}
    return World().egress.model_copy(update={**names, **changes})


class Following:
    def __init__(self) -> None:
        self.topic = MemoryContract(MemoryLog())
        self.fails = ""
        self.silent = False
        self.opened = 0
        self.follower = ContractFollower(ShardEntryParser(SHARD), self._open)
        self.seen: list[set[str]] = []
        self.follower.listeners.append(lambda: self.seen.append(self.groups))

    def _open(self) -> MemoryPositionedReader:
        self.opened += 1
        following = self

        class Reader(MemoryPositionedReader):
            async def read(self, limit: int, timeout: float) -> Sequence[Record]:
                if following.fails:
                    raise LogError(following.fails)
                if following.silent:
                    await asyncio.sleep(timeout)
                    return []
                return await super().read(min(limit, 2), timeout)

        return Reader(self.topic.memory, self.topic.topic)

    def begin(self) -> None:
        self.task = asyncio.create_task(self.follower.follow())

    @property
    def groups(self) -> set[str]:
        return set(self.follower.contract.entries)

    async def at(self, position: int) -> None:
        await until(lambda: self.follower.contract.position == position, within=20)


@pytest.fixture
async def following() -> AsyncIterator[Following]:
    made = Following()
    yield made
    made.task.cancel()
    await asyncio.wait({made.task})


async def test_it_knows_the_contract_at_the_topics_end_and_not_before(
    following: Following,
) -> None:
    following.topic.write(SHARD, *(egress(number) for number in range(5)))
    end = following.topic.remove(egress(0))
    following.begin()
    await following.at(end)
    assert following.seen == [{f"group-{number}" for number in range(1, 5)}]


async def test_an_empty_topic_is_a_contract_without_egresses(following: Following) -> None:
    following.begin()
    await following.follower.wait_until_ready()
    assert following.groups == set()


async def test_it_follows_what_is_added_changed_and_taken_away(following: Following) -> None:
    following.begin()
    await following.at(following.topic.write(SHARD, egress(0), egress(1)))
    kept = following.follower.contract.entries["group-1"]
    changed = egress(0, max_in_flight=7)
    await following.at(following.topic.write(SHARD, changed))
    assert following.follower.contract.entries["group-0"] == changed
    await following.at(following.topic.remove(changed))
    assert following.groups == {"group-1"}
    assert following.follower.contract.entries["group-1"] is kept


async def test_an_egress_that_goes_to_another_shard_is_gone(following: Following) -> None:
    following.begin()
    await following.at(following.topic.write(SHARD, egress(0), egress(1)))
    await following.at(following.topic.write("another", egress(0), egress(2)))
    assert following.groups == {"group-1"}


def newer(value: bytes) -> bytes:
    return json.dumps({**json.loads(value), "field of a newer operator": 1}).encode()


@pytest.mark.parametrize(
    ("poison", "told"),
    [
        (lambda value: b"\xff", False),
        (lambda value: b"[" * 100_000, False),
        (lambda value: b"", False),
        (newer, True),
        (lambda value: value.replace(b'"group-0"', b'"group-9"'), True),
        (lambda value: value.replace(b"http://", b"nothing"), True),
    ],
    ids=["no-text", "deep", "empty", "newer", "another-group", "broken"],
)
async def test_a_record_that_can_not_be_used_takes_its_egress_away_and_no_other(
    following: Following, poison: Callable[[bytes], bytes], told: bool
) -> None:
    following.begin()
    await following.at(following.topic.write(SHARD, egress(0), egress(1)))
    key, value = record(SHARD, egress(0))
    await following.at(following.topic.put(key, poison(value)))
    assert following.groups == {"group-1"}
    assert set(following.follower.contract.refused) == ({"group-0"} if told else set())
    await following.at(following.topic.write(SHARD, egress(0)))
    assert following.groups == {"group-0", "group-1"}
    assert following.follower.contract.refused == {}


async def test_what_was_known_counts_while_the_topic_can_not_be_read(following: Following) -> None:
    following.begin()
    await following.at(following.topic.write(SHARD, egress(0)))
    following.fails = "Broker: Topic authorization failed"
    await until(lambda: following.follower.problem, within=20)
    following.topic.write(SHARD, egress(1))
    opened = following.opened
    await asyncio.sleep(100)
    assert following.groups == {"group-0"}
    assert following.follower.is_ready
    assert 10 <= following.opened - opened <= 15, "later each time"
    following.fails = ""
    await following.at(2)
    assert following.groups == {"group-0", "group-1"}
    assert following.follower.problem == ""
    assert len(following.seen) <= 3, "it was never without what it knew"


async def test_it_is_not_ready_before_it_has_read_the_topic(following: Following) -> None:
    following.topic.write(SHARD, egress(0))
    following.fails = "Local: Broker transport failure"
    following.begin()
    await asyncio.sleep(60)
    assert not following.follower.is_ready
    assert following.follower.problem == "Local: Broker transport failure"
    following.fails = ""
    await asyncio.wait_for(following.follower.wait_until_ready(), 11)
    assert following.groups == {"group-0"}


async def test_a_reader_that_finds_no_end_is_opened_again(following: Following) -> None:
    following.silent = True
    following.begin()
    await asyncio.sleep(100)
    assert following.opened >= 3
    assert not following.follower.is_ready


async def test_a_topic_that_begins_anew_is_read_from_its_start(following: Following) -> None:
    following.begin()
    await following.at(following.topic.write(SHARD, *(egress(number) for number in range(5))))
    del following.topic.memory.topics[following.topic.topic]
    following.topic.memory.create(following.topic.topic)
    end = following.topic.write(SHARD, egress(7))
    await following.at(end)
    assert following.groups == {"group-7"}
    assert set() not in following.seen, "nothing is stopped that goes on"


async def test_a_change_that_a_listener_fails_to_apply_is_applied_later(
    following: Following,
) -> None:
    """Even if the topic gets no other record: what was read counts only once it is applied."""
    following.begin()
    await following.at(following.topic.write(SHARD, egress(0)))
    failures = 3

    def fail() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("not now")

    following.follower.listeners.insert(0, fail)
    following.topic.write(SHARD, egress(1))
    await until(lambda: following.follower.problem, within=20)
    assert following.follower.problem == "RuntimeError: not now"
    assert following.seen[-1] == {"group-0"}
    await until(lambda: following.seen[-1] == {"group-0", "group-1"}, within=60)
    await until(lambda: not following.follower.problem, within=20)


async def test_it_is_not_ready_before_its_listeners_have_applied_the_contract(
    following: Following,
) -> None:
    def fail() -> None:
        raise RuntimeError("not now")

    following.follower.listeners.append(fail)
    following.topic.write(SHARD, egress(0))
    following.begin()
    await until(lambda: following.follower.problem, within=20)
    opened = following.opened
    await asyncio.sleep(100)
    assert not following.follower.is_ready
    assert following.opened - opened <= 15, "later each time"
    following.follower.listeners.pop()
    await asyncio.wait_for(following.follower.wait_until_ready(), 11)
