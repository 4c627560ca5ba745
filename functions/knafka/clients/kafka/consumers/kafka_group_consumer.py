"""A consumer that joins a group: its group protocol and its heartbeats.

The consumer joins by the group protocol of KIP-848 if the broker has it, else by the classic
protocol (docs/decisions/0013). All methods are called on the thread that polls the consumer; the
group's callbacks run within such a poll.

Not here: handling assigned and revoked partitions (`kafka_membership`,
`kafka_transactional_member`).
"""

from __future__ import annotations

import logging
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from knafka.clients.kafka.kafka_client import (
    CONSUMER_DEFAULTS,
    Connection,
    log_error,
    log_error_of,
    open_client,
)
from knafka.clients.kafka.kafka_commits import COMMIT_RETRY_INTERVAL, epoch_of
from knafka.clients.kafka.kafka_liveness import Liveness
from knafka.core.errors import LogError
from knafka.core.kafka_settings.connection_errors import ConnectionErrors
from knafka.observability import RateLimitedFilter

log = logging.getLogger(__name__)

SESSION_TIMEOUT: Final = 10.0
"""Seconds until a killed member's partitions go to others, with the classic protocol;
eventing-kafka-broker uses the same. With the new protocol the broker decides
(`group.consumer.session.timeout.ms`)."""
HEARTBEAT_INTERVAL: Final = 1.0
"""Seconds between heartbeats. Only by a heartbeat does a member learn of a rebalance, so a
partition that moves isn't read for so long."""
JOIN_TIMEOUT: Final = 10.0
"""Seconds within which a consumer must join its group, in spite of failing connections, such as
during a broker's restart."""
COMMITTED_TIMEOUT: Final = 15.0
"""Seconds to read the commits of new partitions, enough for a coordinator to move meanwhile."""
SINGLE_COMMITTED_TIMEOUT: Final = 5.0
"""Seconds for one request for commits, as an answer may be lost."""
ACCEPT_TIMEOUT: Final = 0.5
"""Seconds within which a consumer that leaves looks for an assignment among fetched records."""

_DESCRIPTION_START: Final = b"CGMDv2:"
"""First bytes of librdkafka's description of a member."""
_GENERATION: Final = struct.Struct("=i")
"""The member's generation, which follows; then come its group and its id, each ended by a zero
byte."""


class GroupProtocol(StrEnum):
    """The protocol by which partitions are assigned to members of a group; the values are
    librdkafka's."""

    CONSUMER = "consumer"
    """KIP-848: the broker assigns partitions, and no member waits for another one's rebalance."""
    CLASSIC = "classic"
    """Each change takes a round of all members; every broker has this protocol."""


_PROTOCOL_SETTINGS: Final[Mapping[GroupProtocol, Mapping[str, Any]]] = {
    GroupProtocol.CLASSIC: {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": int(SESSION_TIMEOUT * 1000),
        "heartbeat.interval.ms": int(HEARTBEAT_INTERVAL * 1000),
    },
    # With this protocol the broker decides the other three settings, and librdkafka refuses them.
    GroupProtocol.CONSUMER: {"group.protocol": "consumer"},
}
"""librdkafka's settings for each protocol."""


class _UnknownProtocolFilter(logging.Filter):
    """Drops the log line that says that a broker has only the classic protocol:
    `fall_back_to_classic` handles that."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to keep a line of librdkafka's log."""
        return "ConsumerGroupHeartbeat fatal error" not in record.getMessage()


_librdkafka = logging.getLogger("librdkafka.reader")
_librdkafka.addFilter(RateLimitedFilter())
_librdkafka.addFilter(_UnknownProtocolFilter())


class GroupConsumer(ABC):
    """A consumer in a group, on one or more topics, with cooperative rebalancing. Subclasses decide
    what happens to assigned, revoked and lost partitions."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        topics: Sequence[str],
        protocol: GroupProtocol,
        callbacks: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the consumer and subscribe it to the topics. `protocol`: the one to try first;
        `callbacks` are added to librdkafka's configuration. Raises `LogError`."""
        self._connection = connection
        self._group = group
        self._topics = list(topics)
        self._callbacks = callbacks or {}
        self.protocol = protocol
        self.joined = False
        """Whether this consumer is a member: the group has assigned partitions to it, maybe none;
        set by subclasses in `_on_assign`."""
        self._errors = ConnectionErrors()
        self._liveness = Liveness(connection, self._topics[0])
        self._opened_at = time.monotonic()
        """When the present consumer was opened."""
        self._heartbeat_at = 0.0
        """When the next heartbeat is due (`time.monotonic`)."""
        self.consumer = self._open()
        self._subscribe()

    def _open(self) -> Consumer:
        """Open a consumer of the group, not subscribed yet. Raises `LogError`."""
        # Later settings override earlier ones.
        return open_client(
            Consumer,
            {
                "error_cb": self._on_error,
                "logger": _librdkafka,
                **self._callbacks,
                **CONSUMER_DEFAULTS,
                **self._connection,
                **_PROTOCOL_SETTINGS[self.protocol],
                "group.id": self._group,
            },
        )

    def _subscribe(self) -> None:
        """Subscribe to the topics: this joins the group, or only sends a heartbeat if the consumer
        is a member already."""
        self._heartbeat_at = time.monotonic() + HEARTBEAT_INTERVAL
        self.consumer.subscribe(
            self._topics,
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _on_error(self, error: KafkaError) -> None:
        """Log and remember an error of librdkafka."""
        log_error(error)
        self._errors.record(error)

    # Callbacks of the group, which librdkafka calls within a poll

    @abstractmethod
    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Take over newly assigned partitions, maybe none, and set `joined`."""

    @abstractmethod
    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Finish with partitions that go to another member, which waits until this returns."""

    @abstractmethod
    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget partitions that belong to another member already."""

    def send_due_heartbeat(self) -> None:
        """Send a heartbeat if one is due; only the consumer protocol needs it. Raises
        `KafkaException`."""
        if self.protocol is GroupProtocol.CONSUMER and time.monotonic() > self._heartbeat_at:
            # By itself, librdkafka sends one every 5 s, as the broker demands, and a partition that
            # moves would not be read for so long.
            try:
                self._subscribe()
            except KafkaException as error:
                # The next poll reports the reason, such as a broker without this protocol.
                if error.args[0].code() != KafkaError._FATAL:
                    raise

    def fall_back_to_classic(self, error: KafkaError) -> None:
        """Close the consumer, and join by the classic protocol with a new one. `error`: the error,
        to be logged, by which the broker shows that it has no other protocol. Raises `LogError`."""
        log.info("the group %s has the classic protocol: %s", self._group, error.str())
        self.protocol = GroupProtocol.CLASSIC
        self.join_again()

    def join_again(self) -> None:
        """Leave the group, and join it with a new consumer. Raises `LogError` if none can be
        opened; then the present consumer is still a member."""
        new_consumer = self._open()
        self.leave()
        self._errors.forget_all()  # those of the former consumer
        self.joined = False
        self._opened_at = time.monotonic()
        self.consumer = new_consumer
        self._subscribe()

    def leave(self) -> None:
        """Leave the group, and close the consumer; blocks while Kafka doesn't answer.

        First polls, so that an assignment that waits for its callback is accepted. If it were
        accepted within librdkafka's close, the group could end before the revocation that follows
        is accepted, too: then librdkafka drops that call without an answer, and as confluent-kafka
        keeps Python's lock meanwhile, the whole process stands still (librdkafka#4884).
        """
        accept_until = time.monotonic() + ACCEPT_TIMEOUT
        with suppress(KafkaException):
            while self.consumer.poll(0) is not None and time.monotonic() < accept_until:
                pass  # a record that was fetched before, which is read again by another member
        self.consumer.close()

    def check(self, *, heard: bool) -> None:
        """Raise `LogError` if this consumer can't become a member of its group, or has lost Kafka
        (`Liveness.check`). `heard`: whether Kafka has sent anything since the last call."""
        self._liveness.check(self.consumer, heard=heard)
        if not self.joined:
            self._check_joining()

    def _check_joining(self) -> None:
        """Raise `LogError` if the consumer is refused, or has not joined for too long."""
        problem = self._errors.refusal or ""
        if not problem and time.monotonic() - self._opened_at >= JOIN_TIMEOUT:
            problem = str(self._errors)
        if problem:
            self._errors.forget_all()  # the cause may be mended: the next read tries again
            raise LogError(problem)


def committed_of(
    consumer: Consumer, partitions: list[TopicPartition], timeout: float
) -> list[TopicPartition]:
    """Return the group's commit of each partition, with metadata; its offset is negative if there
    is no commit. Blocks, and repeats requests that fail. Raises `LogError` if a request fails when
    `timeout` seconds have passed."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            answers = consumer.committed(partitions, timeout=SINGLE_COMMITTED_TIMEOUT)
            for partition in answers:
                if partition.error is not None:
                    raise KafkaException(partition.error)
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise log_error_of(error.args[0]) from error
            time.sleep(COMMIT_RETRY_INTERVAL)
        else:
            return answers


def start_position_of(committed: TopicPartition) -> TopicPartition:
    """Return the position at which to start reading a partition: that of its commit, `committed`
    (from `committed_of`), or the partition's start if there is no commit."""
    if committed.offset < 0:
        return TopicPartition(committed.topic, committed.partition, OFFSET_BEGINNING)
    return TopicPartition(
        committed.topic, committed.partition, committed.offset, "", epoch_of(committed)
    )


def assign_paused(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    """Accept assigned partitions, as a member must, but pause them, so that they aren't read."""
    consumer.incremental_assign(
        [
            TopicPartition(partition.topic, partition.partition, OFFSET_BEGINNING)
            for partition in partitions
        ]
    )
    consumer.pause(partitions)


def identity_of(consumer: Consumer) -> Any:
    """Return librdkafka's description (bytes) of the membership under which a consumer may commit;
    None while it has none. Raises `LogError` if the description has an unknown format."""
    description = consumer.consumer_group_metadata()
    if not description.startswith(_DESCRIPTION_START):
        raise LogError("this librdkafka describes a member in an unknown way")
    names_begin = len(_DESCRIPTION_START) + _GENERATION.size
    (generation,) = _GENERATION.unpack(description[len(_DESCRIPTION_START) : names_begin])
    _group, member_id, *_ = description[names_begin:].split(b"\0")
    return description if generation > 0 and member_id else None
