"""The reader on real Kafka: confluent-kafka's consumer behind `log.LogReader`.

    joining --assigned--> reading --close--> finishing --last commit--> left
                             \\--revoked: finish, commit--/

The consumer's poll blocks and so has a thread of its own (docs/decisions/0004). It joins by the
group protocol of KIP-848 where the broker offers it, else by the classic one (0013).

Refused here: any decision about an event. Configuration comes in as `Connection`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any, Final, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from knafka.clients.call_thread import CallThread
from knafka.clients.kafka_client import (
    PASSING,
    Connection,
    log_error,
    log_error_of,
    open_client,
)
from knafka.core.connection_errors import ConnectionErrors
from knafka.core.errors import LogError
from knafka.observability import RateLimitedFilter
from knafka.ports.log import Assignment, Commits, OffsetAndMetadata, Positions, Record

log = logging.getLogger(__name__)

SESSION_TIMEOUT: Final = 10.0
"""Seconds until a killed member's partitions go to others, with the classic protocol; the peer's
value. With the new one it is the broker's to say (`group.consumer.session.timeout.ms`)."""
HEARTBEAT_INTERVAL: Final = 1.0
"""Seconds between heartbeats: by one of them a member learns of partitions that come and go, so
this is how long a partition lies still when it moves."""
JOIN_TIMEOUT: Final = 10.0
"""Seconds to join a group in spite of connections that fail: a broker's restart."""
COMMITTED_TIMEOUT: Final = 15.0
"""Seconds to ask what is committed of new partitions, in which a coordinator may move."""
COMMITTED_ONCE: Final = 5.0
"""Seconds for one such question: an answer may be lost."""
AGAIN: Final = 0.1
"""Seconds before a question or a commit is repeated."""
REVOKE_TIMEOUT: Final = 30.0
"""Seconds a rebalance waits for the loop at most; `Assignment.revoked` has a bound of its own."""
COMMIT_TIMEOUT: Final = 5.0
"""Seconds in which the commit of a revoked partition is repeated while the group moves."""
LEAVE_TIME: Final = 2.0
"""Seconds of a close that are kept for the last commit and for leaving; at most a quarter of it."""
SERVE: Final = 0.05
"""Seconds of a poll while the last attempts finish."""

NO_EPOCH: Final = -1
"""The leader epoch that nothing is known of."""

_MOVING: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    }
)
"""Why a commit fails that succeeds a moment later."""
_RESET: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION})
"""The log has no such offset: it was made anew, or has lost its end."""


class GroupProtocol(StrEnum):
    """How members of a group agree on who reads what; the values are librdkafka's."""

    CONSUMER = "consumer"
    """KIP-848: the broker assigns, and nobody waits for anybody else's rebalance."""
    CLASSIC = "classic"
    """A round of all members for each change: every broker has it."""


_CONFIGURATION: Final[Mapping[GroupProtocol, Mapping[str, Any]]] = {
    GroupProtocol.CLASSIC: {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": int(SESSION_TIMEOUT * 1000),
        "heartbeat.interval.ms": int(HEARTBEAT_INTERVAL * 1000),
    },
    # All three are the broker's here, and librdkafka refuses them.
    GroupProtocol.CONSUMER: {"group.protocol": "consumer"},
}


class _Refusal(logging.Filter):
    """Leaves out that a broker knows the classic protocol only, which is no fault and is mended."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "ConsumerGroupHeartbeat fatal error" not in record.getMessage()


_librdkafka = logging.getLogger("librdkafka.reader")
_librdkafka.addFilter(RateLimitedFilter())
_librdkafka.addFilter(_Refusal())


class KafkaReader:
    """`LogReader` on a consumer with cooperative rebalancing.

    Only its thread asks the consumer anything: whoever else does waits until a poll under way ends,
    a rebalance in it included, and that waits for the loop (docs/decisions/0004). `protocol` is
    the one to try first: what a broker doesn't offer becomes `CLASSIC`.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        topic: str,
        assignment: Assignment,
        protocol: GroupProtocol = GroupProtocol.CONSUMER,
    ) -> None:
        self._connection = connection
        self._group = group
        self._topic = topic
        self._assignment = assignment
        self._loop = asyncio.get_running_loop()
        self._thread = CallThread(self._loop, "kafka-reader")
        self._failure: LogError | None = None
        self._broken: LogError | None = None
        """What no further read mends: raised by every one."""
        self._errors = ConnectionErrors()
        self._opened = time.monotonic()
        self.ends: Positions = {}
        # The thread's, like all that the consumer is asked:
        self._joined = False
        self._owned: dict[int, int] = {}
        """By partition, the leader epoch of what was committed of it."""
        self._reached: dict[int, int] = {}
        """Ends that no read has given yet."""
        self._closing = self._closed = False
        self._finishing: dict[int, int] = {}
        """What is owned by a reader that closes: its last commit isn't made yet."""
        self._finished: Future[Commits] = Future()
        """That last commit."""
        self._heartbeat_at = 0.0
        self._commit_again: dict[int, OffsetAndMetadata] = {}
        """What couldn't be committed while the group moved."""
        self._commit_again_at = 0.0
        self._committing: dict[int, OffsetAndMetadata] = {}
        """What was committed last of each partition."""
        self.protocol = protocol
        self._consumer = self._open()
        self._subscribe()

    def _open(self) -> Consumer:
        return open_client(
            Consumer,
            {
                "error_cb": self._on_error,
                "on_commit": self._on_commit,
                "logger": _librdkafka,
                **self._connection,
                **_CONFIGURATION[self.protocol],
                "group.id": self._group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # Where to begin is said with each assignment; an offset that isn't there is told.
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
            },
        )

    def _subscribe(self) -> None:
        self._heartbeat_at = time.monotonic() + HEARTBEAT_INTERVAL
        self._consumer.subscribe(
            [self._topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _on_error(self, error: KafkaError) -> None:
        log_error(error)
        self._errors.record(error)

    # Reading

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        records: list[Record]
        records, self.ends = await self._thread.call(partial(self._read, limit, timeout))
        return records

    def _read(self, limit: int, timeout: float) -> tuple[list[Record], Positions]:
        if self.protocol is GroupProtocol.CONSUMER and time.monotonic() > self._heartbeat_at:
            # The broker wants a heartbeat every 5 s, and so long would a partition that moves lie
            # still. To subscribe again sends one now and changes nothing else.
            self._subscribe()
        if self._commit_again and time.monotonic() > self._commit_again_at:
            self._commit(self._commit_again)
        records: list[Record] = []
        failed = self._failure or self._broken
        for message in self._batch(limit, timeout) if failed is None else ():
            error = message.error()
            if error is None:
                records.append(cast(Record, message))
            elif error.code() in _RESET:
                number = self._start_anew(message)
                # What came before it in this batch is of a log that is gone.
                records = [each for each in records if each.partition() != number]
            elif not self._is_end(message):
                self._judge(error)
        if not self._joined and (why := self._why_not()):
            self._errors.forget()
            raise LogError(why)  # or to be refused would look like having nothing to do
        failure = self._failure or self._broken
        if failure is not None and not records:
            self._failure = None
            raise failure
        # What was read before it failed comes first: the position is beyond it already.
        ends, self._reached = self._reached, {}
        return records, ends

    def _judge(self, error: KafkaError) -> None:
        """What an error that a poll returned means for the reads to come."""
        if error.code() == KafkaError._FATAL:
            if self._joined or self.protocol is GroupProtocol.CLASSIC:
                self._broken = log_error_of(error)
            else:
                self._fall_back(error)
        elif not error.retriable() and error.code() not in PASSING:
            self._failure = log_error_of(error)

    def _fall_back(self, error: KafkaError) -> None:
        """Join by the classic protocol: the broker knows no other."""
        log.info("the group %s has the classic protocol: %s", self._group, error.str())
        self._consumer.close()
        self.protocol = GroupProtocol.CLASSIC
        self._consumer = self._open()
        self._subscribe()

    def _start_anew(self, message: Message) -> int:
        """A partition has no such offset: what is there is read from its start, and to its owner
        it is another partition."""
        number = cast(int, message.partition())
        log.warning(
            "partition %d of %s has no offset %s any more and is read from its start: %s",
            number, self._topic, message.offset(), message.error(),
        )  # fmt: skip
        if number in self._owned:
            partition = TopicPartition(self._topic, number)
            self._consumer.incremental_unassign([partition])
            partition.offset = OFFSET_BEGINNING
            self._consumer.incremental_assign([partition])
            self._consumer.resume([partition])
            self._disown([partition])
            self._owned[number] = NO_EPOCH
            self._loop.call_soon_threadsafe(self._assignment.lost, [number])
            self._loop.call_soon_threadsafe(self._assignment.assigned, {number: None})
        return number

    def _why_not(self) -> str:
        """Why there is no hope of joining, empty while there is some."""
        refusal = self._errors.refusal
        if refusal or time.monotonic() - self._opened < JOIN_TIMEOUT:
            return refusal or ""
        return str(self._errors)

    def _batch(self, limit: int, timeout: float) -> list[Message]:
        # consume() alone would wait for the whole batch; the first record alone is worth a return.
        # An end alone isn't: each partition has one after each record that comes alone.
        deadline = time.monotonic() + timeout
        while (first := self._consumer.poll(timeout)) is not None and self._is_end(first):
            timeout = max(0.0, deadline - time.monotonic())
        if first is None:
            return []
        return [first, *self._consumer.consume(limit - 1, 0)] if limit > 1 else [first]

    def _is_end(self, message: Message) -> bool:
        """Whether it is no record but says that a partition's end was reached; notes where."""
        error, number, offset = message.error(), message.partition(), message.offset()
        if error is None or error.code() != KafkaError._PARTITION_EOF:
            return False
        if number is not None and offset is not None:
            self._reached[number] = offset
        return True

    def pause(self, partitions: Sequence[int]) -> None:
        self._thread.call(partial(self._switch, Consumer.pause, partitions))

    def resume(self, partitions: Sequence[int]) -> None:
        self._thread.call(partial(self._switch, Consumer.resume, partitions))

    def _switch(
        self, how: Callable[[Consumer, list[TopicPartition]], None], partitions: Sequence[int]
    ) -> None:
        try:
            how(self._consumer, self._partitions(self._owned.keys() & set(partitions)))
        except KafkaException as error:
            self._failure = log_error_of(error.args[0])  # the next read tells

    def _partitions(self, numbers: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, number) for number in numbers]

    # Commits

    def commit(self, commits: Commits) -> None:
        self._thread.call(partial(self._commit, commits))

    def _commit(self, commits: Commits) -> None:
        owned = {number: each for number, each in commits.items() if number in self._owned}
        self._commit_again = {
            number: each for number, each in self._commit_again.items() if number not in commits
        }
        if owned:
            self._committing.update(owned)
            with suppress(KafkaException):
                self._consumer.commit(offsets=self._offsets(owned), asynchronous=True)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """What a commit without waiting came to; called from within a poll."""
        for each in partitions:
            why = each.error or error
            last = self._committing.get(each.partition)
            if (
                why is not None
                and why.code() in _MOVING
                and each.partition in self._owned
                and last is not None
                and last.offset == each.offset
            ):
                self._commit_again[each.partition] = last
                self._commit_again_at = time.monotonic() + AGAIN

    def _commit_last(self, commits: Commits) -> None:
        """Raises `KafkaException` if they can't be committed."""
        for each in self._consumer.commit(offsets=self._offsets(commits), asynchronous=False) or ():
            if each.error is not None:
                raise KafkaException(each.error)

    def _offsets(self, commits: Commits) -> list[TopicPartition]:
        """With the leader epoch of the last record read, by which a reader that goes on there
        notices that the log has lost it. It may be a later one than the record's at that offset:
        too low a one would be taken for a loss."""
        epochs = {**self._owned, **self._finishing}
        for each in self._consumer.position(self._partitions(commits)):
            if (epoch := _epoch_of(each)) != NO_EPOCH:
                epochs[each.partition] = epoch
        return [
            TopicPartition(
                self._topic, number, each.offset, each.metadata, epochs.get(number, NO_EPOCH)
            )
            for number, each in commits.items()
        ]

    # Closing

    async def close(self, timeout: float) -> None:
        leaving = asyncio.create_task(self._leave(timeout))
        try:
            await asyncio.wait({leaving}, timeout=timeout)
            if leaving.done():
                leaving.result()
            else:
                # Its session will run out; what it delivered since the last commit is repeated.
                log.warning("Kafka did not let go of the reader of %s within a bound", self._topic)
        finally:
            leaving.cancel()
            self._finished.cancel()
            self._thread.call(self._close)
            self._thread.end()

    async def _leave(self, timeout: float) -> None:
        """Stay a member that answers while the last attempts finish: whoever else joins or leaves
        meanwhile waits for it, and its last commit fails behind a rebalance that it missed."""
        deadline = time.monotonic() + timeout
        spare = min(LEAVE_TIME, timeout / 4)
        await self._thread.call(partial(self._stop_reading, timeout - spare))
        while not self._finished.done():
            await self._thread.call(self._serve)
        left = False
        while not left and time.monotonic() < deadline:
            await self._thread.call(self._serve)
            left = await self._thread.call(partial(self._finish, deadline))
        await self._thread.call(self._close)

    def _stop_reading(self, timeout: float) -> None:
        self._closing = True
        self._finishing, self._owned = self._owned, {}
        numbers = sorted(self._finishing)
        if not numbers:
            self._finished.set_result({})
            return
        self._consumer.pause(self._partitions(numbers))
        self._finished = asyncio.run_coroutine_threadsafe(
            self._last_commits(numbers, timeout), self._loop
        )

    async def _last_commits(self, numbers: Sequence[int], timeout: float) -> Commits:
        try:
            async with asyncio.timeout(timeout):
                return await self._assignment.revoked(numbers)
        except TimeoutError:
            log.warning("the last attempts of %s take longer than there is time", self._topic)
            return {}

    def _serve(self) -> None:
        """Poll for the group's sake: nothing is read any more."""
        if self.protocol is GroupProtocol.CONSUMER and time.monotonic() > self._heartbeat_at:
            self._subscribe()
        self._consumer.poll(SERVE)

    def _finish(self, deadline: float) -> bool:
        """Make the last commit of what is still ours; False: the group moves, try it again."""
        commits = self._finished.result()
        mine = {number: each for number, each in commits.items() if number in self._finishing}
        try:
            if mine:
                self._commit_last(mine)
            elif self.protocol is GroupProtocol.CLASSIC and self._consumer.memberid():
                # Behind a JoinGroup that waits for others, librdkafka gives the leave up after 5 s:
                # any answer on that connection says that there is none.
                self._consumer.committed(
                    self._partitions([0]), max(0.1, deadline - time.monotonic())
                )
        except KafkaException as error:
            if error.args[0].code() in _MOVING:
                return False
            self._tell_failed_commit(error)
        self._finishing.clear()
        return True

    def _close(self) -> None:
        """Leave the group, with whatever is committed; where that was done, do nothing."""
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def _tell_failed_commit(self, error: Exception) -> None:
        # The group goes back to its last commit: duplicates, no loss.
        log.warning("the last commit of a revoked partition failed: %r", error)

    # What the group says, from within a poll

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._joined = True
        if self._closing:
            self._refuse(consumer, partitions)
            return
        try:
            committed = self._committed(consumer, partitions) if partitions else []
        except LogError as error:
            # Without their metadata they must not be read: what it says would be lost.
            self._broken = error
            self._refuse(consumer, partitions)
            return
        consumer.incremental_assign(
            [
                TopicPartition(self._topic, each.partition, each.offset, "", _epoch_of(each))
                if each.offset >= 0
                else TopicPartition(self._topic, each.partition, OFFSET_BEGINNING)
                for each in committed
            ]
        )
        # librdkafka remembers a pause beyond a revoke; to its next owner a partition is new.
        consumer.resume(partitions)
        found: dict[int, OffsetAndMetadata | None] = {}
        for each in committed:
            self._owned[each.partition] = _epoch_of(each)
            found[each.partition] = (
                OffsetAndMetadata(each.offset, each.metadata or "") if each.offset >= 0 else None
            )
        self._loop.call_soon_threadsafe(self._assignment.assigned, found)

    def _refuse(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Take partitions without reading them, until the reader is closed."""
        consumer.incremental_assign(
            [TopicPartition(self._topic, each.partition, OFFSET_BEGINNING) for each in partitions]
        )
        consumer.pause(partitions)

    def _committed(
        self, consumer: Consumer, partitions: list[TopicPartition]
    ) -> list[TopicPartition]:
        """What the group has committed of each. librdkafka would ask, too, but keep the metadata
        to itself."""
        deadline = time.monotonic() + COMMITTED_TIMEOUT
        while True:
            try:
                found = consumer.committed(partitions, timeout=COMMITTED_ONCE)
                for each in found:
                    if each.error is not None:
                        raise KafkaException(each.error)
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise log_error_of(error.args[0]) from error
                time.sleep(AGAIN)
            else:
                return found

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        finishing = {each.partition for each in partitions} & self._finishing.keys()
        numbers = self._disown(partitions)
        try:
            commits = self._last_of(numbers, finishing)
            if commits:
                self._commit_revoked(commits)
        except (KafkaException, TimeoutError, CancelledError) as error:
            self._tell_failed_commit(error)
        finally:
            for number in finishing:
                del self._finishing[number]
            consumer.incremental_unassign(partitions)

    def _last_of(self, numbers: Sequence[int], finishing: Collection[int]) -> Commits:
        """What to commit of partitions that go, once their attempts have finished."""
        commits: dict[int, OffsetAndMetadata] = {}
        if numbers:
            revoked: Any = self._assignment.revoked(numbers)
            commits |= asyncio.run_coroutine_threadsafe(revoked, self._loop).result(REVOKE_TIMEOUT)
        if finishing:
            last = self._finished.result(REVOKE_TIMEOUT)
            commits |= {number: each for number, each in last.items() if number in finishing}
        return commits

    def _commit_revoked(self, commits: Commits) -> None:
        deadline = time.monotonic() + COMMIT_TIMEOUT
        while True:
            try:
                self._commit_last(commits)
            except KafkaException as error:
                if error.args[0].code() not in _MOVING or time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN)
            else:
                return

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._finishing.pop(each.partition, None)
        self._loop.call_soon_threadsafe(self._assignment.lost, self._disown(partitions))
        consumer.incremental_unassign(partitions)

    def _disown(self, partitions: list[TopicPartition]) -> list[int]:
        """Those that were ours; others were never told of."""
        numbers = [each.partition for each in partitions if each.partition in self._owned]
        for number in numbers:
            del self._owned[number]
            self._reached.pop(number, None)
            self._committing.pop(number, None)
            self._commit_again.pop(number, None)
        return numbers


def _epoch_of(partition: TopicPartition) -> int:
    return NO_EPOCH if partition.leader_epoch is None else partition.leader_epoch
