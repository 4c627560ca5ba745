"""Opens librdkafka's clients, with their common settings, and turns its errors into ours.

librdkafka isn't fork-safe: clients are opened in the process that uses them, never at import. Not
here: requests (`kafka_writer`, `kafka_reader`, `kafka_admin`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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

PartitionKey: TypeAlias = tuple[str, int]
"""A partition: its topic, and its number there."""
Connection: TypeAlias = Mapping[str, Any]
"""librdkafka's configuration of a client that reaches the cluster: bootstrap.servers, security
(including our own keys, which `knafka.tokens` replaces), and the settings of a Broker or
Trigger."""

CONSUMER_DEFAULTS: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Each assignment has its start offsets; an offset that the log doesn't have is an error.
    "auto.offset.reset": "error",
    # Behind the last record there may be a transaction's marker, which isn't returned as a record.
    "enable.partition.eof": True,
    # How long Kafka may hold a fetch open: each fetch costs, but a partition that was just assigned
    # or resumed waits for the fetch under way.
    "fetch.wait.max.ms": 250,
    # librdkafka prefetches little: a backlog stays in Kafka, and fetched records are still in the
    # CPU's caches when they are read.
    "fetch.message.max.bytes": 256 * 1024,
    # These two limit the queued records of all partitions together, whatever their documentation
    # says. Above them, librdkafka fetches again only after the backoff; so they allow as many
    # records as the fastest dispatcher takes meanwhile.
    "queued.min.messages": 1250,
    "queued.max.messages.kbytes": 32 * 1024,
    "fetch.queue.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
}
"""Default settings of all our consumers."""

REQUEST_CONSUMER_SETTINGS: Final[Mapping[str, Any]] = {"fetch.max.bytes": 8 * 1024 * 1024}
"""Settings of consumers that make single requests instead of reading: small fetches, within
librdkafka's limit of received bytes."""

C = TypeVar("C", Producer, Consumer)

TRANSIENT_ERRORS: Final = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Errors from which librdkafka recovers by itself; consumers get them only as information."""
LOST_OFFSET_ERRORS: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION})
"""Errors that say that the log doesn't have the consumer's offset: the log was created anew or has
lost its end."""


def open_client(client_class: Callable[[dict[str, Any]], C], configuration: Mapping[str, Any]) -> C:
    """Open and return a client of `client_class`, a `Producer` or `Consumer`. It logs its errors by
    `log_error`, unless the configuration has an `error_cb` of its own.

    Raises `LogError` for a configuration that librdkafka can't use, as with a broken certificate,
    and the errors of `knafka.tokens`.
    """
    settings = with_tokens(configuration)
    try:
        return client_class({"error_cb": log_error, "logger": _librdkafka, **settings})
    except KafkaException as error:
        raise log_error_of(error.args[0]) from error


def open_admin(connection: Connection, on_error: Callable[[KafkaError], None]) -> AdminClient:
    """Open and return an admin client. It logs nothing, as each request returns its own errors.
    `on_error` is called with errors of connections, within the client's `poll`. Raises `LogError`
    for a configuration that librdkafka can't use, and the errors of `knafka.tokens`."""
    from confluent_kafka.admin import AdminClient  # takes 10 ms, so not at start

    configuration = {**with_tokens(connection), "log_level": 0, "error_cb": on_error}
    try:
        return AdminClient(configuration)
    except KafkaException as error:
        raise log_error_of(error.args[0]) from error


UNKNOWN_TOPIC_ERRORS: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""Errors that say that a topic, or a partition of it, doesn't exist."""
PERMANENT_ERRORS: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.POLICY_VIOLATION}
)
"""Kafka's errors for a record or a request that it will never accept."""


DENIED: Final[Mapping[int, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional-id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}
"""The kind of the resource for which a right is missing, by error code."""


def log_error_of(error: KafkaError) -> LogError:
    """Return the `LogError` that stands for an error of confluent-kafka; its flags are derived from
    the error's code."""
    code = error.code()
    return LogError(
        shown_text(error.str()),
        retriable=code not in PERMANENT_ERRORS,
        too_large=code == KafkaError.MSG_SIZE_TOO_LARGE,
        unknown_topic=code in UNKNOWN_TOPIC_ERRORS,
        too_few_brokers=code == KafkaError.INVALID_REPLICATION_FACTOR,
        denied=DENIED.get(code, ""),
    )


@contextmanager
def raising_log_errors() -> Iterator[None]:
    """Context manager that raises `LogError` in place of a `KafkaException` of its body."""
    try:
        yield
    except KafkaException as error:
        raise log_error_of(error.args[0]) from error


def log_error(error: KafkaError) -> None:
    """Log an error of librdkafka. This is the error callback of clients that have no other."""
    level = logging.INFO if error.code() in TRANSIENT_ERRORS else logging.WARNING
    log.log(level, "Kafka: %s", shown_text(error.str()))
