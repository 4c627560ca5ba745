"""What operator/deploy/monitoring asks Prometheus for, beside what the code exposes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import yaml
from support.channel_world import running_channels
from support.installation import ROOT
from support.memory.log import MemoryLog, MemoryWriter
from support.prometheus import METRIC, MONITORING, dashboard
from support.receiver_requests import ingress
from support.scaling import egress

from knafka.clients.kafka.kafka_statistics import ClientStatistics
from knafka.dispatcher.served import ServedEgress, egress_metrics
from knafka.observability import Metric
from knafka.receiver.ingest import IngestHandler
from knafka_operator.functions import services
from knafka_operator.runtime import metrics as operators


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MONITORING / name).read_text()))


def alerts() -> list[dict[str, Any]]:
    (rule,) = manifests("rules.yaml")
    return [alert for group in rule["spec"]["groups"] for alert in group["rules"]]


def series(metrics: Iterable[Metric]) -> Iterator[str]:
    for each in metrics:
        yield each.name
        if each.kind == "histogram":
            yield from (f"{each.name}_{suffix}" for suffix in ("bucket", "count", "sum"))


async def exposed() -> set[str]:
    ingest = IngestHandler([ingress()], [MemoryWriter(MemoryLog())])
    async with running_channels() as world:
        world.declare_channel("shop", "orders")
        await world.reconcile_channel("shop", "orders")
        return {
            *series(ingest.metrics()),
            *series(egress_metrics([ServedEgress(egress())], 0.0)),
            *series(ClientStatistics(15).metrics()),
            *series(operators.operator_metrics(world.operator)),
            operators._leader_metric(True).name,
        }


async def test_alerts_and_dashboard_ask_for_what_is_exposed() -> None:
    found = await exposed()
    asked = {name for each in (*alerts(), *dashboard()) for name in METRIC.findall(str(each))}
    assert len(asked) > 10
    assert asked - found == set()


def test_each_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == alert["annotations"].keys()
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names)


def test_each_alert_is_explained() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert [each["alert"] for each in alerts() if f"| `{each['alert']}` |" not in page] == []


def test_the_pods_of_every_role_are_scraped() -> None:
    pods = next(each for each in manifests("monitors.yaml") if each["kind"] == "PodMonitor")
    (expression,) = pods["spec"]["selector"]["matchExpressions"]
    assert expression["key"] == services.ROLE_LABEL
    assert set(expression["values"]) == {
        services.RECEIVER_ROLE,
        services.DISPATCHER_ROLE,
        services.REPLAYER_ROLE,
        services.SHARD_ROLE,
    }


@pytest.mark.conformance("DSP-8", "DSP-15")
@pytest.mark.parametrize("port", [operators.METRICS_PORT, operators.CHANNEL_PORT])
def test_the_operators_metrics_have_a_service(port: int) -> None:
    """DSP-15: also on port 8081."""
    deploy = MONITORING.parent / "operator.yaml"
    documents = {
        (each["kind"], each["metadata"]["name"]): each
        for each in yaml.safe_load_all(deploy.read_text())
    }
    (container,) = documents["Deployment", "knafka-operator"]["spec"]["template"]["spec"][
        "containers"
    ]
    named = {each["containerPort"]: each["name"] for each in container["ports"]}
    service = documents["Service", "knafka-metrics"]
    targets = {each["port"]: each["targetPort"] for each in service["spec"]["ports"]}
    assert targets[port] == named[port]
    monitor = next(each for each in manifests("monitors.yaml") if each["kind"] == "ServiceMonitor")
    labels = monitor["spec"]["selector"]["matchLabels"]
    assert labels.items() <= service["metadata"]["labels"].items()
    # Else each replica would be scraped more than once.
    others = [
        each
        for (kind, name), each in documents.items()
        if kind == "Service" and name != "knafka-metrics"
    ]
    assert all("labels" not in each["metadata"] for each in others)


@pytest.mark.conformance("DSP-8", "DSP-15", "DSP-21")
def test_metrics_of_channels_are_where_eventing_kafkas_are_scraped() -> None:
    """DSP-21: but in our namespace."""
    documents = yaml.safe_load_all((MONITORING.parent / "operator.yaml").read_text())
    (service,) = (
        each
        for each in documents
        if (each["kind"], each["metadata"]["name"]) == ("Service", "kafka-channel-dispatcher")
    )
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (operators.CHANNEL_PORT, "http-metrics")
    assert service["metadata"]["namespace"] == "knafka"
