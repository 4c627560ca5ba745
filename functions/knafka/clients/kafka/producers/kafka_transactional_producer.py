"""A transactional producer, which stores records and a group's offsets together or not at all.

    begin -> produce -> offsets -> flush -> commit
                 \\________\\_________\\__> abort

Every transactional producer is idempotent, so this one has only one request under way at a time
(docs/decisions/0012). Not here: reading records again after an abort (`kafka_transactions`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from knafka.clients.kafka.kafka_acls import name_missing_right
from knafka.clients.kafka.kafka_client import Connection, log_error, log_error_of, open_client
from knafka.clients.kafka.kafka_commits import COMMIT_RETRY_INTERVAL, MIN_REQUEST_TIMEOUT
from knafka.clients.kafka.producers.kafka_producer import BUFFER_BYTES, BUFFER_RECORDS
from knafka.core.errors import LogError
from knafka.core.kafka_settings.connection_errors import ConnectionErrors
from knafka.ports.transactions import Output, RecordTooLarge, TransactionAborted

log = logging.getLogger(__name__)

TRANSACTION_TIMEOUT: Final = 10.0
"""Seconds after which Kafka aborts a transaction whose producer is gone. Until then consumers don't
read beyond it, unless a new producer with the same id ends it."""
SEND_TIMEOUT: Final = TRANSACTION_TIMEOUT
"""Most seconds to send a transaction's records and offsets; Kafka aborts a transaction that takes
longer."""
END_TIMEOUT: Final = 10.0
"""Seconds for which a commit or an abort is repeated: enough for the restart of a broker."""
FENCE_TIMEOUT: Final = 10.0
"""Seconds for which `fence` may be repeated while connections fail."""
FLUSH_CHECK_INTERVAL: Final = 1.0
"""Most seconds of one flush, after which it is checked whether a record could not be stored."""
MIN_FENCE_TIMEOUT: Final = 1.0
"""Least seconds for which one call of `fence` waits for Kafka, even if its `timeout` is shorter."""

ANY_PARTITION: Final = -1
"""librdkafka's value that makes the partitioner choose a partition."""
PRESENT_TIME: Final = 0
"""librdkafka's value of a record's timestamp that stands for the present time."""

_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""Errors reported for a transaction's remaining records when it is aborted."""


class _UnstoredRecord(NamedTuple):
    """A record that was not stored, and why."""

    error: KafkaError
    topic: str
    partition: int | None
    """None: the record was refused before a partition was chosen."""
    key: bytes | None


class TransactionalProducer:
    """Stores transactions. Not thread-safe; every call blocks. After any `LogError` other than
    `TransactionAborted`, the producer can only be closed."""

    def __init__(self, connection: Connection, transactional_id: str) -> None:
        """Open the producer; `fence` must succeed before the first `commit`. `transactional_id`:
        only the latest producer with this id can commit. Raises `LogError`."""
        self._connection = connection
        self._transactional_id = transactional_id
        self._errors = ConnectionErrors()
        self._is_batching = True
        """Whether records are sent in batches; False once a topic has refused a batch."""
        self._fenced = False
        """Whether the present producer has taken over the transactional id."""
        self._first_failed_fence_at = 0.0
        """Monotonic time of the first of the failed calls of `fence` in a row; 0: there is none."""
        self._unstored: list[_UnstoredRecord] = []
        """Records of the present transaction that were not stored."""
        self._producer = self._open()

    def _open(self) -> Producer:
        """Open and return a producer, which sends records one by one if a topic has refused a
        batch. Raises `LogError`."""
        batching = {} if self._is_batching else {"batch.size": 1}
        return open_client(
            Producer,
            {
                "error_cb": self._on_error,
                # A transaction is sent as a whole, so waiting for more records is useless.
                "linger.ms": 1,
                **self._connection,
                **batching,
                "transactional.id": self._transactional_id,
                "transaction.timeout.ms": int(TRANSACTION_TIMEOUT * 1000),
                "max.in.flight.requests.per.connection": 1,
                "allow.auto.create.topics": False,
                "partitioner": "murmur2_random",
                "socket.nagle.disable": True,
                "queue.buffering.max.messages": BUFFER_RECORDS,
                "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
                # Only the topic's limit decides what is too large.
                "message.max.bytes": BUFFER_BYTES,
                "topic.metadata.propagation.max.ms": 5000,
                "reconnect.backoff.max.ms": 1000,
                "delivery.report.only.error": True,
                "on_delivery": self._on_delivery,
            },
        )

    def _on_error(self, error: KafkaError) -> None:
        """Log and remember an error of librdkafka."""
        log_error(error)
        self._errors.record(error)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Note a record that was not stored, with its error, unless an abort has discarded it.
        librdkafka calls this within a poll or flush."""
        if error is not None and error.code() not in _PURGED:
            self._unstored.append(
                _UnstoredRecord(error, message.topic() or "", message.partition(), message.key())
            )

    def fence(self, timeout: float) -> bool:
        """Take over the transactional id, so that a process that had it can't commit any more and
        its open transaction is aborted. Returns True if that is done, now or before; False if it
        isn't done within about `timeout` seconds: then call this again. Raises `LogError` once
        calls have failed for `FENCE_TIMEOUT` seconds, or if repeating is useless."""
        if self._fenced:
            return True
        now = time.monotonic()
        self._first_failed_fence_at = self._first_failed_fence_at or now
        try:
            self._producer.init_transactions(max(MIN_FENCE_TIMEOUT, timeout))
        except KafkaException as error:
            reason = error.args[0]
            if refusal := self._errors.refusal:
                raise LogError(refusal) from error
            if not reason.retriable():
                needed = "Write", self._transactional_id
                raise name_missing_right(log_error_of(reason), transaction=needed) from error
            if time.monotonic() - self._first_failed_fence_at > FENCE_TIMEOUT:
                raise LogError(f"no transactional id: {self.trouble}") from error
            return False
        self._fenced, self._first_failed_fence_at = True, 0.0
        return True

    @property
    def trouble(self) -> str:
        """Why Kafka doesn't answer the producer, as text for logs and errors."""
        return str(self._errors) or "no answer"

    def commit(self, outputs: Sequence[Output], offsets: list[TopicPartition], member: Any) -> None:
        """Store the records `outputs`, and these offsets as the group's commits, in one
        transaction. `member`: the member of the group (`kafka_group_consumer.identity_of`). Raises
        `TransactionAborted` if nothing was stored; its subclass `RecordTooLarge` if one record is
        to blame. Raises another `LogError` if it isn't known whether anything was stored, or if the
        producer can't go on."""
        self._unstored.clear()
        deadline = time.monotonic() + SEND_TIMEOUT
        try:
            self._producer.begin_transaction()
            for output in outputs:
                self._produce(output, deadline)
            self._retry_until(
                lambda timeout: self._producer.send_offsets_to_transaction(
                    offsets, member, timeout
                ),
                deadline,
            )
            self._flush(deadline)
        except KafkaException as error:
            raise self._abort(error.args[0]) from error
        try:
            self._retry_until(self._producer.commit_transaction, time.monotonic() + END_TIMEOUT)
        except KafkaException as error:
            reason = error.args[0]
            if reason.txn_requires_abort():
                raise self._abort(reason) from error
            if reason.fatal():
                raise log_error_of(reason) from error
            raise LogError(
                f"it isn't known whether a transaction was committed: {reason.str()}"
            ) from error

    def _produce(self, output: Output, deadline: float) -> None:
        """Queue a record, waiting for room in the buffer until `deadline` (monotonic time). Raises
        `KafkaException`."""
        while True:
            try:
                self._producer.produce(
                    output.topic,
                    value=output.value,
                    key=output.key,
                    headers=output.headers,  # type: ignore[arg-type]  # its list type is invariant
                    partition=ANY_PARTITION if output.partition is None else output.partition,
                    timestamp=output.timestamp or PRESENT_TIME,
                )
            except BufferError as error:
                if self._unstored or time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from error
                self._producer.poll(COMMIT_RETRY_INTERVAL)
            except KafkaException as error:
                unstored_record = _UnstoredRecord(error.args[0], output.topic, None, output.key)
                self._unstored.append(unstored_record)
                raise
            else:
                return

    def _flush(self, deadline: float) -> None:
        """Wait until all records are stored, at most until `deadline` (monotonic time). Raises
        `KafkaException` if a record could not be stored, or at the deadline."""
        while True:
            seconds_left = max(0.0, deadline - time.monotonic())
            unreported = self._producer.flush(min(FLUSH_CHECK_INTERVAL, seconds_left))
            if self._unstored:
                raise KafkaException(self._unstored[0].error)
            if not unreported:
                return
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"Kafka: {self.trouble}"))

    def _retry_until(self, request: Callable[[float], object], deadline: float) -> None:
        """Repeat `request`, which gets the seconds that it may take, until it succeeds, at most
        until `deadline` (monotonic time). Raises `KafkaException`."""
        while True:
            try:
                request(max(MIN_REQUEST_TIMEOUT, deadline - time.monotonic()))
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
                time.sleep(COMMIT_RETRY_INTERVAL)
            else:
                return

    def _abort(self, reason: KafkaError) -> LogError:
        """Abort the transaction because of `reason`, and return the error that the caller must
        raise: `TransactionAborted`, or another `LogError` if the abort fails, or if `reason` is
        fatal so that no abort is possible."""
        if reason.fatal():
            return log_error_of(reason)
        try:
            self._retry_until(self._producer.abort_transaction, time.monotonic() + END_TIMEOUT)
        except KafkaException as error:
            return LogError(
                f"a transaction could not be aborted: {error.args[0].str()}"
                f"; the reason for aborting it: {reason.str()}"
            )
        aborted_error = self._aborted_error(reason)
        # After a refused record, and sometimes after an unsent one (librdkafka 2.16.0), the next
        # records of this producer would be out of sequence, so another one is opened. That comes
        # after `_aborted_error`, which may set `_is_batching`.
        self._producer, self._fenced = self._open(), False
        return aborted_error

    def _aborted_error(self, reason: KafkaError) -> TransactionAborted:
        """Return the error of an aborted transaction: `RecordTooLarge` if a single record is too
        large, else `TransactionAborted`. If only a batch was too large, also set `_is_batching` to
        False, so that the next producer sends records one by one."""
        failed_records = self._unstored
        too_large = [
            record
            for record in failed_records
            if record.error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        ]
        if not too_large:
            first_error = log_error_of(failed_records[0].error if failed_records else reason)
            first_error = name_missing_right(
                first_error,
                topic=("Write", failed_records[0].topic) if failed_records else None,
                transaction=("Write", self._transactional_id),
            )
            return TransactionAborted(
                str(first_error),
                retriable=first_error.retriable,
                unknown_topic=first_error.unknown_topic,
            )
        topic, key = too_large[0].topic, too_large[0].key
        refused_by_partition = Counter((record.topic, record.partition) for record in too_large)
        if self._is_batching and max(refused_by_partition.values()) > 1:
            # The topic's limit is for batches: each record may be small enough.
            log.warning("%s takes no batches: records go one by one", topic)
            self._is_batching = False
            return TransactionAborted(f"a batch of records was too large for {topic}")
        return RecordTooLarge(topic, key)

    def close(self) -> None:
        """Close the producer; blocks while Kafka hangs. A transaction that could not be ended is
        aborted by the next producer with this transactional id."""
        with suppress(KafkaException):  # a fenced producer reports that once more
            self._producer.close()
