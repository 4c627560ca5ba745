"""Direct: senders reach a receiver's pods past Knative's proxy (issue 37). Pure.

    a Broker's annotation knafka.dev/direct: "true" or "false"; without it, as the installation says
    true    a Service of ours leads to the port of the receiver's pods; status.address names it once
            it has answered; one pod always runs, and Knative scales by what the receiver shows it
    false   Knative's way, from zero

KafkaChannels share receivers, so the installation says how these are scaled. A channel's host leads
to the pods then, unless its annotation is "false"; its address stays.

Not here: how a receiver shows its load (`knafka.receiver.direct`).
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
"""Annotation of a Broker or KafkaChannel."""
FUNCTION_PORT: Final = 8080
"""Where Knative has functions listen."""
HTTP_PORT: Final = {"name": "http", "port": 80, "targetPort": FUNCTION_PORT}
_BOOLEANS: Final = {"true": True, "false": False}


def is_direct(broker: Resource, settings: Settings) -> bool:
    """Whether a Broker's senders go past Knative's proxy.

    Its annotation decides; without one, the installation's setting, except for a Broker that may
    scale to zero. Raises `InvalidDocument`.
    """
    direct = _declared_direct(broker)
    may_sleep = min_receiver_pods(broker.metadata.annotations, 1) < 1
    if direct is None:
        return settings.direct and not may_sleep
    if direct and may_sleep:
        problem = f"Knative wakes no pod for its senders: want {MIN_SCALE} of 1 or more, or none"
        raise InvalidDocument(annotation_path(DIRECT), problem)
    return direct


def is_direct_channel(channel: Resource, settings: Settings) -> bool:
    """Whether a KafkaChannel's senders go past Knative's proxy. Raises `InvalidDocument`."""
    direct = _declared_direct(channel)
    if direct and not settings.direct:
        problem = "its receiver serves other channels, too: set the operator's KNAFKA_DIRECT"
        raise InvalidDocument(annotation_path(DIRECT), problem)
    return settings.direct if direct is None else direct


def _declared_direct(resource: Resource) -> bool | None:
    """The annotation's value; None if it isn't there. Raises `InvalidDocument`."""
    if (word := resource.metadata.annotations.get(DIRECT)) is None:
        return None
    if (direct := _BOOLEANS.get(word.strip().lower())) is None:
        problem = f"invalid value: {word:.80}: want {', '.join(_BOOLEANS)}"
        raise InvalidDocument(annotation_path(DIRECT), problem)
    return direct


def direct_service(broker: Resource) -> services.Manifest:
    """The Service that leads to the port of the receiver's pods."""
    return receiver_services.receiver_pods_service(broker, _direct_service_name(broker), HTTP_PORT)


def direct_url(broker: Resource, settings: Settings) -> str:
    """The URL of the Service that leads to a Broker's receiver directly, without a path."""
    return services.service_url(_direct_service_name(broker), broker.metadata.namespace, settings)


def channels_direct_service(receiver: str, settings: Settings) -> services.Manifest:
    """The Service that leads to the pods of `receiver`, which KafkaChannels share. It is never
    deleted, like that receiver."""
    return receiver_services.channels_receiver_pods_service(
        receiver, _channels_direct_service_name(receiver), HTTP_PORT, settings
    )


def channels_direct_host(receiver: str, settings: Settings) -> str:
    """The host of the Service that leads past Knative to a receiver's pods."""
    return services.service_host(
        _channels_direct_service_name(receiver), settings.namespace, settings
    )


def _direct_service_name(broker: Resource) -> str:
    return names.child(broker.metadata.name, "-kn-receiver-direct")


def _channels_direct_service_name(receiver: str) -> str:
    return names.child(receiver, "-direct")
