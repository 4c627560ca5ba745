"""What the conformance tests on a cluster share: a listener, a watch, a namespace for each module.

Deploying is what takes time there, so a module deploys its Brokers and Triggers once, and its tests
look at what came of it from every side. Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pytest
from support.cluster import Cluster
from support.installation import EVENTING
from support.listener import Listener
from support.watched import Watched, violations

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.ports.log import Record
from testcluster import settings

CLASS: Final = "eventing.knative.dev/broker.class"
ADMISSION: Final = 60.0
"""Seconds that admission may be away, which Knative lets pass: the operator has one replica."""


@pytest.fixture(scope="session")
def listener() -> Iterator[Listener]:
    """A subscriber in this process; each module has paths of its own."""
    found = Listener(settings.HOST_IP)
    yield found
    found.close()


@pytest.fixture(scope="session")
def watched(cluster: Cluster) -> Iterator[Watched]:
    found = Watched(cluster)
    yield found
    found.close()


def own_namespace(cluster: Cluster, watched: Watched) -> Iterator[str]:
    """A namespace for a module's tests, whose Brokers are deleted before it is.

    At last every state that its Brokers and Triggers went through is judged (KN-CON, `watched`).
    """
    name = f"conformance-{uuid.uuid4().hex[:6]}"
    cluster.make_namespace(name)
    watched.namespaces.add(name)
    yield name
    for kind in ("triggers", "brokers"):
        cluster.delete(kind, name, within=90)
    cluster.delete("namespace", "", name)
    of_module = {who: states for who, states in watched.histories().items() if who[1] == name}
    assert violations(of_module) == []


def trigger(name: str, annotations: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A Trigger's manifest; a field of `spec` that is None is left out."""
    spec = {"broker": "default", "subscriber": {"uri": "http://nowhere.test/"}, **spec}
    return {
        "apiVersion": EVENTING,
        "kind": "Trigger",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def broker(name: str, class_: str = "kafka", **spec: Any) -> dict[str, Any]:
    """A Broker's manifest; without `spec` it has none."""
    manifest = {
        "apiVersion": EVENTING,
        "kind": "Broker",
        "metadata": {"name": name, "annotations": {CLASS: class_}},
    }
    return {**manifest, "spec": spec} if spec else manifest


def tried(cluster: Cluster, namespace: str, *manifests: Mapping[str, Any]) -> str:
    """What the API server says to them, all of its webhooks asked; nothing is stored."""
    items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    return cluster.kubectl(
        "apply", "-n", namespace, "--dry-run=server", "-f-", text=json.dumps(items), check=False
    )


def refused(
    cluster: Cluster, namespace: str, manifests: Sequence[Mapping[str, Any]], *told: str
) -> None:
    """Each is refused, and every text is among what is said."""

    def said() -> bool:
        answer = tried(cluster, namespace, *manifests)
        denied = answer.count("denied the request: validation failed: ")
        return denied == len(manifests) and all(text in answer for text in told)

    cluster.wait_for(said, ADMISSION, f"{len(manifests)} manifests are refused with {told}")


def taken(cluster: Cluster, namespace: str, *manifests: Mapping[str, Any]) -> None:
    """All of them would be stored."""
    answer = tried(cluster, namespace, *manifests)
    assert answer.count("(server dry run)") == len(manifests), answer


def event(id_: str, type_: str = "made", **attributes: str) -> dict[str, str]:
    """The headers of an event in binary mode."""
    return {
        "ce-specversion": "1.0",
        "ce-id": id_,
        "ce-source": "/conformance",
        "ce-type": type_,
        "content-type": "application/json",
        **{f"ce-{name}": value for name, value in attributes.items()},
    }


def topics(bootstrap: str, *names: str) -> dict[str, list[Record] | None]:
    """Every record of these topics; None for a topic that doesn't exist."""

    async def read() -> dict[str, list[Record] | None]:
        admin = KafkaAdmin({"bootstrap.servers": bootstrap})
        try:
            there = await admin.topics()
            return {
                name: list(await admin.read_last(name, 1000)) if name in there else None
                for name in names
            }
        finally:
            await admin.close()

    return asyncio.run(read())
