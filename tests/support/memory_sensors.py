"""A Sensor with its processes in memory: one thread, no clock, any schedule."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from support.memory.log import MemoryLog
from support.memory.records import MemoryRecord
from support.memory.transactions import Crashed, Interruption, MemoryTransactions
from support.sensors import Routed, parse_routed

from knafka.core.documents import parse
from knafka.core.errors import LogError
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import RecordHeaders, to_record
from knafka.core.sensor.contract import SensorContract
from knafka.sensor.processor import Processor
from knafka.tracing.spans import Tracer

BUS, TRIGGER, CHANGELOG, ACTION, GROUP = "bus", "trigger", "changelog", "action", "shop-sensor"
DEAD = "dead-letters"
WAIT = 3
"""Seconds that `late` waits for b."""
PROCESSES = 3
TAKES = 30
"""Milliseconds of one batch."""


@dataclass(frozen=True)
class Send:
    dependency: str
    order: str
    after: int
    """Seconds since the event before."""


@dataclass(frozen=True)
class Run:
    process: int


@dataclass(frozen=True)
class Interrupt:
    process: int
    how: Interruption


@dataclass(frozen=True)
class End:
    """kill -9, or a session that runs out."""

    process: int
    expelled: bool


class Letter(NamedTuple):
    """A dead letter."""

    about: Mapping[str, str]
    """Its attributes, and other headers."""
    key: bytes | None
    value: bytes | None

    @property
    def reason(self) -> str:
        return self.about["knafkareason"]

    @property
    def told(self) -> str:
        """Why, in words."""
        return base64.b64decode(self.about["knativeerrordata"]).decode()

    @property
    def named(self) -> Sequence[str]:
        """Ids of the events that it names."""
        return [each["id"] for each in json.loads(self.value or b"")["events"]]


def sensor(generation: int, without: Sequence[str] = (), **more: Any) -> SensorContract:
    declared = parse(
        SensorContract,
        {
            "namespace": "shop",
            "name": "sensor",
            "generation": generation,
            "kafka": {"bootstrapServers": "memory:1"},
            "topic": BUS,
            "group": GROUP,
            "triggerTopic": TRIGGER,
            "changelogTopic": CHANGELOG,
            "actionTopic": ACTION,
            "bus": "default",
            "deadLetterTopic": DEAD,
            "dependencies": [
                {"name": each, "filter": {"attributes": {"type": each}}} for each in "abc"
            ],
            "triggers": [
                {"name": "two", "conditions": "a && b"},
                {"name": "three", "conditions": "a && b && c", "correlation": "order"},
                {"name": "one", "conditions": "c"},
                {
                    "name": "late",
                    "conditions": "a && !b",
                    "within": f"PT{WAIT}S",
                    "correlation": "order",
                },
            ],
        },
    )
    kept = tuple(each for each in declared.triggers if each.name not in without)
    return declared.model_copy(update={"triggers": kept, **more})


class MemorySensor:
    def __init__(self, partitions: int, *, by_sender: bool = False) -> None:
        """`by_sender`: whose clock the bus's times are of, in place of the log's own."""
        self.memory = MemoryLog()
        kind = "CreateTime" if by_sender else "LogAppendTime"
        self.memory.create(BUS, partitions, 1, {"message.timestamp.type": kind})
        for topic in (TRIGGER, CHANGELOG, ACTION):
            self.memory.create(topic, partitions)
        self.now = 1_000_000
        self.generation = 1
        self.without: tuple[str, ...] = ()
        """Triggers that the Sensor has no more."""
        self.more: dict[str, Any] = {}
        """Other fields of its contract."""
        self.tracer: Tracer | None = None
        self.sent: list[tuple[str, str]] = []
        self.clocks: dict[int, int] = {}
        """Milliseconds by which the clocks of processes are wrong."""
        self._late = 0
        self._processes: list[tuple[Processor, MemoryTransactions] | None] = [None] * PROCESSES

    def follow(self, step: Run | Interrupt | End) -> None:
        """Do what a step of a schedule says."""
        match step:
            case Run(process):
                self.run(process)
            case Interrupt(process, how):
                self.opened(process)[1].interrupt(how)
            case End(process, expelled):
                self.end(process, expelled=expelled)

    def send(
        self,
        event: Send,
        traceparent: bytes | None = None,
        data: bytes | None = None,
        at: int | None = None,
        partition: int | None = None,
        identity: str | None = None,
    ) -> None:
        """`at`: the record's timestamp, if it isn't now; `partition`: if its key doesn't say;
        `identity`: if it isn't another event than those before."""
        self.now += event.after * 1000
        identity = identity or f"{event.dependency}{len(self.sent)}"
        attributes = {
            "specversion": "1.0",
            "id": identity,
            "source": "/s",
            "type": event.dependency,
            "order": event.order,
            "partitionkey": str(len(self.sent)),
        }
        passed: RecordHeaders = [] if traceparent is None else [("traceparent", traceparent)]
        draft = to_record(Event(attributes, data), passed)
        when = self.now if at is None else at
        self.memory.store(
            BUS, draft.key, draft.value, draft.headers, timestamp=when, partition=partition
        )
        self.sent.append((identity, event.order))

    def opened(self, number: int) -> tuple[Processor, MemoryTransactions]:
        if (found := self._processes[number]) is None:
            logs: list[MemoryTransactions] = []

            def open_log(claims: Processor) -> MemoryTransactions:
                topics = [BUS, TRIGGER]
                logs.append(MemoryTransactions(self.memory, GROUP, topics, claims, str(number)))
                return logs[0]

            processor = Processor(
                sensor(self.generation, self.without, **self.more),
                open_log,
                self.tracer,
                lambda: self.now / 1000,
            )
            found = self._processes[number] = processor, logs[0]
        return found

    def run(self, number: int) -> int:
        """One batch; a process that has ended is started again the next time."""
        processor, _ = self.opened(number)
        self.now += TAKES
        try:
            return processor.step(self.now + self.clocks.get(number, 0))
        except Crashed:
            self._processes[number] = None
        except LogError:
            # As its drain: it leaves, and another one begins.
            with suppress(Crashed):
                processor.close(1)
            self._processes[number] = None
        return 1

    def sleep(self) -> None:
        """All processes leave."""
        for number, each in enumerate(self._processes):
            if each is not None:
                each[0].close(1)
                self._late += each[0].counts.late.total()
                self._processes[number] = None

    def late(self) -> int:
        """Events that came too late for their order, as the processes that are left say."""
        there = (each[0].counts.late.total() for each in self._processes if each is not None)
        return self._late + sum(there)

    def settle(self, process: int = 0) -> None:
        """Until nothing comes any more; what waits for something not to come goes on waiting."""
        while self.run(process) or self.opened(process)[0].is_waiting:
            pass

    def end(self, number: int, *, expelled: bool) -> None:
        _, log = self.opened(number)
        if expelled:
            log.expel()
        else:
            log.crash()
            self._processes[number] = None

    def rest(self) -> None:
        """Until nothing is left to do, long after the last event."""
        self.now += 3600 * 1000
        for _ in range(3):
            quiet = 0
            while quiet < 5:
                work = sum(self.run(each) for each in range(PROCESSES))
                waits = any(each is not None and each[0].is_waiting for each in self._processes)
                quiet = 0 if work or waits else quiet + 1
                self.now += 1000

    def read(self, topic: str) -> Sequence[MemoryRecord]:
        return [
            each
            for partition in self.memory.topics[topic]
            for each in partition
            if type(each) is MemoryRecord
        ]

    def unread(self, number: int) -> bool:
        """Whether this process has records to read."""
        _, log = self.opened(number)
        return any(
            position < len(self.memory.topics[each.topic][each.number])
            for each, position in log._next.items()
        )

    def changelog(self) -> Mapping[str, MemoryRecord]:
        """What compaction leaves of it, by key."""
        found: dict[str, MemoryRecord] = {}
        for record in self.read(CHANGELOG):
            key = (record.key() or b"").decode()
            if record.value() is None:
                found.pop(key, None)
            else:
                found[key] = record
        return found

    def actions(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for record in self.read(ACTION):
            about = dict(record.headers() or ())
            subject = about.get("ce_subject")
            key = about["ce_sensortrigger"].decode()
            key += "" if subject is None else f"/{subject.decode()}"
            used = " ".join(each["id"] for each in json.loads(record.value() or b""))
            found[f"{key}: {used}"] += 1
        return found

    def limit(self, topic: str, size: int) -> None:
        """From now on a topic takes no larger records than this."""
        there = self.memory.descriptions[topic]
        config = {**there.config, "max.message.bytes": str(size)}
        self.memory.descriptions[topic] = replace(there, config=config)

    def letters(self) -> Sequence[Letter]:
        """What was dead-lettered, in order."""
        if DEAD not in self.memory.topics:
            return []
        found = []
        for record in self.read(DEAD):
            about = {
                name.removeprefix("ce_"): raw.decode(errors="replace")
                for name, raw in record.headers() or ()
            }
            found.append(Letter(about, record.key(), record.value()))
        return found

    def routed(self) -> Mapping[str, Sequence[Routed]]:
        found: dict[str, list[Routed]] = {}
        for record in self.read(TRIGGER):
            found.setdefault((record.key() or b"").decode(), []).append(parse_routed(record))
        return {key: sorted(events) for key, events in found.items()}
