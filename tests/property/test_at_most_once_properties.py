"""At most once, and in order, whatever a subscriber answers and whichever process ends (BUS-5)."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from property.test_drain_properties import Unsteady, attempts, first_arrivals, on_fake_time
from support.drains import FAR, ScriptedSubscriber, World
from support.examples import examples
from support.memory.log import MemoryReader

from knafka.core.contract import Delivery, Order
from knafka.core.drain import Ended
from knafka.core.errors import LogError
from knafka.ports.log import Commits

ends = st.sampled_from(["kill", "stop", "leave"])
processes = st.lists(st.tuples(st.floats(0.0, 12.0), st.floats(0.01, 8.0), ends), max_size=5)
"""When each begins, how long it lives, and how it ends; `leave`: it is given no time to finish."""
commits = st.lists(st.sampled_from(["taken", "taken", "refused", "unknown", "slow"]), max_size=20)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.sampled_from([Order.KEY, Order.PARTITION]),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=30),
    st.lists(attempts, max_size=40),
    processes,
    commits,
    st.integers(1, 8),
)
def test_no_event_is_begun_by_two_processes(
    order: Order,
    keys: list[str],
    answers: list[tuple[int, float]],
    processes: list[tuple[float, float, str]],
    commits: list[str],
    max_in_flight: int,
) -> None:
    """Those that nobody has killed or stopped are all delivered."""

    async def play() -> None:
        fates = iter(commits)

        class Unreliable(MemoryReader):
            async def commit_now(self, commits: Commits) -> None:
                fate = next(fates, "taken")
                if fate == "slow":
                    await asyncio.sleep(0.7)  # a kill or a rebalance may come first
                if fate != "refused":
                    await super().commit_now(commits)
                if fate in ("refused", "unknown"):
                    raise LogError("nobody says which")

        answer = Unsteady(answers)
        world = World(
            answer,
            partitions=3,
            delivery=Delivery(retry=1000, backoff_delay=0.3, backoff_policy="linear"),  # type: ignore[arg-type]
            order=order,
            max_in_flight=max_in_flight,
            at_most_once=True,
        )
        world.reads_with(Unreliable)
        for number, key in enumerate(keys):
            world.send(f"{key}-{number}", key)
        begun: Counter[str] = Counter()

        async def process(begins: float, lives: float, how: str) -> None:
            await asyncio.sleep(begins)
            subscriber = ScriptedSubscriber(answer)
            drain = world.drain(subscriber)
            running = world.begin(drain, idle=FAR)
            await asyncio.sleep(lives)
            if how == "kill":
                await world.kill(running)
            else:
                drain.stop(30.0 if how == "stop" else 0.0)
                await running
            begun.update(set(subscriber.ids))

        await asyncio.gather(*(process(*each) for each in processes))
        last = ScriptedSubscriber(answer)
        progress = await world.begin(world.drain(last), idle=20)
        begun.update(set(last.ids))
        assert progress.ended is Ended.IDLE
        assert set(begun.values()) <= {1}
        if not processes:
            assert set(begun) == {f"{key}-{number}" for number, key in enumerate(keys)}
        for numbers in first_arrivals(answer.arrived).values():
            assert numbers == sorted(numbers)

    on_fake_time(play)
