"""Looks: what the scaler asks Kafka of a topic or of a Sensor, when, and what is decided then.

    topic     the lags of all its Triggers, in one question
    Sensor    the lag of its group in the bus and in its trigger topic, and what is due

Each has a task of its own: a question that waits for its answer makes nothing else wait, and none
costs more for there being others. Time is the event loop's.

What is due though nothing comes, as of `a && !b` within ten minutes, stands in the commits of a
Sensor's group, which are read for the lag anyway. Its time comes by this process's clock, and the
Sensor's process then decides by its own: where they differ, it is woken too early, and sleeps and
is woken again until it is time, or too late.

Not here: what is looked at (`scaler`), and the decision itself (`decide.scaling`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from knafka.core.contract import Egress
from knafka.core.numbering import Numbering
from knafka.core.sensor import records
from knafka.core.sensor.contract import Sensor
from knafka.ports.log import GroupSource, Lag
from knafka_operator.decide.scaling import Scale, decide, due_now, filtered_out, keeping_offsets
from knafka_operator.scale.holds import EndingHolds, explain
from knafka_operator.scale.scaled_groups import ScaledSensor, ScaledTrigger

WAKE_SPACING: Final = 0.25
"""Seconds between two looks at the same however often it is woken."""
LAG_TIMEOUT: Final = 60.0
"""Seconds after which a question for lags is given up; Kafka's own limits end most before."""


class Look:
    """What is looked at whenever it is due."""

    def __init__(self, kafka: GroupSource, ending: EndingHolds) -> None:
        self.kafka, self.ending = kafka, ending
        self.looked = -math.inf
        self.due = math.inf
        self.over = False
        """Nobody wants to know any more."""
        self._changed = asyncio.Event()
        """It is due sooner, or over."""

    def soon(self) -> None:
        """Look now, or as soon as the last look is long enough ago."""
        soon = max(asyncio.get_running_loop().time(), self.looked + WAKE_SPACING)
        if soon < self.due:
            self.due = soon
            self._changed.set()

    def end(self) -> None:
        """Look no more."""
        self.over = True
        self._changed.set()

    async def follow(self) -> None:
        """Look whenever it is due, until it is over."""
        while not self.over:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(None if self.due == math.inf else self.due):
                    await self._changed.wait()
            except TimeoutError:
                await self.look()

    async def look(self) -> None:
        """Ask, decide, and open the drains that are missing."""
        raise NotImplementedError


class Looks:
    """One task for each, those that are added later among them."""

    def __init__(self) -> None:
        self._waiting: list[Look] = []
        """Those that have no task yet."""
        self._added = asyncio.Event()

    def add(self, look: Look) -> None:
        self._waiting.append(look)
        self._added.set()

    async def run(self, looks: Iterable[Look]) -> None:
        """Follow these, and what is added, until cancelled."""
        self._waiting = list(looks)
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._added.clear()
                added, self._waiting = self._waiting, []
                for each in added:
                    tasks.create_task(each.follow())
                await self._added.wait()


class TopicLook(Look):
    """A topic of which Triggers are scaled, or several that KafkaSources read together."""

    def __init__(self, names: Sequence[str], kafka: GroupSource, ending: EndingHolds) -> None:
        super().__init__(kafka, ending)
        self.names = names
        self.triggers: dict[str, ScaledTrigger] = {}

    async def look(self) -> None:
        """Ask once for the lags of its Triggers."""
        if not (triggers := self.triggers.values()):
            return  # the last of them has gone since it was due
        self.looked = asyncio.get_running_loop().time()
        # Before the question: who wakes the topic meanwhile has events that the answer may miss.
        self.due = self.looked + min(each.autoscaling.polling_interval for each in triggers)
        if asked := [(each, each.egress) for each in triggers if each.needs_question]:
            await self._ask(asked)

    async def _ask(self, asked: Sequence[tuple[ScaledTrigger, Egress]]) -> None:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(LAG_TIMEOUT):
                lags = await self._lags([egress.group for _, egress in asked])
        except Exception as error:  # Whatever it is, the other topics need their drains.
            for trigger, _ in asked:
                trigger.not_asked(explain(error))
            return
        for trigger, egress in asked:
            if self.triggers.get(trigger.id) is trigger and trigger.egress is egress:
                trigger.asked_at, trigger.settled_since = began, 0
                self._apply(trigger, lags.get(egress.group))

    async def _lags(self, groups: Sequence[str]) -> Mapping[str, Lag]:
        if len(self.names) == 1:
            return await self.kafka.lags(groups, self.names[0])
        found = [await self.kafka.lags(groups, each) for each in self.names]
        return {
            group: together(self.names, [each[group] for each in found])
            for group in groups
            if all(group in each for each in found)
        }

    def _apply(self, trigger: ScaledTrigger, lag: Lag | None) -> None:
        if lag is None:
            trigger.not_asked(f"no group {trigger.egress.group}")
            return
        partitions, shared = len(lag.by_partition), trigger.declared is not None
        holds, autoscaling = trigger.holds, trigger.autoscaling
        trigger.lag_error = None
        trigger.lag, trigger.settled = lag.total, lag.settled
        trigger.asked()
        trigger.beyond_end = lag.beyond_end
        trigger.floor = decide(0, partitions, autoscaling, 0, shared=shared).replicas
        scale = decide(lag.total, partitions, autoscaling, len(holds), shared=shared)
        due = asyncio.get_running_loop().time() >= trigger.join_by
        if due and not scale.replicas and not autoscaling.paused:
            scale = keeping_offsets(scale, partitions, shared=shared)
        elif not shared and not autoscaling.paused:
            scale = _rested(trigger, lag.total, scale)
        trigger.decided(scale)
        if trigger.id in self.ending or holds.is_ending:
            return
        while len(holds) < scale.replicas:
            holds.open(scale.cause)


def together(topics: Sequence[str], lags: Sequence[Lag]) -> Lag:
    """The lag of one group on several topics, whose partitions go by their numbers."""
    numbering = Numbering(topics)
    by_topic = list(zip(topics, lags, strict=True))
    return Lag(
        numbering.numbered({topic: lag.by_partition for topic, lag in by_topic}),
        frozenset(numbering.number(topic, p) for topic, lag in by_topic for p in lag.beyond_end),
        numbering.numbered({topic: lag.ends for topic, lag in by_topic}),
    )


def _rested(trigger: ScaledTrigger, lag: int, scale: Scale) -> Scale:
    """What is decided of one whose filter may pass nothing of what waits; ends its drains."""
    now, rest = asyncio.get_running_loop().time(), trigger.rest
    if trigger.own and rest.begins(lag, trigger.open.values(), trigger.autoscaling, now):
        trigger.own.stop()
    if not scale.replicas or not rest.is_resting(now):
        return scale
    return filtered_out(lag, rest.left(now))


class SensorLook(Look):
    """A Sensor, before whose drains are opened the members of its group are asked for: another
    operator's drains may go on, and none of them is to lose its slot."""

    def __init__(
        self,
        scaled: ScaledSensor,
        kafka: GroupSource,
        ending: EndingHolds,
        now: Callable[[], float],
    ) -> None:
        """`now`: seconds since the Unix epoch, by which what is due comes."""
        super().__init__(kafka, ending)
        self.scaled = scaled
        self._now = now

    def on_over(self) -> None:
        """One of its drains is over: what its group has committed is asked for anew, as `@due`
        changes without any record."""
        self.kafka.forget_group(self.scaled.sensor.group)
        self.soon()

    async def look(self) -> None:
        scaled, sensor = self.scaled, self.scaled.sensor
        self.looked = asyncio.get_running_loop().time()
        # Before the question: who wakes it meanwhile has events that the answer may miss.
        self.due = self.looked + scaled.autoscaling.polling_interval
        try:
            async with asyncio.timeout(LAG_TIMEOUT):
                bus = await self._lag(sensor.group, sensor.topic)
                trigger = await self._lag(sensor.group, sensor.trigger_topic)
                if self._is_as_it_was(sensor):
                    await self._apply(bus, trigger)
        except Exception as error:  # Whatever it is, what was decided last holds.
            scaled.lag_error = f"the lag is not known: {explain(error)}"

    async def _lag(self, group: str, topic: str) -> Lag:
        return (await self.kafka.lags([group], topic))[group]

    def _is_as_it_was(self, sensor: Sensor) -> bool:
        return not self.over and self.scaled.sensor is sensor

    async def _apply(self, bus: Lag, trigger: Lag) -> None:
        scaled = self.scaled
        autoscaling, holds, sensor = scaled.autoscaling, scaled.holds, scaled.sensor
        scaled.lag_error = None
        scaled.lag = bus.total + trigger.total
        scaled.due = min(
            (at for each in trigger.metadata.values() if (at := records.due_in(each)) is not None),
            default=None,
        )
        # A member without a partition of one topic has some of the other.
        partitions = max(len(bus.by_partition), len(trigger.by_partition))
        scaled.floor = decide(0, partitions, autoscaling, 0).replicas
        scale = decide(scaled.lag, partitions, autoscaling, len(holds))
        now, wait = asyncio.get_running_loop().time(), self._until_due()
        if not scale.replicas and not autoscaling.paused:
            if wait <= 0:
                scale = due_now(scale)
            elif now >= scaled.join_by:
                scale = keeping_offsets(scale, partitions, shared=False)
        scaled.scale = scale
        if wait > 0:
            self.due = min(self.due, now + wait)
        if len(holds) < scale.replicas and not self._is_ending():
            others = {sensor.slot_of(each) for each in await self.kafka.members(sensor.group)}
            if self._is_as_it_was(sensor) and not self._is_ending():
                while len(holds) < scaled.scale.replicas:
                    holds.open(scale.cause, {each for each in others if each is not None})

    def _is_ending(self) -> bool:
        return self.scaled.id in self.ending or self.scaled.holds.is_ending

    def _until_due(self) -> float:
        """Seconds until what is due next has come."""
        due = self.scaled.due
        return math.inf if due is None else due / 1000 - self._now()
