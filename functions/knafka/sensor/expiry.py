"""Fires and drops what time alone decides: waits for absence, windows and resets that are over.

    a timer is due --the bus's ends are asked for--> known --> up to 1,000 keys in a transaction

It happens while further events come, too: under a load that never stops, a wait would otherwise
never be over. An event that was read later than the known time allows may have an answer that
nobody has read yet, so its key waits for ends that were asked for after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from knafka.core.sensor import records, rules
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.held import Held
from knafka.core.sensor.rules import Rule, RuleStep
from knafka.ports.transactions import Partition
from knafka.sensor.batch import MAX_BATCH_RECORDS, Batch
from knafka.sensor.giving_up import dead_letter_held
from knafka.sensor.handlers import follow
from knafka.sensor.ordering import Ordering
from knafka.sensor.state import State
from knafka.sensor.watermark import MIN_ABSENCE_DELAY

MAX_LATE_KEYS: Final = 10_000
"""Most keys that wait each for themselves after a late event; with more, all keys wait."""

_Key: TypeAlias = tuple[int, str]
"""Partition of the trigger topic, and key."""


class Expiry:
    """Handles the timers of one process once every event before their time was read. Times are ms
    since the Unix epoch."""

    def __init__(
        self, sensor: SensorContract, rules: Mapping[str, Rule], state: State, ordering: Ordering
    ) -> None:
        """Begin without timers: they are in `state`. `rules` has the rules by the triggers' names;
        `ordering` says up to which time everything was read."""
        self._topic = sensor.trigger_topic
        self._rules = rules
        self._state = state
        self._ordering = ordering
        self._all_read_until: int | None = None
        """Time before which every event was read; None: it has to be asked for."""
        self._since = 0
        """Requests for the bus's ends count only if they were made at this time (our clock) or
        later."""
        self._late_since: dict[_Key, int] = {}
        """For each key of which an event was read later than the known time allows: requests for
        the bus's ends count for this key only if they were made at this time or later."""

    def forget(self, now: int) -> None:
        """Forget up to which time everything was read, as partitions were assigned or are read
        again: only answers to requests from `now` on count."""
        self._all_read_until = None
        self._since = now
        self._late_since.clear()

    def note_read(self, late: Collection[_Key], now: int, *, is_any: bool) -> None:
        """Note what was read at `now`. `late`: the keys of events that are earlier than the time
        before which everything was believed to be read; `is_any`: whether any record was read."""
        if is_any and self._ordering.known is None:
            self._since = now  # any of the records may be late
        self._late_since.update(dict.fromkeys(late, now))
        if len(self._late_since) > MAX_LATE_KEYS:
            self._since = now  # for all keys
            self._late_since.clear()

    @property
    def ask_since(self) -> int:
        """Only answers to requests for the bus's ends that were made at this time (our clock) or
        later count for all keys."""
        return max(self._since, *self._late_since.values()) if self._late_since else self._since

    @property
    def _lateness(self) -> int:
        """Milliseconds after an event's time for which it may still come."""
        return max(MIN_ABSENCE_DELAY, self._ordering.grace)

    def due(self, now: int) -> int | None:
        """Return the time of the first timer that is due at `now`: it ended so long ago
        (`_lateness`) that no earlier event can still come. None if none is due."""
        first = self._state.first_timer
        return None if first is None or first > now - self._lateness else first

    def is_next(self, time: int | None) -> bool:
        """Whether the timer at this time can be handled without asking for the bus's ends; False if
        `time` is None, as there is no timer."""
        return self._is_known(time) and not self._late_since

    def _is_known(self, time: int | None) -> bool:
        """Whether every event before this time was certainly read and taken."""
        until = self._taken_until()
        return time is not None and until is not None and time <= until

    def fire(self, now: int, batch: Batch) -> int:
        """Handle the timers that are due at `now`, of up to `MAX_BATCH_RECORDS` keys; returns of
        how many. Nothing is handled before every event before the first timer was read."""
        if (first := self.due(now)) is None:
            return 0
        self._update(first, now)
        if (until := self._taken_until()) is None or until < first:
            return 0
        changed, late = 0, list[_Key]()
        for number, key in self._state.changed_until(until):
            if (number, key) in self._late_since:
                late.append((number, key))
                continue
            expire_key = partial(rules.expire, until=until)
            if self._change_held(number, key, expire_key, batch):
                self._ordering.note_expired(number, until)
            changed += 1
            if changed == MAX_BATCH_RECORDS:
                break
        for number, key in late:  # `changed_until` has removed their timers
            self._state.set_timers(number, key)
        return changed

    def fire_fulfilled_by_edit(self, batch: Batch) -> None:
        """Fire the conditions that events held already fulfil because the Sensor was edited, for up
        to `MAX_BATCH_RECORDS` keys."""
        for number, key in islice(self._state.fulfilled, MAX_BATCH_RECORDS):
            self._change_held(number, key, rules.apply_edited, batch)
            batch.fulfilled_keys += 1

    def _update(self, first: int, now: int) -> None:
        """Update `_all_read_until` from the answer to the last request for the bus's ends, if the
        timer at `first` needs a later time; and remove the keys from `_late_since` for which that
        answer counts."""
        known_until, asked_at = self._ordering.known, self._ordering.asked_at
        if known_until is None or asked_at < self._since:
            return
        if not self._is_known(first):
            self._all_read_until = min(known_until, now - self._lateness)
        self._late_since = {
            key: since for key, since in self._late_since.items() if since > asked_at
        }

    def _taken_until(self) -> int | None:
        """Return the time before which every event was read and taken; None: it isn't known."""
        waiting, until = self._ordering.first_collected, self._all_read_until
        return until if waiting is None or until is None else min(waiting, until)

    def _change_held(
        self, number: int, key: str, change: Callable[[Rule, Held], RuleStep], batch: Batch
    ) -> bool:
        """Change the events that one key holds by `change`, and fire what follows. `number`: the
        key's partition of the trigger topic. Returns False if `change` raised an error: then the
        events are dead-lettered."""
        partition = Partition(self._topic, number)
        batch.begin((partition, key))
        batch.positions.setdefault(partition, self._ordering.position(partition))
        try:
            rule_step = change(self._rules[records.trigger_of(key)], batch.held(number, key))
        except Exception as error:
            dead_letter_held(number, key, error, batch)
            return False
        follow(number, key, rule_step, batch)
        return True
