"""Direct: senders reach a receiver's pods past Knative's proxy (issue 37). Pure.

    a Broker's annotation knafka.dev/direct: "true" or "false"; without it, as the installation says
    true    a Service of ours leads to the port of the receiver's pods; status.address names it once
            it has answered; one pod always runs, and Knative scales by what the receiver shows it
    false   Knative's way, from zero

Not here: how a receiver shows its load (`knafka.receiver.direct`).
"""

from __future__ import annotations

from typing import Final

from knafka.core import names
from knafka.core.errors import InvalidDocument
from knafka_operator.decide import services
from knafka_operator.decide.receiver_scaling import least_pods
from knafka_operator.decide.services import MIN_SCALE
from knafka_operator.model.resources import OURS, Resource, annotation_path
from knafka_operator.model.settings import Settings

DIRECT: Final = f"{OURS}direct"
"""Annotation of a Broker."""
PORT: Final = 8080
"""Where Knative has functions listen."""
_WORDS: Final = {"true": True, "false": False}


def is_direct(broker: Resource, settings: Settings) -> bool:
    """Whether a Broker's senders go past Knative's proxy; where only the installation says so, not
    those of one that may sleep. Raises `InvalidDocument`."""
    word = broker.metadata.annotations.get(DIRECT)
    may_sleep = least_pods(broker.metadata.annotations, 1) < 1
    if word is None:
        return settings.direct and not may_sleep
    direct = _WORDS.get(word.strip().lower())
    if direct is None:
        problem = f"invalid value: {word:.80}: want {', '.join(_WORDS)}"
        raise InvalidDocument(annotation_path(DIRECT), problem)
    if direct and may_sleep:
        problem = f"Knative wakes no pod for its senders: want {MIN_SCALE} of 1 or more, or none"
        raise InvalidDocument(annotation_path(DIRECT), problem)
    return direct


def direct_service(broker: Resource) -> services.Manifest:
    """The Service that leads to the port of the receiver's pods."""
    return services.receiver_pods_service(
        broker, _name(broker), {"name": "http", "port": 80, "targetPort": PORT}
    )


def direct_url(broker: Resource, settings: Settings) -> str:
    """Without a path."""
    return services.url(_name(broker), broker.metadata.namespace, settings)


def _name(broker: Resource) -> str:
    return names.child(broker.metadata.name, "-kn-receiver-direct")
