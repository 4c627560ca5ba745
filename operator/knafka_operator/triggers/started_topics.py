"""Started topics: the external topics, which Knafka didn't create, on which a group has been given
its start offsets.

    "3f2a9c0e5d,77b01c9ae2 orders,payments"    for each of Kafka's two servers a digest of server
                                               and group, a space, the topics

Kafka deletes a group's offsets when the topic is deleted, or a week after the group's last member
has left. So if a group has no offsets on a topic that is recorded here, it has lost them, and
begins at the topic's start: its declared start position, mostly the end, would skip events.

Pure. Not here: when offsets are committed (`delivery_effects`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Set
from typing import Any, Final

from knafka_operator.decisions.status import SUBSCRIPTION_READY
from knafka_operator.model.cluster import status_annotations
from knafka_operator.model.resources import GROUP_STATUS, KNAFKA_PREFIX

_DIGEST_LENGTH: Final = 10
"""Hexadecimal digits of a digest."""
STARTED_TOPICS: Final = f"{KNAFKA_PREFIX}started-topics"
"""Key of `status.annotations`: for each of Kafka's bootstrap servers a digest of the server and the
group, then the topics."""
_OFFSETS_CONDITIONS: Final = (SUBSCRIPTION_READY, "InitialOffsetsCommitted")
"""Conditions that are False if no start offsets could be committed: one of a Trigger, one of a
KafkaSource."""


def started_topics(annotations: Mapping[str, str], servers: str, group: str) -> Collection[str]:
    """Return the topics on which this group has been given its start offsets, as the status's
    `annotations` record. Empty if the record is of another group, or of a Kafka that has none of
    the comma-separated `servers`, or if there is no record."""
    digests, _, topics = annotations.get(STARTED_TOPICS, "").partition(" ")
    if not _digests(servers, group) & {*digests.split(",")}:
        return ()
    return tuple(filter(None, topics.split(",")))


def started_topics_annotation(topics: Collection[str], servers: str, group: str) -> str:
    """Return the value of the annotation `STARTED_TOPICS` that records this group's start offsets
    on these topics, at these comma-separated servers."""
    return f"{','.join(sorted(_digests(servers, group)))} {','.join(dict.fromkeys(topics))}"


def is_same_kafka(servers: str, other_servers: str) -> bool:
    """Whether two comma-separated lists of bootstrap servers belong to the same Kafka: they have a
    server in common."""
    return bool({*servers.split(",")} & {*other_servers.split(",")})


def was_started_by_older_release(document: Mapping[str, Any], group: str) -> bool:
    """Whether an earlier release, which recorded no topics, has committed the start offsets of this
    group for an object's present spec. Such a release wrote the group's name to the status after
    the commit. So it has committed them if the status names the group, is about the present
    generation of the spec, and has none of `_OFFSETS_CONDITIONS` as False."""
    status, metadata = document.get("status") or {}, document["metadata"]
    annotations = status_annotations(document)
    return (
        STARTED_TOPICS not in annotations
        and annotations.get(GROUP_STATUS) == group
        and status.get("observedGeneration") == metadata.get("generation", 0)
        and not any(
            condition["type"] in _OFFSETS_CONDITIONS and condition["status"] == "False"
            for condition in status.get("conditions") or ()
        )
    )


def _digests(servers: str, group: str) -> Set[str]:
    """Return for each of the comma-separated servers a digest of the server and the group."""
    return {
        hashlib.sha256(f"{server}/{group}".encode()).hexdigest()[:_DIGEST_LENGTH]
        for server in servers.split(",")
    }
