"""Triggers that share a dispatcher get what they would get alone, with the same counts and offsets,
though an event is shown only to those that it may be for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import looptime
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.drains import TOPIC, Request, World, accept, response
from support.examples import examples
from support.logs import shared_memory
from support.memory.log import MemoryWriter
from support.shards import Shard, lines_of

from knafka.core.contract import Egress, Order
from knafka.core.documents import Model, parse
from knafka.core.drain import Ended
from knafka.core.filters.declared_filters import AttributesFilter, Filter
from knafka.core.filters.predicates import compile_trigger
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.shared.fetcher import FetchLimits
from knafka.ports.subscriber import Response


def _any(*filters: Any) -> list[Any]:
    return [{"any": list(filters)}]


TYPES = st.sampled_from(["a", "b", "ab", "c"])
FILTERS = st.one_of(
    st.just([]),
    st.builds(lambda each: [{"exact": {"type": each}}], TYPES),
    st.builds(lambda each: [{"prefix": {"type": each}}], TYPES),
    st.builds(lambda each: [{"not": {"exact": {"type": each}}}], TYPES),
    st.builds(lambda each: [{"cesql": f"INT(type) = 1 OR type = '{each}'"}], TYPES),
    st.builds(
        lambda a, b: [{"any": [{"exact": {"type": a}}, {"suffix": {"type": b}}]}], TYPES, TYPES
    ),
    st.builds(
        lambda a, b: [{"any": [{"exact": {"type": a}}, {"exact": {"type": b}}]}], TYPES, TYPES
    ),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), TYPES, st.integers(1, 300)),
        st.tuples(st.just("broken"), st.just(""), st.just(1)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 3)),
        st.tuples(st.just("restart"), st.just(""), st.just(1)),
    ),
    max_size=8,
)
IDLE = "PT30S"
"""Longer than all steps together may wait: else a drain that has ended takes no more."""


class Declared(Model):
    filters: tuple[Filter, ...]


class SmallShard(Shard):
    """Whose buffers are full after some records, so that slow Triggers leave them and come back."""

    def start_again(self) -> None:
        super().start_again()
        limits = FetchLimits(ahead=10, records=30, size=1_000_000, spare=10)
        self.shared = shared_memory(self.world.log, self.name, TOPIC, limits)

    def clients_for(self, egress: Egress, among: Callable[[], int]) -> Clients:
        return replace(super().clients_for(egress, among), attempts_per_turn=8)


async def _slow(request: Request) -> Response:
    await asyncio.sleep(0.05)
    return response()


async def _run(declared: list[list[Any]], steps: list[tuple[str, str, int]], slow: int) -> None:
    shard = SmallShard(World(partitions=2, shares_topic=True))
    triggers = [parse(Declared, {"filters": each}).filters for each in declared]
    for number, filters in enumerate(triggers):
        # By partition it holds little, and is paused soon.
        more = {"order": Order.PARTITION, "max_in_flight": 2} if number == slow else {}
        shard.add(number, _slow if number == slow else accept, filters=filters, **more)
    sent: list[tuple[str, str]] = []
    broken = 0
    totals = [[0, 0, 0, 0] for _ in triggers]
    await shard.start()
    exchange = shard.drain(idle=IDLE)

    async def end() -> None:
        await exchange.task
        last = lines_of(exchange)[-1]
        assert last.ended is Ended.IDLE
        assert last.settled is not None
        assert last.settled.without == ()
        for number, total in enumerate(totals):
            told = last.egresses[f"group-{number}"]
            one = (told.read, told.filtered, told.delivered, told.dead_lettered)
            totals[number] = [a + b for a, b in zip(total, one, strict=True)]

    for what, argument, count in steps:
        if what == "send":
            for _ in range(count):
                sent.append((f"{len(sent)}", argument))
                shard.world.send(sent[-1][0], key=f"k{len(sent) % 7}", type=argument)
        elif what == "broken":
            broken += 1
            shard.world.log.store(TOPIC, b"k", b"no event", [("ce_id", b"1")])
        elif what == "wait":
            await asyncio.sleep(count)
        else:
            await end()
            await shard.dispatcher.stop()
            shard.start_again()
            shard.writer = MemoryWriter(shard.world.log)
            await shard.begin()
            exchange = shard.drain(idle=IDLE)
    await end()
    await shard.dispatcher.stop()
    for number, filters in enumerate(triggers):
        passes = compile_trigger(AttributesFilter(), filters)
        mine = [
            id_
            for id_, type_ in sent
            if passes({"specversion": "1.0", "id": id_, "source": "/s", "type": type_})
        ]
        assert sorted(shard.subscribers[number].ids) == sorted(mine)
        read, filtered, delivered, dead = totals[number]
        assert read == len(sent) + broken
        assert (filtered + dead, delivered) == (len(sent) - len(mine) + broken, len(mine))
        assert shard.committed(number) == len(sent) + broken
    # What holds no event is one dead letter, whoever reads it first (docs/decisions/0031).
    assert sum(dead for *_, dead in totals) == broken


@settings(deadline=None, max_examples=examples(8))
@given(st.lists(FILTERS, min_size=1, max_size=5), STEPS, st.integers(-1, 4))
@example([[], _any({"exact": {"type": "a"}})], [("send", "a", 300), ("send", "b", 200)] * 2, 1)
@example([[{"exact": {"type": "a"}}]] * 3, [("send", "b", 200), ("send", "a", 300)] * 2, 1)
def test_triggers_that_share_a_read_get_what_they_would_get_alone(
    declared: list[list[Any]], steps: list[tuple[str, str, int]], slow: int
) -> None:
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(_run(declared, steps, slow))
