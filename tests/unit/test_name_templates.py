"""Templates of names (`config-kafka-features`): which are taken, what they name, and what stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.memory.log import MemoryWriter
from support.operator_world import SETTINGS, OperatorWorld, condition, running_operator
from support.waiting import until

from knafka.core import names
from knafka.core.errors import InvalidDocument
from knafka.ports.log import OffsetAndMetadata
from knafka_operator.installation.naming import (
    DEFAULTS,
    NamedObject,
    NameKind,
    Naming,
    normalize_template,
    render_name,
)
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.kube_api.memory_cluster import MemoryCluster
from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.resources import (
    CORE,
    EVENTING,
    EXTERNAL_TOPIC,
    GROUP_STATUS,
    TOPIC_STATUS,
)
from knafka_operator.runtime.naming import TEMPLATES_CONFIG_MAP, FollowedNaming

OF = NamedObject("shop", "orders", "11111111-2222-3333-4444-555555555555")
BROKER, CHANNEL, GROUP = NameKind.BROKER_TOPIC, NameKind.CHANNEL_TOPIC, NameKind.TRIGGER_GROUP
FEATURES = ("knative-eventing", "config-kafka-features")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("events-{{ .Namespace }}-{{ .Name }}", "events-shop-orders"),
        ("events-{{.Namespace}}-{{.Name}}", "events-shop-orders"),
        ("events.{{   .Namespace}}.{{ .Name   }}", "events.shop.orders"),
        ("{{ .UID }}", OF.uid),
        ("x_{{\t.Name }}\n", "x_orders"),
    ],
)
def test_a_template_has_the_three_placeholders_of_upstreams_docs(template: str, name: str) -> None:
    assert render_name(normalize_template(BROKER, template), OF) == name


@pytest.mark.parametrize(
    ("kind", "template", "problem"),
    [
        (BROKER, "{{ .Labels.team }}-{{ .Name }}", "no placeholders but"),
        (BROKER, "{{ .Name | upper }}", "no placeholders but"),
        (BROKER, "{{- .Name -}}", "no placeholders but"),
        (BROKER, "{{ if .Name }}x{{ end }}", "no placeholders but"),
        (BROKER, "{{ .Name", "no placeholders but"),
        (BROKER, "events/{{ .Name }}", "A-Z, a-z, 0-9"),
        (BROKER, "all-events", "every object would have the same name"),
        (BROKER, "", "every object would have the same name"),
        (BROKER, "{{ .Name }}" * 100, "at most 500 characters"),
        (BROKER, "knafka-{{ .Name }}", "names that begin with knafka-"),
        (BROKER, "__{{ .Name }}", "names that begin with __"),
        (BROKER, "knative-messaging-kafka.{{ .Name }}", "names that begin with"),
        (CHANNEL, "knative-broker-{{ .Name }}", "names that begin with knative-broker-"),
        (GROUP, "kafka.{{ .Name }}", "names that begin with kafka."),
        (GROUP, "knative-kafka-source-{{ .Name }}", "names that begin with"),
    ],
)
def test_what_else_stands_in_a_template_is_refused(
    kind: NameKind, template: str, problem: str
) -> None:
    with pytest.raises(InvalidDocument, match=problem) as refused:
        normalize_template(kind, template)
    assert refused.value.path == f"data.{kind.value}"


def test_without_templates_names_are_upstreams() -> None:
    usual = Naming()
    assert usual.name(BROKER, OF) == "knative-broker-shop-orders"
    assert usual.name(CHANNEL, OF) == "knative-messaging-kafka.shop.orders"
    assert usual.name(GROUP, OF) == "knative-trigger-shop-orders"


def test_a_name_that_kafka_does_not_take_is_refused_when_it_is_made() -> None:
    naming = Naming()
    naming.set_current_template(
        BROKER, normalize_template(BROKER, "{{ .Namespace }}-" + "x" * 200 + "{{ .Name }}")
    )
    assert naming.name(BROKER, OF)
    with pytest.raises(InvalidDocument, match="at most 249"):
        naming.name(BROKER, OF._replace(name="n" * 60))
    naming.set_current_template(BROKER, normalize_template(BROKER, "{{ .Namespace }}-{{ .Name }}"))
    with pytest.raises(InvalidDocument, match="a name that is others'"):
        naming.name(BROKER, NamedObject("knafka", "default"))


def test_a_trigger_may_have_its_uid_as_its_group_as_older_peers_gave_it() -> None:
    naming = Naming()
    assert naming.is_own(GROUP, OF.uid, OF)
    assert not naming.is_own(GROUP, "", OF._replace(uid=""))
    assert not naming.is_own(BROKER, OF.uid, OF)


# What follows the ConfigMap.


class Following:
    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.settings: Any = type(SETTINGS)(namespace="knafka", image="x")
        self.events: list[tuple[str, str]] = []
        self.naming = FollowedNaming(self.settings, cluster)

    def post(self, document: Document, type_: str, reason: str, message: str) -> None:
        assert document["metadata"]["name"] == "config-kafka-features"
        self.events.append((reason, message))

    async def declare(self, **data: str) -> None:
        self.put(**data)
        await self.naming.apply_config(self.post)

    def put(self, **data: str) -> None:
        given = {key.replace("_", "."): text for key, text in data.items()}
        metadata = dict(zip(("namespace", "name"), FEATURES, strict=True))
        self.cluster.put(
            {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": given}
        )

    def now(self, kind: NameKind = BROKER) -> str:
        return str(self.settings.naming.current_template(kind))


async def test_a_good_template_is_in_force_and_remembered() -> None:
    following = Following(MemoryCluster())
    await following.declare(brokers_topic_template="events-{{.Namespace}}-{{.Name}}")
    assert following.now() == "events-{{ .Namespace }}-{{ .Name }}"
    assert [reason for reason, _ in following.events] == ["NameTemplateChanged"]
    record = following.cluster.objects[CORE, "ConfigMap", "knafka", TEMPLATES_CONFIG_MAP]
    assert record["data"][BROKER.value].splitlines() == [
        "events-{{ .Namespace }}-{{ .Name }}",
        DEFAULTS[BROKER],
    ]


async def test_a_bad_template_changes_nothing_and_says_so_once() -> None:
    following = Following(MemoryCluster())
    await following.declare(brokers_topic_template="events-{{ .Name }}-{{ .Namespace }}")
    await following.declare(
        brokers_topic_template="{{ .Labels.team }}",
        triggers_consumergroup_template="group-{{ .UID }}",
    )
    await following.naming.apply_config(following.post)
    assert following.now() == "events-{{ .Name }}-{{ .Namespace }}"
    assert following.now(GROUP) == "group-{{ .UID }}", "what is good beside it counts"
    (warning,) = [text for reason, text in following.events if reason == "InvalidNameTemplate"]
    assert "knative-eventing/config-kafka-features: data.brokers.topic.template" in warning
    assert "events-{{ .Name }}-{{ .Namespace }} stays" in warning


async def test_the_newer_spelling_of_a_key_wins_and_a_key_that_goes_is_the_default_again() -> None:
    following = Following(MemoryCluster())
    following.put()
    stored = following.cluster.objects[CORE, "ConfigMap", *FEATURES]
    stored["data"] = {
        "brokers.topic.template": "old-{{ .Name }}-{{ .Namespace }}",
        "brokers-topic-template": "new-{{ .Name }}-{{ .Namespace }}",
    }
    await following.naming.apply_config(following.post)
    assert following.now().startswith("new-")
    await following.declare()
    assert following.now() == DEFAULTS[BROKER]


async def test_after_a_restart_what_was_valid_last_is_in_force_and_what_was_before_is_known() -> (
    None
):
    following = Following(MemoryCluster())
    for template in ("one-{{ .UID }}", "two-{{ .UID }}", "{{ .Bad }}"):
        await following.declare(brokers_topic_template=template)
    again = Following(following.cluster)
    await again.naming.start()
    assert again.now() == "two-{{ .UID }}"
    assert again.settings.naming.is_own(BROKER, f"one-{OF.uid}", OF)
    assert again.settings.naming.is_own(BROKER, "knative-broker-shop-orders", OF)
    assert not again.settings.naming.is_own(BROKER, f"three-{OF.uid}", OF)


async def test_what_was_declared_while_no_operator_ran_is_told_once() -> None:
    following = Following(MemoryCluster())
    following.put(
        brokers_topic_template="{{ .Bad }}", triggers_consumergroup_template="group-{{ .UID }}"
    )
    await following.naming.start()
    task = asyncio.create_task(following.naming.follow(following.post))
    await until(lambda: len(following.events) == 2)
    assert {reason for reason, _ in following.events} == {
        "NameTemplateChanged",
        "InvalidNameTemplate",
    }
    following.put(
        brokers_topic_template="{{ .Bad }}", triggers_consumergroup_template="again-{{ .UID }}"
    )
    following.naming.reread_soon()
    await until(lambda: following.now(GROUP) == "again-{{ .UID }}")
    task.cancel()
    await asyncio.wait([task])
    assert [reason for reason, _ in following.events].count("InvalidNameTemplate") == 1


async def test_no_name_is_made_by_a_template_that_could_not_be_remembered() -> None:
    class Refusing(MemoryCluster):
        async def apply(self, manifest: Document) -> Document:
            raise ClusterError("the API server is away")

    following = Following(Refusing())
    with pytest.raises(ClusterError):
        await following.declare(brokers_topic_template="events-{{ .UID }}")
    assert following.now() == DEFAULTS[BROKER]


# What objects get and keep.


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        await world.restart(naming=Naming())
        yield world


def use(world: OperatorWorld, kind: NameKind, template: str) -> None:
    world.operator.settings.naming.set_current_template(kind, normalize_template(kind, template))


@pytest.mark.looptime
async def test_new_objects_are_named_by_the_template_and_old_ones_keep_their_names(
    world: OperatorWorld,
) -> None:
    world.declare_broker("shop", "old")
    world.declare_trigger("shop", "first", "old")
    await world.reconcile_broker("shop", "old")
    await world.reconcile_trigger("shop", "first")
    use(world, BROKER, "events-{{ .Namespace }}-{{ .Name }}")
    use(world, GROUP, "group-{{ .Namespace }}-{{ .Name }}")
    world.declare_broker("shop", "new")
    for name, broker in (("second", "old"), ("third", "new")):
        world.declare_trigger("shop", name, broker)
    old, new = [await world.reconcile_broker("shop", name) for name in ("old", "new")]
    assert old["annotations"][TOPIC_STATUS] == "knative-broker-shop-old"
    assert new["annotations"][TOPIC_STATUS] == "events-shop-new"
    groups = {}
    for name in ("first", "second", "third"):
        status = await world.reconcile_trigger("shop", name)
        groups[name] = status["annotations"][GROUP_STATUS]
    assert groups == {
        "first": "knative-trigger-shop-first",
        "second": "group-shop-second",
        "third": "group-shop-third",
    }
    use(world, BROKER, DEFAULTS[BROKER])
    use(world, GROUP, DEFAULTS[GROUP])
    new = await world.reconcile_broker("shop", "new")
    assert new["annotations"][TOPIC_STATUS] == "events-shop-new"
    await world.reconcile_trigger("shop", "third")
    assert {each.egress.group for each in world.operator.triggers.watched.values()} == set(
        groups.values()
    )
    # What was made by the template goes with its object.
    await world.delete_trigger("shop", "third")
    assert "group-shop-third" not in world.log.groups
    await world.delete_broker("shop", "new")
    assert "events-shop-new" not in world.log.topics


@pytest.mark.looptime
async def test_a_topic_that_another_broker_has_is_refused_and_never_shared(
    world: OperatorWorld,
) -> None:
    use(world, BROKER, "events-{{ .Name }}")
    for namespace in ("shop", "market"):
        world.declare_broker(namespace)
    assert condition(await world.reconcile_broker("shop"), "TopicReady")["status"] == "True"
    refused = condition(await world.reconcile_broker("market"), "TopicReady")
    assert (refused["status"], refused["reason"]) == ("False", "TopicTaken")
    assert "brokers.topic.template in ConfigMap config-kafka-features" in refused["message"]
    await world.delete_broker("market")
    assert "events-default" in world.log.topics
    use(world, BROKER, "events-{{ .Name }}-{{ .Namespace }}")
    world.declare_broker("market")
    status = await world.reconcile_broker("market")
    assert status["annotations"][TOPIC_STATUS] == "events-default-market"


@pytest.mark.looptime
async def test_a_group_that_another_trigger_has_is_refused(world: OperatorWorld) -> None:
    use(world, GROUP, "group-{{ .Name }}")
    for namespace in ("shop", "market"):
        world.declare_broker(namespace)
        world.declare_trigger(namespace, "mail")
        await world.reconcile_broker(namespace)
    await world.reconcile_trigger("shop", "mail")
    refused = condition(await world.reconcile_trigger("market", "mail"), "SubscriptionReady")
    assert (refused["status"], refused["reason"]) == ("False", "GroupTaken")


@pytest.mark.looptime
async def test_a_group_of_an_application_is_neither_joined_nor_deleted(
    world: OperatorWorld,
) -> None:
    use(world, GROUP, "{{ .Name }}")
    world.log.group("billing").committed["invoices", 0] = OffsetAndMetadata(7, "")
    world.declare_broker("shop")
    world.declare_trigger("shop", "billing")
    await world.reconcile_broker("shop")
    refused = condition(await world.reconcile_trigger("shop", "billing"), "SubscriptionReady")
    assert (refused["status"], refused["reason"]) == ("False", "GroupTaken")
    assert world.log.group("billing").committed == {("invoices", 0): OffsetAndMetadata(7, "")}
    await world.delete_trigger("shop", "billing")
    assert "billing" in world.log.groups


@pytest.mark.looptime
async def test_a_topic_of_somebody_else_is_not_taken_by_a_template(world: OperatorWorld) -> None:
    use(world, BROKER, "{{ .Name }}")
    world.declare_broker("shop", "invoices")
    world.log.create("invoices", 1)
    refused = condition(await world.reconcile_broker("shop", "invoices"), "TopicReady")
    assert (refused["status"], refused["reason"]) == ("False", "TopicNotOurs")
    await world.delete_broker("shop", "invoices")
    assert "invoices" in world.log.topics


@pytest.mark.looptime
async def test_a_status_names_no_topic_that_no_template_gives(world: OperatorWorld) -> None:
    use(world, BROKER, "events-{{ .Namespace }}-{{ .Name }}")
    for name in ("mine", "forged"):
        world.declare_broker("shop", name)
    mine = await world.reconcile_broker("shop", "mine")
    stored: dict[str, Any] = world.cluster.objects[EVENTING, "Broker", "shop", "forged"]
    stored["status"] = {
        "annotations": {key: mine["annotations"][key] for key in (TOPIC_STATUS, TOPIC_ID)}
    }
    forged = await world.reconcile_broker("shop", "forged")
    assert forged["annotations"][TOPIC_STATUS] == "events-shop-forged"
    MemoryWriter(world.log).append("events-shop-mine", None, b"{}", [], lambda *_: None)
    await world.delete_broker("shop", "forged")
    assert "events-shop-mine" in world.log.topics


def test_names_of_no_template_are_kept_apart_by_a_digest_as_ever() -> None:
    assert Naming().is_own(BROKER, names.distinct_broker_topic("shop", "orders"), OF)


@pytest.mark.looptime
async def test_a_topic_that_a_broker_has_by_a_template_is_nobodys_external_topic(
    world: OperatorWorld,
) -> None:
    use(world, BROKER, "events-{{ .Namespace }}-{{ .Name }}")
    world.declare_broker("shop")
    await world.reconcile_broker("shop")
    world.allow("*")
    world.declare_broker("thief", annotations={EXTERNAL_TOPIC: "events-shop-default"})
    refused = condition(await world.reconcile_broker("thief"), "TopicReady")
    assert refused["reason"] == "ExternalTopicNotAllowed"
    assert "it is another Broker's own" in refused["message"]
