"""KafkaSinks: from what is declared to a receiver that writes to somebody's topic."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.operator_world import condition
from support.sinks_world import OWN, RAW, SHOP, SinksWorld, sinks_world

from knafka.core.errors import LogError
from knafka.settings import OIDC_URL
from knafka_operator.installation.naming import NameKind
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.event_policies import POLICIES_VERSION
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import SERVING, TOPIC_STATUS
from knafka_operator.runtime.metrics import operator_metrics
from knafka_operator.sinks.model import TOPIC_OWNER

LOGIN = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "x"}
URL = "http://orders-kn-sink-receiver.shop.svc.cluster.local/shop/orders"


def features(world: SinksWorld, **data: str) -> None:
    named = {key.replace("_", "-"): text for key, text in data.items()}
    world.inner.configure("knative-eventing", "config-features", **named)


async def test_a_sink_of_somebodys_topic_has_a_receiver_of_its_own_and_leaves_the_topic() -> None:
    async with sinks_world() as world:
        world.declare(contentMode="structured", bootstrapServers=["one:9092", "two:9092"])
        await world.turn()
        ingress, status = world.ingress(), world.status()
        assert world.says("Ready") == ("True", "")
        assert (ingress.kind, ingress.path, ingress.topic) == ("KafkaSink", "/shop/orders", RAW)
        assert ingress.content_mode == "structured"
        assert ingress.kafka.bootstrap_servers == "one:9092,two:9092"
        assert (ingress.kafka.secret_path, ingress.audience) == (None, None)
        assert status["address"] == {"name": "http", "url": URL}
        assert status["annotations"][TOPIC_OWNER] == "external"
        assert TOPIC_ID not in status["annotations"]
        assert {each["type"] for each in status["conditions"]} == {
            *("Ready", "ConfigParsed", "TopicReady", "DataPlaneAvailable", "Addressable"),
            "ProbeSucceeded",
        }
        assert world.inner.probed == [URL]
        assert set(world.inner.log.topics) == {RAW}, "none of ours in somebody's Kafka"
        service = world.service()
        assert service is not None
        labels = service["spec"]["template"]["metadata"]["labels"]
        assert labels["knafka.dev/role"] == "receiver"
        assert labels["knafka.dev/sink"] == "orders"
        assert "knafka.dev/broker" not in labels
        await world.delete()
        assert set(world.inner.log.topics) == {RAW}
        assert world.service() is None
        assert not world.sinks.records
        assert not world.sinks.owners


async def test_what_an_installation_does_not_ask_for_is_not_served() -> None:
    async with sinks_world() as world:
        await world.inner.restart()
        assert world.inner.operator.sinks is None


async def test_a_topic_is_made_as_declared_where_there_is_none_and_goes_with_its_sink() -> None:
    async with sinks_world() as world:
        world.declare(**OWN)
        await world.turn()
        assert world.says("Ready") == ("True", "")
        made = world.inner.log.descriptions["own"]
        assert (made.partitions, made.replication) == (2, 1)
        annotations = world.status()["annotations"]
        assert annotations[TOPIC_OWNER] == "kafkasink-controller"
        assert (annotations[TOPIC_STATUS], annotations[TOPIC_ID]) == ("own", made.id)
        await world.start()
        await world.turn()
        assert world.inner.log.descriptions["own"].id == made.id
        await world.delete()
        assert "own" not in world.inner.log.topics


async def test_a_topic_that_was_there_before_is_used_and_stays() -> None:
    """Upstream's deletes it with the sink."""
    async with sinks_world() as world:
        world.declare(numPartitions=9, replicationFactor=3)
        await world.turn()
        assert world.says("Ready") == ("True", "")
        assert world.status()["annotations"][TOPIC_OWNER] == "external"
        assert world.inner.log.descriptions[RAW].partitions == 3
        await world.delete()
        assert RAW in world.inner.log.topics


async def test_an_own_topic_that_somebody_makes_anew_is_somebodys() -> None:
    async with sinks_world() as world:
        world.declare(**OWN)
        await world.turn()
        del world.inner.log.topics["own"], world.inner.log.descriptions["own"]
        world.inner.log.create("own", 5)
        await world.turn()
        assert world.says("Ready") == ("True", "")
        annotations = world.status()["annotations"]
        assert annotations[TOPIC_OWNER] == "external"
        assert TOPIC_ID not in annotations
        await world.delete()
        assert "own" in world.inner.log.topics


async def test_a_topic_that_a_broker_has_by_a_template_is_refused() -> None:
    """Of such a name no prefix tells whose it is."""
    async with sinks_world() as world:
        settings = world.inner.operator.settings
        settings.naming.set_current_template(NameKind.BROKER_TOPIC, "{{ .Namespace }}.{{ .Name }}")
        world.inner.declare_broker(SHOP)
        await world.inner.reconcile_broker(SHOP)
        assert "shop.default" in world.inner.log.topics
        world.declare(topic="shop.default")
        await world.turn()
        status, message = world.says("ConfigParsed")
        assert status == "False"
        assert "want no topic of a Broker" in message
        assert world.service() is None


async def test_of_two_sinks_with_one_topic_the_first_makes_it_and_it_stays_with_the_other() -> None:
    async with sinks_world() as world:
        world.declare(**OWN)
        world.declare("second", **OWN)
        await world.turn()
        await world.turn("second")
        owners = [world.status(each)["annotations"][TOPIC_OWNER] for each in ("orders", "second")]
        assert owners == ["kafkasink-controller", "external"]
        await world.delete()
        assert "own" in world.inner.log.topics
        assert world.says("Ready", "second") == ("True", "")


async def test_while_one_sink_makes_a_topic_no_other_takes_it_for_its_own() -> None:
    async with sinks_world() as world:
        world.declare(**OWN)
        world.declare("second", namespace="elsewhere", **OWN)
        world.inner.kafka_failures["ensure_topic"] = LogError("no broker answers")
        await world.turn()
        world.inner.kafka_failures.clear()
        await world.turn("second", "elsewhere")
        assert world.says("TopicReady", "second", "elsewhere") == (
            "Unknown",
            "TopicNotOurs topic own is being made for another KafkaSink",
        )
        await world.start()
        await world.turn()
        await world.turn("second", "elsewhere")
        assert world.status()["annotations"][TOPIC_OWNER] == "kafkasink-controller"
        assert world.status("second", "elsewhere")["annotations"][TOPIC_OWNER] == "external"


async def test_a_status_that_somebody_wrote_deletes_no_topic() -> None:
    async with sinks_world() as world:
        world.inner.log.create("other", 1)
        ids = {name: each.id for name, each in world.inner.log.descriptions.items()}
        world.declare(**OWN)
        await world.turn()
        forged = {TOPIC_STATUS: "other", TOPIC_ID: ids["other"]}
        world.stored()["status"]["annotations"] |= forged
        await world.delete()
        world.declare("used")
        world.inner.log.store(RAW, None, b"any", None)
        await world.turn("used")
        world.stored("used")["status"]["annotations"] |= {TOPIC_STATUS: RAW, TOPIC_ID: ""}
        await world.delete("used")
        assert {"other", RAW} <= set(world.inner.log.topics)


MISSING: dict[str, tuple[dict[str, Any], str, str]] = {
    "a topic": (
        {"topic": "gone"},
        "TopicReady",
        "TopicNotFound theirs:9092 has no topic gone: create it",
    ),
    "half of how to make a topic": (
        {"topic": "gone", "numPartitions": 3},
        "TopicReady",
        "TopicNotFound theirs:9092 has no topic gone: create it",
    ),
    "a Secret": (
        {"auth": {"secret": {"ref": {"name": "gone"}}}},
        "ConfigParsed",
        "SecretNotFound spec.auth.secret.ref.name: Secret shop/gone does not exist: create it",
    ),
    "a topic that it may have": (
        {"topic": "knative-broker-shop-default"},
        "ConfigParsed",
        "Invalid spec.topic: invalid value: knative-broker-shop-default: want no topic of a Broker",
    ),
    "a topic that is small enough": (
        {**OWN, "numPartitions": 100_000},
        "TopicReady",
        "TopicTooLarge topic own is not made",
    ),
}


@pytest.mark.parametrize(("spec", "type_", "told"), MISSING.values(), ids=MISSING)
async def test_what_is_missing_is_named_with_what_to_do_and_nothing_is_served(
    spec: dict[str, Any], type_: str, told: str
) -> None:
    async with sinks_world() as world:
        world.declare(**spec)
        await world.turn()
        status, text = world.says(type_)
        assert (status, text[: len(told)]) == ("False", told)
        assert world.says("Ready")[0] == "False"
        assert world.service() is None
        assert set(world.inner.log.topics) == {RAW}
        await world.delete()


async def test_a_kafka_that_does_not_answer_stops_no_receiver() -> None:
    async with sinks_world() as world:
        world.declare()
        await world.turn()
        world.inner.kafka_failures["describe_topic"] = LogError("no broker answers")
        await world.turn()
        assert world.says("TopicReady") == (
            "False",
            "KafkaNotReachable Kafka: no broker answers",
        )
        assert world.service() is not None
        assert world.status()["address"]["url"] == URL


async def test_its_secret_is_mounted_by_its_own_receiver_and_by_no_other() -> None:
    async with sinks_world() as world:
        world.inner.declare_secret(
            SHOP, "login", protocol="SASL_PLAINTEXT", user="me", password="x"
        )
        world.declare(auth={"secret": {"ref": {"name": "login"}}})
        world.declare("open")
        await world.turn()
        await world.turn("open")
        assert world.inner.connected[0]["sasl.username"] == "me"
        service, other = world.service(), world.service("open")
        assert service is not None
        assert other is not None
        pod = service["spec"]["template"]["spec"]
        assert [each["secret"] for each in pod["volumes"]] == [{"secretName": "login"}]
        assert world.ingress().kafka.secret_path == "/var/run/secrets/knafka/kafka"
        assert "volumes" not in other["spec"]["template"]["spec"]
        before = service["spec"]["template"]["metadata"]["annotations"]
        world.inner.declare_secret(
            SHOP, "login", protocol="SASL_PLAINTEXT", user="me", password="y"
        )
        await world.turn()
        service = world.service()
        assert service is not None
        after = service["spec"]["template"]["metadata"]["annotations"]
        assert before != after, "pods read it at their start"


async def test_a_sink_asks_its_senders_who_they_are_as_a_broker_does() -> None:
    """KN-BRK-20, where `authentication-oidc` is on."""
    async with sinks_world() as world:
        features(world, authentication_oidc="enabled")
        to = {"apiVersion": "eventing.knative.dev/v1alpha1", "kind": "KafkaSink", "name": "orders"}
        policy = {
            "apiVersion": POLICIES_VERSION,
            "kind": "EventPolicy",
            "metadata": {"namespace": SHOP, "name": "one"},
            "spec": {"to": [{"ref": to}], "from": [{"sub": "me"}]},
        }
        world.inner.operator.on_policies_known(True)
        world.declare()
        await world.turn()
        ingress = world.ingress()
        assert ingress.audience == "eventing.knative.dev/kafkasink/shop/orders"
        assert ingress.policies == ()
        assert OIDC_URL in world.environment()
        woken: list[Any] = []
        world.inner.operator.queue.enqueue = woken.append  # type: ignore[method-assign,assignment]
        world.inner.operator.on_policies([policy], [])
        assert woken == [("KafkaSink", SHOP, "orders")]
        await world.turn()
        assert [each.subjects for each in world.ingress().policies] == [("me",)]
        status = world.status()
        assert status["address"]["audience"] == ingress.audience
        assert status["policies"] == [{"apiVersion": POLICIES_VERSION, "name": "one"}]
        assert condition(status, "EventPoliciesReady")["status"] == "True"
        features(world)
        await world.turn()
        assert world.ingress().audience is None
        assert world.status().get("policies") is None


async def test_policies_that_no_environment_can_hold_are_said_and_the_receiver_stays() -> None:
    async with sinks_world() as world:
        features(world, authentication_oidc="enabled")
        world.inner.operator.on_policies_known(True)
        world.declare()
        await world.turn()
        before = world.ingress()
        policies = [
            {
                "apiVersion": POLICIES_VERSION,
                "kind": "EventPolicy",
                "metadata": {"namespace": SHOP, "name": f"p{number}"},
                "spec": {"from": [{"sub": "s" * 1000}]},
            }
            for number in range(150)
        ]
        world.inner.operator.on_policies(policies, [])
        await world.turn()
        assert world.says("DataPlaneAvailable")[1].startswith("ContractTooLarge")
        assert world.ingress() == before


async def test_encrypted_addresses_are_knatives_own() -> None:
    async with sinks_world() as world:
        features(world, transport_encryption="permissive")
        world.declare()
        await world.turn()
        assert world.says("Ready")[0] == "True"
        assert world.status()["address"]["url"] == URL
        name = "orders-kn-sink-receiver"
        stored = world.service()
        assert stored is not None
        stored["status"]["address"] = {"url": f"https://{name}.shop.svc.cluster.local"}
        await world.turn()
        addresses = world.status()["addresses"]
        assert [each["name"] for each in addresses] == ["https", "http"]
        features(world, transport_encryption="strict")
        await world.turn()
        assert world.status()["address"]["url"].startswith("https://")
        assert world.ingress().encrypted_only


async def test_its_annotations_scale_its_receiver_within_what_is_allowed() -> None:
    async with sinks_world() as world:
        world.declare(annotations={"autoscaling.knative.dev/min-scale": "2", "other": "x"})
        await world.turn()
        service = world.service()
        assert service is not None
        annotations = service["spec"]["template"]["metadata"]["annotations"]
        assert annotations["autoscaling.knative.dev/min-scale"] == "2"
        assert "other" not in annotations
        world.declare("many", annotations={"autoscaling.knative.dev/max-scale": "1000"})
        await world.turn("many")
        assert world.says("DataPlaneAvailable", "many")[1].startswith("Invalid")


async def test_a_service_of_somebody_elses_name_is_left_alone() -> None:
    async with sinks_world() as world:
        world.inner.declare_service(SHOP, "orders-kn-sink-receiver", {})
        world.declare()
        await world.turn()
        assert world.says("DataPlaneAvailable")[1].startswith("ServiceNotOurs")
        await world.delete()
        key = SERVING, "Service", SHOP, "orders-kn-sink-receiver"
        assert key in world.inner.cluster.objects


async def test_a_broker_of_its_name_is_another_one() -> None:
    async with sinks_world() as world:
        world.inner.declare_broker(SHOP, "orders")
        await world.inner.reconcile_broker(SHOP, "orders")
        world.declare()
        await world.turn()
        assert {name for _, kind, _, name in world.inner.cluster.objects if kind == "Service"} == {
            *("orders-kn-receiver", "orders-kn-sink-receiver"),
        }


async def test_metrics_say_whether_it_is_ready() -> None:
    async with sinks_world() as world:
        world.declare()
        await world.turn()
        world.declare("other", topic="gone")
        await world.turn("other")
        found = {each.name: each.samples for each in operator_metrics(world.inner.operator)}
        assert sorted(found["knafka_sink_ready"], key=str) == [
            ({"namespace": SHOP, "sink": "orders"}, 1),
            ({"namespace": SHOP, "sink": "other"}, 0),
        ]


async def test_a_topic_is_deleted_with_the_credentials_that_were_known_last() -> None:
    """`kubectl delete -f` deletes the Secret too, in any order."""
    async with sinks_world() as world:
        world.inner.declare_secret(SHOP, "login", **LOGIN)
        world.declare(auth={"secret": {"ref": {"name": "login"}}}, **OWN)
        await world.turn()
        world.inner.cluster.remove("v1", "Secret", SHOP, "login")
        await world.delete()
        assert "own" not in world.inner.log.topics


async def test_a_topic_that_nobody_can_delete_is_named_before_its_sink_goes() -> None:
    """The operator is new, and the Secret is gone: it waits a while for one."""
    async with sinks_world() as world:
        world.inner.declare_secret(SHOP, "login", **LOGIN)
        world.declare(auth={"secret": {"ref": {"name": "login"}}}, **OWN)
        await world.turn()
        world.inner.cluster.remove("v1", "Secret", SHOP, "login")
        await world.start()
        await world.delete()
        assert world.stored()["metadata"]["deletionTimestamp"]
        assert world.service() is None, "nothing is accepted meanwhile"
        world.inner.declare_secret(SHOP, "login", **LOGIN)
        await world.turn()
        assert "own" not in world.inner.log.topics
        assert not world.sinks.records


async def test_a_topic_counts_to_what_its_namespace_may_have() -> None:
    async with sinks_world() as world:
        maxima = Maxima(namespace_partitions=5)
        world.sinks.settings = replace(world.sinks.settings, maxima=maxima)
        world.declare("first", topic="first", numPartitions=4, replicationFactor=1)
        world.declare(**OWN)
        await world.turn("first")
        await world.turn()
        assert world.says("Ready", "first") == ("True", "")
        assert world.says("TopicReady")[1].startswith("NamespacePartitions topic own is not made")
        await world.delete("first")
        await world.turn()
        assert world.says("Ready") == ("True", "")


@pytest.mark.parametrize("restarted", [False, True])
async def test_sinks_that_are_applied_at_once_pass_their_namespaces_maximum_neither(
    restarted: bool,
) -> None:
    async with sinks_world() as world:
        limited = replace(world.sinks.settings, maxima=Maxima(namespace_partitions=5))
        world.sinks.settings = limited
        names = ["one", "two", "three"]
        for name in names:
            world.declare(name, topic=name, numPartitions=4, replicationFactor=1)
        await asyncio.gather(*(world.turn(name) for name in names))
        (made,) = (name for name in names if name in world.inner.log.topics)
        if restarted:
            await world.start()
            world.sinks.settings = limited
        for name in sorted(names, key=made.__eq__):  # the others first
            await world.turn(name)
        assert {*names} & {*world.inner.log.topics} == {made}
        assert world.says("Ready", made) == ("True", "")
