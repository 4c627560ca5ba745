"""What one object, and one namespace, may ask of an installation (issue 29)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import kopf
import pytest
from support.admitted import broker, trigger
from support.channel_world import running_channels
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.core.errors import InvalidDocument
from knafka.core.names import CONTRACTS
from knafka_operator.brokers import admission
from knafka_operator.channels.admission import check_channel, check_subscription
from knafka_operator.installation.settings import Settings
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import AUTOSCALING, CORE, SERVING
from knafka_operator.triggers.admission import check_trigger
from knafka_operator.webhooks import channel_handlers, handlers

SHOP = "shop"
MINE = {"apiVersion": CORE, "kind": "ConfigMap", "name": "mine"}
MAXIMA = Maxima(partitions=20, namespace_partitions=30, scale=5, namespace_min_scale=6)
MEMO = SimpleNamespace(
    operator=SimpleNamespace(
        settings=SimpleNamespace(maxima=Maxima()),
        may_be_ours=lambda _: True,
        brokers=SimpleNamespace(is_ours=lambda _: True),
    )
)


def channel(**spec: Any) -> Any:
    metadata = {"name": "orders", "namespace": SHOP}
    version = "messaging.knative.dev/v1"
    return {"apiVersion": version, "kind": "KafkaChannel", "metadata": metadata, "spec": spec}


def subscription(annotations: Mapping[str, str]) -> Any:
    reference = {"apiVersion": "messaging.knative.dev/v1", "kind": "KafkaChannel", "name": "orders"}
    spec = {"channel": reference, "subscriber": {"uri": "http://mail/"}}
    metadata = {"name": "mail", "namespace": SHOP, "annotations": dict(annotations)}
    return {**channel(), "kind": "Subscription", "metadata": metadata, "spec": spec}


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "partitions of a channel": (
        channel_handlers.check_channel,
        channel(numPartitions=2_147_483_647),
        "invalid value: 2147483647: spec.numPartitions\n"
        "want at most 1000, as this installation allows (KNAFKA_MAX_PARTITIONS)",
    ),
    "replicas of a channel": (
        channel_handlers.check_channel,
        channel(replicationFactor=32_767),
        "invalid value: 32767: spec.replicationFactor\n"
        "want at most 10, as this installation allows (KNAFKA_MAX_REPLICATION)",
    ),
    "min-scale of a Subscription": (
        channel_handlers.check_subscription,
        subscription({AUTOSCALING + "min-scale": "5000", AUTOSCALING + "max-scale": "5000"}),
        f"invalid value: 5000: metadata.annotations[{AUTOSCALING}min-scale]\n"
        "want at most 100, as this installation allows (KNAFKA_MAX_SCALE)",
    ),
    "max-scale of a Trigger": (
        handlers.check_trigger,
        trigger({AUTOSCALING + "max-scale": "101"}),
        f"invalid value: 101: metadata.annotations[{AUTOSCALING}max-scale]\n"
        "want at most 100, as this installation allows (KNAFKA_MAX_SCALE)",
    ),
    "pods of a Broker's receiver": (
        handlers.check_broker,
        broker({"autoscaling.knative.dev/min-scale": "5000"}),
        "invalid value: 5000: metadata.annotations[autoscaling.knative.dev/min-scale]\n"
        "want at most 100, as this installation allows (KNAFKA_MAX_SCALE)",
    ),
    "pods as Knative also spells them": (
        handlers.check_broker,
        broker({"autoscaling.knative.dev/initialScale": "9" * 30}),
        "invalid value: 2147483647: metadata.annotations[autoscaling.knative.dev/initialScale]\n"
        "want at most 100, as this installation allows (KNAFKA_MAX_SCALE)",
    ),
}


@pytest.mark.parametrize(("webhook", "document", "problem"), REFUSED.values(), ids=REFUSED)
def test_an_object_that_asks_for_more_than_the_installation_allows_is_refused(
    webhook: Any, document: Any, problem: str
) -> None:
    with pytest.raises(kopf.AdmissionError) as refused:
        webhook(body=kopf.Body(document), memo=MEMO, warnings=[])
    assert str(refused.value) == f"validation failed: {problem}"
    # What was stored before may still be changed otherwise, finalizers for one.
    webhook(body=kopf.Body(document), old=kopf.Body(document), memo=MEMO, warnings=[])


def test_what_is_within_the_maxima_is_taken() -> None:
    check_channel(channel(numPartitions=1000, replicationFactor=10), None, Maxima())
    check_subscription(subscription({AUTOSCALING + "min-scale": "50"}), None, None, Maxima())
    check_trigger(trigger({AUTOSCALING + "max-scale": "100"}), None, None, Maxima())
    odd = {"autoscaling.knative.dev/max-scale": "many", "autoscaling.knative.dev/metric": "rps"}
    admission.check_broker(broker(odd), None, Maxima())


def test_a_trigger_that_declares_no_max_scale_has_the_installations() -> None:
    assert Autoscaling.from_annotations({}, Autoscaling(), Maxima(scale=20)).max_scale == 20
    assert Autoscaling.from_annotations({}, Autoscaling(), Maxima()).max_scale == 50


def test_the_maxima_are_settings() -> None:
    given = {"KNAFKA_NAMESPACE": "knafka", "KNAFKA_IMAGE": "registry/functions"}
    assert Settings.from_environment(given).maxima == Maxima()
    more = {"KNAFKA_MAX_PARTITIONS": "7", "KNAFKA_MAX_NAMESPACE_MIN_SCALE": "8"}
    found = Settings.from_environment({**given, **more}).maxima
    assert found == Maxima(partitions=7, namespace_min_scale=8)
    with pytest.raises(InvalidDocument, match="KNAFKA_MAX_SCALE: invalid value: 0: want a whole"):
        Settings.from_environment({**given, "KNAFKA_MAX_SCALE": "0"})


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        await world.restart(maxima=MAXIMA)
        yield world


def declare(world: OperatorWorld, name: str, partitions: int, replication: int = 3) -> None:
    counts = {
        "default.topic.partitions": str(partitions),
        "default.topic.replication.factor": str(replication),
    }
    world.configure(SHOP, name, **counts)
    world.declare_broker(SHOP, name, config={**MINE, "name": name})


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((21, 3), "partitions: invalid value: 21: want at most 20, as this installation allows"),
        ((2, 11), "replicas: invalid value: 11: want at most 10, as this installation allows"),
    ],
)
async def test_a_topic_beyond_the_maxima_is_not_made(
    world: OperatorWorld, counts: tuple[int, int], says: str
) -> None:
    declare(world, "large", *counts)
    found = condition(await world.reconcile_broker(SHOP, "large"), "TopicReady")
    assert (found["status"], found["reason"]) == ("False", "TopicTooLarge")
    assert says in found["message"]
    assert not world.log.topics
    annotations = world.document("Broker", SHOP, "large")["status"].get("annotations", {})
    assert "default.topic" not in annotations, "no name of a topic that isn't made is its own"


@pytest.mark.looptime
async def test_a_topic_that_is_there_stays_whatever_the_maxima_are_by_now(
    world: OperatorWorld,
) -> None:
    await world.restart(maxima=Maxima())
    declare(world, "large", 25)
    assert condition(await world.reconcile_broker(SHOP, "large"), "Ready")["status"] == "True"
    await world.restart(maxima=MAXIMA)
    assert condition(await world.reconcile_broker(SHOP, "large"), "Ready")["status"] == "True"


@pytest.mark.looptime
async def test_the_topics_of_a_namespace_have_a_maximum_together(world: OperatorWorld) -> None:
    for name in ("one", "two"):
        declare(world, name, 15)
        assert condition(await world.reconcile_broker(SHOP, name), "Ready")["status"] == "True"
    declare(world, "three", 1)
    found = condition(await world.reconcile_broker(SHOP, "three"), "TopicReady")
    assert (found["status"], found["reason"]) == ("False", "NamespacePartitions")
    assert "its 1 partitions and the 30 of its namespace's other topics" in found["message"]
    await world.delete_broker(SHOP, "one")
    assert condition(await world.reconcile_broker(SHOP, "three"), "Ready")["status"] == "True"
    world.configure("other", "mine", **{"default.topic.partitions": "20"})
    world.declare_broker("other", config=MINE)
    assert condition(await world.reconcile_broker("other"), "Ready")["status"] == "True"


@pytest.mark.looptime
async def test_a_trigger_beyond_the_maxima_gets_no_pods_and_one_that_delivers_goes_on(
    world: OperatorWorld,
) -> None:
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    world.declare_trigger(SHOP, "orders", annotations={AUTOSCALING + "min-scale": "50"})
    found = condition(await world.reconcile_trigger(SHOP, "orders"), "SubscriptionReady")
    assert (found["status"], found["reason"]) == ("False", "Invalid")
    assert "50: want at most 5, as this installation allows (KNAFKA_MAX_SCALE)" in found["message"]
    key = SERVING, "Service", SHOP, "orders-kn-dispatcher"
    assert key not in world.cluster.objects
    world.declare_trigger(SHOP, "orders", annotations={AUTOSCALING + "min-scale": "5"})
    assert condition(await world.reconcile_trigger(SHOP, "orders"), "Ready")["status"] == "True"
    before = world.cluster.objects[key]
    world.declare_trigger(SHOP, "orders", annotations={AUTOSCALING + "min-scale": "50"})
    found = condition(await world.reconcile_trigger(SHOP, "orders"), "SubscriptionReady")
    assert found["reason"] == "Invalid"
    assert world.cluster.objects[key] == before


@pytest.mark.looptime
async def test_the_triggers_of_a_namespace_have_a_maximum_of_pods_that_always_run(
    world: OperatorWorld,
) -> None:
    for namespace in (SHOP, "other"):
        world.declare_broker(namespace)
        await world.reconcile_broker(namespace)
    for namespace, name, least in ((SHOP, "one", "5"), ("other", "mine", "5"), (SHOP, "two", "1")):
        world.declare_trigger(namespace, name, annotations={AUTOSCALING + "min-scale": least})
        found = condition(await world.reconcile_trigger(namespace, name), "Ready")
        assert found["status"] == "True"
    world.declare_trigger(SHOP, "three", annotations={AUTOSCALING + "min-scale": "2"})
    found = condition(await world.reconcile_trigger(SHOP, "three"), "SubscriptionReady")
    assert (found["status"], found["reason"]) == ("False", "NamespaceMinScale")
    assert "min-scale 2 and the 6 of its namespace's others are more than the 6" in found["message"]
    assert (SERVING, "Service", SHOP, "three-kn-dispatcher") not in world.cluster.objects
    await world.delete_trigger(SHOP, "one")
    assert condition(await world.reconcile_trigger(SHOP, "three"), "Ready")["status"] == "True"
    await world.restart(maxima=Maxima(namespace_min_scale=1))
    await world.operator.resume()
    await world.reconcile_broker(SHOP)
    for name in ("two", "three"):
        found = condition(await world.reconcile_trigger(SHOP, name), "Ready")
        assert found["status"] == "True", "what it has already it keeps"
    world.declare_trigger(SHOP, "two", annotations={AUTOSCALING + "min-scale": "5"})
    for _ in range(2):
        found = condition(await world.reconcile_trigger(SHOP, "two"), "SubscriptionReady")
        assert found["reason"] == "NamespaceMinScale"
        await world.restart(maxima=Maxima(namespace_min_scale=1))
        await world.operator.resume()
        await world.reconcile_broker(SHOP)


def declare_at_once(world: OperatorWorld, *names: str) -> Iterator[Coroutine[Any, Any, Any]]:
    """Each a Trigger with five pods that always run, and its reconciliation."""
    for name in names:
        world.cluster.unready.add(f"{name}-kn-dispatcher")
        world.declare_trigger(SHOP, name, annotations={AUTOSCALING + "min-scale": "5"})
        yield world.reconcile_trigger(SHOP, name)


def pods_that_always_run(world: OperatorWorld) -> int:
    services = [each for each in world.cluster.of("Service") if each["apiVersion"] == SERVING]
    templates = [each["spec"]["template"]["metadata"]["annotations"] for each in services]
    return sum(int(each.get("autoscaling.knative.dev/min-scale", "0")) for each in templates)


@pytest.mark.looptime
async def test_triggers_that_are_applied_at_once_pass_their_namespaces_maximum_neither(
    world: OperatorWorld,
) -> None:
    """Ten Triggers had 50 pods of 6: each counted only once its pods were Ready."""
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    names = [f"t{number}" for number in range(10)]
    statuses = await asyncio.gather(*declare_at_once(world, *names))
    found = [condition(each, "SubscriptionReady")["reason"] for each in statuses]
    assert found.count("NamespaceMinScale") == 9
    assert pods_that_always_run(world) == 5
    (first,) = {*range(10)} - {at for at, each in enumerate(found) if each == "NamespaceMinScale"}
    world.cluster.become_ready(SHOP, f"t{first}-kn-dispatcher")
    status = await world.reconcile_trigger(SHOP, f"t{first}")
    assert condition(status, "Ready")["status"] == "True"
    await world.delete_trigger(SHOP, f"t{first}")
    for name in {*names} - {f"t{first}"}:
        await world.reconcile_trigger(SHOP, name)
    assert pods_that_always_run(world) == 5, "who is left gets what was given back"


@pytest.mark.looptime
@pytest.mark.parametrize("gone", [None, "subscriber", "restart"])
async def test_a_trigger_whose_pods_run_keeps_them_before_a_new_one_gets_any(
    world: OperatorWorld, gone: str | None
) -> None:
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    await asyncio.gather(*declare_at_once(world, "first"))
    if gone == "subscriber":
        world.cluster.become_ready(SHOP, "first-kn-dispatcher")
        await world.reconcile_trigger(SHOP, "first")
        missing = {"ref": {"apiVersion": SERVING, "kind": "Service", "name": "missing"}}
        annotations = {AUTOSCALING + "min-scale": "5"}
        world.declare_trigger(SHOP, "first", annotations=annotations, subscriber=missing)
        await world.reconcile_trigger(SHOP, "first")
        assert pods_that_always_run(world) == 5, "it keeps its function"
    elif gone == "restart":
        await world.restart(maxima=MAXIMA)
        await world.operator.resume()
        await world.reconcile_broker(SHOP)
    (status,) = await asyncio.gather(*declare_at_once(world, "second"))
    assert condition(status, "SubscriptionReady")["reason"] == "NamespaceMinScale"
    status = await world.reconcile_trigger(SHOP, "first")
    assert condition(status, "SubscriptionReady").get("reason") != "NamespaceMinScale"
    assert pods_that_always_run(world) == 5


@pytest.mark.looptime
async def test_brokers_that_are_applied_at_once_pass_their_namespaces_maximum_neither(
    world: OperatorWorld,
) -> None:
    """Ten Brokers had 200 partitions of 30."""
    names = [f"b{number}" for number in range(10)]
    for name in names:
        declare(world, name, 20)
    statuses = await asyncio.gather(*(world.reconcile_broker(SHOP, name) for name in names))
    found = {
        name: condition(status, "TopicReady").get("reason")
        for name, status in zip(names, statuses, strict=True)
    }
    (made,) = (name for name, reason in found.items() if reason is None)
    assert {found[name] for name in names if name != made} == {"NamespacePartitions"}
    assert partitions_made(world) == 20
    declare(world, "small", 10)
    assert condition(await world.reconcile_broker(SHOP, "small"), "Ready")["status"] == "True"
    await world.delete_broker(SHOP, made)
    (left, *_) = [name for name in names if name != made]
    assert condition(await world.reconcile_broker(SHOP, left), "Ready")["status"] == "True"


@pytest.mark.looptime
async def test_a_broker_whose_topic_is_there_keeps_its_room_before_a_new_one_gets_any(
    world: OperatorWorld,
) -> None:
    """A restarted operator reconciles the new one first."""
    declare(world, "first", 20)
    await world.reconcile_broker(SHOP, "first")
    await world.restart(maxima=MAXIMA)
    declare(world, "second", 20)
    world.operator.on_broker(world.document("Broker", SHOP, "first"), gone=False)
    found = condition(await world.reconcile_broker(SHOP, "second"), "TopicReady")
    assert found["reason"] == "NamespacePartitions"
    assert condition(await world.reconcile_broker(SHOP, "first"), "Ready")["status"] == "True"


@pytest.mark.looptime
@pytest.mark.parametrize("restarted", [False, True])
async def test_channels_that_are_applied_at_once_pass_their_namespaces_maximum_neither(
    restarted: bool,
) -> None:
    async with running_channels() as world:
        await world.restart(maxima=MAXIMA)
        names = ["one", "two", "three"]
        for name in names:
            world.declare_channel(SHOP, name, numPartitions=20)
        await asyncio.gather(*(world.reconcile_channel(SHOP, name) for name in names))
        assert partitions_made(world) == 20
        statuses = {name: world.stored("KafkaChannel", SHOP, name)["status"] for name in names}
        (made,) = (
            name for name in names if condition(statuses[name], "TopicReady")["status"] == "True"
        )
        if restarted:
            await world.restart(maxima=MAXIMA)
            world.hear()
        for name in sorted(names, key=made.__eq__):  # the others first
            await world.reconcile_channel(SHOP, name)
        assert partitions_made(world) == 20


def partitions_made(world: OperatorWorld) -> int:
    topics = world.log.topics.items()
    return sum(len(partitions) for name, partitions in topics if not name.startswith(CONTRACTS))


@pytest.mark.looptime
async def test_a_brokers_receiver_gets_no_more_pods_than_the_installation_allows(
    world: OperatorWorld,
) -> None:
    world.declare_broker(SHOP, annotations={"autoscaling.knative.dev/min-scale": "6"})
    found = condition(await world.reconcile_broker(SHOP), "DataPlaneAvailable")
    assert (found["status"], found["reason"]) == ("False", "Invalid")
    assert "6: want at most 5" in found["message"]
    assert (SERVING, "Service", SHOP, "default-kn-receiver") not in world.cluster.objects


@pytest.mark.looptime
async def test_a_number_of_pods_of_thousands_of_digits_is_refused_in_a_condition(
    world: OperatorWorld,
) -> None:
    """`int()` raises for more than 4,300 digits."""
    world.declare_broker(SHOP, annotations={"autoscaling.knative.dev/min-scale": "9" * 5_000})
    found = condition(await world.reconcile_broker(SHOP), "DataPlaneAvailable")
    assert (found["status"], found["reason"]) == ("False", "Invalid")
