"""What a Trigger promises, on a real cluster (KN-TRG)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support.cluster import Cluster
from support.conformance_world import event, own_namespace
from support.installation import EVENTING, Installation
from support.listener import Listener
from support.watched import Watched, is_ready

pytestmark = pytest.mark.timeout(600)

DEPENDENCY = "knative.dev/dependency"

FILTERS: dict[str, dict[str, Any]] = {
    "exact": {"filter": {"attributes": {"type": "wanted", "source": "/here"}}},
    "any-value": {"filter": {"attributes": {"colour": ""}}},
    "dialects": {
        "filter": {"attributes": {"type": "nothing is of this type"}},
        "filters": [
            {"prefix": {"type": "want"}},
            {"suffix": {"source": "here"}},
            {"not": {"exact": {"colour": "red"}}},
            {"any": [{"exact": {"size": "1"}}, {"cesql": "size > 10 AND EXISTS colour"}]},
            {"all": [{"cesql": "subject LIKE 's%'"}]},
        ],
    },
    "failing": {"filters": [{"cesql": "ABS(colour) = 1"}]},
}
"""Triggers by name; `failing` is an error for most events."""


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, watched: Watched) -> Iterator[str]:
    yield from own_namespace(cluster, watched)


@dataclass(frozen=True, slots=True)
class World:
    installed: Installation
    listener: Listener
    namespace: str
    address: str
    without_broker: dict[str, str]
    """The condition BrokerReady of `early` while there was no Broker."""

    def send(self, id_: str, type_: str = "made", **attributes: str) -> None:
        """All in one partition, so that what came before the last of them has come, or won't."""
        headers = event(id_, type_, **{"partitionkey": "k", **attributes})
        assert self.installed.post(self.address, headers, b"{}").status_code == 202

    def ids(self, path: str) -> set[str]:
        return {each.id for each in self.listener.at(path)}


@pytest.fixture(scope="module")
def world(installed: Installation, namespace: str, listener: Listener, watched: Watched) -> World:
    sink = {"deadLetterSink": listener.sink("/dead-of-early")}
    installed.trigger(namespace, "early", listener.sink("/early"), ready=False, delivery=sink)
    without_broker = installed.until_condition(
        "trigger", "early", namespace, "BrokerReady", "BrokerDoesNotExist"
    )
    address = installed.broker(namespace)
    depends = json.dumps({"apiVersion": EVENTING, "kind": "Broker", "name": "missing"})
    installed.trigger(
        namespace,
        "depending",
        listener.sink("/depending"),
        ready=False,
        annotations={DEPENDENCY: depends},
    )
    installed.trigger(namespace, "going", listener.sink("/going"), ready=False)
    for name, spec in FILTERS.items():
        installed.trigger(namespace, name, listener.sink(f"/{name}"), ready=False, **spec)
    for name in ("early", "going", *FILTERS):
        installed.until_ready("trigger", name, namespace, within=120)
    return World(installed, listener, namespace, address, without_broker)


@pytest.mark.conformance("KN-TRG-01")
def test_a_trigger_that_came_before_its_broker_says_so_and_is_ready_in_the_end(
    world: World, watched: Watched
) -> None:
    assert world.without_broker["status"] == "False"
    assert world.without_broker["message"] == 'Broker "default" does not exist'
    states = watched.states("trigger", world.namespace, "early")
    seen = [
        {each["type"]: each for each in state["status"]["conditions"]}
        for state in states
        if state.get("status", {}).get("conditions")
    ]
    assert seen[0]["Ready"]["reason"] == "BrokerDoesNotExist"
    assert seen[-1]["Ready"]["status"] == "True"
    assert all(
        each["BrokerReady"]["status"] == "True"
        for each in seen
        if each["Ready"]["status"] == "True"
    )


@pytest.mark.conformance("KN-TRG-02", "KN-TRG-04")
def test_subscriber_and_sink_are_told_before_a_trigger_is_ready(
    world: World, watched: Watched
) -> None:
    ready = [each for each in watched.states("trigger", world.namespace, "early") if is_ready(each)]
    assert ready
    for each in ready:
        assert each["status"]["subscriberUri"].startswith(world.listener.url("/early"))
        assert each["status"]["deadLetterSinkUri"] == world.listener.url("/dead-of-early")


@pytest.mark.conformance("KN-TRG-03", "KN-DST-04", "KN-BRK-14")
def test_a_subscriber_that_can_not_be_resolved_is_a_reason_and_an_empty_uri(
    world: World, watched: Watched
) -> None:
    """In one write with the generation it is about, though it was Ready before."""
    installed = world.installed
    installed.trigger(world.namespace, "lost", world.listener.sink("/lost"))
    ref = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "nobody"}}
    installed.trigger(world.namespace, "lost", ref, ready=False)
    installed.until_condition("trigger", "lost", world.namespace, "SubscriberResolved", "NotFound")
    assert installed.condition("trigger", "lost", world.namespace, "Ready")["status"] == "False"
    status = installed.status("trigger", "lost", world.namespace)
    assert status["subscriberUri"] == ""
    for state in watched.states("trigger", world.namespace, "lost"):
        if state.get("status", {}).get("observedGeneration") == status["observedGeneration"]:
            assert not is_ready(state)
            assert state["status"]["subscriberUri"] == ""


@pytest.mark.conformance("KN-TRG-05", "KN-TRG-06", "KN-BRK-02")
def test_subscriber_and_filter_may_change_and_ready_means_that_no_event_is_missed(
    world: World,
) -> None:
    for number in range(3):
        path = f"/early/{number}"
        world.installed.trigger(
            world.namespace,
            "early",
            world.listener.sink(path),
            filter={"attributes": {"type": f"now-{number}"}},
            delivery={"deadLetterSink": world.listener.sink("/dead-of-early")},
        )
        world.send(f"at-once-{number}", f"now-{number}")
        world.listener.wait_for(world.installed.cluster, path, f"at-once-{number}")
    assert [world.ids(f"/early/{number}") for number in range(3)] == [
        {"at-once-0"},
        {"at-once-1"},
        {"at-once-2"},
    ]


@pytest.mark.conformance("KN-TRG-07")
def test_a_trigger_that_is_gone_gets_no_events(world: World) -> None:
    world.send("before-it-went")
    world.listener.wait_for(world.installed.cluster, "/going", "before-it-went")
    world.installed.cluster.kubectl(
        "delete", "trigger", "going", "-n", world.namespace, "--timeout=90s"
    )
    world.send("after-it-went", colour="red")
    world.listener.wait_for(world.installed.cluster, "/any-value", "after-it-went")
    assert "after-it-went" not in world.ids("/going")


@pytest.mark.conformance("KN-TRG-08", "KN-TRG-10")
def test_filters_pass_what_they_say_and_nothing_else(world: World) -> None:
    events: dict[str, dict[str, str]] = {
        "all": {"type_": "wanted", "source": "/here", "colour": "blue", "size": "1"},
        "case": {"type_": "Wanted", "source": "/here"},
        "elsewhere": {"type_": "wanted", "source": "/here/not"},
        "red": {"type_": "wanted", "source": "/here", "colour": "red", "size": "1"},
        "large": {"type_": "wanted-too", "source": "/over-here", "colour": "blue", "size": "11"},
        "small": {"type_": "wanted-too", "source": "/over-here", "colour": "blue", "size": "2"},
        "colourless": {"type_": "wanted", "source": "/here", "size": "11"},
        "no-subject": {"type_": "wanted", "source": "/here", "size": "1", "subject": "t"},
        "one": {"type_": "other", "colour": "-1"},
        "last": {"type_": "wanted", "source": "/here", "colour": "1", "size": "1"},
    }
    for id_, attributes in events.items():
        world.send(f"f-{id_}", **{"subject": "s1", **attributes})
    wanted = {
        "exact": {"all", "red", "colourless", "no-subject", "last"},
        "any-value": {"all", "red", "large", "small", "one", "last"},
        "dialects": {"all", "large", "last"},
        "failing": {"one", "last"},
    }
    for name, ids in wanted.items():
        world.listener.wait_for(world.installed.cluster, f"/{name}", "f-last")
        came = {id_.removeprefix("f-") for id_ in world.ids(f"/{name}") if id_.startswith("f-")}
        assert came == ids, name


@pytest.mark.conformance("KN-TRG-11")
def test_the_conditions_of_a_trigger_are_upstreams(world: World) -> None:
    conditions = {
        each["type"]: each
        for each in world.installed.status("trigger", "exact", world.namespace)["conditions"]
    }
    assert set(conditions) >= {
        *("Ready", "BrokerReady", "SubscriptionReady", "DependencyReady", "SubscriberResolved"),
        *("DeadLetterSinkResolved", "OIDCIdentityCreated"),
    }
    assert {each["status"] for each in conditions.values()} == {"True"}
    assert conditions["DeadLetterSinkResolved"]["reason"] == "DeadLetterSinkNotConfigured"


@pytest.mark.conformance("KN-TRG-13")
def test_a_trigger_waits_for_what_it_depends_on(world: World) -> None:
    installed = world.installed
    has = installed.until_condition(
        "trigger", "depending", world.namespace, "DependencyReady", "DependencyDoesNotExist"
    )
    assert has["message"] == f"Broker {world.namespace}/missing does not exist"
    ready = installed.condition("trigger", "depending", world.namespace, "Ready")
    assert ready["status"] == "False"
    depends = json.dumps({"apiVersion": EVENTING, "kind": "Broker", "name": "default"})
    installed.trigger(
        world.namespace,
        "depending",
        world.listener.sink("/depending"),
        annotations={DEPENDENCY: depends},
        ready=False,
    )
    installed.cluster.wait_for(
        lambda: (
            installed.condition("trigger", "depending", world.namespace, "Ready").get("status")
            == "True"
        ),
        120,
        "the Trigger is Ready once what it depends on is",
    )
