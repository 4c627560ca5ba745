"""`knafka tail` and `knafka trace` of a cluster: its API server is ours, its Kafka is real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.api_server import api_server
from support.kafka import Kafka, MakeTopic
from typer.testing import CliRunner

from knafka.core.event import Event
from knafka.core.kafka_binding import to_record
from knafka_local import tailing
from knafka_local.cli import app
from knafka_operator.model.resources import CORE, EVENTING

pytestmark = pytest.mark.kafka

ELSEWHERE = "127.0.0.1:1"
"""Where the Broker's ConfigMap says that Kafka is: it is not reachable from here."""


@pytest.fixture
def kubeconfig(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> Iterator[Path]:
    """A cluster with the Broker shop/main and its Trigger mail, which wants orders; in the Broker's
    topic are an order and a payment."""
    name = topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for type_ in ("payment", "order"):
        about = {"specversion": "1.0", "id": f"{type_}-1", "source": "/s", "type": type_}
        draft = to_record(Event(about, b"1"))
        producer.produce(name, draft.value, headers=list(draft.headers))
    assert producer.flush(30) == 0
    with api_server() as (server, client):
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
    monkeypatch.setattr(tailing, "TIMEOUT", 1.0)
    result = CliRunner().invoke(app, [*arguments, "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 1
    assert f"Kafka at {ELSEWHERE}: " in str(result.exception)
    assert "--bootstrap-servers HOST:PORT" in str(result.exception)
