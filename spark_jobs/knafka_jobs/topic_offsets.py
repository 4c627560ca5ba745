"""Value types of topics, partitions and offsets; `io.kafka` reads them from Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple, TypeAlias

from knafka.core import names

LOG_SEPARATOR: Final = "~"
"""Separates a topic's id, which never contains it, from the number of a later log (`log_id`)."""

MAX_CLOCK_DIFFERENCE: Final = timedelta(hours=1)
"""Time by which the clocks of two machines may differ, such as those of two Kafka brokers, whose
times the records of their partitions have."""


class BrokerName(NamedTuple):
    """The namespace and name of a Broker; written as `NAMESPACE/NAME`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return `NAMESPACE/NAME`."""
        return f"{self.namespace}/{self.name}"


NamedPartition: TypeAlias = tuple[str, int]
"""The name of a topic, and the number of a partition."""

Partition: TypeAlias = tuple[str, int]
"""The id of a topic, and the number of a partition: a topic that is deleted and created again has
another id."""


class RecordMark(NamedTuple):
    """Identifies the record at an offset, so that a job notices if another record has that offset
    later."""

    offset: int
    digest: str
    """Digest of the record's key and value."""
    time: int
    """The record's timestamp, in milliseconds since the Unix epoch."""
    epoch: int | None = None
    """The leader epoch under which the record was appended; None if unknown."""


NO_MARK: Final = RecordMark(-1, "", 0)
"""The mark of a log from which no record was read yet. No record equals it, so any record below
`ReadState.next` is new."""


class ReadState(NamedTuple):
    """How far a partition was read, and in which of its logs.

    An unclean election cuts a log: its last records are lost, and other records get their offsets.
    From the cut on, the partition is another log, whose rows have the topic id with the log's
    number (`log_id`). Number 0 is the first log; `cuts` has the first offset of each later log.
    """

    next: int
    """The first offset that was not read."""
    mark: RecordMark | None = None
    """The last record that was read; None if unknown."""
    cuts: tuple[int, ...] = ()
    """The first offset of each log after the first."""

    def after_cut_at(self, offset: int) -> ReadState:
        """Return the state after the log was cut at `offset`: reading goes on there, in a new
        log."""
        return ReadState(offset, NO_MARK, (*self.cuts, offset))

    def logs(self) -> list[tuple[int, int]]:
        """Return the logs that make up the partition now, in order: the first offset and the number
        of each. Logs of which later cuts left nothing are left out."""
        logs = [(0, 0)]
        for number, first in enumerate(self.cuts, start=1):
            while logs and logs[-1][0] >= first:
                logs.pop()  # the cut left nothing of this log
            logs.append((first, number))
        return logs

    def split_by_log(self, span: OffsetSpan) -> list[tuple[int, OffsetSpan]]:
        """Split a span of the partition's offsets by logs: returns the number of each log, and its
        part of the span. Logs without a part are left out."""
        logs = self.logs()
        ends = [*(first for first, _ in logs[1:]), span.end]  # a log ends where the next begins
        return [
            (number, OffsetSpan(max(first, span.start), min(end, span.end)))
            for (first, number), end in zip(logs, ends, strict=True)
            if max(first, span.start) < min(end, span.end)
        ]


Offsets: TypeAlias = Mapping[Partition, ReadState]
"""The `ReadState` of each partition that was ever read."""


def log_id(topic_id: str, number: int) -> str:
    """Return the id of one of a partition's logs (see `ReadState`), which tables have in their
    column `topic_id`: the topic's id for the first log, number 0, else `TOPIC-ID~NUMBER`."""
    return f"{topic_id}{LOG_SEPARATOR}{number}" if number else topic_id


def split_log_id(text: str) -> tuple[str, int]:
    """Split a `log_id` into the topic's id and the log's number; the number is 0 if the text has
    none."""
    topic_id, _, number = text.partition(LOG_SEPARATOR)
    return topic_id, int(number) if number.isdecimal() else 0


def read_states_of(log_ranges: Iterable[tuple[str, int, int, int]]) -> dict[Partition, ReadState]:
    """Return how far each partition was read, derived from the rows that a table has of its logs.

    `log_ranges` has for each log its id (`log_id`), the partition's number, the first row's offset,
    and the offset after the last row. The states have no marks, as the tables don't have them.
    """
    logs: dict[Partition, dict[int, tuple[int, int]]] = {}
    for log_id_text, partition, first, next_offset in log_ranges:
        topic_id, number = split_log_id(log_id_text)
        logs.setdefault((topic_id, partition), {})[number] = first, next_offset
    states = {}
    for partition_key, bounds_by_log in logs.items():
        last = max(bounds_by_log)
        # `cuts[number - 1]` is the first offset of the log with this number. That of a log without
        # rows is unknown: assume that the log is empty, and began where the next one did.
        cuts = [bounds_by_log[last][0]] * last
        for number in range(last - 1, 0, -1):
            cuts[number - 1] = bounds_by_log[number][0] if number in bounds_by_log else cuts[number]
        states[partition_key] = ReadState(bounds_by_log[last][1], None, tuple(cuts))
    return states


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """A range of offsets in one partition: from `start`, inclusive, to `end`, exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as Kafka describes it now; a topic that is created again gets another id."""

    name: str
    id: str
    spans: Mapping[int, OffsetSpan]
    """The offsets that each partition has, by the partition's number."""
    replication: int = 1
    """Number of replicas of its first partition."""


def spans_of(topics: Mapping[str, TopicState]) -> dict[NamedPartition, OffsetSpan]:
    """Return the offsets that each partition of these topics has, by the topic's name and the
    partition's number. `topics` has the topics by name."""
    return {
        (name, partition): span
        for name, topic in topics.items()
        for partition, span in topic.spans.items()
    }


def is_dead_letter_topic(topic: str, broker: BrokerName | None) -> bool:
    """Whether a topic holds dead letters of this Broker; if `broker` is None, of any Broker.

    The name of such a topic ends with a digest of the names of namespace, Broker and Trigger. The
    digest decides, because dashes alone don't tell where a Broker's name ends. If the topic's name
    was shortened, the answer is False, unless `broker` is None.
    """
    if broker is None:
        return topic.startswith(names.DEAD_LETTERS)
    prefix = f"{names.DEAD_LETTERS}{'-'.join(broker)}-"
    trigger = topic.removeprefix(prefix).rpartition("-")[0]
    return topic.startswith(prefix) and names.dead_letter_topic(*broker, trigger) == topic
