"""What the webhooks fill in, and what they leave as it is."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kopf import Body, Memo, Patch
from support.admitted import (
    CONFIG,
    DEAD,
    EVENTING,
    MAIL,
    broker,
    refusal,
    trigger,
)

from knafka_operator.brokers.admission import with_broker_defaults
from knafka_operator.brokers.kind import Brokers
from knafka_operator.installation.settings import Settings
from knafka_operator.kube_api.memory_cluster import MemoryCluster
from knafka_operator.model.cluster import ClusterError
from knafka_operator.model.family import BROKERS
from knafka_operator.model.resources import (
    BROKER_CLASS,
)
from knafka_operator.triggers.admission import with_trigger_defaults
from knafka_operator.webhooks.handlers import set_broker_defaults


@pytest.mark.conformance("KN-TRG-12")
def test_a_trigger_is_filled_in() -> None:
    """KN-TRG-12."""
    document = trigger(delivery={"deadLetterSink": DEAD, "retry": 0})
    before = copy.deepcopy(document)
    defaulted = with_trigger_defaults(document)
    assert defaulted["metadata"]["labels"] == {"eventing.knative.dev/broker": "orders"}
    assert defaulted["spec"] == {
        "broker": "orders",
        "filter": {},
        "subscriber": {"ref": {**MAIL["ref"], "namespace": "shop"}},
        "delivery": {"deadLetterSink": {"ref": {**DEAD["ref"], "namespace": "shop"}}, "retry": 0},
    }
    assert document == before, "it is not changed in place"
    assert with_trigger_defaults(defaulted) == defaulted
    assert refusal(defaulted) == ""


@pytest.mark.conformance("KN-TRG-12")
def test_what_a_trigger_says_itself_is_kept() -> None:
    """KN-TRG-12."""
    there = {"ref": {**MAIL["ref"], "namespace": "post"}}
    document = trigger(filter={"attributes": {"type": "a"}}, subscriber=there)
    document["metadata"]["labels"] = {"eventing.knative.dev/broker": "old", "team": "shop"}
    defaulted = with_trigger_defaults(document)
    assert defaulted["spec"] == document["spec"]
    assert defaulted["metadata"]["labels"] == {"eventing.knative.dev/broker": "orders"} | {
        "team": "shop"
    }


@pytest.mark.conformance("KN-TRG-12")
@pytest.mark.parametrize(
    ("spec", "label"),
    [
        ({"broker": "orders"}, "orders"),
        ({"brokerRef": {"apiVersion": EVENTING, "kind": "Broker", "name": "orders"}}, "orders"),
        ({"broker": "b" * 63}, "b" * 63),
        ({"broker": "b" * 64}, None),
        ({"broker": "my orders"}, None),
        ({"broker": ""}, None),
        ({}, None),
        (None, None),
    ],
    ids=repr,
)
def test_the_label_names_the_broker_where_a_label_can(spec: Any, label: str | None) -> None:
    """KN-TRG-12; the API server's complaint about a bad label would hide ours."""
    defaulted = with_trigger_defaults({**trigger(), "spec": spec})
    assert defaulted["metadata"].get("labels", {}).get("eventing.knative.dev/broker") == label
    assert defaulted["spec"]["filter"] == {}


@pytest.mark.parametrize("spec", ["mail", ["mail"], 1], ids=repr)
def test_a_spec_of_the_wrong_type_is_left_for_the_schema_to_refuse(spec: object) -> None:
    for document in (broker(), trigger()):
        broken = {**document, "spec": spec}
        assert with_broker_defaults(broken, default_class="kafka") == broken
        assert with_trigger_defaults(broken) == broken


@pytest.mark.conformance("KN-BRK-04")
def test_a_new_broker_is_filled_in() -> None:
    """KN-BRK-04."""
    defaulted = with_broker_defaults(broker(annotations={}, config=CONFIG), default_class="kafka")
    assert defaulted["metadata"]["annotations"] == {BROKER_CLASS: "kafka"}
    assert defaulted["spec"] == {"config": {**CONFIG, "namespace": "shop"}}
    assert refusal(defaulted) == ""


def test_without_a_default_class_only_namespaces_are_filled_in() -> None:
    document = broker(annotations={}, config=CONFIG, delivery={"deadLetterSink": DEAD})
    defaulted = with_broker_defaults(document)
    assert defaulted["metadata"]["annotations"] == {}
    assert defaulted["spec"] == {
        "config": {**CONFIG, "namespace": "shop"},
        "delivery": {"deadLetterSink": {"ref": {**DEAD["ref"], "namespace": "shop"}}},
    }
    assert with_broker_defaults(defaulted) == defaulted


def test_what_a_broker_says_itself_is_kept() -> None:
    document = broker({BROKER_CLASS: "Kafka"}, config=CONFIG, delivery={"retry": 0})
    defaulted = with_broker_defaults(document, default_class="kafka")
    assert defaulted["metadata"] == document["metadata"]
    assert defaulted["spec"] == {
        "config": {**CONFIG, "namespace": "shop"},
        "delivery": {"retry": 0},
    }


@pytest.mark.conformance("KN-BRK-05", "KN-BRK-06")
def test_what_an_update_leaves_out_stays_although_the_default_is_another_by_now() -> None:
    """KN-BRK-05, KN-BRK-06: `kubectl replace` of the file that the Broker was made from."""
    old = broker({BROKER_CLASS: "Kafka"}, config={**CONFIG, "namespace": "shop"})
    defaulted = with_broker_defaults(broker(annotations={}), old, default_class="kafka")
    assert refusal(defaulted, old) == ""
    assert defaulted["metadata"]["annotations"] == {BROKER_CLASS: "Kafka"}
    assert defaulted["spec"]["config"]["name"] == "kafka"
    bare = broker(annotations={})
    assert with_broker_defaults(bare, bare, default_class="kafka") == bare, "nor is it put in later"


def test_defaults_reach_the_api_server_through_kopf() -> None:
    """Also the empty filter, which a merge patch can't carry there."""
    document: Any = trigger()

    def fill_in(body: Any) -> None:
        body.update(with_trigger_defaults(body))

    operations = Patch(fns=[fill_in]).as_json_patch(document)
    assert {each["path"]: each.get("value") for each in operations} == {
        "/metadata/labels": {"eventing.knative.dev/broker": "orders"},
        "/spec/filter": {},
        "/spec/subscriber/ref/namespace": "shop",
    }


def config_map(**entries: Any) -> dict[str, Any]:
    """`config-br-defaults` as the API server has it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "knative-eventing", "name": "config-br-defaults"},
        "data": {"default-br-config": yaml.safe_dump(entries)},
    }


async def filled_in_by_webhook(
    annotations: dict[str, str],
    default_class: str = "",
    defaults: dict[str, Any] | None = None,
    old: Any = None,
    error: Exception | None = None,
) -> tuple[dict[str, Any], int]:
    """A Broker of the namespace `shop` as it is stored; how often the cluster was asked."""
    missing: Any = None
    settings = Settings(namespace="knafka", image="knafka", default_class=default_class)
    states: Any = SimpleNamespace(family=BROKERS)
    brokers = Brokers(settings, missing, missing, missing, states, *[missing] * 3)
    cluster = MemoryCluster()
    if defaults is not None:
        cluster.put(defaults)
    if error is not None:
        cluster.refuse("get", error=error)
    memo = Memo(operator=SimpleNamespace(brokers=brokers), cluster=cluster)
    document: Any = broker(annotations, config=CONFIG)
    webhook: Any = set_broker_defaults  # kopf hands over more than it asks for
    await webhook(body=Body(document), patch=(patch := Patch()), memo=memo, old=old)
    for fill_in in patch.fns:
        fill_in(document)
    return document, cluster.requests["get"]


@pytest.mark.parametrize(
    ("annotations", "default", "then"),
    [
        ({}, "kafka", {BROKER_CLASS: "kafka"}),
        ({}, "", {}),
        ({BROKER_CLASS: "Kafka"}, "kafka", {BROKER_CLASS: "Kafka"}),
        ({BROKER_CLASS: "MTChannelBasedBroker"}, "kafka", {BROKER_CLASS: "MTChannelBasedBroker"}),
    ],
)
async def test_the_webhook_makes_a_broker_ours_that_is_nobody_elses(
    annotations: dict[str, str], default: str, then: dict[str, str]
) -> None:
    document, _ = await filled_in_by_webhook(annotations, default)
    assert document["metadata"]["annotations"] == then
    ours = then.get(BROKER_CLASS, "").lower() == "kafka"
    assert ("namespace" in document["spec"]["config"]) == ours, "others' are left as they are"


KAFKA, OTHER = {"brokerClass": "kafka"}, {"brokerClass": "MTChannelBasedBroker"}


@pytest.mark.conformance("KN-BRK-04")
@pytest.mark.parametrize(
    ("defaults", "then"),
    [
        ({"clusterDefault": KAFKA}, "kafka"),
        ({"clusterDefault": OTHER, "namespaceDefaults": {"shop": KAFKA}}, "kafka"),
        ({"clusterDefault": KAFKA, "namespaceDefaults": {"shop": {"delivery": {}}}}, "kafka"),
        ({"clusterDefault": KAFKA, "namespaceDefaults": {"other": OTHER}}, "kafka"),
        ({"clusterDefault": KAFKA, "namespaceDefaults": {"shop": OTHER}}, None),
        ({"clusterDefault": {"delivery": {"retry": 3}}}, None),
        ({"clusterDefault": {"brokerClass": ["kafka"]}, "namespaceDefaults": "kafka"}, None),
    ],
    ids=[
        "the cluster's", "the namespace's wins", "the namespace says nothing",
        "another namespace", "another implementation's", "none", "nonsense",
    ],
)  # fmt: skip
async def test_a_new_broker_without_a_class_gets_that_of_config_br_defaults(
    defaults: dict[str, Any], then: str | None
) -> None:
    """KN-BRK-04."""
    document, _ = await filled_in_by_webhook({}, defaults=config_map(**defaults))
    assert document["metadata"]["annotations"].get(BROKER_CLASS) == then


async def test_the_operators_own_default_class_wins_over_config_br_defaults() -> None:
    defaults = config_map(clusterDefault={"brokerClass": "Kafka"})
    document, asked = await filled_in_by_webhook({}, "kafka", defaults)
    assert document["metadata"]["annotations"] == {BROKER_CLASS: "kafka"}
    assert asked == 0


async def test_defaults_are_looked_up_for_new_brokers_without_a_class_alone() -> None:
    """A class can't be changed, and most Brokers name theirs."""
    defaults = config_map(clusterDefault=KAFKA)
    _, asked = await filled_in_by_webhook({BROKER_CLASS: "kafka"}, defaults=defaults)
    assert asked == 0
    old = broker(annotations={})
    document, asked = await filled_in_by_webhook({}, defaults=defaults, old=old)
    assert (document["metadata"]["annotations"], asked) == ({}, 0)


@pytest.mark.parametrize(
    ("text", "error"),
    [("[", None), ("", ClusterError("the API server is away"))],
    ids=["no YAML", "no answer"],
)
async def test_a_broker_is_admitted_though_its_default_class_cannot_be_found_out(
    text: str, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    defaults = {**config_map(), "data": {"default-br-config": text}}
    document, _ = await filled_in_by_webhook({}, defaults=defaults, error=error)
    assert document["metadata"]["annotations"] == {}
    assert "without a class" in caplog.text
