"""`knafka tail` and `knafka trace` of a cluster: its API server is ours, its Kafka is real."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.api_server import api_server
from support.kafka import Kafka, MakeTopic
from typer.testing import CliRunner

from knafka.core import names
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka_cli.command_line import app
from knafka_client.topics import ranges
from knafka_operator.model.resources import CORE, EVENTING

pytestmark = pytest.mark.kafka

ELSEWHERE = "127.0.0.1:1"
"""Where the Broker's ConfigMap says that Kafka is: it is not reachable from here."""


@pytest.fixture
def market(kafka: Kafka) -> Iterator[str]:
    """A namespace with the KafkaChannel orders, whose topic is there."""
    namespace = f"market-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    name = names.channel_topic(namespace, "orders")
    admin.create_topics([NewTopic(name, num_partitions=3, replication_factor=1)])[name].result()
    yield namespace
    admin.delete_topics([name])[name].result()


@pytest.fixture
def kubeconfig(kafka: Kafka, topic: MakeTopic, market: str, tmp_path: Path) -> Iterator[Path]:
    """A cluster with the Broker shop/main and its Trigger mail, which wants orders, and with the
    KafkaChannel orders in `market` and its Subscription mail; in the topic of each are an order and
    a payment."""
    name = topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for type_ in ("payment", "order"):
        about = {"specversion": "1.0", "id": f"{type_}-1", "source": "/s", "type": type_}
        draft = to_record(Event(about, b"1"))
        for each in (name, names.channel_topic(market, "orders")):
            producer.produce(each, draft.value, headers=list(draft.headers))
    assert producer.flush(30) == 0
    with api_server() as (server, client):
        v1beta1, v1 = "messaging.knative.dev/v1beta1", "messaging.knative.dev/v1"
        server.kinds |= {
            v1beta1: {"KafkaChannel": "kafkachannels"}, v1: {"Subscription": "subscriptions"},
        }  # fmt: skip
        server.put(
            CORE, "ConfigMap", "knafka", "kafka-channel-config",
            data={"bootstrap.servers": ELSEWHERE},
        )  # fmt: skip
        server.put(v1beta1, "KafkaChannel", market, "orders", spec={"numPartitions": 3})
        of = {"apiVersion": v1, "kind": "KafkaChannel", "name": "orders"}
        subscriber = {"channel": of, "subscriber": {"uri": "http://mail/"}}
        server.put(v1, "Subscription", market, "mail", metadata={"uid": "1"}, spec=subscriber)
        server.put(
            CORE, "ConfigMap", "knafka", "kafka-broker-config",
            data={"bootstrap.servers": ELSEWHERE},
        )  # fmt: skip
        annotations = {
            "eventing.knative.dev/broker.class": "Kafka",
            "kafka.eventing.knative.dev/external.topic": name,
        }
        server.put(EVENTING, "Broker", "shop", "main", metadata={"annotations": annotations})
        spec = {
            "broker": "main", "filter": {"attributes": {"type": "order"}},
            "subscriber": {"uri": "http://mail/"},
        }  # fmt: skip
        server.put(EVENTING, "Trigger", "shop", "mail", spec=spec)
        file = tmp_path / "kubeconfig"
        context = {"cluster": "c", "user": "u", "namespace": "shop"}
        file.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "here",
                    "clusters": [{"name": "c", "cluster": {"server": client.configuration.host}}],
                    "users": [{"name": "u", "user": {}}],
                    "contexts": [{"name": "here", "context": context}],
                }
            )
        )  # fmt: skip
        yield file


def knafka(command: str, *arguments: str, kubeconfig: Path) -> str:
    result = CliRunner().invoke(app, [command, *arguments, "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result.stdout


def test_a_clusters_trigger_is_tailed(kafka: Kafka, kubeconfig: Path) -> None:
    printed = knafka(
        "tail", "trigger/mail", "--since", "1h", "--limit", "1", "--context", "here",
        "--bootstrap-servers", kafka.bootstrap_servers, kubeconfig=kubeconfig,
    )  # fmt: skip
    assert "order order-1 from /s: 1" in printed


def test_a_clusters_channel_and_subscription_are_tailed(
    kafka: Kafka, kubeconfig: Path, market: str
) -> None:
    at = ("--since", "1h", "--limit", "2", "--bootstrap-servers", kafka.bootstrap_servers)
    for name in (f"channel/{market}/orders", f"subscription/{market}/mail"):
        printed = knafka("tail", name, *at, kubeconfig=kubeconfig)
        assert "order order-1 from /s: 1" in printed
        assert "payment payment-1 from /s: 1" in printed


def test_a_clusters_event_is_traced_to_each_subscription(
    kafka: Kafka, kubeconfig: Path, market: str
) -> None:
    at = ("-n", market, "--bootstrap-servers", kafka.bootstrap_servers)
    printed = knafka("trace", "order-1", *at, kubeconfig=kubeconfig)
    assert f"by channel/{market}/orders, at knative-messaging-kafka.{market}.orders/" in printed
    assert f"subscription/{market}/mail  waiting  nothing of its partition is settled" in printed
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"kafka.{market}.orders.1"}
    )
    topic = names.channel_topic(market, "orders")
    ends = [TopicPartition(topic, number, 2) for number in range(3)]
    consumer.commit(offsets=ends, asynchronous=False)
    consumer.close()
    printed = knafka("trace", "order-1", *at, kubeconfig=kubeconfig)
    assert f"subscription/{market}/mail  settled  no dead letter: delivered" in printed


def test_a_clusters_event_is_traced(kafka: Kafka, kubeconfig: Path) -> None:
    at = ("--bootstrap-servers", kafka.bootstrap_servers)
    printed = knafka("trace", "order-1", *at, kubeconfig=kubeconfig)
    assert "by shop/main, at " in printed
    assert "shop/mail  waiting  nothing of its partition is settled" in printed
    printed = knafka("trace", "payment-1", *at, kubeconfig=kubeconfig)
    assert "shop/mail  not wanted  filter.attributes.type: " in printed


@pytest.mark.parametrize("arguments", [["tail"], ["trace", "order-1"]])
def test_a_kafka_that_is_not_reached_from_here_says_what_to_do(
    kubeconfig: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "KAFKA_ANSWER_TIMEOUT", 1.0)
    result = CliRunner().invoke(app, [*arguments, "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 1
    assert f"Kafka at {ELSEWHERE}: " in str(result.exception)
    assert "--bootstrap-servers HOST:PORT" in str(result.exception)
