"""Opens a dispatcher's clients of Kafka and HTTP, for one Egress or for a shard of them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from knafka.clients.http.http_pool import Refusal
from knafka.clients.http.http_subscriber import HttpSubscriber
from knafka.clients.http.trust_bundles import TrustBundles
from knafka.clients.kafka.admin.kafka_offsets import KafkaOffsets
from knafka.clients.kafka.admin.kafka_topics import KafkaTopics
from knafka.clients.kafka.consumers.kafka_identified import KafkaIdentifiedReader
from knafka.clients.kafka.consumers.kafka_member import KafkaMember
from knafka.clients.kafka.consumers.kafka_positioned import KafkaPositionedReader
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.consumers.kafka_tail import KafkaTail
from knafka.clients.kafka.kafka_client import Connection
from knafka.clients.kafka.kafka_connection import (
    connection_configuration,
    consumer_configuration,
    producer_configuration,
    side_settings,
)
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core import names
from knafka.core.contract import Egress, Shard
from knafka.dispatcher.converting import ConvertingReader
from knafka.dispatcher.engine.clients import Clients, OpenReader
from knafka.dispatcher.engine.sending.appending import DeadLetterTopic
from knafka.dispatcher.engine.sending.broker_letters import BrokerDeadLetters
from knafka.dispatcher.shared.record import SharedParser
from knafka.dispatcher.shared.topic import SharedTopic
from knafka.ports.log import Assignment, LogReader, LogWriter, TopicMaker, TopicTail
from knafka.ports.shared_log import PositionedReader
from knafka.ports.subscriber import Subscriber

if TYPE_CHECKING:
    from knafka.dispatcher.engine.sending.authorizing import SinkTokens

SHARD_BYTES: Final = 128 * 1024 * 1024
"""Bytes of requests that all Egresses of a shard may hold together, in equal shares; twice as many
while events of some partitions wait for long (`HeldPartitions`)."""
MIN_EGRESS_BYTES: Final = 4 * 1024 * 1024
"""Smallest share of an Egress in `SHARD_BYTES`, however many Egresses there are: room for some
events of the largest size."""
DISPATCHER_OTHER_FILES: Final = 512
"""Open files that are left for everything but connections to subscribers: Kafka connections, log
segments, loaded code."""
MAX_OPEN_FILES: Final = 65_536
"""The highest limit of open files that a dispatcher asks the system for."""
MIN_IN_FLIGHT: Final = 4
"""Smallest number of attempts that an Egress of a shard may have under way at once, however many
Egresses share the connections."""
TAIL_CLOSE_TIMEOUT: Final = 1.0
"""Seconds to close a consumer of dead letters, which has nothing to finish."""
ATTEMPTS_PER_TURN: Final = 8
"""Attempts that each Egress of a shard may begin in one turn of the event loop. Beside one Egress
with a backlog, the p99 of 17 others was 29 ms without this limit and 17 ms with it
(docs/decisions/0018-shared-dispatchers.md)."""


def connect(
    egress: Egress,
    reporting: Connection,
    refusal: Refusal | None,
    tokens: SinkTokens | None = None,
    bundles: TrustBundles | None = None,
) -> Clients:
    """Open the Kafka and HTTP clients of an Egress with a dispatcher of its own.

    `reporting`: librdkafka's settings that make a client report its statistics. `refusal` returns
    why an address must not be connected to; None: all are allowed. `tokens` has the tokens for
    destinations that have an audience; None: requests to these fail. `bundles` are the trusted
    certificates; None: only the system's. Raises `InvalidDocument` if the Egress's Secret holds
    unusable settings, and `LogError` if a Kafka client can't be opened.
    """
    kafka = egress.kafka
    configuration = connection_configuration(kafka)
    writer = KafkaWriter({**producer_configuration(kafka), **reporting})
    topics = KafkaTopics(configuration)
    open_kafka_reader: Callable[..., LogReader] = KafkaReader
    if egress.conversion is not None:
        open_kafka_reader = partial(ConvertingReader, egress.conversion)
    open_reader: OpenReader = partial(
        open_kafka_reader,
        {**consumer_configuration(kafka), **reporting},
        egress.group,
        egress.topics,
        # At most once, an event that may have been sent must not be sent again, and may be lost.
        may_repeat=not egress.at_most_once,
    )
    return Clients(
        open_reader,
        writer,
        open_subscriber(egress, refusal, tokens, bundles),
        topics,
        open_broker_dead_letters(egress, writer, topics, partial(KafkaTail, configuration)),
    )


def open_subscriber(
    egress: Egress,
    refusal: Refusal | None,
    tokens: SinkTokens | None,
    bundles: TrustBundles | None = None,
) -> Subscriber:
    """Return the HTTP client that posts an Egress's events, with `tokens` for destinations that
    require them (None: their requests fail). `refusal` returns why an address must not be connected
    to (None: all are allowed); `bundles` are the trusted certificates (None: the system's only)."""
    http_subscriber = HttpSubscriber(limit=egress.max_in_flight, refusal=refusal, bundles=bundles)
    if not egress.needs_tokens:
        return http_subscriber
    # Imported here, as most Egresses don't need it.
    from knafka.dispatcher.engine.sending.authorizing import authorize

    return authorize(egress, http_subscriber, tokens)


def open_broker_dead_letters(
    egress: Egress, writer: LogWriter, topics: TopicMaker, open_tail: Callable[[str], TopicTail]
) -> BrokerDeadLetters | None:
    """Return the writer of the Broker's dead letters, which are for records that hold no event;
    None: the Egress names no topic for them. `open_tail` opens a reader of the topic with the given
    name, which reads on from where its last read ended."""
    if (name := egress.broker_dead_letter_topic) is None:
        return None
    settings = egress.broker_dead_letter_settings or egress.dead_letter_settings
    topic = DeadLetterTopic(name, settings, writer, topics)
    return BrokerDeadLetters(topic, open_tail(name))


class ShardClients(Protocol):
    """The clients of a shard; all of its Egresses share one writer."""

    writer: LogWriter
    """Stores the replies and dead letters of all Egresses."""
    subscriber: Subscriber
    """Posts requests to the shard's own Service."""

    def clients_for(self, egress: Egress, egress_count: Callable[[], int]) -> Clients:
        """Return the clients of one drain of `egress`. Their subscriber must be closed after the
        drain. `egress_count` returns how many Egresses share the shard's memory and connections
        now."""
        ...

    def open_contract(self) -> PositionedReader:
        """Open a reader of the topic that declares the shard's Egresses. Raises `LogError`."""
        ...

    async def close(self) -> None:
        """Leave the consumer groups and close all clients but `writer`, which the caller closes;
        all drains must have ended."""
        ...


class KafkaShard:
    """`ShardClients` of a real Kafka: one writer, and one shared read of each topic, for all
    Egresses. Each Egress has its own HTTP connections, so that a slow subscriber can't use up those
    of others."""

    def __init__(
        self,
        shard: Shard,
        kafka: Mapping[str, Any],
        reporting: Connection,
        refusal: Refusal | None,
        tokens: SinkTokens | None = None,
        bundles: TrustBundles | None = None,
    ) -> None:
        """Open the shard's writer, and raise the process's limit of open files. `kafka`:
        librdkafka's connection settings; `reporting`: those that make a client report its
        statistics. `refusal` returns why an address must not be connected to (None: all are
        allowed). `tokens` (None: requests that need one fail) and `bundles` (None: only the
        system's certificates) serve all Egresses. Raises `LogError`."""
        producer_settings = {**kafka, **side_settings(shard.kafka, "producer"), **reporting}
        self.writer: LogWriter = KafkaWriter(producer_settings)
        self.subscriber: Subscriber = HttpSubscriber(limit=1, refusal=refusal)
        self._refusal, self._tokens, self._bundles = refusal, tokens, bundles
        self._shard = shard
        self._kafka = kafka
        self._consumer_settings = {**kafka, **side_settings(shard.kafka, "consumer"), **reporting}
        self._topic_maker = KafkaTopics(kafka)
        self._offsets = KafkaOffsets(kafka)
        self._topics: dict[str, SharedTopic] = {}
        """The shared read of each topic, by the topic's name."""
        self._dead_letters: dict[str, BrokerDeadLetters] = {}
        """Writers of Brokers' dead letters, by topic; all Egresses of a Broker or KafkaChannel
        share one."""
        self._max_connections = raise_open_file_limit() - DISPATCHER_OTHER_FILES
        """Connections to subscribers that the limit of open files allows for all Egresses."""

    def clients_for(self, egress: Egress, egress_count: Callable[[], int]) -> Clients:
        """Return the clients of one drain, which gets an equal share of the shard's memory and
        connections; `egress_count` returns how many Egresses share them now."""
        return Clients(
            self._make_reader_opener(egress),
            self.writer,
            open_subscriber(egress, self._refusal, self._tokens, self._bundles),
            self._topic_maker,
            self._ensure_broker_dead_letters(egress),
            SharedParser(),
            held_bytes=lambda: max(MIN_EGRESS_BYTES, SHARD_BYTES // max(1, egress_count())),
            max_in_flight=lambda: max(
                MIN_IN_FLIGHT, self._max_connections // max(1, egress_count())
            ),
            attempts_per_turn=ATTEMPTS_PER_TURN,
        )

    def _ensure_broker_dead_letters(self, egress: Egress) -> BrokerDeadLetters | None:
        """Return the writer of the dead letters of the Egress's Broker, which is opened at its
        first use; None: the Egress names no topic for them."""
        if (name := egress.broker_dead_letter_topic) is None:
            return None
        if name not in self._dead_letters:
            letters = open_broker_dead_letters(
                egress, self.writer, self._topic_maker, partial(KafkaTail, self._kafka)
            )
            assert letters is not None
            self._dead_letters[name] = letters
        return self._dead_letters[name]

    def open_contract(self) -> PositionedReader:
        """Open a reader of the topic that declares the shard's Egresses. Raises `LogError`."""
        return KafkaIdentifiedReader(self._kafka, self._shard.contract_topic)

    def _make_reader_opener(self, egress: Egress) -> OpenReader:
        """Return the function that opens the Egress's reader in its shared topic."""

        def open_reader(assignment: Assignment) -> LogReader:
            """Open the group's reader; `assignment` is the drain, which is notified of its
            partitions."""
            return self._ensure_shared_topic(egress.topic).open_reader(egress.group, assignment)

        return open_reader

    def _ensure_shared_topic(self, name: str) -> SharedTopic:
        """Return the shared read of the topic `name`, opening it at its first use."""
        if name not in self._topics:
            group = names.shard_members_group(self._shard.group, name)
            self._topics[name] = SharedTopic(
                name,
                partial(KafkaMember, self._kafka, group, name),
                partial(
                    KafkaPositionedReader,
                    self._consumer_settings,
                    name,
                    self._offsets.topic_ids,
                ),
                self._offsets,
            )
        return self._topics[name]

    async def close(self) -> None:
        """Leave the consumer groups and close all clients but `writer`, which the caller closes."""
        for topic in self._topics.values():
            await topic.close()
        for letters in self._dead_letters.values():
            await letters.close(TAIL_CLOSE_TIMEOUT)
        await self._offsets.close()
        await self.subscriber.close()


def connect_shard(
    shard: Shard,
    reporting: Connection,
    refusal: Refusal | None,
    tokens: SinkTokens | None = None,
    bundles: TrustBundles | None = None,
) -> ShardClients:
    """Open the Kafka and HTTP clients of a shard; the other parameters are as in `connect`. Raises
    `InvalidDocument` if the shard's Secret holds unusable settings, and `LogError` if a Kafka
    client can't be opened."""
    return KafkaShard(
        shard, connection_configuration(shard.kafka), reporting, refusal, tokens, bundles
    )


def raise_open_file_limit() -> int:
    """Raise the process's limit of open files to the highest that the system allows, at most
    `MAX_OPEN_FILES`; returns how many files may be open now, `MAX_OPEN_FILES` at most. 20 Triggers
    with a hundred connections each need more than a shell's usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    new_limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < new_limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard))
    return new_limit
