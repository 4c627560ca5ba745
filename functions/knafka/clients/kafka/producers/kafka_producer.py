"""One librdkafka producer that is replaced when it fails for good, or when its owner says so.

The producer is not idempotent, as an idempotent one may report a record as stored that Kafka
rejected (docs/decisions/0012): here a report is about its own request alone.

Not here: when to poll, and what becomes of a report; see `kafka_writer`.
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
"""Requests under way at once: while they are, records gather for the next, which saves requests."""
DELIVERY_TIMEOUT: Final = 10.0
"""Seconds after which an unacknowledged record is given up: longer than a broker's restart."""
ANY_PARTITION: Final = -1
"""The partitioner chooses one."""
BUFFER_BYTES: Final = 64 * 1024 * 1024
BUFFER_RECORDS: Final = 50_000
"""Records that a producer buffers at most, so that its memory stays bounded while Kafka is away."""


class ReplaceableProducer:
    """A producer with a linger time of its own. May be used by two threads at once: librdkafka's
    producers may, and what is kept here is replaced in one step by the thread that polls."""

    def __init__(
        self,
        connection: Connection,
        linger_ms: float,
        on_error: Callable[[KafkaError], None],
    ) -> None:
        self._connection = connection
        self._linger_ms = linger_ms
        self._on_error = on_error
        self._producer = self._open()
        self._replaced: list[Producer] = []
        """Producers that are used no more and still owe reports."""
        self._renewing = False
        self.failure: LogError | None = None
        """Why nothing can be sent, where there can be no other producer either."""

    def _open(self) -> Producer:
        """Open the producer."""
        return open_client(
            Producer,
            {
                "error_cb": self._on_error,
                **self._connection,
                "acks": "all",
                "enable.idempotence": False,
                "max.in.flight.requests.per.connection": MAX_IN_FLIGHT,
                # Who owns a missing topic knows how it should be; Kafka would make one with the
                # cluster's defaults.
                "allow.auto.create.topics": False,
                "partitioner": "murmur2_random",
                # Not what is set: only one of a writer's producers gathers.
                "linger.ms": self._linger_ms,
                # Or a request waits until Kafka's kernel has acknowledged the last one's segment.
                "socket.nagle.disable": True,
                # batch.size stays librdkafka's 1 MB: its thread spins while a full batch waits for
                # one of the five requests that may be under way (docs/decisions/0010).
                "message.timeout.ms": int(DELIVERY_TIMEOUT * 1000),
                "queue.buffering.max.messages": BUFFER_RECORDS,
                "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
                # What is too large is for the topic to say: its limit may be raised for a Broker.
                "message.max.bytes": BUFFER_BYTES,
                "topic.metadata.propagation.max.ms": 5000,
                "reconnect.backoff.max.ms": 1000,
            },
        )

    def __len__(self) -> int:
        """Records and reports that nobody was told of yet."""
        return len(self._producer) + sum(map(len, self._replaced))

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        on_delivery: Callable[[KafkaError | None, Message], None],
    ) -> None:
        """Take one record; `on_delivery` is called within a `poll`. Raises as `LogWriter.append`"""
        if self.failure is not None:
            raise LogError(str(self.failure))
        try:
            # By position: to look at names takes half a microsecond. Of two places for a callback,
            # `callback` and `on_delivery`, it is the first.
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
        """Call back for the reports that are there; wait up to `timeout` seconds for the first."""
        try:
            if self.failure is not None:
                self._replace(str(self.failure))
            elif self._renewing:
                self._replace("Kafka does not answer it")
            self._producer.poll(timeout)
        except KafkaException as error:
            # Only a fatal error is raised here: the producer takes records and sends none.
            self.failure = log_error_of(error.args[0])
            self._replace(str(self.failure))
        if self._replaced:
            self._poll_replaced()

    def _poll_replaced(self) -> None:
        """Serve the replaced producers until their records are reported."""
        for producer in self._replaced:
            with contextlib.suppress(KafkaException):
                producer.poll(0)
        self._replaced = [producer for producer in self._replaced if len(producer)]

    def _replace(self, why: str) -> None:
        """Go on with another producer if there can be one; else `failure` stays."""
        try:
            producer = self._open()
        except LogError as error:
            self.failure = error
            return
        log.warning("the producer is replaced: %s", why)
        failed, self._producer = self._producer, producer
        self._replaced.append(failed)
        self.failure, self._renewing = None, False
        failed.purge(blocking=False)  # what it holds is reported as failed

    def renew(self) -> None:
        """Go on with another producer, from the next `poll` on."""
        self._renewing = True

    def purge(self, *, in_flight: bool) -> None:
        """Report all buffered records as failed; with `in_flight`, also those being sent to
        Kafka."""
        self._producer.purge(in_flight=in_flight, blocking=False)

    def ask(self, timeout: float) -> None:
        """Wait for any answer of Kafka's; raises `KafkaException`."""
        self._producer.list_topics(timeout=timeout)
