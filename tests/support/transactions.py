"""The implementations of `ports.transactions` behind one face.

`transactions` is the fixture, and `kafka_cluster` the one of the real Kafka alone; `Holder` is a
`Claims` that notes what it hears. Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.kafka import CLASSIC_PROTOCOL, Kafka
from support.logs import SOON
from support.memory.log import MemoryLog
from support.memory.records import Undecided
from support.memory.transactions import MemoryTransactions

from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.producers.kafka_transactions import KafkaTransactions
from knafka.ports.log import OffsetAndMetadata, Record
from knafka.ports.transactions import Claims, Partition, TransactionalLog


class Holder:
    """A `Claims` that notes what it hears, and holds each partition once."""

    def __init__(self) -> None:
        self.held: set[Partition] = set()
        self.committed: dict[Partition, OffsetAndMetadata | None] = {}
        """Of each when it was assigned."""
        self.revocations: list[set[Partition]] = []
        self.after_assigned: Callable[[], None] = lambda: None
        self.missing: set[Partition] = set()
        """Partitions that it can't take over yet."""
        self.asked = 0
        """How often it was asked for those."""

    def find_unready(self, partitions: Collection[Partition]) -> Collection[Partition]:
        self.asked += 1
        return self.missing & set(partitions)

    def on_assigned(self, partitions: Mapping[Partition, OffsetAndMetadata | None]) -> None:
        assert partitions
        assert not self.held & partitions.keys()
        self.held.update(partitions)
        self.committed.update(partitions)
        self.after_assigned()

    def on_revoked(self, partitions: Collection[Partition]) -> None:
        assert partitions
        assert self.held >= set(partitions)
        self.held.difference_update(partitions)
        self.revocations.append(set(partitions))


class OpenTransaction:
    """Somebody else's transaction, whose records are stored."""

    def __init__(self, end: Callable[[bool], object], waiting: Callable[[bool], object]) -> None:
        self.end = end
        """Commit it (True) or abort it."""
        self.end_while_others_wait = waiting
        """The same, once somebody waits for it."""


class Transactions(ABC):
    """One implementation: makes topics and members, and closes what it has made."""

    def __init__(self) -> None:
        self.group = f"transactions-{uuid.uuid4().hex}"
        self.members: list[TransactionalLog] = []

    @abstractmethod
    def topic(self, partitions: int = 1) -> str: ...

    @abstractmethod
    def append(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Without a transaction."""

    @abstractmethod
    def begin(self, topic: str, *values: bytes) -> OpenTransaction:
        """In partition 0."""

    @abstractmethod
    def _member(
        self, topics: Sequence[str], claims: Claims, transactional_id: str
    ) -> TransactionalLog: ...

    def member(
        self, *topics: str, claims: Claims | None = None, transactional_id: str | None = None
    ) -> TransactionalLog:
        made = self._member(topics, claims or Holder(), transactional_id or uuid.uuid4().hex)
        self.members.append(made)
        return made

    def close_member(self, member: TransactionalLog) -> None:
        self.members.remove(member)
        member.close(SOON)

    def close(self) -> None:
        for each in self.members:
            each.close(SOON)


class MemoryCluster(Transactions):
    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryLog()

    def topic(self, partitions: int = 1) -> str:
        name = f"topic-{uuid.uuid4().hex}"
        self.memory.create(name, partitions)
        return name

    def append(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for each in values:
            self.memory.store(topic, None, each, None, partition=partition)

    def begin(self, topic: str, *values: bytes) -> OpenTransaction:
        coordinator, name = self.memory.transactions, uuid.uuid4().hex
        coordinator.begin(name, None).extend(
            self.memory.store(topic, None, each, None, partition=0, kind=Undecided)
            for each in values
        )

        def waiting(commit: bool) -> None:
            coordinator.waiting = partial(coordinator.end, name, commit=commit)

        return OpenTransaction(lambda commit: coordinator.end(name, commit=commit), waiting)

    def _member(
        self, topics: Sequence[str], claims: Claims, transactional_id: str
    ) -> TransactionalLog:
        return MemoryTransactions(self.memory, self.group, topics, claims, transactional_id)


class KafkaCluster(Transactions):
    def __init__(self, bootstrap_servers: str, protocol: GroupProtocol) -> None:
        super().__init__()
        self.connection: dict[str, Any] = {"bootstrap.servers": bootstrap_servers}
        self._protocol = protocol
        self._admin = AdminClient({**self.connection, "log_level": 0})
        self._topics: list[str] = []
        self._producer = Producer({**self.connection, "enable.idempotence": True})
        self._timers: list[threading.Timer] = []

    def topic(self, partitions: int = 1) -> str:
        name = f"transactions-{uuid.uuid4().hex}"
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(SOON)
        self._topics.append(name)
        return name

    def append(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for each in values:
            self._producer.produce(topic, each, partition=partition)
        assert self._producer.flush(SOON) == 0

    def begin(self, topic: str, *values: bytes) -> OpenTransaction:
        producer = Producer({**self.connection, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(SOON)
        producer.begin_transaction()
        for each in values:
            producer.produce(topic, each, partition=0)
        assert producer.flush(SOON) == 0

        def end(commit: bool) -> None:
            (producer.commit_transaction if commit else producer.abort_transaction)(SOON)

        def waiting(commit: bool) -> None:
            timer = threading.Timer(0.5, end, [commit])
            self._timers.append(timer)
            timer.start()

        return OpenTransaction(end, waiting)

    def _member(
        self, topics: Sequence[str], claims: Claims, transactional_id: str
    ) -> TransactionalLog:
        return KafkaTransactions(
            self.connection, self.group, topics, claims, transactional_id, protocol=self._protocol
        )

    def close(self) -> None:
        for timer in self._timers:
            timer.join()
        super().close()
        if self._topics:
            for deleted in self._admin.delete_topics(self._topics).values():
                deleted.exception()


PROTOCOLS: Final = {
    "kafka-consumer": GroupProtocol.CONSUMER,
    "kafka-classic": GroupProtocol.CLASSIC,
}


@pytest.fixture(
    params=[
        "memory",
        pytest.param("kafka-consumer", marks=pytest.mark.kafka),
        pytest.param("kafka-classic", marks=CLASSIC_PROTOCOL),
    ]
)
def transactions(request: pytest.FixtureRequest) -> Iterator[Transactions]:
    if request.param == "memory":
        made: Transactions = MemoryCluster()
    else:
        kafka: Kafka = request.getfixturevalue("kafka")
        made = KafkaCluster(kafka.bootstrap_servers, PROTOCOLS[request.param])
    yield made
    made.close()


def read(member: TransactionalLog, count: int, limit: int = 100) -> list[Record]:
    """Exactly `count` records."""
    records: list[Record] = []
    give_up_at = time.monotonic() + SOON
    while len(records) < count and time.monotonic() < give_up_at:
        some = member.read(limit, 0.1)
        assert len(some) <= limit
        records += some
    assert len(records) == count
    return records


def offsets_behind(
    records: Sequence[Record], metadata: str = ""
) -> dict[Partition, OffsetAndMetadata]:
    """What to commit when these have been worked off."""
    return {
        place_of(each): OffsetAndMetadata(each.offset() + 1, metadata)
        for each in sorted(records, key=lambda each: each.offset())
    }


def place_of(record: Record) -> Partition:
    return Partition(record.topic(), record.partition())


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [each.value() for each in records]


def everything(member: TransactionalLog, topic: str, partition: int = 0) -> list[Record]:
    """What `read_all` gives."""
    return [each for batch in member.read_all(topic, partition) for each in batch]


def wait_until(condition: Callable[[], object], *members: TransactionalLog) -> None:
    """Read, and get nothing, until it holds."""
    give_up_at = time.monotonic() + SOON
    while not condition() and time.monotonic() < give_up_at:
        for each in members:
            assert list(each.read(100, 0.05)) == []
    assert condition()


@pytest.fixture(params=GroupProtocol)
def kafka_cluster(kafka: Kafka, request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Transactions on the real Kafka, once by each group protocol."""
    made = KafkaCluster(kafka.bootstrap_servers, request.param)
    yield made
    made.close()
