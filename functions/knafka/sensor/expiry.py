"""Fires and drops held events when time alone decides: a wait for an absent event is over, a window
has ended, or a reset has come.

    a timer is due --the bus's ends are asked for--> known --> up to 1,000 keys in a transaction

The bus is the topic whose events a Sensor reads. A trigger holds events until its condition is
true; a key is a trigger with its correlation key (`records.key_of`), and may have a timer. A timer
is handled only once it is known that every event of the bus before the timer's time was read.

Timers are handled while further events come, too: under a load that never stops, a wait would
otherwise never be over. An event may be read although everything before its time was believed to be
read; further events of its key may then be unread, too. So the timers of its key wait until the
bus's ends are asked for once more, after the event was read.
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
from knafka.sensor.giving_up import dead_letter_held_events
from knafka.sensor.handlers import carry_out
from knafka.sensor.ordering import Ordering
from knafka.sensor.state import State
from knafka.sensor.watermark import MIN_ABSENCE_DELAY

MAX_LATE_KEYS: Final = 10_000
"""Most keys whose late events are noted one by one; with more, the timers of all keys wait."""

_Key: TypeAlias = tuple[int, str]
"""Partition of the trigger topic, and trigger with its correlation key (`records.key_of`)."""


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
        """Time before which every event was read; None: not known."""
        self._answers_since = 0
        """Kafka's answers count only if the request for the bus's ends was made at this time (our
        clock) or later."""
        self._answers_since_by_key: dict[_Key, int] = {}
        """By key of which an event came late (`Batch.late_keys`): the time that replaces
        `_answers_since`, as only a later answer counts for the key."""

    def forget(self, now: int) -> None:
        """Forget up to which time everything was read, as partitions were assigned or are read
        again: only Kafka's answers to requests from `now` on count."""
        self._all_read_until = None
        self._answers_since = now
        self._answers_since_by_key.clear()

    def note_read(self, late_keys: Collection[_Key], now: int, *, has_records: bool) -> None:
        """Note what was read at `now`, so that the timers of `late_keys` wait for a new answer of
        Kafka. `late_keys`: the keys of events that are earlier than the time before which
        everything was believed to be read; `has_records`: whether any record was read at all."""
        if has_records and self._ordering.known_until is None:
            self._answers_since = now  # any of the records may be late
        self._answers_since_by_key.update(dict.fromkeys(late_keys, now))
        if len(self._answers_since_by_key) > MAX_LATE_KEYS:
            self._answers_since = now  # for all keys
            self._answers_since_by_key.clear()

    @property
    def needed_since(self) -> int:
        """The time (our clock) at which, or after which, the bus's ends must be requested so that
        Kafka's answer counts for the timers of all keys."""
        return max([self._answers_since, *self._answers_since_by_key.values()])

    @property
    def _lateness(self) -> int:
        """Milliseconds after an event's time within which the event may still come."""
        return max(MIN_ABSENCE_DELAY, self._ordering.grace)

    def first_due(self, now: int) -> int | None:
        """Return the time of the first timer, if it is due at `now`: its time is so long ago
        (`_lateness`) that no earlier event can still come. None if no timer is due."""
        first = self._state.first_timer
        return None if first is None or first > now - self._lateness else first

    def can_handle(self, time: int | None) -> bool:
        """Whether the timer at this time can be handled without a request for the bus's ends; False
        if `time` is None, as then there is no timer."""
        return self._is_taken_until(time) and not self._answers_since_by_key

    def _is_taken_until(self, time: int | None) -> bool:
        """Whether every event before this time is known to be read and handled; False for None."""
        until = self._taken_until()
        return time is not None and until is not None and time <= until

    def handle_timers(self, now: int, batch: Batch) -> int:
        """Handle the timers that are due at `now`, of up to `MAX_BATCH_RECORDS` keys: fire or drop
        their events. Returns the number of keys. Does nothing while it isn't known that every event
        before the first timer was read."""
        if (first := self.first_due(now)) is None:
            return 0
        self._update_read_until(first, now)
        if (until := self._taken_until()) is None or until < first:
            return 0
        changed, postponed = 0, list[_Key]()
        for number, key in self._state.pop_changed_until(until):
            if (number, key) in self._answers_since_by_key:  # events of the key may be unread
                postponed.append((number, key))
                continue
            expire_key = partial(rules.expire, until=until)
            if self._change_held(number, key, expire_key, batch):
                self._ordering.note_expired(number, until)
            changed += 1
            if changed == MAX_BATCH_RECORDS:
                break
        for number, key in postponed:  # `pop_changed_until` has removed their timers
            self._state.set_timers(number, key)
        return changed

    def fire_fulfilled_by_edit(self, batch: Batch) -> None:
        """Fire the conditions that became true when the Sensor was edited, as they are true for
        the events that were held already; for up to `MAX_BATCH_RECORDS` keys."""
        for number, key in islice(self._state.fulfilled_keys, MAX_BATCH_RECORDS):
            self._change_held(number, key, rules.apply_edited, batch)
            batch.keys_fired_by_edit += 1

    def _update_read_until(self, first: int, now: int) -> None:
        """Use Kafka's last answer, if its request was made late enough: set `_all_read_until` if
        the timer at `first` needs a later time, and remove from `_answers_since_by_key` the keys
        for which the answer counts."""
        known_until, requested_at = self._ordering.known_until, self._ordering.ends_requested_at
        if known_until is None or requested_at < self._answers_since:
            return
        if not self._is_taken_until(first):
            self._all_read_until = min(known_until, now - self._lateness)
        self._answers_since_by_key = {
            key: since for key, since in self._answers_since_by_key.items() if since > requested_at
        }

    def _taken_until(self) -> int | None:
        """Return the time before which every event was read and handled; None: not known."""
        first_waiting, read_until = self._ordering.first_collected_time, self._all_read_until
        if first_waiting is None or read_until is None:
            return read_until
        return min(first_waiting, read_until)

    def _change_held(
        self, number: int, key: str, change: Callable[[Rule, Held], RuleStep], batch: Batch
    ) -> bool:
        """Change the events that one key holds by the function `change`, and fire the firings that
        result. `number`: the key's partition of the trigger topic. Returns True; or False if
        `change` raised an error: then the events are dropped and dead-lettered."""
        partition = Partition(self._topic, number)
        batch.begin_cause((partition, key))
        batch.positions.setdefault(partition, self._ordering.position(partition))
        try:
            rule_step = change(self._rules[records.trigger_of(key)], batch.held(number, key))
        except Exception as error:
            dead_letter_held_events(number, key, error, batch)
            return False
        carry_out(number, key, rule_step, batch)
        return True
