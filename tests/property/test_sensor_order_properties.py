"""What a Sensor fires is a function of its bus: events in any number of partitions, read in any
interleaving by processes that come, go, crash and sleep, fire what the reducer fires for them in
the order of their times (issue 34)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.memory.transactions import Interruption
from support.memory_sensors import (
    BUS,
    GROUP,
    PROCESSES,
    End,
    Interrupt,
    MemorySensor,
    Run,
    Send,
    sensor,
)

from knafka.core.documents import parse
from knafka.core.events.kafka_binding import read
from knafka.core.sensor.backtest import Backtest, PastEvent
from knafka.core.sensor.contract import SensorTrigger
from knafka.core.sensor.duplicates import SeenEvents
from knafka.core.sensor.order import Place
from knafka.core.sensor.records import identity_of, trigger_of
from knafka.core.sensor.routing import Router
from knafka_jobs.backtest.firing_model import ArrivedEvent, FiringModel

TRIGGERS: Final[Sequence[dict[str, Any]]] = (
    {"name": "pair", "conditions": "a && b"},
    {"name": "window", "conditions": "a && b", "within": "PT2S"},
    {"name": "each", "conditions": "a && b && c", "correlation": "order"},
    {
        "name": "reset",
        "conditions": "a && c",
        "conditionsReset": [{"byTime": {"cron": "* * * * *"}}],
    },
    {"name": "count", "conditions": "2 of a && c"},
    {"name": "absent", "conditions": "a && !b", "within": "PT3S"},
    {"name": "late", "conditions": "a && !b", "within": "PT3S", "correlation": "order"},
    {"name": "one", "conditions": "c"},
)
LATE: Final = 1_500
"""Milliseconds by which times may be behind each other where that is allowed."""


@dataclass(frozen=True)
class Event:
    dependency: str
    order: str
    partition: int
    after: int
    """Milliseconds since the event before."""
    late: int
    """Milliseconds that its time is before that, where times may be late."""
    requeue_after: bool = False
    """Whether it is the one of before the last once more."""


@dataclass(frozen=True)
class Rebalance:
    """All partitions are assigned anew."""


@dataclass(frozen=True)
class Sleep:
    """All processes leave, and time passes."""

    seconds: int


numbers = st.integers(0, PROCESSES - 1)
runs = st.builds(Run, numbers)
events = st.builds(
    Event,
    st.sampled_from("aabbc"),
    st.sampled_from("xy"),
    st.integers(0, 9),
    st.sampled_from([0, 1, 5, 40, 700, 2_500, 20_000]),
    st.integers(0, LATE),
    st.sampled_from([False, False, False, True]),
)
happenings = (
    st.builds(Interrupt, numbers, st.sampled_from(Interruption))
    | st.builds(End, numbers, st.booleans())
    | st.builds(Rebalance)
    | st.builds(Sleep, st.sampled_from([1, 100]))
)
schedules = st.lists(events | events | events | runs | runs | happenings, min_size=15, max_size=70)


class World(MemorySensor):
    def __init__(
        self, partitions: int, *, by_sender: bool, grace: float | None, dedupe: float | None = None
    ) -> None:
        super().__init__(partitions, by_sender=by_sender)
        self.partitions = partitions
        self.can_be_late = by_sender or grace is not None
        declared = tuple(parse(SensorTrigger, each) for each in TRIGGERS)
        self.more = {"triggers": declared, "grace": grace, "dedupe": dedupe}

    def play(self, happening: object) -> None:
        match happening:
            case Event(dependency, order, partition, after, late, again):
                self.now += after
                at, number = self.now, partition % self.partitions
                if self.can_be_late:
                    at -= late
                before = self.sent[-2:-1] if again else []
                for identity, of in before:
                    dependency, order = identity[0], of
                named = before[0][0] if before else None
                self.send(Send(dependency, order, 0), at=at, partition=number, identity=named)
            case Run() | Interrupt() | End():
                self.follow(happening)
            case Rebalance():
                self.memory.group(GROUP).coordinator.rotate()
            case Sleep(seconds):
                self.sleep()
                self.now += seconds * 1000

    def past(self) -> Iterator[tuple[Place, PastEvent]]:
        for record in self.read(BUS):
            envelope = read(record.headers() or (), record.value())
            at = record.timestamp()[1]
            place = Place(at, record.partition(), record.offset())
            yield place, PastEvent(at, envelope.attributes, b"")


def expected(world: World) -> Counter[str]:
    """By the reducer, as `knafka sensor test` has it."""
    backtest = Backtest(sensor(1, **world.more), lambda kind: None)
    in_order = [event for _, event in sorted(world.past(), key=lambda each: each[0])]
    fired = [*backtest.play(in_order), *backtest.advance_to(world.now)]
    return Counter(
        f"{each.key}: {' '.join(one.identity.split()[1] for one in each.firing.events)}"
        for each in fired
    )


def modelled(world: World) -> Counter[str]:
    """By the model of the Spark job."""
    declared = sensor(1, **world.more)
    router, rules = (
        Router(declared, lambda kind: None),
        {each.name: each for each in declared.rules()},
    )
    models: dict[str, FiringModel] = {}
    seen = {key: SeenEvents(declared.dedupe_millis) for key in rules}
    found: Counter[str] = Counter()
    for place, event in sorted(world.past(), key=lambda each: each[0]):
        for route in router.route(event.attributes):
            came = ArrivedEvent(
                route.dependency, identity_of(event.attributes), place.at, "bus", *place[1:]
            )
            if route.fires:
                found[f"{route.key}: {came.identity.split()[1]}"] += 1
                continue
            dependency, which = came.dependency, came.identity
            if not seen[trigger_of(route.key)].mark_if_new(route.key, dependency, which, place.at):
                continue
            model = models.setdefault(route.key, FiringModel(rules[trigger_of(route.key)]))
            found.update(_told(route.key, model.add(came)))
    for key, model in models.items():
        found.update(_told(key, model.end(world.now)))
    return found


def _told(key: str, firings: Iterator[Any]) -> Iterator[str]:
    for each in firings:
        yield f"{key}: {' '.join(one.identity.split()[1] for one in each.events)}"


@pytest.mark.conformance("BUS-14", "BUS-19", "BUS-24", "BUS-38")
@settings(deadline=None, max_examples=examples(40))
@given(
    st.integers(1, 10),
    st.sampled_from(["kafka", "apart", "senders"]),
    st.sampled_from([None, 3.0]),
    st.integers(-1_000, 1_000),
    schedules,
)
def test_what_fires_follows_from_the_events_and_their_times_alone(
    partitions: int, times: str, dedupe: float | None, clock: int, schedule: list[object]
) -> None:
    """`apart`: the clocks of Kafka's nodes differ or are set back by less than the declared grace.
    `senders`: they say the time, up to the default grace too late. `kafka`: the processes' clocks
    are wrong."""
    grace = LATE / 1000 if times == "apart" else None
    world = World(partitions, by_sender=times == "senders", grace=grace, dedupe=dedupe)
    if times == "kafka":
        world.clocks = {0: clock, 1: -clock}
    for each in schedule:
        world.play(each)
    world.rest()
    assert world.actions() == expected(world) == modelled(world)
    assert world.late() == 0
