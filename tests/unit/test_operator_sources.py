"""KafkaSources: from what is declared to a dispatcher of somebody's topics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.memory.admin import MemoryAdmin
from support.sources_world import DISPATCHER, GROUP, ID, SourcesWorld, sources_world
from support.waiting import until

from knafka.core.contract import MAX_RECORD_BYTES, Order
from knafka.core.errors import LogError
from knafka.core.numbering import STRIDE
from knafka.ports.log import OffsetAndMetadata
from knafka_operator.installation.naming import NameKind
from knafka_operator.kafka.dead_letter_topics import FAILURE_ATTRIBUTES_BYTES
from knafka_operator.model.resources import FINALIZER, SERVING
from knafka_operator.model.sources import KEY_TYPE, PEERS_SOURCE_FINALIZER
from knafka_operator.runtime.metrics import operator_metrics


def store(world: SourcesWorld, topic: str, count: int = 1) -> None:
    for _ in range(count):
        world.inner.log.store(topic, None, b"any", None)


async def test_a_source_is_delivered_by_a_dispatcher_of_its_own() -> None:
    async with sources_world() as world:
        store(world, "raw", 2)
        world.declare(
            labels={KEY_TYPE: "int"},
            topics=["raw", "more", "raw"],
            ceOverrides={"extensions": {"team": "a"}},
            delivery={"retry": 3, "deadLetterSink": {"uri": "http://dead/"}},
        )
        await world.turn()
        egress = world.egress()
        status = world.status()
    assert world.says("Ready") == ("True", "")
    assert (egress.kind, egress.namespace, egress.trigger) == ("KafkaSource", "shop", "orders")
    assert egress.topics == ("raw", "more"), "each once"
    assert (egress.group, egress.order, egress.delivery.retry) == (GROUP, Order.PARTITION, 3)
    assert egress.conversion is not None
    assert egress.conversion.source == "/apis/v1/namespaces/shop/kafkasources/orders"
    assert (egress.conversion.key_type, egress.conversion.extensions) == ("int", {"team": "a"})
    assert egress.dead_letter_topic.startswith("knafka-dead-letters-shop-KafkaSource-orders-orders")
    assert egress.broker_dead_letter_topic is None, "the topics aren't a Broker's"
    committed = {**{("raw", number): 0 for number in range(3)}, ("more", 0): 0}
    assert world.committed().keys() == committed.keys()
    assert sum(world.committed().values()) == 2, "latest, unless it says otherwise"
    assert status["sinkUri"] == "http://sink/"
    assert status["deadLetterSinkUri"] == "http://dead/"
    assert "subscriberUri" not in status
    assert status["selector"] == f"serving.knative.dev/service={DISPATCHER}"
    assert [each["source"].partition("#")[2] for each in status["ceAttributes"]] == ["raw", "more"]
    template = world.service()["spec"]["template"]
    assert template["metadata"]["annotations"]["autoscaling.knative.dev/max-scale"] == "4"
    assert {each["type"] for each in status["conditions"]} >= {
        *("SinkProvided", "ConnectionEstablished", "InitialOffsetsCommitted", "Deployed"),
    }


@pytest.mark.parametrize(
    ("limits", "largest"),
    [
        pytest.param(("2000000", "3000000"), 3_000_000, id="two"),
        pytest.param(("2000", None), MAX_RECORD_BYTES, id="a small one and Kafka's default"),
    ],
)
async def test_dead_letters_have_room_for_the_largest_record_of_any_topic(
    limits: tuple[str, str | None], largest: int
) -> None:
    async with sources_world() as world:
        described = world.inner.log.descriptions
        for topic, limit in zip(("raw", "more"), limits, strict=True):
            config = {} if limit is None else {"max.message.bytes": limit}
            described[topic] = replace(described[topic], config=config)
        world.declare(topics=["raw", "more"])
        await world.turn()
        settings = world.egress().dead_letter_settings
    assert int(settings.config["max.message.bytes"]) == largest + FAILURE_ATTRIBUTES_BYTES


async def test_what_an_installation_does_not_ask_for_is_not_served() -> None:
    async with sources_world() as world:
        await world.inner.restart()
        assert world.inner.operator.sources is None


async def test_a_topic_that_a_broker_has_by_a_template_is_refused() -> None:
    """Of such a name no prefix tells whose it is."""
    async with sources_world() as world:
        settings = world.inner.operator.settings
        settings.naming.set_current_template(NameKind.BROKER_TOPIC, "{{ .Namespace }}.{{ .Name }}")
        world.inner.declare_broker("shop")
        await world.inner.reconcile_broker("shop")
        world.declare(topics=["raw", "shop.default"])
        await world.turn()
        status, message = world.says("Ready")
        assert status == "False"
        assert "want no topic of a Broker" in message


async def test_a_group_that_has_read_goes_on_where_it_was() -> None:
    """Its offsets are somebody's: they are neither deleted nor written again."""
    async with sources_world() as world:
        store(world, "more", 5)
        world.inner.log.group(GROUP).committed["more", 0] = OffsetAndMetadata(2)
        world.declare(topics=["more"], initialOffset="earliest")
        await world.turn()
        assert world.committed() == {("more", 0): 2}
        await world.delete()
        assert world.committed() == {("more", 0): 2}, "nor when the source goes"


async def test_a_group_that_it_was_given_goes_with_it_unless_another_names_it() -> None:
    given = "knative-kafka-source-7c2b2f0e-5f3a-4c83-9c43-0d6f6f1a2b3c"
    async with sources_world() as world:
        world.declare(consumerGroup=given)
        world.declare(consumerGroup=given, name="other")
        await world.turn()
        await world.delete("other")
        assert world.committed(given)
        await world.delete()
        assert not world.committed(given)
        assert (SERVING, "Service", "shop", DISPATCHER) not in world.inner.cluster.objects


async def test_a_group_that_the_user_named_like_a_generated_one_stays() -> None:
    named = "knative-kafka-source-orders"
    async with sources_world() as world:
        world.declare(consumerGroup=named)
        await world.turn()
        await world.delete()
        assert world.committed(named)


async def test_one_that_no_webhook_filled_in_has_a_group_by_its_uid() -> None:
    async with sources_world() as world:
        world.declare(consumerGroup="")
        await world.turn()
        uid = world.stored()["metadata"]["uid"]
        assert world.egress().group == f"knative-kafka-source-{uid}"


async def test_a_group_by_the_uid_of_another_source_stays_when_a_source_that_names_it_goes() -> (
    None
):
    async with sources_world() as world:
        world.declare(consumerGroup="")
        world.stored()["metadata"]["uid"] = "7c2b2f0e-5f3a-4c83-9c43-0d6f6f1a2b3c"
        await world.turn()
        group = world.egress().group
        world.declare(consumerGroup=group, name="other")
        await world.turn("other")
        await world.delete("other")
        assert world.committed(group)


async def test_a_topic_that_is_added_begins_where_the_source_says_and_others_go_on() -> None:
    async with sources_world() as world:
        store(world, "more", 5)
        world.declare()
        await world.turn()
        before = world.committed()
        store(world, "raw")
        world.declare(topics=["raw", "more"], initialOffset="earliest")
        await world.turn()
        assert world.committed() == {**before, ("more", 0): 0}
        assert world.egress().topics == ("raw", "more")


async def test_records_of_any_of_its_topics_wake_it_and_its_lag_is_that_of_all() -> None:
    async with sources_world() as world:
        world.declare(topics=["raw", "more"])
        await world.turn()
        store(world, "more", 3)
        await until(lambda: world.inner.drains.held[ID] == 1)
        sources = world.inner.operator.sources
        assert sources is not None
        (watched,) = sources.watched.values()
        scaler = watched.kafka.scaler
        await until(lambda: scaler.statuses()[ID].lag == 3)
        assert scaler.settled(ID).keys() == {0, 1, 2, STRIDE}
        await until(lambda: scaler.reads("more") and scaler.topics_with_drains() == {"raw", "more"})
        await world.turn()
        assert world.status()["consumers"] == 1
        texts = {each.name: each.samples for each in operator_metrics(world.inner.operator)}
        ((labels, lag),) = texts["knafka_trigger_lag"]
        assert (labels, lag) == ({"namespace": "shop", "source": "orders"}, 3)
        await world.delete()
        assert not scaler.reads("more")
        assert world.inner.drains.held[ID] == 0


@pytest.mark.parametrize(("consumers", "pods"), [(None, "3"), (2, "2"), (9, "3")])
async def test_consumers_are_the_most_dispatchers_that_there_are(
    consumers: int | None, pods: str
) -> None:
    async with sources_world() as world:
        world.declare(consumers=consumers)
        await world.turn()
        annotations = world.service()["spec"]["template"]["metadata"]["annotations"]
        assert annotations["autoscaling.knative.dev/max-scale"] == pods


async def test_no_consumers_pause_it() -> None:
    """`kubectl scale --replicas=0`: its offsets stay, and nothing is read."""
    async with sources_world() as world:
        world.declare()
        await world.turn()
        world.declare(consumers=0)
        await world.turn()
        assert (SERVING, "Service", "shop", DISPATCHER) not in world.inner.cluster.objects
        assert world.says("Delivering")[1].startswith("Paused")
        assert world.committed()


MISSING: dict[str, tuple[dict[str, Any], str, str]] = {
    "a topic": (
        {"topics": ["raw", "gone"]},
        "ConnectionEstablished",
        "TopicNotFound theirs:9092 has no topic gone: create it",
    ),
    "a Secret": (
        {
            "net": {
                "sasl": {
                    "enable": True,
                    "user": {"secretKeyRef": {"name": "gone", "key": "user"}},
                    "password": {"secretKeyRef": {"name": "gone", "key": "password"}},
                }
            }
        },
        "ConnectionEstablished",
        "SecretNotFound spec.net.sasl.user.secretKeyRef: Secret shop/gone has no key user",
    ),
    "a sink": (
        {"sink": {"ref": {"apiVersion": SERVING, "kind": "Service", "name": "gone"}}},
        "SinkProvided",
        "NotFound Service shop/gone (serving.knative.dev/v1) does not exist",
    ),
    "what to deliver to": (
        {"sink": {}},
        "Deployed",
        "Invalid expected at least one, got none: spec.sink.ref",
    ),
}


@pytest.mark.parametrize(("spec", "type_", "told"), MISSING.values(), ids=MISSING)
async def test_what_is_missing_is_named_with_what_to_do_and_nothing_is_read(
    spec: dict[str, Any], type_: str, told: str
) -> None:
    async with sources_world() as world:
        world.declare(**spec)
        await world.turn()
        assert world.says(type_)[0] == "False"
        assert world.says(type_)[1].startswith(told)
        assert world.says("Ready")[0] == "False"
        assert not world.committed()
        assert (SERVING, "Service", "shop", DISPATCHER) not in world.inner.cluster.objects


async def test_a_kafka_that_does_not_answer_stops_nothing_that_is_delivered() -> None:
    async with sources_world() as world:
        world.inner.kafka_failures["describe_topic"] = LogError("no broker answers")
        world.declare()
        await world.turn()
        assert world.says("ConnectionEstablished") == (
            "False",
            "KafkaNotReachable Kafka: no broker answers",
        )
        world.inner.kafka_failures.clear()
        await world.turn()
        assert world.says("Ready") == ("True", "")
        world.inner.kafka_failures["describe_topic"] = LogError("no broker answers")
        await world.turn()
        assert world.says("Ready")[0] == "False"
        assert world.inner.operator.sources is not None
        assert world.inner.operator.sources.watched
        assert world.service()


async def test_offsets_that_are_refused_are_a_condition_of_their_own() -> None:
    async with sources_world() as world:
        world.inner.kafka_failures["ensure_committed"] = LogError("Read is not allowed")
        world.declare()
        await world.turn()
        assert world.says("InitialOffsetsCommitted")[0] == "False"
        assert "Read is not allowed" in world.says("InitialOffsetsCommitted")[1]


async def test_credentials_of_several_secrets_are_mounted_as_one_and_read_as_such() -> None:
    async with sources_world() as world:
        world.inner.declare_secret("shop", "user", who="me", word="secret")
        world.inner.declare_secret("shop", "ca", pem="-----BEGIN")
        keys = {
            "user": {"secretKeyRef": {"name": "user", "key": "who"}},
            "password": {"secretKeyRef": {"name": "user", "key": "word"}},
        }
        authority = {"caCert": {"secretKeyRef": {"name": "ca", "key": "pem"}}}
        world.declare(net={"sasl": {"enable": True, **keys}, "tls": {"enable": True, **authority}})
        await world.turn()
        assert world.says("Ready") == ("True", "")
        assert (
            world.inner.connected[-1].items()
            >= {
                "bootstrap.servers": "theirs:9092",
                "security.protocol": "sasl_ssl",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "me",
                "sasl.password": "secret",
                "ssl.ca.pem": "-----BEGIN",
            }.items()
        )
        kafka, service = world.egress().kafka, world.service()
        pod = service["spec"]["template"]["spec"]
        assert (kafka.protocol, kafka.secret_path) == ("SASL_SSL", "/var/run/secrets/knafka/kafka")
        (volume,) = (each for each in pod["volumes"] if each["name"] == "kafka")
        assert [each["secret"] for each in volume["projected"]["sources"]] == [
            {"name": "user", "items": [{"key": "who", "path": "user"}]},
            {"name": "user", "items": [{"key": "word", "path": "password"}]},
            {"name": "ca", "items": [{"key": "pem", "path": "ca.crt"}]},
        ]
        assert "secret" not in str(kafka).replace("secret_path", "").replace("secrets", "")
        before = service["spec"]["template"]["metadata"]["annotations"]
        world.inner.declare_secret("shop", "user", who="me", word="another")
        await world.turn()
        after = world.service()["spec"]["template"]["metadata"]["annotations"]
        assert before != after, "pods read them at their start"


async def test_a_source_and_a_trigger_of_one_name_are_scaled_apart() -> None:
    async with sources_world() as world:
        world.inner.declare_broker("shop")
        world.inner.declare_trigger("shop", "orders")
        await world.inner.reconcile_broker("shop")
        await world.inner.reconcile_trigger("shop", "orders")
        world.declare()
        await world.turn()
        store(world, "raw")
        await until(lambda: world.inner.drains.held[ID] == 1)
        assert world.inner.drains.held["shop/orders"] == 0


async def test_an_operator_that_takes_over_delivers_on_what_was() -> None:
    async with sources_world() as world:
        world.declare()
        await world.turn()
        before = world.committed()
        store(world, "raw", 2)
        await world.start()
        await world.turn()
        assert world.committed() == before, "what came meanwhile is read"
        await until(lambda: world.inner.drains.held[ID] == 1)
        await asyncio.sleep(0)


async def test_a_source_is_the_peers_while_that_has_claimed_it_and_goes_back() -> None:
    """Decision 0046: whose it is is its list of finalizers; the group's offsets are the user's."""
    async with sources_world() as world:
        store(world, "raw", 5)
        world.inner.log.group(GROUP).committed["raw", 0] = OffsetAndMetadata(1)
        world.declare()
        world.stored()["metadata"]["finalizers"] = [PEERS_SOURCE_FINALIZER]
        await world.turn()
        assert "status" not in world.stored()
        assert (SERVING, "Service", "shop", DISPATCHER) not in world.inner.cluster.objects
        world.stored()["metadata"]["finalizers"] = []
        await world.turn()
        assert world.says("Ready") == ("True", "")
        assert world.committed()["raw", 0] == 1, "it goes on where the group was"
        assert FINALIZER in world.stored()["metadata"]["finalizers"]
        before = world.committed()
        world.stored()["metadata"]["finalizers"] = [PEERS_SOURCE_FINALIZER]
        for _ in range(2):
            await world.turn()
        assert world.stored()["metadata"]["finalizers"] == [PEERS_SOURCE_FINALIZER]
        assert (SERVING, "Service", "shop", DISPATCHER) not in world.inner.cluster.objects
        assert world.status()["conditions"] == []
        annotations = world.status().get("annotations") or {}
        assert not [each for each in annotations if each.startswith("knafka.dev/")]
        assert world.committed() == before
        assert not world.inner.drains.held.total()


async def test_a_topic_that_is_gone_keeps_no_event_of_the_others_waiting() -> None:
    """The source says which one is missing; its dispatcher reads the others."""
    async with sources_world() as world:
        world.declare(topics=["raw", "more"])
        await world.turn()
        await MemoryAdmin(world.inner.log).delete_topic("more")
        await world.turn()
        assert world.says("ConnectionEstablished")[0] == "False"
        store(world, "raw", 3)
        await until(lambda: world.inner.drains.held[ID] == 1)
        sources = world.inner.operator.sources
        assert sources is not None
        (watched,) = sources.watched.values()
        assert watched.kafka.scaler.statuses()[ID].lag == 3


async def test_a_source_none_of_whose_topics_is_there_says_so_and_drains_nothing() -> None:
    async with sources_world() as world:
        world.declare(topics=["raw", "more"])
        await world.turn()
        sources = world.inner.operator.sources
        assert sources is not None
        (watched,) = sources.watched.values()
        for topic in ("raw", "more"):
            await MemoryAdmin(world.inner.log).delete_topic(topic)
        watched.kafka.scaler.wake("raw")
        await until(lambda: watched.kafka.scaler.statuses()[ID].error is not None)
        assert "does not exist" in str(watched.kafka.scaler.statuses()[ID].error)
        assert world.inner.drains.held[ID] == 0
