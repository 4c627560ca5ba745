"""A component that is switched on or off: the API server asks what the operator declares then
(issue 30). It restarts the operator, so nothing else may run beside it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Final

import pytest
from support.channels import channel
from support.cluster import OPERATOR_NAMESPACE, Cluster
from support.gate import only_chaos
from support.installation import Installation
from support.steady_load import RATE, Load, longest_pause

pytestmark = pytest.mark.alone

EVENTS_A_SECOND: Final = float(os.environ.get("KNAFKA_RATE", RATE))
LONGEST_PAUSE: Final = 3.0
AFTERWARDS: Final = 6.0
CHANNELS_ON: Final = "KNAFKA_CHANNELS=enabled"
CHANNELS_OFF: Final = "KNAFKA_CHANNELS-"
REPLICAS: Final = "app.kubernetes.io/name=knafka,app.kubernetes.io/component=operator"
WEBHOOKS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
OF_BROKERS = {"default-broker", "default-trigger", "check-broker", "check-trigger"}
OF_CHANNELS = {"default-channel", "default-subscription", "check-channel", "check-subscription"}


def _registered(cluster: Cluster) -> set[str]:
    found: set[str] = set()
    for kind in WEBHOOKS:
        stored = json.loads(cluster.kubectl("get", kind, "knafka.dev", "-ojson"))
        found |= {each["name"].removesuffix(".knafka.dev") for each in stored["webhooks"]}
    return found


@pytest.fixture
def switchable(installed: Installation) -> Iterator[Installation]:
    """With everything of KafkaChannels but the variable; it is as it was afterwards."""
    deployment = installed.cluster.get("deployment", "knafka-operator", OPERATOR_NAMESPACE)
    assert deployment is not None
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    was_on = {"name": "KNAFKA_CHANNELS", "value": "enabled"} in container["env"]
    installed.prepare("channels")
    yield installed
    _switch(installed, CHANNELS_ON if was_on else CHANNELS_OFF)


@pytest.mark.timeout(600)
def test_admission_is_what_the_newest_operator_declares_when_a_component_is_switched(
    switchable: Installation, namespace: str
) -> None:
    """The old replicas end last, and wrote what they knew: `numPartitions` 1 → 5 was taken."""
    cluster = switchable.cluster
    _switch(switchable, CHANNELS_ON)
    assert _registered(cluster) == OF_BROKERS | OF_CHANNELS
    cluster.apply(channel(namespace, "orders", numPartitions=1))
    stored = cluster.get("kafkachannel", "orders", namespace)
    assert stored is not None
    assert "messaging.knative.dev/subscribable" in stored["metadata"]["annotations"]
    more = json.dumps(channel(namespace, "orders", numPartitions=5))
    refused = cluster.kubectl("apply", "-f-", text=more, check=False)
    assert "validation failed" in refused
    cluster.kubectl("delete", "kafkachannel", "orders", "-n", namespace, "--timeout=60s")

    # An upgrade from a version that has kopf write what it knows as it ends.
    for kind in WEBHOOKS:
        webhooks = json.loads(cluster.kubectl("get", kind, "knafka.dev", "-ojson"))["webhooks"]
        older = [each for each in webhooks if "broker" in each["name"]]
        patch = json.dumps({"webhooks": older})
        cluster.kubectl("patch", kind, "knafka.dev", "--type=merge", "-p", patch)
    cluster.wait_for(
        lambda: _registered(cluster) == OF_BROKERS | OF_CHANNELS, 20, "they are registered again"
    )

    _switch(switchable, CHANNELS_OFF)
    assert _registered(cluster) == OF_BROKERS


@only_chaos  # a minute and more for each
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("brokers_go")
def test_who_is_awake_notices_neither_a_switch_nor_another_operator(
    switchable: Installation, namespace: str
) -> None:
    """Prints how long nothing arrived."""
    installed = switchable
    subscriber = installed.subscriber(namespace)
    address = installed.broker(namespace)
    installed.trigger(namespace, "all", subscriber.ref)
    changes = {
        "a component switched on": CHANNELS_ON,
        "a component switched off": CHANNELS_OFF,
        "another image of the operator": "EXAMPLE=changed",  # the same: pods are made anew
    }
    pauses: dict[str, float] = {}
    with Load(address, EVENTS_A_SECOND) as load:
        subscriber.wait_for(50)
        for name, variable in changes.items():
            began = time.time()
            _switch(installed, variable)
            time.sleep(AFTERWARDS)  # of load; it is the time that is looked at
            pauses[name] = longest_pause(subscriber.seen(), began, time.time())
            print(f"{name}: nothing arrived for {pauses[name]:.2f} s")
    subscriber.wait_for(len(load.accepted), within=90)
    print(f"{len(load.accepted)} accepted, {len(load.failed)} not")
    assert load.failed == {}
    assert load.accepted <= set(subscriber.ids())
    assert max(pauses.values()) < LONGEST_PAUSE


def _switch(installed: Installation, variable: str) -> None:
    """Have the operator run with this; returns when no replica without it is left."""
    cluster = installed.cluster
    cluster.kubectl("set", "env", "-n", OPERATOR_NAMESPACE, "deploy/knafka-operator", variable)
    installed.until_running()
    pods = ("get", "pods", "-n", OPERATOR_NAMESPACE, "-l", REPLICAS, "-oname")
    cluster.wait_for(lambda: len(cluster.kubectl(*pods).split()) == 2, 60, "they have ended")
