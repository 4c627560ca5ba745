"""Scaled shard: the Triggers of one shard, and the progress that its request reports for each.

A shard is a dispatcher that delivers many Triggers: they share one request, and so one pod
(docs/decisions/0019-contract-topic.md). The request keeps a drain going, in which the dispatcher is
a member of the Triggers' consumer groups. Only the start and the end of a request cost work for
every Trigger; a line of its response costs work only for the Triggers that the line reports.

Not here: which Trigger is in which shard (callers decide), holding the request (`holds`).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from knafka.core.contract import Shard
from knafka.core.drain import COUNTED, Counts, DrainProgress, Ended, Settled, ShardProgress
from knafka.ports.log import Positions
from knafka_operator.scale.decide import ShardStatus
from knafka_operator.scale.holds import Hold, Holds
from knafka_operator.scale.scaled_groups import ScaledTrigger, has_settled, sum_progress

MAX_NON_MEMBERS: Final = 1_000
"""The most groups outside the shard whose reported progress is kept: those of Triggers that are
about to join the shard."""

_NO_COUNTS: Final[dict[str, Any]] = {**dict.fromkeys(COUNTED, 0), "dead_letters": {}}
"""The fields of a progress that hold counts, all set to zero or empty."""


class SettledGroups(NamedTuple):
    """Consumer groups of a shard, and the offsets that they have committed: by these, their lag is
    known without a request. The fields are the arguments of `GroupSource.note_committed`."""

    groups: Sequence[str]
    topic: str
    offsets: Positions
    """The committed offset of each partition of `topic`, the same for all groups."""
    since: float
    """How many seconds ago the drain began that has committed these offsets."""


class ScaledShard:
    """A shard whose Triggers the scaler watches; the `holds.Unit` of its request."""

    def __init__(self, shard: Shard) -> None:
        """Begin without Triggers; the scaler sets `holds`."""
        self.holds: Holds[Any]
        """At most one request, whose lines are `ShardProgress`."""
        self.shard = shard
        self.error: str | None = None
        """The last error of the whole request; None: there is none."""
        self.changed = asyncio.Event()
        """Wakes those who wait for `has_applied`; set, and replaced by a new one, by
        `notify_waiting`."""
        self._members: dict[str, ScaledTrigger] = {}
        """The shard's Triggers, by group."""
        self._began: float | None = None
        """When the first of the shard's consecutive requests was opened, by the event loop's
        clock; None: there is none."""
        self._settled: SettledGroups | None = None
        """Commits that the last request has reported; None: it reported none, or `pop_settled` has
        returned them."""
        self._is_open = False
        """Whether a request is open."""
        self._contract_position: int | None = None
        """Position in the contract topic that the open request has reported; None: no line yet."""
        self._last_progress: dict[str, DrainProgress] = {}
        """The last progress of each group in the open request, member or not."""
        self._counted: dict[str, tuple[Counts, Mapping[str, int]]] = {}
        """By group: the counts and the dead letters by reason of the open request that are already
        added to the Trigger's."""

    @property
    def desired_requests(self) -> int:
        """Return the number of requests that the shard needs now: 1 if any of its Triggers needs a
        drain, else 0."""
        return int(any(member.scale.replicas for member in self._members.values()))

    @property
    def floor(self) -> int:
        """Return the number of requests to hold even without any lag: 1 if one of the Triggers has
        min-scale, else 0."""
        return int(any(member.floor for member in self._members.values()))

    @property
    def cooldown(self) -> float:
        """Return the seconds without work after which a drain ends: the longest `cooldown` of the
        shard's Triggers."""
        return max((member.cooldown for member in self._members.values()), default=0.0)

    @property
    def is_empty(self) -> bool:
        """Whether the shard has no Triggers."""
        return not self._members

    @property
    def topics(self) -> set[str]:
        """Return the topics of the shard's Triggers."""
        return {member.egress.topic for member in self._members.values()}

    def status(self) -> ShardStatus:
        """Return the shard's status; the shard must have a Trigger."""
        any_egress = next(iter(self._members.values())).egress
        return ShardStatus(
            any_egress.namespace,
            any_egress.broker,
            any_egress.kind,
            self.shard.group,
            len(self._members),
            sum(member.lag or 0 for member in self._members.values()),
            self.desired_requests,
            len(self.holds),
            self.holds.wakes,
        )

    def add(self, trigger: ScaledTrigger) -> None:
        """Add a Trigger. An open request goes on, and its earlier reports about the Trigger are
        counted."""
        group = trigger.egress.group
        self._members[group] = trigger
        trigger.drained_by = self
        if (progress := self._last_progress.get(group)) is not None:
            self._count(trigger, progress)

    def remove(self, trigger: ScaledTrigger) -> None:
        """Remove a Trigger. The caller must have removed its record from the contract topic, or
        assigned it to another shard there; else the shard would go on delivering it."""
        group = trigger.egress.group
        del self._members[group]
        self._last_progress.pop(group, None)
        trigger.drained_by = trigger.drain_error = None

    def wake(self, topic: str, grown: int) -> None:
        """Open a request if there is none, and if one of the Triggers that read `topic` wakes at
        any lag (no activation-lag-threshold); `grown` is the number of new records in the topic."""
        readers = [member for member in self._members.values() if member.egress.topic == topic]
        if self.holds.all or all(reader.autoscaling.activation_lag_threshold for reader in readers):
            return
        for reader in readers:
            reader.note_growth(grown)
        self.holds.open(readers[0].scale.cause)

    def progress_of(self, trigger: ScaledTrigger) -> Sequence[DrainProgress]:
        """Return the current progress of a Trigger, without its counts, which `_count` adds to the
        Trigger; empty if no request is open, else one."""
        if not self._is_open:
            return ()
        progress = self._last_progress.get(trigger.egress.group)
        if progress is None:
            return [DrainProgress()]
        return [progress.model_copy(update=_NO_COUNTS)]

    def has_applied(self, position: int) -> bool:
        """Whether the open request has reported that the shard has read the contract topic up to
        `position`, and delivers accordingly. Also True if the shard has no request: its next drain
        reads all records first."""
        if not self.holds.all:
            return True
        # A hold may be without an open request, such as before its first one or between two.
        reported_position = self._contract_position
        return self._is_open and reported_position is not None and reported_position >= position

    def on_open(self, hold: Hold) -> None:
        """Record that a request was opened, and drop the reports of the previous one."""
        self._is_open, self._contract_position = True, None
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
        self._last_progress, self._counted, self._settled = {}, {}, None

    def on_line(self, hold: Hold, line: ShardProgress) -> None:
        """Record the reported progress of each Trigger, and the position in the contract topic."""
        for group, progress in line.egresses.items():
            # Progress may arrive before its Trigger joins; the limit guards against invented
            # groups.
            most_groups = len(self._members) + MAX_NON_MEMBERS
            if group in self._members or len(self._last_progress) < most_groups:
                self._last_progress[group] = progress
            if (member := self._members.get(group)) is not None:
                self._count(member, progress)
        if line.contract != self._contract_position:
            self._contract_position = line.contract
            self.notify_waiting()

    def on_close(self, hold: Hold) -> None:
        """Record that the request has ended."""
        self._is_open = False

    def on_end(self, ended: Ended, last: ShardProgress | None, error: str | None) -> None:
        """Record a request's `error`; None: it had none. If the request ended idle, or because its
        budget was spent, also record that its groups were joined and, if idle, their committed
        offsets. After any other end the lags of all members are read again."""
        self.error = error
        began, self._settled = self._began, None
        if ended is not Ended.BUDGET:
            self._began = None
        if ended not in (Ended.IDLE, Ended.BUDGET) or last is None:
            # Another process may have unsettled events: read the lags again.
            for trigger in self._members.values():
                trigger.lag_request_due_at = -math.inf
            return
        for group, progress in last.egresses.items():
            member = self._members.get(group)
            if member is not None and progress.error is None:
                member.drain_error = None
                member.note_joined()
        if ended is Ended.IDLE and last.settled is not None and began is not None:
            self._settled = self._settled_groups(last, last.settled, began)

    def pop_settled(self) -> SettledGroups | None:
        """Return the commits that the last request has reported, and forget them; None: it has
        reported none, or they were returned already."""
        settled, self._settled = self._settled, None
        return settled

    def _settled_groups(self, last: ShardProgress, settled: Settled, began: float) -> SettledGroups:
        """Return the groups that have committed `settled.offsets`, as `last`, the request's last
        line, reports; `began` is when the drain began."""
        uncommitted_groups = set(settled.without)
        groups = [
            group
            for group, progress in last.egresses.items()
            if progress.error is None
            and group not in uncommitted_groups
            and (member := self._members.get(group)) is not None
            and member.egress.topic == settled.topic
        ]
        since = asyncio.get_running_loop().time() - began
        return SettledGroups(groups, settled.topic, settled.offsets, since)

    def notify_waiting(self) -> None:
        """Wake the tasks that wait for `has_applied`, which they then check again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def _count(self, member: ScaledTrigger, progress: DrainProgress) -> None:
        """Add to a member's `ended_counts` what the shard's drain has counted for it since the last
        call, and record or clear its drain error."""
        group, counts, letters = member.egress.group, progress.counts, progress.dead_letters
        counted, counted_letters = self._counted.get(group, (Counts(), {}))
        new_counts = counts - counted
        if any(getattr(new_counts, name) < 0 for name in COUNTED):
            new_counts, counted_letters = counts, {}  # the dispatcher has begun to count anew
        self._counted[group] = counts, letters
        new_counts_by_name = {name: getattr(new_counts, name) for name in COUNTED}
        # Most lines have no dead letters, and up to a thousand lines a second come here.
        new_letters = dict(Counter(letters) - Counter(counted_letters)) if letters else {}
        new_progress = DrainProgress(**new_counts_by_name, dead_letters=new_letters)
        member.ended_counts = sum_progress([member.ended_counts, new_progress], [])
        settled = new_counts.filtered + new_counts.delivered + new_counts.dead_lettered
        member.on_settled(settled, progress.unsettled)
        if progress.error is not None:
            member.lag_request_due_at = -math.inf
            member.drain_error = f"the drain failed: {progress.error}"
        elif has_settled(new_counts):
            member.drain_error = self.error = None
