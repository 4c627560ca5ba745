"""librdkafka's statistics become metrics: pooled by kind of client, a series a node at most."""

from __future__ import annotations

import json
from typing import Any

import pytest

from knafka.clients.kafka.kafka_statistics import ClientStatistics
from knafka.observability import Histogram, prometheus_text


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def broker(name: str, number: int, source: str = "learned", **more: Any) -> dict[str, Any]:
    """As librdkafka writes one: round trips in microseconds, throttling in milliseconds."""
    return {
        "name": f"{name}/{number}",
        "nodeid": number,
        "nodename": name,
        "source": source,
        "rtt": {"cnt": 4, "p50": 2_000, "p99": 8_000, **more.get("rtt", {})},
        "throttle": {"max": 0, **more.get("throttle", {})},
    }


def producer(name: str, *brokers: dict[str, Any], records: int = 0, size: int = 0) -> str:
    found = {each["name"]: each for each in brokers}
    of = {"type": "producer", "msg_cnt": records, "msg_size": size, "brokers": found, "topics": {}}
    return json.dumps({"name": name, "client_id": "rdkafka", **of})


def consumer(name: str, *queued: tuple[int, int]) -> str:
    """`queued` are records and bytes by partition."""
    partitions = {
        str(number): {"fetchq_cnt": count, "fetchq_size": size}
        for number, (count, size) in enumerate(queued)
    }
    topics = {"events": {"partitions": partitions}}
    brokers = {each["name"]: each for each in (broker("kafka-0:9092", 0),)}
    return json.dumps({"name": name, "type": "consumer", "brokers": brokers, "topics": topics})


def samples(statistics: ClientStatistics, name: str) -> dict[tuple[str, ...], float]:
    """By the values of the labels."""
    (found,) = (each for each in statistics.metrics() if each.name == name)
    assert found.kind == "gauge"
    return {
        tuple(labels.values()): value
        for labels, value in found.samples
        if not isinstance(value, Histogram)
    }


def test_clients_of_one_kind_are_put_together_by_node() -> None:
    statistics = ClientStatistics(15)
    slow = broker("kafka-0:9092", 0, rtt={"p50": 4_000, "p99": 5_000}, throttle={"max": 250})
    other = broker("kafka-1:9092", 1)
    statistics.keep(producer("one", broker("kafka-0:9092", 0), records=3, size=300))
    statistics.keep(producer("two", slow, other, records=4, size=400))
    statistics.keep(consumer("three", (10, 1000), (5, 500)))
    assert samples(statistics, "knafka_kafka_rtt_seconds") == {
        ("consumer", "kafka-0:9092", "50"): 0.002,
        ("consumer", "kafka-0:9092", "99"): 0.008,
        ("producer", "kafka-0:9092", "50"): 0.004,
        ("producer", "kafka-0:9092", "99"): 0.008,
        ("producer", "kafka-1:9092", "50"): 0.002,
        ("producer", "kafka-1:9092", "99"): 0.008,
    }
    assert samples(statistics, "knafka_kafka_throttle_seconds") == {
        ("consumer", "kafka-0:9092"): 0.0,
        ("producer", "kafka-0:9092"): 0.25,
        ("producer", "kafka-1:9092"): 0.0,
    }
    assert samples(statistics, "knafka_kafka_queue_records") == {
        ("consumer",): 15,
        ("producer",): 7,
    }
    assert samples(statistics, "knafka_kafka_queue_bytes") == {
        ("consumer",): 1500,
        ("producer",): 700,
    }


def test_bootstrap_addresses_and_coordinators_are_no_nodes() -> None:
    """They are connections to nodes that have a series already."""
    statistics = ClientStatistics(15)
    bootstrap = broker("kafka:9092", -1, "configured")
    coordinator = {**broker("kafka-0:9092", -1, "logical"), "name": "GroupCoordinator"}
    statistics.keep(producer("one", broker("kafka-0:9092", 0), bootstrap, coordinator))
    assert samples(statistics, "knafka_kafka_throttle_seconds") == {
        ("producer", "kafka-0:9092"): 0.0
    }


def test_a_node_that_answered_nothing_in_the_interval_has_no_round_trip() -> None:
    statistics = ClientStatistics(15)
    idle = broker("kafka-0:9092", 0, rtt={"cnt": 0, "p50": 0, "p99": 0})
    statistics.keep(producer("one", idle))
    assert samples(statistics, "knafka_kafka_rtt_seconds") == {}


def test_the_last_report_of_a_client_counts_until_it_reports_no_more() -> None:
    clock = Clock()
    statistics = ClientStatistics(10, clock)
    statistics.keep(producer("one", records=3))
    statistics.keep(producer("two", records=5))
    statistics.keep(producer("one", records=4))
    assert samples(statistics, "knafka_kafka_queue_records") == {("producer",): 9}
    clock.now += 20
    statistics.keep(producer("two", records=6))
    clock.now += 6
    assert samples(statistics, "knafka_kafka_queue_records") == {("producer",): 6}
    clock.now += 60
    assert samples(statistics, "knafka_kafka_queue_records") == {}


def test_of_a_producer_nothing_is_kept_of_its_topics() -> None:
    """A receiver of many channels has thousands of partitions."""
    statistics = ClientStatistics(15)
    report = json.loads(producer("one", broker("kafka-0:9092", 0), records=2))
    many: dict[str, object] = {f"events-{n}": {"partitions": {}} for n in range(1000)}
    statistics.keep(json.dumps({**report, "topics": many}))
    ((_, kept),) = statistics._reports.values()
    assert len(kept) < 1000
    assert samples(statistics, "knafka_kafka_queue_records") == {("producer",): 2}


def test_nothing_is_parsed_before_the_metrics_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report comes on the thread that polls, and the metrics are asked for on the event loop;
    they are written on another thread, where a report is parsed once."""
    parsed = list[str]()

    def loads(text: str) -> Any:
        parsed.append(text)
        return decoded

    statistics = ClientStatistics(15)
    text = consumer("one", (1, 10))
    decoded = json.loads(text)
    monkeypatch.setattr("knafka.clients.kafka.kafka_statistics.json.loads", loads)
    statistics.keep(text)
    found = list(statistics.metrics())
    assert parsed == []
    assert b'knafka_kafka_throttle_seconds{client="consumer"' in prometheus_text(found)
    assert len(parsed) == 1


def test_without_an_interval_no_client_reports() -> None:
    assert ClientStatistics(0).connection == {}
    connection = ClientStatistics(15).connection
    assert connection["statistics.interval.ms"] == 15_000
    assert connection.keys() == {"statistics.interval.ms", "stats_cb"}
