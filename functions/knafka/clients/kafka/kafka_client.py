"""librdkafka as we open it: what its clients share, and its errors as ours.

librdkafka isn't fork-safe: clients are made in the process that uses them, never at import.
Not here: any request; see `kafka_writer`, `kafka_reader` and `kafka_admin`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from knafka.core.errors import LogError
from knafka.core.kafka_settings.connection_errors import shown_text
from knafka.observability import RateLimitedFilter
from knafka.tokens import with_tokens

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter())  # a client's queue may hold hundreds of the same error
_librdkafka = logging.getLogger("librdkafka")
_librdkafka.addFilter(RateLimitedFilter())

Connection: TypeAlias = Mapping[str, Any]
"""librdkafka's configuration of how to reach the cluster: bootstrap.servers, security (see
`knafka.tokens` for what it doesn't know of that), and what a Broker or Trigger sets."""

READING: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Each assignment has its start offsets; one that isn't there is an error.
    "auto.offset.reset": "error",
    # Behind the last record may lie a transaction's marker, which no record shows.
    "enable.partition.eof": True,
    # How long Kafka may keep a question open: each costs, and a partition that was just
    # assigned or resumed waits for the one under way.
    "fetch.wait.max.ms": 250,
    # What librdkafka prefetches is small: a backlog stays in Kafka, and what is fetched
    # is still in the CPU's caches when it is read.
    "fetch.message.max.bytes": 256 * 1024,
    # Both count what is queued of all partitions together, whatever their documentation
    # says. When there is more, librdkafka looks again after the backoff: they are what
    # the fastest dispatcher takes meanwhile, or it would stand still.
    "queued.min.messages": 1250,
    "queued.max.messages.kbytes": 32 * 1024,
    "fetch.queue.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
}
"""How every consumer of ours reads, unless it is set."""

ASKING: Final[Mapping[str, Any]] = {"fetch.max.bytes": 8 * 1024 * 1024}
"""Configuration of consumers that answer single questions: small fetches, within librdkafka's limit
of what may be received."""

C = TypeVar("C", Producer, Consumer)

PASSING: Final = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Conditions that librdkafka mends by itself; they reach a consumer only to be known."""


def open_client(client: Callable[[dict[str, Any]], C], configuration: Mapping[str, Any]) -> C:
    """A client that logs as we do, unless told how.

    Raises `LogError` for what librdkafka can't use, such as a broken certificate, and what
    `knafka.tokens` raises.
    """
    wanted = with_tokens(configuration)
    try:
        return client({"error_cb": log_error, "logger": _librdkafka, **wanted})
    except KafkaException as error:
        raise log_error_of(error.args[0]) from error


def open_admin(connection: Connection, on_error: Callable[[KafkaError], None]) -> AdminClient:
    """An admin client; what goes wrong comes back with each request, so it logs nothing.

    `on_error` hears of connections that fail, from within the client's `poll`.
    """
    from confluent_kafka.admin import AdminClient  # 10 ms that a function's start can do without

    configuration = {**with_tokens(connection), "log_level": 0, "error_cb": on_error}
    try:
        return AdminClient(configuration)
    except KafkaException as error:
        raise log_error_of(error.args[0]) from error


UNKNOWN_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
REFUSED_FOR_GOOD: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.POLICY_VIOLATION}
)
"""Kafka's errors for a record or a request that it will never take."""


DENIED: Final[Mapping[int, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional-id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}
"""The kind of resource of which Kafka refuses the use."""


def log_error_of(error: KafkaError) -> LogError:
    """Return the `LogError` that stands for an error of confluent-kafka."""
    code = error.code()
    return LogError(
        shown_text(error.str()),
        retriable=code not in REFUSED_FOR_GOOD,
        too_large=code == KafkaError.MSG_SIZE_TOO_LARGE,
        unknown_topic=code in UNKNOWN_TOPIC,
        too_few_brokers=code == KafkaError.INVALID_REPLICATION_FACTOR,
        denied=DENIED.get(code, ""),
    )


def log_error(error: KafkaError) -> None:
    """Log an error of librdkafka: the error callback of clients without one of their own."""
    level = logging.INFO if error.code() in PASSING else logging.WARNING
    log.log(level, "Kafka: %s", shown_text(error.str()))
