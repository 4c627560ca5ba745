"""Transactions on real Kafka: `ports.transactions.TransactionalLog`.

One member of a group reads several topics, and one producer stores the resulting records together
with the group's offsets. Kafka refuses a transaction in two cases: the member's partitions have
gone to others, as its generation shows; or another process has taken over its transactional id. All
calls block.

Not here: the member's partitions and records (`kafka_transactional_member`), the steps of a
transaction (`kafka_transactional_producer`), and reading without a group (`kafka_bounded_reader`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from threading import Thread

from knafka.clients.kafka.consumers.kafka_bounded_reader import BoundedReader
from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.consumers.kafka_transactional_member import (
    STABLE_TIMEOUT,
    TransactionalMember,
)
from knafka.clients.kafka.kafka_client import Connection
from knafka.clients.kafka.producers.kafka_transactional_producer import (
    FENCE_TIMEOUT,
    TransactionalProducer,
)
from knafka.core.errors import LogError
from knafka.ports.log import OffsetAndMetadata, Positions, Record
from knafka.ports.transactions import Claims, Offsets, Output, Partition, TransactionAborted

log = logging.getLogger(__name__)


class KafkaTransactions:
    """A `TransactionalLog` on real Kafka. Before it reads any record, it takes over its
    transactional id, so that a process that had the id can commit nothing any more."""

    reached: Mapping[Partition, int]
    """Partitions whose end the last `read` has reached, with the offset of the end."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        topics: Sequence[str],
        claims: Claims,
        transactional_id: str,
        *,
        writing: Connection | None = None,
        protocol: GroupProtocol = GroupProtocol.CONSUMER,
    ) -> None:
        """Open the producer and join the group on the topics; `claims` is notified of assigned and
        revoked partitions. `writing`: the producer's connection; None: that of the consumer,
        `connection`. Raises `LogError`."""
        self.reached = {}
        self._claims = claims
        with ExitStack() as opened:  # if a later client can't be opened, it closes the earlier ones
            self._producer = TransactionalProducer(writing or connection, transactional_id)
            opened.callback(self._producer.close)
            # The client id is the transactional id, so that other processes see in the list of the
            # group's members which transactional ids are taken.
            member_connection = {**connection, "client.id": transactional_id}
            self._member = TransactionalMember(member_connection, group, topics, claims, protocol)
            opened.callback(self._member.close)
            # A reader of its own, as the group's rebalances must not delay it.
            self._bounded = BoundedReader(connection, group)
            opened.pop_all()  # all are open: close none of them here
        self._final_error: LogError | None = None
        """The error that all further calls raise; None: there is none."""

    def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return up to `limit` records, gathered for up to `timeout` seconds; empty while the
        transactional id isn't taken over from an earlier process. Raises `LogError`."""
        self._check_usable()
        if not self._producer.fence(timeout):
            return []
        records = self._member.read(limit, timeout)
        self.reached, self._member.reached = self._member.reached, {}
        return records

    def commit(self, outputs: Sequence[Output], offsets: Offsets) -> None:
        """Append the records `outputs` and commit offsets in one transaction. Raises
        `TransactionAborted` if nothing was stored: the caller may go on. After another `LogError`
        of the producer, all further reads and commits raise that error."""
        self._wait_until_fenced()
        member = self._member
        if not outputs and not offsets:
            return
        # Without an offset, Kafka would not check whether this is still a member: so the last
        # commit of a partition is made again.
        committed_offsets = offsets or member.last_committed()
        if member.identity is None or not committed_offsets.keys() <= member.owned.keys():
            member.go_back()
            raise TransactionAborted("the partitions have gone to other members")
        try:
            self._producer.commit(outputs, member.offsets_of(committed_offsets), member.identity)
        except TransactionAborted:
            member.go_back()
            raise
        except LogError as error:
            self._final_error = error
            raise
        member.owned.update(committed_offsets)

    def _wait_until_fenced(self) -> None:
        """Wait until this process has taken over the transactional id, so that no earlier
        transaction with the id can be committed any more. Raises `LogError`."""
        self._check_usable()
        while not self._producer.fence(FENCE_TIMEOUT):
            pass

    def _check_usable(self) -> None:
        """Raise `LogError` if an earlier error of the producer, or `close`, has ended this log."""
        if self._final_error is not None:
            raise LogError(str(self._final_error))

    def read_all(self, topic: str, partition: int) -> Iterator[Sequence[Record]]:
        """Fence off earlier transactions of this id, then return an iterator over all committed
        records of a partition, in batches, up to the end that the partition has now. The call
        raises `LogError`, and so does the iterator."""
        self._wait_until_fenced()
        return self._bounded.read_all(topic, partition)

    def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> None:
        """Create the topic unless it exists, with these numbers of partitions and of replicas
        (`replication`), and these settings. Raises `LogError`, also if an earlier error has ended
        this log."""
        self._check_usable()
        self._bounded.ensure_topic(topic, partitions, replication, config)

    def ends(self, topic: str) -> Positions:
        """Return the end offset of each partition of a topic, by number. Raises `LogError`."""
        return self._bounded.ends(topic)

    def committed(self, topic: str) -> Positions:
        """Fence off earlier transactions of this id, then return the offsets that the group has
        committed, by partition. Raises `LogError`."""
        self._wait_until_fenced()
        return self._bounded.committed(topic, STABLE_TIMEOUT)

    def reachable_ends(self, topic: str) -> Mapping[int, int | None]:
        """Return the end offset of each partition of a topic, by number; None for a partition whose
        end can't be read now. Raises `LogError` if the topic's partitions can't be read."""
        return self._bounded.reachable_ends(topic)

    def committed_now(self, topic: str) -> Mapping[int, OffsetAndMetadata]:
        """Return the group's commits of the present topic, by partition, without those of
        transactions under way. Raises `LogError`."""
        return self._bounded.committed_now(topic)

    def set_paused(self, partitions: Collection[Partition], *, paused: bool) -> None:
        """Pause or resume reading from these partitions, as far as this member owns them."""
        self._member.set_paused(partitions, paused=paused)

    def close(self, timeout: float) -> None:
        """Leave the group and close all clients; wait for that at most `timeout` seconds."""
        self._final_error = self._final_error or LogError("it is closed")
        if owned := self._member.forget_owned(self._member.owned):
            self._claims.on_revoked(owned)
        self._member.is_closing = True
        # Closing hangs while Kafka is frozen, and must not keep the process alive.
        closing = Thread(target=self._close, name="kafka-transactions-close", daemon=True)
        closing.start()
        closing.join(timeout)
        if closing.is_alive():
            log.warning("a member could not leave its group within %g s", timeout)

    def _close(self) -> None:
        """Leave the group and close all clients; blocks while Kafka is frozen."""
        self._member.close()
        self._producer.close()
        self._bounded.close()
