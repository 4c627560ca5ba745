"""What follows from some records of a Sensor: nothing of it counts before it is committed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from knafka.core.sensor import records
from knafka.core.sensor.contract import Sensor
from knafka.core.sensor.held import Firing, Held, HeldEvent
from knafka.ports.transactions import Output, Partition
from knafka.sensor.counts import Counts
from knafka.sensor.state import State
from knafka.sensor.tracing import SensorTracing
from knafka.tracing.spans import Span

BATCH: Final = 1000
"""Records that one transaction follows from at most, and keys of what changes by itself. Of a
backlog 100 (BUS-S9) would be too few: a transaction costs Kafka as much as hundreds of records do
(docs/decisions/0026-sensors.md). A million keys whose time comes at once would take longer than
Kafka lets a transaction be."""


class Batch:
    """One transaction's outputs and positions, and what will be held after it."""

    def __init__(self, sensor: Sensor, state: State, tracing: SensorTracing | None = None) -> None:
        self.spans: list[Span] = []
        """Of what fires; they end with the transaction."""
        self._tracing = tracing
        self._outputs: list[Output] = []
        self._added: dict[tuple[int, bytes], Output] = {}
        """What is to be held, by partition and key in the changelog: what fires within the batch is
        never written there."""
        self.positions: dict[Partition, int] = {}
        self.counts = Counts()
        self._sensor = sensor
        self._state = state
        self._changed: dict[int, dict[str, Held]] = {}
        self.tidied = 0
        """Stale records of the changelog that it removes."""
        for number, key in islice(state.stale, BATCH):
            self._remove(number, key)
            self.tidied += 1

    def held(self, number: int, key: str) -> Held:
        changed = self._changed.get(number, {}).get(key)
        return self._state.held(number, key) if changed is None else changed

    @property
    def outputs(self) -> list[Output]:
        """All that is to be appended."""
        return [*self._outputs, *self._added.values()]

    @property
    def changed(self) -> Iterator[tuple[int, str, Held]]:
        for number, each in self._changed.items():
            for key, held in each.items():
                yield number, key, held

    def match(self, key: str, event: HeldEvent) -> None:
        """An event counts for a trigger: it goes to what that holds (BUS-13)."""
        headers = records.headers_of(event, self._sensor.generation)
        topic = self._sensor.trigger_topic
        self._outputs.append(Output(topic, key.encode(), event.document, headers))
        self.counts.matched += 1

    def keep(self, number: int, key: str, after: Held) -> None:
        """This is what is held of a key."""
        before = self.held(number, key)
        self._changed.setdefault(number, {})[key] = after
        kept, known = ({each.offset for each in held} for held in (after, before))
        for each in before:
            if each.offset not in kept:
                self._remove(number, records.changelog_key(key, each.offset))
        for each in after:
            if each.offset not in known:
                self._add(number, key, each)

    def _add(self, number: int, key: str, event: HeldEvent) -> None:
        topic, headers = (
            self._sensor.changelog_topic,
            records.headers_of(event, self._sensor.generation),
        )
        name = records.changelog_key(key, event.offset)
        self._added[number, name] = Output(topic, name, event.document, headers, number)

    def _remove(self, number: int, name: bytes) -> None:
        if self._added.pop((number, name), None) is None:
            self._outputs.append(Output(self._sensor.changelog_topic, name, None, [], number))

    def fire(self, key: str, firing: Firing, place: str) -> None:
        """A condition has become true; `place`: where its last event was read, which makes the
        action's id the same however often it is written."""
        sensor, trigger = self._sensor, records.trigger_of(key)
        source = f"/apis/v1/namespaces/{sensor.namespace}/sensors/{sensor.name}"
        identity = f"{sensor.namespace}.{sensor.name}.{trigger}.{place}"
        trace = b""
        if self._tracing is not None and (span := self._tracing.fire(key, identity, firing)):
            self.spans.append(span)
            trace = span.context.encode()
        headers, data = records.action(source, identity, key, firing, trace)
        self._outputs.append(Output(sensor.action_topic, key.encode(), data, headers))
        self.counts.fired[trigger] += 1

    def metadata(self, partition: Partition) -> str:
        """What is committed beside its position: of the trigger topic, BUS-16's mapping of the
        triggers that are not correlated."""
        if partition.topic != self._sensor.trigger_topic:
            return ""
        number, position = partition.number, self.positions[partition]
        needed = {
            trigger.name: min(
                (each.offset for each in self.held(number, trigger.name)), default=position
            )
            for trigger in self._sensor.triggers
            if trigger.correlation is None
        }
        due = self._state.due_with(number, self._changed.get(number, {}))
        return records.commit_metadata(needed, due)
