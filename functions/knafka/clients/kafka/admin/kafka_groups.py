"""The committed offsets of consumer groups on real Kafka, cached so that few requests are needed.

A group's offsets are requested by a consumer of that group that never joins it: librdkafka's admin
client crashes the process while a coordinator is loading or has moved, which is common (2.16.1:
`rd_kafka_handle_OffsetFetch` without a group). Such a consumer costs 4 ms of CPU, so a group's
commits are cached. Offsets only grow, so a group that was at its topic's end still is while the end
doesn't move. Offsets that somebody resets by hand are noticed after `cache_seconds` seconds at the
latest, or by `forget`. Why not one request for many groups: docs/decisions/0015-operator-caches.md.

Not here: topics. See `kafka_admin`.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from knafka.clients.kafka.consumers.kafka_elections import LeaderElection, elections_since
from knafka.clients.kafka.kafka_acls import explain_denials
from knafka.clients.kafka.kafka_client import (
    REQUEST_CONSUMER_SETTINGS,
    Connection,
    PartitionKey,
    open_client,
)
from knafka.clients.kafka.kafka_commits import metadata_of, topic_mark_of
from knafka.clients.kafka.kafka_requests import MAX_BLOCKING_CALLS, AdminCalls
from knafka.core.commit_metadata import is_of_another_topic, short_id
from knafka.core.errors import LogError
from knafka.ports.log import Commits, OffsetAndMetadata, Positions

if TYPE_CHECKING:  # clients that only read and write don't import it
    from confluent_kafka.admin._group import ConsumerGroupDescription

CACHE_SECONDS_PER_GROUP: Final = 1.5
"""Seconds per cached group for which a group at the end of its topic stays cached: 150 s with 100
groups. So the requests take a quarter of a percent of a core, however many groups there are.
"""
MIN_CACHE_SECONDS: Final = 15.0
"""The least that `cache_seconds` returns."""
MAX_CACHE_SECONDS: Final = 1800.0
"""The most that `cache_seconds` returns."""
CLEAN_UP_INTERVAL: Final = MAX_CACHE_SECONDS / 6
"""Seconds between two clean-ups of the cache."""
MAX_REPORT_SECONDS: Final = 24 * 3600.0
"""Longest drain, in seconds, whose reported commits are cached. Calls of `forget`, which a report
may contradict, are remembered for as long."""

DETACHING_SUFFIX: Final = ".detaching"
"""Suffix of the group that holds a group's offsets while `detach` creates the group anew."""
_NO_GROUP_ERRORS: Final = frozenset({KafkaError.GROUP_ID_NOT_FOUND})
"""Errors that say that a group doesn't exist."""


@dataclass(frozen=True, slots=True)
class _CachedCommits:
    """A group's cached commits on a topic."""

    committed: Commits
    """The group's commits, by partition."""
    positions: Positions
    """The committed offset of every partition; 0 without a commit."""
    until: float
    """When the entry expires (`time.monotonic`)."""

    def is_at(self, ends: Positions, now: float) -> bool:
        """Whether the entry hasn't expired at `now` (`time.monotonic`) and the group has committed
        all of these `ends` of partitions; False if `ends` is empty."""
        return now < self.until and bool(ends) and ends.items() <= self.positions.items()


def cache_seconds(groups: int) -> float:
    """Return the most seconds for which a group's commits stay cached, while the cache has `groups`
    groups."""
    return min(max(CACHE_SECONDS_PER_GROUP * groups, MIN_CACHE_SECONDS), MAX_CACHE_SECONDS)


def needs_detaching(group: ConsumerGroupDescription) -> bool:
    """Whether `KafkaGroups.detach` may have work to do for the group. True also for a group that
    doesn't exist: a process may have died after it deleted the group and before it created it
    again."""
    return _had_classic_members(group) or _is_gone(group)


def _had_classic_members(group: ConsumerGroupDescription) -> bool:
    """Whether a group has, or last had, members of the classic protocol."""
    return group.type is ConsumerGroupType.CLASSIC and not (
        group.is_simple_consumer_group or _is_gone(group)
    )


def _is_gone(group: ConsumerGroupDescription) -> bool:
    """Whether the group doesn't exist, which Kafka describes as dead."""
    return group.state is ConsumerGroupState.DEAD


def _topic_of(partitions: Sequence[TopicPartition]) -> str:
    """Return the topic of these partitions; empty without any."""
    return partitions[0].topic if partitions else ""


class KafkaGroups:
    """Reads and writes the committed offsets of groups. All partitions of one call belong to the
    same topic."""

    def __init__(self, connection: Connection, calls: AdminCalls) -> None:
        """Begin with an empty cache. `calls` sends the requests of an admin client; `connection`
        opens a consumer where a request needs one."""
        self._connection = connection
        self._calls = calls
        self._cached: dict[str, dict[str, _CachedCommits]] = {}
        """Cached commits by group and topic id; the group of a Sensor reads two topics."""
        self._forgotten_at: dict[str, float] = {}
        """When `forget` was last called for a group (`time.monotonic`)."""
        self._clean_up_at = 0.0
        """When `_clean_up` is due (`time.monotonic`); nothing else removes deleted groups."""

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition], topic_id: str = ""
    ) -> Commits:
        """Return the group's commits by partition, read from Kafka now. Commits whose mark is of
        another topic than the one with the id `topic_id` are left out; if the id is empty, none
        are. Raises `LogError`."""
        return {
            committed_partition.partition: OffsetAndMetadata(
                committed_partition.offset, metadata_of(committed_partition)
            )
            for committed_partition in await self.committed_partitions(group, partitions)
            if not is_of_another_topic(topic_mark_of(committed_partition), short_id(topic_id))
        }

    async def committed_partitions(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> Sequence[TopicPartition]:
        """Return the group's commits as confluent-kafka's objects, which have leader epochs;
        partitions without a commit are left out. Raises `LogError`."""
        requested = list(partitions)
        with explain_denials(group=("Describe", group), topic=("Describe", _topic_of(requested))):
            answers = await self._call_as_group(
                group, lambda consumer, timeout: consumer.committed(requested, timeout=timeout)
            )
        return [partition for partition in answers if partition.offset >= 0]

    async def committed_since(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> tuple[Sequence[TopicPartition], Mapping[PartitionKey, LeaderElection]]:
        """Return the group's commits of these partitions, and the result of `elections_since` for
        these commits. Partitions without a commit are left out. Raises `LogError`."""
        requested = list(partitions)
        elections: dict[PartitionKey, LeaderElection] = {}

        def read(consumer: Consumer, timeout: float) -> list[TopicPartition]:
            """Read the commits within `timeout` seconds, and store in `elections` the result of
            `elections_since` for them. Raises `KafkaException`."""
            answers = consumer.committed(requested, timeout=timeout)
            elections.clear()  # an earlier try may have stored some
            elections.update(elections_since(consumer, self._connection, answers))
            return answers

        with explain_denials(group=("Describe", group), topic=("Describe", _topic_of(requested))):
            answers = await self._call_as_group(group, read)
        return [partition for partition in answers if partition.offset >= 0], elections

    async def commit(self, group: str, offsets: Sequence[TopicPartition]) -> None:
        """Commit all of these offsets or none, with one request, which Kafka writes as one batch.
        Raises `LogError`."""
        requested = list(offsets)
        with explain_denials(group=("Read", group), topic=("Read", _topic_of(requested))):
            await self._call_as_group(
                group, lambda consumer, _: consumer.commit(offsets=requested, asynchronous=False)
            )
        self.forget(group)

    async def delete(self, group: str) -> None:
        """Delete the group with its offsets, if it exists. Raises `LogError`."""
        with explain_denials(group=("Delete", group)):
            await self._calls.ask_coordinator(
                lambda timeout: self._calls.admin.delete_consumer_groups(
                    [group], request_timeout=timeout
                ),
                omitted_codes=_NO_GROUP_ERRORS,
            )
        self.forget(group)

    async def detach(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        """Make Kafka keep this group's offsets for as long as they are committed, although no
        member joins the group any more. `partitions`: all partitions of its topic. Raises
        `LogError`, also while the group has members.

        Once the members of a classic group have left, Kafka deletes its offsets after
        offsets.retention.minutes, even if offsets are committed later without a member (tried with
        Kafka 4.3; decision 0019). Commits do keep a group that never had members, and a group of
        the consumer protocol. So the group is deleted and created again, from a copy in another
        group: if the process dies in between, the next call finishes the work.
        """
        copy = f"{group}{DETACHING_SUFFIX}"
        described = await self._describe(group, copy)
        present_group, copied_group = described.get(group), described.get(copy)
        if present_group is not None and present_group.members:
            raise LogError(f"the group {group} has {len(present_group.members)} members")
        if present_group is not None and _had_classic_members(present_group):
            # Kafka would delete the offsets: copy them, and create the group again from the copy.
            offsets = await self.committed_partitions(group, partitions)
            if not offsets:
                return
            await self.commit(copy, offsets)
            await self.delete(group)
            await self.commit(group, offsets)
        elif copied_group is None or _is_gone(copied_group):
            return  # Kafka keeps the group's offsets, and no earlier call has left a copy
        else:
            # An earlier call died in between: use its copy, unless the group exists again.
            offsets = await self.committed_partitions(copy, partitions)
            if offsets and (present_group is None or _is_gone(present_group)):
                await self.commit(group, offsets)
        await self.delete(copy)

    async def commits_of_groups(
        self,
        groups: Sequence[str],
        topic_id: str,
        partitions: Sequence[TopicPartition],
        ends: Positions,
    ) -> Mapping[str, Commits]:
        """Return the commits of each group on the topic with this id and these partitions. They
        come from the cache if the cached commits are the topic's `ends`, else from Kafka. Raises
        `LogError`."""
        now = time.monotonic()
        if now >= self._clean_up_at:
            self._clean_up(now)
        committed: dict[str, Commits] = {}
        uncached_groups = []
        for group in groups:
            cached = self._cached.get(group, {}).get(topic_id)
            if cached is not None and cached.is_at(ends, now):
                committed[group] = cached.committed
            else:
                uncached_groups.append(group)
        remaining_groups = iter(uncached_groups)

        async def read_remaining() -> None:
            """Take groups from `remaining_groups`, which all tasks share, until none is left; read
            their commits from Kafka, and add these to `committed` and to the cache."""
            for group in remaining_groups:
                commits = committed[group] = await self.committed(group, partitions, topic_id)
                positions = {partition.partition: 0 for partition in partitions}
                positions |= {number: commit.offset for number, commit in commits.items()}
                # Entries expire at random times, so that they aren't all requested again at once.
                expires_at = now + cache_seconds(len(self._cached)) * random.uniform(0.5, 1)
                self._cached.setdefault(group, {})[topic_id] = _CachedCommits(
                    commits, positions, expires_at
                )

        tasks = [
            asyncio.create_task(read_remaining()) for _ in uncached_groups[:MAX_BLOCKING_CALLS]
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return committed

    def _clean_up(self, now: float) -> None:
        """Drop expired entries of the cache, and calls of `forget` from long ago
        (`MAX_REPORT_SECONDS`); plan the next clean-up."""
        unexpired = {
            group: {id_: cached for id_, cached in by_topic.items() if cached.until > now}
            for group, by_topic in self._cached.items()
        }
        self._cached = {group: by_topic for group, by_topic in unexpired.items() if by_topic}
        self._forgotten_at = {
            group: forgotten_at
            for group, forgotten_at in self._forgotten_at.items()
            if now - forgotten_at < MAX_REPORT_SECONDS
        }
        self._clean_up_at = now + CLEAN_UP_INTERVAL

    def have_committed(self, groups: Sequence[str], topic_id: str, ends: Positions) -> bool:
        """Whether all of these groups have committed these ends, by the cache; False if the cache
        has no commits of one of them."""
        now = time.monotonic()
        entries = [self._cached.get(group, {}).get(topic_id) for group in groups]
        return all(entry is not None and entry.is_at(ends, now) for entry in entries)

    def note_commits(
        self, groups: Collection[str], topic_id: str, positions: Positions, seconds: float
    ) -> None:
        """Cache the offsets (`positions`) that a dispatcher reports as committed for these groups.
        It has made all commits of the groups in the last `seconds`. While the topic ends at these
        offsets, `commits_of_groups` needs no request.

        A group is left out if `forget` was called for it within these seconds: somebody else may
        have reset its offsets. All are left out if `seconds` isn't below `MAX_REPORT_SECONDS`.
        """
        now = time.monotonic()
        committed = {number: OffsetAndMetadata(offset) for number, offset in positions.items()}
        for group in groups:
            forgotten_at = self._forgotten_at.get(group, -math.inf)
            if seconds < MAX_REPORT_SECONDS and forgotten_at < now - seconds:
                # At random times, as in `commits_of_groups`.
                expires_at = now + cache_seconds(len(self._cached)) * random.uniform(0.5, 1)
                self._cached.setdefault(group, {})[topic_id] = _CachedCommits(
                    committed, positions, expires_at
                )

    async def exists(self, group: str) -> bool:
        """Whether Kafka knows a group of this name. Raises `LogError`."""
        described = await self._describe(group)
        return any(not _is_gone(description) for description in described.values())

    async def members(self, group: str) -> Collection[str]:
        """Return the client ids of the group's members; none if there is no group. Raises
        `LogError`."""
        description = (await self._describe(group)).get(group)
        return [] if description is None else [member.client_id for member in description.members]

    async def _describe(self, group: str, *more_groups: str) -> dict[str, ConsumerGroupDescription]:
        """Return Kafka's descriptions of these groups by name; unknown groups may be missing.
        Raises `LogError`."""
        with explain_denials(group=("Describe", group)):
            return await self._calls.ask_coordinator(
                lambda timeout: self._calls.admin.describe_consumer_groups(
                    [group, *more_groups], request_timeout=timeout
                ),
                omitted_codes=_NO_GROUP_ERRORS,
            )

    def forget(self, group: str) -> None:
        """Remove the group from the cache, as its offsets were changed, or may have been."""
        self._cached.pop(group, None)
        self._forgotten_at[group] = time.monotonic()

    async def _call_as_group(
        self, group: str, call: Callable[[Consumer, float], list[TopicPartition] | None]
    ) -> list[TopicPartition]:
        """Open a consumer of the group in a thread, without joining the group, and pass it to
        `call` with a timeout in seconds. Returns the partitions that `call` returns; an empty list
        if it returns None. Raises `LogError`, also for a partition with an error."""

        def open_and_call(timeout: float) -> list[TopicPartition]:
            """Open the group's consumer, pass it to `call` and close it; returns the answers of
            `call`. Raises `KafkaException`, also for the first answer that holds an error."""
            # A setting, as the consumer's `commit` has no timeout parameter.
            request_timeout = {"socket.timeout.ms": int(timeout * 1000)}
            settings = {**self._connection, **REQUEST_CONSUMER_SETTINGS, **request_timeout}
            consumer = open_client(Consumer, {**settings, "group.id": group})
            try:
                answers = call(consumer, timeout) or []
                for answer in answers:
                    if answer.error is not None:
                        raise KafkaException(answer.error)
                return answers
            finally:
                consumer.close()

        return await self._calls.run_in_thread(open_and_call)
