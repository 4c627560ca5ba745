"""Triggers as the command line asks about them: what they want, and whether they want an event.

All from the declared documents; nothing has to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from knafka.core.contract import (
    CESQL,
    All,
    Any_,
    Exact,
    Filter,
    Not,
    Prefix,
    Suffix,
)
from knafka.core.errors import KnafkaError
from knafka.core.event import Event
from knafka.core.filters import why_not
from knafka_client.declared.manifests import DeclaredObjects, ObjectIdentity
from knafka_operator.model.resources import DELIVERY_ORDER, PAUSED, Destination, Trigger


class Unknown(KnafkaError):
    """No such Trigger (or Broker); the text names those that there are."""


def named(text: str, kind: str) -> ObjectIdentity:
    """Parse `NAMESPACE/NAME`, or `NAME` in the namespace `default`, as the identity of an object of
    this kind."""
    namespace, slash, name = text.rpartition("/")
    return ObjectIdentity(kind, namespace if slash else "default", name)


def find(declared: DeclaredObjects, text: str) -> Trigger:
    """The Trigger of this name. Raises `Unknown`."""
    identity = named(text, "Trigger")
    trigger, _ = declared.resources.get(identity, (None, None))
    if isinstance(trigger, Trigger):
        return trigger
    known = [trigger.id for trigger in declared.all(Trigger)]
    raise Unknown(f"there is no {identity}: there is {', '.join(known) or 'no Trigger at all'}")


def of_broker(declared: DeclaredObjects, broker: str | None) -> Sequence[Trigger]:
    """The Triggers of one Broker, or all. Raises `Unknown` if it has none."""
    declared_triggers: list[Trigger] = list(declared.all(Trigger))
    if broker is None:
        return declared_triggers
    _, *broker_id = named(broker, "Broker")
    its = [
        trigger
        for trigger in declared_triggers
        if [trigger.metadata.namespace, trigger.spec.broker] == broker_id
    ]
    if its:
        return its
    known = sorted(
        {f"{trigger.metadata.namespace}/{trigger.spec.broker}" for trigger in declared_triggers}
    )
    raise Unknown(f"no Trigger is of the Broker {broker}: there is {', '.join(known) or 'none'}")


def refusals(trigger: Trigger, event: Event) -> Sequence[str]:
    """The clauses of the Trigger's filters that don't match the event; empty if all do."""
    return why_not(trigger.spec.filter, trigger.spec.filters, event.attributes)


def filters_in_short(trigger: Trigger) -> str:
    """All of the Trigger's filters on one line."""
    if trigger.spec.filters:
        return " and ".join(map(_in_short, trigger.spec.filters))
    attributes = trigger.spec.filter.attributes
    return (
        " and ".join(f"{name}={value or '*'}" for name, value in attributes.items()) or "all events"
    )


def _in_short(spec: Filter) -> str:
    match spec:
        case Exact(exact=pairs):
            return " and ".join(f"{name}={value}" for name, value in pairs.items())
        case Prefix(prefix=pairs):
            return " and ".join(f"{name}={value}*" for name, value in pairs.items())
        case Suffix(suffix=pairs):
            return " and ".join(f"{name}=*{value}" for name, value in pairs.items())
        case All(all=inner):
            return f"({' and '.join(map(_in_short, inner))})"
        case Any_(any=inner):
            return f"({' or '.join(map(_in_short, inner))})"
        case Not(not_=inner_filter):
            return f"not {_in_short(inner_filter)}"
        case CESQL(cesql=text):
            return text
        case _:
            assert_never(spec)


def subscriber_in_short(destination: Destination) -> str:
    """The reference or the URL, as it is declared."""
    if destination.ref is None:
        return destination.uri or ""
    where = f"{destination.ref.kind} {destination.ref.name}"
    return f"{where} {destination.uri}" if destination.uri else where


def is_paused(trigger: Trigger) -> bool:
    """Whether a Trigger or Subscription is declared paused."""
    return trigger.metadata.annotations.get(PAUSED) == "true"


def order_in_short(trigger: Trigger) -> str:
    return trigger.metadata.annotations.get(DELIVERY_ORDER, "key")
