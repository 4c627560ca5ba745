"""The leader on an API server: who is told of what, how soon, and what it costs.

Everything is real but the API server, which is a small one, and Kafka, which is in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import kubernetes
import pytest
from support.api_server import ApiServer, api_server
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryWriter
from support.operator_world import SETTINGS
from support.waiting import stretched

from knafka.core import names
from knafka.core.errors import LogError
from knafka.ports.log import TopicDescription
from knafka_operator.engine.work_queue import BACK_OFF
from knafka_operator.functions.tracing import tracing_variables_of
from knafka_operator.installation.tracing import FunctionTracing
from knafka_operator.kube_api.cache import CachedCluster
from knafka_operator.kube_api.cluster import ApiCluster
from knafka_operator.model.event_policies import POLICIES_VERSION, POLICY, POLICY_DEFINITION
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import BROKER_CLASS, CORE, EVENTING, FINALIZER, SERVING
from knafka_operator.operator import Operator
from knafka_operator.runtime.controller import ClusterController
from knafka_operator.runtime.selections import TRIGGERS
from knafka_operator.wiring import OperatorClients

pytestmark = pytest.mark.slow

WITHIN = 5.0
"""Seconds within which a change is seen: one that no watch reports waits for a resync, 300 s."""
SINKS = "sinks.example/v1"
AWAY = "away:9092"
OBJECTS = (("Broker", "shop", "default"), ("Trigger", "shop", "mail"))
BAD = 40
"""Objects of a tenant with whom something is wrong: more than are reconciled at a time."""


async def _answers(url: str) -> None:
    """Every receiver does."""


class World:
    """One leader."""

    def __init__(self, server: ApiServer, client: kubernetes.client.ApiClient) -> None:
        self.server = server
        self.log = MemoryLog()
        self.broken: LogError | None = None
        self.waiting = 0
        """Questions that a Kafka which is away was asked."""
        self.api = ApiCluster(client)
        self.cluster = CachedCluster(self.api)
        settings = replace(SETTINGS, tracing=FunctionTracing())
        self.operator = Operator(
            settings,
            self.cluster,
            OperatorClients(self._connect, lambda _: MemoryWriter(self.log), probe=_answers),
        )
        self.controller = ClusterController(self.operator, self.cluster, self.api)
        server.put(
            CORE, "ConfigMap", "knafka", SETTINGS.config, data={"bootstrap.servers": "kafka:9092"}
        )

    def _connect(self, configuration: Mapping[str, Any]) -> MemoryAdmin:
        world, is_away = self, configuration["bootstrap.servers"] == AWAY

        class Admin(MemoryAdmin):
            async def describe_topic(self, topic: str) -> TopicDescription | None:
                if is_away:
                    world.waiting += 1
                    await asyncio.sleep(15)
                    raise LogError("Kafka did not answer within 15 s")
                return await super().describe_topic(topic)

            async def delete_topic(self, topic: str) -> None:
                if world.broken is not None:
                    raise world.broken
                await super().delete_topic(topic)

        return Admin(self.log)

    def broker(self, name: str = "default", class_: str = "kafka", **more: Any) -> None:
        metadata = {"annotations": {BROKER_CLASS: class_}}
        self.server.put(EVENTING, "Broker", "shop", name, metadata=metadata, **more)

    def trigger(self, name: str = "mail", broker: str = "default", **spec: Any) -> None:
        spec = {"broker": broker, "subscriber": {"uri": "http://there/"}, **spec}
        self.server.put(EVENTING, "Trigger", "shop", name, spec=spec)

    def condition(self, kind: str, name: str, type_: str = "Ready") -> tuple[str, str]:
        """Its status and reason."""
        found = self.server.found(EVENTING, kind, "shop", name) or {}
        for each in found.get("status", {}).get("conditions", ()):
            if each["type"] == type_:
                return each["status"], each.get("reason", "")
        return "", ""

    def is_ready(self, kind: str, name: str) -> bool:
        return self.condition(kind, name)[0] == "True"

    def events(self) -> set[str]:
        """Kind and reason of each Event."""
        found = [each for path, each in list(self.server.objects.items()) if "/events/" in path]
        return {f"{each['involvedObject']['kind']} {each['reason']}" for each in found}

    def calls(self, method: str, part: str = "") -> list[str]:
        return [each for each in self.server.calls if each.startswith(method) and part in each]


async def until(holds: Callable[[], bool], within: float = 10.0) -> float:
    """Seconds until it held."""
    began = time.monotonic()
    async with asyncio.timeout(stretched(within)):
        while not holds():  # noqa: ASYNC110  # told by other threads
            await asyncio.sleep(0.005)
    return time.monotonic() - began


@asynccontextmanager
async def _leading() -> AsyncIterator[World]:
    with api_server() as (server, client):
        world = World(server, client)
        task = asyncio.create_task(world.controller.run())
        try:
            yield world
        finally:
            task.cancel()
            await asyncio.wait({task})
            await world.operator.close()
            world.api.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with _leading() as world:
        yield world


@pytest.fixture
async def ready(world: World) -> World:
    """A Broker and its Trigger are Ready."""
    world.broker()
    world.trigger()
    await until(lambda: world.is_ready("Trigger", "mail"))
    return world


async def test_what_is_declared_is_ready_soon_and_has_a_finalizer(ready: World) -> None:
    assert ready.is_ready("Broker", "default")
    for kind, name in (("Broker", "default"), ("Trigger", "mail")):
        found = ready.server.found(EVENTING, kind, "shop", name)
        assert found is not None
        assert found["metadata"]["finalizers"] == [FINALIZER]


async def test_nothing_of_ours_lands_on_users_objects_but_finalizer_and_status(
    ready: World,
) -> None:
    """Issue 14: kopf's `last-handled-configuration`."""
    found = ready.server.found(EVENTING, "Trigger", "shop", "mail")
    assert found is not None
    assert "annotations" not in found["metadata"]


async def test_a_look_at_what_has_not_changed_asks_the_api_server_nothing(ready: World) -> None:
    """Issue 14: four to five calls and an apply for each look."""
    calls = None
    async with asyncio.timeout(30):
        while calls != []:  # at first there may be what its own writes led to
            before = len(ready.server.calls)
            for key in (("Broker", "shop", "default"), ("Trigger", "shop", "mail")):
                assert isinstance(await ready.controller.reconcile(key), float)
            calls = ready.server.calls[before:]


async def test_a_config_map_that_changes_is_seen_within_a_second(ready: World) -> None:
    """Issue 14: after 360 s."""
    data = {"bootstrap.servers": "kafka:9092", "default.topic.partitions": "no number"}
    ready.server.put(CORE, "ConfigMap", "knafka", SETTINGS.config, data=data)
    await until(lambda: ready.condition("Broker", "default", "ConfigParsed")[0] == "False", WITHIN)


async def test_what_a_failed_reconciliation_did_not_read_still_wakes_the_object(
    ready: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would wait for its back-off, of up to five minutes."""
    reported: list[str] = []
    changed: list[Any] = []
    key = "Broker", "shop", "default"

    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async def report(_: object, error: Exception) -> None:
        reported.append(str(error))  # without a write, whose own watch event wakes the Broker

    monkeypatch.setattr(ready.controller.kinds["Broker"], "observe", fail)
    monkeypatch.setattr(ready.controller, "_write_failure", report)
    monkeypatch.setattr(ready.cluster, "changed", changed.append)
    assert await ready.controller.reconcile(key) is BACK_OFF
    assert reported == ["a bug"]
    data = {"bootstrap.servers": "another:9092"}
    ready.server.put(CORE, "ConfigMap", "knafka", SETTINGS.config, data=data)
    await until(lambda: key in changed)


async def test_a_change_of_tracing_reaches_functions_that_are_there(ready: World) -> None:
    """DSP-12; with an Event on the ConfigMap, also where it can't be used."""

    def traces(name: str) -> str | None:
        found = ready.server.found(SERVING, "Service", "shop", name)
        assert found is not None
        return dict(tracing_variables_of(found)).get("OTEL_TRACES_EXPORTER")

    def configure(**data: str) -> None:
        ready.server.put(CORE, "ConfigMap", "knafka", "config-tracing", data=data)

    services = ("default-kn-receiver", "mail-kn-dispatcher")
    assert [traces(each) for each in services] == [None, None]
    configure(backend="zipkin")
    await until(lambda: [traces(each) for each in services] == ["zipkin", "zipkin"])
    await until(lambda: "ConfigMap TracingChanged" in ready.events())
    configure(backend="stackdriver")
    await until(lambda: "ConfigMap InvalidTracing" in ready.events())
    assert [traces(each) for each in services] == ["zipkin", "zipkin"]
    ready.server.remove(CORE, "ConfigMap", "knafka", "config-tracing")
    await until(lambda: [traces(each) for each in services] == [None, None])


async def test_a_secret_that_comes_and_changes_is_seen_within_a_second(ready: World) -> None:
    where = {"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "credentials"}
    ready.server.put(CORE, "ConfigMap", "shop", "own", data=where)
    config = {"apiVersion": CORE, "kind": "ConfigMap", "name": "own"}
    ready.broker("secured", spec={"config": config})
    await until(lambda: ready.condition("Broker", "secured") == ("False", "SecretNotFound"))
    await asyncio.sleep(3)  # it backs off by now
    data = {"protocol": "UExBSU5URVhU"}
    ready.server.put(CORE, "Secret", "shop", "credentials", data=data)
    await until(lambda: ready.is_ready("Broker", "secured"), WITHIN)


@pytest.mark.parametrize("ours", [True, False], ids=["of a known kind", "of another"])
async def test_a_subscriber_that_comes_is_seen_within_a_second(ready: World, ours: bool) -> None:
    version, kind = (SERVING, "Service") if ours else (SINKS, "Sink")
    ready.server.kinds[SINKS] = {"Sink": "sinks"}
    ref = {"apiVersion": version, "kind": kind, "name": "later"}
    ready.trigger("waits", subscriber={"ref": ref})
    await until(lambda: ready.condition("Trigger", "waits") == ("False", "NotFound"))
    await asyncio.sleep(3)
    status = {"address": {"url": "http://later/"}}
    ready.server.put(version, kind, "shop", "later", status=status)
    await until(lambda: ready.is_ready("Trigger", "waits"), WITHIN)


async def test_a_kind_that_comes_is_seen_within_a_second(ready: World) -> None:
    ref = {"apiVersion": SINKS, "kind": "Sink", "name": "later"}
    ready.trigger("waits", subscriber={"ref": ref})
    await until(lambda: ready.condition("Trigger", "waits") == ("False", "NotFound"))
    ready.server.kinds[SINKS] = {"Sink": "sinks"}
    status = {"address": {"url": "http://later/"}}
    ready.server.put(SINKS, "Sink", "shop", "later", status=status)
    group = "apiextensions.k8s.io/v1"
    ready.server.put(group, "CustomResourceDefinition", "", "sinks.sinks.example")
    await until(lambda: ready.is_ready("Trigger", "waits"), WITHIN)


async def test_a_typo_in_a_kind_costs_a_request_now_and_then(ready: World) -> None:
    """Issue 14: 45 GETs every 3 s."""
    ref = {"apiVersion": "typo.example/v1", "kind": "Sink", "name": "a"}
    before = len(ready.server.calls)
    ready.trigger("typo", subscriber={"ref": ref})
    await until(lambda: ready.condition("Trigger", "typo") == ("False", "NotFound"))
    await asyncio.sleep(4)
    assert len([each for each in ready.server.calls[before:] if "typo.example" in each]) == 1
    assert len(ready.calls("GET")) < 60


async def test_a_function_that_somebody_deletes_is_made_again(ready: World) -> None:
    name = "mail-kn-dispatcher"
    ready.server.remove(SERVING, "Service", "shop", name)
    await until(lambda: ready.server.found(SERVING, "Service", "shop", name) is not None, WITHIN)


async def test_what_is_deleted_goes_with_its_group_and_topic(ready: World) -> None:
    topic = names.broker_topic("shop", "default")
    assert topic in await MemoryAdmin(ready.log).topics()
    ready.server.remove(EVENTING, "Trigger", "shop", "mail")
    await until(lambda: ready.server.found(EVENTING, "Trigger", "shop", "mail") is None)
    assert names.trigger_group("shop", "mail") not in ready.log.groups
    ready.server.remove(EVENTING, "Broker", "shop", "default")
    await until(lambda: ready.server.found(EVENTING, "Broker", "shop", "default") is None)
    assert topic not in await MemoryAdmin(ready.log).topics()
    controller = ready.controller
    kept = (
        ready.operator.states.declarations,
        controller._gone,
        controller._deletions.failing_since,
    )
    await until(lambda: not any(kept) and len(ready.operator.queue) == 0)


async def test_what_a_namespace_holds_goes_as_soon_as_the_namespace_is_deleted(
    ready: World,
) -> None:
    """Kubernetes deletes the objects in it last: when their pods are gone, and after a pause."""
    namespace = CORE, "Namespace", "", "shop"
    ready.server.put(*namespace, metadata={"finalizers": ["kubernetes"]})
    ready.server.remove(*namespace)
    objects = {name: ready.server.path(EVENTING, *name) for name in OBJECTS}
    stored = ready.server.objects
    await until(lambda: not any(stored[at]["metadata"]["finalizers"] for at in objects.values()))
    assert not [at for at in list(stored) if "/serving.knative.dev/" in at]
    assert names.trigger_group("shop", "mail") not in ready.log.groups
    assert names.broker_topic("shop", "default") not in await MemoryAdmin(ready.log).topics()

    for kind, where, name in objects:
        ready.server.remove(EVENTING, kind, where, name)
    ready.server.put(*namespace, metadata={"finalizers": []})
    await until(lambda: "shop" not in ready.controller.ending_namespaces)
    ready.broker()
    ready.trigger()
    await until(lambda: ready.is_ready("Trigger", "mail"))


async def test_what_is_in_a_namespace_created_again_is_served_whatever_is_reported_first(
    world: World,
) -> None:
    """Its Broker is known before the deletion of the namespace's first is known to have ended."""
    namespace = CORE, "Namespace", "", "shop"
    world.server.put(*namespace, metadata={"finalizers": ["kubernetes"]})
    world.server.remove(*namespace)
    await until(lambda: "shop" in world.controller.ending_namespaces)
    (deleted_at,) = world.controller.ending_namespaces.values()
    world.broker("old")
    created = datetime.fromisoformat(deleted_at) + timedelta(seconds=1)
    metadata = {"creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ")}
    for new in OBJECTS:
        world.server.put(EVENTING, *new, metadata=metadata)
    world.broker()
    world.trigger()
    await until(lambda: world.is_ready("Trigger", "mail"))
    assert world.condition("Broker", "old") == ("", "")
    world.server.put(*namespace, metadata={"finalizers": []})
    await until(lambda: not world.controller.ending_namespaces)
    await until(lambda: world.is_ready("Broker", "old"))
    assert world.is_ready("Broker", "default")


async def test_one_that_is_made_anew_under_its_name_is_another_one(ready: World) -> None:
    """What is forgotten with the one before is heard of anew."""
    old = ready.server.found(EVENTING, "Trigger", "shop", "mail")
    assert old is not None
    ready.server.put(EVENTING, "Trigger", "shop", "mail", metadata={"finalizers": []})
    ready.server.remove(EVENTING, "Trigger", "shop", "mail")
    ready.server.remove(SERVING, "Service", "shop", "mail-kn-dispatcher")  # its owner is gone
    ready.trigger()
    new = ready.server.found(EVENTING, "Trigger", "shop", "mail")
    assert new is not None
    ready.controller.on_objects(TRIGGERS, (), (old,))
    ready.controller.on_objects(TRIGGERS, (new,), ())  # before anything is reconciled
    await until(lambda: not ready.controller._gone and ready.is_ready("Trigger", "mail"))
    assert ready.operator.states.triggers_of(Identity("shop", "default"))
    assert ready.operator.triggers.scaling_status(Identity("shop", "mail")) is not None


async def test_a_kafka_that_is_away_does_not_block_a_deletion_for_ever(
    ready: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.broken = LogError("away")
    object.__setattr__(ready.operator.settings, "deletion_timeout", 3.0)
    try:
        ready.server.remove(EVENTING, "Broker", "shop", "default")
        await asyncio.sleep(1)
        assert ready.server.found(EVENTING, "Broker", "shop", "default") is not None
        await until(lambda: ready.server.found(EVENTING, "Broker", "shop", "default") is None)
    finally:
        object.__setattr__(ready.operator.settings, "deletion_timeout", 60.0)
    await until(lambda: "Broker LeftInKafka" in ready.events())


async def test_a_trigger_of_a_foreign_broker_keeps_nothing_of_ours(world: World) -> None:
    world.trigger("early", "foreign")
    await until(lambda: world.condition("Trigger", "early") == ("False", "BrokerDoesNotExist"))
    world.broker("foreign", class_="other")
    await asyncio.sleep(0.5)
    found = world.server.found(EVENTING, "Trigger", "shop", "early")
    assert found is not None
    assert not found["metadata"].get("finalizers")
    world.server.remove(EVENTING, "Trigger", "shop", "early")
    assert world.server.found(EVENTING, "Trigger", "shop", "early") is None


@pytest.mark.parametrize("trouble", ["typos", "refused writes", "a Kafka that is away"])
async def test_one_tenants_trouble_delays_nobody_else_by_more_than_a_second(
    ready: World, trouble: str
) -> None:
    server = ready.server
    config = {"apiVersion": CORE, "kind": "ConfigMap", "name": "away"}
    server.put(CORE, "ConfigMap", "bad", "away", data={"bootstrap.servers": AWAY})
    ours = {"annotations": {BROKER_CLASS: "kafka"}}
    for number in range(BAD):
        name = f"bad{number}"
        if trouble == "a Kafka that is away":
            server.put(EVENTING, "Broker", "bad", name, metadata=ours, spec={"config": config})
        elif trouble == "refused writes":
            server.refused[f"{server.path(EVENTING, 'Broker', 'bad', name)}/status"] = 403
            server.put(EVENTING, "Broker", "bad", name, metadata=ours)
        else:
            ref = {"apiVersion": f"typo{number}.example/v1", "kind": "Typo", "name": "a"}
            spec = {"broker": "none", "subscriber": {"ref": ref}}
            server.put(EVENTING, "Trigger", "bad", name, spec=spec)
    # All of them are in trouble by now, and will be for long.
    await until(lambda: BAD in (ready.waiting, ready.operator.queue.failing))
    for number in range(3):
        ready.trigger(f"good{number}")
        await until(lambda number=number: ready.is_ready("Trigger", f"good{number}"), WITHIN)  # type: ignore[misc]


async def test_only_what_concerns_us_is_watched(ready: World) -> None:
    """Issue 14: every Pod and every Service of the cluster."""
    watched = dict(ready.server.watched)
    assert watched["/api/v1/pods"]["labelSelector"] == "knafka.dev/role"
    selectors = {
        query.get("labelSelector")
        for path, query in ready.server.watched
        if path == "/apis/serving.knative.dev/v1/services"
    }
    assert selectors == {"knafka.dev/role", "!knafka.dev/role"}
    assert "type!=helm.sh/release.v1" in watched["/api/v1/secrets"]["fieldSelector"]


async def test_readiness_is_told_by_an_event(ready: World) -> None:
    await until(lambda: {"Broker Ready", "Trigger Ready"} <= ready.events())


DEFINITION = "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", POLICY_DEFINITION
FEATURES = CORE, "ConfigMap", "knative-eventing", "config-features"


async def test_event_policies_are_followed_from_when_there_is_such_a_kind(world: World) -> None:
    """Until then there are none; from then on nothing is opened before they are known."""

    def policies() -> list[str] | None:
        found = world.server.found(EVENTING, "Broker", "shop", "default") or {}
        listed = (found.get("status") or {}).get("policies")
        return None if listed is None else [each["name"] for each in listed]

    world.server.put(*FEATURES, data={"authentication-oidc": "enabled"})
    world.broker()
    await until(lambda: policies() == [])
    world.server.kinds[POLICIES_VERSION] = {POLICY: "eventpolicies"}
    world.server.put(POLICIES_VERSION, POLICY, "shop", "early", spec={"from": [{"sub": "a"}]})
    world.server.put(*DEFINITION)
    await until(lambda: policies() == ["early"])
    world.server.put(POLICIES_VERSION, POLICY, "shop", "late", spec={"from": [{"sub": "b"}]})
    await until(lambda: policies() == ["early", "late"])
    world.server.remove(POLICIES_VERSION, POLICY, "shop", "early")
    await until(lambda: policies() == ["late"])
