"""func.yaml deployed: the Knative Service that `func deploy --build=false` makes of it (FN-12).

func can't be had through the package registries, so its part is played by `service_of`.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml
from support.cluster import Cluster
from support.installation import READY, ROOT
from support.secure_kafka import SecureKafka

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.ports.log import Record

FUNC_YAML: Final = ROOT / "func.yaml"


def service_of(function: dict[str, Any]) -> dict[str, Any]:
    """What func's Knative deployer makes of a func.yaml."""
    deploy = function["deploy"]
    options = deploy["options"]
    labels = {
        "function.knative.dev": "true",
        "function.knative.dev/name": function["name"],
        "function.knative.dev/runtime": function["runtime"],
    }
    scaling = {
        f"autoscaling.knative.dev/{key}-scale": str(options["scale"][key]) for key in ("min", "max")
    }
    probes = {
        f"{each}Probe": {"httpGet": {"path": path}}
        for each, path in deploy["healthEndpoints"].items()
    }
    container = {
        "name": "user-container",
        "image": function["image"],
        "env": [{"name": "BUILT", "value": "20261121T000000"}, *function["run"]["envs"]],
        "securityContext": {
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **probes,
    }
    limits = options.get("resources", {}).get("limits", {})
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": function["name"], "labels": labels},
        "spec": {
            "template": {
                "metadata": {"labels": labels, "annotations": scaling},
                "spec": {
                    "containerConcurrency": limits.get("concurrency", 0),
                    "containers": [container],
                },
            }
        },
    }


class Topic:
    """One topic of the tests' Kafka."""

    def __init__(self, kafka: SecureKafka, name: str) -> None:
        self.name = name
        self.bootstrap = kafka.bootstrap("PLAINTEXT")

    def make(self) -> None:
        asyncio.run(self._ask("make"))

    def delete(self) -> None:
        asyncio.run(self._ask("delete"))

    def records(self) -> list[Record]:
        return asyncio.run(self._ask("read"))

    async def _ask(self, what: str) -> list[Record]:
        admin = KafkaAdmin({"bootstrap.servers": self.bootstrap})
        try:
            match what:
                case "make":
                    await admin.ensure_topic(self.name, 2, 1, {})
                case "delete":
                    await admin.delete_topic(self.name)
                case "read":
                    return list(await admin.read_all(self.name, 10))
        finally:
            await admin.close()
        return []


@pytest.fixture
def topic(cluster_kafka: SecureKafka) -> Iterator[Topic]:
    found = Topic(cluster_kafka, f"func-{uuid.uuid4().hex[:8]}")
    found.make()
    yield found
    found.delete()


def test_the_service_that_func_makes_of_func_yaml_takes_events_into_its_topic(
    cluster: Cluster, namespace: str, topic: Topic
) -> None:
    """FN-12, UX-1: as it is in the repository, but for where the image and Kafka are."""
    function = yaml.safe_load(FUNC_YAML.read_text())
    function["image"] = cluster.image("knafka")
    for each in function["run"]["envs"]:
        if each["name"] == "KNAFKA_INGRESSES":
            (ingress,) = json.loads(each["value"])
            kafka = {"bootstrapServers": topic.bootstrap}
            each["value"] = json.dumps([{**ingress, "topic": topic.name, "kafka": kafka}])
    cluster.apply(service_of(function), namespace=namespace)
    name = function["name"]
    cluster.wait_for(lambda: cluster.is_ready("ksvc", name, namespace), READY, f"{name} is Ready")
    service = cluster.get("ksvc", name, namespace)
    assert service is not None

    answer = cluster.request(
        urlsplit(service["status"]["url"]).netloc,
        "/default/default",
        headers={
            "ce-specversion": "1.0",
            "ce-id": "1",
            "ce-source": "/tests",
            "ce-type": "made",
            "content-type": "application/json",
        },
        content=b'{"n": 1}',
    )

    assert answer.status_code == 202
    (record,) = topic.records()
    assert record.value() == b'{"n": 1}'
    assert dict(record.headers() or [])["ce_id"] == b"1"
