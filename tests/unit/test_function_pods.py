"""What an installation adds to the pods of receivers and dispatchers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.operator_world import SETTINGS, OperatorWorld, condition

from knafka.core.errors import InvalidDocument
from knafka_operator.installation.function_pods import FunctionPods, needed_features
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import NotAllowed, Rejected
from knafka_operator.model.resources import SERVING

SHOP = "shop"
REQUIRED = {"KNAFKA_NAMESPACE": "knafka", "KNAFKA_IMAGE": "example.com/knafka:1"}
POD = """
imagePullSecrets: [{name: my-registry}]
nodeSelector: {pool: eventing}
tolerations:
  - {key: dedicated, operator: Equal, value: eventing, effect: NoSchedule}
affinity:
  nodeAffinity: {}
priorityClassName: eventing
"""
DENIED = (
    'admission webhook "validation.webhook.serving.knative.dev" denied the request: validation '
    "failed: must not set the field(s): spec.template.spec.nodeSelector, "
    "spec.template.spec.tolerations"
)


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    world = OperatorWorld()
    try:
        yield world
    finally:
        await world.operator.close()


def pods(**environment: str) -> FunctionPods:
    return Settings.from_environment({**REQUIRED, **environment}).pods


def pod_spec(world: OperatorWorld, service: str) -> dict[str, Any]:
    found = world.cluster.objects[SERVING, "Service", SHOP, service]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


async def test_receivers_and_dispatchers_get_what_the_installation_says(
    world: OperatorWorld,
) -> None:
    given = pods(
        KNAFKA_POD=POD,
        KNAFKA_RECEIVER_RESOURCES="limits: {memory: 512Mi}",
        KNAFKA_DISPATCHER_RESOURCES="requests: {cpu: 10m}",
    )
    await world.restart(pods=given)
    world.declare_broker(SHOP)
    world.declare_trigger(SHOP, "orders")
    await world.reconcile_broker(SHOP)
    await world.reconcile_trigger(SHOP, "orders")
    receiver, dispatcher = (
        pod_spec(world, name) for name in ("default-kn-receiver", "orders-kn-dispatcher")
    )
    for pod in (receiver, dispatcher):
        assert pod["imagePullSecrets"] == [{"name": "my-registry"}]
        assert pod["nodeSelector"] == {"pool": "eventing"}
        assert pod["tolerations"][0]["key"] == "dedicated"
        assert pod["priorityClassName"] == "eventing"
        assert pod["automountServiceAccountToken"] is False
    assert receiver["containers"][0]["resources"] == {"limits": {"memory": "512Mi"}}
    assert dispatcher["containers"][0]["resources"] == {"requests": {"cpu": "10m"}}


def test_without_a_setting_functions_ask_for_little_and_have_a_limit_of_memory() -> None:
    """Issue 29: without one, hostile input took what the node had."""
    assert pods() == SETTINGS.pods == FunctionPods()
    usual = {"requests": {"cpu": "25m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}
    assert pods().receiver_resources == pods().dispatcher_resources == usual
    assert pods().shard_resources["limits"] == {"memory": "1Gi"}
    assert pods(KNAFKA_DISPATCHER_RESOURCES="{}").dispatcher_resources == {}


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [
        ("KNAFKA_POD", "[", "KNAFKA_POD: no YAML"),
        ("KNAFKA_POD", "- name: x", "KNAFKA_POD: .*want an object"),
        ("KNAFKA_POD", "containers: [{name: mine}]", "unknown field containers: want affinity"),
        ("KNAFKA_POD", "serviceAccountName: mine", "unknown field serviceAccountName"),
        ("KNAFKA_POD", "tolerations: {key: x}", "KNAFKA_POD.tolerations: .*a list of objects"),
        ("KNAFKA_POD", "imagePullSecrets: [x]", "KNAFKA_POD.imagePullSecrets: .*list of objects"),
        ("KNAFKA_POD", "nodeSelector: linux", "KNAFKA_POD.nodeSelector: .*want an object"),
        ("KNAFKA_POD", "nodeSelector: {}", "KNAFKA_POD.nodeSelector: .*want an object"),
        ("KNAFKA_POD", "priorityClassName: 7", "KNAFKA_POD.priorityClassName: .*want a string"),
        ("KNAFKA_RECEIVER_RESOURCES", "cpu: 1", "unknown field cpu: want requests, limits"),
        ("KNAFKA_RECEIVER_RESOURCES", "limits: 1Gi", "RESOURCES.limits: .*want an object"),
        ("KNAFKA_DISPATCHER_RESOURCES", "limits: {cpu: [1]}", "limits.cpu: want a quantity"),
    ],
)
def test_what_is_wrong_ends_the_operator_by_its_name(variable: str, text: str, told: str) -> None:
    with pytest.raises(InvalidDocument, match=told):
        pods(**{variable: text})


@pytest.mark.parametrize(
    "error",
    [Rejected(f"can't apply Service orders: {DENIED}"), NotAllowed("exceeded quota: services")],
    ids=["by Knative", "by a quota"],
)
async def test_what_the_cluster_does_not_take_is_a_condition(
    world: OperatorWorld, error: Exception
) -> None:
    """Not silence: the reason was in the operator's log alone."""
    world.declare_broker(SHOP)
    world.declare_trigger(SHOP, "orders")
    await world.reconcile_broker(SHOP)
    world.cluster.refuse("apply", "Service", error=error)
    for status, type_ in (
        (await world.reconcile_broker(SHOP), "DataPlaneAvailable"),
        (await world.reconcile_trigger(SHOP, "orders"), "SubscriptionReady"),
    ):
        found = condition(status, type_)
        assert (found["status"], found["reason"]) == ("False", "FunctionRejected")
        assert str(error) in found["message"]
    world.cluster.permit()
    assert condition(await world.reconcile_broker(SHOP), "Ready")["status"] == "True"
    status = await world.reconcile_trigger(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True"


def test_a_field_that_knative_does_not_take_is_told_with_what_allows_it() -> None:
    told = needed_features(DENIED)
    assert "kubernetes.podspec-nodeselector, kubernetes.podspec-tolerations" in told
    assert "config-features" in told
    assert needed_features("must not set the field(s): spec.template.spec.hostNetwork") == ""
    assert needed_features("spec.tolerations: the server is busy") == ""
