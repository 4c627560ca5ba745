"""What the webhooks fill in of KafkaChannels and Subscriptions, and what they refuse of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from knafka.core.errors import InvalidDocument
from knafka_operator.channels.admission import (
    check_channel,
    check_subscription,
    may_be_ours,
    with_channel_defaults,
    with_subscription_defaults,
)
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.channels import KAFKA_CHANNEL_VERSIONS, MESSAGING, SUBSCRIBABLE
from knafka_operator.model.resources import AUTOSCALING, DELIVERY_ORDER, ISOLATION, MAX_IN_FLIGHT

MAIL = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "mail"}}
DEAD = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "dead"}}
ORDERS = {"apiVersion": KAFKA_CHANNEL_VERSIONS[0], "kind": "KafkaChannel", "name": "orders"}
DEFAULTS: dict[str, Any] = {
    "numPartitions": 1,
    "replicationFactor": 1,
    "retentionDuration": "PT168H",
}
ISOLATED = {ISOLATION: "alone"}


def channel(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "orders", "namespace": "shop", "annotations": annotations or {}}
    return {
        "apiVersion": KAFKA_CHANNEL_VERSIONS[1],
        "kind": "KafkaChannel",
        "metadata": metadata,
        "spec": spec,
    }


def subscription(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "mail", "namespace": "shop", "annotations": annotations or {}}
    spec = {"channel": ORDERS, "subscriber": MAIL} | spec
    return {"apiVersion": MESSAGING, "kind": "Subscription", "metadata": metadata, "spec": spec}


def refusal(new: dict[str, Any], old: dict[str, Any] | None = None) -> str:
    """What is said of it; empty if nothing is."""
    check: Callable[..., None] = (
        check_channel if new["kind"] == "KafkaChannel" else check_subscription
    )
    try:
        check(new, old)
    except InvalidDocument as error:
        return str(error)
    return ""


@pytest.mark.conformance("KN-CHN-07", "KN-CHN-10")
def test_a_channel_is_filled_in() -> None:
    """KN-CHN-07, KN-CHN-10."""
    document = channel(delivery={"deadLetterSink": DEAD, "retry": 0})
    before = copy.deepcopy(document)
    defaulted = with_channel_defaults(document)
    assert defaulted["metadata"]["annotations"] == {"messaging.knative.dev/subscribable": "v1"}
    assert defaulted["spec"] == {
        **DEFAULTS,
        "delivery": {"deadLetterSink": {"ref": {**DEAD["ref"], "namespace": "shop"}}, "retry": 0},
    }
    assert document == before, "it is not changed in place"
    assert with_channel_defaults(defaulted) == defaulted
    assert refusal(defaulted) == ""


def test_a_channel_without_a_spec_or_annotations_is_filled_in() -> None:
    """KN-CHN-10."""
    document = {**channel(), "metadata": {"name": "orders", "namespace": "shop"}}
    del document["spec"]
    defaulted = with_channel_defaults(document)
    assert defaulted["spec"] == DEFAULTS
    assert defaulted["metadata"]["annotations"] == {SUBSCRIBABLE: "v1"}


@pytest.mark.parametrize("empty", [None, "", 0])
def test_empty_values_of_a_channel_count_as_not_set(empty: object) -> None:
    """As upstream (KN-CHN-10)."""
    spec: dict[str, Any] = dict.fromkeys(DEFAULTS, empty)
    assert with_channel_defaults(channel(**spec))["spec"] == DEFAULTS


def test_what_a_channel_declares_itself_is_kept() -> None:
    """KN-CHN-10."""
    spec: dict[str, Any] = {"numPartitions": 3, "replicationFactor": 2, "retentionDuration": "P1D"}
    document = channel({SUBSCRIBABLE: "v1beta1", "team": "shop"}, **spec)
    defaulted = with_channel_defaults(document)
    assert defaulted == document


def test_the_references_of_a_subscription_get_its_namespace() -> None:
    """As upstream; the channel's stays out, as it may not be set (KN-SUB-01)."""
    there = {"ref": {**MAIL["ref"], "namespace": "post"}, "uri": "/in"}
    document = subscription(reply=there, delivery={"deadLetterSink": DEAD})
    before = copy.deepcopy(document)
    defaulted = with_subscription_defaults(document)
    assert defaulted["spec"] == {
        "channel": ORDERS,
        "subscriber": {"ref": {**MAIL["ref"], "namespace": "shop"}},
        "reply": there,
        "delivery": {"deadLetterSink": {"ref": {**DEAD["ref"], "namespace": "shop"}}},
    }
    assert document == before, "it is not changed in place"
    assert with_subscription_defaults(defaulted) == defaulted
    assert refusal(defaulted) == ""


def test_a_destination_without_a_reference_is_kept() -> None:
    document = subscription(subscriber={"uri": "http://mail/"}, reply={"uri": "http://answers/"})
    assert with_subscription_defaults(document) == document


@pytest.mark.parametrize("spec", ["orders", ["orders"], 5])
def test_what_is_no_spec_at_all_is_left_for_the_check(spec: object) -> None:
    for document, defaulted in (
        (channel(), with_channel_defaults),
        (subscription(), with_subscription_defaults),
    ):
        broken = {**document, "spec": spec}
        assert defaulted(broken) == broken
        assert refusal(broken).startswith("invalid value")


@pytest.mark.parametrize(
    ("spec", "ours"),
    [
        ({"channel": ORDERS}, True),
        ({"channel": {**ORDERS, "apiVersion": KAFKA_CHANNEL_VERSIONS[1]}}, True),
        ({"channel": {**ORDERS, "kind": "InMemoryChannel"}}, False),
        ({"channel": {**ORDERS, "kind": "Channel"}}, False),
        ({"channel": {}}, True),
        ({}, True),
        (None, True),
    ],
)
def test_a_subscription_to_another_kind_of_channel_is_left_to_its_owner(
    spec: object, ours: bool
) -> None:
    """One without a channel nobody else may refuse."""
    assert may_be_ours({**subscription(), "spec": spec}) is ours


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(channel(), id="channel"),
        pytest.param(channel({DELIVERY_ORDER: "unordered", ISOLATION: "shared"}), id="annotations"),
        pytest.param(
            channel(subscribers=[{"uid": "1", "replyUri": "http://a/"}]), id="subscribers"
        ),
        pytest.param({**channel(), "status": {"annotations": 1}}, id="odd-status"),
        pytest.param(subscription(), id="subscription"),
        pytest.param(subscription({DELIVERY_ORDER: "ordered", ISOLATION: "own"}), id="order"),
        pytest.param(subscription({MAX_IN_FLIGHT: "10"}), id="max-in-flight"),
        pytest.param(subscription({AUTOSCALING + "max-scale": "4"}), id="autoscaling"),
        pytest.param(subscription(channel={**ORDERS, "namespace": "shop"}), id="its-namespace"),
        pytest.param(subscription(reply={}), id="empty-reply"),
    ],
)
def test_what_is_right_is_let_pass(document: dict[str, Any]) -> None:
    assert refusal(document) == ""
    assert refusal(document, document) == ""


@pytest.mark.conformance("KN-CHN-05", "KN-CHN-10", "KN-SUB-01", "KN-SUB-02")
@pytest.mark.parametrize(
    ("document", "said"),
    [
        pytest.param(
            channel(numPartitions=0, replicationFactor=-1),
            "invalid value: -1: spec.replicationFactor\nwant greater than 0\n"
            "invalid value: 0: spec.numPartitions\nwant greater than 0",
            id="KN-CHN-10",
        ),
        pytest.param(
            channel(replicationFactor=32_768),
            "invalid value: 32768: spec.replicationFactor\nwant less than or equal to 32767",
            id="KN-CHN-10-replication",
        ),
        pytest.param(
            channel(retentionDuration="7d"),
            "invalid value: 7d: spec.retentionDuration\n"
            "want an ISO-8601 duration, such as PT0.2S or PT5M",
            id="KN-CHN-10-retention",
        ),
        pytest.param(
            channel(subscribers=[{"uid": "1"}]),
            "missing field(s): spec.subscribers[0].replyUri, spec.subscribers[0].subscriberUri",
            id="KN-CHN-05",
        ),
        pytest.param(
            channel({DELIVERY_ORDER: "sorted"}),
            "invalid value: sorted: metadata.annotations[kafka.eventing.knative.dev/delivery.order]"
            "\nwant ordered, unordered, key",
            id="channel-order",
        ),
        pytest.param(
            channel(ISOLATED),
            "invalid value: alone: metadata.annotations[knafka.dev/isolation]\n"
            "want own, shared, auto",
            id="channel-isolation",
        ),
        pytest.param(
            channel({"knafka.dev/producer.acks": "0"}),
            "can't be set: an event is answered with success once all replicas in sync have it "
            "(acks=all): "
            "metadata.annotations[knafka.dev/producer.acks]",
            id="channel-producer",
        ),
        pytest.param(
            channel({"knafka.dev/topic.cleanup.policy": "compact"}),
            "can't be compact: compaction keeps the last event of each key only, and takes one "
            "without data for a tombstone, so events would be lost before they are delivered: "
            "metadata.annotations[knafka.dev/topic.cleanup.policy]\nwant delete",
            id="channel-topic",
        ),
        pytest.param(
            channel({"knafka.dev/topic.retention.ms": "1"}),
            "can't be set: how long a channel keeps events is its spec.retentionDuration: "
            "metadata.annotations[knafka.dev/topic.retention.ms]",
            id="channel-retention",
        ),
        pytest.param(
            channel(delivery={"deadLetterSink": {"uri": "http://d/", "CACerts": "no PEM"}}),
            "invalid value: CA Cert provided is invalid: spec.delivery.deadLetterSink.CACerts",
            id="channel-certificate",
        ),
        pytest.param(
            {**subscription(), "spec": {"subscriber": MAIL}},
            "missing field(s): spec.channel\nthe Subscription must reference a channel",
            id="KN-SUB-01-missing",
        ),
        pytest.param(
            subscription(channel={"kind": "KafkaChannel"}),
            "missing field(s): spec.channel.apiVersion, spec.channel.name",
            id="KN-SUB-01-parts",
        ),
        pytest.param(
            subscription(channel={**ORDERS, "namespace": "other"}),
            "must not set the field(s): spec.channel.namespace\n"
            "want none, or the Subscription's own namespace",
            id="KN-SUB-01-namespace",
        ),
        pytest.param(
            subscription(channel={**ORDERS, "namespace": 5}),
            "invalid value: 5: spec.channel.namespace\nwant a string",
            id="KN-SUB-01-no-namespace",
        ),
        pytest.param(
            subscription(subscriber={}, reply=MAIL),
            "missing field(s): spec.subscriber\nthe Subscription must reference a subscriber",
            id="KN-SUB-02",
        ),
        pytest.param(
            subscription(reply={"uri": "http://a/", "CACerts": "no PEM"}),
            "invalid value: CA Cert provided is invalid: spec.reply.CACerts",
            id="reply-certificate",
        ),
        pytest.param(
            subscription({DELIVERY_ORDER: "sorted", MAX_IN_FLIGHT: "0"}),
            "invalid value: 0: metadata.annotations[knafka.dev/max-in-flight]\n"
            "want a whole number from 1 to 10000\n"
            "invalid value: sorted: metadata.annotations[kafka.eventing.knative.dev/delivery.order]"
            "\nwant ordered, unordered, key",
            id="subscription-annotations",
        ),
        pytest.param(
            subscription(ISOLATED),
            "invalid value: alone: metadata.annotations[knafka.dev/isolation]\n"
            "want own, shared, auto",
            id="subscription-isolation",
        ),
    ],
)
def test_what_is_wrong_is_said_as_upstream_says_it(document: dict[str, Any], said: str) -> None:
    """KN-CHN-05, KN-CHN-10, KN-SUB-01, KN-SUB-02."""
    assert refusal(document) == said


def test_the_annotations_of_a_subscription_stand_over_the_installations() -> None:
    """As a Trigger's."""
    document = subscription({AUTOSCALING + "min-scale": "60"})
    assert "want at most max-scale, 50" in refusal(document)
    check_subscription(document, None, Autoscaling(max_scale=100))


TEN = channel(numPartitions=10, replicationFactor=3, retentionDuration="PT168H")


@pytest.mark.conformance("KN-CHN-10", "KN-SUB-01", "KN-SUB-04")
@pytest.mark.parametrize(
    ("new", "old", "said"),
    [
        pytest.param(
            channel(numPartitions=12, replicationFactor=2, retentionDuration="P1D"),
            TEN,
            "Immutable fields changed (-old +new): spec\n"
            "spec.numPartitions:\n\t-: 10\n\t+: 12\n"
            "spec.replicationFactor:\n\t-: 3\n\t+: 2\n"
            'spec.retentionDuration:\n\t-: "PT168H"\n\t+: "P1D"',
            id="KN-CHN-10",
        ),
        pytest.param(
            channel(numPartitions=10, replicationFactor=3, retentionDuration="P7D"),
            TEN,
            "",
            id="another-spelling",
        ),
        pytest.param(channel(**DEFAULTS), channel(), "", id="defaults-filled-in-later"),
        pytest.param(
            channel(retentionDuration="P2D"), channel(retentionDuration=""), "", id="a-retention"
        ),
        pytest.param(
            channel(retentionDuration="P2D"), channel(retentionDuration="2d"), "", id="mended"
        ),
        pytest.param(
            channel(numPartitions=2), channel(numPartitions=-2), "", id="mended-partitions"
        ),
        pytest.param(
            channel(retentionDuration="2d"),
            channel(retentionDuration="P2D"),
            "Immutable fields changed (-old +new): spec\n"
            'spec.retentionDuration:\n\t-: "P2D"\n\t+: "2d"\n'
            "invalid value: 2d: spec.retentionDuration\n"
            "want an ISO-8601 duration, such as PT0.2S or PT5M",
            id="broken",
        ),
        pytest.param(
            channel(
                {DELIVERY_ORDER: "unordered"},
                delivery={"retry": 5},
                subscribers=[{"uid": "1", "subscriberUri": "http://mail/"}],
            ),
            channel(),
            "",
            id="KN-CHN-05-others-may",
        ),
        pytest.param(channel(ISOLATED, delivery={"retry": 1}), channel(ISOLATED), "", id="was"),
        pytest.param(
            subscription(channel={**ORDERS, "name": "returns"}),
            subscription(),
            "Immutable fields changed (-old +new): spec\n"
            'spec.channel.name:\n\t-: "orders"\n\t+: "returns"',
            id="KN-SUB-01",
        ),
        pytest.param(
            subscription(channel={**ORDERS, "apiVersion": KAFKA_CHANNEL_VERSIONS[1]}),
            subscription(),
            "Immutable fields changed (-old +new): spec\n"
            'spec.channel.apiVersion:\n\t-: "messaging.knative.dev/v1beta1"\n'
            '\t+: "messaging.knative.dev/v1"',
            id="KN-SUB-01-version",
        ),
        pytest.param(
            subscription(channel={**ORDERS, "namespace": "shop"}), subscription(), "", id="same"
        ),
        pytest.param(
            subscription(), subscription(channel={**ORDERS, "namespace": ""}), "", id="empty"
        ),
        pytest.param(
            subscription(), subscription(channel={**ORDERS, "namespace": None}), "", id="null"
        ),
        pytest.param(
            subscription(
                subscriber={"uri": "http://b/"}, reply={"uri": "http://c/"}, delivery={"retry": 1}
            ),
            subscription(),
            "",
            id="KN-SUB-04",
        ),
        pytest.param(subscription(), subscription(channel={}), "", id="a-channel-at-last"),
    ],
)
def test_what_may_not_change_stays(new: dict[str, Any], old: dict[str, Any], said: str) -> None:
    """KN-CHN-10, KN-SUB-01; the rest may (KN-CHN-05, KN-SUB-04)."""
    assert refusal(new, old) == said
