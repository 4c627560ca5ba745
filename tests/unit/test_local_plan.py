"""The plan: what has to run for what is declared, and why the rest can't."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from knafka.core.contract import Kafka
from knafka_local.manifests import Declared, Identity, Place
from knafka_local.plan import Plan, defaults, identity, make_plan
from knafka_operator.model.resources import parse_resource

URL = "http://127.0.0.1:8080"
SHOP = Identity("Broker", "default", "shop")
ORDERS = Identity("Trigger", "default", "orders")
SERVICE = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "worker"}


def document(kind: str, name: str, spec: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    group = "serving" if kind == "Service" else "eventing"
    return {
        "apiVersion": f"{group}.knative.dev/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def broker(name: str = "shop", **metadata: Any) -> dict[str, Any]:
    return document("Broker", name, {}, **metadata)


def trigger(
    name: str = "orders", subscriber: Any = None, spec: Any = None, **metadata: Any
) -> dict[str, Any]:
    subscriber = subscriber or {"uri": "http://127.0.0.1:1/"}
    own = {"broker": "shop", "subscriber": subscriber, **(spec or {})}
    return document("Trigger", name, own, **metadata)


def service(command: str | None = "worker --port 1") -> dict[str, Any]:
    annotations = {} if command is None else {"local.knafka.dev/command": command}
    return document("Service", "worker", {"template": {"metadata": {"annotations": annotations}}})


def plan_of(*documents: dict[str, Any], before: Plan | None = None) -> Plan:
    resources = {}
    for each in documents:
        resource = parse_resource(each)
        assert resource is not None
        resources[identity(resource)] = resource, Place(Path("/manifests/shop.yaml"))
    ports = {who: 9999 for who in resources if who.kind == "Service"}
    kafka = Kafka(bootstrap_servers="127.0.0.1:9092")
    return make_plan(Declared(resources), defaults(kafka), URL, ports, before or Plan())


def subscriber_of(plan: Plan) -> str:
    return plan.triggers[ORDERS].egress.subscriber.url


def test_a_broker_and_a_trigger_run() -> None:
    plan = plan_of(broker(), trigger())
    assert plan.brokers[SHOP].ingress.path == "/default/shop"
    assert plan.brokers[SHOP].topic.replication == 1
    assert subscriber_of(plan) == "http://127.0.0.1:1/"
    assert not plan.refused


@pytest.mark.conformance("KN-TRG-01")
def test_a_trigger_without_its_broker_is_refused_by_upstreams_words() -> None:
    """KN-TRG-01."""
    plan = plan_of(trigger())
    assert 'Broker "shop" does not exist' in plan.refused[ORDERS]
    assert not plan.triggers


@pytest.mark.conformance("KN-BRK-04")
def test_a_broker_of_another_class_is_refused_and_its_triggers_say_why() -> None:
    """KN-BRK-04."""
    annotations = {"eventing.knative.dev/broker.class": "MTChannelBasedBroker"}
    plan = plan_of(broker(annotations=annotations), trigger())
    assert "MTChannelBasedBroker" in plan.refused[SHOP]
    assert "is refused" in plan.refused[ORDERS]


@pytest.mark.conformance("KN-DST-01", "KN-TRG-12")
def test_a_knative_service_is_its_command_in_the_manifests_folder() -> None:
    """KN-DST-01, KN-TRG-12."""
    command = "functions-framework --target 'a b'"
    plan = plan_of(service(command), broker(), trigger("orders", {"ref": SERVICE}))
    (program,) = plan.programs.values()
    assert program.arguments == ("functions-framework", "--target", "a b")
    assert program.folder == Path("/manifests")
    assert subscriber_of(plan) == "http://127.0.0.1:9999/"


@pytest.mark.conformance("KN-DST-03")
def test_a_uri_beside_a_ref_is_relative_to_it() -> None:
    """KN-DST-03."""
    plan = plan_of(service(), broker(), trigger("orders", {"ref": SERVICE, "uri": "/deep?x=1"}))
    assert subscriber_of(plan) == "http://127.0.0.1:9999/deep?x=1"


def test_any_absolute_uri_is_an_address() -> None:
    """As on a cluster: each attempt fails, and the events are dead letters."""
    assert subscriber_of(plan_of(broker(), trigger("orders", {"uri": "bad://uri"}))) == "bad://uri"


@pytest.mark.parametrize("url", ["http://user:word@host/", "http://host/a b"])
def test_a_uri_that_is_refused_refuses_its_trigger_and_no_other(url: str) -> None:
    plan = plan_of(broker(), trigger("orders"), trigger("odd", {"uri": url}))
    assert set(plan.triggers) == {ORDERS}
    assert plan.refused[Identity("Trigger", "default", "odd")].startswith("spec.subscriber.uri: ")


@pytest.mark.conformance("KN-DST-01", "KN-BRK-20")
def test_a_brokers_address_is_a_path_of_ours() -> None:
    """KN-DST-01, KN-BRK-20."""
    ref = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "other"}
    plan = plan_of(broker(), broker("other"), trigger("orders", {"ref": ref}))
    assert subscriber_of(plan) == f"{URL}/default/other"


@pytest.mark.conformance("KN-TRG-03", "KN-DST-04")
def test_what_has_no_address_refuses_its_trigger_and_no_other() -> None:
    """KN-TRG-03, KN-DST-04."""
    kubernetes = {"apiVersion": "v1", "kind": "Service", "name": "web"}
    plan = plan_of(
        service(None),
        broker(),
        trigger("orders"),
        trigger("imageless", {"ref": SERVICE}),
        trigger("missing", {"ref": {**SERVICE, "name": "nobody"}}),
        trigger("foreign", {"ref": kubernetes}),
    )
    assert set(plan.triggers) == {ORDERS}
    reasons = {who.name: reason for who, reason in plan.refused.items() if who.kind == "Trigger"}
    assert "local.knafka.dev/command" in reasons["imageless"]
    assert "not among the files" in reasons["missing"]
    assert "a Service (v1) has no address here" in reasons["foreign"]
    assert all("spec.subscriber.ref" in reason for reason in reasons.values())


@pytest.mark.parametrize(
    "subscriber", [{"uri": "http://me:secret@host/"}, {"ref": SERVICE, "uri": "a b"}]
)
def test_an_address_that_can_not_be_used_refuses_its_trigger_and_no_other(
    subscriber: dict[str, Any],
) -> None:
    plan = plan_of(service(), broker(), trigger("orders"), trigger("broken", subscriber))
    assert set(plan.triggers) == {ORDERS}
    reason = plan.refused[Identity("Trigger", "default", "broken")]
    assert reason.startswith("spec.subscriber")
    assert "pydantic" not in reason


@pytest.mark.conformance("KN-TRG-04")
def test_a_dead_letter_sink_is_resolved_like_a_subscriber() -> None:
    """KN-TRG-04."""
    delivery = {"delivery": {"deadLetterSink": {"ref": SERVICE, "uri": "lost"}}}
    plan = plan_of(service(), broker(), trigger("orders", spec=delivery))
    sink = plan.triggers[ORDERS].egress.dead_letter_sink
    assert sink is not None
    assert sink.url == "http://127.0.0.1:9999/lost"


def test_the_second_of_two_brokers_whose_topic_names_collide_is_refused() -> None:
    """spec/README.md, trap 6: dash-joined names."""
    plan = plan_of(broker("c", namespace="a-b"), broker("b-c", namespace="a"))
    assert set(plan.brokers) == {Identity("Broker", "a-b", "c")}
    reason = plan.refused[Identity("Broker", "a", "b-c")]
    assert "knative-broker-a-b-c is that of Broker a-b/c" in reason


def test_a_topic_stays_with_whom_it_was_whatever_the_files_order() -> None:
    """spec/README.md, trap 6."""
    first, second = broker("c", namespace="a-b"), broker("b-c", namespace="a")
    before = plan_of(first)
    assert set(plan_of(second, first, before=before).brokers) == set(before.brokers)
    assert set(plan_of(second, before=before).brokers) == {Identity("Broker", "a", "b-c")}


def external(name: str, topic: str, **metadata: Any) -> dict[str, Any]:
    annotations = {"kafka.eventing.knative.dev/external.topic": topic}
    return broker(name, annotations=annotations, **metadata)


@pytest.mark.parametrize(
    "topic",
    ["knative-broker-default-shop", "knafka-dead-letters-default-x-0", "__consumer_offsets"],
)
def test_what_no_installation_may_allow_is_refused_here_too(topic: str) -> None:
    """Also when the Broker whose topic it would be comes later."""
    plan = plan_of(external("thief", topic), broker())
    assert set(plan.brokers) == {SHOP}
    assert (
        f"external topic {topic} is not allowed"
        in plan.refused[Identity("Broker", "default", "thief")]
    )


def test_any_other_topic_is_allowed_here_and_may_be_shared() -> None:
    """Who starts the local mode is the installation."""
    one, two = external("one", "legacy"), external("two", "legacy")
    before = plan_of(one, two)
    assert len(before.brokers) == 2
    assert len(plan_of(two, one, before=before).brokers) == 2


def test_two_triggers_never_share_a_consumer_group() -> None:
    """spec/README.md, trap 6."""
    plan = plan_of(
        broker(namespace="a-b"),
        broker(namespace="a"),
        trigger("c", namespace="a-b"),
        trigger("b-c", namespace="a"),
    )
    assert len(plan.triggers) == 1
    assert "consumer group" in plan.refused[Identity("Trigger", "a", "b-c")]


def test_a_config_map_gives_the_topic_but_not_another_kafka() -> None:
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "config"},
        "data": {
            "default.topic.partitions": "4",
            "default.topic.replication.factor": "3",
            "bootstrap.servers": "kafka.example.com:9092",
            "auth.secret.ref.name": "secret",
        },
    }
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "config"}
    configured = broker() | {"spec": {"config": reference}}
    planned = plan_of(config, configured).brokers[SHOP]
    assert (planned.topic.partitions, planned.topic.replication) == (4, 1)
    assert planned.ingress.kafka.bootstrap_servers == "127.0.0.1:9092"


def test_a_config_map_that_only_a_cluster_has_is_no_problem() -> None:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "kafka-broker-config"}
    configured = broker() | {"spec": {"config": {**reference, "namespace": "knative-eventing"}}}
    assert SHOP in plan_of(configured).brokers


def test_scaling_is_quicker_here_unless_an_annotation_says_otherwise() -> None:
    key = "autoscaling.eventing.knative.dev/cooldown-period"
    plan = plan_of(broker(), trigger(), trigger("patient", annotations={key: "60"}))
    assert plan.triggers[ORDERS].autoscaling.cooldown_period == 10
    assert plan.triggers[ORDERS].autoscaling.lag_threshold == 100
    patient = plan.triggers[Identity("Trigger", "default", "patient")].autoscaling
    assert (patient.cooldown_period, patient.polling_interval) == (60, 1)
