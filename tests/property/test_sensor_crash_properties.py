"""Sensors whose processes crash, lose their partitions and abort at any point: what fires is what
the trigger topic says, each exactly once (BUS-14 to BUS-17, BUS-24, BUS-38)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.memory.transactions import Interruption
from support.memory_sensors import PROCESSES, WAIT, End, Interrupt, MemorySensor, Run, Send
from support.sensors import Routed

from knafka.sensor import batch, expiry, ordering, processor
from knafka.sensor.batch import MAX_BATCH_RECORDS


@dataclass(frozen=True)
class Change:
    """The Sensor is edited: nothing of it that counts here."""


numbers = st.integers(0, PROCESSES - 1)
sends = st.builds(Send, st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 4))
schedules = st.lists(
    sends
    | st.builds(Run, numbers)
    | st.builds(Run, numbers)
    | st.builds(Interrupt, numbers, st.sampled_from(Interruption))
    | st.builds(End, numbers, st.booleans())
    | st.builds(Change),
    max_size=60,
)


def fires(key: str, events: Sequence[Routed]) -> list[str]:
    """What a trigger fires for these events, in their order."""
    trigger = key.partition("/")[0]
    if trigger == "late":
        return late(events)
    latest: dict[str, Routed] = {}
    fired = []
    for event in events:
        dependency = event.identity[0]
        latest[dependency] = max(event, latest.get(dependency, event))
        if len(latest) == {"two": 2, "three": 3}[trigger]:
            fired.append(" ".join(each.identity for each in sorted(latest.values())))
            latest.clear()
    return fired


def late(events: Sequence[Routed]) -> list[str]:
    """Each a that no b follows in time, but for those that came while one waited."""
    fired = []
    waiting: Routed | None = None
    for event in sorted(events, key=lambda each: (each.at, each.identity[0], each.origin)):
        if waiting is not None and event.at > waiting.at + WAIT * 1000:
            fired.append(waiting.identity)
            waiting = None
        if event.identity[0] == "b":
            waiting = None
        elif waiting is None:
            waiting = event
    return fired if waiting is None else [*fired, waiting.identity]


@pytest.mark.conformance("BUS-14", "BUS-15", "BUS-17", "BUS-19", "BUS-24", "BUS-38")
@settings(deadline=None)
@given(st.integers(1, 3), st.booleans(), st.sampled_from([2, MAX_BATCH_RECORDS]), schedules)
@example(
    partitions=1,
    by_sender=False,
    batch_limit=MAX_BATCH_RECORDS,
    schedule=[
        *[Interrupt(0, Interruption.ABORT)] * 3,
        Send("a", "x", 0),
        Send("a", "x", 0),
    ],
)
@example(  # the event has two records, between which the first batch ends
    partitions=1,
    by_sender=True,
    batch_limit=2,
    schedule=[Run(0), Send("a", "x", 0), Interrupt(1, Interruption.LOSE_AFTER)],
)
def test_whatever_ends_when_each_condition_fires_exactly_once(
    partitions: int,
    by_sender: bool,
    batch_limit: int,
    schedule: list[Send | Run | Interrupt | End | Change],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (batch, expiry, ordering, processor):
            patch.setattr(module, "MAX_BATCH_RECORDS", batch_limit)
        _check(MemorySensor(partitions, by_sender=by_sender), schedule)


def _check(world: MemorySensor, schedule: Sequence[Send | Run | Interrupt | End | Change]) -> None:
    """Follow the schedule, and compare what has fired with what the trigger topic says."""
    for each in schedule:
        match each:
            case Send():
                world.send(each)
            case Change():
                world.generation += 1
            case _:
                world.follow(each)
    world.generation += 1
    world.rest()
    routed = world.routed()
    wanted = Counter(
        (f"{trigger}/{order}" if trigger != "two" else trigger, identity)
        for identity, order in world.sent
        for trigger, dependencies in (("two", "ab"), ("three", "abc"), ("late", "ab"))
        if identity[0] in dependencies
    )
    assert (
        Counter((key, each.identity) for key, events in routed.items() for each in events) == wanted
    )
    expected = Counter(
        f"{key}: {fired}" for key, events in routed.items() for fired in fires(key, events)
    ) + Counter(f"one: {identity}" for identity, _ in world.sent if identity[0] == "c")
    assert world.actions() == expected
