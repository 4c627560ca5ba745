"""Rewinding a Trigger: its consumer group goes back to where its topic was at some time.

Kafka takes offsets from somebody who isn't in the group only while nobody is in it, so that a
Trigger that delivers can't be rewound under its dispatchers' feet. The group of one that shares a
dispatcher never has members, so its state is asked for before. A group only ever goes back:
forward, events would be missed.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import TopicPartition

from knafka.core.contract import Egress
from knafka.core.errors import KnafkaError
from knafka.ports.shared_log import GroupHasMembers
from knafka_client.topics.ranges import RangeReader


class Delivering(KnafkaError):
    """The Trigger has dispatchers, so its offsets are theirs."""

    def __init__(self, egress: Egress) -> None:
        super().__init__(
            f"{egress.namespace}/{egress.trigger} is delivering: rewind it once it has no "
            "dispatcher (`knafka status`)"
        )


def rewind(connection: dict[str, Any], egress: Egress, since: float, *, dry_run: bool) -> int:
    """Set the Trigger's group back to the first record since then; returns how many it reads again.

    Raises `Delivering` if it has dispatchers, and `LogError`.
    """
    topic, back, count = egress.topic, [], 0
    with RangeReader(connection, egress.group) as reader:
        spans = reader.spans(topic)
        committed = reader.committed(topic, spans)
        starts = reader.offsets_since(topic, spans, since)
        for number, (low, _) in spans.items():
            # Without an offset a group reads from the partition's start.
            position = committed[number].offset if number in committed else low
            if starts[number] < position:
                back.append(TopicPartition(topic, number, starts[number]))
                count += position - starts[number]
        if back and not dry_run:
            try:
                reader.commit(back)
            except GroupHasMembers as error:
                raise Delivering(egress) from error
    return count
