"""A consumer's membership in its group: how it joins, what it owns, and how it leaves.

    joining --assigned--> member --finish--> finishing --last commit--> left
                             \\--revoked: finish, commit--/

It joins by the group protocol of KIP-848 where the broker offers it, else by the classic one
(docs/decisions/0013). All of it is called on the one thread that polls the consumer (0004); what
the group says comes from within such a poll, and waits there for `Assignment` on the event loop.

Not here: records (`kafka_reader`), and how offsets are committed (`kafka_commits`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from enum import StrEnum
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from knafka.clients.kafka_client import READING, Connection, log_error, log_error_of, open_client
from knafka.clients.kafka_commits import AGAIN, MOVING, NO_EPOCH, OffsetCommits, epoch_of
from knafka.core.connection_errors import ConnectionErrors
from knafka.core.errors import LogError
from knafka.observability import RateLimitedFilter
from knafka.ports.log import Assignment, Commits, OffsetAndMetadata

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
REVOKE_TIMEOUT: Final = 30.0
"""Seconds a rebalance waits for the loop at most; `Assignment.revoked` has a bound of its own."""
SERVE: Final = 0.05
"""Seconds of a poll while the last attempts finish."""


class GroupProtocol(StrEnum):
    """How members of a group agree on who reads what; the values are librdkafka's."""

    CONSUMER = "consumer"
    """KIP-848: the broker assigns, and nobody waits for anybody else's rebalance."""
    CLASSIC = "classic"
    """A round of all members for each change: every broker has it."""


_BY_PROTOCOL: Final[Mapping[GroupProtocol, Mapping[str, Any]]] = {
    GroupProtocol.CLASSIC: {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": int(SESSION_TIMEOUT * 1000),
        "heartbeat.interval.ms": int(HEARTBEAT_INTERVAL * 1000),
    },
    # All three are the broker's here, and librdkafka refuses them.
    GroupProtocol.CONSUMER: {"group.protocol": "consumer"},
}


class _UnknownProtocolFilter(logging.Filter):
    """Leaves out that a broker knows the classic protocol only, which is no fault and is mended."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "ConsumerGroupHeartbeat fatal error" not in record.getMessage()


_librdkafka = logging.getLogger("librdkafka.reader")
_librdkafka.addFilter(RateLimitedFilter())
_librdkafka.addFilter(_UnknownProtocolFilter())


class Membership:
    """One consumer in one group, on one topic, with cooperative rebalancing.

    `protocol` is the one to try first: where a broker doesn't offer it, it becomes `CLASSIC`. One
    that doesn't read (`reads`) gets its partitions, without what was committed of them.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        topic: str,
        assignment: Assignment,
        protocol: GroupProtocol,
        reads: bool = True,
    ) -> None:
        self._connection = connection
        self._group = group
        self._topic = topic
        self._assignment = assignment
        self._reads = reads
        self._loop = asyncio.get_running_loop()
        self.protocol = protocol
        self.joined = False
        self.refusal: LogError | None = None
        """Why partitions that were assigned can't be read, whatever is tried."""
        self.owned: dict[int, int] = {}
        """By partition, the leader epoch of what was committed of it."""
        self.reached: dict[int, int] = {}
        """Ends of what is owned that no read has given yet."""
        self.last_commits: Future[Commits] = Future()
        """What to commit last, once `finish` was called."""
        self._finishing: dict[int, int] = {}
        """What is owned by a member that finishes: its last commit isn't made yet."""
        self._is_finishing = self._closed = False
        self._commits = OffsetCommits(topic)
        self._errors = ConnectionErrors()
        self._opened_at = time.monotonic()
        self._heartbeat_at = 0.0
        self.consumer = self._open()
        self._subscribe()

    def _open(self) -> Consumer:
        return open_client(
            Consumer,
            {
                "error_cb": self._on_error,
                "on_commit": self._on_commit,
                "logger": _librdkafka,
                **READING,
                **self._connection,
                **_BY_PROTOCOL[self.protocol],
                "group.id": self._group,
            },
        )

    def _subscribe(self) -> None:
        self._heartbeat_at = time.monotonic() + HEARTBEAT_INTERVAL
        self.consumer.subscribe(
            [self._topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _on_error(self, error: KafkaError) -> None:
        log_error(error)
        self._errors.record(error)

    # While it is a member

    def beat(self) -> None:
        """Send the next heartbeat if it is time to."""
        if self.protocol is GroupProtocol.CONSUMER and time.monotonic() > self._heartbeat_at:
            # The broker wants a heartbeat every 5 s, and so long would a partition that moves lie
            # still. To subscribe again sends one now and changes nothing else.
            self._subscribe()

    def fall_back(self, error: KafkaError) -> None:
        """Join by the classic protocol: the broker knows no other."""
        log.info("the group %s has the classic protocol: %s", self._group, error.str())
        self.consumer.close()
        self.protocol = GroupProtocol.CLASSIC
        self.consumer = self._open()
        self._subscribe()

    def check_hope_of_joining(self) -> None:
        """Raises `LogError` where it isn't a member and there is no hope of becoming one."""
        if self.joined:
            return
        why = self._errors.refusal or ""
        if not why and time.monotonic() - self._opened_at >= JOIN_TIMEOUT:
            why = str(self._errors)
        if why:
            self._errors.mended()  # it may be: the next read says so
            raise LogError(why)

    def start_anew(self, number: int) -> None:
        """The log has no such offset: what is there is read from its start, and to its owner it is
        another partition."""
        if number not in self.owned:
            return
        partition = TopicPartition(self._topic, number)
        self.consumer.incremental_unassign([partition])
        partition.offset = OFFSET_BEGINNING
        self.consumer.incremental_assign([partition])
        self.consumer.resume([partition])
        self._disown([partition])
        self.owned[number] = NO_EPOCH
        self._loop.call_soon_threadsafe(self._assignment.lost, [number])
        self._loop.call_soon_threadsafe(self._assignment.assigned, {number: None})

    def partitions_of(self, numbers: Iterable[int]) -> list[TopicPartition]:
        """For confluent-kafka."""
        return [TopicPartition(self._topic, number) for number in numbers]

    def commit(self, commits: Commits) -> None:
        """Commit what is owned still, without waiting."""
        self._commits.commit(self.consumer, commits, self.owned)

    def repeat_commit(self) -> None:
        """Commit again what failed while the group moved, if it is time to."""
        self._commits.repeat(self.consumer, self.owned)

    def confirm(self, commits: Commits) -> bool:
        """Whether Kafka takes these commits from this member, which shows that it is one still."""
        mine = {number: each for number, each in commits.items() if number in self.owned}
        if not mine:
            return False
        try:
            self._commits.commit_and_wait(self.consumer, mine, self.owned)
        except KafkaException as error:
            log.info("the group %s: not confirmed: %s", self._group, error.args[0].str())
            return False
        return True

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._commits.reported(error, partitions, self.owned)

    # Leaving

    def finish(self, timeout: float) -> None:
        """Read no more; `last_commits` will be known within so many seconds."""
        self._is_finishing = True
        self._finishing, self.owned = self.owned, {}
        numbers = sorted(self._finishing)
        if not numbers:
            self.last_commits.set_result({})
            return
        self.consumer.pause(self.partitions_of(numbers))
        self.last_commits = asyncio.run_coroutine_threadsafe(
            self._ask_last_commits(numbers, timeout), self._loop
        )

    async def _ask_last_commits(self, numbers: Sequence[int], timeout: float) -> Commits:
        try:
            async with asyncio.timeout(timeout):
                return await self._assignment.revoked(numbers)
        except TimeoutError:
            log.warning("the last attempts of %s take longer than there is time", self._topic)
            return {}

    def serve(self) -> None:
        """Poll for the group's sake: nothing is read any more."""
        self.beat()
        self.consumer.poll(SERVE)

    def commit_last(self, deadline: float) -> bool:
        """Make the last commit of what is still ours; False: the group moves, try it again."""
        commits = self.last_commits.result()
        mine = {number: each for number, each in commits.items() if number in self._finishing}
        try:
            if mine:
                self._commits.commit_and_wait(self.consumer, mine, self._finishing)
            elif self.protocol is GroupProtocol.CLASSIC and self.consumer.memberid():
                # Behind a JoinGroup that waits for others, librdkafka gives the leave up after 5 s:
                # any answer on that connection says that there is none.
                self.consumer.committed(
                    self.partitions_of([0]), max(0.1, deadline - time.monotonic())
                )
        except KafkaException as error:
            if error.args[0].code() in MOVING:
                return False
            _log_failed_commit(error)
        self._finishing.clear()
        return True

    def close(self) -> None:
        """Leave the group, with whatever is committed; where that was done, do nothing."""
        if not self._closed:
            self._closed = True
            self.consumer.close()

    # What the group says, from within a poll

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.joined = True
        if self._is_finishing:
            self._take_without_reading(consumer, partitions)
            return
        if not self._reads:
            self._take_without_reading(consumer, partitions)
            self.owned.update({each.partition: NO_EPOCH for each in partitions})
            unasked = dict.fromkeys(each.partition for each in partitions)
            self._loop.call_soon_threadsafe(self._assignment.assigned, unasked)
            return
        try:
            committed = self._committed(consumer, partitions) if partitions else []
        except LogError as error:
            # Without their metadata they must not be read: what it says would be lost.
            self.refusal = error
            self._take_without_reading(consumer, partitions)
            return
        consumer.incremental_assign(
            [
                TopicPartition(self._topic, each.partition, each.offset, "", epoch_of(each))
                if each.offset >= 0
                else TopicPartition(self._topic, each.partition, OFFSET_BEGINNING)
                for each in committed
            ]
        )
        # librdkafka remembers a pause beyond a revoke; to its next owner a partition is new.
        consumer.resume(partitions)
        found: dict[int, OffsetAndMetadata | None] = {}
        for each in committed:
            self.owned[each.partition] = epoch_of(each)
            found[each.partition] = (
                OffsetAndMetadata(each.offset, each.metadata or "") if each.offset >= 0 else None
            )
        self._loop.call_soon_threadsafe(self._assignment.assigned, found)

    def _take_without_reading(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Until the member leaves."""
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
                self._commits.commit_revoked(consumer, commits, {**self.owned, **self._finishing})
        except (KafkaException, TimeoutError, CancelledError) as error:
            _log_failed_commit(error)
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
            last = self.last_commits.result(REVOKE_TIMEOUT)
            commits |= {number: each for number, each in last.items() if number in finishing}
        return commits

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._finishing.pop(each.partition, None)
        self._loop.call_soon_threadsafe(self._assignment.lost, self._disown(partitions))
        consumer.incremental_unassign(partitions)

    def _disown(self, partitions: list[TopicPartition]) -> list[int]:
        """Those that were ours; others were never told of."""
        numbers = [each.partition for each in partitions if each.partition in self.owned]
        for number in numbers:
            del self.owned[number]
            self.reached.pop(number, None)
            self._commits.forget(number)
        return numbers


def _log_failed_commit(error: Exception) -> None:
    # The group goes back to its last commit: duplicates, no loss.
    log.warning("the last commit of a revoked partition failed: %r", error)
