"""The CRDs: upstream's, and they hold every field that we read and no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from knafka.core.documents import Model
from knafka_operator.archives.model import ArchiveSpec
from knafka_operator.archives.operation_model import PurgeSpec, ReplaySpec
from knafka_operator.model.channels import (
    DEFAULT_CHANNEL_PARTITIONS,
    DEFAULT_CHANNEL_REPLICATION,
    KAFKA_CHANNEL_VERSIONS,
    KafkaChannelSpec,
    SubscriptionSpec,
)
from knafka_operator.model.resources import BrokerSpec, TriggerSpec
from knafka_operator.model.sensors import SensorSpec
from knafka_operator.model.sources import KafkaSourceSpec
from knafka_operator.sinks.model import KafkaSinkSpec

CRDS = Path(__file__).parents[2] / "crds"
ADDRESS = {"name", "url", "CACerts", "audience"}
RESOLVED = {"deadLetterSinkUri", "deadLetterSinkCACerts", "deadLetterSinkAudience"}
STATUS = {"annotations", "conditions", "observedGeneration"}
EVENTING = ("broker", "trigger")
MESSAGING = ("kafkachannel", "subscription")
DEAD_LETTERS = ("deadletterarchive", "deadletterreplay", "deadletterpurge")


def crd(kind: str) -> dict[str, Any]:
    folders = {
        "sensor": CRDS / "sensors",
        "kafkasource": CRDS / "sources",
        "kafkasink": CRDS / "sinks",
        **dict.fromkeys(DEAD_LETTERS, CRDS / "dead-letters"),
        **dict.fromkeys(MESSAGING, CRDS / "messaging"),
    }
    folder = folders.get(kind, CRDS)
    document = yaml.safe_load((folder / f"{kind}.yaml").read_text())
    assert isinstance(document, dict)
    return document


def version(kind: str) -> dict[str, Any]:
    """The one that is stored."""
    (stored,) = (each for each in crd(kind)["spec"]["versions"] if each["storage"])
    assert isinstance(stored, dict)
    return stored


def schema(kind: str) -> dict[str, Any]:
    found = version(kind)["schema"]["openAPIV3Schema"]["properties"]
    assert isinstance(found, dict)
    return found


def read(model: type[Model]) -> dict[str, Any]:
    """What a model reads, as a tree of JSON types; filters within filters end where they begin."""
    found = model.model_json_schema(mode="serialization")
    return _plain(found, found.get("$defs", {}), frozenset())


def _plain(
    node: Mapping[str, Any], models: Mapping[str, Any], above: frozenset[str]
) -> dict[str, Any]:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name in above:
            return {"type": "object"}
        return _plain(models[name], models, above | {name})
    if choices := node.get("anyOf") or node.get("oneOf"):
        plain = [_plain(each, models, above) for each in choices if each.get("type") != "null"]
        properties = {name: it for each in plain for name, it in each.get("properties", {}).items()}
        return {**plain[0], **({"properties": properties} if properties else {})}
    plain_node: dict[str, Any] = {"type": node["type"]}
    if "properties" in node:
        properties = node["properties"].items()
        plain_node["properties"] = {name: _plain(it, models, above) for name, it in properties}
    if "items" in node:
        plain_node["items"] = _plain(node["items"], models, above)
    return plain_node


def drift(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str) -> Iterator[str]:
    """Where a model and a schema differ; what the schema leaves open is the model's to check."""
    if ours["type"] != theirs["type"]:
        yield f"{path}: {ours['type']} is not {theirs['type']}"
    free = theirs.get("x-kubernetes-preserve-unknown-fields") and "properties" not in theirs
    if "properties" in ours and not free:
        mine, known = ours["properties"], theirs["properties"]
        yield from (f"{path}.{name}" for name in mine.keys() ^ known.keys())
        for name in mine.keys() & known.keys():
            yield from drift(mine[name], known[name], f"{path}.{name}")
    if "items" in ours:
        yield from drift(ours["items"], theirs["items"], f"{path}[]")


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("broker", BrokerSpec),
        ("trigger", TriggerSpec),
        ("kafkachannel", KafkaChannelSpec),
        ("subscription", SubscriptionSpec),
        ("sensor", SensorSpec),
        ("kafkasource", KafkaSourceSpec),
        ("kafkasink", KafkaSinkSpec),
        ("deadletterarchive", ArchiveSpec),
        ("deadletterreplay", ReplaySpec),
        ("deadletterpurge", PurgeSpec),
    ],
    ids=[*EVENTING, *MESSAGING, "sensor", "source", "sink", "archive", "replay", "purge"],
)
def test_the_schema_has_the_fields_that_we_read_and_no_other(kind: str, model: type[Model]) -> None:
    assert list(drift(read(model), schema(kind)["spec"], "spec")) == []


def test_a_field_that_only_one_side_knows_is_found() -> None:
    """So that the test above can fail."""
    spec = schema("trigger")["spec"]
    del spec["properties"]["filters"]["items"]["properties"]["cesql"]
    spec["properties"]["delivery"]["properties"]["retry"] = {"type": "string"}
    spec["properties"]["delivery"]["properties"]["retries"] = {"type": "integer"}
    assert sorted(drift(read(TriggerSpec), spec, "spec")) == [
        "spec.delivery.retries",
        "spec.delivery.retry: integer is not string",
        "spec.filters[].cesql",
    ]


@pytest.mark.parametrize("kind", [*EVENTING, *MESSAGING, "kafkasink"])
def test_the_schema_holds_no_rule_that_would_hide_the_webhooks_message(kind: str) -> None:
    """Names and types only: the API server asks the schema first, the validating webhook last.

    What it fills in breaks no rule, and what is too large is to be refused without webhooks, too.
    """

    def keys(node: object) -> Iterator[str]:
        if isinstance(node, Mapping):
            for name, inner in node.items():
                if name == "properties":
                    yield from (key for each in inner.values() for key in keys(each))
                else:
                    yield from (str(name), *keys(inner))

    assert set(keys(schema(kind)["spec"])) <= {
        *("type", "format", "description", "items", "x-kubernetes-preserve-unknown-fields"),
        *("default", "maxItems", "maxLength"),
    }


@pytest.mark.conformance("KN-BRK-20")
def test_the_status_has_upstreams_fields() -> None:
    """KN-BRK-20, naming.md: Trigger."""
    broker, trigger = (schema(kind)["status"]["properties"] for kind in ("broker", "trigger"))
    assert broker.keys() == STATUS | RESOLVED | {"address", "addresses", "policies"}
    assert trigger.keys() == STATUS | RESOLVED | {
        *("subscriberUri", "subscriberCACerts", "subscriberAudience", "auth"),
    }
    assert_parts_are_upstreams(broker, trigger)


@pytest.mark.conformance("KN-CHN-04", "KN-CHN-05", "KN-SUB-03", "CHN-33")
def test_the_status_of_channels_has_upstreams_fields() -> None:
    """KN-CHN-01, KN-CHN-04, KN-CHN-05, KN-SUB-03; naming.md: KafkaChannel."""
    channel, subscription = (schema(kind)["status"]["properties"] for kind in MESSAGING)
    assert channel.keys() == STATUS | RESOLVED | {
        *("address", "addresses", "policies", "subscribers", "deadLetterChannel"),
    }
    assert channel["subscribers"]["items"]["properties"].keys() == {
        *("uid", "observedGeneration", "ready", "message", "auth"),
    }
    assert subscription.keys() == STATUS | {"physicalSubscription", "auth"}
    assert subscription["physicalSubscription"]["properties"].keys() == RESOLVED | {
        *("subscriberUri", "subscriberCACerts", "subscriberAudience"),
        *("replyUri", "replyCACerts", "replyAudience"),
    }
    assert_parts_are_upstreams(channel, subscription)


def assert_parts_are_upstreams(addressable: dict[str, Any], other: dict[str, Any]) -> None:
    assert addressable["address"]["properties"].keys() == ADDRESS
    assert addressable["addresses"]["items"]["properties"].keys() == ADDRESS
    for status in (addressable, other):
        assert status["annotations"]["x-kubernetes-preserve-unknown-fields"] is True
        assert status["conditions"]["items"]["properties"].keys() == {
            *("type", "status", "severity", "lastTransitionTime", "reason", "message"),
        }


AGE = ("Age", ".metadata.creationTimestamp", 0)
READY = ("Ready", '.status.conditions[?(@.type=="Ready")].status', 0)
REASON = ("Reason", '.status.conditions[?(@.type=="Ready")].reason', 0)
URL = ("URL", ".status.address.url", 0)


def columns(kind: str) -> list[tuple[str, str, int]]:
    return [
        (each["name"], each["jsonPath"], each.get("priority", 0))
        for each in version(kind)["additionalPrinterColumns"]
    ]


@pytest.mark.conformance("KN-TRG-14")
def test_the_columns_are_upstreams() -> None:
    """KN-TRG-14."""
    broker_class = r".metadata.annotations.eventing\.knative\.dev/broker\.class"
    assert columns("broker") == [URL, AGE, READY, REASON, ("Class", broker_class, 1)]
    assert columns("trigger") == [
        ("Broker", ".spec.broker", 0),
        ("Subscriber_URI", ".status.subscriberUri", 0),
        *(AGE, READY, REASON),
    ]
    assert columns("kafkachannel") == [READY, REASON, URL, AGE]
    # And two that upstream has not: which channel, and whom it reaches, as of a Trigger.
    assert columns("subscription") == [
        ("Channel", ".spec.channel.name", 0),
        ("Subscriber_URI", ".status.physicalSubscription.subscriberUri", 0),
        *(READY, REASON, AGE),
    ]


@pytest.mark.parametrize("kind", EVENTING)
def test_names_and_labels_are_upstreams(kind: str) -> None:
    """naming.md: labels; `kubectl get knative` lists them too."""
    document = crd(kind)
    assert document["metadata"]["name"] == f"{kind}s.eventing.knative.dev"
    assert document["spec"]["group"] == "eventing.knative.dev"
    assert document["spec"]["scope"] == "Namespaced"
    assert document["spec"]["preserveUnknownFields"] is False
    assert document["spec"]["names"] == {
        "kind": kind.capitalize(),
        "listKind": f"{kind.capitalize()}List",
        "plural": f"{kind}s",
        "singular": kind,
        "categories": ["all", "knative", "eventing"],
    }
    labels = document["metadata"]["labels"]
    assert labels["knative.dev/crd-install"] == "true"
    assert labels.get("duck.knative.dev/addressable") == ("true" if kind == "broker" else None)
    assert version(kind)["name"] == "v1"
    assert (version(kind)["served"], version(kind)["storage"]) == (True, True)
    assert version(kind)["subresources"] == {"status": {}}


@pytest.mark.conformance("KN-CHN-07", "CHN-33")
@pytest.mark.parametrize(
    ("kind", "name", "short", "labels", "categories"),
    [
        (
            "kafkachannel",
            "KafkaChannel",
            "kc",
            {"messaging.knative.dev/subscribable", "duck.knative.dev/addressable"},
            ["channel"],
        ),
        ("subscription", "Subscription", "sub", set(), []),
    ],
    ids=MESSAGING,
)
def test_names_and_labels_of_channels_are_upstreams(
    kind: str, name: str, short: str, labels: set[str], categories: list[str]
) -> None:
    """KN-CHN-07: by its labels and category a kind is found to be a channel's."""
    document = crd(kind)
    assert document["metadata"]["name"] == f"{kind}s.messaging.knative.dev"
    assert document["spec"]["group"] == "messaging.knative.dev"
    assert document["spec"]["scope"] == "Namespaced"
    assert document["spec"]["preserveUnknownFields"] is False
    assert document["spec"]["names"] == {
        "kind": name,
        "listKind": f"{name}List",
        "plural": f"{kind}s",
        "singular": kind,
        "categories": ["all", "knative", "messaging", *categories],
        "shortNames": [short],
    }
    on = {key for key, value in document["metadata"]["labels"].items() if value == "true"}
    assert on == labels | {"knative.dev/crd-install"}


@pytest.mark.conformance("KN-CHN-10")
def test_a_kafka_channel_is_the_same_in_both_of_its_versions() -> None:
    """KN-CHN-10: v1beta1 is stored, both are served, and nothing is converted."""
    versions = crd("kafkachannel")["spec"]["versions"]
    assert [f"messaging.knative.dev/{each['name']}" for each in versions] == [
        *KAFKA_CHANNEL_VERSIONS
    ]
    assert [(each.pop("name"), each.pop("storage")) for each in versions] == [
        ("v1beta1", True),
        ("v1", False),
    ]
    first, second = versions
    assert first == second
    assert first["served"] is True
    assert first["subresources"] == {"status": {}}
    assert "conversion" not in crd("kafkachannel")["spec"], "another's webhook stays"


def test_a_source_is_found_and_scaled_as_upstreams() -> None:
    """`kn source list` and `kubectl scale`."""
    document, stored = crd("kafkasource"), version("kafkasource")
    assert document["metadata"]["name"] == "kafkasources.sources.knative.dev"
    assert document["spec"]["names"]["categories"] == ["all", "knative", "eventing", "sources"]
    labels = document["metadata"]["labels"]
    assert {name for name, value in labels.items() if value == "true"} == {
        *("knative.dev/crd-install", "eventing.knative.dev/source", "duck.knative.dev/source"),
    }
    assert (stored["name"], len(document["spec"]["versions"])) == ("v1", 1)
    assert stored["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.consumers",
            "statusReplicasPath": ".status.consumers",
            "labelSelectorPath": ".status.selector",
        },
    }
    assert columns("kafkasource") == [
        ("Topics", ".spec.topics", 0),
        ("BootstrapServers", ".spec.bootstrapServers", 0),
        *(READY, REASON, AGE),
    ]


def test_a_sink_is_an_addressable_as_upstreams() -> None:
    """naming.md: KafkaSink."""
    document, stored = crd("kafkasink"), version("kafkasink")
    assert document["metadata"]["name"] == "kafkasinks.eventing.knative.dev"
    assert document["spec"]["names"]["categories"] == ["all", "knative", "eventing"]
    labels = document["metadata"]["labels"]
    assert {name for name, value in labels.items() if value == "true"} == {
        *("knative.dev/crd-install", "duck.knative.dev/addressable"),
    }
    assert (stored["name"], len(document["spec"]["versions"])) == ("v1alpha1", 1)
    assert stored["subresources"] == {"status": {}}
    assert columns("kafkasink") == [URL, AGE, READY, REASON]
    status = schema("kafkasink")["status"]["properties"]
    assert status.keys() == STATUS | {"address", "addresses", "policies"}
    assert_parts_are_upstreams(status, status)


def test_a_subscription_has_one_version() -> None:
    (only,) = crd("subscription")["spec"]["versions"]
    assert (only["name"], only["served"], only["storage"]) == ("v1", True, True)
    assert only["subresources"] == {"status": {}}


@pytest.mark.conformance("KN-CHN-10")
def test_what_the_schema_fills_in_is_what_we_take_for_it() -> None:
    """KN-CHN-10."""
    spec = schema("kafkachannel")["spec"]["properties"]
    found = {name: it["default"] for name, it in spec.items() if "default" in it}
    assert found == {
        "numPartitions": DEFAULT_CHANNEL_PARTITIONS,
        "replicationFactor": DEFAULT_CHANNEL_REPLICATION,
    }


@pytest.mark.parametrize(
    "folder",
    [CRDS, *(CRDS / each for each in ("messaging", "sensors", "sources", "sinks", "dead-letters"))],
    ids=["eventing", "messaging", "sensors", "sources", "sinks", "dead letters"],
)
def test_kustomize_takes_every_crd(folder: Path) -> None:
    """Channels are asked for by themselves."""
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    there = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(listed) == there
