"""Where `knafka.dev/isolation` and its settings are said: admission, environment, Services."""

from __future__ import annotations

import pytest
from support.admitted import broker, refusal, trigger

from knafka.core.contract import Kafka
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_operator.functions import services
from knafka_operator.functions.dispatcher_services import shard_number, shard_service
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import shards
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import BROKER_CLASS, ISOLATION, Broker

REQUIRED = {"KNAFKA_NAMESPACE": "knafka", "KNAFKA_IMAGE": "example.com/knafka:1"}


@pytest.mark.parametrize("isolation", Isolation)
def test_the_webhook_takes_each_isolation(isolation: str) -> None:
    assert refusal(trigger({ISOLATION: isolation})) == ""
    assert refusal(broker({BROKER_CLASS: "kafka", ISOLATION: isolation})) == ""


@pytest.mark.parametrize("document", [trigger({ISOLATION: "alone"}), broker({ISOLATION: "alone"})])
def test_the_webhook_refuses_another(document: dict[str, object]) -> None:
    assert refusal(document) == (
        "invalid value: alone: metadata.annotations[knafka.dev/isolation]\nwant own, shared, auto"
    )


def test_an_isolation_may_be_changed() -> None:
    assert refusal(trigger({ISOLATION: "shared"}), trigger({ISOLATION: "own"})) == ""
    assert refusal(trigger(), trigger({ISOLATION: "shared"})) == ""


def test_the_installation_says_what_holds_for_the_others() -> None:
    default = Settings.from_environment(REQUIRED)
    assert (default.isolation, default.shard_size) == (Isolation.OWN, 250)
    said = {"KNAFKA_ISOLATION": "shared", "KNAFKA_SHARD_SIZE": "50"}
    settings = Settings.from_environment(REQUIRED | said)
    assert (settings.isolation, settings.shard_size) == (Isolation.SHARED, 50)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KNAFKA_ISOLATION", "alone"),
        ("KNAFKA_ISOLATION", ""),
        ("KNAFKA_SHARD_SIZE", "0"),
        ("KNAFKA_SHARD_SIZE", "many"),
        ("KNAFKA_SHARD_RESOURCES", "cpu: 1"),
    ],
)
def test_a_setting_that_is_wrong_is_told_by_its_name(name: str, value: str) -> None:
    with pytest.raises(InvalidDocument, match=name):
        Settings.from_environment({**REQUIRED, name: value})


def test_a_shared_dispatchers_pod_has_resources_and_scaling_of_its_own() -> None:
    given = {"KNAFKA_SHARD_RESOURCES": "requests: {cpu: 200m}", "KNAFKA_INITIAL_SCALE": "0"}
    for environment, resources, initial in (
        ({}, {"requests": {"cpu": "100m", "memory": "192Mi"}, "limits": {"memory": "1Gi"}}, "1"),
        (given, {"requests": {"cpu": "200m"}}, "0"),
    ):
        settings = Settings.from_environment(REQUIRED | environment)
        named = {"metadata": {"name": "orders", "namespace": "shop", "uid": "u1"}}
        of = parse(Broker, {**broker(), **named})
        place = shards.shard_placement(of, 3, Kafka(bootstrap_servers="kafka:9092"))
        service = shard_service(of, place.shard, 3, ("kafka", "7"), settings)
        template = service["spec"]["template"]
        (container,) = template["spec"]["containers"]
        assert container["resources"] == resources
        assert container["volumeMounts"][0]["mountPath"] == services.SECRET_PATH
        scaling = {
            key.removeprefix("autoscaling.knative.dev/"): text
            for key, text in template["metadata"]["annotations"].items()
        }
        assert (scaling["min-scale"], scaling["max-scale"]) == ("0", "2")
        assert (scaling["initial-scale"], scaling["target"]) == (initial, "1")
        labels = service["metadata"]["labels"]
        assert (labels[services.ROLE_LABEL], shard_number(service)) == (
            "shard",
            3,
        )
        assert service["metadata"]["name"] == "orders-kn-shard-3"
