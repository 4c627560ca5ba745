"""The committed offsets of consumer groups on real Kafka, cached so that it is rarely asked.

A group's offsets are asked as a consumer of that group which never joins it, since librdkafka's
admin client crashes the process when a coordinator is loading or has moved (2.16.1:
`rd_kafka_handle_OffsetFetch` without a group), and that is normal life. Such a consumer costs 4 ms
of CPU, so what a group committed is remembered: it only moves on, so a group that was at the end
and has nothing new behind it still is. One that somebody sets back by hand is noticed after
`remembered` seconds at the latest, or by `forget`. Why not one request for many groups:
docs/decisions/0015-operator-caches.md.

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

from knafka.clients.kafka.kafka_acls import needing
from knafka.clients.kafka.kafka_client import ASKING, Connection, open_client
from knafka.clients.kafka.kafka_requests import THREADS, AdminCalls
from knafka.core.errors import LogError
from knafka.ports.log import Commits, OffsetAndMetadata, Positions

if TYPE_CHECKING:  # who only reads and writes never loads it
    from confluent_kafka.admin._group import ConsumerGroupDescription

REMEMBERED: Final = 1.5
"""Seconds per known group for which a group at the end of its topic isn't asked again: with 100
groups 150 s. So the questions take a quarter of a percent of a core, however many groups there are.
"""
MIN_REMEMBERED: Final = 15.0
MAX_REMEMBERED: Final = 1800.0
"""Bounds, in seconds, of the time that `remembered` returns."""
MAX_COMMITTING: Final = 24 * 3600.0
"""Seconds; `note` ignores what a drain reports that has committed for longer."""


COPY: Final = ".detaching"
"""Suffix of the group that holds a group's offsets while `detach` creates the group anew."""
_NONE: Final = frozenset({KafkaError.GROUP_ID_NOT_FOUND})


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a group's positions on a topic."""

    committed: Commits
    positions: Positions
    """The committed offset of every partition, 0 where there is none."""
    until: float
    """When Kafka must be asked again (`time.monotonic`)."""

    def is_at(self, ends: Positions, now: float) -> bool:
        """Whether the group is known, without asking Kafka, to have committed these ends."""
        return now < self.until and bool(ends) and ends.items() <= self.positions.items()


def remembered(groups: int) -> float:
    """Longest time (seconds) for which a group at the end of its topic isn't asked again, where
    `groups` groups are known."""
    return min(max(REMEMBERED * groups, MIN_REMEMBERED), MAX_REMEMBERED)


def needs_detaching(group: ConsumerGroupDescription) -> bool:
    """Whether `KafkaGroups.detach` may have something to do. True also of a group that doesn't
    exist: a process may have died after it deleted the group and before it created it again."""
    return _had_classic_members(group) or _is_gone(group)


def _had_classic_members(group: ConsumerGroupDescription) -> bool:
    """Whether a group has members of the classic protocol."""
    return group.type is ConsumerGroupType.CLASSIC and not (
        group.is_simple_consumer_group or _is_gone(group)
    )


def _is_gone(group: ConsumerGroupDescription) -> bool:
    """Whether Kafka doesn't know the group; it then describes it as dead."""
    return group.state is ConsumerGroupState.DEAD


def _topic_of(partitions: Sequence[TopicPartition]) -> str:
    return partitions[0].topic if partitions else ""


class KafkaGroups:
    """Reads and writes the committed offsets of groups. A call's partitions are of one topic."""

    def __init__(self, connection: Connection, calls: AdminCalls) -> None:
        self._connection = connection
        self._calls = calls
        self._known: dict[str, dict[str, _Known]] = {}
        """Known positions by group and topic id; the group of a Sensor reads two topics."""
        self._forgotten: dict[str, float] = {}
        """When `forget` was last called for a group (`time.monotonic`)."""
        self._forget_old = 0.0
        """`time.monotonic` of the next clean-up of both; only it removes groups that are gone."""

    async def committed(self, group: str, partitions: Sequence[TopicPartition]) -> Commits:
        """The group's committed offsets by partition, asked of Kafka now. Raises `LogError`."""
        return {
            committed_partition.partition: OffsetAndMetadata(
                committed_partition.offset, committed_partition.metadata or ""
            )
            for committed_partition in await self.committed_partitions(group, partitions)
        }

    async def committed_partitions(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> Sequence[TopicPartition]:
        """The group's committed offsets as Kafka returns them, with leader epochs."""
        wanted = list(partitions)
        with needing(group=("Describe", group), topic=("Describe", _topic_of(wanted))):
            found = await self._call_as_group(
                group, lambda it, timeout: it.committed(wanted, timeout=timeout)
            )
        return [partition for partition in found if partition.offset >= 0]

    async def commit(self, group: str, offsets: Sequence[TopicPartition]) -> None:
        """Commit all of these offsets or none: one request, which Kafka writes as one batch."""
        wanted = list(offsets)
        with needing(group=("Read", group), topic=("Read", _topic_of(wanted))):
            await self._call_as_group(
                group, lambda it, _: it.commit(offsets=wanted, asynchronous=False)
            )
        self.forget(group)

    async def delete(self, group: str) -> None:
        """Delete the group, if it exists."""
        with needing(group=("Delete", group)):
            await self._calls.of_coordinator(
                lambda timeout: self._calls.admin.delete_consumer_groups(
                    [group], request_timeout=timeout
                ),
                leaving_out=_NONE,
            )
        self.forget(group)

    async def detach(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        """Make Kafka keep this group's offsets for as long as anybody commits for it, although
        nobody joins it any more. `partitions` are all of the topic's. Raises `LogError`, also while
        the group has members.

        When the members of a classic group have left, Kafka deletes its offsets after
        offsets.retention.minutes, even if somebody who is no member commits later (tried with
        Kafka 4.3; decision 0019). Commits do keep a group that never had members, and a group of
        the consumer protocol. So the group is deleted and created again, from a copy in another
        group: if the process dies in between, the next call finishes the work.
        """
        copy = f"{group}{COPY}"
        described = await self._describe(group, copy)
        now, kept = described.get(group), described.get(copy)
        if now is not None and now.members:
            raise LogError(f"the group {group} has {len(now.members)} members")
        had_members = now is not None and _had_classic_members(now)
        if had_members:
            offsets = await self.committed_partitions(group, partitions)
            if not offsets:
                return
            await self.commit(copy, offsets)
            await self.delete(group)
        elif kept is None or _is_gone(kept):
            return
        else:
            # An earlier call died in between: use its copy, unless the group exists again.
            offsets = await self.committed_partitions(copy, partitions)
        if (had_members or now is None or _is_gone(now)) and offsets:
            await self.commit(group, offsets)
        await self.delete(copy)

    async def behind(
        self,
        groups: Sequence[str],
        topic_id: str,
        partitions: Sequence[TopicPartition],
        ends: Positions,
    ) -> Mapping[str, Commits]:
        """The committed offsets of each group. Kafka is asked about a group unless the cache knows
        that it is at `ends`."""
        now = time.monotonic()
        if now >= self._forget_old:
            kept = {
                group: {id_: known for id_, known in of.items() if known.until > now}
                for group, of in self._known.items()
            }
            self._known = {group: of for group, of in kept.items() if of}
            self._forgotten = {
                key: at for key, at in self._forgotten.items() if now - at < MAX_COMMITTING
            }
            self._forget_old = now + MAX_REMEMBERED / 6
        committed: dict[str, Commits] = {}
        unsure = []
        for group in groups:
            known = self._known.get(group, {}).get(topic_id)
            if known is not None and known.is_at(ends, now):
                committed[group] = known.committed
            else:
                unsure.append(group)
        waiting = iter(unsure)

        async def ask() -> None:
            for group in waiting:
                found = committed[group] = await self.committed(group, partitions)
                positions = {partition.partition: 0 for partition in partitions}
                positions |= {number: commit.offset for number, commit in found.items()}
                # Not all at one time, so that they aren't asked again all at one time.
                until = now + remembered(len(self._known)) * random.uniform(0.5, 1)
                self._known.setdefault(group, {})[topic_id] = _Known(found, positions, until)

        tasks = [asyncio.create_task(ask()) for _ in unsure[:THREADS]]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return committed

    def are_at(self, groups: Sequence[str], topic_id: str, ends: Positions) -> bool:
        """Whether all these groups are known to have committed these ends."""
        now = time.monotonic()
        known = [self._known.get(group, {}).get(topic_id) for group in groups]
        return all(position is not None and position.is_at(ends, now) for position in known)

    def note(
        self, groups: Collection[str], topic_id: str, positions: Positions, since: float
    ) -> None:
        """Cache the offsets that a dispatcher has committed for these groups, as Kafka confirmed to
        it; it has committed for them for `since` seconds. While the topic ends there, Kafka isn't
        asked about them.

        A group for which `forget` was called within that time is left out: somebody else may have
        reset its offsets.
        """
        now = time.monotonic()
        committed = {number: OffsetAndMetadata(offset) for number, offset in positions.items()}
        for group in groups:
            asked_anew = self._forgotten.get(group, -math.inf)
            if since < MAX_COMMITTING and asked_anew < now - since:
                until = now + remembered(len(self._known)) * random.uniform(0.5, 1)
                self._known.setdefault(group, {})[topic_id] = _Known(committed, positions, until)

    async def exists(self, group: str) -> bool:
        """Whether Kafka knows a group of this name."""
        described = await self._describe(group)
        return any(not _is_gone(description) for description in described.values())

    async def members(self, group: str) -> Collection[str]:
        """The client ids of the group's members."""
        found = (await self._describe(group)).get(group)
        return [] if found is None else [member.client_id for member in found.members]

    async def _describe(self, group: str, *more: str) -> dict[str, ConsumerGroupDescription]:
        """Return Kafka's descriptions of these groups by name; unknown groups may be missing."""
        with needing(group=("Describe", group)):
            return await self._calls.of_coordinator(
                lambda timeout: self._calls.admin.describe_consumer_groups(
                    [group, *more], request_timeout=timeout
                ),
                leaving_out=_NONE,
            )

    def forget(self, group: str) -> None:
        """Drop what is cached of the group: its offsets were changed, or may have been."""
        self._known.pop(group, None)
        self._forgotten[group] = time.monotonic()

    async def _call_as_group(
        self, group: str, call: Callable[[Consumer, float], list[TopicPartition] | None]
    ) -> list[TopicPartition]:
        def asked(timeout: float) -> list[TopicPartition]:
            # A commit takes no timeout of its own.
            bound = {"socket.timeout.ms": int(timeout * 1000)}
            asking = {**self._connection, **ASKING, **bound}
            consumer = open_client(Consumer, {**asking, "group.id": group})
            try:
                answers = call(consumer, timeout) or []
                for answer in answers:
                    if answer.error is not None:
                        raise KafkaException(answer.error)
                return answers
            finally:
                consumer.close()

        return await self._calls.in_thread(asked)
