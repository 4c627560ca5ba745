"""The member of a group whose offsets a transaction commits: the consumer of `KafkaTransactions`.

It knows which partitions it owns and what it has read, notifies `Claims` of assigned and revoked
partitions, and reads again from the last commit after an aborted transaction. All calls block.

Not here: how a member joins (`kafka_group_consumer`), and the transactions (`kafka_transactions`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from knafka.clients.kafka.consumers.kafka_committed_topics import OF_ANOTHER_TOPIC, CommittedTopics
from knafka.clients.kafka.consumers.kafka_cut_logs import restart_of
from knafka.clients.kafka.consumers.kafka_elections import LeaderElection
from knafka.clients.kafka.consumers.kafka_group_consumer import (
    HEARTBEAT_INTERVAL,
    GroupConsumer,
    GroupProtocol,
    assign_paused,
    identity_of,
    start_position_of,
)
from knafka.clients.kafka.consumers.kafka_replaced_topics import ReplacedTopicsThread
from knafka.clients.kafka.consumers.kafka_stalled_partitions import StalledPartitions, names_of
from knafka.clients.kafka.consumers.kafka_undecided_partitions import UndecidedPartitions
from knafka.clients.kafka.kafka_client import (
    LOST_OFFSET_ERRORS,
    TRANSIENT_ERRORS,
    Connection,
    log_error_of,
)
from knafka.clients.kafka.kafka_commits import NO_EPOCH, epoch_of
from knafka.core.errors import LogError
from knafka.ports.log import OffsetAndMetadata, Record
from knafka.ports.transactions import Claims, Offsets, Partition

log = logging.getLogger(__name__)

STABLE_TIMEOUT: Final = 30.0
"""Most seconds to read the group's commits: a killed member's transaction may be open, and Kafka
may take twice `TRANSACTION_TIMEOUT` to abort it."""

CONSUMER_SETTINGS: Final = {
    # A transaction ends with a marker that is no record, so the end of the partition is reported
    # only by an empty fetch, which Kafka holds open for this long (ms).
    "fetch.wait.max.ms": 50,
}
"""Settings in which this consumer differs from our other consumers."""


class TransactionalMember(GroupConsumer):
    """The consumer of `KafkaTransactions`: the partitions that it owns and what it has read."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        topics: Sequence[str],
        claims: Claims,
        protocol: GroupProtocol,
    ) -> None:
        """Open the consumer and join the group on the topics; `claims` is notified of partitions.
        Raises `LogError`."""
        self._claims = claims
        self.owned: dict[Partition, OffsetAndMetadata | None] = {}
        """The group's commit of each owned partition; None: it has none."""
        self.identity: Any = None
        """`identity_of` the consumer at the last read; None: it was no member then."""
        self.reached: dict[Partition, int] = {}
        """Ends that were reached, by owned partition; the caller resets this."""
        self.is_closing = False  # whether newly assigned partitions are only paused, not owned
        self._epochs: dict[Partition, int] = {}
        """Highest known leader epoch of each partition: of its commit, or of records after it."""
        self._returned_since_commit: set[Partition] = set()
        """Partitions with records that were returned since the last commit."""
        self._to_reread: set[Partition] = set()
        """Partitions to read again from their commit, where the seek hasn't succeeded yet."""
        self._gathered_records: list[Record] = []  # records that `read` hasn't returned yet
        self._paused: set[Partition] = set()
        self._revoked: set[Partition] = set()  # those that were revoked in the current poll
        self._claims_error: BaseException | None = None
        """The error that `Claims` raised in the current poll."""
        self._failure: LogError | None = None
        """An error of a message in the current read, which `read` raises once."""
        self._refusal: LogError | None = None
        """The error that every `read` raises from now on; None: there is none."""
        self._stalled = StalledPartitions(connection)
        self._undecided = UndecidedPartitions(connection, claims.find_unready)
        super().__init__({**CONSUMER_SETTINGS, **connection}, group, topics, protocol)
        self._ids_thread = ReplacedTopicsThread(connection, topics)
        self._replaced = self._ids_thread.replaced
        self._committed_topics = CommittedTopics(self._replaced)

    # Reading

    def read(self, limit: int, timeout: float) -> list[Record]:
        """Return up to `limit` records, gathered for up to `timeout` seconds. Raises `LogError`,
        and the errors of `Claims`; then the records will be read again."""
        if self._refusal is not None:
            raise LogError(str(self._refusal))
        self._restart_replaced()
        self._add_owned(self._undecided.ask_again(self.consumer))
        deadline = time.monotonic() + timeout
        while True:
            self.send_due_heartbeat()
            self._seek_back()
            seconds_left = deadline - time.monotonic()
            self._poll(
                limit - len(self._gathered_records), max(0.0, min(seconds_left, HEARTBEAT_INTERVAL))
            )
            failure = self._claims_error or self._failure or self._refusal
            if (
                failure is not None
                or len(self._gathered_records) >= limit
                or time.monotonic() >= deadline
            ):
                break
        records, self._gathered_records = self._gathered_records, []
        self._returned_since_commit.update(_partition(record) for record in records)
        self._returned_since_commit.update(self.reached)
        self.identity = identity_of(self.consumer)
        if failure is not None:
            self._claims_error = self._failure = None
            self.go_back()
            raise failure
        self.check(heard=bool(records or self.reached))
        # Fewer records than `limit` mean that none wait in the consumer's queue, so a partition
        # without records has really stalled.
        if len(records) < limit and (stalled := self._stalled.find(self.consumer)):
            reason = f"the consumer has stalled in {names_of(stalled)}: it must be replaced"
            self._refusal = LogError(reason)
            raise LogError(reason)
        return records

    def _poll(self, limit: int, timeout: float) -> None:
        """Poll up to `limit` messages for `timeout` seconds, and handle each."""
        self._revoked.clear()
        for message in self.consumer.consume(limit, timeout):
            error = message.error()
            if error is None:
                self._keep_record(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._note_end(message)
            elif error.code() in LOST_OFFSET_ERRORS:
                self._restart_after_loss(message)
            elif error.code() == KafkaError._FATAL:
                self._handle_fatal_error(error)
            elif not error.retriable() and error.code() not in TRANSIENT_ERRORS:
                self._failure = log_error_of(error)
        # Assigned again in this poll: which records came before the revocation isn't known.
        self._to_reread |= self._revoked & self.owned.keys()

    def _keep_record(self, message: Message) -> None:
        """Keep a record that was read, if its partition's records are kept. The partition's end, if
        it was reached before, is no longer the end."""
        partition = _partition(message)
        if self._keeps_records_of(partition):
            self._gathered_records.append(cast(Record, message))
            self.reached.pop(partition, None)

    def _note_end(self, message: Message) -> None:
        """Note that an owned partition was read to its end, as `message` reports."""
        partition = _partition(message)
        if self._keeps_records_of(partition):
            self.reached[partition] = cast(int, message.offset())
            self._stalled.note_end(message)

    def _keeps_records_of(self, key: Partition) -> bool:
        """Whether records of a partition are kept: it is owned, and they won't be read again."""
        return key in self.owned and key not in self._to_reread and key not in self._revoked

    def _handle_fatal_error(self, error: KafkaError) -> None:
        """Refuse all further reads; or, if the group was never joined with the newer protocol, fall
        back to the classic one."""
        if self.joined or self.protocol is GroupProtocol.CLASSIC:
            self._refusal = log_error_of(error)
        else:
            self.fall_back_to_classic(error)

    def _restart_replaced(self) -> None:
        """Read from their start the partitions of replaced topics, and partitions whose commit
        turns out to be of another topic. A partition that is held back (`UndecidedPartitions`)
        begins there once it may be read."""
        replaced = self._replaced.pop()
        of_another_topic = self._committed_topics.pop_partitions_of_another_topic()
        for partition in [*self.owned, *self._undecided.partitions]:
            if partition.topic in replaced or partition in of_another_topic:
                log.warning(OF_ANOTHER_TOPIC, partition.number, partition.topic)
                if self._undecided.forget_commit(partition):
                    self._committed_topics.note_restart(partition, is_of_known_topic=True)
                else:
                    start = TopicPartition(*partition, OFFSET_BEGINNING)
                    self._restart(partition, start, is_of_known_topic=True)

    def _restart_after_loss(self, message: Message) -> None:
        """Read a partition from where its log was cut, or from its start: `message` reports that
        the log no longer has the consumer's offset."""
        partition = _partition(message)
        if partition not in self.owned:
            return
        committed = self.owned[partition]
        settled = None if committed is None else committed.offset
        restart = restart_of(self.consumer, message, settled)
        log.warning(
            "partition %d of %s is another log than before, and is read from %s: %s",
            partition.number, partition.topic,
            "its start" if restart.offset < 0 else f"offset {restart.offset}", message.error(),
        )  # fmt: skip
        if restart.offset < 0:
            self._replaced.hasten()  # if the topic was replaced, all its partitions are restarted
        self._restart(partition, restart)

    def _restart(
        self, partition: Partition, restart: TopicPartition, is_of_known_topic: bool = False
    ) -> None:
        """Read an owned partition from the position `restart`, and report to `Claims` that it was
        revoked and assigned anew. `is_of_known_topic`: see `CommittedTopics.note_restart`."""
        self.consumer.incremental_unassign([restart])
        self.consumer.incremental_assign([restart])
        self._call_claims(self._claims.on_revoked, self.forget_owned([partition]))
        self._stalled.begin([restart])
        # The group's commit is of records that are gone, so `Claims` gets None as the commit.
        self.owned[partition] = None if restart.offset < 0 else OffsetAndMetadata(restart.offset)
        if restart.offset < 0:
            self._committed_topics.note_restart(partition, is_of_known_topic)
        self._epochs[partition] = epoch_of(restart)
        self._call_claims(self._claims.on_assigned, {partition: None})

    def set_paused(self, partitions: Collection[Partition], *, paused: bool) -> None:
        """Pause or resume the partitions that are owned, and remember which ones are paused."""
        owned = [partition for partition in partitions if partition in self.owned]
        self._paused = self._paused.union(owned) if paused else self._paused.difference(owned)
        self._set_consumer_paused(owned, paused=paused)

    def _set_consumer_paused(self, partitions: Collection[Partition], *, paused: bool) -> None:
        """Pause or resume these partitions in librdkafka's consumer; after a resume, also seek to
        where each had paused. Log and skip partitions that the consumer doesn't read."""
        change = self.consumer.pause if paused else self.consumer.resume
        note_change = self._stalled.pause if paused else self._stalled.resume
        for partition in partitions:
            entries = [TopicPartition(*partition)]
            try:
                change(entries)
                note_change(entries)
                if not paused:
                    # librdkafka may resume elsewhere. A seek loses the epochs, so note them first.
                    self._note_epochs([partition])
                    (position,) = self.consumer.position([TopicPartition(*partition)])
                    if position.offset >= 0:
                        self.consumer.seek(position)
            except KafkaException as error:
                # The partition isn't read yet, or no longer.
                log.info("%s: %s", partition, error.args[0].str())

    # Commits

    def last_committed(self) -> Offsets:
        """Return one owned partition with its last commit, so that the caller can make this commit
        again; empty if no owned partition has a commit."""
        for partition, commit in self.owned.items():
            if commit is not None:
                return {partition: commit}
        return {}

    def offsets_of(self, offsets: Offsets) -> list[TopicPartition]:
        """Return these offsets as confluent-kafka's objects, with the leader epochs of the records
        read last, and with the marks of their topics (`core.commit_metadata`) in the metadata."""
        self._note_epochs(offsets)
        return [
            TopicPartition(
                partition.topic,
                partition.number,
                entry.offset,
                self._committed_topics.mark(partition, entry.metadata),
                self._epochs.get(partition, NO_EPOCH),
            )
            for partition, entry in offsets.items()
        ]

    def _note_epochs(self, partitions: Collection[Partition]) -> None:
        """Note the leader epochs of the records that were read last. librdkafka forgets them at a
        seek, and a commit with too early an epoch makes the log look cut to the next reader."""
        for position in self.consumer.position([TopicPartition(*entry) for entry in partitions]):
            partition = Partition(position.topic, position.partition)
            if (epoch := epoch_of(position)) > self._epochs.get(partition, NO_EPOCH):
                self._epochs[partition] = epoch

    def go_back(self) -> None:
        """Read the records again that were returned since the last commit, or would have been if
        `read` hadn't failed: their transaction was aborted, or `read` has raised an error."""
        self._to_reread |= self._returned_since_commit & self.owned.keys()
        self._returned_since_commit.clear()
        self._seek_back()

    def _seek_back(self) -> None:
        """Seek to the commit of each partition that must be read again; partitions where that isn't
        possible now are left for the next call."""
        for partition in list(self._to_reread):
            committed = self.owned[partition]
            offset = OFFSET_BEGINNING if committed is None else committed.offset
            try:
                self._note_epochs([partition])
                self.consumer.seek(TopicPartition(partition.topic, partition.number, offset))
            except KafkaException as error:
                # The consumer doesn't read the partition now. It stays in `_to_reread`, so its
                # records are dropped until a seek succeeds.
                log.info("%s: %s", partition, error.args[0].str())
            else:
                self._to_reread.discard(partition)
                self.reached.pop(partition, None)

    # Callbacks of the group, within a poll

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Own newly assigned partitions, and notify `Claims`; while closing, only pause them. If
        their commits can't be read, all further reads fail."""
        self.joined = True
        if self.is_closing:
            assign_paused(consumer, partitions)
            return
        try:
            committed = self._committed_topics.start(consumer, partitions, STABLE_TIMEOUT)
        except LogError as error:
            self._refusal = error
            return
        self._add_owned(self._undecided.hold_back_undecided(consumer, committed))

    def _add_owned(self, decided: Sequence[tuple[TopicPartition, LeaderElection]]) -> None:
        """Own the partitions of these commits, which are being read now; notify `Claims`."""
        if not decided:
            return
        self._stalled.begin(start_position_of(entry) for entry, _ in decided)
        commits: dict[Partition, OffsetAndMetadata | None] = {}
        for entry, election in decided:
            partition = Partition(entry.topic, entry.partition)
            self._epochs[partition] = max(epoch_of(entry), election.end_epoch)
            commits[partition] = election.commit_of(entry)
        self.owned.update(commits)
        self._call_claims(self._claims.on_assigned, commits)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget revoked or lost partitions, and notify `Claims` of those that were owned."""
        revoked = [Partition(entry.topic, entry.partition) for entry in partitions]
        if disowned := self.forget_owned(revoked):
            self._call_claims(self._claims.on_revoked, disowned)
        self._undecided.drop(partitions)
        consumer.incremental_unassign(partitions)

    _on_lost = _on_revoke  # the same: this member commits nothing by itself

    def forget_owned(self, partitions: Collection[Partition]) -> list[Partition]:
        """Stop owning these partitions, and drop their records; returns those that were owned."""
        disowned = [partition for partition in partitions if partition in self.owned]
        if paused := self._paused.intersection(disowned):
            # librdkafka would keep them paused if they are assigned again.
            self._set_consumer_paused(paused, paused=False)
            self._paused -= paused
        for partition in disowned:
            del self.owned[partition]
            self._epochs.pop(partition, None)
            self.reached.pop(partition, None)
        self._stalled.drop([TopicPartition(entry.topic, entry.number) for entry in disowned])
        self._returned_since_commit.difference_update(disowned)
        self._to_reread.difference_update(disowned)
        self._revoked.update(disowned)
        self._gathered_records = [
            record for record in self._gathered_records if _partition(record) not in self._revoked
        ]
        return disowned

    def close(self) -> None:
        """Leave the group, and close the clients."""
        self._ids_thread.close()
        self.leave()

    def _call_claims(self, call: Callable[[Any], None], argument: object) -> None:
        """Call a method of `Claims`. An error is kept for `read` to raise: in librdkafka's callback
        it would lose the messages of this poll."""
        try:
            call(argument)
        except BaseException as error:
            self._claims_error = self._claims_error or error


def _partition(record: Message | Record) -> Partition:
    """Return the partition of a record."""
    return Partition(cast(str, record.topic()), cast(int, record.partition()))
