"""The webhooks of channels on kopf: which there are, and what they answer."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import kopf
import pytest

from knafka_operator.model.channels import KAFKA_CHANNEL_VERSIONS, MESSAGING
from knafka_operator.model.maxima import Maxima
from knafka_operator.webhooks import channel_handlers, handlers

MAIL = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "mail"}}
ORDERS = {"apiVersion": KAFKA_CHANNEL_VERSIONS[0], "kind": "KafkaChannel", "name": "orders"}
MEMO = kopf.Memo(operator=SimpleNamespace(settings=SimpleNamespace(maxima=Maxima())))
OTHER = {**ORDERS, "kind": "InMemoryChannel"}


def document(kind: str, **spec: Any) -> Any:
    metadata = {"name": "orders", "namespace": "shop"}
    return {"apiVersion": MESSAGING, "kind": kind, "metadata": metadata, "spec": spec}


def stored(webhook: Any, raw: Any) -> Any:
    """The document after a mutating webhook."""
    webhook(body=kopf.Body(raw), patch=(patch := kopf.Patch()), memo=kopf.Memo())
    for fill_in in patch.fns:
        fill_in(raw)
    return raw


def webhooks(registry: kopf.OperatorRegistry) -> dict[str, tuple[str, str]]:
    """By name: the plural that each is asked about, and what it is asked to do."""
    return {
        str(each.id): (str(each.selector and each.selector.any_name), each.reason.value)
        for each in registry._webhooks.get_all_handlers()
    }


def test_channels_have_webhooks_only_where_they_are_asked_for() -> None:
    registry = kopf.OperatorRegistry()
    channel_handlers.register(registry)
    assert webhooks(registry) == {
        "default-channel": ("kafkachannels", "mutating"),
        "default-subscription": ("subscriptions", "mutating"),
        "check-channel": ("kafkachannels", "validating"),
        "check-subscription": ("subscriptions", "validating"),
    }
    assert not webhooks(registry).keys() & webhooks(handlers.REGISTRY).keys()


def test_the_webhooks_of_channels_fail_open() -> None:
    """As those of Brokers: a condition names what slips through."""
    registry = kopf.OperatorRegistry()
    channel_handlers.register(registry)
    for each in registry._webhooks.get_all_handlers():
        assert each.ignore_failures
        assert each.operations == ["CREATE", "UPDATE"]


@pytest.mark.conformance("KN-CHN-07", "KN-CHN-10")
def test_a_channel_is_stored_with_its_defaults() -> None:
    """KN-CHN-07, KN-CHN-10."""
    found = stored(channel_handlers.set_channel_defaults, document("KafkaChannel"))
    assert found["spec"]["retentionDuration"] == "PT168H"
    assert found["metadata"]["annotations"] == {"messaging.knative.dev/subscribable": "v1"}


def test_a_broken_channel_is_refused() -> None:
    """KN-CHN-10."""
    check: Any = partial(channel_handlers.check_channel, memo=MEMO)
    good, bad = document("KafkaChannel"), document("KafkaChannel", numPartitions=-1)
    check(body=kopf.Body(good))
    with pytest.raises(kopf.AdmissionError, match="validation failed: invalid value: -1") as raised:
        check(body=kopf.Body(bad))
    assert raised.value.code == 400
    check(body=kopf.Body(bad), old=bad)
    with pytest.raises(kopf.AdmissionError, match="Immutable fields changed"):
        check(body=kopf.Body(document("KafkaChannel", numPartitions=2)), old=kopf.Body(good))


@pytest.mark.conformance("KN-SUB-01", "KN-SUB-02")
def test_only_subscriptions_to_our_channels_are_judged() -> None:
    """KN-SUB-01, KN-SUB-02: others are Knative Eventing's, or another implementation's."""
    check: Any = partial(channel_handlers.check_subscription, memo=MEMO)
    ours = document("Subscription", channel=ORDERS, subscriber=MAIL)
    others = document("Subscription", channel=OTHER)
    check(body=kopf.Body(others))
    check(body=kopf.Body(ours), old=kopf.Body(others))
    check(body=kopf.Body(ours))
    with pytest.raises(kopf.AdmissionError, match="must reference a subscriber"):
        check(body=kopf.Body(document("Subscription", channel=ORDERS)))
    with pytest.raises(kopf.AdmissionError, match="Immutable fields changed"):
        check(body=kopf.Body(others), old=kopf.Body(ours))
    for channel, namespace in ((ORDERS, "shop"), (OTHER, None)):
        raw = document("Subscription", channel=channel, subscriber=MAIL)
        found = stored(channel_handlers.set_subscription_defaults, raw)
        assert found["spec"]["subscriber"]["ref"].get("namespace") == namespace
