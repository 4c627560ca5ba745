"""Receiver services: builds the Knative Services of receivers from their contracts. Pure.

    Broker, Receiver                 -> the receiver's Service
    Receiver of many KafkaChannels   -> the Service of the receiver that they share
    a receiver, and a port           -> a Kubernetes Service that leads to its pods without Knative
    a Broker's annotations           -> how many pods its receiver may have

Not here: the common part of all functions' Services (`services`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from knafka.core import documents, names
from knafka.core.contract import Receiver
from knafka.settings import EVENT_TYPES, SERVICE_URL
from knafka_operator.functions.services import (
    BROKER_LABEL,
    KNATIVE_AUTOSCALING,
    MIN_SCALE,
    OIDC_DIGEST_INPUT,
    OWNER_LABEL,
    RECEIVER_ROLE,
    RECEIVER_VARIABLE,
    ROLE_LABEL,
    FunctionService,
    Manifest,
    compact_json,
    knative_service,
    owned_metadata,
    owner_key,
    owner_reference,
    service_url,
    with_common_labels,
)
from knafka_operator.installation.settings import Settings
from knafka_operator.model.family import BROKERS
from knafka_operator.model.maxima import LARGEST_INT32, Maxima
from knafka_operator.model.resources import KNAFKA_PREFIX, Broker, Resource, annotation_path

PROBED: Final = "knafka.dev/probed"
"""Key of `status.annotations` that records the last answered probe: for a KafkaChannel the address
that has answered, for any other object the Revision of its receiver. It is kept in the status,
since a probe wakes a receiver, and a restart of the operator should not wake them all."""
CHANNELS_RECEIVER: Final = "kafka-channel-receiver"
"""Name of the receiver of all KafkaChannels without a Secret."""
CHANNELS_OWNER: Final = "kafka-channels"
"""Value of `OWNER_LABEL` on objects that belong to all KafkaChannels together."""
DIRECT_LABEL: Final[Mapping[str, str]] = {f"{KNAFKA_PREFIX}direct": "true"}
"""Label of receivers' pods that senders reach past Knative; NetworkPolicies select by it."""
RECEIVER_SCALING: Final[Mapping[str, str]] = {
    "min-scale": "0",
    "max-scale": "10",
    # Scale by the rate of events, not by concurrent requests: those increase on a slow, busy node,
    # and each pod that starts for them makes it slower.
    "metric": "rps",
    "target": "500",
    # Requests pass the activator while there are one or two pods, as with Knative's own target.
    "target-burst-capacity": "1000",
}
"""Knative's autoscaling of a receiver, by key without `KNATIVE_AUTOSCALING`."""
_DIRECT_SCALING: Final[Mapping[str, str]] = {
    **RECEIVER_SCALING,
    "min-scale": "1",  # nothing starts a pod for senders that bypass Knative
    # Scale by the requests that a receiver holds open, one for each 50 events a second
    # (`knafka.receiver.direct`): 70 % of 10 are seven, so 350 events a second, as above.
    "metric": "concurrency",
    "target": "10",
    # Requests never pass the activator.
    "target-burst-capacity": "0",
}
"""Knative's autoscaling of a receiver that senders reach without Knative's proxy; keys as in
`RECEIVER_SCALING`."""


def receiver_name(broker: Resource) -> str:
    """Return the name of the Knative Service of a Broker's receiver."""
    return names.child(broker.metadata.name, "-kn-receiver")


def declared_scaling(owner: Resource) -> dict[str, str]:
    """Return the `autoscaling.knative.dev/...` annotations of a receiver's owner, such as a Broker;
    they are copied to the receiver."""
    annotations = owner.metadata.annotations
    return {key: value for key, value in annotations.items() if key.startswith(KNATIVE_AUTOSCALING)}


def receiver_service(
    broker: Broker,
    receiver: Receiver,
    secret: tuple[str, str] | None,
    settings: Settings,
    *,
    oidc: bool = False,
    tls: str | None = None,
    direct: bool = False,
    event_types: bool = False,
) -> Manifest:
    """Return the manifest of the Knative Service of a Broker's receiver, with the Broker's
    `autoscaling.knative.dev/...` annotations.

    `secret` is the mounted Secret's name and version (None: none). `oidc`: whether the receiver
    verifies senders' tokens; `tls`: the Secret with which it terminates TLS itself (None: it
    doesn't); `direct`: whether senders bypass Knative's proxy; `event_types`: whether it reports
    new event types.
    """
    defaults = _DIRECT_SCALING if direct else RECEIVER_SCALING
    scaling = {KNATIVE_AUTOSCALING + key: value for key, value in defaults.items()}
    declared = declared_scaling(broker)
    environment = {
        "FUNCTION_TARGET": "receive",
        RECEIVER_VARIABLE: compact_json(documents.dump(receiver)),
        **_event_types_variable(reported=event_types),
    }
    if direct:
        environment[SERVICE_URL] = service_url(
            receiver_name(broker), broker.metadata.namespace, settings
        )
    return knative_service(
        FunctionService(
            name=receiver_name(broker),
            ownership=owned_metadata(broker, BROKERS, settings),
            labels={
                ROLE_LABEL: RECEIVER_ROLE,
                BROKER_LABEL: names.child(broker.metadata.name, ""),
                **(DIRECT_LABEL if direct else {}),
            },
            annotations={**scaling, **declared},
            declared={
                **declared,
                **(OIDC_DIGEST_INPUT if oidc else {}),
                **({} if tls is None else {"tls": tls}),
                **({"direct": "true"} if direct else {}),
            },
            environment=environment,
            secret=secret,
            resources=settings.pods.receiver_resources,
            tracing=settings.tracing.variables_of(owner_key(broker)),
            oidc=oidc,
            tls=tls,
        ),
        settings,
    )


def _event_types_variable(*, reported: bool) -> Mapping[str, str]:
    """Return the environment variable that makes a receiver report new event types; empty if it
    shouldn't report them."""
    # Not in the contract: receivers of an earlier release, which run until they are rolled, would
    # refuse the unknown field and serve nothing.
    return {EVENT_TYPES: "enabled"} if reported else {}


def receiver_pods_service(broker: Resource, name: str, port: Mapping[str, Any]) -> Manifest:
    """Return the manifest of a Kubernetes Service `name` through which senders reach the pods of a
    Broker's receiver without Knative's proxy. `port` becomes the only entry of the new Service's
    `spec.ports`."""
    metadata = {
        "namespace": broker.metadata.namespace,
        "ownerReferences": [owner_reference(broker)],
    }
    return _pods_service(name, metadata, names.child(broker.metadata.name, ""), port)


def channels_receiver_pods_service(
    receiver: str, name: str, port: Mapping[str, Any], settings: Settings
) -> Manifest:
    """Return the manifest of a Kubernetes Service `name` through which senders reach the pods of
    `receiver` without Knative's proxy. `receiver` is the name of a receiver that KafkaChannels
    share. `port` becomes the only entry of the new Service's `spec.ports`; the namespace is that of
    `settings`."""
    return _pods_service(name, {"namespace": settings.namespace}, receiver, port)


def _pods_service(
    name: str, metadata: Mapping[str, Any], receiver: str, port: Mapping[str, Any]
) -> Manifest:
    """Return the manifest of a Kubernetes Service `name` that leads to one port of the receiver
    pods whose `BROKER_LABEL` is `receiver`. `metadata` replaces or adds fields of the usual
    metadata."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        # Without the role label, which marks functions.
        "metadata": {
            "name": name,
            "labels": with_common_labels({BROKER_LABEL: receiver}),
            **metadata,
        },
        "spec": {
            "selector": {ROLE_LABEL: RECEIVER_ROLE, BROKER_LABEL: receiver},
            "ports": [{"protocol": "TCP", **port}],
        },
    }


def channels_receiver_name(secret: str | None) -> str:
    """Return the name of the receiver of all KafkaChannels that use the Secret of this name (None:
    that use no Secret) (CHN-11)."""
    return CHANNELS_RECEIVER if secret is None else names.child(secret, f"-{CHANNELS_RECEIVER}")


def channels_receiver_service(
    receiver: Receiver,
    secret: tuple[str, str] | None,
    settings: Settings,
    *,
    oidc: bool = False,
    event_types: bool = False,
) -> Manifest:
    """Return the manifest of the Knative Service of a receiver that KafkaChannels share (CHN-23),
    which is never deleted. `Settings.direct` says whether senders bypass Knative's proxy.

    `secret` is the mounted Secret's name and version (None: none). `oidc`: whether the receiver
    verifies senders' tokens; `event_types`: whether it reports new event types.
    """
    metadata = {"namespace": settings.namespace, "labels": {OWNER_LABEL: CHANNELS_OWNER}}
    name = channels_receiver_name(None if secret is None else secret[0])
    direct = settings.direct
    scaling = _DIRECT_SCALING if direct else RECEIVER_SCALING
    environment = {
        "FUNCTION_TARGET": "receive",
        RECEIVER_VARIABLE: compact_json(documents.dump(receiver)),
        **_event_types_variable(reported=event_types),
    }
    if direct:
        environment[SERVICE_URL] = service_url(name, settings.namespace, settings)
    return knative_service(
        FunctionService(
            name=name,
            ownership=metadata,
            labels={
                ROLE_LABEL: RECEIVER_ROLE,
                BROKER_LABEL: name,
                **(DIRECT_LABEL if direct else {}),
            },
            annotations={KNATIVE_AUTOSCALING + key: value for key, value in scaling.items()},
            declared={
                **(OIDC_DIGEST_INPUT if oidc else {}),
                **({"direct": "true"} if direct else {}),
            },
            environment=environment,
            secret=secret,
            resources=settings.pods.receiver_resources,
            tracing=settings.tracing.desired,  # all channels at once
            oidc=oidc,
        ),
        settings,
    )


# The numbers of pods that a Broker's annotations may declare.

_POD_COUNTS: Final = frozenset({"minscale", "maxscale", "initialscale", "activationscale"})
"""Knative's annotations that are numbers of pods, in lower case and without dashes: `minscale`
stands for `min-scale` and `minScale`."""


def min_receiver_pods(annotations: Mapping[str, str], default: int) -> int:
    """Return the min-scale that a Broker's annotations declare for its receiver; `default` if they
    declare none, and 0 for a text that is no number, which Knative refuses."""
    return _pod_count(annotations.get(MIN_SCALE, str(default))) or 0


def check_receiver_scaling(annotations: Mapping[str, str], maxima: Maxima) -> None:
    """Check the numbers of pods in `autoscaling.knative.dev/...` annotations against the maxima.
    Raises `InvalidDocument`. Values that are no numbers are left for Knative to refuse."""
    for key, text in annotations.items():
        name = key.removeprefix(KNATIVE_AUTOSCALING).lower().replace("-", "")
        if not key.startswith(KNATIVE_AUTOSCALING) or name not in _POD_COUNTS:
            continue
        pods = _pod_count(text)
        if pods is not None:
            maxima.check_scale(pods, annotation_path(key))


def _pod_count(text: str) -> int | None:
    """Parse the value of an annotation that is a number of pods; None if it is no number.

    A number of ten or more digits counts as the largest that Kubernetes takes: `int()` refuses
    very long ones."""
    text = text.strip()
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) < len(str(LARGEST_INT32)) else LARGEST_INT32
