"""KafkaChannels and Subscriptions in the test cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from support.cluster import OPERATOR_NAMESPACE, Cluster
from support.installation import Installation, leaving

VERSION: Final = "messaging.knative.dev/v1beta1"
RECEIVER: Final = "kafka-channel-receiver"
SMOKE_TEST: Final = {
    "ce-id": "123",
    "ce-source": "/testsource",
    "ce-specversion": "1.0",
    "ce-type": "test.type.v1",
    "content-type": "application/json",
}
"""The headers of DSP-19's request."""


class Channels:
    """An installation that serves them."""

    def __init__(self, installed: Installation) -> None:
        self.installed = installed
        self.cluster = installed.cluster

    def declare(self, namespace: str, name: str, **spec: Any) -> None:
        self.cluster.apply(channel(namespace, name, **spec))

    def channel(self, namespace: str, name: str, **spec: Any) -> str:
        """Apply a KafkaChannel; gives its address once it is Ready."""
        self.declare(namespace, name, **spec)
        self.installed.until_ready("kafkachannel", name, namespace)
        return self.address(namespace, name)

    def address(self, namespace: str, name: str) -> str:
        return str(self.installed.status("kafkachannel", name, namespace)["address"]["url"])

    def subscription(
        self,
        namespace: str,
        name: str,
        of: str,
        subscriber: Mapping[str, Any],
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Apply a Subscription; returns once it is Ready."""
        self.cluster.apply(subscription(namespace, name, of, subscriber, annotations, **spec))
        self.installed.until_ready("subscription", name, namespace)

    def receiver_pods(self) -> list[dict[str, Any]]:
        return self.cluster.pods(OPERATOR_NAMESPACE, RECEIVER)


def channel(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": VERSION,
        "kind": "KafkaChannel",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"numPartitions": 2, "replicationFactor": 1, **spec},
    }


def subscription(
    namespace: str,
    name: str,
    of: str,
    subscriber: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    to = {"apiVersion": VERSION, "kind": "KafkaChannel", "name": of}
    return {
        "apiVersion": "messaging.knative.dev/v1",
        "kind": "Subscription",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": dict(annotations or {}),
        },
        "spec": {"channel": to, "subscriber": dict(subscriber), **spec},
    }


@pytest.fixture(scope="session")
def channels(installed: Installation) -> Channels:
    """The component operator/deploy/channels, which `installed` has added."""
    return Channels(installed)


@pytest.fixture
def channels_go(request: pytest.FixtureRequest, cluster: Cluster, namespace: str) -> Iterator[None]:
    """Delete what the test made before its namespace, so that Kafka is left clean."""
    yield
    for kind in ("subscriptions.messaging.knative.dev", "kafkachannels"):
        cluster.delete(kind, namespace, within=leaving(request))
