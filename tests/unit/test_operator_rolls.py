"""What has changed for all functions reaches a bounded number of them at a time (issue 30)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from support.channel_world import running_channels
from support.operator_world import OperatorWorld, condition, running_operator
from support.sharing import OWN

from knafka_operator.decisions.status import ROLLED_OUT
from knafka_operator.functions.rolls import ROLL_TIMEOUT
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import SERVING

pytestmark = pytest.mark.looptime

NAMESPACES = ("a", "b", "c")
"""Each has a Broker of its own name."""
NAMES = tuple(f"t{number}" for number in range(6))
NEW = "knafka:2"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OperatorWorld]:
    """Six Triggers in three namespaces, all Ready; nothing that is new becomes Ready by itself."""
    async with running_operator(monkeypatch) as world:
        for namespace in NAMESPACES:
            world.declare_broker(namespace, namespace)
            await world.reconcile_broker(namespace, namespace)
        for who in _triggers():
            world.declare_trigger(*who, who.namespace)
            status = await world.reconcile_trigger(*who)
            assert condition(status, "Ready")["status"] == "True"
        world.cluster.unready |= world.cluster.services()
        yield world


def _triggers() -> list[Identity]:
    return [
        Identity(namespace, name)
        for namespace, some in (("a", NAMES[:2]), ("b", NAMES[2:4]), ("c", NAMES[4:]))
        for name in some
    ]


async def _restart(world: OperatorWorld, **settings: Any) -> None:
    await world.restart(**{"image": NEW, **settings})
    await world.operator.resume()
    await _reconcile_all(world)


async def _reconcile_all(world: OperatorWorld) -> dict[str, Mapping[str, Any]]:
    for namespace in NAMESPACES:
        await world.reconcile_broker(namespace, namespace)
    return {who.name: await world.reconcile_trigger(*who) for who in _triggers()}


def _rolled(world: OperatorWorld, image: str = NEW) -> set[str]:
    """Services that were given this image."""
    return {
        each["metadata"]["name"]
        for each in world.cluster.of("Service")
        if each["spec"]["template"]["spec"]["containers"][0]["image"] == image
    }


def _start(world: OperatorWorld, image: str = NEW) -> None:
    """Have everything that has this image become Ready."""
    for each in list(world.cluster.of("Service")):
        name = each["metadata"]["name"]
        if name in _rolled(world, image) and name in world.cluster.unready:
            world.cluster.become_ready(each["metadata"]["namespace"], name)


def _image(world: OperatorWorld, namespace: str, service: str) -> str:
    stored = world.cluster.objects[SERVING, "Service", namespace, service]
    return str(stored["spec"]["template"]["spec"]["containers"][0]["image"])


async def test_a_new_image_rolls_two_functions_and_then_the_next_two(world: OperatorWorld) -> None:
    """All at once: 7,232 of 8,000 sends timed out on two cores."""
    services = len(world.cluster.services())
    await _restart(world)
    assert len(_rolled(world)) == 2
    await _reconcile_all(world)
    assert len(_rolled(world)) == 2
    for rolled in range(4, services + 1, 2):
        _start(world)
        await _reconcile_all(world)
        await _reconcile_all(world)
        assert len(_rolled(world)) == min(rolled, services)


async def test_whoever_waits_is_as_ready_as_it_was_and_is_told_so(world: OperatorWorld) -> None:
    await _restart(world)
    statuses = await _reconcile_all(world)
    waiting = [each for each in statuses.values() if "RolledOut" in str(each)]
    assert len(waiting) >= 4
    for status in waiting:
        assert condition(status, "SubscriptionReady")["status"] == "True"
        told = condition(status, ROLLED_OUT)
        assert (told["status"], told["severity"]) == ("False", "Info")
        assert told["reason"] == "RollWaits"
    world.cluster.unready.clear()
    for each in list(world.cluster.of("Service")):
        world.cluster.become_ready(each["metadata"]["namespace"], each["metadata"]["name"])
    for _ in range(6):
        statuses = await _reconcile_all(world)
    assert "RolledOut" not in str(statuses)


async def test_an_operator_that_starts_goes_on_where_the_one_before_it_was(
    world: OperatorWorld,
) -> None:
    """It has no memory: what isn't Ready has the turns."""
    await _restart(world)
    rolled = _rolled(world)
    await _restart(world)
    assert _rolled(world) == rolled


async def test_what_waits_is_reconciled_when_its_turn_comes(world: OperatorWorld) -> None:
    await _restart(world)
    woken: list[tuple[str, str, str]] = []
    world.operator.states.rolls._enqueue = woken.append
    (first, *_) = _rolled(world)
    namespace = next(
        each["metadata"]["namespace"]
        for each in world.cluster.of("Service")
        if each["metadata"]["name"] == first
    )
    world.cluster.become_ready(namespace, first)
    await _reconcile_all(world)
    assert woken


async def test_an_edit_waits_for_no_roll_and_takes_the_image_that_runs(
    world: OperatorWorld,
) -> None:
    """The new image may never start: the edit does with the one that has."""
    await _restart(world)
    waiting = next(who for who in _triggers() if f"{who.name}-kn-dispatcher" not in _rolled(world))
    service = f"{waiting.name}-kn-dispatcher"
    world.cluster.unready.discard(service)
    world.declare_trigger(*waiting, waiting.namespace, filter={"attributes": {"type": "edited"}})
    status = await world.reconcile_trigger(*waiting)
    assert condition(status, "SubscriptionReady")["status"] == "True"
    watched = world.operator.triggers.watched[waiting]
    assert watched.egress.filter is not None
    assert _image(world, waiting.namespace, service) == "knafka:latest"
    assert condition(status, ROLLED_OUT)["reason"] == "RollWaits"


async def test_more_pods_are_an_edit_too(world: OperatorWorld) -> None:
    await _restart(world)
    waiting = next(who for who in _triggers() if f"{who.name}-kn-dispatcher" not in _rolled(world))
    more = {"autoscaling.eventing.knative.dev/min-scale": "1"}
    world.declare_trigger(*waiting, waiting.namespace, annotations=more)
    await world.reconcile_trigger(*waiting)
    service = f"{waiting.name}-kn-dispatcher"
    stored = world.cluster.objects[SERVING, "Service", waiting.namespace, service]
    annotations = stored["spec"]["template"]["metadata"]["annotations"]
    assert annotations["autoscaling.knative.dev/min-scale"] == "1"


async def test_a_new_trigger_waits_for_no_roll_and_has_the_new_image(world: OperatorWorld) -> None:
    await _restart(world)
    world.declare_trigger("a", "new", "a")
    status = await world.reconcile_trigger("a", "new")
    assert condition(status, "SubscriptionReady")["status"] == "True"
    assert _image(world, "a", "new-kn-dispatcher") == NEW


async def test_a_setting_of_all_functions_rolls_as_an_image_does(world: OperatorWorld) -> None:
    await world.restart(log_level="debug")
    await world.operator.resume()
    await _reconcile_all(world)
    levels = [
        variable["value"]
        for each in world.cluster.of("Service")
        for variable in each["spec"]["template"]["spec"]["containers"][0]["env"]
        if variable["name"] == "KNAFKA_LOG_LEVEL"
    ]
    assert levels.count("debug") == 2


async def test_services_of_a_version_without_digests_roll_in_turn(world: OperatorWorld) -> None:
    """The upgrade to this version is a new image, too."""
    for each in world.cluster.of("Service"):
        each["metadata"].pop("annotations")
    await _restart(world)
    assert len(_rolled(world)) == 2


async def test_what_does_not_start_holds_up_its_own_namespace_and_says_so(
    world: OperatorWorld,
) -> None:
    await _restart(world)
    stuck = _rolled(world)
    rolls = world.operator.states.rolls
    await asyncio.sleep(ROLL_TIMEOUT + 1)
    await rolls.check_turns(world.cluster)
    statuses = await _reconcile_all(world)
    assert len(_rolled(world)) == 4
    blocked = [each for each in statuses.values() if "RollStuck" in str(each)]
    assert blocked
    told = condition(blocked[0], ROLLED_OUT)
    assert any(name in told["message"] for name in stuck)
    assert condition(blocked[0], "SubscriptionReady")["status"] == "True"
    _start(world)
    await rolls.check_turns(world.cluster)
    await _reconcile_all(world)
    assert len(_rolled(world)) > 4


async def test_a_function_that_is_gone_has_no_turn(world: OperatorWorld) -> None:
    await _restart(world)
    for each in list(world.cluster.of("Service")):
        metadata = each["metadata"]
        if metadata["name"] in _rolled(world):
            world.cluster.remove(SERVING, "Service", metadata["namespace"], metadata["name"])
    await world.operator.states.rolls.check_turns(world.cluster)
    await _reconcile_all(world)
    assert len(_rolled(world)) >= 2


async def test_a_channels_function_that_does_not_start_holds_up_no_other_namespace() -> None:
    """The functions of all channels run in the operator's namespace."""
    subscriptions = [Identity("a", "t1"), Identity("a", "t2"), Identity("b", "t3")]
    async with running_channels() as world:

        async def reconcile(*names: Identity) -> list[Mapping[str, Any]]:
            for namespace in ("a", "b"):
                await world.reconcile_channel(namespace, "orders")
            return [await world.reconcile_subscription(*each) for each in names]

        for namespace in ("a", "b"):
            world.declare_channel(namespace, "orders")
        for each in subscriptions:
            world.declare_subscription(*each, "orders", annotations=OWN)
        await reconcile(*subscriptions)
        stuck, neighbour, victim = (
            next(name for name in world.cluster.services() if each.name in name)
            for each in subscriptions
        )
        await world.restart(image=NEW)
        rolls = world.channels.states.rolls
        world.cluster.unready.add(stuck)
        await reconcile(subscriptions[0])
        await asyncio.sleep(ROLL_TIMEOUT + 1)
        await rolls.check_turns(world.cluster)
        statuses = await reconcile(*subscriptions)
        assert {stuck, victim} <= _rolled(world)
        assert neighbour not in _rolled(world)
        assert stuck in condition(statuses[1], ROLLED_OUT)["message"]
        assert stuck not in str(statuses[2])
        assert "RolledOut" not in str(statuses[2])
