"""Scaler: reads the lag of each Trigger and Sensor, and holds as many drains open as it needs.

    lag, or a due timeout --decide--> Scale --hold--> requests, each of which keeps one drain
    running

In a drain, a dispatcher joins the consumer group, delivers events, and leaves. A Trigger has its
own requests, or its shard has one for all its Triggers. A Trigger that changes, moves or is deleted
has only one of the two at a time:

    own requests -> shard    once its own drains were stopped and have ended
    shard -> own requests, another shard or nothing
                             once the shard's contract no longer lists the Trigger

Drains of a changed or deleted Trigger are ended at once. The end of this process ends no drain:
dispatchers go on, and the next scaler holds them. Times are by the event loop's clock.

Not here: when lags are read, and decisions (`lag_checks`), how a request is held (`holds`), Sensors
(`sensor_scaler`), Kafka and HTTP, which are behind `GroupSource` and `Drains`. One Scaler serves
one Kafka.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from knafka.core.contract import Egress, Shard
from knafka.core.drain import Waiting
from knafka.core.sensor.contract import SensorContract
from knafka.ports.log import GroupSource, Positions
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.decide import (
    Cause,
    ScalingCounts,
    ScalingStatus,
    ShardStatus,
    scale_for_expected_event,
)
from knafka_operator.scale.drains_port import Drains
from knafka_operator.scale.holds import REQUEST_BUDGETS, EndingHolds, Holds, cancel_holds
from knafka_operator.scale.lag_checks import LagChecks
from knafka_operator.scale.leaving_groups import LeavingGroups
from knafka_operator.scale.scaled_groups import ScaledTrigger
from knafka_operator.scale.scaled_shard import ScaledShard
from knafka_operator.scale.sensor_scaler import SensorScaler
from knafka_operator.scale.topic_checks import TopicChecks

BUDGET: Final = 570.0
"""Seconds after which a drain, which may go over several requests, may end if it isn't needed. The
value is large, as each end of a drain rebalances the group."""
MAX_FORGOTTEN: Final = 1_000
"""Most forgotten Triggers whose last Egress is kept."""


class Scaler:
    """Holds as many drains as lags require; all methods belong to the event loop of `run`."""

    def __init__(
        self,
        kafka: GroupSource,
        drains: Drains,
        *,
        budget: float = BUDGET,
        request_budgets: tuple[float, float] = REQUEST_BUDGETS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`budget`: as `BUDGET`. `request_budgets` are the most seconds of a drain's first request,
        and of each later one. `now` returns Unix time (seconds), with which Sensors' timeouts are
        compared."""
        self._request_budgets = request_budgets
        self._kafka = kafka
        self._drains = drains
        self._budget = budget
        self._triggers: dict[str, ScaledTrigger] = {}
        self._shards: dict[str, ScaledShard] = {}
        """Shards with Triggers, or with a request that hasn't ended, by group."""
        self._ending = EndingHolds(self._on_drains_ended)
        self._forgotten: dict[str, Egress] = {}
        """By id, the last Egress of each Trigger that is no longer scaled and had its own drains.
        If the Trigger comes back, pods with that Egress may still drain (`LeavingGroups`)."""
        self._lag_checks = LagChecks()
        self._topic_checks = TopicChecks(kafka, self._ending, self._lag_checks)
        self._leaving_groups = LeavingGroups(kafka, self._ending)
        shared = self._ending, self._leaving_groups, self._lag_checks
        self._sensors = SensorScaler(kafka, drains, *shared, budget, request_budgets, now)

    async def run(self) -> None:
        """Scale until cancelled; the drains then go on by themselves."""
        try:
            await self._lag_checks.run([*self._topic_checks.all, *self._sensors.checks])
        finally:
            holds = self._ending.all
            for trigger in self._triggers.values():
                holds |= trigger.own.all
            holds |= self._sensors.holds
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
        """Start to scale a Trigger, or apply changes to it; its counts go on. `shard` is the shard
        that drains the Trigger; None: its own dispatcher does.

        The Trigger's own drains end if its `egress` changes, if it is paused or if it gets a
        `shard`; returns once they have ended. The caller must have removed a paused or moved
        Trigger from the shard's contract: the shard's request goes on without the Trigger, or ends
        if it was the shard's last.
        """
        trigger = self._triggers.get(trigger_id)
        if trigger is None:
            previous_own_egress = self._forgotten.pop(trigger_id, None)
            trigger = self._new_trigger(trigger_id, egress, autoscaling)
            self._triggers[trigger_id] = trigger
        else:
            previous_own_egress = trigger.own_egress
        previous_egress, is_changed = trigger.egress, trigger.egress != egress
        if trigger.drained_by is not None:
            stays_in_shard = (
                shard is not None
                and shard.group == trigger.drained_by.shard.group
                and not autoscaling.paused
            )
            # A shard knows its Triggers by consumer group: with another group, a Trigger that
            # stays leaves and joins again.
            if not stays_in_shard or previous_egress.group != egress.group:
                self._leave(trigger, stays=stays_in_shard)
        if shard is not None or autoscaling.paused or is_changed:
            self._ending.end(trigger_id, trigger.own)
        # After `end`: the delay begins once the drains that end now have ended.
        if previous_own_egress is not None and (previous_own_egress != egress or shard is not None):
            self._leaving_groups.delay_drains(
                trigger_id, previous_own_egress.group, egress.group, autoscaling
            )
        if is_changed:
            self._change_egress(trigger, egress, in_shard=shard is not None)
        trigger.autoscaling, trigger.declared_shard = autoscaling, shard
        trigger.lag_request_due_at = -math.inf
        self._topic_checks.add(trigger)
        self._join(trigger)
        self._topic_checks.check_trigger_soon(trigger)
        await self._ending.wait_until_ended(trigger_id)

    async def watch_sensor(
        self, sensor_id: str, sensor: SensorContract, autoscaling: Autoscaling
    ) -> None:
        """Start to scale a Sensor, or apply changes to it; its counts go on.

        A changed contract and a pause end its drains. Returns once these have ended.
        """
        await self._sensors.watch(sensor_id, sensor, autoscaling)

    async def forget(self, id_: str) -> None:
        """Stop scaling a Trigger or Sensor, and end its own drains; returns once these have ended.
        A Trigger in a shard leaves the shard."""
        if trigger := self._triggers.pop(id_, None):
            self._topic_checks.remove(trigger)
            self._leave(trigger)
            self._ending.end(id_, trigger.own)
            if trigger.own_egress is not None:
                self._forgotten[id_] = trigger.own_egress
                if len(self._forgotten) > MAX_FORGOTTEN:
                    del self._forgotten[next(iter(self._forgotten))]  # the oldest
        self._sensors.forget(id_)
        await self._ending.wait_until_ended(id_)

    async def wait_until_applied(self, shard_group: str, position: int, timeout: float) -> bool:
        """Wait until a shard delivers by all records before `position` of the contract topic.
        Returns True then, or at once if the shard has no open request; False after `timeout`
        seconds."""
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
        """Handle new events in a topic: check its lags soon if one of its Triggers has no drain,
        and the lags of the Sensors that read the topic and have no drain.

        `grown` is the number of new records; 0: not known. If it is known, an idle shard opens its
        drain at once, without asking Kafka for each group's lag.
        """
        topic_check = self._topic_checks.find(topic)
        for check in self._topic_checks.find_covering(topic):
            if check is topic_check:
                continue
            # Triggers of several topics (KafkaSources) are checked even while they have drains.
            if any(trigger.needs_lag_request for trigger in check.triggers.values()):
                check.check_soon()
        triggers = topic_check.triggers.values() if topic_check else ()
        idle_triggers = [
            trigger
            for trigger in triggers
            if not (trigger.holds or trigger.autoscaling.paused or trigger.is_resting)
        ]
        if grown:
            shared_drains = (trigger.drained_by for trigger in idle_triggers)
            for group in {drain.shard.group for drain in shared_drains if drain is not None}:
                self._shards[group].wake(topic, grown)
        if any(trigger.needs_lag_request for trigger in idle_triggers):
            self._topic_checks.check_soon(topic)
        self._sensors.wake(topic)

    def prewarm(self, topic: str, limit: int) -> None:
        """Open drains for a topic's Triggers that have none, before an announced event is in Kafka:
        dispatchers then start at the same time as the receiver, not after it. Triggers that are
        paused, rest or have drains that still end are left out. Does nothing if more than `limit`
        drains are missing; a shard needs one for all its Triggers."""
        if (topic_check := self._topic_checks.find(topic)) is None:
            return
        # Triggers of one shard have the same `holds`.
        idle_triggers_by_holds: dict[Holds[Any], list[ScaledTrigger]] = {}
        for trigger in topic_check.triggers.values():
            if trigger.is_resting or trigger.autoscaling.paused or trigger.id in self._ending:
                continue
            if not trigger.holds.all:
                idle_triggers_by_holds.setdefault(trigger.holds, []).append(trigger)
        if len(idle_triggers_by_holds) > limit:
            return
        for holds, triggers in idle_triggers_by_holds.items():
            for trigger in triggers:
                is_shared = trigger.drained_by is not None
                trigger.set_scale(scale_for_expected_event(shared=is_shared))
                # An event is on its way, so the lag needn't be requested before the drain.
                trigger.note_lag_known()
            holds.open(Cause.PREWARM)

    def status(self, id_: str) -> ScalingStatus | None:
        """Return the status of a Trigger or Sensor; None: it isn't scaled."""
        if (sensor_status := self._sensors.status(id_)) is not None:
            return sensor_status
        trigger = self._triggers.get(id_)
        return None if trigger is None else trigger.status()

    def wakes(self, sensor_id: str) -> Mapping[Cause, int]:
        """Return how often a Sensor's drains were opened while it had none, by cause; empty: it
        isn't scaled."""
        return self._sensors.wakes(sensor_id)

    def held_events(self, sensor_id: str) -> Sequence[Waiting] | None:
        """Return the events that a Sensor's triggers hold, as reported by drains; None: no drain
        has reported any, or the Sensor isn't scaled."""
        return self._sensors.held_events(sensor_id)

    def settled(self, trigger_id: str) -> Positions:
        """Return how many records a Trigger's group has settled, by partition; empty: not known."""
        trigger = self._triggers.get(trigger_id)
        return {} if trigger is None else trigger.settled

    def counts(self, trigger_id: str) -> ScalingCounts | None:
        """Return the counts of the decisions for a Trigger; None: it isn't scaled."""
        trigger = self._triggers.get(trigger_id)
        return None if trigger is None else trigger.counts()

    def shards(self) -> Sequence[ShardStatus]:
        """Return the status of each shard that has Triggers."""
        return [shard.status() for shard in self._shards.values() if not shard.is_empty]

    def reads(self, topic: str) -> bool:
        """Whether a scaled Trigger or Sensor reads this topic."""
        return bool(self._topic_checks.find_covering(topic)) or self._sensors.reads(topic)

    def topics_with_drains(self) -> set[str]:
        """Return the topics of Triggers with open drains. These topics may grow at any time: the
        delivery of an event may write a reply."""
        drained_triggers = (trigger for trigger in self._triggers.values() if trigger.holds)
        return {topic for trigger in drained_triggers for topic in trigger.egress.topics}

    def statuses(self) -> Mapping[str, ScalingStatus]:
        """Return the status of each scaled Trigger, by id."""
        return {trigger.id: trigger.status() for trigger in self._triggers.values()}

    def _new_trigger(
        self, trigger_id: str, egress: Egress, autoscaling: Autoscaling
    ) -> ScaledTrigger:
        """Return a scaled Trigger without open drains, whose lag isn't known yet."""
        trigger = ScaledTrigger(trigger_id, autoscaling, egress)
        trigger.own = Holds(
            trigger,
            lambda: partial(self._drains.hold, trigger_id, trigger.egress),
            self._budget,
            # Check for events that arrived after the drain's last read.
            lambda: self._topic_checks.check_trigger_soon(trigger),
            request_budgets=self._request_budgets,
        )
        # When a drain last joined the group isn't known. Assume now: otherwise all groups would be
        # joined when the operator starts.
        trigger.note_joined()
        return trigger

    def _new_shard(self, declared: Shard) -> ScaledShard:
        """Return a scaled shard without members or open requests."""
        shard = ScaledShard(declared)
        shard.holds = Holds(
            shard,
            # The shard's size may change while the request is held.
            lambda: lambda request, stop: self._drains.hold_shard(shard.shard, request, stop),
            self._budget,
            lambda: self._on_shard_request_end(shard),
            request_budgets=self._request_budgets,
        )
        return shard

    def _change_egress(self, trigger: ScaledTrigger, egress: Egress, *, in_shard: bool) -> None:
        """Scale a Trigger by its changed Egress from now on, and end its rest. Its lag isn't known
        any more, unless a shard drains it and its group and topics are the same."""
        previous_egress = trigger.egress
        self._topic_checks.remove(trigger)
        trigger.egress = egress
        trigger.rest.reset()
        has_same_topics = previous_egress.topics == egress.topics
        if not in_shard or not has_same_topics or previous_egress.group != egress.group:
            trigger.lag = trigger.drain_error = None

    def _join(self, trigger: ScaledTrigger) -> None:
        """Add a Trigger to its shard, once its own drains have ended and unless it is paused."""
        declared = trigger.declared_shard
        if declared is None or trigger.autoscaling.paused or trigger.id in self._ending:
            return
        if (shard := self._shards.get(declared.group)) is None:
            shard = self._shards[declared.group] = self._new_shard(declared)
        shard.shard = declared
        if trigger.drained_by is None:
            shard.add(trigger)

    def _leave(self, trigger: ScaledTrigger, *, stays: bool = False) -> None:
        """Remove a Trigger from its shard, if it has one. If that leaves the shard empty, end the
        shard's request, except with `stays`: then the caller adds the Trigger again at once."""
        if trigger.drained_by is None:
            return
        shard = self._shards[trigger.drained_by.shard.group]
        shard.remove(trigger)
        if shard.is_empty and not stays:
            self._ending.end(trigger.id, shard.holds)
            # The shard may have no request whose end would drop it.
            self._on_shard_request_end(shard)

    def _on_shard_request_end(self, shard: ScaledShard) -> None:
        """Handle the end of a shard's request: note the commits that it has reported, drop an empty
        shard, and check the topics of its Triggers soon."""
        shard.notify_waiting()
        if (settled := shard.pop_settled()) is not None:
            # Saves a request for the lag of each of these groups.
            self._kafka.note_committed(*settled)
        if shard.is_empty and not shard.holds.all:
            self._shards.pop(shard.shard.group, None)
        for topic in shard.topics:
            self._topic_checks.check_soon(topic)

    def _on_drains_ended(self, id_: str) -> None:
        """Let the Trigger or Sensor of this id open new drains, if it is still scaled; called once
        its previous drains have ended."""
        if trigger := self._triggers.get(id_):
            self._join(trigger)
            self._topic_checks.check_trigger_soon(trigger)
        self._sensors.check_soon(id_)
