"""Whatever is declared, changed, moved, paused and forgotten, and in which order: a Trigger is
delivered by one dispatcher at a time, and in the end by the one that it was declared for last."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import fake_clock
from support.examples import examples
from support.scaling import SCALING, FakeDrains, FakeLags, a_shard, egress, running

from knafka_operator.scale.scaler import Scaler

TRIGGERS = ("a", "b", "c")
PLACES = ("own", "one", "two", "paused own", "paused one", "gone")
"""Where a Trigger is to be delivered: by its own dispatchers, by a shard, or not."""


class World(FakeDrains):
    """Dispatchers, and the contract's topic as they and the caller know it.

    As the caller of the scaler promises, a record is gone before the scaler hears that its Trigger
    is not the shard's any more, and is written when the drains of its own are over.
    """

    def __init__(self, clean_end: float) -> None:
        super().__init__()
        self.clean_end = clean_end
        self.records: dict[str, str] = {}
        """Trigger to shard."""
        self.mistakes: list[str] = []

    def find_mistakes(self) -> str | None:
        """What may never be, where it is."""
        own = {each.trigger for each in self.open}
        shards = [each.shard for each in self.open_shards]
        if len(shards) != len(set(shards)):
            return f"two requests of one shard: {shards}"
        shared = {trigger for trigger, shard in self.records.items() if shard in shards}
        if own & shared:
            return f"delivered by its own dispatcher and by a shard: {own & shared}"
        return None

    def on_open(self) -> None:
        # Not raised: the scaler would take it for a drain that failed.
        if mistake := self.find_mistakes():
            self.mistakes.append(mistake)


@dataclass(frozen=True)
class Step:
    trigger: str
    place: str
    url: str
    after: float
    """Seconds until the next step."""


STEPS = st.builds(
    Step,
    st.sampled_from(TRIGGERS),
    st.sampled_from(PLACES),
    st.sampled_from(["http://old/", "http://new/"]),
    st.sampled_from([0.0, 0.1, 1.0, 4.0]),
)


async def _declare(scaler: Scaler, world: World, step: Step) -> None:
    """As a reconciliation does; those of one Trigger come one after the other."""
    where = step.place.removeprefix("paused ")
    shard = a_shard(where) if where in ("one", "two") else None
    paused = step.place.startswith("paused")
    record = None if paused or shard is None else shard.group
    if world.records.get(step.trigger) not in (None, record):
        del world.records[step.trigger]
    if step.place == "gone":
        await scaler.forget(step.trigger)
    else:
        autoscaling = replace(SCALING, paused=paused)
        await scaler.watch(step.trigger, egress(step.trigger, url=step.url), autoscaling, shard)
    if record is not None:
        world.records[step.trigger] = record
    assert world.find_mistakes() is None


async def _run(steps: list[Step], clean_end: float) -> None:
    lags, world = FakeLags(), World(clean_end)
    lags.by_group = {f"group-{trigger}": 150 for trigger in TRIGGERS}
    turns = {trigger: asyncio.Lock() for trigger in TRIGGERS}
    last: dict[str, Step] = {}

    async def reconcile(step: Step) -> None:
        async with turns[step.trigger]:
            await _declare(scaler, world, step)

    async with running(lags, world) as scaler:
        async with asyncio.TaskGroup() as reconciling:
            for step in steps:
                last[step.trigger] = step
                reconciling.create_task(reconcile(step))
                await asyncio.sleep(step.after)
                _check_statuses(scaler, world)
        await asyncio.sleep(1)
        _check_statuses(scaler, world)
        own = {each.trigger: each.egress for each in world.open}
        shards = {each.shard for each in world.open_shards}
        for trigger, step in last.items():
            is_own = step.place == "own"
            assert own.get(trigger) == (egress(trigger, url=step.url) if is_own else None)
            status = scaler.status(trigger)
            assert (status is None) == (step.place == "gone")
            shard = step.place if step.place in ("one", "two") else None
            assert status is None or status.shard == shard
            assert shard is None or shard in shards
        assert shards == {step.place for step in last.values()} & {"one", "two"}
        assert set(scaler._shards) == shards
    assert world.mistakes == []


def _check_statuses(scaler: Scaler, world: World) -> None:
    assert world.find_mistakes() is None
    own = {each.trigger for each in world.open}
    for trigger, status in scaler.statuses().items():
        assert status.shard is None or trigger not in own, "in a shard while its own drains go on"


def _play(steps: list[Step], clean_end: float) -> None:
    with asyncio.Runner(loop_factory=fake_clock.new_event_loop) as runner:
        runner.run(_run(steps, clean_end))


@given(st.lists(STEPS, max_size=12), st.sampled_from([0.0, 0.5, 3.0, 1000.0]))
@settings(max_examples=examples(200), deadline=None)
def test_a_trigger_is_delivered_by_one_dispatcher_at_a_time(
    steps: list[Step], clean_end: float
) -> None:
    _play(steps, clean_end)


@pytest.mark.parametrize("neighbour", ["own", "one", "two"])
@pytest.mark.parametrize("to", PLACES)
@pytest.mark.parametrize("of", PLACES)
def test_a_move_from_anywhere_to_anywhere_has_no_two_dispatchers(
    of: str, to: str, neighbour: str
) -> None:
    """With and without neighbours in the shards that it leaves and enters."""
    steps = [Step("b", neighbour, "http://b/", 2), Step("a", of, "http://old/", 2)]
    _play([*steps, Step("a", to, "http://new/", 0)], clean_end=3)
