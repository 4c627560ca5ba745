"""A librdkafka producer that is replaced when it fails for good, or when its owner calls `renew`.

The producer is not idempotent: an idempotent producer may report a record as stored that Kafka has
rejected (docs/decisions/0012).

Not here: when to poll (`kafka_writer_producers`), and the handling of reports (`kafka_writer`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from knafka.clients.kafka.kafka_client import Connection, log_error_of, open_client
from knafka.core.errors import LogError, LogFull
from knafka.core.events.kafka_binding import RecordHeaders

log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 5
"""Most requests under way at once. While that many are, further records gather, and are then sent
together."""
DELIVERY_TIMEOUT: Final = 10.0
"""Seconds after which an unacknowledged record is reported as failed: longer than a broker's
restart."""
ANY_PARTITION: Final = -1
"""librdkafka's value that makes the partitioner choose a partition."""
BUFFER_BYTES: Final = 64 * 1024 * 1024
"""Most bytes that a producer buffers; this bounds its memory while Kafka is away."""
BUFFER_RECORDS: Final = 50_000
"""Most records that a producer buffers; this bounds its memory, too."""


class ReplaceableProducer:
    """A producer with its own linger time. Two threads may use it at once: librdkafka's producers
    are thread-safe, and only the polling thread replaces the producer, by a single assignment."""

    def __init__(
        self,
        connection: Connection,
        linger_ms: float,
        on_error: Callable[[KafkaError], None],
    ) -> None:
        """Open the producer. `linger_ms`: milliseconds for which it gathers records before it sends
        them. `on_error` is called with errors of librdkafka, on the thread that calls `poll`.
        Raises `LogError`."""
        self._connection = connection
        self._linger_ms = linger_ms
        self._on_error = on_error
        self._producer = self._open()
        self._replaced: list[Producer] = []
        """Producers that are no longer used and still have records to report."""
        self._must_renew = False
        """Whether the next `poll` replaces the producer, as `renew` was called."""
        self._is_retired = False
        """Whether no more records are taken, as `retire` was called."""
        self.failure: LogError | None = None
        """The error because of which no record can be sent until another producer is opened; None:
        records can be sent."""

    def _open(self) -> Producer:
        """Open and return a producer. Raises `LogError`."""
        return open_client(
            Producer,
            {
                "error_cb": self._on_error,
                **self._connection,
                "acks": "all",
                "enable.idempotence": False,
                "max.in.flight.requests.per.connection": MAX_IN_FLIGHT,
                # A missing topic's owner must create it with its settings; Kafka would use the
                # cluster's defaults.
                "allow.auto.create.topics": False,
                "partitioner": "murmur2_random",
                # Not the declared setting, as only one of a writer's producers gathers records.
                "linger.ms": self._linger_ms,
                # Else a request would wait until Kafka's kernel has acknowledged the previous one's
                # segment.
                "socket.nagle.disable": True,
                # batch.size stays librdkafka's 1 MB: its thread spins while a full batch waits for
                # one of the five requests that may be under way (docs/decisions/0010).
                "message.timeout.ms": int(DELIVERY_TIMEOUT * 1000),
                "queue.buffering.max.messages": BUFFER_RECORDS,
                "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
                # Only the topic decides what is too large, as its limit may be raised for a Broker.
                "message.max.bytes": BUFFER_BYTES,
                "topic.metadata.propagation.max.ms": 5000,
                "reconnect.backoff.max.ms": 1000,
            },
        )

    def __len__(self) -> int:
        """Number of records whose report was not delivered yet, those of replaced producers
        included."""
        return len(self._producer) + sum(map(len, self._replaced))

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        on_delivery: Callable[[KafkaError | None, Message], None],
    ) -> None:
        """Queue one record; `on_delivery` is called within a `poll` with its result. Raises
        `LogFull` if the buffer is full, and `LogError` if no record can be sent."""
        if self._is_retired:
            raise LogError(
                "this producer takes no more records: its successor takes records of this key once "
                "the earlier ones are reported"
            )
        if self.failure is not None:
            raise LogError(str(self.failure))
        try:
            # Arguments are positional, as names take half a microsecond. Their order is topic,
            # value, key, partition, callback, on_delivery (another name of callback: None),
            # timestamp (0: now), headers.
            self._producer.produce(
                topic,
                value,
                key,
                ANY_PARTITION,
                on_delivery,
                None,
                0,
                headers,  # type: ignore[arg-type]  # its list type is invariant
            )
        except BufferError as error:
            raise LogFull("the buffer for Kafka is full") from error
        except KafkaException as error:
            raise log_error_of(error.args[0]) from error

    def poll(self, timeout: float) -> None:
        """Deliver pending reports, waiting up to `timeout` seconds for the first. Replace the
        producer if it has failed, or if `renew` was called. Never raises."""
        try:
            if self._is_retired:
                pass  # a retired producer isn't replaced, whatever happens
            elif self.failure is not None:
                self._replace(str(self.failure))
            elif self._must_renew:
                self._replace("Kafka does not answer it")
            self._producer.poll(timeout)
        except KafkaException as error:
            # Only a fatal error is raised here: the producer would take records and send none.
            self.failure = log_error_of(error.args[0])
            if not self._is_retired:
                self._replace(str(self.failure))
        if self._replaced:
            self._poll_replaced()

    def _poll_replaced(self) -> None:
        """Poll the replaced producers, and drop those whose records are all reported."""
        for producer in self._replaced:
            with contextlib.suppress(KafkaException):
                producer.poll(0)
        self._replaced = [producer for producer in self._replaced if len(producer)]

    def _replace(self, reason: str) -> None:
        """Replace the producer by a new one, and log `reason`; the records that the former one
        still has are reported as failed. If no producer can be opened, only set `failure`."""
        try:
            producer = self._open()
        except LogError as error:
            self.failure = error
            return
        log.warning("the producer is replaced: %s", reason)
        former, self._producer = self._producer, producer
        self._replaced.append(former)
        self.failure, self._must_renew = None, False
        former.purge(blocking=False)

    def renew(self) -> None:
        """Replace the producer at the next `poll`, as Kafka doesn't answer it."""
        self._must_renew = True

    def retire(self) -> None:
        """Take no more records, as another producer takes over; records that this one holds
        already are still sent and reported."""
        self._is_retired = True

    def purge(self, *, in_flight: bool) -> None:
        """Let all buffered records be reported as failed by the next `poll`. `in_flight`: whether
        that includes records that were sent and aren't acknowledged."""
        self._producer.purge(in_flight=in_flight, blocking=False)

    def ask(self, timeout: float) -> None:
        """Send a request, and wait until Kafka answers; blocks. Raises `KafkaException` if Kafka
        doesn't answer within `timeout` seconds."""
        self._producer.list_topics(timeout=timeout)
