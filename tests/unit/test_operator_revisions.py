"""While a changed dispatcher isn't Ready, the Revision before it delivers (issue 13, fault 2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.controlled import controller_of
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.core.contract import Egress
from knafka.core.errors import LogError
from knafka_operator.decisions.effects import Effect, StartDelivery
from knafka_operator.engine.work_queue import GONE
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, EVENTING, FINALIZER, ISOLATION, SERVING
from knafka_operator.runtime.selections import BROKERS, TRIGGERS

pytestmark = pytest.mark.looptime

WHO = Identity("shop", "orders")
SERVICE = "orders-kn-dispatcher"
MIN_SCALE = {"autoscaling.eventing.knative.dev/min-scale": "2"}
PAUSE = {"knafka.dev/paused": "true"}
ALWAYS = {"autoscaling.eventing.knative.dev/class": "disabled"}


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OperatorWorld]:
    async with running_operator(monkeypatch) as world:
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        yield world


async def _declare(
    world: OperatorWorld, annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, str]:
    """Its Ready condition then."""
    world.declare_trigger(*WHO, annotations=annotations, **spec)
    return dict(condition(await world.reconcile_trigger(*WHO), "Ready"))


def _delivers(world: OperatorWorld) -> Egress:
    """What the scaler holds drains with."""
    triggers = world.operator.triggers
    assert triggers.scaling_status(WHO) is not None
    return triggers.watched[WHO].egress


def _filter(type_: str) -> dict[str, Any]:
    return {"filter": {"attributes": {"type": type_}}}


def _add_pod(world: OperatorWorld, revision: str) -> dict[str, Any]:
    """Add a pod in which this Revision of the Trigger's dispatcher runs."""
    function = {"name": "function", "state": {"running": {}}}
    proxy = {"name": "queue-proxy", "state": {"running": {}}}
    labels = {"serving.knative.dev/service": SERVICE, "serving.knative.dev/revision": revision}
    return world.cluster.put(
        {
            "apiVersion": CORE,
            "kind": "Pod",
            "metadata": {"namespace": "shop", "name": "older", "labels": labels},
            "status": {"containerStatuses": [proxy, function]},
        }
    )


async def test_a_function_that_cannot_start_leaves_the_one_before_it_delivering(
    world: OperatorWorld,
) -> None:
    """It stopped delivery for as long as the new one was not Ready."""
    assert (await _declare(world, **_filter("old")))["status"] == "True"
    before = _delivers(world)
    world.cluster.unready.add(SERVICE)
    ready = await _declare(world, **_filter("new"))
    assert (ready["status"], ready["reason"]) == ("Unknown", "FunctionNotReady")
    assert _delivers(world) == before
    world.cluster.become_ready("shop", SERVICE)
    assert condition(await world.reconcile_trigger(*WHO), "Ready")["status"] == "True"
    assert _delivers(world) != before


async def test_a_new_image_that_cannot_be_pulled_stops_nobody(world: OperatorWorld) -> None:
    await _declare(world)
    before = _delivers(world)
    world.cluster.unready.add(SERVICE)
    await world.restart(image="nowhere.invalid/knafka:2")
    await world.operator.resume()
    await world.reconcile_broker("shop")
    ready = condition(await world.reconcile_trigger(*WHO), "Ready")
    assert ready["status"] == "Unknown"
    assert _delivers(world) == before


async def test_a_trigger_is_ready_only_when_unasked_pods_of_the_revision_before_are_gone(
    world: OperatorWorld,
) -> None:
    """Those drain from their start to their end, with what was declared before."""
    await _declare(world, MIN_SCALE, **_filter("old"))
    pod = _add_pod(world, older := f"{SERVICE}-00001")
    assert condition(await world.reconcile_trigger(*WHO), "Ready")["status"] == "True"
    ready = await _declare(world, {}, **_filter("new"))
    assert (ready["status"], ready["reason"]) == ("Unknown", "OldRevisionDelivers")
    assert older in ready["message"]
    assert condition(await world.reconcile_trigger(*WHO), "Ready")["status"] == "Unknown"
    pod["status"]["containerStatuses"][1]["state"] = {"terminated": {}}
    assert condition(await world.reconcile_trigger(*WHO), "Ready")["status"] == "True"


@pytest.mark.parametrize("annotations", [{}, {ISOLATION: "shared"}], ids=["own", "to a shard"])
async def test_an_edit_that_an_operator_died_at_is_ready_when_pods_of_the_revision_before_are_gone(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch, annotations: dict[str, str]
) -> None:
    """The next operator found the new Revision Ready, and the old one's drains went on."""
    await _declare(world, **_filter("old"))
    pod = _add_pod(world, f"{SERVICE}-00001")
    run = world.operator.effects.run

    async def dying(effect: Effect, *arguments: Any) -> Any:
        if isinstance(effect, StartDelivery):
            raise asyncio.CancelledError
        return await run(effect, *arguments)

    monkeypatch.setattr(world.operator.effects, "run", dying)
    with pytest.raises(asyncio.CancelledError):
        await _declare(world, annotations, **_filter("new"))
    await world.restart()
    await world.operator.resume()
    await world.reconcile_broker("shop")
    ready = condition(await world.reconcile_trigger(*WHO), "Ready")
    assert (ready["status"], ready["reason"]) == ("Unknown", "OldRevisionDelivers")
    pod["status"]["containerStatuses"][1]["state"] = {"terminated": {}}
    assert condition(await world.reconcile_trigger(*WHO), "Ready")["status"] == "True"


@pytest.mark.parametrize("annotations", [{}, {ISOLATION: "shared"}], ids=["own", "to a shard"])
async def test_an_edit_with_a_changed_secret_is_ready_when_pods_of_the_revision_before_are_gone(
    world: OperatorWorld, annotations: dict[str, str]
) -> None:
    """Another Secret is another scaler, which doesn't know that the group may have members."""
    mine = {"apiVersion": CORE, "kind": "ConfigMap", "name": "mine"}
    servers = {"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "kafka"}
    world.configure("shop", "mine", **servers)
    sasl = {"protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "user": "u"}
    world.declare_secret("shop", "kafka", **sasl, password="one")
    world.declare_broker("shop", config=mine)
    await world.reconcile_broker("shop")
    assert (await _declare(world, **_filter("old")))["status"] == "True"
    pod = _add_pod(world, f"{SERVICE}-00001")
    world.declare_secret("shop", "kafka", **sasl, password="two")
    await world.reconcile_broker("shop")
    ready = await _declare(world, annotations, **_filter("new"))
    assert (ready["status"], ready["reason"]) == ("Unknown", "OldRevisionDelivers")
    pod["status"]["containerStatuses"][1]["state"] = {"terminated": {}}
    assert condition(await world.reconcile_trigger(*WHO), "Ready")["status"] == "True"


async def test_what_drains_unasked_goes_before_its_group(world: OperatorWorld) -> None:
    """Its pods were members until Kafka was no longer waited for, and the group stayed."""
    assert (await _declare(world, MIN_SCALE))["status"] == "True"
    world.kafka_failures["delete_group"] = LogError("the group has members")
    with pytest.raises(LogError):
        await world.delete_trigger(*WHO)
    assert SERVICE not in world.cluster.services()


async def test_a_paused_trigger_has_no_function_also_with_min_scale(world: OperatorWorld) -> None:
    """Those pods would drain unasked; the scaler knows of it, for its lag."""
    assert (await _declare(world, MIN_SCALE))["status"] == "True"
    assert (await _declare(world, MIN_SCALE | PAUSE))["status"] == "True"
    assert SERVICE not in world.cluster.services()
    status = world.operator.triggers.scaling_status(WHO)
    assert status is not None
    assert (status.paused, status.replicas) == (True, 0)
    assert (await _declare(world, MIN_SCALE))["status"] == "True"
    template = world.cluster.objects[SERVING, "Service", "shop", SERVICE]["spec"]["template"]
    assert template["metadata"]["annotations"]["autoscaling.knative.dev/min-scale"] == "2"


async def test_a_trigger_that_was_paused_while_no_operator_ran_is_not_resumed(
    world: OperatorWorld,
) -> None:
    """Its Service is still there, and somebody's events wait."""
    await _declare(world)
    world.log.store(_delivers(world).topic, None, b"data", [])
    world.declare_trigger(*WHO, annotations=PAUSE)
    await world.restart()
    await world.operator.resume()
    await asyncio.sleep(60)
    status = world.operator.triggers.scaling_status(WHO)
    assert status is not None
    assert (status.lag, status.replicas, status.scale.reason) == (1, 0, "paused; 1 event waiting")


@pytest.mark.parametrize(
    ("annotations", "kept"), [(None, "0"), (MIN_SCALE, "2"), (ALWAYS, "1")], ids=str
)
async def test_knative_itself_keeps_what_min_scale_wants_and_those_drain_unasked(
    world: OperatorWorld, annotations: dict[str, str] | None, kept: str
) -> None:
    await _declare(world, annotations)
    template = world.cluster.objects[SERVING, "Service", "shop", SERVICE]["spec"]["template"]
    assert template["metadata"]["annotations"]["autoscaling.knative.dev/min-scale"] == kept
    found = {each["name"]: each["value"] for each in template["spec"]["containers"][0]["env"]}
    assert found["KNAFKA_SERVICE_URL"] == f"http://{SERVICE}.shop.svc.cluster.local"
    assert int(found["KNAFKA_GRACE_PERIOD"]) < template["spec"]["timeoutSeconds"] - 30
    assert found.get("KNAFKA_DRAIN_AT_START") == (None if kept == "0" else "true")


async def test_an_operator_that_ends_stops_no_delivery(world: OperatorWorld) -> None:
    await _declare(world)
    controller = controller_of(world)
    task = asyncio.create_task(world.operator.queue.run(controller.reconcile))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait({task})
    assert WHO in world.operator.triggers.watched


async def test_a_trigger_that_is_gone_is_delivered_to_no_more(world: OperatorWorld) -> None:
    """Also where somebody has taken our finalizer away."""
    await _declare(world)
    controller = controller_of(world)
    document = world.document("Trigger", *WHO)
    del world.cluster.objects[EVENTING, "Trigger", *WHO]
    controller.on_objects(TRIGGERS, (), (document,))
    assert await controller.reconcile(("Trigger", *WHO)) is GONE
    assert WHO not in world.operator.triggers.watched


async def test_a_trigger_whose_broker_is_another_ones_now_is_let_go(world: OperatorWorld) -> None:
    await _declare(world)
    controller = controller_of(world)
    await controller.reconcile(("Trigger", *WHO))
    assert world.document("Trigger", *WHO)["metadata"]["finalizers"] == [FINALIZER]
    foreign = world.document("Broker", "shop")
    foreign["metadata"]["annotations"] = {}
    controller.on_objects(BROKERS, (foreign,), ())
    assert await controller.reconcile(("Trigger", *WHO)) is GONE
    assert WHO not in world.operator.triggers.watched
    assert world.document("Trigger", *WHO)["metadata"]["finalizers"] == []
