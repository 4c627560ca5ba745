"""What is filled in and what is refused, by the webhooks of a real API server (KN-BRK, KN-TRG)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster import Cluster
from support.conformance_world import CLASS, broker, own_namespace, refused, taken, trigger
from support.installation import Installation
from support.watched import Watched

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "name": "missing"}
DEPENDENCY = "knative.dev/dependency"
INJECTION = "eventing.knative.dev/injection"

POSITIVE = (
    *("source", "id", "specversion", "type", "subject", "time", "datacontenttype", "dataschema"),
    *("aaa", "c1d2e3", "abcdefghijklmnopqrst"),
)
NEGATIVE = (
    *("SOURCE", "Source", "souRce", "s pace s", "s_pace_s", "s-pace-s", "123", "😊"),
    *("!@#$%^&*()-_=_`~+\\", "{}[];':\"<>,./?"),
)


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, watched: Watched) -> Iterator[str]:
    yield from own_namespace(cluster, watched)


@pytest.fixture(scope="module")
def stored(installed: Installation, namespace: str) -> Cluster:
    """A Broker without a Kafka and a Trigger of it: they need no pods.

    kubectl stores them, as it tries changes of them later: it removes only what it has applied.
    """
    cluster = installed.cluster
    refused(cluster, namespace, [trigger("canary", filter={"attributes": {"NO": ""}})])
    ref = {"apiVersion": "v1", "kind": "Service", "name": "nobody"}
    for manifest in (
        broker("default", config=CONFIG, delivery={"retry": 1}),
        trigger("kept", subscriber={"ref": ref}),
    ):
        cluster.kubectl("apply", "-n", namespace, "-f-", text=json.dumps(manifest))
    return cluster


@pytest.mark.conformance("KN-TRG-09")
def test_the_api_server_takes_what_is_an_attributes_name(stored: Cluster, namespace: str) -> None:
    taken(
        stored,
        namespace,
        *(
            trigger(f"t{number}", filter={"attributes": {name: "x"}})
            for number, name in enumerate(POSITIVE)
        ),
        *(
            trigger(f"f{number}", filters=[{"prefix": {name: "x"}}])
            for number, name in enumerate(POSITIVE)
        ),
    )


@pytest.mark.conformance("KN-TRG-09")
def test_the_api_server_refuses_what_is_no_attributes_name(stored: Cluster, namespace: str) -> None:
    """The ten of Knative's own tests, in both kinds of filter."""
    manifests = [
        trigger(f"t{number}", **spec)
        for number, spec in enumerate(
            spec
            for name in NEGATIVE
            for spec in (
                {"filter": {"attributes": {name: "x"}}},
                {"filters": [{"exact": {name: "x"}}]},
            )
        )
    ]
    quoted = (json.dumps(name, ensure_ascii=False) for name in NEGATIVE)
    refused(stored, namespace, manifests, *(f"invalid key name {name}" for name in quoted))


@pytest.mark.conformance("KN-TRG-05", "KN-TRG-10", "KN-TRG-13", "KN-DLV-06")
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(
            {
                "missing field(s): spec.broker": {"broker": ""},
                "expected at least one, got none: spec.subscriber.ref, spec.subscriber.uri": {
                    "subscriber": {}
                },
            },
            id="KN-TRG-05",
        ),
        pytest.param(
            {
                "multiple dialects found, filters can have only one dialect set: spec.filters[0]": {
                    "filters": [{"exact": {"type": "a"}, "suffix": {"type": "b"}}]
                },
                "invalid CESQL expression": {"filters": [{"cesql": "this is wrong"}]},
                "invalid value: : spec.filters[0].exact.type": {
                    "filters": [{"exact": {"type": ""}}]
                },
            },
            id="KN-TRG-10",
        ),
        pytest.param(
            {
                "spec.delivery.retry": {"delivery": {"retry": -1}},
                "spec.delivery.backoffPolicy": {"delivery": {"backoffPolicy": "often"}},
                "spec.delivery.backoffDelay": {"delivery": {"backoffDelay": "1s"}},
                "spec.delivery.timeout": {"delivery": {"timeout": "PT0S"}},
                "spec.delivery.retryAfterMax": {"delivery": {"retryAfterMax": "-PT1S"}},
                "spec.delivery.format": {"delivery": {"format": "xml"}},
            },
            id="KN-DLV-06",
        ),
        pytest.param(
            {
                "The provided annotation was not a corev1.ObjectReference": {
                    "annotations": {DEPENDENCY: "a Broker"}
                },
                f"missing field(s): metadata.annotations[{DEPENDENCY}].apiVersion": {
                    "annotations": {DEPENDENCY: "{}"}
                },
                "Namespace must be empty or equal to the trigger namespace": {
                    "annotations": {
                        DEPENDENCY: '{"apiVersion":"v1","kind":"A","name":"a","namespace":"b"}'
                    }
                },
                "The provided injection annotation is only used for default broker": {
                    "annotations": {INJECTION: "enabled"},
                    "broker": "other",
                },
                'The provided injection annotation value can only be "enabled" or "disabled"': {
                    "annotations": {INJECTION: "yes"}
                },
            },
            id="KN-TRG-13",
        ),
    ],
)
def test_what_is_wrong_with_a_trigger_is_refused_in_upstreams_words(
    stored: Cluster, namespace: str, wrong: dict[str, dict[str, Any]]
) -> None:
    manifests = [trigger(f"t{number}", **spec) for number, spec in enumerate(wrong.values())]
    refused(stored, namespace, manifests, *wrong)


@pytest.mark.conformance("KN-DLV-06")
def test_what_is_wrong_with_a_brokers_delivery_is_refused(stored: Cluster, namespace: str) -> None:
    manifests = [
        broker("b1", delivery={"retry": -1}),
        broker("b2", delivery={"backoffPolicy": "often"}),
    ]
    refused(stored, namespace, manifests, "spec.delivery.retry", "spec.delivery.backoffPolicy")


@pytest.mark.conformance("KN-BRK-05", "KN-BRK-06")
def test_a_brokers_class_and_config_can_not_change(stored: Cluster, namespace: str) -> None:
    other = broker("default", config={**CONFIG, "name": "other"}, delivery={"retry": 1})
    refused(
        stored, namespace, [other], "Immutable fields changed (-old +new): spec", "spec.config.name"
    )
    other = broker("default", "Kafka", config=CONFIG, delivery={"retry": 1})
    refused(stored, namespace, [other], "Immutable annotations changed (-old +new)", CLASS)
    taken(stored, namespace, broker("default", config=CONFIG, delivery={"retry": 2}))


@pytest.mark.conformance("KN-TRG-05")
def test_a_triggers_broker_can_not_change_and_the_rest_may(stored: Cluster, namespace: str) -> None:
    refused(
        stored, namespace, [trigger("kept", broker="other")], "Immutable fields changed (-old +new)"
    )
    taken(stored, namespace, trigger("kept", filter={"attributes": {"type": "a"}}))


@pytest.mark.conformance("KN-BRK-16", "KN-BRK-15")
def test_a_broker_needs_no_spec_to_be_taken(stored: Cluster, namespace: str) -> None:
    taken(stored, namespace, broker("bare"), broker("retrying", delivery={"retry": 0}))


@pytest.mark.conformance("KN-TRG-12")
def test_what_a_trigger_leaves_out_is_filled_in(stored: Cluster, namespace: str) -> None:
    kept = stored.get("trigger", "kept", namespace)
    assert kept is not None
    assert kept["spec"]["filter"] == {}
    assert kept["spec"]["subscriber"]["ref"]["namespace"] == namespace
    assert kept["metadata"]["labels"]["eventing.knative.dev/broker"] == "default"


@pytest.mark.conformance("KN-TRG-14")
def test_kubectl_shows_upstreams_columns(stored: Cluster, namespace: str) -> None:
    def columns(kind: str, *options: str) -> list[str]:
        return stored.kubectl("get", kind, "-n", namespace, *options).splitlines()[0].split()

    assert columns("triggers") == ["NAME", "BROKER", "SUBSCRIBER_URI", "AGE", "READY", "REASON"]
    assert columns("brokers") == ["NAME", "URL", "AGE", "READY", "REASON"]
    assert "CLASS" in columns("brokers", "-owide")
