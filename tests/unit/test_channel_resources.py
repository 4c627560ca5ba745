"""KafkaChannels and Subscriptions as declared: what is read, and what is refused by path."""

from __future__ import annotations

from typing import Any

import pytest
from support.certificates import PEM

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_operator.model.channels import (
    KAFKA_CHANNEL_VERSIONS,
    MAX_CHANNEL_RETENTION,
    MESSAGING,
    Auth,
    KafkaChannel,
    KafkaChannelSpec,
    SubscriberSpec,
    Subscription,
)
from knafka_operator.model.resources import AddressReference, Destination

WEEK = 7 * 24 * 3600.0
MAIL = {"uri": "http://mail/"}
REF = {"apiVersion": "v1", "kind": "Service", "name": "mail"}
CHANNEL = {"apiVersion": KAFKA_CHANNEL_VERSIONS[0], "kind": "KafkaChannel", "name": "orders"}


def document(kind: str, spec: object, **more: Any) -> dict[str, Any]:
    metadata = {"name": "orders", "namespace": "shop"}
    return {"apiVersion": MESSAGING, "kind": kind, "metadata": metadata, "spec": spec} | more


def channel(**spec: Any) -> KafkaChannelSpec:
    return parse(KafkaChannel, document("KafkaChannel", spec)).spec


def subscription(**spec: Any) -> Subscription:
    spec = {"channel": CHANNEL, "subscriber": MAIL} | spec
    return parse(Subscription, document("Subscription", spec))


def refused_channel(**spec: Any) -> InvalidDocument:
    with pytest.raises(InvalidDocument) as raised:
        channel(**spec)
    return raised.value


def refused_subscription(spec: object) -> InvalidDocument:
    with pytest.raises(InvalidDocument) as raised:
        parse(Subscription, document("Subscription", spec))
    return raised.value


@pytest.mark.conformance("KN-CHN-10")
@pytest.mark.parametrize("api_version", KAFKA_CHANNEL_VERSIONS)
@pytest.mark.parametrize("spec", [None, {}, {"numPartitions": None, "delivery": None}])
def test_a_channel_that_declares_nothing_has_upstreams_defaults(
    api_version: str, spec: object
) -> None:
    """KN-CHN-10, in both versions."""
    found = parse(KafkaChannel, document("KafkaChannel", spec, apiVersion=api_version))
    assert found.id == "shop/orders"
    assert (found.spec.num_partitions, found.spec.replication_factor) == (1, 1)
    assert found.spec.retention_duration == WEEK
    assert (found.spec.delivery.is_set, found.spec.subscribers) == (False, ())


def test_a_channel_is_read_with_all_that_it_declares() -> None:
    """KN-CHN-10, KN-CHN-06."""
    spec = channel(
        numPartitions=10,
        replicationFactor=32_767,
        retentionDuration="PT1.5H",
        delivery={"retry": 3, "deadLetterSink": {"ref": REF}},
    )
    assert (spec.num_partitions, spec.replication_factor) == (10, 32_767)
    assert spec.retention_duration == 5400.0
    assert spec.delivery.retry == 3
    assert spec.delivery.dead_letter_sink is not None


@pytest.mark.parametrize("text", ["PT168H", "P7D", "P1W", "PT604800S", ""])
def test_one_retention_has_many_spellings(text: str) -> None:
    """A comparison of text would take a change of spelling for a change."""
    assert channel(retentionDuration=text) == channel()


@pytest.mark.parametrize("text", ["P0D", "PT0S"])
def test_a_retention_may_be_nothing(text: str) -> None:
    """As upstream."""
    assert channel(retentionDuration=text).retention_duration == 0.0


@pytest.mark.conformance("KN-CHN-05")
def test_a_channels_subscribers_are_read_as_the_server_writes_them() -> None:
    """KN-CHN-05, naming.md: KafkaChannel; the fields are all of upstream's SubscriberSpec."""
    spec = channel(
        subscribers=[
            {
                "uid": "1-2",
                "generation": 3,
                "name": "mail",
                "subscriberUri": "http://mail/",
                "subscriberCACerts": "PEM",
                "subscriberAudience": "mail",
                "replyUri": "http://answers/",
                "replyCACerts": "PEM2",
                "replyAudience": "answers",
                "delivery": {"retry": 0, "deadLetterSink": {"uri": "http://d/", "CACerts": PEM}},
                "auth": {"serviceAccountName": "mail-oidc"},
            },
            {"uid": "3", "replyUri": "http://answers/"},
        ]
    )
    first, second = spec.subscribers
    assert (first.uid, first.generation, first.name) == ("1-2", 3, "mail")
    assert (first.subscriber_uri, first.subscriber_ca_certs) == ("http://mail/", "PEM")
    assert (first.reply_uri, first.reply_ca_certs) == ("http://answers/", "PEM2")
    assert (first.subscriber_audience, first.reply_audience) == ("mail", "answers")
    assert first.delivery.is_set
    assert first.delivery.dead_letter_sink == Destination(uri="http://d/", CACerts=PEM)
    assert first.auth == Auth(service_account_name="mail-oidc")
    assert second == SubscriberSpec(uid="3", reply_uri="http://answers/")
    assert not second.delivery.is_set


@pytest.mark.conformance("KN-CHN-10")
@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("numPartitions", 0, "invalid value: 0: want greater than 0"),
        ("numPartitions", -1, "invalid value: -1: want greater than 0"),
        ("numPartitions", 2**31, "invalid value: 2147483648: want less than or equal to"),
        ("numPartitions", "3", 'invalid value: "3": want a whole number'),
        ("numPartitions", True, "invalid value: true: want a whole number"),
        ("replicationFactor", 0, "invalid value: 0: want greater than 0"),
        ("replicationFactor", 32_768, "invalid value: 32768: want less than or equal to 32767"),
        ("retentionDuration", "7d", "invalid value: 7d: want an ISO-8601 duration"),
        ("retentionDuration", "-PT1H", "invalid value: -PT1H: want an ISO-8601 duration"),
        ("retentionDuration", -1, "invalid value: -1: want greater than or equal to 0"),
        ("retentionDuration", f"PT{2 * MAX_CHANNEL_RETENTION:.0f}S", "invalid value: "),
        ("partitions", 1, "unknown field"),
    ],
)
def test_what_no_topic_can_have_is_refused(field: str, value: object, problem: str) -> None:
    """KN-CHN-10."""
    error = refused_channel(**{field: value})
    assert error.path == f"spec.{field}"
    assert error.problem.startswith(problem)


@pytest.mark.parametrize(
    ("subscriber", "path", "problem"),
    [
        (
            {"uid": "1"},
            "spec.subscribers[0].replyUri",
            "missing field(s): spec.subscribers[0].replyUri, spec.subscribers[0].subscriberUri",
        ),
        (
            {"subscriberUri": "http://mail/", "delivery": {"retry": -1}},
            "spec.subscribers[0].delivery.retry",
            "invalid value: -1: want greater than or equal to 0",
        ),
        (
            {"subscriberUri": "http://mail/", "url": "http://mail/"},
            "spec.subscribers[0].url",
            "unknown field",
        ),
    ],
)
def test_a_broken_subscriber_of_a_channel_is_refused_by_path(
    subscriber: dict[str, Any], path: str, problem: str
) -> None:
    """KN-CHN-05."""
    error = refused_channel(subscribers=[subscriber])
    assert (error.path, error.problem) == (path, problem)


def test_a_subscription_is_read_with_all_that_it_declares() -> None:
    found = subscription(
        subscriber={"ref": REF, "uri": "/in", "CACerts": PEM, "audience": "mail"},
        reply={"ref": {**CHANNEL, "namespace": "other"}},
        delivery={"retry": 3, "backoffPolicy": "linear"},
    )
    assert found.id == "shop/orders"
    assert found.spec.channel.name == "orders"
    assert found.spec.subscriber.uri == "/in"
    assert found.spec.reply == Destination(
        ref=AddressReference(
            api_version=KAFKA_CHANNEL_VERSIONS[0],
            kind="KafkaChannel",
            name="orders",
            namespace="other",
        )
    )
    assert found.spec.delivery.retry == 3


@pytest.mark.conformance("KN-SUB-02")
@pytest.mark.parametrize("reply", [None, {}, {"ref": None, "uri": None}])
def test_a_subscription_needs_no_reply_and_an_empty_one_is_none(reply: object) -> None:
    """KN-SUB-02; without options of delivery the channel's hold (KN-CHN-06)."""
    spec = subscription(reply=reply).spec
    assert spec.reply is None
    assert not spec.delivery.is_set
    assert subscription(delivery={"retry": 0}).spec.delivery.is_set


@pytest.mark.conformance("KN-SUB-01")
@pytest.mark.parametrize("namespace", [None, "", "shop"])
def test_a_subscriptions_channel_is_in_its_own_namespace(namespace: str | None) -> None:
    """KN-SUB-01."""
    found = subscription(channel={**CHANNEL, "namespace": namespace})
    assert found.spec.channel.namespace in (None, "shop")


@pytest.mark.parametrize(
    ("api_version", "kind", "ours"),
    [
        ("messaging.knative.dev/v1beta1", "KafkaChannel", True),
        ("messaging.knative.dev/v1", "KafkaChannel", True),
        ("messaging.knative.dev/v1", "Channel", False),
        ("messaging.knative.dev/v1", "InMemoryChannel", False),
        ("messaging.example.com/v1", "KafkaChannel", False),
    ],
)
def test_a_subscription_knows_whether_its_channel_is_a_kafka_channel(
    api_version: str, kind: str, ours: bool
) -> None:
    """One of another kind is read all the same, to be left alone knowingly."""
    reference = {"apiVersion": api_version, "kind": kind, "name": "orders"}
    assert subscription(channel=reference).spec.channel.is_kafka_channel is ours


@pytest.mark.conformance("KN-SUB-01", "KN-SUB-02")
@pytest.mark.parametrize(
    ("spec", "path", "problem"),
    [
        (None, "spec", "missing field(s): spec"),
        ({}, "spec.channel", "missing field(s): spec.channel, spec.subscriber"),
        ({"subscriber": MAIL}, "spec.channel", "missing field(s): spec.channel"),
        ({"channel": {}, "subscriber": MAIL}, "spec.channel", "missing field(s): spec.channel"),
        ({"channel": CHANNEL}, "spec.subscriber", "missing field(s): spec.subscriber"),
        (
            {"channel": CHANNEL, "reply": MAIL, "subscriber": {}},
            "spec.subscriber",
            "missing field(s): spec.subscriber",
        ),
        (
            {"channel": {"kind": "KafkaChannel"}, "subscriber": MAIL},
            "spec.channel.apiVersion",
            "missing field(s): spec.channel.apiVersion, spec.channel.name",
        ),
        (
            {"channel": {**CHANNEL, "namespace": "other"}, "subscriber": MAIL},
            "spec.channel.namespace",
            "must not set the field(s): want none, or the Subscription's own namespace",
        ),
        (
            {"channel": CHANNEL, "subscriber": {"uri": "/in"}},
            "spec.subscriber.uri",
            "relative URL without a ref: /in: want an absolute one",
        ),
        (
            {"channel": CHANNEL, "subscriber": MAIL, "reply": {"audience": "a"}},
            "spec.reply.ref",
            "expected at least one, got none: spec.reply.ref, spec.reply.uri",
        ),
        (
            {"channel": CHANNEL, "subscriber": MAIL, "delivery": {"retry": -1}},
            "spec.delivery.retry",
            "invalid value: -1: want greater than or equal to 0",
        ),
        (
            {"channel": CHANNEL, "subscriber": MAIL, "filter": {}},
            "spec.filter",
            "unknown field",
        ),
        ([], "spec", "invalid value: want an object"),
    ],
)
def test_a_broken_subscription_is_refused_by_path(spec: object, path: str, problem: str) -> None:
    """KN-SUB-01, KN-SUB-02; the words are upstream's where it has any."""
    error = refused_subscription(spec)
    assert (error.path, error.problem) == (path, problem)
