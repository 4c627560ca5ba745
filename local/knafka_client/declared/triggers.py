"""Finds declared Triggers, describes them, and tests whether they match an event.

Only the declared documents are needed; nothing has to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from knafka.core.errors import KnafkaError
from knafka.core.events.event import Event
from knafka.core.filters.declared_filters import (
    CESQL,
    All,
    Any_,
    Exact,
    Filter,
    Not,
    Prefix,
    Suffix,
)
from knafka.core.filters.predicates import why_not
from knafka_client.declared.manifests import DeclaredObjects, ObjectIdentity
from knafka_operator.model.resources import DELIVERY_ORDER, PAUSED_ANNOTATION, Destination, Trigger


class UnknownObject(KnafkaError):
    """No declared object has the name that the user gave; the text names those that exist."""


def parse_name(text: str, kind: str) -> ObjectIdentity:
    """Parse `NAMESPACE/NAME`, or `NAME` in the namespace `default`, as an identity of this kind."""
    namespace, slash, name = text.rpartition("/")
    return ObjectIdentity(kind, namespace if slash else "default", name)


def find_trigger(declared: DeclaredObjects, text: str) -> Trigger:
    """Return the declared Trigger named `text`: `NAMESPACE/NAME`, or `NAME` in `default`. Raises
    `UnknownObject`."""
    identity = parse_name(text, "Trigger")
    trigger, _ = declared.resources.get(identity, (None, None))
    if isinstance(trigger, Trigger):
        return trigger
    known_names = [trigger.id for trigger in declared.of_type(Trigger)]
    raise UnknownObject(
        f"there is no {identity}: there is {', '.join(known_names) or 'no Trigger at all'}"
    )


def triggers_of_broker(declared: DeclaredObjects, broker: str | None) -> Sequence[Trigger]:
    """Return the declared Triggers of one Broker (`NAMESPACE/NAME`, or `NAME` in `default`). If
    `broker` is None, return all Triggers.

    Raises `UnknownObject` if the Broker has no Trigger.
    """
    declared_triggers: list[Trigger] = list(declared.of_type(Trigger))
    if broker is None:
        return declared_triggers
    _, namespace, broker_name = parse_name(broker, "Broker")
    matching_triggers = [
        trigger
        for trigger in declared_triggers
        if (trigger.metadata.namespace, trigger.spec.broker) == (namespace, broker_name)
    ]
    if matching_triggers:
        return matching_triggers
    known_brokers = sorted(
        {f"{trigger.metadata.namespace}/{trigger.spec.broker}" for trigger in declared_triggers}
    )
    raise UnknownObject(
        f"no Trigger is of the Broker {broker}: there is {', '.join(known_brokers) or 'none'}"
    )


def refusing_clauses(trigger: Trigger, event: Event) -> Sequence[str]:
    """Return a text for each filter clause of a Trigger that doesn't match the event; empty if all
    match."""
    return why_not(trigger.spec.filter, trigger.spec.filters, event.attributes)


def filters_text(trigger: Trigger) -> str:
    """Return a Trigger's filters on one line: `spec.filters`, or else the attributes of
    `spec.filter`. `*` stands for an attribute whose value may be any."""
    filters = trigger.spec.filters
    if len(filters) == 1 and isinstance(filters[0], CESQL):
        return filters[0].cesql  # needs no parentheses, as nothing stands beside it
    if filters:
        return " and ".join(map(_filter_text, filters))
    attributes = trigger.spec.filter.attributes
    return (
        " and ".join(f"{name}={value or '*'}" for name, value in attributes.items()) or "all events"
    )


def _filter_text(spec: Filter) -> str:
    """Return one filter as text, such as `(type=order* and not source=test)` for an `all`."""
    match spec:
        case Exact() | Prefix() | Suffix():
            return " and ".join(_attribute_texts(spec))
        case All(all=inner):
            return f"({' and '.join(map(_filter_text, inner))})"
        case Any_(any=inner):
            return f"({' or '.join(map(_filter_text, inner))})"
        case Not(not_=Exact() | Prefix() | Suffix() as negated):
            texts = _attribute_texts(negated)
            return f"not {texts[0]}" if len(texts) == 1 else f"not ({' and '.join(texts)})"
        case Not(not_=negated):
            return f"not {_filter_text(negated)}"
        case CESQL(cesql=expression):
            return f"({expression})"
        case _:
            assert_never(spec)


def _attribute_texts(spec: Exact | Prefix | Suffix) -> Sequence[str]:
    """Return a text for each attribute that a filter compares, such as `type=order*` for a
    prefix."""
    match spec:
        case Exact(exact=values):
            return [f"{name}={value}" for name, value in values.items()]
        case Prefix(prefix=values):
            return [f"{name}={value}*" for name, value in values.items()]
        case Suffix(suffix=values):
            return [f"{name}=*{value}" for name, value in values.items()]
        case _:
            assert_never(spec)


def destination_text(destination: Destination) -> str:
    """Return the destination as it is declared: its URL, or a reference such as `Service shop`,
    followed by the path that it declares."""
    if destination.ref is None:
        return destination.uri or ""
    reference = f"{destination.ref.kind} {destination.ref.name}"
    return f"{reference} {destination.uri}" if destination.uri else reference


def is_paused(trigger: Trigger) -> bool:
    """Whether a Trigger (or a Subscription in the form of one) is declared paused."""
    return trigger.metadata.annotations.get(PAUSED_ANNOTATION) == "true"


def order_name(trigger: Trigger) -> str:
    """Return the name of a Trigger's delivery order: what its annotation declares; without the
    annotation, the default `key` (order per key)."""
    return trigger.metadata.annotations.get(DELIVERY_ORDER, "key")
