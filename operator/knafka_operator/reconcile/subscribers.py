"""Subscribers: the Subscriptions of a KafkaChannel as it has them in its spec and status.

Not here: what becomes of a Subscription (`triggers`), and its words (`decide.subscription`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knafka_operator.decide.subscription import Subscribed
from knafka_operator.model.cluster import Document
from knafka_operator.model.identity import Identity
from knafka_operator.reconcile.state import States


def subscribed(channel: Document, states: States) -> list[Subscribed]:
    """Its Subscriptions, by UID (KN-CHN-05, DSP-10).

    One that wasn't reconciled since the operator began is as the channel has it: an operator that
    starts takes nobody away.
    """
    declared = _by_uid((channel.get("spec") or {}).get("subscribers"))
    reported = _by_uid((channel.get("status") or {}).get("subscribers"))
    found = dict[str, Subscribed]()
    for each in states.triggers_of(Identity.of(channel)):
        record = states.triggers.get(each)
        if record is None or record.gone:
            continue
        if record.subscribed is not None:
            found[record.uid] = record.subscribed
        elif record.uid in reported:
            found[record.uid] = Subscribed(declared.get(record.uid), reported[record.uid])
    return [found[uid] for uid in sorted(found)]


def _by_uid(subscribers: object) -> dict[str, Mapping[str, Any]]:
    """Entries of a channel, whatever somebody has made of them."""
    found = subscribers if isinstance(subscribers, list | tuple) else ()
    return {str(each.get("uid")): each for each in found if isinstance(each, Mapping)}
