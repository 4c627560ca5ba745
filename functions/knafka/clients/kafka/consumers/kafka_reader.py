"""The reader on real Kafka: confluent-kafka's consumer behind `ports.log.LogReader`.

If a reader has several topics, their partitions are numbered in one sequence (`numbering`).

The consumer's poll blocks, so it has a thread of its own (docs/decisions/0004). Not here: joining,
owning partitions and leaving (`kafka_membership`), and configuration (`kafka_client.Connection`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, cast

from confluent_kafka import KafkaError, KafkaException, Message

from knafka.clients.kafka.call_thread import CallThread
from knafka.clients.kafka.consumers.kafka_committed_topics import OF_ANOTHER_TOPIC, CommittedTopics
from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.consumers.kafka_membership import Membership
from knafka.clients.kafka.consumers.kafka_replaced_topics import ReplacedTopics, TopicIds
from knafka.clients.kafka.kafka_acls import name_missing_right
from knafka.clients.kafka.kafka_client import (
    LOST_OFFSET_ERRORS,
    TRANSIENT_ERRORS,
    Connection,
    log_error_of,
    raising_log_errors,
)
from knafka.core.errors import LogError
from knafka.core.numbering import Numbering
from knafka.ports.log import Assignment, Commits, Positions, Record

log = logging.getLogger(__name__)

LEAVE_TIME: Final = 2.0
"""Seconds of the timeout of `close` that are kept for the last commit and for leaving, or a quarter
of the timeout if that is less."""
REPLACEMENT_TIME: Final = 60.0
"""Seconds after a topic's replacement in which a newly assigned partition may have a commit of the
former topic: other members notice the replacement within `TOPIC_ID_INTERVAL`, and a member that has
died loses its partitions after a session, usually 45 s."""


class KafkaReader:
    """`LogReader` on one consumer.

    Only the reader's own thread calls the consumer. A call from the event loop's thread would wait
    for the poll under way, and a rebalance within that poll waits for the event loop
    (docs/decisions/0004).
    """

    pause_is_free: Final = False
    """False, as a pause discards the records that were prefetched, which are then fetched again."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        topics: str | Sequence[str],
        assignment: Assignment,
        protocol: GroupProtocol = GroupProtocol.CONSUMER,
        *,
        reads: bool = True,
        may_repeat: bool = True,
    ) -> None:
        """Open the consumer and its thread, and subscribe to the topics. `reads`: True to read
        records, False to only join the group. `may_repeat`: True if events may be delivered twice.
        Then a replaced topic is read from its start, and a commit's metadata are ignored if an
        election may have taken away the records that they describe. Raises `LogError`."""
        self._numbering = Numbering([topics] if isinstance(topics, str) else topics)
        self._topic, self._group = ", ".join(self._numbering.topics), group  # for messages
        self._thread = CallThread(asyncio.get_running_loop(), "kafka-reader")
        self.ends: Positions = {}
        """Partitions whose end the last read has reached, with the offset of the end."""
        compares_ids = reads and may_repeat
        self._replaced = ReplacedTopics(
            TopicIds(connection), self._numbering.topics if compares_ids else ()
        )
        # Used only on the thread:
        self._committed_topics = CommittedTopics(self._replaced if compares_ids else None)
        member_arguments = connection, group, self._numbering, assignment, protocol
        self._membership = Membership(
            *member_arguments, self._committed_topics, reads=reads, trusts_metadata=not may_repeat
        )
        self._replaced_until: dict[str, float] = {}
        """By replaced topic, the monotonic time until which its newly assigned partitions are read
        from their start."""
        self._failure: LogError | None = None
        """The error that the next read raises, once; None: there is none."""
        self._fatal_error: LogError | None = None
        """The error that every read raises from now on; None: there is none."""

    @property
    def protocol(self) -> GroupProtocol:
        """The group protocol by which the consumer joins, or has joined."""
        return self._membership.protocol

    # Reading

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return up to `limit` records, waiting up to `timeout` seconds for the first. Raises
        `LogError`."""
        records: list[Record]
        self._replaced.start()
        records, self.ends = await self._thread.call(partial(self._read, limit, timeout))
        return records

    def _read(self, limit: int, timeout: float) -> tuple[list[Record], Positions]:
        """Read up to `limit` records on the consumer's thread, waiting up to `timeout` seconds for
        the first; returns records and ends. Raises `LogError`."""
        with raising_log_errors():
            return self._read_messages(limit, timeout)

    def _read_messages(self, limit: int, timeout: float) -> tuple[list[Record], Positions]:
        """Poll up to `limit` messages once, waiting up to `timeout` seconds for the first, and
        react to errors, lost logs and replaced topics. Returns the records, and by partition the
        ends that were reached. Raises `LogError` and `KafkaException`."""
        membership = self._membership
        membership.send_due_heartbeat()
        membership.repeat_commit()
        for topic in self._replaced.pop():
            log.warning("%s was deleted and created again: it is read from its start", topic)
            membership.restart_topic(topic)
            self._replaced_until[topic] = time.monotonic() + REPLACEMENT_TIME
        self._restart_partitions_of_another_topic()
        records: list[Record] = []
        messages = self._poll_messages(limit, timeout) if self._pending_failure is None else []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(cast(Record, message))
            elif error.code() in LOST_OFFSET_ERRORS:
                number = self._restart_partition(message)
                # Earlier records of this batch are from a log that is gone.
                records = [record for record in records if self.number_of(record) != number]
            elif not self._note_end(message):
                self._react_to_error(error)
        if self._replaced_until and (restarted := self._restart_newly_assigned()):
            # These partitions are read again: drop what this batch has of them.
            records = [record for record in records if self.number_of(record) not in restarted]
        # Without this check, a consumer that Kafka refuses would look as if it had nothing to read.
        membership.check(heard=bool(records or membership.reached))
        if len(messages) < limit and self._pending_failure is None:  # no more messages wait
            membership.rejoin_if_stalled()
        failure = self._pending_failure
        if failure is not None and not records:
            self._failure = None
            raise failure
        # Records that came before the error are returned first, as the consumer's position is
        # beyond them.
        ends, membership.reached = membership.reached, {}
        if ends:
            # Records may have come after an end was reported: then that end is outdated.
            last_offsets = {self.number_of(record): record.offset() for record in records}
            ends = {
                number: end for number, end in ends.items() if end > last_offsets.get(number, -1)
            }
        return records, ends

    def _restart_partitions_of_another_topic(self) -> None:
        """Read partitions from their start if they began at commits that turn out to be of another
        topic."""
        for topic, partition in self._committed_topics.pop_partitions_of_another_topic():
            number = self._numbering.number(topic, partition)
            if self._membership.restart_partition(number) is not None:
                log.warning(OF_ANOTHER_TOPIC, partition, topic)

    def _restart_newly_assigned(self) -> Collection[int]:
        """Read newly assigned partitions of lately replaced topics (`_replaced_until`) from their
        start, as their commits may be of the former topic. Returns the partitions' numbers."""
        now = time.monotonic()
        self._replaced_until = {
            topic: until for topic, until in self._replaced_until.items() if until > now
        }
        return self._membership.restart_assigned(self._replaced_until)

    def number_of(self, record: Record) -> int:
        """Return the number of a record's partition (`Numbering`); with a single topic, this is
        Kafka's number of the partition."""
        return self._numbering.number(record.topic(), record.partition())

    @property
    def _pending_failure(self) -> LogError | None:
        """The error that the next read raises unless it has records; None: there is none."""
        return self._failure or self._fatal_error or self._membership.refusal

    def _react_to_error(self, error: KafkaError) -> None:
        """React to the error of a poll: fall back to the classic protocol, let later reads raise
        the error, or ignore an error that passes by itself."""
        if error.code() == KafkaError._FATAL:
            if self._membership.joined or self.protocol is GroupProtocol.CLASSIC:
                self._fatal_error = log_error_of(error)
            else:
                self._membership.fall_back_to_classic(error)
        elif not error.retriable() and error.code() not in TRANSIENT_ERRORS:
            topic, group = ("Read", self._topic), ("Read", self._group)
            self._failure = name_missing_right(log_error_of(error), topic=topic, group=group)

    def _restart_partition(self, message: Message) -> int:
        """Read a partition from where its log was cut, or from its start: `message` reports that
        the log no longer has the consumer's offset. Returns the partition's number."""
        number = self.number_of(cast(Record, message))
        offset = self._membership.restart_partition(number, message)
        if offset is not None:
            if offset < 0:
                # If the topic was replaced, its other partitions are restarted once that is known.
                self._replaced.hasten()
            log.warning(
                "partition %s of %s is another log than before, and is read from %s: %s",
                message.partition(), message.topic(),
                "its start" if offset < 0 else f"offset {offset}", message.error(),
            )  # fmt: skip
        return number

    def _poll_messages(self, limit: int, timeout: float) -> list[Message]:
        """Return up to `limit` messages, waiting up to `timeout` seconds for the first. Reports of
        partitions' ends that arrive before the first are noted (`_note_end`), not returned."""
        # `consume` alone would wait for the whole batch, but a read should return once there is a
        # record. The end of a partition doesn't end a read, as it is reported again after each
        # record that comes alone.
        consumer = self._membership.consumer
        deadline = time.monotonic() + timeout
        while (first_message := consumer.poll(timeout)) is not None and self._note_end(
            first_message
        ):
            timeout = max(0.0, deadline - time.monotonic())
        if first_message is None:
            return []
        return [first_message, *consumer.consume(limit - 1, 0)] if limit > 1 else [first_message]

    def _note_end(self, message: Message) -> bool:
        """If the message reports the end of a partition, note the end in `Membership.reached`, and
        return True; return False for any other message."""
        error, number, offset = message.error(), message.partition(), message.offset()
        if error is None or error.code() != KafkaError._PARTITION_EOF:
            return False
        if number is not None and offset is not None:
            self._membership.reached[self.number_of(cast(Record, message))] = offset
            self._membership.stalled.note_end(message)
        return True

    def pause(self, partitions: Sequence[int]) -> None:
        """Read no records of these partitions until `resume`; if that fails, the next read raises
        the error."""
        self._thread.call(partial(self._pause_or_resume, Membership.pause, partitions))

    def resume(self, partitions: Sequence[int]) -> None:
        """Read records of these partitions again; if that fails, the next read raises the error."""
        self._thread.call(partial(self._pause_or_resume, Membership.resume, partitions))

    def _pause_or_resume(
        self,
        change: Callable[[Membership, Iterable[int]], None],
        partitions: Sequence[int],
    ) -> None:
        """Call `change` (`Membership.pause` or `resume`) for the partitions, without those that
        aren't owned (any more); called on the consumer's thread."""
        membership = self._membership
        owned = membership.owned.keys() & set(partitions)
        try:
            change(membership, owned)
        except KafkaException as error:
            self._failure = log_error_of(error.args[0])  # the next read raises it

    def commit(self, commits: Commits) -> None:
        """Commit these offsets, without waiting for Kafka. Offsets of partitions that are no longer
        owned, or were restarted meanwhile, are dropped."""
        membership = self._membership
        self._thread.call(partial(membership.commit, commits, membership.known_restarts))

    async def commit_now(self, commits: Commits) -> None:
        """Commit these offsets and return when Kafka has confirmed all. Raises `LogError`, also if
        a partition isn't owned, or was restarted meanwhile."""
        membership = self._membership
        await self._thread.call(partial(membership.commit_now, commits, membership.known_restarts))

    # Closing

    async def close(self, timeout: float) -> None:
        """Make the last commits and leave the group, within `timeout` seconds. If that takes
        longer, which is logged, the consumer is closed without waiting."""
        leaving = asyncio.create_task(self._leave(timeout))
        try:
            await asyncio.wait({leaving}, timeout=timeout)
            if leaving.done():
                leaving.result()
            else:
                # The member's session will expire, and events that were delivered since the last
                # commit are repeated.
                log.warning("the reader of %s could not leave its group in time", self._topic)
        finally:
            leaving.cancel()
            self._membership.last_commits.cancel()
            self._thread.call(self._membership.close)
            self._thread.end()
            await self._replaced.close()

    async def _leave(self, timeout: float) -> None:
        """Commit for the last time and leave the group, within `timeout` seconds.

        The consumer goes on polling until the last commit is made: a rebalance would wait for it,
        and the commit would fail if the consumer missed a rebalance.
        """
        membership, thread = self._membership, self._thread
        deadline = time.monotonic() + timeout
        leave_time = min(LEAVE_TIME, timeout / 4)
        await thread.call(partial(membership.finish, timeout - leave_time))
        while not membership.last_commits.done():
            await thread.call(membership.serve)
        has_committed = False
        while not has_committed and time.monotonic() < deadline:
            await thread.call(membership.serve)
            has_committed = await thread.call(partial(membership.commit_last, deadline))
        await thread.call(membership.close)
