"""Where a destination is, on a real cluster (KN-DST)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.cluster import Cluster
from support.conformance_world import event, own_namespace
from support.installation import EVENTING, Installation, Subscriber
from support.listener import Listener
from support.watched import Watched

pytestmark = pytest.mark.timeout(600)

SERVING = "serving.knative.dev/v1"


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, watched: Watched) -> Iterator[str]:
    yield from own_namespace(cluster, watched)


@dataclass(frozen=True, slots=True)
class World:
    """A Broker whose dead letters go to a Service, a Trigger for each sort of destination."""

    installed: Installation
    listener: Listener
    namespace: str
    plain: Subscriber
    function: str
    """URL of a Knative Service."""

    def uri(self, trigger: str) -> str:
        return str(self.installed.status("trigger", trigger, self.namespace)["subscriberUri"])

    def paths(self, events: list[dict[str, Any]]) -> set[str]:
        return {str(each["path"]) for each in events}

    def seen_by_function(self) -> list[dict[str, Any]]:
        host = urlsplit(self.function).netloc
        answer = self.installed.cluster.request(host, "/seen", method="GET")
        found: list[dict[str, Any]] = answer.json()
        return found


def knative_service(cluster: Cluster, namespace: str, name: str) -> None:
    """The subscriber that remembers, as a Knative Service of one pod."""
    scale = {f"autoscaling.knative.dev/{each}-scale": "1" for each in ("min", "max")}
    container = {"image": cluster.image("knafka-test")}
    cluster.apply(
        {
            "apiVersion": SERVING,
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {
                "template": {
                    "metadata": {"annotations": scale},
                    "spec": {"containers": [container]},
                }
            },
        },
        namespace=namespace,
    )


@pytest.fixture(scope="module")
def world(installed: Installation, namespace: str, listener: Listener) -> World:
    cluster = installed.cluster
    knative_service(cluster, namespace, "function")
    plain = installed.subscriber(namespace, "plain")
    address = installed.broker(namespace, delivery={"deadLetterSink": plain.ref})
    installed.broker(namespace, "other", ready=False)
    subscribers: dict[str, dict[str, Any]] = {
        "service": {"ref": {"apiVersion": "v1", "kind": "Service", "name": "plain"}},
        "service-and-uri": {**plain.ref, "uri": "/a/b?c=d"},
        "function": {"ref": {"apiVersion": SERVING, "kind": "Service", "name": "function"}},
        "function-and-uri": {
            "ref": {"apiVersion": SERVING, "kind": "Service", "name": "function"},
            "uri": "deep/er",
        },
        "broker": {"ref": {"apiVersion": EVENTING, "kind": "Broker", "name": "other"}},
        "uri": listener.sink("/by-uri"),
    }
    cluster.wait_for(lambda: cluster.is_ready("ksvc", "function", namespace), 120, "the function")
    installed.until_ready("broker", "other", namespace, within=120)
    for name, subscriber in subscribers.items():
        installed.trigger(namespace, name, subscriber, ready=False)
    installed.trigger(
        namespace, "of-other", listener.sink("/of-other"), broker="other", ready=False
    )
    for name in (*subscribers, "of-other"):
        installed.until_ready("trigger", name, namespace, within=150)
    assert installed.post(address, event("sent"), b"{}").status_code == 202
    function = cluster.get("ksvc", "function", namespace)
    assert function is not None
    url = str(function["status"]["address"]["url"])
    return World(installed, listener, namespace, plain, url)


@pytest.mark.conformance("KN-DST-01", "KN-TRG-02")
def test_a_knative_service_is_the_address_it_tells(world: World) -> None:
    assert world.uri("function").rstrip("/") == world.function
    world.installed.cluster.wait_for(
        lambda: "/" in world.paths(world.seen_by_function()), 120, "the event at the function"
    )


@pytest.mark.conformance("KN-DST-01", "KN-BRK-01")
def test_another_broker_is_the_address_it_tells(world: World) -> None:
    address = world.installed.status("broker", "other", world.namespace)["address"]["url"]
    assert world.uri("broker") == address
    world.listener.wait_for(world.installed.cluster, "/of-other", "sent")


@pytest.mark.conformance("KN-DST-02", "KN-BRK-03")
def test_a_service_is_an_address_by_its_name(world: World) -> None:
    assert world.uri("service").rstrip("/") == world.plain.url
    world.installed.cluster.wait_for(
        lambda: "/" in world.paths(world.plain.seen()), 120, "the event at the Service"
    )
    status = world.installed.status("broker", "default", world.namespace)
    assert status["deadLetterSinkUri"].rstrip("/") == world.plain.url


@pytest.mark.conformance("KN-DST-03")
def test_a_uri_beside_a_reference_is_relative_to_it(world: World) -> None:
    assert world.uri("service-and-uri") == f"{world.plain.url}/a/b?c=d"
    assert world.uri("function-and-uri") == f"{world.function}/deep/er"
    wait_for = world.installed.cluster.wait_for
    wait_for(lambda: "/a/b" in world.paths(world.plain.seen()), 120, "the event at /a/b")
    wait_for(
        lambda: "/deep/er" in world.paths(world.seen_by_function()), 120, "the event at /deep/er"
    )


@pytest.mark.conformance("KN-DST-01")
def test_a_uri_is_itself(world: World) -> None:
    assert world.uri("uri") == world.listener.url("/by-uri")
    world.listener.wait_for(world.installed.cluster, "/by-uri", "sent")


@pytest.mark.conformance("KN-DST-04", "KN-TRG-03")
def test_what_has_no_address_is_not_ready_until_it_has_one(world: World) -> None:
    installed, namespace = world.installed, world.namespace
    installed.broker(
        namespace,
        "nowhere",
        ready=False,
        config={"apiVersion": "v1", "kind": "ConfigMap", "name": "x"},
    )
    missing = {
        "no-service": ({"apiVersion": "v1", "kind": "Service", "name": "later"}, "NotFound"),
        "no-function": ({"apiVersion": SERVING, "kind": "Service", "name": "x"}, "NotFound"),
        "no-address": (
            {"apiVersion": EVENTING, "kind": "Broker", "name": "nowhere"},
            "NotAddressable",
        ),
    }
    for name, (ref, _) in missing.items():
        installed.trigger(namespace, name, {"ref": ref}, ready=False)
    for name, (_, reason) in missing.items():
        has = installed.until_condition("trigger", name, namespace, "SubscriberResolved", reason)
        assert has["message"]
        status = installed.status("trigger", name, namespace)
        assert status["subscriberUri"] == ""
        ready = next(each for each in status["conditions"] if each["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("False", reason)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "later"},
        "spec": {"selector": {"app": "plain"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    installed.cluster.apply(json.dumps(service), namespace=namespace)
    installed.until_ready("trigger", "no-service", namespace, within=120)


@pytest.mark.conformance("KN-BRK-03", "KN-DST-04")
def test_a_broker_whose_sink_has_no_address_is_not_ready(world: World) -> None:
    ref = {"apiVersion": "v1", "kind": "Service", "name": "no-sink"}
    world.installed.broker(
        world.namespace, "sinkless", ready=False, delivery={"deadLetterSink": {"ref": ref}}
    )
    has = world.installed.until_condition(
        "broker", "sinkless", world.namespace, "DeadLetterSinkResolved", "NotFound"
    )
    assert has["status"] == "False"
    ready = world.installed.condition("broker", "sinkless", world.namespace, "Ready")
    assert ready["status"] == "False"
