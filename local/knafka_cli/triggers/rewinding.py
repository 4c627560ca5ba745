"""Rewinding a Trigger: its consumer group goes back to where its topic was at some time.

Kafka takes offsets from somebody who isn't in the group only while nobody is in it, so that a
Trigger that delivers can't be rewound under its dispatchers' feet. The group of one that shares a
dispatcher never has members, so its state is asked for before. A group only ever goes back:
forward, events would be missed.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from knafka.clients.kafka_client import log_error_of, open_client
from knafka.core.contract import Egress
from knafka.core.errors import KnafkaError
from knafka_client.topics.ranges import HAS_MEMBERS, KAFKA_ANSWER_TIMEOUT, spans_of


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
    consumer = open_client(
        Consumer, {**connection, "group.id": egress.group, "enable.auto.commit": False}
    )
    topic = egress.topic
    try:
        spans = spans_of(consumer, topic)
        places = [TopicPartition(topic, number) for number in spans]
        committed = {
            place.partition: place.offset
            for place in consumer.committed(places, timeout=KAFKA_ANSWER_TIMEOUT)
        }
        times = [TopicPartition(topic, number, int(since * 1000)) for number in spans]
        back, count = [], 0
        for place in consumer.offsets_for_times(times, timeout=KAFKA_ANSWER_TIMEOUT):
            low, end = spans[place.partition]
            # Without an offset a group reads from the start; without a record since then, from
            # the end.
            now = committed[place.partition] if committed[place.partition] >= 0 else low
            then = max(low, place.offset if place.offset >= 0 else end)
            if then < now:
                back.append(TopicPartition(topic, place.partition, then))
                count += now - then
        if back and not dry_run:
            for place in consumer.commit(offsets=back, asynchronous=False) or ():
                if place.error is not None:
                    raise KafkaException(place.error)
    except KafkaException as error:
        if error.args[0].code() in HAS_MEMBERS:
            raise Delivering(egress) from error
        raise log_error_of(error.args[0]) from error
    finally:
        consumer.close()
    return count
