"""Scaler: asks for each Trigger's lag, and holds as many drains open as it needs.

    lag --decide--> Scale --hold--> requests, each of which keeps one drain going

A drain ends by itself when it has been idle; one too many is ended when its request's budget is
nearly spent, and those of a Trigger that changes or goes at once. What merely ends, such as this
process, ends no drain: dispatchers go on, and the next scaler holds them. Time is the event
loop's.

Not here: the decision (`decide.scaling`), Kafka and HTTP. `LagSource` and `Drains` bring those in,
so the operator (Knative Services) and the local mode (processes) share this loop. One Scaler serves
one Kafka.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from knafka.core.contract import Egress
from knafka.core.drain import DrainProgress, DrainRequest, Ended
from knafka.ports.log import Lag, LagSource
from knafka_operator.decide.scaling import Scale, TriggerStatus, decide
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.scaled_trigger import ScaledTrigger, sum_progress

BUDGET: Final = 570.0
"""Seconds for one request: below a Knative Service's timeoutSeconds of 600."""
LAST_SECONDS: Final = 5.0
"""Seconds before a budget's end at which it is decided whether the drain is still wanted."""
STOP_TIMEOUT: Final = 15.0
"""Seconds for a drain that was asked to end; then its request is given up."""
GRACE: Final = 60.0
"""Seconds past its budget after which a silent drain is given up: a cold start, a slow end."""
MIN_BACKOFF: Final = 0.5
MAX_BACKOFF: Final = 10.0
"""Seconds between a drain that failed and the next: doubled each time, and short enough that a
subscriber's recovery shows soon."""
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

    def __init__(self, lags: LagSource, drains: Drains, *, budget: float = BUDGET) -> None:
        self._lags = lags
        self._drains = drains
        self._budget = budget
        self._triggers: dict[str, ScaledTrigger] = {}
        self._topics: dict[str, _Topic] = {}
        self._ending: dict[str, set[asyncio.Task[None]]] = {}
        self._unfollowed: list[_Topic] = []
        self._added = asyncio.Event()
        """There are topics that aren't followed yet."""

    async def run(self) -> None:
        """Look and hold until cancelled; the drains go on without."""
        self._unfollowed = list(self._topics.values())
        try:
            async with asyncio.TaskGroup() as follows:
                while True:
                    self._added.clear()
                    added, self._unfollowed = self._unfollowed, []
                    for topic in added:
                        follows.create_task(self._follow(topic))
                    await self._added.wait()
        finally:
            holds = set().union(*self._ending.values())
            for trigger in self._triggers.values():
                holds |= set(trigger.holds)
            for hold in holds:
                hold.cancel()
            if holds:
                await asyncio.wait(holds)

    async def watch(self, trigger_id: str, egress: Egress, autoscaling: Autoscaling) -> None:
        """Scale this Trigger from now on, or by what has changed.

        A changed egress and a pause end its drains; returns when they are over. Its counts go on.
        """
        trigger = self._triggers.get(trigger_id)
        if trigger is None:
            trigger = self._triggers[trigger_id] = ScaledTrigger(trigger_id, egress, autoscaling)
            trigger.joined()  # nobody knows when; most Triggers have events before this is due
        elif trigger.egress != egress:
            self._unlist(trigger)
            self._stop(trigger)
            trigger.egress = egress
            trigger.lag = trigger.drain_error = None
        trigger.autoscaling = autoscaling
        if autoscaling.paused:
            self._stop(trigger)
        topic = self._topics.get(egress.topic)
        if topic is None:
            topic = self._topics[egress.topic] = _Topic(egress.topic)
            self._unfollowed.append(topic)
            self._added.set()
        topic.triggers[trigger_id] = trigger
        self._soon(egress.topic)
        await self._until_ended(trigger_id)

    async def forget(self, trigger_id: str) -> None:
        """Scale this Trigger no more; returns when its drains are over."""
        if trigger := self._triggers.pop(trigger_id, None):
            self._unlist(trigger)
            self._stop(trigger)
        await self._until_ended(trigger_id)

    def wake(self, topic: str) -> None:
        """There are new events: look at this topic now, if any of its Triggers is at zero."""
        found = self._topics.get(topic)
        if found and any(
            not (trigger.holds or trigger.autoscaling.paused) for trigger in found.triggers.values()
        ):
            self._soon(topic)

    def prewarm(self, topic: str, limit: int) -> None:
        """An event is on its way there: Triggers at zero drain already, if at most `limit` are.

        Their start and the receiver's then take the same time, not one after the other.
        """
        found = self._topics.get(topic)
        triggers = found.triggers.values() if found else ()
        asleep = [
            each
            for each in triggers
            if not (each.holds or each.autoscaling.paused or each.id in self._ending)
        ]
        if len(asleep) <= limit:
            for trigger in asleep:
                trigger.scale = Scale(1, "an event is on its way")
                self._open(trigger)

    def status(self, trigger_id: str) -> TriggerStatus | None:
        """Of one Trigger; None: it isn't scaled."""
        trigger = self._triggers.get(trigger_id)
        return None if trigger is None else trigger.status()

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

    def _unlist(self, trigger: ScaledTrigger) -> None:
        topic = self._topics[trigger.egress.topic]
        del topic.triggers[trigger.id]
        if not topic.triggers:
            del self._topics[trigger.egress.topic]
            topic.changed.set()

    def _stop(self, trigger: ScaledTrigger) -> None:
        """Begin to end its drains; until they are over, `_look` opens none for this id."""
        holds, trigger.holds = trigger.holds, {}
        for hold, stop in holds.items():
            self._ending.setdefault(trigger.id, set()).add(hold)
            hold.add_done_callback(lambda hold: self._is_over(trigger, hold))
            stop.set()
            asyncio.get_running_loop().call_later(STOP_TIMEOUT, hold.cancel)

    def _is_over(self, trigger: ScaledTrigger, hold: asyncio.Task[None]) -> None:
        ending = self._ending[trigger.id]
        ending.discard(hold)
        if not ending:
            del self._ending[trigger.id]
            if successor := self._triggers.get(trigger.id):
                self._soon(successor.egress.topic)

    async def _until_ended(self, trigger_id: str) -> None:
        if ending := self._ending.get(trigger_id):
            await asyncio.wait(set(ending))

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
        """Ask once for the lags of all Triggers of one topic, decide, and open what is missing."""
        # The last of its Triggers may have gone since it was due.
        if asked := [(trigger, trigger.egress) for trigger in topic.triggers.values()]:
            topic.looked = asyncio.get_running_loop().time()
            # Before the question: who wakes the topic meanwhile has events that the answer may
            # miss.
            polled = min(trigger.autoscaling.polling_interval for trigger, _ in asked)
            topic.due = topic.looked + polled
            await self._ask(topic.name, asked)

    async def _ask(self, name: str, asked: Sequence[tuple[ScaledTrigger, Egress]]) -> None:
        try:
            async with asyncio.timeout(LAG_TIMEOUT):
                lags = await self._lags.lags([egress.group for _, egress in asked], name)
        except Exception as error:  # Whatever it is, the other topics need their drains.
            for trigger, _ in asked:
                trigger.lag_error = f"the lag is not known: {_say(error)}"
            return
        for trigger, egress in asked:
            if self._triggers.get(trigger.id) is trigger and trigger.egress is egress:
                self._apply(trigger, lags.get(egress.group))

    def _apply(self, trigger: ScaledTrigger, lag: Lag | None) -> None:
        if lag is None:
            trigger.lag_error = f"the lag is not known: no group {trigger.egress.group}"
            return
        partitions = len(lag.by_partition)
        trigger.lag_error = None
        trigger.lag = lag.total
        trigger.beyond_end = lag.beyond_end
        trigger.floor = decide(0, partitions, trigger.autoscaling, 0).replicas
        trigger.scale = decide(lag.total, partitions, trigger.autoscaling, len(trigger.holds))
        due = asyncio.get_running_loop().time() >= trigger.join_by
        if due and not trigger.scale.replicas and not trigger.autoscaling.paused:
            trigger.scale = Scale(
                min(1, partitions), f"{trigger.scale.reason}, one to keep its offsets"
            )
        if trigger.id in self._ending:
            return
        while len(trigger.holds) < trigger.scale.replicas:
            self._open(trigger)

    def _open(self, trigger: ScaledTrigger) -> None:
        stop = asyncio.Event()
        trigger.holds[asyncio.create_task(self._hold(trigger, stop))] = stop

    async def _hold(self, trigger: ScaledTrigger, stop: asyncio.Event) -> None:
        """One drain after another, as long as that many are wanted."""
        task = _current()
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while True:
                began = loop.time()
                ended = await self._drain(trigger, stop)
                if stop.is_set():
                    return
                lasted = loop.time() - began
                if ended in (Ended.IDLE, Ended.BUDGET):
                    failures = 0
                    pause = max(0.0, MIN_BACKOFF - lasted)
                else:
                    failures = failures + 1 if lasted < MAX_BACKOFF else 1
                    pause = min(MIN_BACKOFF * 2.0 ** min(failures - 1, 16), MAX_BACKOFF)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await stop.wait()
                wanted = trigger.floor if ended is Ended.IDLE else trigger.scale.replicas
                if stop.is_set() or len(trigger.holds) > wanted:
                    return
        finally:
            trigger.holds.pop(task, None)
            # What arrived since the drain last read, and had nobody to wake it, is looked for now.
            self._soon(trigger.egress.topic)

    async def _drain(self, trigger: ScaledTrigger, stop: asyncio.Event) -> Ended:
        """Hold one drain until it ends, and keep what it tells; never raises but if cancelled."""
        task = _current()
        loop = asyncio.get_running_loop()
        needless = len(trigger.holds) > trigger.floor
        request = DrainRequest(
            # One that min-scale wants has no reason to end when idle, only to begin anew.
            idle=trigger.autoscaling.cooldown_period if needless else self._budget,
            budget=self._budget,
        )
        progress = trigger.open[task] = DrainProgress()

        def stop_if_needless() -> None:
            going_on = sum(not each.is_set() for each in trigger.holds.values())
            if going_on > trigger.scale.replicas:
                stop.set()

        deciding = loop.call_later(self._budget - LAST_SECONDS, stop_if_needless)
        holding = self._drains.hold(trigger.id, trigger.egress, request, stop)
        try:
            async with asyncio.timeout(self._budget + GRACE):
                async for progress in holding:
                    trigger.open[task] = progress
                    if progress.filtered or progress.delivered or progress.dead_lettered:
                        trigger.drain_error = None
        except Exception as error:  # Whatever it is, the status says so and it is tried again.
            trigger.drain_error = f"the drain failed: {_say(error)}"
            return Ended.FAILED
        finally:
            deciding.cancel()
            trigger.ended = sum_progress([trigger.ended, trigger.open.pop(task)], [])
        match progress.ended:
            case Ended.STOPPED if stop.is_set():
                trigger.drain_error = None
            case Ended.IDLE | Ended.BUDGET:
                trigger.drain_error = None
                trigger.joined()
            case Ended.FAILED:
                trigger.drain_error = f"the drain failed: {progress.error or 'it did not say why'}"
            case None:
                trigger.drain_error = "the drain failed: it broke off"
        return progress.ended or Ended.FAILED


def _current() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _say(error: Exception) -> str:
    return str(error) or type(error).__name__
