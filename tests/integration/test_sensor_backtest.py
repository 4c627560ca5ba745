"""A backtest of a real topic beside the Sensor's function on it."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from support.gate import only_chaos
from support.kafka import Kafka, MakeTopic
from support.sensors import SensorWorld, process

from knafka.core.sensor.contract import Conditions
from knafka_jobs.backtest.backtest_run import BacktestResult, TimeSpan, backtest, records_of_topic
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.job_errors import JobError

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]


@only_chaos
def test_a_backtest_of_the_bus_says_what_the_function_fires(
    spark: SparkSession, kafka: Kafka, topic: MakeTopic
) -> None:
    world = SensorWorld(kafka, topic, 3, by_sender=True)
    client = KafkaClient(KafkaConnection(kafka.bootstrap_servers))
    sensor = world.sensor(
        [
            {"name": "any", "conditions": "a || b"},
            {"name": "both", "conditions": "a && b"},
            {"name": "key", "conditions": "2 of a && c", "correlation": "order"},
            {"name": "window", "conditions": "c && d", "within": "PT0.05S", "correlation": "order"},
            {
                "name": "absence",
                "conditions": "a && !b",
                "within": "PT0.5S",
                "correlation": "order",
            },
        ]
    )
    draw = random.Random(3)
    for number in range(150):
        kind = draw.choice("abcd")
        world.publish(f"{kind}{number}", order=str(draw.randrange(8)))

    def run(since: datetime | None, until: datetime) -> BacktestResult:
        first = None if since is None else round(since.timestamp() * 1000)
        span = TimeSpan(first, round(until.timestamp() * 1000))
        records, end = records_of_topic(spark, client, world.bus, span, datetime.now(UTC))
        conditions = Conditions(dependencies=sensor.dependencies, triggers=sensor.triggers)
        return backtest(records, conditions, end, 1000, None)

    later = datetime.now(UTC) + timedelta(hours=1)
    found = run(None, later)
    assert found.events == 150
    assert all(found.firings.values())
    processor = world.processor(sensor)
    fired = sum(found.firings.values())
    try:
        process([processor], lambda: len(world.actions()) >= fired)
        processor.step(round(time.time() * 1000))
        assert Counter(world.actions()) == Counter(
            f"{each['trigger']}: {' '.join(one['id'] for one in each['events'])}"
            for each in found.shown
        )
    finally:
        processor.close(10)

    assert run(datetime.now(UTC), later).events == 0
    world.publish("a1", at=-62_135_600_400_000)  # which is taken when it is read
    world.publish("b1")
    again = run(None, later)
    assert again.events == 152
    assert again.shown[-1]["events"][-1]["id"] == "a1"
    with pytest.raises(JobError, match="there is no topic none"):
        records_of_topic(spark, client, "none", TimeSpan(), later)
