"""Lag checks: read the lags of a topic's Triggers, or of a Sensor, from Kafka, and scale by them.

    topic     the lags of all its Triggers, in one request
    Sensor    the lag of its group in the bus and in its trigger topic, and its next timeout

Each check has its own task, so that a slow response delays no other check. Times are by the event
loop's clock. In a drain, a dispatcher joins the consumer group, delivers events, and leaves.

A Sensor may have to fire without a new event, such as `a && !b` after ten minutes. The time of the
next such firing is in the commit metadata of the Sensor's group, which is read with the lag. The
operator wakes the Sensor by its own clock, but the Sensor decides by its clock: if they differ, it
is woken too late, or too early and then again until it is time.

Not here: which checks there are (`topic_checks`, `sensor_scaler`), and the decision itself
(`scale.decide`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from knafka.core.contract import Egress
from knafka.core.errors import LogError
from knafka.core.numbering import Numbering
from knafka.core.sensor import records
from knafka.core.sensor.contract import SensorContract
from knafka.ports.log import GroupSource, Lag
from knafka_operator.scale.decide import (
    Scale,
    decide_scale,
    scale_for_due_timeout,
    scale_to_keep_offsets,
    scale_while_filtered_out,
)
from knafka_operator.scale.holds import EndingHolds, error_text
from knafka_operator.scale.scaled_groups import ScaledSensor, ScaledTrigger

CHECK_SPACING: Final = 0.25
"""Seconds between two checks of the same topic or Sensor, however often it is woken."""
LAG_TIMEOUT: Final = 60.0
"""Seconds after which a request for lags is cancelled; most end earlier by Kafka's own timeouts."""


class LagCheck:
    """Checks one topic or Sensor whenever it is due."""

    def __init__(self, kafka: GroupSource, ending: EndingHolds) -> None:
        """`ending` has the stopped drains that must end before new ones are opened."""
        self.kafka, self.ending = kafka, ending
        self.checked_at = -math.inf
        """When the last check began."""
        self.due = math.inf
        """When the next check begins; infinite: only after `check_soon`."""
        self.over = False
        """Whether the checks have ended (`end`)."""
        self._changed = asyncio.Event()
        """Set when `due` became earlier, or the checks have ended."""

    def check_soon(self) -> None:
        """Make the next check due now, or, if the last one has just begun, `CHECK_SPACING` seconds
        after its begin."""
        soon = max(asyncio.get_running_loop().time(), self.checked_at + CHECK_SPACING)
        if soon < self.due:
            self.due = soon
            self._changed.set()

    def end(self) -> None:
        """End the checks, and so `run`."""
        self.over = True
        self._changed.set()

    async def run(self) -> None:
        """Check whenever it is due, until `end` is called."""
        while not self.over:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(None if self.due == math.inf else self.due):
                    await self._changed.wait()
            except TimeoutError:
                await self.check()

    async def check(self) -> None:
        """Read the lag from Kafka, decide on the number of drains, and open missing ones; also set
        when the next check is `due`. Subclasses implement it. Raises no error of Kafka."""
        raise NotImplementedError


class LagChecks:
    """Runs a task for each check, including checks that are added later."""

    def __init__(self) -> None:
        self._waiting: list[LagCheck] = []
        """Checks that have no task yet."""
        self._added = asyncio.Event()
        """Set when a check is added; wakes `run`."""

    def add(self, check: LagCheck) -> None:
        """Add a check, which starts at once if `run` is running. A check that is added before `run`
        is called must be among the checks that `run` gets."""
        self._waiting.append(check)
        self._added.set()

    async def run(self, checks: Iterable[LagCheck]) -> None:
        """Run these checks, and checks that are added later, until cancelled."""
        self._waiting = list(checks)
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._added.clear()
                new_checks, self._waiting = self._waiting, []
                for check in new_checks:
                    tasks.create_task(check.run())
                await self._added.wait()


class TopicLagCheck(LagCheck):
    """Checks the Triggers of one topic, or of several topics that KafkaSources read together."""

    def __init__(self, topics: Sequence[str], kafka: GroupSource, ending: EndingHolds) -> None:
        """Begin without Triggers, and without a due check."""
        super().__init__(kafka, ending)
        self.topics = topics
        """The topics that are read together; mostly one."""
        self.triggers: dict[str, ScaledTrigger] = {}
        """The Triggers that read these topics, by the scaler's id."""
        self._last_lags: dict[str, Mapping[str, Lag]] = {}
        """The last known lag of each group, by topic, of topics that are read together."""

    async def check(self) -> None:
        """Read the lags of all Triggers in one request, and scale each of them."""
        if not (triggers := self.triggers.values()):
            return  # the last Trigger was removed since the check was due
        self.checked_at = asyncio.get_running_loop().time()
        # Before the request: events that wake the topic meanwhile may be missing in the answer.
        self.due = self.checked_at + min(
            trigger.autoscaling.polling_interval for trigger in triggers
        )
        if triggers_with_egress := [
            (trigger, trigger.egress) for trigger in triggers if trigger.needs_lag_request
        ]:
            await self._check_lags(triggers_with_egress)

    async def _check_lags(
        self, triggers_with_egress: Sequence[tuple[ScaledTrigger, Egress]]
    ) -> None:
        """Read the lags of these Triggers' groups, and scale each Trigger whose Egress is still the
        one given here. An error of the whole request is recorded in all of them."""
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(LAG_TIMEOUT):
                lags = await self._read_lags([egress.group for _, egress in triggers_with_egress])
        except Exception as error:  # any error: other topics still need their drains
            for trigger, _ in triggers_with_egress:
                trigger.note_lag_error(error_text(error))
            return
        for trigger, egress in triggers_with_egress:
            lag = lags.get(egress.group)
            if isinstance(lag, LogError):
                trigger.note_lag_error(error_text(lag))
            elif self.triggers.get(trigger.id) is trigger and trigger.egress is egress:
                trigger.lag_requested_at, trigger.settled_since_request = began, 0
                self._scale_by_lag(trigger, lag)

    async def _read_lags(self, groups: Sequence[str]) -> Mapping[str, Lag | LogError]:
        """Return the lag of each group over all topics of this check. A group that doesn't exist is
        left out. Raises the errors of `GroupSource.lags`.

        With several topics, a topic that doesn't exist counts as empty. For a topic that can't be
        read now, as no partition has a leader, the group's last known lag counts if the group has
        events in other topics; otherwise the result for the group is the error. Any other error is
        raised, also if no topic could be read.
        """
        if len(self.topics) == 1:
            return await self.kafka.lags(groups, self.topics[0])
        answers = await asyncio.gather(
            *(self.kafka.lags(groups, topic) for topic in self.topics), return_exceptions=True
        )
        unread_error = _error_of_unread_topic(answers)
        all_groups = {trigger.egress.group for trigger in self.triggers.values()}
        unrequested_groups = all_groups - {*groups}
        lags_by_topic: list[Mapping[str, Lag]] = []
        groups_with_events: set[str] = set()
        for topic, answer in zip(self.topics, answers, strict=True):
            if isinstance(answer, BaseException):
                lags_by_topic.append(self._last_known_lags(topic, answer, groups))
            else:
                self._keep_lags(topic, answer, unrequested_groups)
                lags_by_topic.append(answer)
                groups_with_events |= {group for group, lag in answer.items() if lag.total}
        merged: dict[str, Lag | LogError] = {}
        for group in groups:
            if not all(group in lags for lags in lags_by_topic):
                continue  # the group doesn't exist
            if unread_error is not None and group not in groups_with_events:
                merged[group] = unread_error
            else:
                merged[group] = merge_lags(self.topics, [lags[group] for lags in lags_by_topic])
        return merged

    def _last_known_lags(
        self, topic: str, error: BaseException, groups: Sequence[str]
    ) -> Mapping[str, Lag]:
        """Return the last known lag of each group on a topic that couldn't be read; a lag of no
        partitions if the topic doesn't exist, or if none is known."""
        is_unknown_topic = isinstance(error, LogError) and error.unknown_topic
        known_lags = {} if is_unknown_topic else self._last_lags.get(topic, {})
        return {group: known_lags.get(group, Lag({})) for group in groups}

    def _keep_lags(self, topic: str, lags: Mapping[str, Lag], unrequested_groups: set[str]) -> None:
        """Keep `lags`, which were read now, as the last known lags on a topic; those of
        `unrequested_groups` stay, and those of any other group are dropped."""
        known_lags = self._last_lags.get(topic, {})
        unrequested = {group: known_lags[group] for group in unrequested_groups & known_lags.keys()}
        self._last_lags[topic] = {**unrequested, **lags}

    def _scale_by_lag(self, trigger: ScaledTrigger, lag: Lag | None) -> None:
        """Record a Trigger's lag (None: its group doesn't exist), decide its scale, and open drains
        up to it."""
        if lag is None:
            trigger.note_lag_error(f"no group {trigger.egress.group}")
            return
        partitions, shared = len(lag.by_partition), trigger.is_shared
        holds, autoscaling = trigger.holds, trigger.autoscaling
        trigger.lag_error = None
        trigger.lag, trigger.settled = lag.total, lag.settled
        trigger.note_lag_known()
        trigger.beyond_end = lag.beyond_end
        # The number of drains that stay open without any lag (min-scale).
        scale_without_lag = decide_scale(0, partitions, autoscaling, held=0, shared=shared)
        trigger.floor = scale_without_lag.replicas
        scale = decide_scale(lag.total, partitions, autoscaling, held=len(holds), shared=shared)
        # Kafka forgets the offsets of a group that nobody joins for `offsets.retention.minutes`.
        join_is_due = asyncio.get_running_loop().time() >= trigger.join_due_at
        if join_is_due and not scale.replicas and not autoscaling.paused:
            scale = scale_to_keep_offsets(scale, partitions, shared=shared)
        elif not shared and not autoscaling.paused:
            scale = _apply_filter_rest(trigger, lag.total, scale)
        trigger.set_scale(scale)
        if trigger.id in self.ending or holds.is_ending:
            return
        while len(holds) < scale.replicas:
            holds.open(scale.cause)


def _error_of_unread_topic(
    answers: Sequence[Mapping[str, Lag] | BaseException],
) -> LogError | None:
    """Return the first error of a topic that exists but can't be read now; None: there is none.
    Raises an error that doesn't pass by itself, such as a denial, and an unexpected one. If no
    topic could be read, raises any error."""
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    unread_error: LogError | None = None
    for failure in failures:
        if len(failures) == len(answers) or not isinstance(failure, LogError):
            raise failure
        if failure.unknown_topic:
            # A deleted topic has nothing to deliver, and the events of other topics mustn't wait
            # for it. The KafkaSource's own condition names the topic.
            continue
        if not failure.retriable:
            raise failure
        unread_error = unread_error or failure
    return unread_error


def merge_lags(topics: Sequence[str], lags: Sequence[Lag]) -> Lag:
    """Merge the lags of one group, `lags[i]` on `topics[i]`; the partitions of all topics are
    numbered together, by `Numbering`."""
    numbering = Numbering(topics)
    by_topic = list(zip(topics, lags, strict=True))
    return Lag(
        by_partition=numbering.by_number({topic: lag.by_partition for topic, lag in by_topic}),
        beyond_end=frozenset(
            numbering.number(topic, partition)
            for topic, lag in by_topic
            for partition in lag.beyond_end
        ),
        ends=numbering.by_number({topic: lag.ends for topic, lag in by_topic}),
    )


def _apply_filter_rest(trigger: ScaledTrigger, lag: int, scale: Scale) -> Scale:
    """Let a Trigger rest if its filter has lately passed no event (`filter_rest`): when the rest
    begins, stop its own drains. Returns the decision about its drains: none while it rests,
    otherwise `scale`."""
    now, rest = asyncio.get_running_loop().time(), trigger.rest
    drains = trigger.open_requests.values()
    if trigger.own and rest.begin_if_filtered(lag, drains, trigger.autoscaling, now):
        trigger.own.stop()
    if not scale.replicas or not rest.is_resting(now):
        return scale
    return scale_while_filtered_out(lag, rest.seconds_left(now))


def _earliest_timeout(trigger_topic_lag: Lag) -> int | None:
    """Return the time of a Sensor's next firing without an event (ms since the Unix epoch), which
    is in the metadata of its commits on the trigger topic; None: there is none."""
    timeouts = map(records.parse_due, trigger_topic_lag.metadata.values())
    return min((timeout for timeout in timeouts if timeout is not None), default=None)


class SensorLagCheck(LagCheck):
    """Checks one Sensor. Before it opens drains it asks for the members of the Sensor's group:
    another operator's drains may still run, and must not lose their slots."""

    def __init__(
        self,
        scaled: ScaledSensor,
        kafka: GroupSource,
        ending: EndingHolds,
        now: Callable[[], float],
    ) -> None:
        """`now` returns Unix time (seconds), with which the Sensor's next timeout is compared."""
        super().__init__(kafka, ending)
        self.scaled = scaled
        self._now = now

    def on_drain_end(self) -> None:
        """Check again soon, as a drain has ended. First drop the cached commits of the group: they
        are used until the topic has new records, but without any, the drain may have committed
        another time of the next firing, which is in the metadata."""
        self.kafka.forget_group(self.scaled.sensor.group)
        self.check_soon()

    async def check(self) -> None:
        """Read the Sensor's lags, decide its scale, and open missing drains. An error is recorded,
        and the last decision stays."""
        scaled, sensor = self.scaled, self.scaled.sensor
        self.checked_at = asyncio.get_running_loop().time()
        # Before the request: events that wake the Sensor meanwhile may be missing in the answer.
        self.due = self.checked_at + scaled.autoscaling.polling_interval
        try:
            async with asyncio.timeout(LAG_TIMEOUT):
                bus_lag = await self._read_lag(sensor.group, sensor.topic)
                trigger_topic_lag = await self._read_lag(sensor.group, sensor.trigger_topic)
                if self._is_unchanged(sensor):
                    self._scale_by_lags(bus_lag, trigger_topic_lag)
                    await self._open_missing_drains()
        except Exception as error:  # any error: keep the last decision
            scaled.lag_error = f"the lag is not known: {error_text(error)}"

    async def _read_lag(self, group: str, topic: str) -> Lag:
        """Return the lag of a group on one topic. Raises `LogError`."""
        return (await self.kafka.lags([group], topic))[group]

    def _is_unchanged(self, sensor: SensorContract) -> bool:
        """Whether the Sensor is still scaled, and by this contract."""
        return not self.over and self.scaled.sensor is sensor

    def _scale_by_lags(self, bus_lag: Lag, trigger_topic_lag: Lag) -> None:
        """Record the Sensor's lags and its next firing without an event, decide its scale, and make
        the next check due at that firing if it comes before."""
        scaled = self.scaled
        autoscaling, drain_count = scaled.autoscaling, len(scaled.holds)
        scaled.lag_error = None
        scaled.lag = bus_lag.total + trigger_topic_lag.total
        scaled.due = _earliest_timeout(trigger_topic_lag)
        # A member may have partitions of only one of the two topics.
        partitions = max(len(bus_lag.by_partition), len(trigger_topic_lag.by_partition))
        # The number of drains that stay open without any lag (min-scale).
        scaled.floor = decide_scale(0, partitions, autoscaling, held=0).replicas
        scale = decide_scale(scaled.lag, partitions, autoscaling, held=drain_count)
        now, seconds_until_due = asyncio.get_running_loop().time(), self._seconds_until_due()
        if not scale.replicas and not autoscaling.paused:
            if seconds_until_due <= 0:
                scale = scale_for_due_timeout(scale)
            elif now >= scaled.join_due_at:
                scale = scale_to_keep_offsets(scale, partitions, shared=False)
        scaled.scale = scale
        if seconds_until_due > 0:
            self.due = min(self.due, now + seconds_until_due)

    async def _open_missing_drains(self) -> None:
        """Open drains up to the Sensor's scale, each with a slot that no running drain has. Raises
        `LogError`."""
        scaled, sensor = self.scaled, self.scaled.sensor
        holds, cause = scaled.holds, scaled.scale.cause
        if len(holds) >= scaled.scale.replicas or self._has_ending_drains():
            return
        # Also the slots of drains that another operator has opened.
        used_slots = {sensor.slot_of(member) for member in await self.kafka.members(sensor.group)}
        # The Sensor may have changed, or been stopped, during the request.
        if self._is_unchanged(sensor) and not self._has_ending_drains():
            while len(holds) < scaled.scale.replicas:
                holds.open(cause, {slot for slot in used_slots if slot is not None})

    def _has_ending_drains(self) -> bool:
        """Whether drains of the Sensor that were stopped still run: until they end, none may be
        opened."""
        return self.scaled.id in self.ending or self.scaled.holds.is_ending

    def _seconds_until_due(self) -> float:
        """Return the seconds until the Sensor's next firing without an event; infinite if there is
        none."""
        due = self.scaled.due
        return math.inf if due is None else due / 1000 - self._now()
