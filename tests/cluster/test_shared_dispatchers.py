"""Shared dispatchers on the cluster: many Triggers, one pod (issue 15, items 1 and 5).

    KNAFKA_TRIGGERS=200 KNAFKA_INITIAL_SCALE=0 pytest tests/cluster/test_shared_dispatchers.py -s

Prints how long it takes until all are Ready, until an event that all want has reached the last of
them from zero, and which pods start for an event that one of them wants.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from support.cluster import Cluster
from support.gate import only_chaos
from support.installation import Installation
from support.numbered import sending

TRIGGERS: Final = int(os.environ.get("KNAFKA_TRIGGERS", "10"))
INITIAL_SCALE: Final = os.environ.get("KNAFKA_INITIAL_SCALE", "")
ISOLATION: Final = "knafka.dev/isolation"
SHARED: Final = {ISOLATION: "shared"}
OWN: Final = {ISOLATION: "own"}
SHARD: Final = "default-kn-shard-0"
RECEIVER: Final = "default-kn-receiver"
EVERYBODY: Final = "everybody"
WITHIN: Final = 300.0

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("brokers_go")]


@pytest.fixture(scope="module")
def settings(installed: Installation) -> Iterator[None]:
    if not INITIAL_SCALE:
        yield
        return
    with installed.settings(KNAFKA_INITIAL_SCALE=INITIAL_SCALE):
        yield


@only_chaos
@pytest.mark.usefixtures("settings")
def test_many_triggers_share_one_pod_and_one_event_starts_no_other(
    installed: Installation, namespace: str
) -> None:
    cluster = installed.cluster
    subscriber = installed.subscriber(namespace)
    address = installed.broker(namespace, annotations=SHARED)
    before = objects(cluster, namespace)
    print(f"\nobjects of a Broker without Triggers: {before}")
    began = time.monotonic()
    triggers = [trigger(namespace, number, subscriber.ref) for number in range(TRIGGERS)]
    cluster.apply({"apiVersion": "v1", "kind": "List", "items": triggers})
    made = time.monotonic() - began
    cluster.wait_for(lambda: ready(cluster, namespace) == TRIGGERS, WITHIN, "all are Ready")
    print(f"\n{TRIGGERS} Triggers: made after {made:.0f} s, all Ready after {age(began)}")
    more = objects(cluster, namespace) - before - TRIGGERS
    print(f"objects beside the Triggers themselves: {more}")
    assert more <= 2 * TRIGGERS, "at most three for each Trigger, itself included"
    services = cluster.kubectl("get", "ksvc", "-n", namespace, "-oname").split()
    assert {each.rpartition("/")[2] for each in services} == {RECEIVER, SHARD}

    at_zero(cluster, namespace)
    began = time.monotonic()
    assert installed.send(address, "to-all", EVERYBODY).status_code == 202
    accepted = age(began)
    cluster.wait_for(
        lambda: subscriber.summary()["received"] >= TRIGGERS, WITHIN, "all have got it"
    )
    print(f"from zero: accepted after {accepted}, delivered to all after {age(began)}")
    assert subscriber.summary()["received"] == TRIGGERS, "nobody got it twice"

    at_zero(cluster, namespace)
    subscriber.forget()
    began = time.monotonic()
    assert installed.send(address, "to-one", "type-7").status_code == 202
    subscriber.wait_for(1)
    print(f"from zero: delivered to the one that wants it after {age(began)}")
    assert pods(cluster, namespace) == {RECEIVER: 1, SHARD: 1}


@only_chaos
def test_a_trigger_that_moves_and_changes_under_load_loses_nothing_and_keeps_its_order(
    installed: Installation, namespace: str
) -> None:
    """Its neighbour, whose subscriber gets the same events, isn't disturbed by it."""
    moving = installed.subscriber(namespace, "moving")
    neighbour = installed.subscriber(namespace, "neighbour")
    address = installed.broker(namespace)
    installed.trigger(namespace, "neighbour", neighbour.ref, annotations=SHARED)
    installed.trigger(namespace, "moving", moving.ref, annotations=SHARED)
    with sending(installed, address) as sender:
        moving.wait_for(50)
        for number, isolation in enumerate((OWN, SHARED, SHARED, OWN, SHARED)):
            passes = {"not": {"exact": {"type": f"never-{number // 2}"}}}
            installed.trigger(
                namespace, "moving", moving.ref, annotations=isolation, filters=[passes]
            )
            moving.wait_for(len(sender.accepted))
    accepted = set(sender.accepted)
    assert len(accepted) > 100
    for each in (moving, neighbour):
        each.wait_for(len(accepted))
        assert accepted <= set(each.ids())
        print(f"{each.name}: {each.summary()} of {len(accepted)}")
    assert neighbour.summary()["duplicates"] == 0
    assert moving.summary()["outOfOrder"] == {}


def trigger(namespace: str, number: int, subscriber: Mapping[str, Any]) -> dict[str, Any]:
    wanted = [{"exact": {"type": each}} for each in (f"type-{number}", EVERYBODY)]
    return {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {"name": f"trigger-{number}", "namespace": namespace},
        "spec": {"broker": "default", "filters": [{"any": wanted}], "subscriber": subscriber},
    }


def ready(cluster: Cluster, namespace: str) -> int:
    path = "{.items[*].status.conditions[?(@.type=='Ready')].status}"
    found = cluster.kubectl("get", "triggers", "-n", namespace, f"-ojsonpath={path}")
    return found.split().count("True")


def objects(cluster: Cluster, namespace: str) -> int:
    """All objects of a namespace but Events, whatever their kind."""
    kinds = cluster.kubectl(
        "api-resources", "--namespaced", "--verbs=list", "-oname"
    ).split()  # fmt: skip
    listed = ",".join(each for each in kinds if not each.startswith("events"))
    found = cluster.kubectl("get", listed, "-n", namespace, "-oname", "--ignore-not-found")
    return len(found.splitlines())


def pods(cluster: Cluster, namespace: str) -> dict[str, int]:
    """Functions' pods that aren't ending, by Knative Service."""
    found = json.loads(
        cluster.kubectl("get", "pods", "-n", namespace, "-l", "knafka.dev/role", "-ojson")
    )
    names = [
        each["metadata"]["labels"]["serving.knative.dev/service"]
        for each in found["items"]
        if "deletionTimestamp" not in each["metadata"]
    ]
    return {name: names.count(name) for name in names}


def at_zero(cluster: Cluster, namespace: str) -> None:
    cluster.wait_for(lambda: not pods(cluster, namespace), WITHIN, "no pod of a function is left")


def age(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"
