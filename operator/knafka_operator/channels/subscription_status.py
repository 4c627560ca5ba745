"""Subscription: translates a Trigger's decision to a Subscription's status and to its entries in
the channel. Pure.

A Subscription is decided as a Trigger (`triggers.decide`). Here it gets upstream's words
(KN-SUB-03, KN-SUB-06), and its entries in the channel's `spec.subscribers` and `status.subscribers`
(KN-CHN-05, DSP-10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from knafka.core.contract import Egress, Sink
from knafka_operator.decisions.status import (
    ADDED_TO_CHANNEL,
    BROKER_READY,
    CHANNEL_READY,
    DEAD_LETTER_SINK_RESOLVED,
    DELIVERING,
    OIDC_IDENTITY_CREATED,
    REFERENCES_RESOLVED,
    ROLLED_OUT,
    SUBSCRIBER_RESOLVED,
    SUBSCRIPTION_CONDITIONS,
    SUBSCRIPTION_READY,
    ConditionSet,
)
from knafka_operator.dispatchers.conditions import LOOP_FREE
from knafka_operator.dispatchers.dead_letters import DEAD_LETTERS_TYPE
from knafka_operator.installation.handler import EVENTING_FINALIZER, Handler, Handling
from knafka_operator.model.channels import ChannelEntry, is_entry
from knafka_operator.model.conditions import Status

_SUBSCRIPTION_TYPES: Final = {
    BROKER_READY: CHANNEL_READY,
    SUBSCRIPTION_READY: ADDED_TO_CHANNEL,
}
"""Conditions with another type on a Subscription: by the Trigger's type, the Subscription's."""
_REFERENCES: Final = (SUBSCRIBER_RESOLVED, DEAD_LETTER_SINK_RESOLVED)
"""Conditions of a Trigger that become one condition of a Subscription, `ReferencesResolved`."""
_RESOLVED: Final = (
    "subscriberUri",
    "replyUri",
    "deadLetterSinkUri",
    "subscriberCACerts",
    "replyCACerts",
    "deadLetterSinkCACerts",
)
"""Fields of `status.physicalSubscription` that are always written. Without a value they are null,
except `subscriberUri`, which is then empty: upstream's schema requires a text (KN-SUB-03)."""
_AUDIENCES: Final = ("subscriberAudience", "replyAudience", "deadLetterSinkAudience")
"""Fields of `status.physicalSubscription` that are written only with a value."""


def subscription_conditions(decided: ConditionSet) -> ConditionSet:
    """Translate `decided`, the conditions of a Subscription that was decided as a Trigger, to a
    Subscription's types. `ReferencesResolved` repeats the condition of the first reference that
    isn't resolved; if all are, that of the subscriber."""
    trigger_conditions, translated = decided.by_type(), ConditionSet(SUBSCRIPTION_CONDITIONS)
    for trigger_type, subscription_type in _SUBSCRIPTION_TYPES.items():
        translated.set(replace(trigger_conditions[trigger_type], type=subscription_type))
    unresolved = [
        trigger_conditions[condition_type]
        for condition_type in _REFERENCES
        if trigger_conditions[condition_type].status is not Status.TRUE
    ]
    reference = next(iter(unresolved), trigger_conditions[SUBSCRIBER_RESOLVED])
    translated.set(replace(reference, type=REFERENCES_RESOLVED))
    # These have the same type for both, and not every object has them.
    for type_ in (OIDC_IDENTITY_CREATED, DELIVERING, DEAD_LETTERS_TYPE, LOOP_FREE, ROLLED_OUT):
        if type_ in trigger_conditions:
            translated.set(trigger_conditions[type_])
    return translated


def subscription_status(decided: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `decided`, a Trigger's status without conditions, to a Subscription's: the resolved
    addresses move to `physicalSubscription`."""
    physical_keys = {*_RESOLVED, *_AUDIENCES}
    other_fields = {key: value for key, value in decided.items() if key not in physical_keys}
    physical = {key: decided.get(key) or None for key in _RESOLVED}
    physical |= {key: decided[key] for key in _AUDIENCES if decided.get(key)}
    physical["subscriberUri"] = physical["subscriberUri"] or ""  # required: not null
    return {**other_fields, "physicalSubscription": physical}


def channel_entry(
    document: Mapping[str, Any], egress: Egress | None, conditions: ConditionSet
) -> ChannelEntry:
    """Return a Subscription's two entries in its channel, one of `spec.subscribers` and one of
    `status.subscribers`. `egress` is the Subscription's delivery; None: it isn't delivered.

    The entry for `spec.subscribers` is None if the Subscription isn't delivered, or was itself made
    from that entry. The entry for `status.subscribers` is ready when `AddedToChannel` is True: the
    offsets are committed, and the dispatcher delivers as declared (DSP-10).
    """
    metadata, added = document["metadata"], conditions.by_type()[ADDED_TO_CHANNEL]
    identity = {"uid": metadata.get("uid", "")}
    generation = metadata.get("generation", 0)
    reported = {**identity, "observedGeneration": generation, "ready": str(added.status)}
    if added.message:
        reported["message"] = added.message
    if egress is None or is_entry(document):
        return ChannelEntry(None, reported)
    declared: dict[str, Any] = {
        **identity,
        "generation": generation,
        "name": metadata["name"],
        "subscriberUri": egress.subscriber.url,
    }
    if egress.subscriber.ca_certs:
        declared["subscriberCACerts"] = egress.subscriber.ca_certs
    if egress.subscriber.audience is not None:
        declared["subscriberAudience"] = egress.subscriber.audience
    if egress.reply is not None:
        declared["replyUri"] = egress.reply.url
        if egress.reply.ca_certs:
            declared["replyCACerts"] = egress.reply.ca_certs
        if egress.reply.audience is not None:
            declared["replyAudience"] = egress.reply.audience
    if egress.service_account is not None:
        declared["auth"] = {"serviceAccountName": egress.service_account}
    if delivery := (document.get("spec") or {}).get("delivery"):
        options = {key: value for key, value in delivery.items() if key != "deadLetterSink"}
        if egress.dead_letter_sink is not None:
            options["deadLetterSink"] = _destination_of(egress.dead_letter_sink)
        declared["delivery"] = options
    return ChannelEntry(declared, reported)


def _destination_of(sink: Sink) -> dict[str, str]:
    """Return a resolved sink as a destination of Knative: `uri` and, if it has them, `CACerts` and
    `audience`."""
    ca_certs = {"CACerts": sink.ca_certs} if sink.ca_certs else {}
    audience = {} if sink.audience is None else {"audience": sink.audience}
    return {"uri": sink.url, **ca_certs, **audience}


def orphaned_finalizers(
    document: Mapping[str, Any], handling: Handling
) -> tuple[tuple[str, ...], str]:
    """Return the finalizers to remove from a deleted Subscription that Knafka handles, and a
    warning for users; both may be empty. For any other Subscription both are empty.

    Knative Eventing puts its finalizer on each Subscription, and nobody removes the finalizer once
    its controller is gone. The controller is certainly gone only if its CustomResourceDefinition
    is; else the finalizer stays, and the warning has a command to remove it.
    """
    metadata = document["metadata"]
    has_finalizer = EVENTING_FINALIZER in (metadata.get("finalizers") or ())
    if not has_finalizer or handling.handler is not Handler.OWN:
        return (), ""
    if handling.is_eventing_installed is False:
        return (EVENTING_FINALIZER,), ""
    command = (
        f"kubectl -n {metadata['namespace']} patch subscription {metadata['name']} --type=merge "
        """-p '{"metadata":{"finalizers":null}}'"""
    )
    finalizer = f"Knative Eventing's finalizer {EVENTING_FINALIZER}"
    return (), (
        f"{finalizer} is left. If its controller is gone, remove all finalizers by: {command}"
    )
