"""Keeps the events that a Sensor's process holds, by partition of the trigger topic, with their
timers.

A trigger holds events until its condition is true; then it fires. Events reach it through the
trigger topic, the Sensor's own. The changelog, a compacted topic, has a record for each held event.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Final

from knafka.core.drain import Holding, Waiting
from knafka.core.sensor import duplicates, records, rules
from knafka.core.sensor.held import Held, HeldEvent, sort_by_time
from knafka.core.sensor.rules import Rule
from knafka.core.sensor.timers import Timers
from knafka.core.times import written_at
from knafka.ports.log import Record

log = logging.getLogger(__name__)

MAX_SHOWN_KEY_CHARACTERS: Final = 100
"""Most characters of a correlation key in a report."""


@dataclass(slots=True)
class _Partition:
    """The held events of one partition of the trigger topic, with their timers."""

    held: dict[str, Held] = field(default_factory=dict)
    """Held events by key (`records.key_of`)."""
    stale: list[bytes] = field(default_factory=list)
    """Record keys in the changelog of events that aren't held any more, as the Sensor was
    edited."""
    fulfilled: list[str] = field(default_factory=list)
    """Keys whose held events make their trigger's condition true, as the Sensor was edited."""
    timers: Timers = field(default_factory=Timers)
    """For each key, the time at which its held events change or fire without a further event."""
    due: Timers = field(default_factory=Timers)
    """For each key whose trigger waits for an event's absence, the time at which it fires unless
    that event comes."""
    since: Timers | None = None
    """Time of each key's oldest held event; None until it is first needed."""
    marks: OrderedDict[str, Held] = field(default_factory=OrderedDict)
    """The marks by which duplicate events are found (`core.sensor.duplicates`), by key, the oldest
    first."""
    bytes: int = 0
    """Bytes of all held events as JSON."""


class State:
    """The held events by partition of the trigger topic, as of the last commit.

    In its methods, `number` is a partition of the trigger topic. `key` is a trigger with its
    correlation key (`records.key_of`), or the key of a mark (`core.sensor.duplicates`).
    """

    def __init__(self, rules: Mapping[str, Rule], max_keys: int, max_bytes: int) -> None:
        """Begin without partitions. `rules` has the rules by the triggers' names. At most
        `max_keys` keys, and events with `max_bytes` bytes as JSON, may be held; the caller drops
        the keys beyond (`pop_excess`)."""
        self._rules = rules
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._partitions: dict[int, _Partition] = {}  # by number

    def restore(self, number: int, changelog: Iterable[Sequence[Record]], now: int) -> None:
        """Restore a newly assigned partition's held events and marks from all records of its
        changelog (`changelog`: in batches), and set the timers. Also find what an edited Sensor
        leaves to do: records to delete (`stale_records`), and keys that must fire at once
        (`fulfilled_keys`). `now` (ms since the Unix epoch) replaces a later time of an event."""
        partition = _Partition()
        for key, events in _read_changelog(changelog, now).items():
            self._restore_key(partition, key, events)
        oldest_first = sorted(partition.marks.items(), key=lambda item: item[1][0].at)
        partition.marks = OrderedDict(oldest_first)
        self._partitions[number] = partition
        for key, held in partition.held.items():
            self.set_timers(number, key)
            if self._is_fulfilled(key, held):
                partition.fulfilled.append(key)

    def _restore_key(self, partition: _Partition, key: str, events: Sequence[HeldEvent]) -> None:
        """Add the events that the changelog holds at a key to a restored partition: as held events
        or a mark or, if no condition of the present Sensor wants them, as stale records."""
        rule = self._rules.get(records.trigger_of(key))
        wanted_names = frozenset[str]()  # of the dependencies whose events the key may hold
        if rule is not None and (duplicates.is_mark(key) or can_hold(rule, key)):
            wanted_names = rule.condition.names
        wanted_events = [event for event in events if event.dependency in wanted_names]
        stale_events = (event for event in events if event.dependency not in wanted_names)
        partition.stale += [records.changelog_key(key, event.offset) for event in stale_events]
        if wanted_events and duplicates.is_mark(key):
            partition.marks[key] = tuple(wanted_events)
        elif wanted_events:
            partition.held[key] = sort_by_time(wanted_events)
            partition.bytes += _bytes_of(wanted_events)

    def _is_fulfilled(self, key: str, held: Held) -> bool:
        """Whether the events held at a key make their trigger's condition true. False if the
        trigger waits for an event's absence, as then a timer fires it."""
        condition = self._rules[records.trigger_of(key)].condition
        return not condition.unwanted and condition.holds(
            Counter(event.dependency for event in held)
        )

    def forget(self, number: int) -> None:
        """Forget what is held for a partition that another process reads from now on (BUS-S10)."""
        self._partitions.pop(number, None)

    @property
    def partitions(self) -> Sequence[int]:
        """The restored partitions."""
        return list(self._partitions)

    def held(self, number: int, key: str) -> Held:
        """Return the events held at a key; for the key of a mark, the mark."""
        partition = self._partitions[number]
        return (partition.marks if duplicates.is_mark(key) else partition.held).get(key, ())

    def all_held(self) -> Mapping[str, Held]:
        """Return the held events of all partitions, by key; each key is in one partition only."""
        return {
            key: held
            for partition in self._partitions.values()
            for key, held in partition.held.items()
        }

    @property
    def key_count(self) -> int:
        """Number of triggers, or of their correlation keys, for which events are held."""
        return sum(len(partition.held) for partition in list(self._partitions.values()))

    @property
    def held_bytes(self) -> int:
        """Bytes of all held events as JSON."""
        return sum(partition.bytes for partition in list(self._partitions.values()))

    @property
    def exceeds_limits(self) -> bool:
        """Whether more events are held than allowed."""
        return self.key_count > self._max_keys or self.held_bytes > self._max_bytes

    def pop_excess(self, limit: int) -> Iterator[tuple[int, str]]:
        """Yield partition and key of the events that must be dropped to stay within the limits, the
        oldest first, up to `limit` keys. A key isn't yielded again before `set_timers` or
        `set_held` is called for it."""
        key_count, size = self.key_count, self.held_bytes
        self._note_oldest_events()
        while limit > 0 and (key_count > self._max_keys or size > self._max_bytes):
            oldest_by_partition = [
                (first, number)
                for number, partition in self._partitions.items()
                if partition.since is not None and (first := partition.since.first) is not None
            ]
            if not oldest_by_partition:
                return
            first, number = min(oldest_by_partition)
            partition = self._partitions[number]
            assert partition.since is not None
            key = next(partition.since.take_due(first))
            key_count, limit = key_count - 1, limit - 1
            size -= _bytes_of(partition.held[key])
            yield number, key

    def _note_oldest_events(self) -> None:
        """Begin to keep the time of each key's oldest event (`_Partition.since`). This is done only
        once too much is held, as most partitions never hold that much."""
        for partition in self._partitions.values():
            if partition.since is None:
                partition.since = Timers()
                for key, held in partition.held.items():
                    partition.since.set(key, held[0].at)

    def holding(self) -> Holding:
        """Return a report of the events that each trigger holds in each partition; visits all held
        events."""
        reports: list[Waiting] = []
        for number, partition in self._partitions.items():
            key_counts: Counter[str] = Counter()
            oldest: dict[str, tuple[int, str]] = {}
            for key, held in partition.held.items():
                trigger, time_and_key = records.trigger_of(key), (held[0].at, key)
                key_counts[trigger] += 1
                oldest[trigger] = min(time_and_key, oldest.get(trigger, time_and_key))
            for trigger, (since_at, key) in oldest.items():
                correlation = records.correlation_of(key)
                reports.append(
                    Waiting(
                        trigger=trigger,
                        partition=number,
                        keys=key_counts[trigger],
                        since=since_at,
                        key=None if correlation is None else correlation[:MAX_SHOWN_KEY_CHARACTERS],
                        has=tuple(sorted({event.dependency for event in partition.held[key]})),
                    )
                )
        return Holding(partitions=tuple(self._partitions), triggers=tuple(reports))

    def set_held(self, number: int, key: str, held: Held) -> None:
        """Replace the events held at a key by `held` (empty: hold none), and set the key's timers.
        For the key of a mark, replace the mark."""
        partition = self._partitions[number]
        if duplicates.is_mark(key):
            partition.marks.pop(key, None)
            if held:
                partition.marks[key] = held
            return
        partition.bytes += _bytes_of(held) - _bytes_of(partition.held.get(key, ()))
        if held:
            partition.held[key] = held
        else:
            partition.held.pop(key, None)
        self.set_timers(number, key)

    def old_marks(self, dedupe: int, limit: int) -> Iterator[tuple[int, str]]:
        """Yield partition and key of marks that aren't needed any more, up to `limit`: first those
        more than `dedupe` milliseconds older than the newest mark of their partition; then, if more
        than `max_keys` are left, the oldest ones of all partitions."""
        mark_count = sum(len(partition.marks) for partition in self._partitions.values())
        excess = mark_count - self._max_keys  # negative: fewer than allowed
        remaining_marks: list[Iterator[tuple[int, int, str]]] = []
        for number, partition in self._partitions.items():
            if not partition.marks:
                continue
            newest_at, yielded = next(reversed(partition.marks.values()))[0].at, 0
            for at, _, key in _marks_from(number, partition, 0):
                if at + dedupe >= newest_at or limit <= 0:
                    break
                yielded, excess, limit = yielded + 1, excess - 1, limit - 1
                yield number, key
            remaining_marks.append(_marks_from(number, partition, yielded))
        oldest_of_all = merge(*remaining_marks)  # by time, as each iterator is
        for _, number, key in islice(oldest_of_all, max(0, min(excess, limit))):
            yield number, key

    @property
    def stale_records(self) -> Iterator[tuple[int, bytes]]:
        """Yield partition and record key of changelog records whose events aren't held any more, as
        the Sensor was edited; they must be deleted."""
        for number, partition in self._partitions.items():
            for key in reversed(partition.stale):
                yield number, key

    def forget_stale(self, count: int) -> None:
        """Forget the first `count` records that `stale_records` yields, as they were deleted."""
        for partition in self._partitions.values():
            deleted = min(count, len(partition.stale))
            # From the end, as `stale_records` yields them in reverse order.
            del partition.stale[len(partition.stale) - deleted :]
            count -= deleted

    @property
    def fulfilled_keys(self) -> Iterator[tuple[int, str]]:
        """Yield partition and key of held events that make their trigger's condition true since the
        Sensor was edited; they must fire."""
        for number, partition in self._partitions.items():
            for key in reversed(partition.fulfilled):
                yield number, key

    def forget_fulfilled(self, count: int) -> None:
        """Forget the first `count` keys that `fulfilled_keys` yields, as they have fired."""
        for partition in self._partitions.values():
            fired = min(count, len(partition.fulfilled))
            # From the end, as `fulfilled_keys` yields them in reverse order.
            del partition.fulfilled[len(partition.fulfilled) - fired :]
            count -= fired

    # Time

    def set_timers(self, number: int, key: str) -> None:
        """Set the timers of a key from its held events. Call it also for each key that
        `pop_changed_until` or `pop_excess` has yielded, if the key's events stay as they are: both
        remove its timers."""
        if duplicates.is_mark(key):
            return
        partition, rule = self._partitions[number], self._rules[records.trigger_of(key)]
        held = partition.held.get(key, ())
        if partition.since is not None:
            partition.since.set(key, held[0].at if held else None)
        try:
            expires, due = rules.expiry_time(rule, held), rules.due_time(rule, held)
        except Exception:  # a bug, which must not end the Sensor: the key gets no timers
            log.exception("the timers of the events held for %.200s can't be set", key)
            expires = due = None
        partition.timers.set(key, expires)
        partition.due.set(key, due)

    @property
    def first_timer(self) -> int | None:
        """The next time (ms) at which the held events of some key change without a further event;
        None: there is none."""
        times = (partition.timers.first for partition in self._partitions.values())
        return min((due_time for due_time in times if due_time is not None), default=None)

    def pop_changed_until(self, time: int) -> Iterator[tuple[int, str]]:
        """Yield partition and key of held events that change up to this time (ms) without a further
        event. A key isn't yielded again before `set_timers` or `set_held` is called for it."""
        for number, partition in self._partitions.items():
            for key in partition.timers.take_due(time):
                yield number, key

    @property
    def due(self) -> int | None:
        """The time (ms) of the next firing that needs no further event; None: there is none."""
        times = (partition.due.first for partition in list(self._partitions.values()))
        return min((due_time for due_time in times if due_time is not None), default=None)

    def due_with(self, number: int, changed: Mapping[str, Held]) -> int | None:
        """Return when (ms) the next firing that needs no further event is due in the partition
        `number`, if the keys in `changed` held the events given there; None: there is none."""
        # The timers are changed, asked and changed back, as copying them would take longer.
        due = self._partitions[number].due
        previous_times = {key: due.time_of(key) for key in changed}
        for key, held in changed.items():
            with suppress(Exception):  # `set_timers` logs the error
                due.set(key, rules.due_time(self._rules[records.trigger_of(key)], held))
        first = due.first
        for key, due_time in previous_times.items():
            due.set(key, due_time)
        return first


def can_hold(rule: Rule, key: str) -> bool:
    """Whether the rule's trigger may hold events at this key. The key must have a correlation key
    if the trigger declares a correlation, and none if it doesn't: an edit may have changed that."""
    return rule.is_correlated == (records.correlation_of(key) is not None)


def _marks_from(number: int, partition: _Partition, skipped: int) -> Iterator[tuple[int, int, str]]:
    """Yield time (ms), partition (`number`) and key of a partition's marks, the oldest first,
    without the `skipped` oldest ones."""
    for key, (mark, *_) in islice(partition.marks.items(), skipped, None):
        yield mark.at, number, key


def _bytes_of(held: Iterable[HeldEvent]) -> int:
    """Return the size of events: the bytes of their JSON."""
    size = 0
    for event in held:  # sum() of a generator costs twice as much; this is called for each event
        size += len(event.document)
    return size


def _read_changelog(
    changelog: Iterable[Sequence[Record]], now: int
) -> Mapping[str, Sequence[HeldEvent]]:
    """Return the events that a partition's changelog holds, by key; a record that can't be read is
    logged and skipped. `now`: ms since the Unix epoch, which replaces a later time of an event."""
    events_by_key: dict[str, dict[int, HeldEvent]] = {}
    for batch in changelog:
        for record in batch:
            try:
                key, offset = records.read_changelog_key(record.key())
                if record.value() is None:
                    events_by_key.get(key, {}).pop(offset, None)
                    continue
                trigger_record = records.read_trigger_record(
                    key.encode(), record.value(), record.headers(), offset
                )
            except Exception as error:  # also a SystemError, for a header's name that isn't UTF-8
                log.error("a record of the changelog can't be read: %s", error)
            else:
                event = trigger_record.event
                events_by_key.setdefault(key, {})[offset] = event._replace(
                    at=written_at(event.at, now)
                )
    return {key: list(events.values()) for key, events in events_by_key.items()}
