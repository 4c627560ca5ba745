"""A dead letter of each record that holds no event, whoever is killed and while Kafka is away.

Each example plays minutes on a clock of its own, so none of them waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from support import fake_clock
from support.drains import BROKER_DEAD, TOPIC, ScriptedSubscriber, World, accept
from support.examples import examples
from support.memory.log import MemoryReader, MemoryWriter
from support.memory.tail import memory_dead_letters

from knafka.core.dead_letter import origin_of
from knafka.core.drain import Ended
from knafka.core.errors import LogError
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.engine.drain import Drain
from knafka.ports.log import Commits

TRIGGERS = 3

lives = st.lists(st.floats(0.01, 12), max_size=3)
"""Seconds after which a process is killed, one after the other; then one lives on."""
outages = st.lists(st.tuples(st.floats(0, 15), st.floats(0.01, 10)), max_size=3)
"""When Kafka takes no appends, and for how long."""


class Broker:
    """Its topic and its dead letters, and the dispatchers of its Triggers."""

    def __init__(self, records: Sequence[bool], turns: Iterator[float]) -> None:
        self.world = World(shares_topic=True)
        self.kills = 0
        self._turns = turns
        self.undecodable = {offset for offset, is_event in enumerate(records) if not is_event}
        for offset, is_event in enumerate(records):
            if is_event:
                self.world.send(str(offset))
            else:
                self.world.log.store(TOPIC, None, b"data", [("x", b"y")])

    def letters(self) -> Counter[int]:
        """By the offset of their records."""
        origins = [origin_of(each.headers() or []) for each in self.world.records_of(BROKER_DEAD)]
        return Counter(origin[2] for origin in origins if origin is not None)

    async def trigger(self, number: int, lives: Sequence[float]) -> None:
        """One with a dispatcher of its own, which is killed again and again."""
        for seconds in lives:
            process = Process(self, f"group-{number}")
            done, _ = await asyncio.wait({process.running}, timeout=seconds)
            if done:
                return
            self.kills += 1
            await process.kill()
        assert (await Process(self, f"group-{number}").running).ended is Ended.IDLE

    def turn(self) -> float:
        return next(self._turns, 0.5)


class Process:
    """One of a dispatcher, which drains."""

    def __init__(self, broker: Broker, group: str) -> None:
        self._broker, self._is_killed = broker, False
        world, process = broker.world, self
        writer = MemoryWriter(world.log)

        class Reader(MemoryReader):
            def _commit(self, commits: Commits) -> None:
                if process._is_killed:
                    return
                letters = broker.letters()
                for commit in commits.values():
                    settled = {each for each in broker.undecodable if each < commit.offset}
                    assert settled <= letters.keys(), "an offset moved before the letter was there"
                super()._commit(commits)

        drain = Drain(
            world.egress.model_copy(update={"group": group}),
            Clients(
                lambda assignment: Reader(world.log, group, TOPIC, assignment),
                writer,
                ScriptedSubscriber(accept),
                world.topics,
                memory_dead_letters(world.egress, world.log, writer, world.topics, broker.turn),
            ),
            asyncio.get_running_loop().time,
        )
        drain.idle = 5.0
        self.running = asyncio.create_task(drain.run())

    async def kill(self) -> None:
        self._is_killed = True
        self.running.cancel()
        await asyncio.wait({self.running})


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=20),
    st.lists(lives, min_size=TRIGGERS, max_size=TRIGGERS),
    outages,
    st.lists(st.floats(0, 1), max_size=10),
)
def test_each_record_that_holds_no_event_has_a_dead_letter_before_anybody_settles_it(
    records: list[bool],
    all_lives: list[list[float]],
    outages: list[tuple[float, float]],
    turns: list[float],
) -> None:
    """KN-DLV-09, CE-K8: at least one, and no more than there are processes that could write it."""

    async def play() -> None:
        broker = Broker(records, iter(turns))

        async def away(begins: float, seconds: float) -> None:
            await asyncio.sleep(begins)
            broker.world.log.fail(LogError("Kafka is away"))
            await asyncio.sleep(seconds)
            broker.world.log.fail(None)

        await asyncio.gather(
            *(broker.trigger(number, lives) for number, lives in enumerate(all_lives)),
            *(away(*each) for each in outages),
        )
        letters = broker.letters()
        assert letters.keys() == broker.undecodable
        assert all(count <= TRIGGERS + broker.kills for count in letters.values())
        for number in range(TRIGGERS):
            committed = broker.world.log.group(f"group-{number}").committed
            assert [each.offset for each in committed.values()] == [len(records)]

    with asyncio.Runner(loop_factory=fake_clock.new_event_loop) as runner:
        runner.run(play())
