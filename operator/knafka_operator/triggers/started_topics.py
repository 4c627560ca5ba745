"""Started topics: on which of somebody's topics a group has been given its start offsets.

    "3f2a9c0e5d orders,payments"    at these servers, by this group

Kafka drops a group's offsets with a topic that is deleted, and those of a group without members
after a week. On a topic that is recorded here a group without offsets has lost them, and begins at
the topic's start: its initial offset, mostly the end, would skip events.

Pure. Not here: when offsets are committed (`delivery_effects`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Final

from knafka_operator.model.resources import KNAFKA_PREFIX

STARTED_TOPICS: Final = f"{KNAFKA_PREFIX}started-topics"
"""Key of `status.annotations`: a digest of Kafka's servers and the group, and the topics."""


def started_topics(annotations: Mapping[str, str], servers: str, group: str) -> Collection[str]:
    """Return the topics on which this group has been given its start offsets at these servers, by
    the status's annotations."""
    offsets, _, topics = annotations.get(STARTED_TOPICS, "").partition(" ")
    return tuple(filter(None, topics.split(","))) if offsets == _digest(servers, group) else ()


def started_topics_annotation(topics: Collection[str], servers: str, group: str) -> str:
    """Return the annotation's value: this group has been given its start offsets on these topics,
    at these servers."""
    return f"{_digest(servers, group)} {','.join(dict.fromkeys(topics))}"


def _digest(servers: str, group: str) -> str:
    """Return ten hexadecimal digits that stand for the Kafka and the group."""
    return hashlib.sha256(f"{servers}/{group}".encode()).hexdigest()[:10]
