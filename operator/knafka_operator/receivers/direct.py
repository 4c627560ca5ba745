"""Direct: decides whether senders reach a receiver's pods without Knative's proxy (issue 37). Pure.

    a Broker's annotation knafka.dev/direct: "true" or "false"; default: the installation's setting
    true    a Service of ours leads to the port of the receiver's pods; status.address names it
            once it has answered; one pod always runs, and Knative scales by the load that the
            receiver reports
    false   requests pass Knative's proxy, and the receiver scales from zero

KafkaChannels share receivers, so only the installation's setting applies to them. A channel's host
then leads to the pods, unless its annotation is "false"; its address stays.

Not here: how a receiver reports its load (`knafka.receiver.direct`).
"""

from __future__ import annotations

from typing import Final

from knafka.core import names
from knafka.core.errors import InvalidDocument
from knafka_operator.functions import receiver_services, services
from knafka_operator.functions.receiver_services import min_receiver_pods
from knafka_operator.functions.services import MIN_SCALE
from knafka_operator.installation.settings import Settings
from knafka_operator.model.resources import KNAFKA_PREFIX, Resource, annotation_path

DIRECT: Final = f"{KNAFKA_PREFIX}direct"
"""Annotation of a Broker or KafkaChannel: whether senders bypass Knative's proxy."""
FUNCTION_PORT: Final = 8080
"""The port at which functions listen on Knative."""
HTTP_PORT: Final = {"name": "http", "port": 80, "targetPort": FUNCTION_PORT}
"""The port of a Service that leads directly to functions' pods."""
_BOOLEANS: Final = {"true": True, "false": False}
"""Values of the annotation `DIRECT`."""


def is_direct(broker: Resource, settings: Settings) -> bool:
    """Whether a Broker's senders bypass Knative's proxy.

    The Broker's annotation `DIRECT` decides. Without it the installation's setting does, but a
    receiver that may scale to zero needs the proxy. Raises `InvalidDocument` for an invalid
    annotation, or if it is `true` and the receiver may scale to zero.
    """
    direct = _declared_direct(broker)
    # A direct receiver has a pod by default: without Knative's proxy nothing would wake it.
    may_sleep = min_receiver_pods(broker.metadata.annotations, default=1) < 1
    if direct is None:
        return settings.direct and not may_sleep
    if direct and may_sleep:
        problem = (
            "senders past Knative's proxy can't wake a receiver that has scaled to zero: set "
            f"{MIN_SCALE} to 1 or more, or remove it"
        )
        raise InvalidDocument(annotation_path(DIRECT), problem)
    return direct


def is_direct_channel(channel: Resource, settings: Settings) -> bool:
    """Whether a KafkaChannel's senders bypass Knative's proxy: the channel's annotation `DIRECT`
    may only switch off the installation's setting. Raises `InvalidDocument` if it is invalid or
    would switch it on."""
    direct = _declared_direct(channel)
    if direct and not settings.direct:
        problem = "its receiver serves other channels, too: set the operator's KNAFKA_DIRECT"
        raise InvalidDocument(annotation_path(DIRECT), problem)
    return settings.direct if direct is None else direct


def _declared_direct(resource: Resource) -> bool | None:
    """Return the value of the annotation `DIRECT`; None if it is missing. Raises `InvalidDocument`
    if it is neither `true` nor `false`, in upper or lower case."""
    if (text := resource.metadata.annotations.get(DIRECT)) is None:
        return None
    if (direct := _BOOLEANS.get(text.strip().lower())) is None:
        problem = f"invalid value: {text:.80}: want {', '.join(_BOOLEANS)}"
        raise InvalidDocument(annotation_path(DIRECT), problem)
    return direct


def direct_service(broker: Resource) -> services.Manifest:
    """Return the manifest of the Service that leads directly to the pods of a Broker's receiver."""
    return receiver_services.receiver_pods_service(broker, _direct_service_name(broker), HTTP_PORT)


def direct_url(broker: Resource, settings: Settings) -> str:
    """Return the URL, without a path, of the Service that leads directly to the pods of a Broker's
    receiver."""
    return services.service_url(_direct_service_name(broker), broker.metadata.namespace, settings)


def channels_direct_service(receiver: str, settings: Settings) -> services.Manifest:
    """Return the manifest of the Service that leads directly to the pods of `receiver`, which
    KafkaChannels share. Like that receiver, it is never deleted."""
    return receiver_services.channels_receiver_pods_service(
        receiver, _channels_direct_service_name(receiver), HTTP_PORT, settings
    )


def channels_direct_host(receiver: str, settings: Settings) -> str:
    """Return the host of the Service that leads directly to a shared receiver's pods."""
    return services.service_host(
        _channels_direct_service_name(receiver), settings.namespace, settings
    )


def _direct_service_name(broker: Resource) -> str:
    """Return the name of the Service that leads directly to the pods of a Broker's receiver."""
    return names.child(broker.metadata.name, "-kn-receiver-direct")


def _channels_direct_service_name(receiver: str) -> str:
    """Return the name of the Service that leads directly to the pods of a receiver that channels
    share."""
    return names.child(receiver, "-direct")
