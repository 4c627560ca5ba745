"""`TopicTail` on a log in memory (see `log`)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from support.memory.log import MemoryLog
from support.memory.records import readable

from knafka.core.contract import Egress
from knafka.core.errors import LogError
from knafka.dispatcher.engine.sending.appending import DeadLetterTopic
from knafka.dispatcher.engine.sending.broker_letters import BrokerDeadLetters
from knafka.ports.log import LogWriter, Record, TopicMaker


class MemoryTail:
    """Reads on from where it was; `failing` is raised by every question."""

    def __init__(self, memory: MemoryLog, topic: str) -> None:
        self._memory = memory
        self._topic = topic
        self._since = 0
        self._next: dict[int, int] = {}
        self.failing: LogError | None = None
        self.asked = 0
        self.read: list[Record] = []
        self.is_closed = False

    def begin(self, since: int) -> None:
        self._since = since
        self._next.clear()

    async def read_on(self, limit: int) -> Sequence[Record]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        found: list[Record] = []
        partitions = self._memory.topics.get(self._topic, [])
        if not partitions:
            self._next.clear()
        for number, records in enumerate(partitions):
            if self._next.get(number, len(records) + 1) > len(records):
                since = (n for n, each in enumerate(records) if each.timestamp()[1] >= self._since)
                self._next[number] = next(since, len(records))
            some, self._next[number] = readable(records, self._next[number], limit - len(found))
            found += some
        self.read += found
        return found

    async def close(self, timeout: float) -> None:
        self.is_closed = True


def memory_dead_letters(
    egress: Egress,
    memory: MemoryLog,
    writer: LogWriter,
    topics: TopicMaker,
    draw: Callable[[], float] = random.random,
) -> BrokerDeadLetters | None:
    """Those of an Egress's Broker, as a process has them."""
    if (name := egress.broker_dead_letter_topic) is None:
        return None
    settings = egress.broker_dead_letter_settings or egress.dead_letter_settings
    topic = DeadLetterTopic(name, settings, writer, topics)
    return BrokerDeadLetters(topic, MemoryTail(memory, name), draw)
