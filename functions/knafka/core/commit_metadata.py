"""What the metadata of all commits have in common: of which topic the offset is.

A commit outlives its topic if a reader commits once more before it notices that the topic was
deleted and created again. Then the offset has no meaning for the new topic's records. So the
metadata begin with a mark, the first characters of Kafka's id of the topic:

    "@" + 11 characters of the id + ":" + metadata of `progress` or `sensor.records`, or nothing

A commit without a mark is trusted: other tools make such commits, and readers that don't know the
id yet.
"""

from __future__ import annotations

import re
from typing import Final

from knafka.core.progress import MARK_LENGTH, MAX_METADATA, PROGRESS_PREFIX, decode
from knafka.core.sensor.records import parse_taken

_ID_LENGTH: Final = MARK_LENGTH - len("@:")
"""Characters of an id in a mark: 66 bits, nearly all of them random."""
_MARK: Final = re.compile(rf"@([\w+/-]{{{_ID_LENGTH}}}):", re.ASCII)
"""librdkafka writes ids in base64 with + and /, other clients with - and _."""
_BASE64_TO_URL: Final = str.maketrans("+/", "-_")
_ZERO_ID: Final = "A" * _ID_LENGTH
"""The beginning of Kafka's id zero, which librdkafka returns if a node of Kafka sends no id."""


def short_id(topic_id: str) -> str:
    """Return the part of a topic's id that a mark has, with - and _; empty for an unknown id, which
    is empty or zero."""
    topic = topic_id[:_ID_LENGTH].translate(_BASE64_TO_URL)
    return "" if topic == _ZERO_ID else topic


def mark(metadata: str, topic: str) -> str:
    """Return the metadata with a mark put before them; `topic` is the topic's `short_id`. They are
    returned unchanged if that is empty, or if there is no room for it."""
    if not topic or len(metadata) + MARK_LENGTH > MAX_METADATA:
        return metadata
    return f"@{topic}:{metadata}"


def unmark(metadata: str) -> tuple[str, str]:
    """Return the mark at the beginning of the metadata (the topic's `short_id`), and the metadata
    without it; an empty mark if they have none."""
    if (found := _MARK.match(metadata)) is None:
        return "", metadata
    return short_id(found[1]), metadata[found.end() :]


def is_of_another(committed: str, present: str) -> bool:
    """Whether a commit belongs to another topic than the present one: `committed`, the mark in its
    metadata, differs from `present`, the present topic's `short_id`. False if one of them is empty,
    as then nothing is known."""
    return bool(committed and present) and committed != present


def mark_after_restart(former: str, known: str) -> str:
    """Return the mark for the commits of a partition that is read from its start again. `former`:
    its mark until now; `known`: the `short_id` of the topic, from Kafka's last answer.

    Empty if they don't differ: the topic may have been replaced since that answer, and a commit
    with the old mark would be taken for one of the old topic.
    """
    return known if is_of_another(former, known) else ""


def described_until(offset: int, metadata: str) -> int | None:
    """Return the offset after the last record that a commit's metadata describe, or the committed
    `offset` itself if they describe none; None: the metadata aren't ours. They are passed without
    their mark."""
    if metadata.startswith(PROGRESS_PREFIX):
        progress = decode(offset, metadata, 0)
        settled = [range_end for _, range_end in progress.settled]
        return max([offset, *settled, *(begun + 1 for begun in progress.deliveries)])
    if not metadata or metadata.startswith("{"):
        taken = parse_taken(metadata)
        return offset if taken is None else max(offset, taken.read)
    return None
