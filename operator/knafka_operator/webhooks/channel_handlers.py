"""Channel handlers: the webhooks of KafkaChannels and Subscriptions, on kopf.

Registered only if channels are installed (operator/deploy/channels).

Not here: the checks (`channels.admission`).
"""

from __future__ import annotations

from typing import Any, Final

import kopf

from knafka_operator.channels import admission as channel_admission
from knafka_operator.webhooks.handlers import WEBHOOK, check_admission, replace_document

# These cover both versions of KafkaChannel: the webhooks' matchPolicy Equivalent converts v1beta1
# to v1.
KAFKA_CHANNELS: Final = ("messaging.knative.dev", "v1", "kafkachannels")
"""API group, version and plural name, as kopf's decorators take them."""
SUBSCRIPTIONS: Final = ("messaging.knative.dev", "v1", "subscriptions")
"""API group, version and plural name of Subscriptions."""


def register(registry: kopf.OperatorRegistry) -> None:
    """Register the webhooks of channels in `registry`. Call it once for each registry."""
    webhook = {**WEBHOOK, "registry": registry}
    kopf.on.mutate(*KAFKA_CHANNELS, id="default-channel", **webhook)(set_channel_defaults)
    kopf.on.mutate(*SUBSCRIPTIONS, id="default-subscription", **webhook)(set_subscription_defaults)
    kopf.on.validate(*KAFKA_CHANNELS, id="check-channel", **webhook)(check_channel)
    kopf.on.validate(*SUBSCRIPTIONS, id="check-subscription", **webhook)(check_subscription)


def set_channel_defaults(patch: kopf.Patch, **_: Any) -> None:
    """Fill in a KafkaChannel's defaults: add to `patch` the function that replaces the object."""
    patch.fns.append(
        lambda raw: replace_document(raw, channel_admission.with_channel_defaults(raw))
    )


def set_subscription_defaults(body: kopf.Body, patch: kopf.Patch, **_: Any) -> None:
    """Fill in the defaults of a Subscription to a KafkaChannel: add to `patch` the function that
    replaces the object. Other channels' Subscriptions are left alone."""
    if channel_admission.may_be_ours(body):
        patch.fns.append(
            lambda raw: replace_document(raw, channel_admission.with_subscription_defaults(raw))
        )


def check_channel(body: kopf.Body, memo: kopf.Memo, old: Any = None, **_: Any) -> None:
    """Refuse an invalid KafkaChannel, or a forbidden change. Raises `kopf.AdmissionError`."""
    check_admission(channel_admission.check_channel, body, memo, old)


def check_subscription(body: kopf.Body, memo: kopf.Memo, old: Any = None, **_: Any) -> None:
    """Refuse an invalid Subscription to a KafkaChannel, or a forbidden change. At an update, the
    channel of `old`, the object before, decides whether it is checked. Raises
    `kopf.AdmissionError`."""
    if channel_admission.may_be_ours(old or body):
        check_admission(channel_admission.check_subscription, body, memo, old)
