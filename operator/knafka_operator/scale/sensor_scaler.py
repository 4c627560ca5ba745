"""Sensor scaler: wakes Sensors by drains, and holds as many as their lag asks for.

    lag in the bus or the trigger topic, or what is due --decide--> drains, each in its own slot

A Sensor has one group, whose lag is that in both topics. What is due though nothing comes, as of
`a && !b` within ten minutes, stands in the group's commits, which are read for the lag anyway. Its
time comes by this process's clock, and the Sensor's process then decides by its own: where they
differ, it is woken too early, and sleeps and is woken again until it is time, or too late.

Before a drain is opened, the members of its group are asked for: another operator's drains
may go on, and none of them is to lose its slot. After one has ended, what its group has committed
is asked for anew, as `@due` changes without any record.

Not here: how a request is held (`holds`), Kafka and HTTP. One serves one Kafka, beside `scaler`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from knafka.core.drain import DrainProgress, DrainRequest, Waiting
from knafka.core.sensor import records
from knafka.core.sensor.contract import Sensor
from knafka.ports.log import GroupSource, Lag
from knafka_operator.decide.scaling import Cause, TriggerStatus, decide, due_now, keeping_offsets
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.ending_holds import EndingHolds
from knafka_operator.scale.following import Following
from knafka_operator.scale.holds import REQUEST_BUDGETS, Holds, cancel, explain
from knafka_operator.scale.scaled_sensor import ScaledSensor
from knafka_operator.scale.scaler import BUDGET, LAG_TIMEOUT, WAKE_SPACING


class SensorDrains(Protocol):
    """Opens drains on Sensors' processes."""

    def hold_sensor(
        self, sensor_id: str, sensor: Sensor, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Ask a process of this Sensor to drain, as `scaler.Drains.hold` does a dispatcher."""
        ...


class SensorScaler:
    """Looks at lags and holds drains; all methods belong to the event loop that runs `run`."""

    def __init__(
        self,
        groups: GroupSource,
        drains: SensorDrains,
        *,
        budget: float = BUDGET,
        request_budgets: tuple[float, float] = REQUEST_BUDGETS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`now`: seconds since the Unix epoch, by which what is due comes."""
        self._request_budgets = request_budgets
        self._groups = groups
        self._drains = drains
        self._budget = budget
        self._now = now
        self._sensors: dict[str, ScaledSensor] = {}
        self._ending = EndingHolds(self._has_ended)
        self._following = Following(self._follow)

    async def run(self) -> None:
        """Look and hold until cancelled; the drains go on without."""
        try:
            await self._following.run(self._sensors.values())
        finally:
            holds = self._ending.all
            for scaled in self._sensors.values():
                holds |= scaled.holds.all
            await cancel(holds)

    async def watch(self, sensor_id: str, sensor: Sensor, autoscaling: Autoscaling) -> None:
        """Scale this Sensor from now on, or by what has changed; its counts go on.

        Drains of what it was before end, and so do all while it is paused. Returns when what was to
        end is over.
        """
        scaled = self._sensors.get(sensor_id)
        if scaled is None:
            scaled = self._sensors[sensor_id] = self._new(sensor_id, sensor, autoscaling)
            self._following.add(scaled)
        if autoscaling.paused or scaled.sensor != sensor:
            self._ending.end(sensor_id, scaled.holds)
        if scaled.sensor != sensor:
            scaled.sensor = sensor
            scaled.drain_error = None
            scaled.holding.clear()  # of triggers that may be other ones
        scaled.autoscaling = autoscaling
        self._soon(scaled)
        await self._ending.wait(sensor_id)

    async def forget(self, sensor_id: str) -> None:
        """Scale this Sensor no more; returns when its drains are over."""
        if scaled := self._sensors.pop(sensor_id, None):
            scaled.changed.set()
            self._ending.end(sensor_id, scaled.holds)
        await self._ending.wait(sensor_id)

    def wake(self, topic: str) -> None:
        """There are new events: look at the Sensors that read this topic, if they sleep."""
        for each in self._sensors.values():
            if topic in each.topics and not (each.holds or each.autoscaling.paused):
                self._soon(each)

    def status(self, sensor_id: str) -> TriggerStatus | None:
        """Of one Sensor; None: it isn't scaled."""
        scaled = self._sensors.get(sensor_id)
        return None if scaled is None else scaled.status()

    def wakes(self, sensor_id: str) -> Mapping[Cause, int]:
        """Times that drains of one Sensor were opened where none was held, by what for."""
        scaled = self._sensors.get(sensor_id)
        return {} if scaled is None else scaled.holds.wakes

    def holding(self, sensor_id: str) -> Sequence[Waiting] | None:
        """What the triggers of one Sensor hold, as drains have reported it; None: none has yet."""
        scaled = self._sensors.get(sensor_id)
        if scaled is None or not scaled.holding:
            return None
        return [each for of in scaled.holding.values() for each in of]

    def statuses(self) -> Mapping[str, TriggerStatus]:
        """Of all Sensors, by id."""
        return {each.id: each.status() for each in self._sensors.values()}

    def reads(self, topic: str) -> bool:
        """Whether any Sensor here reads this topic."""
        return any(topic in each.topics for each in self._sensors.values())

    def _new(self, sensor_id: str, sensor: Sensor, autoscaling: Autoscaling) -> ScaledSensor:
        scaled = ScaledSensor(sensor_id, autoscaling, sensor)
        scaled.holds = Holds(
            scaled,
            lambda request, stop: self._drains.hold_sensor(sensor_id, scaled.sensor, request, stop),
            self._budget,
            lambda: self._is_over_for(scaled),
            scaled.slots,
            self._request_budgets,
        )
        scaled.joined()  # nobody knows when; most have events before this is due
        return scaled

    def _is_over_for(self, scaled: ScaledSensor) -> None:
        self._groups.forget_group(scaled.sensor.group)
        self._soon(scaled)

    def _soon(self, scaled: ScaledSensor) -> None:
        soon = max(asyncio.get_running_loop().time(), scaled.looked + WAKE_SPACING)
        if soon < scaled.look_at:
            scaled.look_at = soon
            scaled.changed.set()

    def _has_ended(self, sensor_id: str) -> None:
        if successor := self._sensors.get(sensor_id):
            self._soon(successor)

    async def _follow(self, scaled: ScaledSensor) -> None:
        """Look at one Sensor whenever it is time to, as long as it is watched."""
        while self._sensors.get(scaled.id) is scaled:
            scaled.changed.clear()
            try:
                async with asyncio.timeout_at(scaled.look_at):
                    await scaled.changed.wait()
            except TimeoutError:
                await self._look(scaled)

    async def _look(self, scaled: ScaledSensor) -> None:
        """Ask for the lag and what is due, decide, and open what is missing."""
        sensor = scaled.sensor
        scaled.looked = asyncio.get_running_loop().time()
        # Before the question: who wakes it meanwhile has events that the answer may miss.
        scaled.look_at = scaled.looked + scaled.autoscaling.polling_interval
        try:
            async with asyncio.timeout(LAG_TIMEOUT):
                bus = await self._lag(sensor.group, sensor.topic)
                trigger = await self._lag(sensor.group, sensor.trigger_topic)
                if self._is_as_it_was(scaled, sensor):
                    await self._apply(scaled, bus, trigger)
        except Exception as error:  # Whatever it is, what was decided last holds.
            scaled.lag_error = f"the lag is not known: {explain(error)}"

    async def _lag(self, group: str, topic: str) -> Lag:
        return (await self._groups.lags([group], topic))[group]

    def _is_as_it_was(self, scaled: ScaledSensor, sensor: Sensor) -> bool:
        return self._sensors.get(scaled.id) is scaled and scaled.sensor is sensor

    async def _apply(self, scaled: ScaledSensor, bus: Lag, trigger: Lag) -> None:
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
        now, wait = asyncio.get_running_loop().time(), self._until_due(scaled)
        if not scale.replicas and not autoscaling.paused:
            if wait <= 0:
                scale = due_now(scale)
            elif now >= scaled.join_by:
                scale = keeping_offsets(scale, partitions, shared=False)
        scaled.scale = scale
        if wait > 0:
            scaled.look_at = min(scaled.look_at, now + wait)
        if len(holds) < scale.replicas and not self._is_ending(scaled):
            others = {sensor.slot_of(each) for each in await self._groups.members(sensor.group)}
            if self._is_as_it_was(scaled, sensor) and not self._is_ending(scaled):
                while len(holds) < scaled.scale.replicas:
                    holds.open(scale.cause, {each for each in others if each is not None})

    def _is_ending(self, scaled: ScaledSensor) -> bool:
        return scaled.id in self._ending or scaled.holds.is_ending

    def _until_due(self, scaled: ScaledSensor) -> float:
        """Seconds until what is due next has come."""
        return float("inf") if scaled.due is None else scaled.due / 1000 - self._now()
