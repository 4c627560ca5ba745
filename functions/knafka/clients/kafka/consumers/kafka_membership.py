"""A consumer's membership in its group: how it joins, what it owns, and how it leaves.

    joining --assigned--> member --finish--> finishing --last commit--> left
                             \\--revoked: finish, commit--/

All of it is called on the one thread that polls the consumer (docs/decisions/0004); what the group
says comes from within such a poll, and waits there for `Assignment` on the event loop.

Not here: how it joins (`kafka_group_consumer`), records (`kafka_reader`), and how offsets are
committed (`kafka_commits`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from knafka.clients.kafka.consumers.kafka_group_consumer import (
    COMMITTED_TIMEOUT,
    GroupConsumer,
    GroupProtocol,
    begin_at,
    committed_of,
    take_without_reading,
)
from knafka.clients.kafka.kafka_client import Connection, log_error_of
from knafka.clients.kafka.kafka_commits import MOVING, NO_EPOCH, OffsetCommits, epoch_of, partition
from knafka.core.errors import LogError
from knafka.core.numbering import Numbering
from knafka.ports.log import Assignment, Commits, OffsetAndMetadata

log = logging.getLogger(__name__)

REVOKE_TIMEOUT: Final = 30.0
"""Seconds a rebalance waits for the loop at most; `Assignment.revoked` has a bound of its own."""
SERVE: Final = 0.05
"""Seconds of a poll while the last attempts finish."""


class Membership(GroupConsumer):
    """A `GroupConsumer` on the topics of a `Numbering`, by which it knows their partitions. One
    that doesn't read (`reads`) gets its partitions, without what was committed of them."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        numbering: Numbering,
        assignment: Assignment,
        protocol: GroupProtocol,
        reads: bool = True,
    ) -> None:
        self._numbering = numbering
        self._assignment = assignment
        self._reads = reads
        self._loop = asyncio.get_running_loop()
        self.refusal: LogError | None = None
        """Why partitions that were assigned can't be read, whatever is tried."""
        self.owned: dict[int, int] = {}
        """Leader epoch of the last commit, by owned partition."""
        self.reached: dict[int, int] = {}
        """Ends of what is owned that no read has given yet."""
        self.last_commits: Future[Commits] = Future()
        """The last commits to make, once `finish` was called."""
        self._finishing: dict[int, int] = {}
        """Partitions of a member that is finishing, whose last commits aren't made yet."""
        self._is_finishing = self._closed = False
        self._commits = OffsetCommits(numbering)
        callbacks = {"on_commit": self._on_commit}
        super().__init__(connection, group, numbering.topics, protocol, callbacks)

    # While it is a member

    def start_anew(self, number: int) -> None:
        """The log has no such offset: what is there is read from its start, and to its owner it is
        another partition."""
        if number not in self.owned:
            return
        begun = partition(self._numbering, number)
        self.consumer.incremental_unassign([begun])
        begun.offset = OFFSET_BEGINNING
        self.consumer.incremental_assign([begun])
        self.consumer.resume([begun])
        self._disown([begun])
        self.owned[number] = NO_EPOCH
        self._loop.call_soon_threadsafe(self._assignment.lost, [number])
        self._loop.call_soon_threadsafe(self._assignment.assigned, {number: None})

    def partitions_of(self, numbers: Iterable[int]) -> list[TopicPartition]:
        """For confluent-kafka."""
        return [partition(self._numbering, number) for number in numbers]

    def number_of(self, partition: TopicPartition) -> int:
        """Return the number of a partition as confluent-kafka names it."""
        return self._numbering.number(partition.topic, partition.partition)

    def commit(self, commits: Commits) -> None:
        """Commit what is owned still, without waiting."""
        self._commits.commit(self.consumer, commits, self.owned)

    def repeat_commit(self) -> None:
        """Commit again what failed while the group moved, if it is time to."""
        self._commits.repeat(self.consumer, self.owned)

    def commit_now(self, commits: Commits) -> None:
        """Commit what all of it is owned still, and wait until Kafka has it. Raises `LogError`."""
        if gone := commits.keys() - self.owned.keys():
            raise LogError(f"partitions that aren't owned can't be committed: {sorted(gone)}")
        try:
            self._commits.commit_now(self.consumer, commits, self.owned)
        except KafkaException as error:
            raise log_error_of(error.args[0]) from None

    def confirm(self, commits: Commits) -> bool:
        """Whether Kafka takes these commits from this member, which shows that it is one still."""
        mine = {number: commit for number, commit in commits.items() if number in self.owned}
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
        """Return what to commit of revoked partitions, within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self._assignment.revoked(numbers)
        except TimeoutError:
            log.warning("the last attempts of %s take longer than there is time", self._group)
            return {}

    def serve(self) -> None:
        """Poll for the group's sake: nothing is read any more."""
        self.beat()
        self.consumer.poll(SERVE)

    def commit_last(self, deadline: float) -> bool:
        """Make the last commit of what is still ours; False: the group moves, try it again."""
        commits = self.last_commits.result()
        mine = {number: commit for number, commit in commits.items() if number in self._finishing}
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
        """Start to read newly assigned partitions."""
        self.joined = True
        if self._is_finishing:
            take_without_reading(consumer, partitions)
            return
        if not self._reads:
            take_without_reading(consumer, partitions)
            unasked = dict.fromkeys(map(self.number_of, partitions))
            self.owned.update(dict.fromkeys(unasked, NO_EPOCH))
            self._loop.call_soon_threadsafe(self._assignment.assigned, unasked)
            return
        try:
            # librdkafka would ask, too, but keep the metadata to itself.
            committed = committed_of(consumer, partitions, COMMITTED_TIMEOUT) if partitions else []
        except LogError as error:
            # Without their metadata they must not be read: what it says would be lost.
            self.refusal = error
            take_without_reading(consumer, partitions)
            return
        consumer.incremental_assign([begin_at(entry) for entry in committed])
        # librdkafka remembers a pause beyond a revoke; to its next owner a partition is new.
        consumer.resume(partitions)
        found: dict[int, OffsetAndMetadata | None] = {}
        for entry in committed:
            number = self.number_of(entry)
            self.owned[number] = epoch_of(entry)
            found[number] = (
                OffsetAndMetadata(entry.offset, entry.metadata or "") if entry.offset >= 0 else None
            )
        self._loop.call_soon_threadsafe(self._assignment.assigned, found)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Make the last commits of revoked partitions."""
        finishing = set(map(self.number_of, partitions)) & self._finishing.keys()
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
        """Return the last commits of revoked partitions, once their attempts have finished."""
        commits: dict[int, OffsetAndMetadata] = {}
        if numbers:
            revoked: Any = self._assignment.revoked(numbers)
            commits |= asyncio.run_coroutine_threadsafe(revoked, self._loop).result(REVOKE_TIMEOUT)
        if finishing:
            last = self.last_commits.result(REVOKE_TIMEOUT)
            commits |= {number: commit for number, commit in last.items() if number in finishing}
        return commits

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget partitions that belong to another member."""
        for entry in partitions:
            self._finishing.pop(self.number_of(entry), None)
        self._loop.call_soon_threadsafe(self._assignment.lost, self._disown(partitions))
        consumer.incremental_unassign(partitions)

    def _disown(self, partitions: list[TopicPartition]) -> list[int]:
        """Forget these partitions; returns those that were owned, as `Assignment` knows only of
        them."""
        numbers = [number for number in map(self.number_of, partitions) if number in self.owned]
        for number in numbers:
            del self.owned[number]
            self.reached.pop(number, None)
            self._commits.forget(number)
        return numbers


def _log_failed_commit(error: Exception) -> None:
    # The group goes back to its last commit: duplicates, no loss.
    log.warning("the last commit of a revoked partition failed: %r", error)
