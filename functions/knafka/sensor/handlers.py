"""A Sensor's two handlers (BUS-21), each in two steps: a record that was read waits until it is
next.

    bus            take_in --queue--> route     into the trigger topic, or into an action
    trigger topic  collect --InOrder--> reduce  into the events that a trigger holds, or an action

The bus is the topic whose events the Sensor reads, the trigger topic the Sensor's own: through it,
an event reaches the one process that holds the events of its trigger and correlation key. A trigger
holds events until its condition is true; then it fires: an action is written.

A record that raises an error is dead-lettered, and the others go on (CE-K8). Not here: reading and
transactions (`processor`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from knafka.core.errors import InvalidEvent, LogError
from knafka.core.events import json_format
from knafka.core.events.kafka_binding import RecordHeaders, headers_of, read
from knafka.core.sensor import duplicates, letters, records, rules
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.held import Firing, Held, HeldEvent
from knafka.core.sensor.order import BEFORE_ALL, InOrder, Place
from knafka.core.sensor.records import TriggerTopicRecord
from knafka.core.sensor.routing import Router
from knafka.core.sensor.rules import Rule, RuleStep
from knafka.core.times import taken_at, written_at
from knafka.ports.log import Record
from knafka.sensor.batch import Batch
from knafka.sensor.bus import BusPartitions
from knafka.sensor.giving_up import dead_letter_held_events, dead_letter_record, fire_or_dead_letter
from knafka.sensor.queues import Arrival
from knafka.sensor.state import can_hold
from knafka.sensor.tracing import SensorTracing

OFFSET_STRIDE: Final = 2**40
"""Step by which `_with_unique_offset` goes down while a replacement is taken: more than the number
of records that a partition of a trigger topic ever has."""


class NewerSensor(LogError):
    """Raised for a record of a later version of this Sensor, which only that version can
    interpret."""


class Collected(NamedTuple):
    """A record of the trigger topic that waits until it is next in order."""

    record: Record
    decoded: TriggerTopicRecord | None
    """The record, decoded; None: it can't be read."""
    headers: RecordHeaders | None
    """The record's headers; None: it has none, or they can't be read."""
    error: Exception | None
    """Why the record can't be read; None: it can."""


class Handlers:
    """Handles the events of one process: routes them to triggers, and applies them."""

    def __init__(
        self,
        sensor: SensorContract,
        rules: Mapping[str, Rule],
        router: Router,
        bus: BusPartitions,
        tracing: SensorTracing | None,
    ) -> None:
        """`rules` has each trigger's rule by the trigger's name; `router` finds the triggers of an
        event; `bus` queues events of the bus. `tracing` None: no spans are made."""
        self._sensor = sensor
        self._rules = rules
        self._router = router
        self._bus = bus
        self._tracing = tracing
        self._dedupe = sensor.dedupe_millis
        """Milliseconds within which an event with the same source and id is a duplicate; None: no
        event is."""

    # Of the bus

    def take_in(self, record: Record, batch: Batch, now: int, read_at: int) -> None:
        """Take in a record of the bus: queue its event, or route it at once if no trigger will hold
        it and no earlier event of its partition is queued. A record without a valid event is
        dead-lettered. `read_at`: when the record was read; `now`: the present, which replaces a
        time of the record that can't be right (`taken_at`); both in ms since the Unix epoch."""
        bus, time = self._bus, taken_at(record.timestamp(), now)
        read_until, earlier_ones_wait = bus.note_read(record, time, read_at)
        headers: RecordHeaders | None = None
        try:
            headers = headers_of(record)
            envelope = read(headers, record.value())
            routes = self._router.route(envelope.attributes)
        except LogError:
            raise
        except Exception as error:
            batch.begin_cause(record)
            batch.counts.read += 1
            dead_letter_record(record, headers, error, batch)
            return
        size = len(record.value() or b"")
        place = Place(time, record.partition(), record.offset())
        arrival = Arrival(place, read_until, record, headers or [], envelope, routes, size)
        # Without routes, `all` is True: nothing has to wait.
        if earlier_ones_wait or not all(route.fires for route in routes):
            bus.enqueue(arrival)
        else:
            self.route(arrival, batch, None)

    def route(self, arrival: Arrival, batch: Batch, until: int | None) -> None:
        """Send the next event of the bus to each of its triggers through the trigger topic; if a
        trigger's condition is simple, fire at once instead (BUS-12). The outputs are added to the
        batch.

        `until`: time (ms since the Unix epoch) before which every event of the bus was read, for
        the trigger topic's records (`TriggerTopicRecord.until`); None: not known.
        """
        record, place = arrival.record, arrival.place
        batch.begin_cause(record)
        batch.counts.read += 1
        if not arrival.routes:
            return
        envelope = arrival.envelope
        try:
            document = json_format.write(envelope.event)
            identity = records.identity_of(envelope.attributes)
            trace = b"" if self._tracing is None else self._tracing.traceparent_of(envelope)
        except Exception as error:
            dead_letter_record(record, arrival.headers, error, batch)
            return
        origin = place.partition, place.offset
        for route in arrival.routes:
            event = HeldEvent(
                route.dependency, identity, place.at, place.offset, document, trace, origin
            )
            try:
                if route.fires:
                    # With the time, as another event may have the same offset: the bus's topic may
                    # have been deleted and created again.
                    event_place = f"e{place.partition}.{place.offset}.{record.timestamp()[1]}"
                    batch.fire(route.key, Firing((event,)), event_place, record.key())
                else:
                    batch.send_to_trigger(route.key, event, until)
            except Exception as error:  # the event's other triggers still get it
                dead_letter_record(
                    record, arrival.headers, error, batch, records.trigger_of(route.key)
                )

    # Of the trigger topic

    def collect(
        self,
        record: Record,
        ordered: InOrder[Collected],
        batch: Batch,
        now: int,
        known_until: int | None = None,
    ) -> bool:
        """Take in a record of the trigger topic: apply its event at once (`reduce`) if it is next
        in order, else add it to `ordered`, the waiting records of its partition. Returns whether
        the event was applied. Raises `NewerSensor`.

        `known_until`: time (ms) before which every event was believed to be read (None: not known);
        if this event is earlier, its key is noted in `batch.late_keys`. `now`: ms since the Unix
        epoch.
        """
        headers: RecordHeaders | None = None
        offset, size = record.offset(), len(record.value() or b"")
        try:
            headers = headers_of(record)
            trigger_record = records.read_trigger_record(
                record.key(), record.value(), headers, offset
            )
        except LogError:
            raise
        except Exception as error:
            unread = Collected(record, None, headers, error)
            # Placed before all events, so that it waits for none.
            ordered.add(offset, BEFORE_ALL, records.NEVER, unread, size)
            return False
        if trigger_record.generation > self._sensor.generation:
            raise NewerSensor(
                f"the Sensor is at generation {trigger_record.generation} elsewhere, and here at"
                f" {self._sensor.generation}; if no newer one exists, skip this record: "
                "knafka sensor next shows it, and knafka sensor skip skips it"
            )
        event, time = trigger_record.event, written_at(trigger_record.event.at, now)
        if time != event.at:
            trigger_record = trigger_record._replace(event=event._replace(at=time))
        if known_until is not None and time < known_until:
            batch.late_keys.add((record.partition(), trigger_record.key))
        collected = Collected(record, trigger_record, headers, None)
        place = Place(time, *event.origin)
        if ordered.take_if_next(offset, place, trigger_record.until):
            self.reduce(collected, batch)
            return True
        ordered.add(offset, place, trigger_record.until, collected, size)
        return False

    def reduce(self, collected: Collected, batch: Batch) -> None:
        """Apply the next event of the trigger topic to its trigger: hold the event, or fire
        (BUS-13). A duplicate is dropped, and a record that can't be read is dead-lettered. The
        outputs are added to the batch."""
        record, trigger_record, headers, error = collected
        batch.begin_cause(record)
        if trigger_record is None:
            assert error is not None
            if not isinstance(error, InvalidEvent):  # the record's value is an event in JSON
                headers = letters.structured_headers(record.value())
            dead_letter_record(record, headers, error, batch)
            return
        rule = self._rules.get(records.trigger_of(trigger_record.key))
        if rule is None or not can_hold(rule, trigger_record.key):
            return  # the trigger was removed, or got or lost its correlation
        number, key, event = record.partition(), trigger_record.key, trigger_record.event
        try:
            if self._dedupe is not None:
                mark_key = duplicates.key_of(rule.name, event)
                if _is_duplicate(event, batch.held(number, mark_key), self._dedupe):
                    batch.counts.duplicates += 1
                    return
                batch.set_held(number, mark_key, (duplicates.mark_of(event),))
            event = _with_unique_offset(event, batch.held(number, key))
            try:
                rule_step = rules.step(rule, batch.held(number, key), event)
            except Exception as failure:
                # Apply the event alone: if it causes the error itself, this raises it again. If
                # not, the error was caused by the held events.
                rule_step = rules.step(rule, (), event)
                dead_letter_held_events(number, key, failure, batch)
            carry_out(number, key, rule_step, batch)
        except LogError:
            raise
        except Exception as failure:
            dead_letter_record(record, letters.structured_headers(record.value()), failure, batch)


def _is_duplicate(event: HeldEvent, mark: Held, dedupe: int) -> bool:
    """Whether an event repeats the one in `mark`, an event that was taken before with the same
    source and id: it is at most `dedupe` milliseconds later, or has an earlier time. False if
    `mark` is empty: no such event was taken."""
    return bool(mark) and event.at - mark[0].at <= dedupe


def _with_unique_offset(event: HeldEvent, held: Held) -> HeldEvent:
    """Return the event with an offset that no other event in `held`, those of its key, has.

    If the trigger topic was deleted and created again, another held event may have the same offset,
    and the changelog would keep only one of them. The new offset is negative and computed from the
    record's, so that no two events of a partition get the same one, and no two actions the same id.
    """
    if not any(other.offset == event.offset and not other.is_same_as(event) for other in held):
        return event
    used_offsets = {other.offset for other in held if not other.is_same_as(event)}
    offset = -1 - event.offset
    while offset in used_offsets:  # the topic was created again more than once
        offset -= OFFSET_STRIDE
    return event._replace(offset=offset)


def carry_out(number: int, key: str, rule_step: RuleStep, batch: Batch) -> None:
    """Carry out a rule's step: hold its events, and no others, at `key` (`records.key_of`), and
    fire its firings. `number` is the key's partition of the trigger topic."""
    batch.set_held(number, key, rule_step.held)
    for firing in rule_step.firings:
        fire_or_dead_letter(number, key, firing, batch)
