"""EventTypes of what receivers tell (`eventtype-auto-create` of `config-features`)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from support.channel_world import VERSION, ChannelWorld, running_channels
from support.operator_world import OperatorWorld, running_operator

from knafka.settings import EVENT_TYPES
from knafka_operator.functions import services
from knafka_operator.model.cluster import NotAllowed, Rejected
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, EVENTING, SERVING
from knafka_operator.operator import Operator
from knafka_operator.receivers import event_types
from knafka_operator.receivers.event_type_manifests import (
    EVENT_TYPE_VERSION,
    ReportedType,
    parse_reported_types,
)

SHOP = "shop"
RECEIVER = Identity(SHOP, "default-kn-receiver")
ONE = ReportedType(f"/{SHOP}/default", "made", "/s", "http://schemas/one")


class Receivers:
    """What pods of receivers tell, by their Services; and which were asked."""

    def __init__(self, operator: Operator) -> None:
        self.told: dict[Identity, list[ReportedType]] = {}
        self.asked: list[Identity] = []
        operator.event_types.ask = self

    async def __call__(self, service: Identity, addresses: Sequence[str]) -> list[ReportedType]:
        assert addresses == ["http://10.0.0.1:8080"]
        self.asked.append(service)
        return self.told.get(service, [])


def switch(world: OperatorWorld, state: str = "enabled") -> None:
    world.configure("knative-eventing", "config-features", **{"eventtype-auto-create": state})


def start_pod(world: OperatorWorld, service: Identity, *, ready: bool = True) -> None:
    labels = {
        "serving.knative.dev/service": service.name,
        services.ROLE_LABEL: services.RECEIVER_ROLE,
    }
    metadata = {"namespace": service.namespace, "name": f"{service.name}-pod", "labels": labels}
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"podIP": "10.0.0.1", "conditions": conditions}
    world.cluster.put({"apiVersion": CORE, "kind": "Pod", "metadata": metadata, "status": status})


def made(world: OperatorWorld, namespace: str = SHOP) -> list[dict[str, Any]]:
    objects = world.cluster.objects.items()
    return [it for (_, kind, ns, _), it in objects if kind == "EventType" and ns == namespace]


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        switch(world)
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        start_pod(world, RECEIVER)
        yield world


async def test_an_event_type_is_upstreams_and_goes_with_its_broker(world: OperatorWorld) -> None:
    receivers = Receivers(world.operator)
    receivers.told[RECEIVER] = [ONE]
    await world.operator.event_types.create_new_types()
    (found,) = made(world)
    owner = {"apiVersion": EVENTING, "kind": "Broker", "name": "default"}
    uid = world.document("Broker", SHOP)["metadata"]["uid"]
    assert found["apiVersion"] == EVENT_TYPE_VERSION
    assert found["spec"] == {
        "type": "made",
        "source": "/s",
        "schema": "http://schemas/one",
        "description": "Event Type auto-created by controller",
        "reference": {**owner, "namespace": SHOP},
    }
    assert found["metadata"]["ownerReferences"] == [{**owner, "uid": uid}]
    # md5 of "made" "/s" "shop" "default", as upstream writes it
    assert found["metadata"]["name"] == "et-default-32aa5f0ac0a638c94a842d4a14c9fe8f"


async def test_receivers_tell_only_where_the_feature_is_on(world: OperatorWorld) -> None:
    def told() -> bool:
        service = world.cluster.objects[SERVING, "Service", *RECEIVER]
        (container,) = service["spec"]["template"]["spec"]["containers"]
        return services.environment_of(container).get(EVENT_TYPES) == "enabled"

    assert told()
    receivers = Receivers(world.operator)
    receivers.told[RECEIVER] = [ONE]
    switch(world, "disabled")
    await world.reconcile_broker(SHOP)
    assert not told()
    await world.operator.event_types.create_new_types()
    assert not receivers.asked
    assert not made(world)


async def test_what_is_there_is_not_made_again_also_by_the_next_operator(
    world: OperatorWorld,
) -> None:
    receivers = Receivers(world.operator)
    receivers.told[RECEIVER] = [ONE, ONE]
    created: list[str] = []
    world.cluster.put = _noting(world.cluster.put, created)  # type: ignore[method-assign]
    for _ in range(2):
        await world.operator.event_types.create_new_types()
    await world.restart()
    await world.reconcile_broker(SHOP)
    Receivers(world.operator).told[RECEIVER] = [ONE]
    await world.operator.event_types.create_new_types()
    assert len(created) == 1


def _noting(put: Any, created: list[str]) -> Any:
    def noting(document: Any) -> None:
        if document["kind"] == "EventType":
            created.append(document["metadata"]["name"])
        put(document)

    return noting


async def test_a_receiver_that_does_not_run_or_is_not_ready_is_not_asked(
    world: OperatorWorld,
) -> None:
    receivers = Receivers(world.operator)
    start_pod(world, RECEIVER, ready=False)
    start_pod(world, Identity(SHOP, "somebodys"))
    await world.operator.event_types.create_new_types()
    assert not receivers.asked


async def test_a_receiver_creates_event_types_of_its_own_broker_only(world: OperatorWorld) -> None:
    """Whoever may have pods in a namespace can have one stand in for a receiver."""
    for namespace, name in (("elsewhere", "default"), (SHOP, "other")):
        world.declare_broker(namespace, name)
        await world.reconcile_broker(namespace, name)
    receivers = Receivers(world.operator)
    paths = ("/elsewhere/default", "/shop/other", "/shop/nobody", "x", "/")
    receivers.told[RECEIVER] = [ONE._replace(path=path) for path in paths]
    await world.operator.event_types.create_new_types()
    assert not made(world)
    assert not made(world, "elsewhere")


async def test_they_are_bounded_in_number_and_in_rate(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_types, "MAX_TYPES", 30)
    receivers = Receivers(world.operator)
    receivers.told[RECEIVER] = [ONE._replace(type=f"t{number}") for number in range(50)]
    counts = []
    for _ in range(3):
        await world.operator.event_types.create_new_types()
        counts.append(len(made(world)))
    assert counts == [20, 30, 30]


async def test_all_brokers_together_have_a_bound_and_each_has_its_turn(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_types, "MAX_PER_ROUND", 30)
    receivers = Receivers(world.operator)
    names = [f"b{number}" for number in range(4)]
    for name in names:
        world.declare_broker(SHOP, name)
        await world.reconcile_broker(SHOP, name)
        service = Identity(SHOP, f"{name}-kn-receiver")
        start_pod(world, service)
        receivers.told[service] = [
            ReportedType(f"/{SHOP}/{name}", f"t{n}", "/s") for n in range(20)
        ]
    await world.operator.event_types.create_new_types()
    assert len(made(world)) == 30
    for _ in range(3):
        await world.operator.event_types.create_new_types()
    assert len(made(world)) == 80


async def test_one_that_is_refused_holds_up_no_other(world: OperatorWorld) -> None:
    receivers = Receivers(world.operator)
    receivers.told[RECEIVER] = [ONE._replace(type="odd"), ONE]
    create = world.cluster.create

    async def refusing(manifest: Any) -> bool:
        if manifest["spec"]["type"] == "odd":
            raise Rejected("can't create EventType: odd")
        return await create(manifest)

    world.operator.event_types.cluster.create = refusing  # type: ignore[method-assign]
    await world.operator.event_types.create_new_types()
    assert [each["spec"]["type"] for each in made(world)] == ["made"]


async def test_a_role_that_does_not_allow_it_is_logged_and_stops_nothing(
    world: OperatorWorld, caplog: pytest.LogCaptureFixture
) -> None:
    Receivers(world.operator).told[RECEIVER] = [ONE]

    async def refusing(*_: Any) -> list[Any]:
        raise NotAllowed("can't list EventTypes: forbidden")

    names = world.operator.event_types._ensure_name_hashes
    world.operator.event_types._ensure_name_hashes = refusing  # type: ignore[method-assign,assignment]
    await world.operator.event_types.create_new_types()
    assert "EventTypes of Broker shop/default: can't list EventTypes" in caplog.text
    world.operator.event_types._ensure_name_hashes = names  # type: ignore[method-assign]
    await world.operator.event_types.create_new_types()
    assert len(made(world)) == 1


async def test_a_broker_that_goes_or_is_another_one_begins_anew(world: OperatorWorld) -> None:
    receivers = Receivers(world.operator)
    receivers.told[RECEIVER] = [ONE]
    await world.operator.event_types.create_new_types()
    await world.delete_broker(SHOP)
    receivers.told.clear()
    await world.operator.event_types.create_new_types()
    assert not world.operator.event_types._known


async def test_channels_have_event_types_of_their_own() -> None:
    async with running_channels() as world:
        await _channel(world)


async def _channel(world: ChannelWorld) -> None:
    switch(world)
    world.add_gateway()
    world.declare_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    service = Identity("knafka", "kafka-channel-receiver")
    start_pod(world, service)
    receivers = Receivers(world.channels)
    receivers.told[service] = [ReportedType("/shop/orders", "made", "/s")]
    await world.channels.event_types.create_new_types()
    (found,) = made(world)
    assert found["spec"]["reference"] == {
        **{"apiVersion": VERSION, "kind": "KafkaChannel", "name": "orders", "namespace": SHOP},
    }
    # A Broker's receiver in the same namespace says nothing of a channel.
    brokers = Receivers(world.operator)
    await world.operator.event_types.create_new_types()
    assert not brokers.asked


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"eventTypes": []}, []),
        ({"eventTypes": [{"path": "/a/b", "type": "t", "source": "s"}]}, ["t"]),
        ({"eventTypes": [{"path": "/a/b", "type": "t", "source": 1}]}, []),
        ({"eventTypes": [{"path": "/a/b", "type": "", "source": "s"}]}, []),
        ({"eventTypes": [{"path": "/a/b", "type": "t\n", "source": "s"}]}, []),
        ({"eventTypes": [{"path": "/a/b", "type": "t" * 1000, "source": "s"}]}, []),
        ({"eventTypes": ["x", None, {}]}, []),
        ({"eventTypes": [{"path": "/a/b", "type": "t", "source": "s", "schema": {}}]}, ["t"]),
    ],
)
def test_what_no_receiver_of_ours_would_say_is_left_out(answer: Any, found: list[str]) -> None:
    assert [each.type for each in parse_reported_types(json.dumps(answer).encode())] == found


@pytest.mark.parametrize("answer", [b"", b"x", b"[]", b"{}", b'{"eventTypes": 1}'])
def test_what_is_no_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # json's own among them
        parse_reported_types(answer)
