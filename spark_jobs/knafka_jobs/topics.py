"""Topics and the offsets in them, as values. Asking Kafka for them: `io.kafka`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from knafka.core import names

LOG_SEPARATOR: Final = "~"
"""Between a topic's id, which never has one, and the number of a log that grew from a cut one."""


class BrokerName(NamedTuple):
    """Whose dead letters; written as `NAMESPACE/NAME`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


Position: TypeAlias = tuple[str, int]
"""Topic and partition."""

Partition: TypeAlias = tuple[str, int]
"""Topic id and partition: a topic that is deleted and made again has another id."""


class Mark(NamedTuple):
    """What tells the record at an offset from another that came to lie there."""

    offset: int
    digest: str
    """Of key and value."""
    time: int
    """Its timestamp, in milliseconds since the Unix epoch."""
    epoch: int | None = None
    """The leader epoch under which it was appended; None: that isn't known."""


NOTHING: Final = Mark(-1, "", 0)
"""The mark of a log of which no record was read: whatever it has below `Reached.next` is new."""


class Reached(NamedTuple):
    """How far a partition was read, and of which log.

    An unclean election cuts a log: its last records are lost, and others get their offsets. From
    there on it is another log, whose records have the topic id with the log's number. 0 is the
    first log, and `cuts` has the offset at which each later one began.
    """

    next: int
    """The first offset that was not read."""
    mark: Mark | None = None
    """The last record that was read; None: not known."""
    cuts: tuple[int, ...] = ()

    def cut_at(self, offset: int) -> Reached:
        return Reached(offset, NOTHING, (*self.cuts, offset))

    def logs(self) -> list[tuple[int, int]]:
        """What the partition consists of now: first offset and number of each log, in order."""
        found = [(0, 0)]
        for number, first in enumerate(self.cuts, start=1):
            while found and found[-1][0] >= first:
                found.pop()
            found.append((first, number))
        return found

    def pieces(self, span: Span) -> list[tuple[int, Span]]:
        """A stretch of the partition, log by log: the log's number and what of it is the log's."""
        logs = self.logs()
        ends = [*(first for first, _ in logs[1:]), span.end]
        return [
            (number, Span(max(first, span.start), min(end, span.end)))
            for (first, number), end in zip(logs, ends, strict=True)
            if max(first, span.start) < min(end, span.end)
        ]


Offsets: TypeAlias = Mapping[Partition, Reached]
"""Where reading goes on in each partition ever read."""


def log_id(topic_id: str, number: int) -> str:
    """What stands for a topic id in rows of a log."""
    return f"{topic_id}{LOG_SEPARATOR}{number}" if number else topic_id


def parts_of_log_id(text: str) -> tuple[str, int]:
    """Topic id and number of the log."""
    topic_id, _, number = text.partition(LOG_SEPARATOR)
    return topic_id, int(number) if number.isdecimal() else 0


def offsets_of(spans: Iterable[tuple[str, int, int, int]]) -> dict[Partition, Reached]:
    """How far partitions were read, by what rows say of each log: log id, partition, first offset
    and the offset after the last one."""
    logs: dict[Partition, dict[int, tuple[int, int]]] = {}
    for text, partition, first, next_ in spans:
        topic_id, number = parts_of_log_id(text)
        logs.setdefault((topic_id, partition), {})[number] = first, next_
    read = {}
    for where, found in logs.items():
        last = max(found)
        # Of a log without rows it is only known that it began no later than the next one.
        cuts = [found[last][0]] * last
        for number in range(last - 1, 0, -1):
            cuts[number - 1] = found[number][0] if number in found else cuts[number]
        read[where] = Reached(found[last][1], None, tuple(cuts))
    return read


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets that a partition has: from `start`, inclusive, to `end`, exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now; one that is deleted and made again has another id."""

    name: str
    id: str
    spans: Mapping[int, Span]
    replication: int = 1


def spans_of(topics: Mapping[str, Topic]) -> dict[Position, Span]:
    """What all partitions of these topics have."""
    return {
        (name, partition): span
        for name, topic in topics.items()
        for partition, span in topic.spans.items()
    }


def is_dead_letter_topic(topic: str, broker: BrokerName | None) -> bool:
    """Whether a topic holds dead letters (of that Broker).

    The digest in the name decides, as dashes alone leave open where a name ends. A name so long
    that it was cut belongs to no Broker.
    """
    if broker is None:
        return topic.startswith(names.DEAD_LETTERS)
    prefix = f"{names.DEAD_LETTERS}{'-'.join(broker)}-"
    trigger = topic.removeprefix(prefix).rpartition("-")[0]
    return topic.startswith(prefix) and names.dead_letter_topic(*broker, trigger) == topic
