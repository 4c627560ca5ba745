"""Scaler: asks for each Trigger's lag, and holds as many drains open as it needs.

    lag --decide--> Scale --hold--> requests, each of which keeps one drain going

A Trigger has requests of its own, or its shard has one for all its Triggers. What changes, moves
or goes is held by one of them at a time:

    own --stopped, awaited--> shard --taken out--> own, another shard, none

Drains of what changes or goes are ended at once; what merely ends, such as this process, ends no
drain: dispatchers go on, and the next scaler holds them. Time is the event loop's.

Not here: the decision (`decide.scaling`), how a request is held (`holds`), Kafka and HTTP, which
`LagSource` and `Drains` bring in for the operator and the local mode. One Scaler serves one Kafka.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from knafka.core.contract import Egress, Shard
from knafka.core.drain import DrainProgress, DrainRequest, ShardProgress
from knafka.ports.log import Lag, LagSource, Positions
from knafka_operator.decide.scaling import (
    Cause,
    Scale,
    ScalingCounts,
    ShardStatus,
    TriggerStatus,
    decide,
    expected,
    filtered_out,
    keeping_offsets,
)
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.ending_holds import EndingHolds
from knafka_operator.scale.following import Following
from knafka_operator.scale.holds import REQUEST_BUDGETS, Holds, cancel, explain
from knafka_operator.scale.scaled_shard import ScaledShard
from knafka_operator.scale.scaled_trigger import ScaledTrigger

BUDGET: Final = 570.0
"""Seconds, by one request after another, after which it is decided whether a drain is still wanted:
seldom, as each that ends moves partitions."""
WAKE_SPACING: Final = 0.25
"""Seconds between two looks at one topic however often it is woken."""
LAG_TIMEOUT: Final = 60.0
"""Seconds after which a question for lags is given up; Kafka's own limits end most before."""


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


@dataclass(eq=False, slots=True)
class _Topic:
    name: str
    triggers: dict[str, ScaledTrigger] = field(default_factory=dict)
    looked: float = -math.inf
    due: float = math.inf
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """It is due sooner, or its last Trigger is gone."""


class Scaler:
    """Looks at lags and holds drains; all methods belong to the event loop that runs `run`."""

    def __init__(
        self,
        lags: LagSource,
        drains: Drains,
        *,
        budget: float = BUDGET,
        request_budgets: tuple[float, float] = REQUEST_BUDGETS,
    ) -> None:
        self._request_budgets = request_budgets
        self._lags = lags
        self._drains = drains
        self._budget = budget
        self._triggers: dict[str, ScaledTrigger] = {}
        self._topics: dict[str, _Topic] = {}
        self._shards: dict[str, ScaledShard] = {}
        """Those with members, or a request that isn't over, by group."""
        self._ending = EndingHolds(self._has_ended)
        self._following = Following(self._follow)

    async def run(self) -> None:
        """Look and hold until cancelled; the drains go on without."""
        try:
            await self._following.run(self._topics.values())
        finally:
            holds = self._ending.all
            for trigger in self._triggers.values():
                holds |= trigger.own.all
            for shard in self._shards.values():
                holds |= shard.holds.all
            await cancel(holds)

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
        if trigger is None:
            trigger = self._triggers[trigger_id] = self._new(trigger_id, egress, autoscaling)
        before, had = trigger.egress, trigger.shard
        joins = None if autoscaling.paused else shard
        if had is not None:
            stays = joins is not None and joins.group == had.shard.group
            if not stays or before.group != egress.group:
                self._leave(trigger, stays=stays)
        if shard is not None or autoscaling.paused or before != egress:
            self._ending.end(trigger_id, trigger.own)
        if before != egress:
            self._unlist(trigger)
            trigger.egress = egress
            trigger.rest.end()
            if shard is None or (before.topic, before.group) != (egress.topic, egress.group):
                trigger.lag = trigger.drain_error = None
        trigger.autoscaling, trigger.declared = autoscaling, shard
        trigger.ask_by = -math.inf
        self._list(trigger)
        self._join(trigger)
        self._soon(egress.topic)
        await self._ending.wait(trigger_id)

    async def forget(self, trigger_id: str) -> None:
        """Scale this Trigger no more; returns when what drained for it alone is over."""
        if trigger := self._triggers.pop(trigger_id, None):
            self._unlist(trigger)
            self._leave(trigger)
            self._ending.end(trigger_id, trigger.own)
        await self._ending.wait(trigger_id)

    async def applied(self, shard_group: str, position: int, timeout: float) -> bool:
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
        """There are new events: look at this topic now, if any of its Triggers is at zero.

        `grown`, if that is known, is by how many records: that many wait for each Trigger of a
        shard at zero, which therefore drains without a question for each of its groups.
        """
        found = self._topics.get(topic)
        asleep = [
            each
            for each in (found.triggers.values() if found else ())
            if not (each.holds or each.autoscaling.paused or each.is_resting)
        ]
        if grown:
            for shard in {self._shards[each.shard.shard.group] for each in asleep if each.shard}:
                shard.wake(topic, grown)
        if any(each.needs_question for each in asleep):
            self._soon(topic)

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
                    trigger.decided(expected(shared=trigger.shard is not None))
                    trigger.asked()
                holds.open(Cause.PREWARM)

    def status(self, trigger_id: str) -> TriggerStatus | None:
        """Of one Trigger; None: it isn't scaled."""
        trigger = self._triggers.get(trigger_id)
        return None if trigger is None else trigger.status()

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

    def has_triggers(self, topic: str) -> bool:
        """Whether any Trigger of this topic is scaled."""
        return topic in self._topics

    def drained(self) -> set[str]:
        """Topics whose Triggers have drains; replies may go there."""
        return {each.egress.topic for each in self._triggers.values() if each.holds}

    def statuses(self) -> Mapping[str, TriggerStatus]:
        """Of all Triggers, by id."""
        return {each.id: each.status() for each in self._triggers.values()}

    def _soon(self, name: str) -> None:
        if topic := self._topics.get(name):
            soon = max(asyncio.get_running_loop().time(), topic.looked + WAKE_SPACING)
            if soon < topic.due:
                topic.due = soon
                topic.changed.set()

    def _new(self, trigger_id: str, egress: Egress, autoscaling: Autoscaling) -> ScaledTrigger:
        trigger = ScaledTrigger(trigger_id, autoscaling, egress)
        trigger.own = Holds(
            trigger,
            lambda request, stop: self._drains.hold(trigger_id, trigger.egress, request, stop),
            self._budget,
            # What arrived since the drain last read, and had nobody to wake it, is looked for now.
            lambda: self._soon(trigger.egress.topic),
            request_budgets=self._request_budgets,
        )
        trigger.joined()  # nobody knows when; most Triggers have events before this is due
        return trigger

    def _new_shard(self, declared: Shard) -> ScaledShard:
        shard = ScaledShard(declared)
        shard.holds = Holds(
            shard,
            lambda request, stop: self._drains.hold_shard(shard.shard, request, stop),
            self._budget,
            lambda: self._is_over_for(shard),
            request_budgets=self._request_budgets,
        )
        return shard

    def _list(self, trigger: ScaledTrigger) -> None:
        name = trigger.egress.topic
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name)
            self._following.add(topic)
        topic.triggers[trigger.id] = trigger

    def _unlist(self, trigger: ScaledTrigger) -> None:
        topic = self._topics[trigger.egress.topic]
        del topic.triggers[trigger.id]
        if not topic.triggers:
            del self._topics[trigger.egress.topic]
            topic.changed.set()

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
            self._is_over_for(shard)

    def _is_over_for(self, shard: ScaledShard) -> None:
        shard.notify()
        if (settled := shard.take_settled()) is not None:
            # Else each of its groups is asked for now.
            self._lags.note_committed(*settled)
        if shard.is_empty and not shard.holds.all:
            self._shards.pop(shard.shard.group, None)
        for topic in shard.topics:
            self._soon(topic)

    def _has_ended(self, trigger_id: str) -> None:
        if successor := self._triggers.get(trigger_id):
            self._join(successor)
            self._soon(successor.egress.topic)

    async def _follow(self, topic: _Topic) -> None:
        """Look at one topic whenever it is due, as long as it has Triggers.

        Each topic has a task of its own: a question that waits for its answer makes no other topic
        wait, and none costs more for there being others.
        """
        while topic.triggers:
            topic.changed.clear()
            try:
                async with asyncio.timeout_at(None if topic.due == math.inf else topic.due):
                    await topic.changed.wait()
            except TimeoutError:
                await self._look(topic)

    async def _look(self, topic: _Topic) -> None:
        """Ask once for the lags of a topic's Triggers, decide, and open what is missing."""
        if not (triggers := topic.triggers.values()):
            return  # the last of them has gone since it was due
        topic.looked = asyncio.get_running_loop().time()
        # Before the question: who wakes the topic meanwhile has events that the answer may miss.
        topic.due = topic.looked + min(each.autoscaling.polling_interval for each in triggers)
        if asked := [(each, each.egress) for each in triggers if each.needs_question]:
            await self._ask(topic.name, asked)

    async def _ask(self, name: str, asked: Sequence[tuple[ScaledTrigger, Egress]]) -> None:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(LAG_TIMEOUT):
                lags = await self._lags.lags([egress.group for _, egress in asked], name)
        except Exception as error:  # Whatever it is, the other topics need their drains.
            for trigger, _ in asked:
                trigger.not_asked(explain(error))
            return
        for trigger, egress in asked:
            if self._triggers.get(trigger.id) is trigger and trigger.egress is egress:
                trigger.asked_at, trigger.settled_since = began, 0
                self._apply(trigger, lags.get(egress.group))

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
            scale = self._rested(trigger, lag.total, scale)
        trigger.decided(scale)
        if trigger.id in self._ending or holds.is_ending:
            return
        while len(holds) < scale.replicas:
            holds.open(scale.cause)

    def _rested(self, trigger: ScaledTrigger, lag: int, scale: Scale) -> Scale:
        """What is decided of one whose filter may pass nothing of what waits; ends its drains."""
        now, rest = asyncio.get_running_loop().time(), trigger.rest
        if trigger.own and rest.begins(lag, trigger.open.values(), trigger.autoscaling, now):
            trigger.own.stop()
        if not scale.replicas or not rest.is_resting(now):
            return scale
        return filtered_out(lag, rest.left(now))
