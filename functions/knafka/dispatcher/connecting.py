"""What a dispatcher works with: Kafka and HTTP, for one Egress or for a shard of them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from knafka.clients.http_pool import Refusal
from knafka.clients.http_subscriber import HttpSubscriber
from knafka.clients.kafka_client import Connection
from knafka.clients.kafka_connection import connection, reading, settings, writing
from knafka.clients.kafka_member import KafkaMember
from knafka.clients.kafka_offsets import KafkaOffsets
from knafka.clients.kafka_positioned import KafkaPositionedReader
from knafka.clients.kafka_reader import KafkaReader
from knafka.clients.kafka_tail import KafkaTail
from knafka.clients.kafka_topics import KafkaTopics
from knafka.clients.kafka_writer import KafkaWriter
from knafka.clients.trust_bundles import TrustBundles
from knafka.core import names
from knafka.core.contract import Egress, Shard
from knafka.dispatcher.appending import DeadLetterTopic
from knafka.dispatcher.broker_letters import BrokerDeadLetters
from knafka.dispatcher.converting import ConvertingReader
from knafka.dispatcher.drain import OpenReader
from knafka.dispatcher.parsing import Parser
from knafka.dispatcher.shared.record import SharedParser
from knafka.dispatcher.shared.topic import SharedTopic
from knafka.ports.log import Assignment, LogReader, LogWriter, TopicMaker, TopicTail
from knafka.ports.shared_log import PositionedReader
from knafka.ports.subscriber import Subscriber

if TYPE_CHECKING:
    from knafka.dispatcher.authorizing import SinkTokens

SHARD_BYTES: Final = 128 * 1024 * 1024
"""Of the requests that all Egresses of a shard hold; each may have its share of them."""
LEAST_BYTES: Final = 4 * 1024 * 1024
"""Of one Egress, however many there are: some events of the largest size."""


OTHER_FILES: Final = 512
"""Open files beside the connections to subscribers: Kafka's, the log's, code that is loaded."""
MOST_FILES: Final = 65_536
LEAST_IN_FLIGHT: Final = 4
CLOSE_TIMEOUT: Final = 1.0
"""Seconds for a consumer of dead letters, which has nothing to finish."""
ATTEMPTS_A_TURN: Final = 8
"""Of each Egress of a shard: with one that has a backlog among 17 others, their p99 was 29 ms with
as many as come, and 17 ms so (docs/decisions/0018-shared-dispatchers.md)."""


@dataclass(frozen=True, slots=True)
class Clients:
    """What an Egress works with: its own dispatcher for as long as the process runs, in a shard for
    one drain."""

    open_reader: OpenReader
    writer: LogWriter
    subscriber: Subscriber
    topics: TopicMaker
    broker_dead_letters: BrokerDeadLetters | None = None
    """None: the Egress names no topic for them."""
    parser: Parser | None = None
    held_bytes: Callable[[], int] | None = None
    """Bytes of requests that it may hold; None: as many as one Egress may that is alone."""
    max_in_flight: Callable[[], int] | None = None
    """Attempts under way at once, if it may have fewer than its Egress says."""
    attempts_a_turn: int | None = None
    """Attempts that begin in one turn of the event loop, if it has neighbours there."""


def connect(
    egress: Egress,
    reporting: Connection,
    refusal: Refusal | None,
    tokens: SinkTokens | None = None,
    bundles: TrustBundles | None = None,
) -> Clients:
    """Kafka and HTTP; raises `InvalidDocument` for a Secret that can't work. `reporting` is of
    `ClientStatistics`, `refusal` judges the addresses of destinations, `tokens` are for those that
    have an audience, `bundles` are trusted to say who they are."""
    kafka = egress.kafka
    reached, writer = connection(kafka), KafkaWriter({**writing(kafka), **reporting})
    topics = KafkaTopics(reached)
    of = {**reading(kafka), **reporting}, egress.group, egress.topics
    open_reader: OpenReader = partial(KafkaReader, *of)
    if egress.conversion is not None:
        open_reader = partial(ConvertingReader, egress.conversion, *of)
    return Clients(
        open_reader,
        writer,
        subscriber(egress, refusal, tokens, bundles),
        topics,
        broker_dead_letters(egress, writer, topics, partial(KafkaTail, reached)),
    )


def subscriber(
    egress: Egress,
    refusal: Refusal | None,
    tokens: SinkTokens | None,
    bundles: TrustBundles | None = None,
) -> Subscriber:
    """What posts for one Egress."""
    plain = HttpSubscriber(limit=egress.max_in_flight, refusal=refusal, bundles=bundles)
    if not egress.wants_tokens:
        return plain
    # Here, as most Egresses need none of it.
    from knafka.dispatcher.authorizing import authorized

    return authorized(egress, plain, tokens)


def broker_dead_letters(
    egress: Egress, writer: LogWriter, topics: TopicMaker, open_tail: Callable[[str], TopicTail]
) -> BrokerDeadLetters | None:
    """Those of an Egress's Broker; None: it names no topic for them."""
    if (name := egress.broker_dead_letter_topic) is None:
        return None
    settings = egress.broker_dead_letter_settings or egress.dead_letter_settings
    topic = DeadLetterTopic(name, settings, writer, topics)
    return BrokerDeadLetters(topic, open_tail(name))


class ShardClients(Protocol):
    """What a shard works with; its Egresses have one writer."""

    writer: LogWriter
    subscriber: Subscriber
    """For requests to its own Service."""

    def of(self, egress: Egress, among: Callable[[], int]) -> Clients:
        """Those of one drain; `among` gives how many Egresses share what there is. Who drains
        closes the subscriber."""
        ...

    def open_contract(self) -> PositionedReader:
        """Raises `LogError`."""
        ...

    async def close(self) -> None:
        """Leave the groups; all drains are over."""
        ...


class KafkaShard:
    """One writer and one read of each topic for all; connections to subscribers are each Egress's
    own, or a slow one would take the others' of the same host."""

    def __init__(
        self,
        shard: Shard,
        kafka: Mapping[str, Any],
        reporting: Connection,
        refusal: Refusal | None,
        tokens: SinkTokens | None = None,
        bundles: TrustBundles | None = None,
    ) -> None:
        writing = {**kafka, **settings(shard.kafka, "producer"), **reporting}
        self.writer: LogWriter = KafkaWriter(writing)
        self.subscriber: Subscriber = HttpSubscriber(limit=1, refusal=refusal)
        self._refusal, self._tokens, self._bundles = refusal, tokens, bundles
        self._shard = shard
        self._kafka = kafka
        self._reading = {**kafka, **settings(shard.kafka, "consumer")}
        self._reporting = reporting
        self._maker = KafkaTopics(kafka)
        self._offsets = KafkaOffsets(kafka)
        self._topics: dict[str, SharedTopic] = {}
        self._dead_letters: dict[str, BrokerDeadLetters] = {}
        """By topic: one for all Egresses of a Broker or KafkaChannel."""
        self._files = open_files() - OTHER_FILES

    def of(self, egress: Egress, among: Callable[[], int]) -> Clients:
        return Clients(
            self._shared_reader(egress),
            self.writer,
            subscriber(egress, self._refusal, self._tokens, self._bundles),
            self._maker,
            self._dead_letters_of_broker(egress),
            SharedParser(),
            lambda: max(LEAST_BYTES, SHARD_BYTES // max(1, among())),
            lambda: max(LEAST_IN_FLIGHT, self._files // max(1, among())),
            ATTEMPTS_A_TURN,
        )

    def _dead_letters_of_broker(self, egress: Egress) -> BrokerDeadLetters | None:
        if (name := egress.broker_dead_letter_topic) is None:
            return None
        if name not in self._dead_letters:
            made = broker_dead_letters(
                egress, self.writer, self._maker, partial(KafkaTail, self._kafka)
            )
            assert made is not None
            self._dead_letters[name] = made
        return self._dead_letters[name]

    def open_contract(self) -> PositionedReader:
        return KafkaPositionedReader(self._kafka, self._shard.contract_topic)

    def _shared_reader(self, egress: Egress) -> OpenReader:
        def open_reader(assignment: Assignment) -> LogReader:
            return self._topic(egress.topic).reader(egress.group, assignment)

        return open_reader

    def _topic(self, name: str) -> SharedTopic:
        if name not in self._topics:
            group = names.shard_members(self._shard.group, name)
            self._topics[name] = SharedTopic(
                name,
                partial(KafkaMember, self._kafka, group, name),
                partial(KafkaPositionedReader, {**self._reading, **self._reporting}, name),
                self._offsets,
            )
        return self._topics[name]

    async def close(self) -> None:
        for topic in self._topics.values():
            await topic.close()
        for letters in self._dead_letters.values():
            await letters.close(CLOSE_TIMEOUT)
        await self._offsets.close()
        await self.subscriber.close()


def connect_shard(
    shard: Shard,
    reporting: Connection,
    refusal: Refusal | None,
    tokens: SinkTokens | None = None,
    bundles: TrustBundles | None = None,
) -> ShardClients:
    """As `connect`."""
    return KafkaShard(shard, connection(shard.kafka), reporting, refusal, tokens, bundles)


def open_files() -> int:
    """How many files the process may have open, as many as it is allowed: 20 Triggers with a
    hundred connections each are more than what a shell usually gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
