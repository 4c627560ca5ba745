"""Sensor scaler: the Sensors that are scaled, each by its own lag check.

A Sensor has drains of its own, and no shard: in a drain, one of its processes joins its consumer
group, works, and leaves. Not here: when its lag is read, and the decision (`lag_checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from knafka.core.drain import Waiting
from knafka.core.sensor.contract import SensorContract
from knafka.ports.log import GroupSource
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.decide import Cause, ScalingStatus
from knafka_operator.scale.drains_port import Drains
from knafka_operator.scale.holds import EndingHolds, Hold, Holds
from knafka_operator.scale.lag_checks import LagChecks, SensorLagCheck
from knafka_operator.scale.leaving_groups import LeavingGroups
from knafka_operator.scale.scaled_groups import ScaledSensor


class SensorScaler:
    """Scales the Sensors of one `Scaler`."""

    def __init__(
        self,
        kafka: GroupSource,
        drains: Drains,
        ending: EndingHolds,
        leaving_groups: LeavingGroups,
        lag_checks: LagChecks,
        budget: float,
        request_budgets: tuple[float, float],
        now: Callable[[], float],
    ) -> None:
        """Begin without Sensors. Triggers share `ending` (drains that must end before new ones are
        opened), `leaving_groups`, and `lag_checks`, which runs the checks; the other parameters are
        the scaler's."""
        self._kafka = kafka
        self._drains = drains
        self._ending = ending
        self._leaving_groups = leaving_groups
        self._lag_checks = lag_checks
        self._budget = budget
        self._request_budgets = request_budgets
        self._now = now
        self._checks: dict[str, SensorLagCheck] = {}
        """The check of each Sensor, by id."""

    @property
    def checks(self) -> Collection[SensorLagCheck]:
        """The checks of all Sensors."""
        return self._checks.values()

    @property
    def holds(self) -> set[Hold]:
        """The requests that are held for all Sensors, including ending ones."""
        return set[Hold]().union(*(check.scaled.holds.all for check in self._checks.values()))

    async def watch(self, sensor_id: str, sensor: SensorContract, autoscaling: Autoscaling) -> None:
        """Start to scale a Sensor, or apply changes to it. A changed contract and a pause end its
        drains; returns once these have ended."""
        check = self._checks.get(sensor_id)
        if check is None:
            check = self._checks[sensor_id] = self._new_sensor(sensor_id, sensor, autoscaling)
            self._lag_checks.add(check)
        scaled = check.scaled
        if autoscaling.paused or scaled.sensor != sensor:
            self._ending.end(sensor_id, scaled.holds)
        if scaled.sensor != sensor:
            # After `end`: the delay begins once the drains that end now have ended.
            if not scaled.autoscaling.min_scale:
                group = scaled.sensor.group
                self._leaving_groups.delay_drains(sensor_id, group, sensor.group, autoscaling)
            scaled.sensor = sensor
            scaled.drain_error = None
            scaled.holding.clear()  # the new contract may have other triggers
        scaled.autoscaling = autoscaling
        check.check_soon()
        await self._ending.wait_until_ended(sensor_id)

    def forget(self, sensor_id: str) -> None:
        """Stop scaling a Sensor, and end its drains; does nothing if it isn't scaled."""
        if check := self._checks.pop(sensor_id, None):
            check.end()
            self._ending.end(sensor_id, check.scaled.holds)

    def wake(self, topic: str) -> None:
        """Make the check due soon of each Sensor that reads this topic, has no drain and isn't
        paused."""
        for check in self._checks.values():
            scaled = check.scaled
            if topic in scaled.topics and not (scaled.holds or scaled.autoscaling.paused):
                check.check_soon()

    def check_soon(self, sensor_id: str) -> None:
        """Make a Sensor's check due soon, if the Sensor is scaled."""
        if check := self._checks.get(sensor_id):
            check.check_soon()

    def status(self, sensor_id: str) -> ScalingStatus | None:
        """Return the status of a Sensor; None: it isn't scaled."""
        check = self._checks.get(sensor_id)
        return None if check is None else check.scaled.status()

    def wakes(self, sensor_id: str) -> Mapping[Cause, int]:
        """Return how often a Sensor's drains were opened while it had none, by cause; empty: it
        isn't scaled."""
        check = self._checks.get(sensor_id)
        return {} if check is None else check.scaled.holds.wakes

    def held_events(self, sensor_id: str) -> Sequence[Waiting] | None:
        """Return the events that a Sensor's triggers hold, as reported by drains; None: no drain
        has reported any, or the Sensor isn't scaled."""
        check = self._checks.get(sensor_id)
        if check is None or not check.scaled.holding:
            return None
        return [
            held_event
            for held_in_partition in check.scaled.holding.values()
            for held_event in held_in_partition
        ]

    def reads(self, topic: str) -> bool:
        """Whether a scaled Sensor reads this topic."""
        return any(topic in check.scaled.topics for check in self._checks.values())

    def _new_sensor(
        self, sensor_id: str, sensor: SensorContract, autoscaling: Autoscaling
    ) -> SensorLagCheck:
        """Return the lag check of a new Sensor without open drains."""
        scaled = ScaledSensor(sensor_id, autoscaling, sensor)
        check = SensorLagCheck(scaled, self._kafka, self._ending, self._now)
        scaled.holds = Holds(
            scaled,
            lambda: partial(self._drains.hold_sensor, sensor_id, scaled.sensor),
            self._budget,
            check.on_drain_end,
            scaled.slots,
            self._request_budgets,
        )
        # When a drain last joined the group isn't known: assume now, as for a Trigger.
        scaled.note_joined()
        return check
