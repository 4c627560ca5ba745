"""The Sensor's function: it drains one Sensor (issue 17; docs/decisions/0026-sensors.md).

A drain is a lease to handle the Sensor's events: a request to `POST /drain` begins or extends it.
The request's slot is the number of the Sensor's process that answers it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from knafka import settings
from knafka.clients.http.http_subscriber import HttpSubscriber
from knafka.clients.kafka.kafka_connection import consumer_configuration, producer_configuration
from knafka.clients.kafka.producers.kafka_transactions import KafkaTransactions
from knafka.core.documents import digest
from knafka.core.drain import DrainRequest
from knafka.core.errors import LogError
from knafka.core.sensor.contract import SensorContract
from knafka.draining.function import DrainingFunction, Side
from knafka.draining.lease import DrainLease
from knafka.draining.renewal import OwnService
from knafka.draining.side import LeasedSide
from knafka.observability import Metric
from knafka.ports.transactions import Claims, TransactionalLog
from knafka.sensor.counts import SensorCounts
from knafka.sensor.drain import SensorDrain
from knafka.sensor.processor import Processor
from knafka.serving import Send
from knafka.settings import DrainSettings
from knafka.tracing.spans import Tracer

OpenLog: TypeAlias = Callable[[SensorContract, str, Claims], TransactionalLog]
"""Opens the transactional log of a Sensor with a transactional id; the `Claims` are notified of the
partitions. Raises `LogError`, and `InvalidDocument` if the Sensor's Secret holds unusable
settings."""


def open_kafka(sensor: SensorContract, transactional_id: str, claims: Claims) -> TransactionalLog:
    """Open the Sensor's transactional log on real Kafka, which reads the bus and the trigger topic.
    `claims` is notified of the partitions that the log is assigned and loses. Raises `LogError`,
    and `InvalidDocument` if the Sensor's Secret holds unusable settings."""
    return KafkaTransactions(
        consumer_configuration(sensor.kafka),
        sensor.group,
        [sensor.topic, sensor.trigger_topic],
        claims,
        transactional_id,
        writing=producer_configuration(sensor.kafka),
    )


class SensorFunction(DrainingFunction):
    """The ASGI application that drains a Sensor; its environment declares the Sensor."""

    def __init__(self, open_log: OpenLog = open_kafka) -> None:
        """`open_log` opens the transactional log of each drain."""
        super().__init__("knafka-sensor", self._open)
        self._open_log = open_log

    def _open(
        self, environment: Mapping[str, str], drains: DrainSettings, tracer: Tracer | None
    ) -> Side:
        """Return the side that drains the Sensor which the environment declares;
        `DrainingFunction.start` calls this. Of the settings `drains`, only the own Service's URL is
        used; `tracer` None: no spans are made. Raises `InvalidDocument`."""
        return SensorSide(settings.sensor(environment), self._open_log, drains.service_url, tracer)


class SensorSide(LeasedSide):
    """A `draining.function.Side` that drains one Sensor, by its lease."""

    failure: LogError | None = None
    """Always None: no error of a Sensor needs a restart of the process."""

    def __init__(
        self,
        sensor: SensorContract,
        open_log: OpenLog,
        service_url: str | None,
        tracer: Tracer | None = None,
    ) -> None:
        """Create the lease of the Sensor's drains; `open_log` opens the log of a drain's processor.
        While there is work left, the lease renews itself by a request to `service_url`, its own
        Service; None: it never does. `tracer` None: no spans are made. Raises `InvalidDocument` if
        `service_url` is no URL."""
        self._tracer = tracer
        self._sensor = sensor
        self._digest = digest(sensor)
        """Digest of the Sensor, by which requests name it."""
        self._open_log = open_log
        self._slot: int | None = None
        """Slot of the request under way (`DrainRequest.slot`); None: the request has no slot, or
        there is no request."""
        self._drain: SensorDrain | None = None
        """The last drain, which may be over; None: there was none."""
        self._earlier_counts = SensorCounts()
        """Counts of all drains before `_drain`."""
        self._subscriber = HttpSubscriber(limit=1)
        renewal = None
        if service_url is not None:
            # The process that answers has a slot of its own, or none.
            drained_sensor = {"sensor": self._digest, "slot": None}
            renewal = OwnService(service_url, drained_sensor, self._subscriber)
        super().__init__(DrainLease(self._new_drain, renewal))

    def _new_drain(self) -> SensorDrain:
        """Create the next drain, in the slot of the request under way, and keep the counts of the
        previous one."""
        self._earlier_counts = self._total_counts()
        # A drain that begins without a request has no slot: another process may have it by now.
        self._drain = SensorDrain(self._open_processor, self._slot)
        return self._drain

    def _open_processor(self, slot: int | None) -> Processor:
        """Open the processor of a drain with this slot (`DrainRequest.slot`); None: it has none."""
        # A process that was killed leaves its transaction open; the next one in its slot ends it.
        # Without a slot no process reuses the name, and Kafka ends the transaction by its timeout.
        name = uuid.uuid4().hex[:12] if slot is None else str(slot)
        identity = self._sensor.transactional_id(name)
        return Processor(
            self._sensor,
            lambda claims: self._open_log(self._sensor, identity, claims),
            self._tracer,
        )

    def _total_counts(self) -> SensorCounts:
        """Return the counts of all drains so far."""
        if self._drain is None or self._drain.processor is None:
            return self._earlier_counts
        return self._earlier_counts + self._drain.processor.counts

    def refusal(self, request: DrainRequest) -> str:
        """Return why a request for a drain is refused: it names a shard, an Egress or another
        Sensor; empty if it is accepted."""
        names_other_kind = request.shard is not None or request.egress is not None
        if names_other_kind or request.sensor not in (None, self._digest):
            return "this process has another Sensor, or another version of it"
        return ""

    async def stream(self, request: DrainRequest, caller: asyncio.Task[bool], send: Send) -> None:
        """Answer a request for a drain with lines of progress; a drain that begins with the request
        gets its slot."""
        self._slot = request.slot
        await super().stream(request, caller, send)

    def detach(self) -> None:
        """Note that the request under way has ended; the drain goes on, and a later drain that
        begins without a request gets no slot."""
        self._slot = None
        super().detach()

    async def close(self) -> None:
        """Wait for the drain to end, then close the HTTP client."""
        await self.wait_until_drained()
        await self._subscriber.close()

    def metrics(self) -> Iterator[Metric]:
        """Yield the Sensor's metrics: counts of all drains of this process, and what the present
        one holds."""
        labels = {"namespace": self._sensor.namespace, "sensor": self._sensor.name}
        totals = self._total_counts()
        yield Metric(
            "knafka_sensor_events_total",
            "Events of the bus, and events sent to triggers (once for each trigger), by outcome",
            [
                ({**labels, "outcome": "read"}, totals.read),
                ({**labels, "outcome": "matched"}, totals.matched),
                ({**labels, "outcome": "undecodable"}, totals.undecodable),
                ({**labels, "outcome": "duplicate"}, totals.duplicates),
            ],
        )
        yield Metric(
            "knafka_sensor_dead_letters_total",
            "Dead letters by reason: of records, of firings, and of dropped held events",
            [({**labels, "reason": name}, count) for name, count in totals.dead_letters.items()],
        )
        yield Metric(
            "knafka_sensor_let_go_total",
            "Triggers, or their correlation keys, whose events were dropped as too much was held",
            [({**labels, "trigger": name}, count) for name, count in totals.let_go.items()],
        )
        yield Metric(
            "knafka_sensor_firings_total",
            "Conditions that have become true, by trigger",
            [({**labels, "trigger": name}, count) for name, count in totals.fired.items()],
        )
        yield Metric(
            "knafka_sensor_errors_total",
            "Evaluations of a filter or a correlation that ended with an error, by its kind",
            [({**labels, "kind": kind}, count) for kind, count in totals.errors.items()],
        )
        yield Metric(
            "knafka_sensor_late_events_total",
            "Events that came too late for their order, by the trigger that took them after others",
            [({**labels, "trigger": name}, count) for name, count in totals.late.items()],
        )
        yield Metric(
            "knafka_sensor_transactions_total",
            "Transactions by outcome",
            [
                ({**labels, "outcome": "committed"}, totals.transactions),
                ({**labels, "outcome": "aborted"}, totals.aborted),
            ],
        )
        processor = None if self._drain is None else self._drain.processor
        yield Metric(
            "knafka_sensor_held_keys",
            "Triggers, or their correlation keys, for which this process holds events",
            [(labels, 0 if processor is None else processor.held_keys)],
            kind="gauge",
        )
        yield Metric(
            "knafka_sensor_waiting_events",
            "Events that this process has read and that wait until none before them can come",
            [(labels, 0 if processor is None else processor.waiting)],
            kind="gauge",
        )
        yield Metric(
            "knafka_sensor_held_bytes",
            "Bytes of the events, as JSON, that this process holds",
            [(labels, 0 if processor is None else processor.held_bytes)],
            kind="gauge",
        )
