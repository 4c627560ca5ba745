"""Rewinds a Trigger: sets its consumer group back to the offsets of an earlier time.

Kafka accepts offsets from outside a group only while the group has no member, so a Trigger with
dispatchers can't be rewound. If several Triggers share a dispatcher, their groups never have
members, so Kafka would accept the offsets; the caller must check first that no dispatcher runs. A
group is never set forward: events would be missed.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import TopicPartition

from knafka.core.contract import Egress
from knafka.core.errors import KnafkaError
from knafka.ports.shared_log import GroupHasMembers
from knafka_client.topics.ranges import RangeReader


class TriggerHasDispatchers(KnafkaError):
    """The Trigger has dispatchers, so its group can't be rewound."""

    def __init__(self, egress: Egress) -> None:
        """`egress` is the Trigger's entry of the contract."""
        super().__init__(
            f"{egress.namespace}/{egress.trigger} is delivering: rewind it once it has no "
            "dispatcher (`knafka status`)"
        )


def rewind(connection: dict[str, Any], egress: Egress, since: float, *, dry_run: bool) -> int:
    """Set a Trigger's consumer group back to the first record of each partition since a time.
    Returns how many offsets the group will read again; 0 if it has read none since then.

    `connection` is librdkafka's configuration; `egress` is the Trigger's entry of the contract,
    with its topic and group; `since` is in seconds since the Unix epoch. `dry_run` True: only
    return the number, and commit nothing. Raises `TriggerHasDispatchers` and `LogError`.
    """
    topic = egress.topic
    rewound_positions: list[TopicPartition] = []
    count = 0
    with RangeReader(connection, egress.group) as reader:
        spans = reader.spans(topic)
        committed = reader.committed(topic, spans)
        starts = reader.offsets_since(topic, spans, since)
        for number, (low, _) in spans.items():
            # A group without a committed offset reads from the partition's start, `low`.
            position = committed[number].offset if number in committed else low
            if starts[number] < position:
                rewound_positions.append(TopicPartition(topic, number, starts[number]))
                count += position - starts[number]
        if rewound_positions and not dry_run:
            try:
                reader.commit(rewound_positions)
            except GroupHasMembers as error:
                raise TriggerHasDispatchers(egress) from error
    return count
