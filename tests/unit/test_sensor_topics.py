"""What a Sensor's process asks of its topics before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest
from support.memory_sensors import sensor

from knafka.core.errors import LogError
from knafka.ports.log import Positions
from knafka.ports.transactions import TransactionalLog
from knafka.sensor.processor import Processor
from knafka.sensor.topics import MissingTopics


class HalvedLog:
    """A log of topics whose second partition has no leader, without the topics `missing`."""

    def __init__(self, *missing: str) -> None:
        self.missing = missing

    def ends(self, topic: str) -> Positions:
        raise LogError("Kafka did not answer within 15 s: leader not available")

    def reachable_ends(self, topic: str) -> Mapping[int, int | None]:
        if topic in self.missing:
            raise LogError("there is no such topic", unknown_topic=True)
        return {0: 5, 1: None}


def test_a_partition_without_a_leader_does_not_keep_a_sensor_from_beginning() -> None:
    log = cast(TransactionalLog, HalvedLog())
    Processor(sensor(1), lambda processor: log).check_topics()


def test_all_topics_that_do_not_exist_are_named() -> None:
    contract = sensor(1)
    log = cast(TransactionalLog, HalvedLog(contract.trigger_topic, contract.action_topic))
    named = f"missing topics: {contract.trigger_topic}, {contract.action_topic};"
    with pytest.raises(MissingTopics, match=named):
        Processor(contract, lambda processor: log).check_topics()
