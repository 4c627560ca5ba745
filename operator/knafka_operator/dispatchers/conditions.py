"""Trigger conditions: checks what a Trigger needs to be Ready, and builds its informational
conditions. Pure.

    SubscriptionReady ...   its Broker, its dependency, its namespace's maximum: else not Ready
    LoopFree                a destination leads back to its Broker: a warning, as the loop ends
                            after some rounds (`knafka.core.events.hops`) in the dead-letter topic
    Delivering              a problem of the running delivery: a warning; or that it is paused

Not here: dead letters (`dead_letters`), and loops over other Brokers or applications, which only
dispatchers notice; `Delivering` reports them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Protocol
from urllib.parse import urlsplit

from pydantic import BeforeValidator

from knafka.core.contract import Sink
from knafka.core.documents import parse
from knafka.core.events.hops import FIRST_TTL, MAX_HOPS
from knafka.core.numbering import partition_of
from knafka_operator.decisions.field_errors import (
    Problem,
    as_json,
    raise_all,
    schema_problems,
    upstream_annotation_path,
)
from knafka_operator.decisions.status import DELIVERING, NotReady, is_ready, why_not_ready
from knafka_operator.model import resources
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.family import BROKERS, Family, family_of
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import (
    Destination,
    Metadata,
    Namespace,
    NonEmpty,
    Observed,
    Trigger,
)
from knafka_operator.scale.decide import ScalingStatus

DEPENDENCY: Final = "knative.dev/dependency"
"""Annotation of a Trigger: an ObjectReference as JSON; the Trigger isn't Ready before that object
is."""
LAG: Final = "knafka.dev/lag"
REPLICAS: Final = "knafka.dev/replicas"
SCALING: Final = "knafka.dev/scaling"
"""Keys of `status.annotations`: lag, number of drains, and the last scaling decision with its
reason."""

LAG_INTERVAL: Final = 60.0
"""Seconds between two updates of the lag in a Trigger's status, unless its drains begin or end:
each write goes to every replica of etcd and to every watch. Metrics have the current lag."""

DELIVERY_PAUSED: Final = Condition(
    DELIVERING,
    Status.FALSE,
    "Paused",
    f'its annotation {resources.PAUSED_ANNOTATION} is "true": nothing is delivered, and its '
    "events wait in Kafka",
    Severity.INFO,
)

LOOP_FREE: Final = "LoopFree"
"""Type of the condition that warns of a loop."""

_LOOP_MESSAGES: Final = {
    "SubscriberLeadsBack": "every event that it delivers comes back to it, without an end",
    "ReplyLeadsBack": "every reply comes back to it",
    "DeadLetterSinkLeadsBack": f"an event that fails comes back to it up to {MAX_HOPS} times before"
    " the dead-letter topic keeps it; without a sink the topic keeps it at once",
}
"""By reason of `LoopFree`: what follows from the loop."""


# Requirements.


class TriggerDependency(Observed):
    """The object that a Trigger waits for (KN-TRG-13); it is in the Trigger's namespace."""

    api_version: NonEmpty
    kind: NonEmpty
    name: NonEmpty
    namespace: Annotated[Namespace | None, BeforeValidator(lambda value: value or None)] = None
    """The object's namespace in the annotation; None, for an empty or missing one: the Trigger's
    own."""


def declared_dependency(metadata: Metadata) -> TriggerDependency | None:
    """Return the object that a Trigger's annotation names as its dependency; None: there is no
    annotation. Raises `InvalidDocument`."""
    text = metadata.annotations.get(DEPENDENCY)
    if text is None:
        return None
    raise_all(set(dependency_problems(text, metadata.namespace)))
    return parse(TriggerDependency, json.loads(text))


def dependency_problems(text: str, namespace: str) -> Iterator[Problem]:
    """Yield the problems of `text`, the value of the annotation `DEPENDENCY` of a Trigger in this
    namespace."""
    path = upstream_annotation_path(DEPENDENCY)
    why_no_object = "want an object"
    try:
        reference = json.loads(text)
    except (ValueError, RecursionError) as error:
        reference, why_no_object = None, str(error)
    if not isinstance(reference, Mapping):
        message = "The provided annotation was not a corev1.ObjectReference"
        yield Problem(f"{message}: {as_json(text[:300])}", why_no_object, path)
        return
    yield from schema_problems(TriggerDependency, reference, path)
    if reference.get("namespace") not in (None, "", namespace):
        message = f'Namespace must be empty or equal to the trigger namespace "{namespace}"'
        yield Problem(message, "", f"{path}.namespace")


class BrokerReadiness(Protocol):
    """Readiness of a Broker that has its topic."""

    @property
    def ready(self) -> str:
        """Status of the `Ready` condition: True, False or Unknown."""
        ...

    @property
    def why_not(self) -> str:
        """Reason and message of the `Ready` condition; only meaningful if that isn't True."""
        ...


def check_broker(
    family: Family,
    broker: str,
    stopped: str | None,
    readiness: BrokerReadiness | None,
    broker_document: Mapping[str, Any] | None,
) -> None:
    """Check that a Trigger's Broker or channel of this name is Ready (KN-TRG-01, KN-SUB-01); raises
    `NotReady`, transient while the Broker is only Unknown or has no topic yet.

    `stopped` says why the Broker may not use its topic; None: it may. `readiness` is None while the
    Broker has no topic. In that case `broker_document`, the stored Broker, says why; None: the
    Broker doesn't exist.
    """
    name, short_kind = f'{family.broker} "{broker}"', family.short_name
    if stopped is not None:
        message = f"{name} is not Ready: ExternalTopicNotAllowed {stopped}"
        raise NotReady(f"{short_kind}NotReady", message)
    if readiness is None:
        if broker_document is None:
            raise NotReady(f"{short_kind}DoesNotExist", f"{name} does not exist")
        raise NotReady(
            f"{short_kind}NotConfigured",
            f"{name} has no topic yet: {why_not_ready(broker_document)}",
            transient=True,
        )
    if readiness.ready != "True":
        message = f"{name} is not Ready: {readiness.why_not}"
        raise NotReady(f"{short_kind}NotReady", message, transient=readiness.ready != "False")


def check_dependency(trigger: Trigger, dependency: Mapping[str, Any] | None) -> None:
    """Check that the object on which a Trigger depends is Ready (KN-TRG-13). `dependency` is that
    object's stored document; None: it doesn't exist. Raises `NotReady` if it isn't Ready or doesn't
    exist; does nothing if the Trigger names no dependency."""
    reference = declared_dependency(trigger.metadata)
    if reference is None:
        return
    dependency_name = f"{reference.kind:.100} {trigger.metadata.namespace}/{reference.name:.253}"
    if dependency is None:
        raise NotReady("DependencyDoesNotExist", f"{dependency_name} does not exist")
    if not is_ready(dependency):
        raise NotReady(
            "DependencyNotReady", f"{dependency_name} is not Ready: {why_not_ready(dependency)}"
        )


def check_min_scale(declared: int, granted: int, others_sum: int, maxima: Maxima) -> None:
    """Check that a Trigger's `declared` min-scale fits into the maximum of its namespace.
    `others_sum` is the sum of the min-scales of the namespace's other Triggers; `granted` is the
    min-scale that the Trigger has had until now, and may always keep. Raises `NotReady`."""
    if declared > granted and declared + others_sum > maxima.namespace_min_scale:
        raise NotReady(
            "NamespaceMinScale",
            f"min-scale {declared} and the {others_sum} of its namespace's others are more than "
            f"the {maxima.namespace_min_scale} pods that may always run in a namespace "
            "(KNAFKA_MAX_NAMESPACE_MIN_SCALE): declare less here, or for the others",
        )


# Loops.


def leads_back(
    destination: Destination, family: Family, namespace: str, broker: str, url: str | None = None
) -> bool:
    """Whether a destination declared in `namespace` is the Broker or channel named `broker` in that
    namespace, so that events sent there come back: by the destination's reference or, for a Broker,
    by the path of its address. `url` is the destination's resolved address (None: not known)."""
    if (ref := destination.ref) is not None:
        referenced = ref.kind, ref.namespace or namespace, ref.name
        # With a `uri`, the address is another one than the Broker's own.
        if referenced == (family.broker, namespace, broker) and not destination.uri:
            return True
    address = url or destination.uri or ""
    # A Broker's address has this path, at any host (KN-BRK-20).
    return family is BROKERS and urlsplit(address).path.rstrip("/") == f"/{namespace}/{broker}"


def loop_condition(
    trigger: Trigger,
    document: Document,
    dead_letter_sink: Destination | None,
    subscriber_address: Sink | None,
    sink_address: Sink | None,
) -> Condition | None:
    """Return the warning `LoopFree` about the first destination of a Trigger that leads back to its
    Broker; None: none does. `document` is the stored Trigger; `subscriber_address` and
    `sink_address` are the resolved addresses of subscriber and dead letter sink, None if not
    known."""
    family, namespace = family_of(trigger.kind), trigger.metadata.namespace
    for reason, destination, address in (
        ("SubscriberLeadsBack", trigger.spec.subscriber, subscriber_address),
        ("ReplyLeadsBack", family.reply_of(document), None),
        ("DeadLetterSinkLeadsBack", dead_letter_sink, sink_address),
    ):
        if destination is None:
            continue
        url = None if address is None else address.url
        if leads_back(destination, family, namespace, trigger.spec.broker, url):
            own_kind = "Broker" if family is BROKERS else "channel"
            message = f"it is its own {own_kind}: {_LOOP_MESSAGES[reason]}"
            return Condition(LOOP_FREE, Status.FALSE, reason, message, Severity.WARNING)
    return None


# The scaler's view: the scaler decides how many dispatchers deliver a Trigger at a time.


def scaling_annotations(scaling: ScalingStatus | None) -> dict[str, str | None]:
    """Return the status annotations with the scaler's view of a Trigger, `scaling`. With `scaling`
    None, as the Trigger isn't scaled, all their values are None, which removes them."""
    if scaling is None:
        return dict.fromkeys((LAG, REPLICAS, SCALING))
    return {
        LAG: "unknown" if scaling.lag is None else str(scaling.lag),
        REPLICAS: str(scaling.replicas),
        SCALING: f"{scaling.scale.replicas}: {scaling.scale.reason}",
    }


def delivering_condition(scaling: ScalingStatus) -> Condition:
    """Return the condition `Delivering`: True, or False with the first problem of the delivery. It
    is a warning or information, which doesn't affect Ready."""

    def delivering_warning(reason: str, message: str) -> Condition:
        """Return `Delivering` as a warning; the message is cut to 1,000 characters."""
        return Condition(DELIVERING, Status.FALSE, reason, message[:1000], Severity.WARNING)

    if scaling.paused:
        return DELIVERY_PAUSED
    if scaling.error is not None:
        return delivering_warning("DrainFailed", scaling.error)
    if scaling.counts.congestion is not None:
        waiting = "a few events probe the subscriber, the others wait in Kafka"
        return delivering_warning(
            "SubscriberUnavailable", f"{scaling.counts.congestion}: {waiting}"
        )
    if scaling.counts.loop is not None:
        loop_end = f"it ends after {FIRST_TTL} replies or {MAX_HOPS} dead letters in a row"
        return delivering_warning(
            "Loop", f"{scaling.counts.loop}: {loop_end}, as dead letters in its topic"
        )
    if scaling.beyond_end:
        partitions = ", ".join(map(str, sorted(map(partition_of, scaling.beyond_end))))
        return delivering_warning(
            "CommittedBeyondEnd",
            f"the offsets committed in partitions {partitions} are beyond the topic's end: it was "
            "recreated, or has lost its last records; they are read from the cut, or the start",
        )
    return Condition(DELIVERING, Status.TRUE, severity=Severity.WARNING)
