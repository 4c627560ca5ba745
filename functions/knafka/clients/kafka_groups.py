"""Where consumer groups stand on real Kafka, asked as seldom as can be.

A group's offsets are asked as a consumer of that group which never joins it, since librdkafka's
admin client crashes the process when a coordinator is loading or has moved (2.16.1:
`rd_kafka_handle_OffsetFetch` without a group), and that is normal life. Such a consumer costs 4 ms
of CPU, so what a group committed is remembered: it only moves on, so a group that was at the end
and has nothing new behind it still is. One that somebody sets back by hand is noticed within
`REMEMBERED`. Why not one request for many groups: docs/decisions/0015-operator-caches.md.

Not here: topics. See `kafka_admin`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from knafka.clients.kafka_client import Connection, open_client
from knafka.clients.kafka_requests import THREADS, AdminCalls
from knafka.ports.log import Commits, OffsetAndMetadata, Positions

REMEMBERED: Final = 300.0
"""Seconds, at most, for which a group at the end of its topic isn't asked again."""


@dataclass(frozen=True, slots=True)
class _Known:
    topic_id: str
    """A topic that was made anew has other offsets."""
    committed: Commits
    until: float
    """Of `time.monotonic`."""

    def offset(self, partition: int) -> int:
        found = self.committed.get(partition)
        return 0 if found is None else found.offset


class KafkaGroups:
    """The committed offsets of groups; the topic of a call is that of its partitions."""

    def __init__(self, connection: Connection, calls: AdminCalls) -> None:
        self._connection = connection
        self._calls = calls
        self._known: dict[str, _Known] = {}
        """By group, which reads one topic."""
        self._forget_old = 0.0
        """When what is too old is let go of next: of groups that are gone it is all there is."""

    async def committed(self, group: str, partitions: Sequence[TopicPartition]) -> Commits:
        """What the group has committed, as Kafka knows it now."""
        return {
            each.partition: OffsetAndMetadata(each.offset, each.metadata or "")
            for each in await self.committed_partitions(group, partitions)
        }

    async def committed_partitions(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> Sequence[TopicPartition]:
        """The same as Kafka tells it, with leader epochs."""
        wanted = list(partitions)
        found = await self._as(group, lambda it, timeout: it.committed(wanted, timeout=timeout))
        return [each for each in found if each.offset >= 0]

    async def commit(self, group: str, offsets: Sequence[TopicPartition]) -> None:
        """All or none of them: it is one request, and Kafka writes it as one batch."""
        wanted = list(offsets)
        await self._as(group, lambda it, _: it.commit(offsets=wanted, asynchronous=False))
        self.forget(group)

    async def behind(
        self,
        groups: Sequence[str],
        topic_id: str,
        partitions: Sequence[TopicPartition],
        ends: Positions,
    ) -> Mapping[str, Commits]:
        """What each group has committed; asked of Kafka unless it is known to be at the ends."""
        now = time.monotonic()
        if now >= self._forget_old:
            self._known = {key: each for key, each in self._known.items() if each.until > now}
            self._forget_old = now + REMEMBERED
        committed: dict[str, Commits] = {}
        unsure = []
        for group in groups:
            known = self._at_ends(group, topic_id, ends, now)
            if known is not None:
                committed[group] = known
            else:
                unsure.append(group)
        waiting = iter(unsure)

        async def ask() -> None:
            for group in waiting:
                committed[group] = await self.committed(group, partitions)
                # Not all at one time, so that they aren't asked again all at one time.
                until = now + REMEMBERED * random.uniform(0.5, 1)
                self._known[group] = _Known(topic_id, committed[group], until)

        tasks = [asyncio.create_task(ask()) for _ in unsure[:THREADS]]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return committed

    def are_at_ends(self, groups: Sequence[str], topic_id: str, ends: Positions) -> bool:
        """Whether all these groups are known to have committed these ends."""
        now = time.monotonic()
        return all(self._at_ends(each, topic_id, ends, now) is not None for each in groups)

    def _at_ends(self, group: str, topic_id: str, ends: Positions, now: float) -> Commits | None:
        """What it has committed, if that is known and these ends."""
        known = self._known.get(group)
        if known is None or known.topic_id != topic_id or known.until <= now:
            return None
        at_ends = all(known.offset(number) == end for number, end in ends.items())
        return known.committed if at_ends else None

    def forget(self, group: str) -> None:
        """Ask anew what this group has committed."""
        self._known.pop(group, None)

    async def _as(
        self, group: str, call: Callable[[Consumer, float], list[TopicPartition] | None]
    ) -> list[TopicPartition]:
        def asked(timeout: float) -> list[TopicPartition]:
            # A commit takes no timeout of its own.
            bound = {"socket.timeout.ms": int(timeout * 1000)}
            consumer = open_client(Consumer, {**self._connection, **bound, "group.id": group})
            try:
                answers = call(consumer, timeout) or []
                for each in answers:
                    if each.error is not None:
                        raise KafkaException(each.error)
                return answers
            finally:
                consumer.close()

        return await self._calls.in_thread(asked)
