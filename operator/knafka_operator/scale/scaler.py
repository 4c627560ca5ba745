"""Scaler: asks for the lag of each Trigger and Sensor, and holds as many drains open as it needs.

    lag, or what is due --decide--> Scale --hold--> requests, each of which keeps one drain going

A Trigger has requests of its own, or its shard has one for all its Triggers. What changes, moves
or goes is held by one of them at a time:

    own --stopped, awaited--> shard --taken out--> own, another shard, none

Drains of what changes or goes are ended at once; what merely ends, such as this process, ends no
drain: dispatchers go on, and the next scaler holds them. Time is the event loop's.

Not here: when Kafka is asked, and what is decided then (`looks`), how a request is held (`holds`),
Kafka and HTTP, which `GroupSource` and `Drains` bring in for the operator and the local mode. One
Scaler serves one Kafka.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from knafka.core.contract import Egress, Shard
from knafka.core.drain import DrainProgress, DrainRequest, ShardProgress, Waiting
from knafka.core.errors import LogError
from knafka.core.sensor.contract import Sensor
from knafka.ports.log import GroupSource, Positions
from knafka_operator.decide.scaling import (
    Cause,
    ScalingCounts,
    ShardStatus,
    TriggerStatus,
    expecting_event,
)
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.holds import REQUEST_BUDGETS, EndingHolds, Holds, cancel_holds
from knafka_operator.scale.looks import LagChecks, SensorLagCheck, TopicLagCheck
from knafka_operator.scale.scaled_groups import ScaledSensor, ScaledTrigger
from knafka_operator.scale.scaled_shard import ScaledShard

log = logging.getLogger(__name__)

BUDGET: Final = 570.0
"""Seconds, by one request after another, after which it is decided whether a drain is still wanted:
seldom, as each that ends moves partitions."""
LEAVE_TIMEOUT: Final = 120.0
"""Seconds for all to leave the group of what has changed. Those that live ask for themselves within
18, are refused and leave within 5 (`draining.lease`); the session of the others ends after 10."""
MEMBERS_CHECK_INTERVAL: Final = 0.5
"""Seconds between two questions who is in a group."""
MAX_FORGOTTEN: Final = 1_000
"""Triggers that aren't scaled for now of which it is known how they were delivered."""


class Drains(Protocol):
    """Opens drains on dispatchers."""

    def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Ask a dispatcher of this Trigger to drain; gives what it tells, until it has ended.

        Several may be held for one Trigger, each by a dispatcher of its own. Raises whatever went
        wrong. `stop` has the drain end, which it tells with its last progress; cancelled, the
        caller hangs up and the drain goes on.
        """
        ...

    def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        """Ask the dispatcher of a shard to drain all that it has, as `hold` does."""
        ...

    def hold_sensor(
        self, sensor_id: str, sensor: Sensor, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Ask a process of a Sensor to drain, as `hold` does a dispatcher."""
        ...


class Scaler:
    """Looks at lags and holds drains; all methods belong to the event loop that runs `run`."""

    def __init__(
        self,
        kafka: GroupSource,
        drains: Drains,
        *,
        budget: float = BUDGET,
        request_budgets: tuple[float, float] = REQUEST_BUDGETS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`now`: seconds since the Unix epoch, by which what is due comes."""
        self._request_budgets = request_budgets
        self._kafka = kafka
        self._drains = drains
        self._budget = budget
        self._now = now
        self._triggers: dict[str, ScaledTrigger] = {}
        self._topics: dict[str, TopicLagCheck] = {}
        """By `topics_key` what reads it."""
        self._several: dict[str, TopicLagCheck] = {}
        """Those of them that look at several topics together."""
        self._sensors: dict[str, SensorLagCheck] = {}
        self._shards: dict[str, ScaledShard] = {}
        """Those with members, or a request that isn't over, by group."""
        self._ending = EndingHolds(self._on_drains_ended)
        self._forgotten: dict[str, Egress] = {}
        """By what Triggers with drains of their own were delivered last, of those that aren't
        scaled for now or for good."""
        self._lag_checks = LagChecks()

    async def run(self) -> None:
        """Look and hold until cancelled; the drains go on without."""
        try:
            await self._lag_checks.run([*self._topics.values(), *self._sensors.values()])
        finally:
            holds = self._ending.all
            for trigger in self._triggers.values():
                holds |= trigger.own.all
            for sensor in self._sensors.values():
                holds |= sensor.scaled.holds.all
            for shard in self._shards.values():
                holds |= shard.holds.all
            await cancel_holds(holds)

    async def watch(
        self,
        trigger_id: str,
        egress: Egress,
        autoscaling: Autoscaling,
        shard: Shard | None = None,
    ) -> None:
        """Scale this Trigger from now on, or by what has changed; its counts go on.

        A changed egress, a pause and a `shard` end its own drains. A shard's request goes on
        without a Trigger that is paused or moved, whose record in the contract's topic is gone by
        now, and ends with the last one. Returns when what was to end is over.
        """
        trigger = self._triggers.get(trigger_id)
        own_before = (
            self._forgotten.pop(trigger_id, None) if trigger is None else trigger.own_egress
        )
        if trigger is None:
            trigger = self._triggers[trigger_id] = self._new_trigger(
                trigger_id, egress, autoscaling
            )
        before, had = trigger.egress, trigger.shard
        joins = None if autoscaling.paused else shard
        if had is not None:
            stays = joins is not None and joins.group == had.shard.group
            if not stays or before.group != egress.group:
                self._leave(trigger, stays=stays)
        if shard is not None or autoscaling.paused or before != egress:
            self._ending.end(trigger_id, trigger.own)
        if own_before is not None and (own_before != egress or shard is not None):
            self._await_empty(trigger_id, own_before.group, egress.group, autoscaling)
        if before != egress:
            self._remove_from_check(trigger)
            trigger.egress = egress
            trigger.rest.reset()
            if shard is None or (before.topics, before.group) != (egress.topics, egress.group):
                trigger.lag = trigger.drain_error = None
        trigger.autoscaling, trigger.declared = autoscaling, shard
        trigger.ask_by = -math.inf
        self._add_to_check(trigger)
        self._join(trigger)
        self._check_soon(topics_key(egress))
        await self._ending.wait(trigger_id)

    async def watch_sensor(self, sensor_id: str, sensor: Sensor, autoscaling: Autoscaling) -> None:
        """Scale this Sensor from now on, or by what has changed; its counts go on.

        Drains of what it was before end, and so do all while it is paused. Returns when what was to
        end is over.
        """
        look = self._sensors.get(sensor_id)
        if look is None:
            look = self._sensors[sensor_id] = self._new_sensor(sensor_id, sensor, autoscaling)
            self._lag_checks.add(look)
        scaled = look.scaled
        if autoscaling.paused or scaled.sensor != sensor:
            self._ending.end(sensor_id, scaled.holds)
        if scaled.sensor != sensor:
            if not scaled.autoscaling.min_scale:
                group = scaled.sensor.group
                self._await_empty(sensor_id, group, sensor.group, autoscaling)
            scaled.sensor = sensor
            scaled.drain_error = None
            scaled.holding.clear()  # of triggers that may be other ones
        scaled.autoscaling = autoscaling
        look.check_soon()
        await self._ending.wait(sensor_id)

    async def forget(self, id_: str) -> None:
        """Scale this Trigger or Sensor no more; returns when what drained for it alone is over."""
        if trigger := self._triggers.pop(id_, None):
            self._remove_from_check(trigger)
            self._leave(trigger)
            self._ending.end(id_, trigger.own)
            if trigger.own_egress is not None:
                self._forgotten[id_] = trigger.own_egress
                if len(self._forgotten) > MAX_FORGOTTEN:
                    del self._forgotten[next(iter(self._forgotten))]
        if sensor := self._sensors.pop(id_, None):
            sensor.end()
            self._ending.end(id_, sensor.scaled.holds)
        await self._ending.wait(id_)

    async def wait_until_applied(self, shard_group: str, position: int, timeout: float) -> bool:
        """Whether this shard delivers by every record before `position` of the contract's topic.

        Waits for its open request to say so; at once if there is none. False after `timeout`
        seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while (shard := self._shards.get(shard_group)) is not None:
                    if shard.has_applied(position):
                        break
                    await shard.changed.wait()
        except TimeoutError:
            return False
        return True

    def wake(self, topic: str, grown: int = 0) -> None:
        """There are new events: look at this topic now, if any of its Triggers is at zero, and at
        the Sensors that read it and sleep.

        `grown`, if that is known, is by how many records: that many wait for each Trigger of a
        shard at zero, which therefore drains without a question for each of its groups.
        """
        found = self._topics.get(topic)
        for several in self._checks_of(topic):
            triggers = several.triggers.values()
            if several is not found and any(each.needs_question for each in triggers):
                several.check_soon()
        asleep = [
            each
            for each in (found.triggers.values() if found else ())
            if not (each.holds or each.autoscaling.paused or each.is_resting)
        ]
        if grown:
            for shard in {self._shards[each.shard.shard.group] for each in asleep if each.shard}:
                shard.wake(topic, grown)
        if any(each.needs_question for each in asleep):
            self._check_soon(topic)
        for look in self._sensors.values():
            sensor = look.scaled
            if topic in sensor.topics and not (sensor.holds or sensor.autoscaling.paused):
                look.check_soon()

    def prewarm(self, topic: str, limit: int) -> None:
        """An event is on its way there: Triggers at zero drain already, if at most `limit` are;
        those of one shard count as one.

        Their start and the receiver's then take the same time, not one after the other.
        """
        found = self._topics.get(topic)
        asleep: dict[Holds[Any], list[ScaledTrigger]] = {}
        for trigger in found.triggers.values() if found else ():
            holds = trigger.holds
            if trigger.is_resting:
                continue
            if not (holds.all or trigger.autoscaling.paused or trigger.id in self._ending):
                asleep.setdefault(holds, []).append(trigger)
        if len(asleep) <= limit:
            for holds, triggers in asleep.items():
                for trigger in triggers:
                    trigger.set_scale(expecting_event(shared=trigger.shard is not None))
                    trigger.note_lag_known()
                holds.open(Cause.PREWARM)

    def status(self, id_: str) -> TriggerStatus | None:
        """Of one Trigger or Sensor; None: it isn't scaled."""
        if (sensor := self._sensors.get(id_)) is not None:
            return sensor.scaled.status()
        trigger = self._triggers.get(id_)
        return None if trigger is None else trigger.status()

    def wakes(self, sensor_id: str) -> Mapping[Cause, int]:
        """Times that drains of one Sensor were opened where none was held, by what for."""
        look = self._sensors.get(sensor_id)
        return {} if look is None else look.scaled.holds.wakes

    def held_events(self, sensor_id: str) -> Sequence[Waiting] | None:
        """What the triggers of one Sensor hold, as drains have reported it; None: none has yet."""
        look = self._sensors.get(sensor_id)
        if look is None or not look.scaled.holding:
            return None
        return [each for of in look.scaled.holding.values() for each in of]

    def settled(self, trigger_id: str) -> Positions:
        """By partition of its topic, records that one Trigger's group has settled."""
        trigger = self._triggers.get(trigger_id)
        return {} if trigger is None else trigger.settled

    def counts(self, trigger_id: str) -> ScalingCounts | None:
        """What was decided for one Trigger; None: it isn't scaled."""
        trigger = self._triggers.get(trigger_id)
        return None if trigger is None else trigger.counts()

    def shards(self) -> Sequence[ShardStatus]:
        """Those that have Triggers."""
        return [each.status() for each in self._shards.values() if not each.is_empty]

    def reads(self, topic: str) -> bool:
        """Whether any Trigger of this topic is scaled, or any Sensor that reads it."""
        sensors = (each.scaled for each in self._sensors.values())
        return bool(self._checks_of(topic)) or any(topic in each.topics for each in sensors)

    def _checks_of(self, topic: str) -> Sequence[TopicLagCheck]:
        """Those at this topic, alone or with others."""
        found = [self._several[key] for key in self._several if topic in self._several[key].names]
        return [*found, self._topics[topic]] if topic in self._topics else found

    def drained(self) -> set[str]:
        """Topics whose Triggers have drains; replies may go there."""
        drained = (each.egress.topics for each in self._triggers.values() if each.holds)
        return {topic for topics in drained for topic in topics}

    def statuses(self) -> Mapping[str, TriggerStatus]:
        """Of all Triggers, by id."""
        return {each.id: each.status() for each in self._triggers.values()}

    def _await_empty(self, id_: str, before: str, group: str, autoscaling: Autoscaling) -> None:
        """Begin nothing of what has changed before nobody is in its group any more: a drain that we
        don't hold goes on by what was before, such as that of a pod which another pod has asked.

        Not where the group has changed, too, and not for min-scale: its pods drain unasked, and
        those of before have been waited for.
        """
        if before == group and not autoscaling.min_scale:
            self._ending.wait_for(id_, partial(self._wait_until_empty, id_, group))

    async def _wait_until_empty(self, id_: str, group: str) -> None:
        """Returns when nobody is in the group, or after `LEAVE_TIMEOUT`, which the log tells."""
        loop, why = asyncio.get_running_loop(), ""
        deadline = loop.time() + LEAVE_TIMEOUT
        while loop.time() < deadline:
            try:
                members = await self._kafka.members(group)
            except LogError as error:
                why = str(error)
            else:
                if not members:
                    return
                why = f"group {group} has {len(members)} members"
            await asyncio.sleep(MEMBERS_CHECK_INTERVAL)
        log.warning("%s was changed, and may still be delivered by what was before: %s", id_, why)

    def _check_soon(self, name: str) -> None:
        if topic := self._topics.get(name):
            topic.check_soon()

    def _new_trigger(
        self, trigger_id: str, egress: Egress, autoscaling: Autoscaling
    ) -> ScaledTrigger:
        trigger = ScaledTrigger(trigger_id, autoscaling, egress)
        trigger.own = Holds(
            trigger,
            lambda: partial(self._drains.hold, trigger_id, trigger.egress),
            self._budget,
            # What arrived since the drain last read, and had nobody to wake it, is looked for now.
            lambda: self._check_soon(topics_key(trigger.egress)),
            request_budgets=self._request_budgets,
        )
        trigger.note_joined()  # nobody knows when; most Triggers have events before this is due
        return trigger

    def _new_sensor(
        self, sensor_id: str, sensor: Sensor, autoscaling: Autoscaling
    ) -> SensorLagCheck:
        scaled = ScaledSensor(sensor_id, autoscaling, sensor)
        look = SensorLagCheck(scaled, self._kafka, self._ending, self._now)
        scaled.holds = Holds(
            scaled,
            lambda: partial(self._drains.hold_sensor, sensor_id, scaled.sensor),
            self._budget,
            look.on_over,
            scaled.slots,
            self._request_budgets,
        )
        scaled.note_joined()  # nobody knows when; most have events before this is due
        return look

    def _new_shard(self, declared: Shard) -> ScaledShard:
        shard = ScaledShard(declared)
        shard.holds = Holds(
            shard,
            # Its size may change while it is held.
            lambda: lambda request, stop: self._drains.hold_shard(shard.shard, request, stop),
            self._budget,
            lambda: self._on_shard_request_end(shard),
            request_budgets=self._request_budgets,
        )
        return shard

    def _add_to_check(self, trigger: ScaledTrigger) -> None:
        name = topics_key(trigger.egress)
        topic = self._topics.get(name)
        if topic is None:
            names = trigger.egress.topics
            topic = self._topics[name] = TopicLagCheck(names, self._kafka, self._ending)
            if len(names) > 1:
                self._several[name] = topic
            self._lag_checks.add(topic)
        topic.triggers[trigger.id] = trigger

    def _remove_from_check(self, trigger: ScaledTrigger) -> None:
        name = topics_key(trigger.egress)
        topic = self._topics[name]
        del topic.triggers[trigger.id]
        if not topic.triggers:
            del self._topics[name]
            self._several.pop(name, None)
            topic.end()

    def _join(self, trigger: ScaledTrigger) -> None:
        """Have its shard hold it, if it is to and nothing else does any more."""
        declared = trigger.declared
        if declared is None or trigger.autoscaling.paused or trigger.id in self._ending:
            return
        if (shard := self._shards.get(declared.group)) is None:
            shard = self._shards[declared.group] = self._new_shard(declared)
        shard.shard = declared
        if trigger.shard is None:
            shard.add(trigger)

    def _leave(self, trigger: ScaledTrigger, *, stays: bool = False) -> None:
        """Take it out of its shard, which ends with its last one unless that `stays`."""
        if trigger.shard is None:
            return
        shard = self._shards[trigger.shard.shard.group]
        shard.remove(trigger)
        if shard.is_empty and not stays:
            self._ending.end(trigger.id, shard.holds)
            self._on_shard_request_end(shard)

    def _on_shard_request_end(self, shard: ScaledShard) -> None:
        shard.notify_waiting()
        if (settled := shard.take_settled()) is not None:
            # Else each of its groups is asked for now.
            self._kafka.note_committed(*settled)
        if shard.is_empty and not shard.holds.all:
            self._shards.pop(shard.shard.group, None)
        for topic in shard.topics:
            self._check_soon(topic)

    def _on_drains_ended(self, id_: str) -> None:
        if successor := self._triggers.get(id_):
            self._join(successor)
            self._check_soon(topics_key(successor.egress))
        if look := self._sensors.get(id_):
            look.check_soon()


def topics_key(egress: Egress) -> str:
    """Its topic's name; of one that reads several, theirs: no topic's has a comma."""
    return ",".join(egress.topics)
