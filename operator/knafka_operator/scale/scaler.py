"""Scaler: reads the lag of each Trigger and Sensor, and holds as many drains open as it needs.

    lag, or a due timeout --decide--> Scale --hold--> requests, each of which keeps one drain
    running

A Trigger has its own requests, or its shard has one for all its Triggers. A Trigger that changes,
moves or is deleted has only one of the two at a time:

    own requests -> shard                       once its own drains were stopped and have ended
    shard -> own requests, other shard, none    once its record was removed from the contract

Drains of a changed or deleted Trigger are ended at once. The end of this process ends no drain:
dispatchers go on, and the next scaler holds them. Times are by the event loop's clock.

Not here: when lags are read, and decisions (`lag_checks`), how a request is held (`holds`), Kafka
and HTTP, which are behind `GroupSource` and `Drains`. One Scaler serves one Kafka.
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
from knafka_operator.scale.holds import REQUEST_BUDGETS, EndingHolds, Holds, cancel_holds
from knafka_operator.scale.lag_checks import LagChecks, SensorLagCheck, TopicLagCheck
from knafka_operator.scale.scaled_groups import ScaledSensor, ScaledTrigger
from knafka_operator.scale.scaled_shard import ScaledShard

log = logging.getLogger(__name__)

BUDGET: Final = 570.0
"""Seconds of a drain, over several requests, after which it may end if it isn't needed. Long, as
the end of a drain rebalances the group."""
LEAVE_TIMEOUT: Final = 120.0
"""Seconds for all members to leave the group of a changed Trigger or Sensor. Live dispatchers send
their own request within 18, are refused and leave within 5 (`draining.lease`); sessions of dead
ones end after 10."""
MEMBERS_CHECK_INTERVAL: Final = 0.5
"""Seconds between two requests for the members of a group."""
MAX_FORGOTTEN: Final = 1_000
"""Most forgotten Triggers whose last Egress is kept."""


class Drains(Protocol):
    """Opens drains on dispatchers."""

    def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Request a drain from a dispatcher of this Trigger; yields its progress until the drain
        has ended. Several drains may be held for one Trigger, each by another dispatcher. Setting
        `stop` ends the drain, which the last progress reports; if the request is cancelled, the
        drain goes on. May raise any error."""
        ...

    def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        """Request a drain of all Triggers of a shard; `stop` and errors as of `hold`."""
        ...

    def hold_sensor(
        self, sensor_id: str, sensor: SensorContract, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Request a drain from a process of a Sensor; `stop` and errors as of `hold`."""
        ...


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
        """`budget` is how many seconds one drain may take, `request_budgets` how many its first
        request and each later one may. `now` returns Unix time (seconds), with which Sensors'
        timeouts are compared."""
        self._request_budgets = request_budgets
        self._kafka = kafka
        self._drains = drains
        self._budget = budget
        self._now = now
        self._triggers: dict[str, ScaledTrigger] = {}
        self._topic_checks: dict[str, TopicLagCheck] = {}
        """Checks of topics, by `topics_key`."""
        self._multi_topic_checks: dict[str, TopicLagCheck] = {}
        """Those of `_topic_checks` that cover several topics."""
        self._sensor_checks: dict[str, SensorLagCheck] = {}
        self._shards: dict[str, ScaledShard] = {}
        """Shards with Triggers, or with a request that hasn't ended, by group."""
        self._ending = EndingHolds(self._on_drains_ended)
        self._forgotten: dict[str, Egress] = {}
        """By id, the last Egress of each Trigger that is no longer scaled and had its own
        drains."""
        self._lag_checks = LagChecks()

    async def run(self) -> None:
        """Scale until cancelled; the drains then go on by themselves."""
        try:
            await self._lag_checks.run(
                [*self._topic_checks.values(), *self._sensor_checks.values()]
            )
        finally:
            holds = self._ending.all
            for trigger in self._triggers.values():
                holds |= trigger.own.all
            for sensor in self._sensor_checks.values():
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
            stays = shard is not None and shard.group == trigger.drained_by.shard.group
            stays = stays and not autoscaling.paused
            if not stays or previous_egress.group != egress.group:
                self._leave(trigger, stays=stays)
        if shard is not None or autoscaling.paused or is_changed:
            self._ending.end(trigger_id, trigger.own)
        if previous_own_egress is not None and (previous_own_egress != egress or shard is not None):
            self._delay_drains(trigger_id, previous_own_egress.group, egress.group, autoscaling)
        if is_changed:
            self._change_egress(trigger, egress, in_shard=shard is not None)
        trigger.autoscaling, trigger.declared_shard = autoscaling, shard
        trigger.lag_request_due_at = -math.inf
        self._add_to_check(trigger)
        self._join(trigger)
        self._check_soon(topics_key(egress))
        await self._ending.wait_until_ended(trigger_id)

    async def watch_sensor(
        self, sensor_id: str, sensor: SensorContract, autoscaling: Autoscaling
    ) -> None:
        """Start to scale a Sensor, or apply changes to it; its counts go on.

        A changed contract and a pause end its drains. Returns once these have ended.
        """
        check = self._sensor_checks.get(sensor_id)
        if check is None:
            check = self._sensor_checks[sensor_id] = self._new_sensor(
                sensor_id, sensor, autoscaling
            )
            self._lag_checks.add(check)
        scaled = check.scaled
        if autoscaling.paused or scaled.sensor != sensor:
            self._ending.end(sensor_id, scaled.holds)
        if scaled.sensor != sensor:
            if not scaled.autoscaling.min_scale:
                group = scaled.sensor.group
                self._delay_drains(sensor_id, group, sensor.group, autoscaling)
            scaled.sensor = sensor
            scaled.drain_error = None
            scaled.holding.clear()  # the new contract may have other triggers
        scaled.autoscaling = autoscaling
        check.check_soon()
        await self._ending.wait_until_ended(sensor_id)

    async def forget(self, id_: str) -> None:
        """Stop scaling a Trigger or Sensor; returns once its own drains have ended."""
        if trigger := self._triggers.pop(id_, None):
            self._remove_from_check(trigger)
            self._leave(trigger)
            self._ending.end(id_, trigger.own)
            if trigger.own_egress is not None:
                self._forgotten[id_] = trigger.own_egress
                if len(self._forgotten) > MAX_FORGOTTEN:
                    del self._forgotten[next(iter(self._forgotten))]
        if sensor_check := self._sensor_checks.pop(id_, None):
            sensor_check.end()
            self._ending.end(id_, sensor_check.scaled.holds)
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
        """Check the lags of a topic with new events soon if one of its Triggers has no drain, and
        those of the Sensors that read the topic and have no drain.

        `grown` is the number of new records; 0: not known. If it is known, a shard without a
        request drains at once, without a request for each group's lag.
        """
        topic_check = self._topic_checks.get(topic)
        for topics_check in self._checks_of(topic):
            # Triggers of several topics (KafkaSources) are checked even while they have drains.
            needs_request = (
                trigger.needs_lag_request for trigger in topics_check.triggers.values()
            )
            if topics_check is not topic_check and any(needs_request):
                topics_check.check_soon()
        idle_triggers = [
            trigger
            for trigger in (topic_check.triggers.values() if topic_check else ())
            if not (trigger.holds or trigger.autoscaling.paused or trigger.is_resting)
        ]
        if grown:
            shared_drains = (trigger.drained_by for trigger in idle_triggers)
            for group in {drain.shard.group for drain in shared_drains if drain is not None}:
                self._shards[group].wake(topic, grown)
        if any(trigger.needs_lag_request for trigger in idle_triggers):
            self._check_soon(topic)
        for sensor_check in self._sensor_checks.values():
            sensor = sensor_check.scaled
            if topic in sensor.topics and not (sensor.holds or sensor.autoscaling.paused):
                sensor_check.check_soon()

    def prewarm(self, topic: str, limit: int) -> None:
        """Open drains for a topic's Triggers that have none, before an announced event is in Kafka:
        dispatchers then start at the same time as the receiver, not after it. Triggers that are
        paused, rest or have drains that still end are left out. Does nothing if more than `limit`
        drains are missing; a shard needs one for all its Triggers."""
        topic_check = self._topic_checks.get(topic)
        idle_holds: dict[Holds[Any], list[ScaledTrigger]] = {}
        for trigger in topic_check.triggers.values() if topic_check else ():
            holds = trigger.holds
            if trigger.is_resting:
                continue
            if not (holds.all or trigger.autoscaling.paused or trigger.id in self._ending):
                idle_holds.setdefault(holds, []).append(trigger)
        if len(idle_holds) <= limit:
            for holds, triggers in idle_holds.items():
                for trigger in triggers:
                    is_shared = trigger.drained_by is not None
                    trigger.set_scale(scale_for_expected_event(shared=is_shared))
                    # An event is on its way, so the lag needn't be requested before the drain.
                    trigger.note_lag_known()
                holds.open(Cause.PREWARM)

    def status(self, id_: str) -> ScalingStatus | None:
        """Return the status of a Trigger or Sensor; None: it isn't scaled."""
        if (sensor_check := self._sensor_checks.get(id_)) is not None:
            return sensor_check.scaled.status()
        trigger = self._triggers.get(id_)
        return None if trigger is None else trigger.status()

    def wakes(self, sensor_id: str) -> Mapping[Cause, int]:
        """Return how often a Sensor's drains were opened while it had none, by cause; empty: it
        isn't scaled."""
        check = self._sensor_checks.get(sensor_id)
        return {} if check is None else check.scaled.holds.wakes

    def held_events(self, sensor_id: str) -> Sequence[Waiting] | None:
        """Return the events that a Sensor's triggers hold, as reported by drains; None: no drain
        has reported any, or the Sensor isn't scaled."""
        check = self._sensor_checks.get(sensor_id)
        if check is None or not check.scaled.holding:
            return None
        return [
            held_event
            for held_in_partition in check.scaled.holding.values()
            for held_event in held_in_partition
        ]

    def settled(self, trigger_id: str) -> Positions:
        """Return how many records a Trigger's group has settled, by partition; empty: not known."""
        trigger = self._triggers.get(trigger_id)
        return {} if trigger is None else trigger.settled

    def counts(self, trigger_id: str) -> ScalingCounts | None:
        """Return the counts of the decisions for a Trigger; None: it isn't scaled."""
        trigger = self._triggers.get(trigger_id)
        return None if trigger is None else trigger.counts()

    def shards(self) -> Sequence[ShardStatus]:
        """Return the status of each shard with Triggers (`statuses`: that of each Trigger)."""
        return [shard.status() for shard in self._shards.values() if not shard.is_empty]

    def reads(self, topic: str) -> bool:
        """Whether a scaled Trigger or Sensor reads this topic."""
        sensors = (check.scaled for check in self._sensor_checks.values())
        return bool(self._checks_of(topic)) or any(topic in check.topics for check in sensors)

    def _checks_of(self, topic: str) -> Sequence[TopicLagCheck]:
        """Return the checks that cover this topic."""
        checks = [check for check in self._multi_topic_checks.values() if topic in check.names]
        return [*checks, self._topic_checks[topic]] if topic in self._topic_checks else checks

    def topics_with_drains(self) -> set[str]:
        """Return the topics of Triggers with open drains. These topics may grow at any time: the
        delivery of an event may write a reply."""
        drained = (trigger.egress.topics for trigger in self._triggers.values() if trigger.holds)
        return {topic for topics in drained for topic in topics}

    def statuses(self) -> Mapping[str, ScalingStatus]:
        """Return the status of all Triggers, by id."""
        return {trigger.id: trigger.status() for trigger in self._triggers.values()}

    def _delay_drains(self, id_: str, previous: str, group: str, autoscaling: Autoscaling) -> None:
        """Let a changed Trigger or Sensor open drains only once its consumer group is empty: pods
        with the old contract may go on draining without a request of ours. There is no delay if
        `group` isn't the `previous` one, nor with a min-scale, as the reconciliation then waits for
        the old pods."""
        if previous == group and not autoscaling.min_scale:
            self._ending.delay_end(id_, partial(self._wait_until_empty, id_, group))

    async def _wait_until_empty(self, id_: str, group: str) -> None:
        """Wait until the group is empty; after `LEAVE_TIMEOUT` seconds log a warning and return."""
        loop, obstacle = asyncio.get_running_loop(), ""
        deadline = loop.time() + LEAVE_TIMEOUT
        while loop.time() < deadline:
            try:
                members = await self._kafka.members(group)
            except LogError as error:
                obstacle = str(error)
            else:
                if not members:
                    return
                obstacle = f"group {group} has {len(members)} members"
            await asyncio.sleep(MEMBERS_CHECK_INTERVAL)
        log.warning(
            "%s was changed, and may still be delivered as it was before: %s", id_, obstacle
        )

    def _check_soon(self, key: str) -> None:
        """Make the lag check with this key (`topics_key`) due soon, if there is one."""
        if check := self._topic_checks.get(key):
            check.check_soon()

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
            lambda: self._check_soon(topics_key(trigger.egress)),
            request_budgets=self._request_budgets,
        )
        # When a drain last joined the group isn't known. Assume now: otherwise all groups would be
        # joined when the operator starts.
        trigger.note_joined()
        return trigger

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
        scaled.note_joined()  # not known, so taken as now, like a Trigger's
        return check

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

    def _add_to_check(self, trigger: ScaledTrigger) -> None:
        """Add a Trigger to the lag check of its topics; starts a check for new topics."""
        key = topics_key(trigger.egress)
        check = self._topic_checks.get(key)
        if check is None:
            names = trigger.egress.topics
            check = self._topic_checks[key] = TopicLagCheck(names, self._kafka, self._ending)
            if len(names) > 1:
                self._multi_topic_checks[key] = check
            self._lag_checks.add(check)
        check.triggers[trigger.id] = trigger

    def _change_egress(self, trigger: ScaledTrigger, egress: Egress, *, in_shard: bool) -> None:
        """Scale a Trigger by its changed Egress from now on, so that its rest ends. Its lag isn't
        known any more, unless it is in a shard and its group and topics are the same."""
        previous_egress = trigger.egress
        self._remove_from_check(trigger)
        trigger.egress = egress
        trigger.rest.reset()
        has_same_topics = previous_egress.topics == egress.topics
        if not in_shard or not has_same_topics or previous_egress.group != egress.group:
            trigger.lag = trigger.drain_error = None

    def _remove_from_check(self, trigger: ScaledTrigger) -> None:
        """Remove a Trigger from the lag check of its topics; ends a check without Triggers."""
        key = topics_key(trigger.egress)
        check = self._topic_checks[key]
        del check.triggers[trigger.id]
        if not check.triggers:
            del self._topic_checks[key]
            self._multi_topic_checks.pop(key, None)
            check.end()

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
        """Remove a Trigger from its shard, if it has one. If the shard is empty then, end the
        request, unless the Trigger `stays`: the caller adds it again at once."""
        if trigger.drained_by is None:
            return
        shard = self._shards[trigger.drained_by.shard.group]
        shard.remove(trigger)
        if shard.is_empty and not stays:
            self._ending.end(trigger.id, shard.holds)
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
            self._check_soon(topic)

    def _on_drains_ended(self, id_: str) -> None:
        """Let a changed Trigger or Sensor open new drains, as its previous ones have ended."""
        if successor := self._triggers.get(id_):
            self._join(successor)
            self._check_soon(topics_key(successor.egress))
        if sensor_check := self._sensor_checks.get(id_):
            sensor_check.check_soon()


def topics_key(egress: Egress) -> str:
    """Return the key of an Egress's lag check: the names of its topics, separated by commas."""
    return ",".join(egress.topics)
