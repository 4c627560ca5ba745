"""The local mode's reconciliation: the operator's own, on what files declare."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.local_world import (
    FOLDER,
    PROGRAM,
    URL,
    broker,
    config_map,
    running_locally,
    service,
    trigger,
)
from support.memory.log import MemoryLog
from support.waiting import until

from knafka.core import names
from knafka_local.cluster.kept_names import KeptNames
from knafka_operator.dispatchers.replays import REPLAY_CHECK_INTERVAL
from knafka_operator.model.resources import TOPIC_STATUS

pytestmark = pytest.mark.looptime

TOPIC = "knative-broker-default-shop"
SERVICE = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "worker"}


def configured_by(name: str, **more: str) -> dict[str, Any]:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, **more}
    return broker() | {"spec": {"config": reference}}


async def subscriber_of(*documents: dict[str, Any]) -> str:
    async with running_locally() as world:
        await world.apply(*documents)
        egress = world.egress()
        assert egress is not None, world.reason("Trigger", "orders")
        return egress.subscriber.url


async def test_a_broker_and_a_trigger_run() -> None:
    async with running_locally() as world:
        await world.apply(broker(), trigger())
        assert world.reason("Broker", "shop") == world.reason("Trigger", "orders") == ""
        assert world.status("Broker", "shop")["address"]["url"] == f"{URL}/default/shop"
        assert [each.path for each in world.receiver.ingresses] == ["/default/shop"]
        assert world.log.descriptions[TOPIC].replication == 1
        assert len(world.log.topics[TOPIC]) == 10
        egress = world.egress()
        assert egress is not None
        assert egress.topic == TOPIC


@pytest.mark.conformance("KN-BRK-04")
async def test_a_broker_of_another_class_is_left_alone_and_shown_as_such() -> None:
    """KN-BRK-04."""
    annotations = {"eventing.knative.dev/broker.class": "MTChannelBasedBroker"}
    async with running_locally() as world:
        await world.apply(broker(annotations=annotations), trigger())
        shown = world.snapshot()
        assert "MTChannelBasedBroker" in shown.brokers[0].refused
        assert "another implementation" in shown.triggers[0].refused
        assert world.log.topics == {}


async def test_the_row_of_a_trigger_that_has_not_changed_is_the_one_before() -> None:
    """A thousand of them were made and compared anew, three times a second."""
    async with running_locally() as world:
        await world.apply(broker(), trigger("orders"), trigger("bills"))
        orders, bills = world.snapshot().triggers
        again = world.snapshot().triggers
        assert again[0] is orders
        assert again[1] is bills
        elsewhere = trigger("bills", {"uri": "http://127.0.0.1:1/elsewhere"})
        await world.apply(broker(), trigger("orders"), elsewhere)
        same, edited = world.snapshot().triggers
        assert same is orders
        assert (bills.observed_generation, edited.observed_generation) == (1, 2)


@pytest.mark.conformance("KN-DST-01", "KN-TRG-12")
async def test_a_knative_service_is_its_command_in_the_manifests_folder() -> None:
    """KN-DST-01, KN-TRG-12."""
    async with running_locally() as world:
        command = "functions-framework --target 'a b'"
        await world.apply(service(command), broker(), trigger("orders", {"ref": SERVICE}))
        (program,) = world.programs.running.values()
        assert program.arguments == ("functions-framework", "--target", "a b")
        assert program.folder == FOLDER
        egress = world.egress()
        assert egress is not None
        assert egress.subscriber.url == PROGRAM
        await world.apply(broker())
        assert world.programs.running == {}, "what left the files is stopped"


async def test_a_service_whose_command_can_not_start_is_not_ready_and_neither_is_its_trigger() -> (
    None
):
    async with running_locally() as world:
        subscribed = trigger("orders", {"ref": SERVICE})
        await world.apply(service("broken --now"), broker(), subscribed)
        (problem,) = world.snapshot().problems
        assert problem.startswith("Service default/worker: CommandFailed: its command can't be")
        assert world.reason("Trigger", "orders").startswith(
            "NotAddressable: Service default/worker"
        )
        await world.apply(service("worker"), broker(), subscribed)
        assert world.snapshot().problems == ()
        await until(lambda: world.reason("Trigger", "orders") == "")


@pytest.mark.conformance("KN-DST-03")
async def test_a_uri_beside_a_ref_is_relative_to_it() -> None:
    """KN-DST-03."""
    subscribed = trigger("orders", {"ref": SERVICE, "uri": "/deep?x=1"})
    assert await subscriber_of(service(), broker(), subscribed) == f"{PROGRAM}deep?x=1"


async def test_any_absolute_uri_is_an_address() -> None:
    """As on a cluster: each attempt fails, and the events are dead letters."""
    assert await subscriber_of(broker(), trigger("orders", {"uri": "bad://uri"})) == "bad://uri"


@pytest.mark.conformance("KN-DST-01", "KN-BRK-20")
async def test_a_brokers_address_is_a_path_of_ours() -> None:
    """KN-DST-01, KN-BRK-20."""
    ref = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "other"}
    subscribed = trigger("orders", {"ref": ref})
    assert await subscriber_of(broker(), broker("other"), subscribed) == f"{URL}/default/other"


@pytest.mark.conformance("KN-TRG-03", "KN-DST-04")
async def test_what_has_no_address_stops_its_trigger_and_no_other() -> None:
    """KN-TRG-03, KN-DST-04."""
    kubernetes = {"apiVersion": "v1", "kind": "Service", "name": "web"}
    async with running_locally() as world:
        await world.apply(
            service(None),
            broker(),
            trigger("orders"),
            trigger("imageless", {"ref": SERVICE}),
            trigger("missing", {"ref": {**SERVICE, "name": "nobody"}}),
            trigger("foreign", {"ref": kubernetes}),
        )
        assert world.reason("Trigger", "orders") == ""
        assert world.reason("Trigger", "imageless").startswith("NotAddressable: ")
        assert world.reason("Trigger", "missing").startswith("NotFound: Service default/nobody")
        assert world.reason("Trigger", "foreign").startswith("NotFound: Service default/web (v1)")
        (problem,) = world.snapshot().problems
        assert problem.startswith("Service default/worker: NoCommand: ")
        assert "local.knafka.dev/command" in problem


@pytest.mark.parametrize(
    "subscriber",
    [
        {"uri": "http://me:secret@host/"},
        {"uri": "http://host/a b"},
        {"ref": SERVICE, "uri": "a b"},
    ],
)
async def test_an_address_that_can_not_be_used_stops_its_trigger_and_no_other(
    subscriber: dict[str, Any],
) -> None:
    async with running_locally() as world:
        await world.apply(service(), broker(), trigger("orders"), trigger("odd", subscriber))
        assert world.reason("Trigger", "orders") == ""
        reason = world.reason("Trigger", "odd")
        assert reason.startswith("Invalid: spec.subscriber.uri: ")
        assert "pydantic" not in reason


@pytest.mark.conformance("KN-TRG-04")
async def test_a_dead_letter_sink_is_resolved_like_a_subscriber() -> None:
    """KN-TRG-04."""
    delivery = {"delivery": {"deadLetterSink": {"ref": SERVICE, "uri": "lost"}}}
    async with running_locally() as world:
        await world.apply(service(), broker(), trigger("orders", spec=delivery))
        egress = world.egress()
        assert egress is not None
        assert egress.dead_letter_sink is not None
        assert egress.dead_letter_sink.url == f"{PROGRAM}lost"


async def test_two_brokers_whose_topic_names_collide_have_topics_of_their_own() -> None:
    """spec/README.md, trap 6: dash-joined names."""
    async with running_locally() as world:
        first, second = broker("c", namespace="a-b"), broker("b-c", namespace="a")
        await world.apply(first, second, trigger(namespace="a-b", spec={"broker": "c"}))
        topics = {
            world.status("Broker", "c", "a-b")["annotations"][TOPIC_STATUS],
            world.status("Broker", "b-c", "a")["annotations"][TOPIC_STATUS],
        }
        assert len(topics) == 2
        assert topics <= world.log.topics.keys()


async def test_two_triggers_never_share_a_consumer_group() -> None:
    """spec/README.md, trap 6."""
    async with running_locally() as world:
        await world.apply(
            broker(namespace="a-b"),
            broker(namespace="a"),
            trigger("c", namespace="a-b"),
            trigger("b-c", namespace="a"),
        )
        one, other = world.egress("c", "a-b"), world.egress("b-c", "a")
        assert one is not None
        assert other is not None
        assert one.group != other.group


def external(name: str, topic: str) -> dict[str, Any]:
    annotations = {"kafka.eventing.knative.dev/external.topic": topic}
    return broker(name, annotations=annotations)


@pytest.mark.parametrize(
    "topic",
    ["knative-broker-default-shop", "knafka-dead-letters-default-x-0", "__consumer_offsets"],
)
async def test_what_no_installation_may_allow_is_refused_here_too(topic: str) -> None:
    """Also when the Broker whose topic it would be comes later."""
    async with running_locally() as world:
        await world.apply(external("thief", topic), broker())
        assert world.reason("Broker", "thief").startswith("ExternalTopicNotAllowed: ")
        assert world.reason("Broker", "shop") == ""


async def test_any_other_topic_is_allowed_here_and_may_be_shared() -> None:
    """Who starts the local mode is the installation."""
    async with running_locally() as world:
        world.log.create("legacy", 3)
        await world.apply(external("one", "legacy"), external("two", "legacy"))
        assert world.reason("Broker", "one") == world.reason("Broker", "two") == ""
        await world.apply()
        assert "legacy" in world.log.topics, "it was never a Broker's own"


async def test_a_config_map_gives_the_topic_but_not_another_kafka() -> None:
    config = config_map(
        default_topic_partitions="4",
        default_topic_replication_factor="3",
        bootstrap_servers="kafka.example.com:9092",
        auth_secret_ref_name="secret",
    )
    async with running_locally() as world:
        await world.apply(config, configured_by("config"))
        assert len(world.log.topics[TOPIC]) == 4
        assert world.log.descriptions[TOPIC].replication == 1
        ingress = world.ingress()
        assert ingress is not None
        assert ingress.kafka.bootstrap_servers == "127.0.0.1:9092"
        assert ingress.kafka.secret_path is None


async def test_a_config_map_that_only_a_cluster_has_is_no_problem_and_a_misspelt_one_is() -> None:
    async with running_locally() as world:
        await world.apply(configured_by("kafka-broker-config", namespace="knative-eventing"))
        assert world.reason("Broker", "shop") == ""
        await world.apply(configured_by("konfig"))
        await until(lambda: world.reason("Broker", "shop").startswith("ConfigMapNotFound: "))


async def test_scaling_is_quicker_here_unless_an_annotation_says_otherwise() -> None:
    prefix = "autoscaling.eventing.knative.dev/"
    async with running_locally() as world:
        await world.apply(trigger(annotations={prefix + "cooldown-period": "60"}))
        stored = world.cluster.find("eventing.knative.dev/v1", "Trigger", "default", "orders")
        assert stored is not None
        assert stored["metadata"]["annotations"] == {
            prefix + "cooldown-period": "60",
            prefix + "polling-interval": "1",
        }


async def test_what_the_api_server_shows_of_an_object_does_not_come_from_files() -> None:
    """`kubectl get -o yaml` in a file: another cluster's versions, and a status that isn't ours."""
    exported = broker(uid="of-a-cluster", resourceVersion="7", finalizers=["somebody/else"])
    exported["status"] = {"annotations": {TOPIC_STATUS: "knative-broker-other-1"}}
    async with running_locally() as world:
        await world.apply(exported)
        assert world.reason("Broker", "shop") == ""
        assert TOPIC in world.log.topics
        await world.apply()
        assert world.snapshot().brokers == ()


async def test_replays_get_a_dispatcher_of_their_own() -> None:
    async with running_locally() as world:
        await world.apply(broker(), trigger())
        world.log.create(names.replay_topic("default", "shop", "orders"), 1)
        await asyncio.sleep(2 * REPLAY_CHECK_INTERVAL)
        assert world.controller.scaling_status("default", "orders") is not None
        services = {each["metadata"]["name"] for each in world.cluster.of("Service")}
        assert "orders-kn-replayer" in services


async def test_what_waits_for_kafka_goes_on_seconds_after_it_is_back() -> None:
    async with running_locally() as world:
        world.kafka_is_away = True
        await world.apply(broker(), trigger())
        assert world.reason("Broker", "shop").startswith("KafkaNotReachable: ")
        await asyncio.sleep(600)
        world.kafka_is_away = False
        await asyncio.sleep(10)
        assert world.reason("Broker", "shop") == world.reason("Trigger", "orders") == ""


async def test_brokers_that_come_change_and_go_leave_their_receiver_alone() -> None:
    """It follows a topic: no process is started anew, and no request waits for one."""
    async with running_locally() as world:
        await world.apply(broker())
        await world.apply(broker(), broker("more"))
        assert [each.path for each in world.receiver.ingresses] == [
            "/default/more",
            "/default/shop",
        ]
        other = config_map("other")
        other["data"] = {"producer.compression.type": "zstd"}
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other"}
        await world.apply(other, broker(), broker("third") | {"spec": {"config": reference}})
        assert [each.path for each in world.receiver.ingresses] == [
            "/default/shop",
            "/default/third",
        ]
        found = world.ingress("third")
        assert found is not None
        assert found.kafka.producer == {"compression.type": "zstd"}
        assert len(world.receiver.followed) == 1


async def test_a_broker_that_left_the_files_while_nothing_ran_is_served_no_more() -> None:
    """Its topic stays."""
    log, kept = MemoryLog(), KeptNames()
    async with running_locally(log, kept) as world:
        await world.apply(broker(), broker("more"))
    async with running_locally(log, kept) as world:
        await world.apply(broker("more"))
        assert await world.receiver.answers("/default/more")
        assert not await world.receiver.answers("/default/shop")
        assert TOPIC in log.topics
        await world.apply(broker("more"), broker())
        assert world.reason("Broker", "shop") == ""
        assert await world.receiver.answers("/default/shop")
