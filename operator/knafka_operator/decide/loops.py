"""Loops: what a Trigger sends that is declared to come back to its own Broker. Pure.

It ends after some rounds (`knafka.core.hops`), as dead letters in the durable topic, so this is a
warning. Not here: what comes back over other Brokers or applications, which only a dispatcher sees
(`delivery_status`).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from knafka.core.contract import Sink
from knafka.core.hops import MAX_HOPS
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.family import BROKERS, Family, family_of
from knafka_operator.model.resources import Destination, Trigger

LOOP_FREE: Final = "LoopFree"

_MEANT: Final = {
    "SubscriberLeadsBack": "every event that it gets comes back to it, without an end",
    "ReplyLeadsBack": "every reply comes back to it",
    "DeadLetterSinkLeadsBack": f"what fails comes back to it, {MAX_HOPS} times at most, and is kept"
    " in the dead-letter topic then; without a sink it is kept there at once",
}
"""By reason."""


def leads_back(
    destination: Destination, family: Family, namespace: str, broker: str, url: str | None = None
) -> bool:
    """Whether this destination, declared in `namespace`, is the Broker or channel of this name;
    `url` is its address, if it is known."""
    if (ref := destination.ref) is not None:
        where = ref.kind, ref.namespace or namespace, ref.name
        if where == (family.broker, namespace, broker) and not destination.uri:
            return True
    address = url or destination.uri or ""
    # A Broker's address ends so, whatever host leads there (KN-BRK-20).
    return family is BROKERS and urlsplit(address).path.rstrip("/") == f"/{namespace}/{broker}"


def loop(
    trigger: Trigger,
    document: Document,
    dead_letter_sink: Destination | None,
    subscriber_address: Sink | None,
    sink_address: Sink | None,
) -> Condition | None:
    """The warning about the first destination of a Trigger, stored as `document`, that leads back;
    None: none does."""
    family, namespace = family_of(trigger.kind), trigger.metadata.namespace
    for reason, destination, address in (
        ("SubscriberLeadsBack", trigger.spec.subscriber, subscriber_address),
        ("ReplyLeadsBack", family.reply_of(document), None),
        ("DeadLetterSinkLeadsBack", dead_letter_sink, sink_address),
    ):
        url = None if address is None else address.url
        if destination is None:
            continue
        if leads_back(destination, family, namespace, trigger.spec.broker, url):
            itself = "Broker" if family is BROKERS else "channel"
            message = f"it is its own {itself}: {_MEANT[reason]}"
            return Condition(LOOP_FREE, Status.FALSE, reason, message, Severity.WARNING)
    return None
