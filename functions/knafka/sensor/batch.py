"""Collects the results of some records of a Sensor for one transaction; they take effect only when
it is committed.

    bus            the topic whose events the Sensor reads
    trigger topic  the Sensor's own topic, through which events reach the triggers that need them
    changelog      a topic with one record for each event that a trigger holds
    action topic   one record for each firing, for the trigger's subscriber

A trigger holds events until its condition is true; then it fires.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, TypeAlias

from knafka.core.dead_letter import stub_of
from knafka.core.delivery import Reason
from knafka.core.events.kafka_binding import Draft
from knafka.core.sensor import letters, records
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.held import Firing, Held, HeldEvent
from knafka.core.sensor.letters import TooLarge
from knafka.core.sensor.order import Routed, Taken
from knafka.ports.log import Record
from knafka.ports.transactions import Output, Partition
from knafka.sensor.counts import SensorCounts
from knafka.sensor.state import State
from knafka.sensor.tracing import SensorTracing
from knafka.tracing.spans import Span

RECORD_SIZE_SETTING: Final = "max.message.bytes"
"""Name of the topic setting that limits a record's size; error messages name it."""
MAX_BATCH_RECORDS: Final = 1000
"""Most records, and most keys whose timers ran out, that one transaction handles. For a backlog 100
(BUS-S9) would be too few: a transaction costs Kafka as much as hundreds of records
(docs/decisions/0026-sensors.md). A million keys due at once would exceed Kafka's limit on a
transaction's duration."""
MAX_FIRING_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of events in one action: no producer of ours sends a larger record."""

Cause: TypeAlias = Record | tuple[Partition, str]
"""The reason for outputs: a record that was read, or a key of the trigger topic (with its
partition) whose timer ran out or whose events are dropped."""
CauseId: TypeAlias = tuple[Partition, int | str]
"""Identifies a cause: its partition, and the record's offset or the key."""
Refused: TypeAlias = dict[CauseId, dict[tuple[str, bytes | None], int]]
"""For each cause, its outputs that were too large: by topic and record key, the size in bytes from
which on the topic refuses the output."""


class Batch:
    """The outputs and positions of one transaction, and the events that are held after it.

    In its methods, `number` is a partition of the trigger topic, and `key` a trigger with its
    correlation key (`records.key_of`).
    """

    def __init__(
        self,
        sensor: SensorContract,
        state: State,
        tracing: SensorTracing | None = None,
        refused: Refused | None = None,
        now: int = 0,
    ) -> None:
        """Create a batch; its first outputs are the tombstones of stale changelog records. `state`
        has the events held before the batch; `tracing` None: no spans are made. `refused`: outputs
        that are known to be too large for their topics; None: none is. `now`: ms since the Unix
        epoch."""
        self._refused: Refused = {} if refused is None else refused
        self._now = now
        self.dead_letter_count = 0
        """Number of dead letters in this batch."""
        self.dropped_keys = 0
        """Number of keys whose events this batch drops because too much was held."""
        self.keys_fired_by_edit = 0
        """Number of keys that fire without a further event, as the Sensor was edited."""
        self.late_keys: set[tuple[int, str]] = set()
        """Partition and key of each event that came late: everything before the event's time was
        believed to be read already."""
        self._causes: list[Cause] = []
        """The causes, in the order of `begin_cause`; the last one is the present one."""
        self._starts: list[int] = []
        """Index in `_outputs` of the first output of each cause."""
        self.spans: list[Span] = []
        """Spans of firings; they end with the transaction."""
        self._tracing = tracing
        self._outputs: list[Output] = []
        """Records to append, except those of `_added`."""
        self._added: dict[tuple[int, bytes], Output] = {}
        """Changelog records of events that are held from now on, by partition and changelog key. An
        event that fires within the batch is removed, and so never written."""
        self._cause_of_added: dict[tuple[int, bytes], int] = {}
        """Index in `_causes` of each added event's cause."""
        self.positions: dict[Partition, int] = {}
        """The offset to commit of each partition."""
        self.routed: dict[int, Routed] = {}
        """For each partition of the bus in `positions`: the time up to which its events are routed
        once this batch is committed."""
        self.taken: dict[int, Taken | None] = {}
        """For each partition of the trigger topic: which records at or after its committed offset
        were taken already."""
        self.counts = SensorCounts()
        """Counts of this batch, which are added to the process's once it is committed."""
        self._sensor = sensor
        self._state = state
        self._changed: dict[int, dict[str, Held]] = {}
        """The events held after this batch, by partition and key; only of keys that it changes."""
        self.removed_stale = self._remove_stale()
        """Number of stale records of the changelog that this batch removes."""

    def _remove_stale(self) -> int:
        """Append the tombstones of stale records of the changelog (`State.stale_records`), up to
        `MAX_BATCH_RECORDS`; returns their number."""
        count = 0
        for number, record_key in islice(self._state.stale_records, MAX_BATCH_RECORDS):
            self._remove(number, record_key)
            count += 1
        return count

    def begin_cause(self, cause: Cause) -> None:
        """Set the cause (a record that was read, or a key whose events change without one) of all
        outputs that are added from now on, until the next call."""
        self._causes.append(cause)
        self._starts.append(len(self._outputs))

    def refused_outputs(self, topic: str, key: bytes | None, *, all_as_large: bool) -> Refused:
        """Return, by cause, the outputs that the next batch must leave out, as `topic` has refused
        this batch's output with the record key `key` (None: without key) for its size.
        `all_as_large` True: outputs to the topic that are at least as large are returned, too;
        without it, the result is empty if this batch has no output with this key."""
        topic_outputs = [
            (output, cause)
            for output, cause in self._outputs_with_causes()
            if output.topic == topic
        ]
        # If several outputs have the key, the largest of them counts as the refused one.
        limit = max(
            (_size_of(output) for output, _ in topic_outputs if output.key == key), default=0
        )
        refused: Refused = {}
        for output, cause in topic_outputs:
            if _size_of(output) >= limit and (all_as_large or output.key == key):
                refused.setdefault(_id_of_cause(cause), {})[topic, output.key] = limit
        return refused

    def _outputs_with_causes(self) -> Iterator[tuple[Output, Cause]]:
        """Yield the outputs with their causes; leave out the tombstones of stale changelog records,
        which have no cause."""
        ends = [*self._starts[1:], len(self._outputs)]
        for cause, start, end in zip(self._causes, self._starts, ends, strict=True):
            yield from ((output, cause) for output in self._outputs[start:end])
        for record_id, cause_index in self._cause_of_added.items():
            if record_id in self._added:
                yield self._added[record_id], self._causes[cause_index]

    def _check_size(self, output: Output) -> None:
        """Raise `TooLarge` if the output is known to be too large: earlier, its topic has refused
        an output of the same cause and record key that was at most as large."""
        limits = self._refused.get(_id_of_cause(self._causes[-1])) if self._causes else None
        if limits is None:
            return
        limit = limits.get((output.topic, output.key))
        if limit is not None and _size_of(output) >= limit:
            size = _size_of(output)
            raise TooLarge(
                f"{output.topic} takes no record of {size} bytes: raise {RECORD_SIZE_SETTING} there"
            )

    def _append(self, output: Output) -> None:
        """Add an output of the present cause. Raises `TooLarge` if it is known to be too large for
        its topic (`_check_size`)."""
        if self._refused:
            self._check_size(output)
        self._outputs.append(output)

    def add_dead_letter(self, letter: Draft, reason: Reason) -> None:
        """Add a dead letter, without its data if it is known to be too large for its topic, and
        count it by `reason`."""
        topic = self._sensor.dead_letter_topic
        try:
            self._append(Output(topic, letter.key, letter.value, letter.headers))
        except TooLarge:
            letter = stub_of(letter)
            self._outputs.append(Output(topic, letter.key, letter.value, letter.headers))
        self.dead_letter_count += 1
        self.counts.dead_letters[reason.value] += 1

    def add_dead_letter_of_record(
        self,
        place: tuple[str, int, int],
        record: Draft,
        failure: tuple[Reason, str],
        trigger: str | None,
    ) -> None:
        """Add the dead letter of the record at `place` (topic, partition, offset). `failure` is the
        dead letter's reason and text; `trigger` is the only trigger for which the record failed
        (None: it failed for all)."""
        now = self._now / 1000
        letter = letters.of_record(self._sensor, place, record, failure, now, trigger)
        reason, _ = failure
        self.add_dead_letter(letter, reason)

    def drop_held(self, number: int, key: str, failure: tuple[Reason, str]) -> None:
        """Drop the events held at a key. If there are any, add a dead letter that names them;
        `failure` is the dead letter's reason and text."""
        if held := self.held(number, key):
            self.add_dead_letter_of_events(number, key, held, failure)
        self.set_held(number, key, ())

    def add_dead_letter_of_events(
        self, number: int, key: str, events: Held, failure: tuple[Reason, str]
    ) -> None:
        """Add one dead letter that names these events of the trigger in `key`; `failure` is the
        dead letter's reason and text."""
        letter = letters.of_events(self._sensor, key, events, number, failure, self._now / 1000)
        reason, _ = failure
        self.add_dead_letter(letter, reason)

    def held(self, number: int, key: str) -> Held:
        """Return the events held at a key, with the changes of this batch applied."""
        changed = self._changed.get(number, {}).get(key)
        return self._state.held(number, key) if changed is None else changed

    @property
    def outputs(self) -> list[Output]:
        """All records to append: the outputs, and the changelog records of newly held events."""
        return [*self._outputs, *self._added.values()]

    @property
    def changed(self) -> Iterator[tuple[int, str, Held]]:
        """Yield this batch's changes of held events: partition, key, and the events that the key
        holds now."""
        for number, partition in self._changed.items():
            for key, held in partition.items():
                yield number, key, held

    def send_to_trigger(self, key: str, event: HeldEvent, until: int | None) -> None:
        """Send an event to the trigger in `key`: add its record for the trigger topic (BUS-13).
        The record says `until`: the time (ms) before which every event of the bus was read; None:
        not known. Raises `TooLarge`."""
        until_or_never = records.NEVER if until is None else until
        headers = records.headers_of(event, self._sensor.generation, until_or_never)
        topic = self._sensor.trigger_topic
        self._append(Output(topic, key.encode(), event.document, headers))
        self.counts.matched += 1

    def set_held(self, number: int, key: str, held_now: Held) -> None:
        """Hold the events `held_now`, and no others, at a key from now on; empty: hold none. Raises
        `TooLarge`, without changing anything, if a changelog record is known to be too large."""
        previously_held = self.held(number, key)
        offsets_before = {event.offset for event in previously_held}
        offsets_after = {event.offset for event in held_now}
        if self._refused:
            for event in held_now:
                if event.offset not in offsets_before:
                    self._check_size(self._held_record(number, key, event))
        self._changed.setdefault(number, {})[key] = held_now
        for event in previously_held:
            if event.offset not in offsets_after:
                self._remove(number, records.changelog_key(key, event.offset))
        for event in held_now:
            if event.offset not in offsets_before:
                self._add(number, key, event)

    def _add(self, number: int, key: str, event: HeldEvent) -> None:
        """Hold an event from now on: the batch will append its changelog record, unless `_remove`
        withdraws it."""
        record_id = number, records.changelog_key(key, event.offset)
        self._added[record_id] = self._held_record(number, key, event)
        self._cause_of_added[record_id] = len(self._causes) - 1

    def _held_record(self, number: int, key: str, event: HeldEvent) -> Output:
        """Return the changelog record that holds this event at a key."""
        headers = records.headers_of(event, self._sensor.generation)
        record_key = records.changelog_key(key, event.offset)
        return Output(self._sensor.changelog_topic, record_key, event.document, headers, number)

    def _remove(self, number: int, record_key: bytes) -> None:
        """Drop the changelog record with this record key, so that its event isn't held any more:
        withdraw the record if this batch was to append it, else append its tombstone."""
        if self._added.pop((number, record_key), None) is None:
            self._outputs.append(Output(self._sensor.changelog_topic, record_key, None, [], number))

    def fire(self, key: str, firing: Firing, place: str, own_key: bytes | None = None) -> None:
        """Add the action of a firing: the record that announces it to the trigger's subscriber.
        Raises `TooLarge`.

        `place` is a text that says where the firing's last event was read. It is part of the
        action's id, which is thus the same if the records are read again. `own_key` is the event's
        record key, if the condition wants one event only; None: it wants several, or the record has
        no key.
        """
        sensor, trigger = self._sensor, records.trigger_of(key)
        size = sum(len(event.document) for event in firing.events)
        if size > MAX_FIRING_BYTES:
            raise TooLarge(f"{len(firing.events)} events of {size} bytes fit into no record")
        source = records.source_of(sensor.namespace, sensor.name)
        identity = f"{sensor.namespace}.{sensor.name}.{trigger}.{place}"
        trace, span = b"", None
        if self._tracing is not None and (span := self._tracing.start_span(key, identity, firing)):
            trace = span.context.encode()
        headers, data = records.action_record(source, identity, key, firing, trace)
        record_key = self._action_key(key, own_key)
        self._append(Output(sensor.action_topic, record_key, data, headers))
        if span is not None:
            self.spans.append(span)
        self.counts.fired[trigger] += 1

    def _action_key(self, key: str, own_key: bytes | None) -> bytes | None:
        """Return an action's record key: actions with the same key are delivered one after another.
        None: the action has no key, and is delivered in any order.

        `key`: the trigger and its correlation key, which is the result if the trigger has a
        correlation. `own_key`: as in `fire`.
        """
        if records.correlation_of(key) is not None:
            return key.encode()
        if own_key is not None:
            return own_key
        return key.encode() if key in self._sensor.triggers_in_order else None

    def metadata(self, partition: Partition) -> str:
        """Return the text to commit with this partition's position. For the bus, it says up to
        which time events were sent to the triggers. For the trigger topic, it says which offset is
        the lowest that each trigger without a correlation needs, when the next firing is due, and
        which records after the position were handled already (BUS-16)."""
        if partition.topic != self._sensor.trigger_topic:
            return records.bus_metadata(self.routed.get(partition.number, Routed()))
        number, position = partition.number, self.positions[partition]
        needed = {
            trigger.name: min(
                (event.offset for event in self.held(number, trigger.name)), default=position
            )
            for trigger in self._sensor.triggers
            if trigger.correlation is None
        }
        due = self._state.due_with(number, self._changed.get(number, {}))
        return records.commit_metadata(needed, due, self.taken.get(number))


def _id_of_cause(cause: Cause) -> CauseId:
    """Return a cause's id, which is the same when its record is read again."""
    if isinstance(cause, tuple):
        return cause
    return Partition(cause.topic(), cause.partition()), cause.offset()


def _size_of(output: Output) -> int:
    """Return an output's size, by which outputs to one topic are compared: the bytes of its key,
    value and headers."""
    headers = sum(len(name) + len(value or b"") for name, value in output.headers)
    return len(output.key or b"") + len(output.value or b"") + headers
