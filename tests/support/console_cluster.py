"""A cluster for the console: an API server with a Broker, a channel, and the operator's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.api_server import ApiServer, api_server
from support.memory.log import MemoryLog

from knafka.core.drain import Counts
from knafka.core.names import channel_topic, report_key, reports_topic
from knafka.observability import Metric, produced_metric, prometheus_text
from knafka_console.model.source import ArchiveName
from knafka_jobs.report.report_document import Report
from knafka_operator.model.resources import CORE, EVENTING
from knafka_operator.model.sensors import KNAFKA

MESSAGING = "messaging.knative.dev/v1beta1"
OURS = {"eventing.knative.dev/broker.class": "Kafka"}
TOPIC = "knative-broker-shop-main"
CHANNEL_TOPIC = channel_topic("shop", "orders")
LABELS = {"namespace": "shop", "broker": "main", "trigger": "mail"}
OF_CHANNEL = {"namespace": "shop", "channel": "orders", "subscription": "mail"}
PODS = "/api/v1/namespaces/knafka/pods"


def metrics(leads: bool, delivered: int = 7) -> str:
    """What a replica of the operator answers."""
    counts = Counts(read=9, filtered=1, delivered=delivered, retried=2, dead_lettered=1)
    found = [Metric("knafka_operator_leader", "h", [({}, int(leads))], "gauge")]
    if leads:
        found += [
            Metric("knafka_trigger_lag", "h", [(LABELS, 12), (OF_CHANNEL, 3)], "gauge"),
            Metric("knafka_trigger_replicas", "h", [(LABELS, 2)], "gauge"),
            Metric(
                "knafka_trigger_events_total",
                "h",
                [
                    ({**LABELS, "outcome": name}, getattr(counts, name))
                    for name in ("read", "filtered", "delivered", "retried", "dead_lettered")
                ],
            ),
            produced_metric([("all", TOPIC, {0: 40, 1: 2}), ("all", CHANNEL_TOPIC, {0: 5})]),
        ]
    return prometheus_text(found).decode()


def ready(**more: Any) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": "True"}], **more}


def put_archives(server: ApiServer) -> None:
    """Archives of two namespaces: in `shop`, one that has a report and one that has none yet."""
    server.kinds[KNAFKA] = {
        "DeadLetterArchive": "deadletterarchives",
        "DeadLetterReplay": "deadletterreplays",
    }
    report = {"made": "2026-01-31T06:00:00Z", "unresolved": 7, "groups": 2, "report": "r1"}
    scheduled = {"broker": "main", "report": {"schedule": "0 6 * * *"}}
    for namespace, name, status in (
        ("shop", "kept", {"report": report, "waiting": 0}),
        ("shop", "new", {"waiting": 5}),
        ("bank", "kept", {}),
    ):
        server.put(KNAFKA, "DeadLetterArchive", namespace, name, spec=scheduled, status=status)
    server.put(EVENTING, "Broker", "bank", "main", metadata={"annotations": OURS}, spec={},
               status=ready())  # fmt: skip


def report_in(memory: MemoryLog, archive: ArchiveName, report: Report) -> None:
    """The record of a Job that has reported."""
    topic = reports_topic(archive.namespace, "main")
    memory.create(topic)
    memory.store(topic, report_key(*archive), report.model_dump_json(by_alias=True).encode(), [])


@contextmanager
def console_cluster() -> Iterator[tuple[ApiServer, Any]]:
    """A Broker and a channel of ours, each with what is called `mail`, and a Broker that isn't."""
    with api_server() as (server, client):
        server.kinds[MESSAGING] = {"KafkaChannel": "kafkachannels"}
        server.kinds["messaging.knative.dev/v1"] = {"Subscription": "subscriptions"}
        servers = {"bootstrap.servers": "kafka:9092"}
        for name in ("kafka-broker-config", "kafka-channel-config"):
            server.put(CORE, "ConfigMap", "knafka", name, data=servers)
        broker = ready(
            annotations={**servers, "default.topic": TOPIC}, address={"url": "http://in/shop/main"}
        )
        server.put(EVENTING, "Broker", "shop", "main", metadata={"annotations": OURS}, spec={},
                   status=broker)  # fmt: skip
        server.put(EVENTING, "Broker", "shop", "foreign", spec={})
        for broker_name, name in (("main", "mail"), ("foreign", "other")):
            spec = {
                "broker": broker_name, "filter": {"attributes": {"type": "order"}},
                "subscriber": {"uri": "http://mail/"},
            }  # fmt: skip
            server.put(EVENTING, "Trigger", "shop", name, spec=spec, status=ready())
        channel = ready(annotations={**servers, "default.topic": CHANNEL_TOPIC})
        server.put(MESSAGING, "KafkaChannel", "shop", "orders", spec={}, status=channel)
        of = {"apiVersion": MESSAGING, "kind": "KafkaChannel", "name": "orders"}
        server.put(
            "messaging.knative.dev/v1", "Subscription", "shop", "mail", status=ready(),
            spec={
                "channel": of, "subscriber": {"uri": "http://post/"},
                "reply": {"uri": "http://answers/"},
            },
        )  # fmt: skip
        for pod, leads in (("operator-a", False), ("operator-b", True)):
            labels = {"app.kubernetes.io/name": "knafka", "app.kubernetes.io/component": "operator"}
            server.put(CORE, "Pod", "knafka", pod, metadata={"labels": labels})
            server.raw[f"{PODS}/{pod}:9090/proxy/metrics"] = metrics(leads)
        yield server, client
