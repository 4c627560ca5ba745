"""Trust bundles at the operator: what is copied where, and before what (issue 38)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from support.certificates import OTHER_PEM, PEM
from support.channel_world import running_channels
from support.operator_world import OperatorWorld, condition, running_operator
from support.sharing import SHARED, SHOP, declare, is_ready
from support.waiting import until

from knafka.core.errors import InvalidDocument
from knafka.settings import TRUST_BUNDLES
from knafka_operator.functions import services
from knafka_operator.functions import trust_bundle_manifests as trust_bundles
from knafka_operator.functions.services import TRUST_BUNDLE, TRUST_PATH
from knafka_operator.functions.trust_bundle_manifests import TRUST_BUNDLE_LABEL, merge_certificates
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import NotAllowed
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, SERVING

EVENTING = "knative-eventing"


def bundle(name: str, namespace: str = EVENTING, **data: str) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "labels": {TRUST_BUNDLE_LABEL: "true"}}
    return {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": data}


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    """With a bundle, a Broker, and no Trigger yet."""
    async with running_operator() as world:
        await world.restart(trust_bundles=EVENTING)
        world.cluster.put(bundle("corporate", **{"ca.crt": PEM}))
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        yield world


def copied(world: OperatorWorld, namespace: str = SHOP) -> str | None:
    found = world.cluster.objects.get((CORE, "ConfigMap", namespace, TRUST_BUNDLE))
    return None if found is None else found["data"]["bundle.pem"]


def template(world: OperatorWorld, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = world.cluster.objects[SERVING, "Service", SHOP, name]
    return found["spec"]["template"]["spec"]  # type: ignore[no-any-return]


# What the bundles come to.


@pytest.mark.parametrize(
    ("config_maps", "pem", "problems"),
    [
        ([], "", {}),
        ([bundle("a", crt=PEM), bundle("b", crt=PEM, pem=OTHER_PEM)], PEM + OTHER_PEM, {}),
        ([bundle("b", x=PEM), bundle("a", x=OTHER_PEM)], OTHER_PEM + PEM, {}),
        ([bundle("a", x=f"# of the company\n{PEM}the end")], PEM, {}),
        ([bundle("a", x="nothing"), bundle("b", x=PEM)], PEM, {"a": "it holds no certificate"}),
        (
            [bundle("a", x=PEM + PEM.replace("MIIB", "AAAA"))],
            PEM,
            {"a": "1 of its certificates can't be read"},
        ),
    ],
    ids=["none", "each once", "by name", "with notes", "one without", "one broken"],
)
def test_bundles_are_merged(
    config_maps: Sequence[dict[str, Any]], pem: str, problems: Mapping[str, str]
) -> None:
    found = merge_certificates(config_maps)
    assert found.pem == pem
    assert found.problems.keys() == problems.keys()
    assert all(found.problems[name].startswith(why) for name, why in problems.items())


def test_an_item_of_a_list_has_no_kind() -> None:
    """As the API server answers."""
    listed = bundle("a", x=PEM)
    del listed["apiVersion"], listed["kind"]
    assert merge_certificates([listed]).pem == PEM
    del listed["data"]
    assert merge_certificates([listed]).problems["a"].startswith("it holds no certificate")


def test_what_does_not_fit_into_a_config_map_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust_bundles, "MAX_BUNDLE_BYTES", len(PEM) + 10)
    found = merge_certificates([bundle("a", x=PEM), bundle("b", x=OTHER_PEM)])
    assert found.pem == PEM
    assert "all certificates together have more than" in found.problems["b"]


# Where they are copied.


async def test_a_namespace_has_its_copy_before_it_has_a_dispatcher(world: OperatorWorld) -> None:
    assert copied(world) is None, "a receiver sends nothing"
    world.cluster.refuse("apply", "Service", error=NotAllowed("not now"))
    assert not is_ready(await declare(world, {}))
    assert copied(world) == PEM
    world.cluster.permit()
    assert is_ready(await declare(world, {}))
    spec = template(world, "orders-kn-dispatcher")
    assert spec["volumes"] == [
        {"name": "trust", "configMap": {"name": TRUST_BUNDLE, "optional": True}}
    ]
    container = spec["containers"][0]
    assert container["volumeMounts"] == [
        {"name": "trust", "mountPath": TRUST_PATH, "readOnly": True}
    ]
    assert services.environment_of(container)[TRUST_BUNDLES] == TRUST_PATH
    assert "volumes" not in template(world, "default-kn-receiver")


async def test_a_shared_dispatcher_has_them_too(world: OperatorWorld) -> None:
    assert is_ready(await declare(world, SHARED))
    assert copied(world) == PEM
    assert template(world, "default-kn-shard-0")["volumes"][0]["name"] == "trust"


async def test_a_changed_bundle_is_copied_and_rolls_nothing(world: OperatorWorld) -> None:
    await declare(world, {})
    before = template(world, "orders-kn-dispatcher")
    changed = bundle("corporate", **{"ca.crt": PEM + OTHER_PEM})
    world.cluster.put(changed)
    world.operator.trust_bundles.on_config_map(changed)
    await until(lambda: copied(world) == PEM + OTHER_PEM)
    assert is_ready(await declare(world, {}))
    assert template(world, "orders-kn-dispatcher") == before


@pytest.mark.parametrize("how", ["it went", "its label went"])
async def test_a_bundle_that_goes_is_in_no_copy_any_more(world: OperatorWorld, how: str) -> None:
    await declare(world, {})
    world.cluster.remove(CORE, "ConfigMap", EVENTING, "corporate")
    gone = bundle("corporate")
    if how == "its label went":
        del gone["metadata"]["labels"]
        world.cluster.put(gone)
    world.operator.trust_bundles.on_config_map(gone)
    await until(lambda: copied(world) == "")


async def test_other_config_maps_are_not_even_read(world: OperatorWorld) -> None:
    """A namespace's owner adds nobody to those whom its neighbours believe."""
    world.cluster.put(bundle("mine", SHOP, x=OTHER_PEM))
    world.configure(EVENTING, "unlabelled", x=OTHER_PEM)
    await declare(world, {})
    assert copied(world) == PEM


async def test_a_copy_that_somebody_edits_is_as_it_was_again(world: OperatorWorld) -> None:
    await declare(world, {})
    edited = world.cluster.objects[CORE, "ConfigMap", SHOP, TRUST_BUNDLE]
    edited = {**edited, "data": {"bundle.pem": OTHER_PEM}}
    world.cluster.put(edited)
    world.operator.trust_bundles.on_config_map(edited)
    await until(lambda: copied(world) == PEM)


async def test_a_config_map_of_that_name_that_is_not_ours_is_left_alone(
    world: OperatorWorld,
) -> None:
    world.configure(SHOP, TRUST_BUNDLE, mine="yes")
    status = await declare(world, {})
    found = condition(status, "Ready")
    assert (found["status"], found["reason"]) == ("False", "TrustBundleNotOurs")
    assert f"ConfigMap {SHOP}/{TRUST_BUNDLE}" in found["message"]
    assert "delete or rename it" in found["message"]
    assert world.cluster.objects[CORE, "ConfigMap", SHOP, TRUST_BUNDLE]["data"] == {"mine": "yes"}


async def test_a_missing_right_says_what_to_apply(world: OperatorWorld) -> None:
    world.cluster.refuse("apply", "ConfigMap", error=NotAllowed("cannot patch configmaps"))
    found = condition(await declare(world, {}), "Ready")
    assert (found["status"], found["reason"]) == ("False", "TrustBundleNotCopied")
    assert "apply operator/deploy/trust-bundles" in found["message"]


async def test_without_the_setting_nothing_is_read_or_mounted() -> None:
    async with running_operator() as world:
        world.cluster.put(bundle("corporate", **{"ca.crt": PEM}))
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        assert is_ready(await declare(world, {}))
        await asyncio.sleep(0)
        assert copied(world) is None
        spec = template(world, "orders-kn-dispatcher")
        assert "volumes" not in spec
        assert TRUST_BUNDLES not in services.environment_of(spec["containers"][0])


def test_the_setting_is_a_namespace() -> None:
    required = {"KNAFKA_NAMESPACE": "knafka", "KNAFKA_IMAGE": "knafka"}
    named = Settings.from_environment({**required, "KNAFKA_TRUST_BUNDLES": " knative-eventing "})
    assert named.trust_bundles == "knative-eventing"
    with pytest.raises(InvalidDocument, match="want the name of a namespace"):
        Settings.from_environment({**required, "KNAFKA_TRUST_BUNDLES": "a/b"})


# What a destination names itself.


async def test_a_trigger_tells_by_what_its_destinations_are_known(world: OperatorWorld) -> None:
    delivery = {"deadLetterSink": {"uri": "https://dead/", "CACerts": OTHER_PEM}}
    subscriber = {"uri": "https://there/", "CACerts": PEM}
    status = await declare(world, {}, subscriber=subscriber, delivery=delivery)
    assert (status["subscriberCACerts"], status["deadLetterSinkCACerts"]) == (PEM, OTHER_PEM)
    status = await declare(world, {}, subscriber={"uri": "https://there/"})
    assert (status["subscriberCACerts"], status["deadLetterSinkCACerts"]) == (None, None)


async def test_more_authorities_than_a_dispatcher_can_be_given_change_nothing_and_are_a_reason(
    world: OperatorWorld,
) -> None:
    world.declare_broker("shop")
    await world.reconcile_broker("shop")
    world.declare_trigger("shop", "orders")
    assert condition(await world.reconcile_trigger("shop", "orders"), "Ready")["status"] == "True"
    services_before = list(world.cluster.of("Service"))
    large = {"uri": "https://there/", "CACerts": PEM * (150_000 // len(PEM))}
    world.declare_trigger("shop", "orders", subscriber=large)
    found = condition(await world.reconcile_trigger("shop", "orders"), "SubscriptionReady")
    assert (found["status"], found["reason"]) == ("False", "ContractTooLarge")
    assert "declare shorter CACerts or filters" in found["message"]
    assert list(world.cluster.of("Service")) == services_before
    assert Identity("shop", "orders") in world.operator.triggers.watched


async def test_a_subscription_tells_it_too_and_so_does_its_entry() -> None:
    async with running_channels() as channels:
        channels.declare_channel(SHOP, "orders")
        await channels.reconcile_channel(SHOP, "orders")
        known = {"CACerts": PEM}
        channels.declare_subscription(
            SHOP, "mail", "orders",
            subscriber={"uri": "https://there/", **known}, reply={"uri": "https://back/", **known},
            delivery={"deadLetterSink": {"uri": "https://dead/", **known}},
        )  # fmt: skip
        status = await channels.reconcile_subscription(SHOP, "mail")
        names = ("subscriberCACerts", "replyCACerts", "deadLetterSinkCACerts")
        assert [status["physicalSubscription"][each] for each in names] == [PEM] * 3
        await channels.reconcile_channel(SHOP, "orders")
        (entry,) = channels.entries_of(SHOP, "orders")
        assert (entry["subscriberCACerts"], entry["replyCACerts"]) == (PEM, PEM)
        assert entry["delivery"]["deadLetterSink"] == {"uri": "https://dead/", **known}
