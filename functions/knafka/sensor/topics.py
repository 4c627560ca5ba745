"""Checks a Sensor's topics: whether all exist, and which partitions of its changelog (the topic
that stores the events its triggers hold) can be read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from knafka.core.errors import LogError
from knafka.core.sensor.contract import SensorContract
from knafka.ports.transactions import TransactionalLog


class MissingTopics(LogError):
    """Raised if topics of the Sensor don't exist: only the operator creates them (BUS-S12)."""

    def __init__(self, topics: Sequence[str]) -> None:
        """`topics` are the missing ones. The operator creates the Sensor's own topics when it
        reconciles the Sensor, and the topic of a Broker or channel when it reconciles that; but it
        never creates an external topic."""
        super().__init__(
            f"missing topics: {', '.join(topics)}; the operator creates a Sensor's own topics"
            " again, and the topic of a Broker or channel when it reconciles that",
            unknown_topic=True,
        )


def check_topics(sensor: SensorContract, log: TransactionalLog) -> None:
    """Check that the Sensor's topics exist, as Kafka doesn't report a missing one to a group's
    member. Raises `MissingTopics`, which names all missing ones, or another `LogError`."""
    missing = list[str]()
    for topic in (
        sensor.topic,
        sensor.trigger_topic,
        sensor.changelog_topic,
        sensor.action_topic,
    ):
        try:
            log.reachable_ends(topic)  # also if a partition has no leader
        except LogError as error:
            if not error.unknown_topic:
                raise
            missing.append(topic)
    if missing:
        raise MissingTopics(missing)


def find_unreadable_changelogs(
    sensor: SensorContract, log: TransactionalLog, numbers: Collection[int]
) -> Collection[int]:
    """Return which of the changelog's partitions `numbers` can't be read now, as they have no
    leader: all of `numbers` if Kafka doesn't answer, none if the changelog doesn't exist. Raises no
    `LogError`."""
    if not numbers:
        return ()
    try:
        ends = log.reachable_ends(sensor.changelog_topic)
    except LogError as error:
        return () if error.unknown_topic else numbers
    return [number for number in numbers if number in ends and ends[number] is None]
