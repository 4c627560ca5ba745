"""Marks the metadata of commits with the topic that their offset belongs to.

A commit outlives its topic if a reader commits once more before it notices that the topic was
deleted and created again. Then the offset has no meaning for the new topic's records. So the
metadata begin with a mark, the first characters of Kafka's id of the topic:

    "@" + 11 characters of the id + ":" + metadata of `progress` or `sensor.records`, or nothing

A commit without a mark is trusted: other tools make such commits, and readers that don't know the
id yet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from knafka.core.progress import MARK_LENGTH, MAX_METADATA, PROGRESS_PREFIX, decode
from knafka.core.sensor.records import parse_taken

K = TypeVar("K")

_ID_LENGTH: Final = MARK_LENGTH - len("@:")
"""Characters of a topic's id in a mark: 66 bits, nearly all of them random."""
_MARK: Final = re.compile(rf"@([\w+/-]{{{_ID_LENGTH}}}):", re.ASCII)
"""Matches a mark. librdkafka writes ids in base64 with + and /, other clients with - and _."""
_BASE64_TO_URL: Final = str.maketrans("+/", "-_")
"""Translation to the form of other clients' ids."""
_ZERO_ID: Final = "A" * _ID_LENGTH
"""The beginning of Kafka's id zero, which librdkafka returns if a node of Kafka sends no id."""


def short_id(topic_id: str) -> str:
    """Return the first characters of a topic's id, as a mark holds them: with - and _ in place of +
    and /. Empty for an unknown id, which is empty or zero."""
    start_of_id = topic_id[:_ID_LENGTH].translate(_BASE64_TO_URL)
    return "" if start_of_id == _ZERO_ID else start_of_id


def mark(metadata: str, short_topic_id: str) -> str:
    """Return the metadata with a mark put before them. They are returned unchanged if
    `short_topic_id` (the topic's `short_id`) is empty, or if there is no room for a mark."""
    if not short_topic_id or len(metadata) + MARK_LENGTH > MAX_METADATA:
        return metadata
    return f"@{short_topic_id}:{metadata}"


def unmark(metadata: str) -> tuple[str, str]:
    """Return the mark at the beginning of the metadata (the topic's `short_id`), and the metadata
    without it; an empty mark if they have none."""
    if (match := _MARK.match(metadata)) is None:
        return "", metadata
    return short_id(match[1]), metadata[match.end() :]


def is_of_another_topic(committed: str, present: str) -> bool:
    """Whether a commit belongs to another topic than the one that has the topic's name now.
    `committed` is the mark in the commit's metadata, `present` the `short_id` of the present topic.
    False also if one of the two is empty, as then nothing is known."""
    both_known = bool(committed and present)
    return both_known and committed != present


def mark_after_restart(former: str, known: str) -> str:
    """Return the mark for the commits of a partition that is read from its start again, as its
    topic may have been replaced. `former`: the partition's mark until now. `known`: the topic's
    `short_id` in Kafka's last answer. Each is empty if it isn't known.

    If both are known and differ, the answer is about a newer topic than `former`, and `known` is
    returned. Else the result is empty (no mark): the topic may have been replaced since that
    answer, and the new topic's commits must not get the old topic's mark.
    """
    return known if is_of_another_topic(former, known) else ""


class CommitMarks(Generic[K]):
    """Keeps the mark that the next commit of each partition of one reader gets; `K` identifies a
    partition.

    A reader doesn't wait for a topic's id before it starts. So a partition may begin at a commit
    whose mark can't be compared yet. Once the id is known, the commit may turn out to be of another
    topic, and then the partition must be read from its start. Until the id is known, the
    partition's own commits get the same mark as the commit at which it began.
    """

    def __init__(self, present: Callable[[K, float], str]) -> None:
        """Begin without partitions. `present(key, since)` returns the `short_id` of a partition's
        present topic; empty if no request that was sent at `since` (`time.monotonic`) or later has
        returned the id."""
        self._present = present
        self._marks: dict[K, str] = {}
        """Mark by partition; empty: the partition's commits get no mark."""
        self._unchecked_since: dict[K, float] = {}
        """Partitions whose mark must still be checked: they began before the id of their topic was
        known, or they lost their log. The value is the earliest request time (`time.monotonic`) of
        an id that may check the mark."""

    @property
    def has_unchecked(self) -> bool:
        """Whether `pop_partitions_of_another_topic` has partitions to check."""
        return bool(self._unchecked_since)

    def get(self, key: K) -> str:
        """Return the mark that the next commit of a partition gets; empty: none. A revoked
        partition keeps its mark, for its last commit."""
        return self._marks.get(key, "")

    def begin(self, key: K, committed: str, present: str, asked_at: float = -math.inf) -> None:
        """Note that a partition begins to be read: at a commit with the mark `committed` (empty: it
        has none), or at its start if that commit was made on an earlier topic. `present`: the
        present topic's `short_id`. If `present` is empty, the mark is checked later, by an id that
        is requested at `asked_at` (`time.monotonic`) or later."""
        self._note(key, present or committed, None if present else asked_at)

    def restart(self, key: K, now: float, *, is_of_known_topic: bool = False) -> None:
        """Note that a partition is read from its start. `is_of_known_topic` True: the partition
        certainly belongs to the topic whose id was returned last. False: it may belong to a newer
        topic of that name. `now`: `time.monotonic`."""
        mark = self._present(key, -math.inf)
        if not is_of_known_topic:
            # The log may have been lost because its topic was replaced; then its new id isn't known
            # yet.
            mark = mark_after_restart(self.get(key), mark)
        self._note(key, mark, None if mark else now)

    def pop_partitions_of_another_topic(self) -> Sequence[K]:
        """Check the partitions whose topic's id has become known. Return those that began at an
        earlier topic's commit, each only once: the caller must read them from their start, and call
        `restart`."""
        to_restart: list[K] = []
        for key, since in list(self._unchecked_since.items()):
            if present := self._present(key, since):
                if is_of_another_topic(self._marks[key], present):
                    to_restart.append(key)
                    self.stop_checking(key)
                else:
                    self._note(key, present, None)
        return to_restart

    def stop_checking(self, key: K) -> None:
        """Leave a partition's mark as it is, without checking it any more."""
        self._unchecked_since.pop(key, None)

    def _note(self, key: K, mark: str, unchecked_since: float | None) -> None:
        """Note a partition's mark. `unchecked_since`: the earliest request time (`time.monotonic`)
        of an id that may check the mark; None: the mark is right."""
        self._marks[key] = mark
        if unchecked_since is None:
            self.stop_checking(key)
        else:
            self._unchecked_since[key] = unchecked_since


def described_until(offset: int, metadata: str) -> int | None:
    """Return the offset after the last record that a commit's metadata describe; if they describe
    no record, the committed `offset` itself. None: the metadata weren't written by Knafka.
    `metadata`: without their mark."""
    if metadata.startswith(PROGRESS_PREFIX):  # a dispatcher's commit
        progress = decode(offset, metadata, policy=0)  # the policy makes no difference here
        settled_ends = [range_end for _, range_end in progress.settled]
        delivery_ends = [delivery_offset + 1 for delivery_offset in progress.deliveries]
        return max([offset, *settled_ends, *delivery_ends])
    if not metadata or metadata.startswith("{"):  # JSON: a Sensor's commit
        taken = parse_taken(metadata)
        return offset if taken is None else max(offset, taken.read)
    return None
