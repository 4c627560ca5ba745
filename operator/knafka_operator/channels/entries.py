"""Entries: reads the entries of a KafkaChannel's `spec.subscribers`, which others write there, as
Subscriptions. Pure.

    {uid, generation, name, subscriberUri, replyUri, delivery} -> a Subscription to URIs (KN-CHN-05)
    its promised annotations <-> one annotation of the KafkaChannel's status

The writer of an entry has resolved all addresses, and reads the entry's state in
`status.subscribers`. The Subscription for an entry isn't stored: an object with its UID belongs to
the other controller.

An entry that Knafka delivers is promised a consumer group: from then on no event may be missed. The
promise is what a Subscription's own `status.annotations` would hold: names of group, dead-letter
topic and dispatcher, and where delivery began.

Not here: the name of that Subscription, and when it is delivered (`channels.entry_cluster`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from knafka.core import names
from knafka_operator.kafka.dead_letter_topics import DEAD_LETTER_TOPIC
from knafka_operator.kafka.shards import DISPATCHER_KEY
from knafka_operator.model.channels import (
    DECLARED,
    ENTRY,
    KAFKA_CHANNEL,
    KAFKA_CHANNEL_VERSIONS,
    MESSAGING,
    PROMISE,
    SENDS_AS,
)
from knafka_operator.model.cluster import status_annotations
from knafka_operator.model.family import CHANNELS
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import FINALIZER, GROUP_STATUS, MAX_OBJECT_NAME, START

Document = Mapping[str, Any]

_PROMISED_ANNOTATIONS: Final = frozenset({DEAD_LETTER_TOPIC, DISPATCHER_KEY, START})
"""Keys of a Subscription's `status.annotations` that a promise keeps; not its group, whose name
follows from the UID."""
_match_uid = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?").fullmatch
"""Matches valid UIDs of entries: a UID becomes a part of names in Kubernetes and Kafka."""


@dataclass(frozen=True, slots=True)
class ListedEntries:
    """The entries of a channel's `spec.subscribers`, valid and invalid ones."""

    valid: Mapping[str, Document]
    """Valid entries by UID."""
    problems: Mapping[str, str]
    """The problem of each entry with an invalid UID, by that UID as it was written."""


def read_entries(channel: Document) -> ListedEntries:
    """Parse a KafkaChannel's entries. Of two entries with the same UID, the one with the higher
    generation counts; a list element that is no mapping is left out."""
    valid, problems = dict[str, Document](), dict[str, str]()
    for entry in listed_subscribers(channel):
        if not isinstance(entry, Mapping):
            continue
        uid = str(entry.get("uid") or "")
        if _match_uid(uid) is None:
            problems[uid] = (
                f"invalid value: {uid:.80}: uid: want a-z, 0-9 or '-', at most 63, as it names the "
                "consumer group"
            )
        elif uid not in valid or _generation(entry) >= _generation(valid[uid]):
            valid[uid] = entry
    return ListedEntries(valid, problems)


def listed_subscribers(channel: Document) -> Sequence[Any]:
    """Return a channel's `spec.subscribers`, unparsed; empty if that is no list."""
    listed = (channel.get("spec") or {}).get("subscribers")
    return listed if isinstance(listed, list | tuple) else ()


def _generation(entry: Document) -> int:
    """Return the generation that an entry declares; 0 if that is missing or no integer."""
    generation = entry.get("generation")
    return generation if isinstance(generation, int) else 0


def entry_name(channel: Identity, uid: str) -> str:
    """Return the name under which an entry is shown if no stored Subscription has its UID: the
    channel's name (or a digest of it, if it is long), a dot and the UID. It is unique, since a UID
    has no dots."""
    full_name = f"{channel.name}.{uid}"
    if len(full_name) <= MAX_OBJECT_NAME:
        return full_name
    return f"{names.short_digest(channel.name)}.{uid}"


def as_subscription(
    channel: Document, uid: str, name: str, entry: Document | None, stored: Document | None
) -> Document:
    """Return an entry of `channel` as a Subscription of this name. `entry` None: the entry is gone,
    and its Subscription is being deleted. `stored` is the stored Subscription with this UID, whose
    annotations apply to the entry, too (order, isolation, pause); None: there is none."""
    identity = Identity.of(channel)
    stored_metadata = {} if stored is None else stored["metadata"]
    annotations = stored_metadata.get("annotations") or {}
    metadata: dict[str, Any] = {
        "namespace": identity.namespace,
        "name": name,
        "uid": uid,
        "generation": 0 if entry is None else _generation(entry),
        "annotations": {
            key: value for key, value in annotations.items() if not _is_kubectl_annotation(key)
        },
        "finalizers": [FINALIZER],  # the Subscription is deleted like any other
        ENTRY: identity.name,
        # An account in an entry counts only if there is a stored Subscription: else everybody who
        # may write the channel could have the tokens of any account sent.
        SENDS_AS: None if stored is None else _service_account(entry or {}),
    }
    if entry is None:
        metadata["deletionTimestamp"] = "now"  # any text: only its presence is read
    channel_reference = {
        "apiVersion": KAFKA_CHANNEL_VERSIONS[0],
        "kind": KAFKA_CHANNEL,
        "name": identity.name,
    }
    return {
        "apiVersion": MESSAGING,
        "kind": CHANNELS.trigger,
        "metadata": metadata,
        "spec": {"channel": channel_reference, **_destination_fields(entry or {})},
        "status": _entry_status(channel, uid, stored),
    }


def _service_account(entry: Document) -> object:
    """Return the name of the service account as which an entry's events are to be sent; None: the
    entry names none."""
    auth = entry.get("auth")
    return auth.get("serviceAccountName") if isinstance(auth, Mapping) else None


def _is_kubectl_annotation(key: str) -> bool:
    """Whether the annotation `key` is one of `kubectl`'s, which are left out of copies: one of them
    may be as large as the whole object."""
    return key.startswith("kubectl.kubernetes.io/")


def _destination_fields(entry: Document) -> dict[str, Any]:
    """Return subscriber, reply and delivery of an entry, as fields of a Subscription's spec."""

    def read_destination(prefix: str) -> dict[str, Any]:
        """Return the destination whose fields in the entry begin with `prefix`: `subscriberUri`,
        for example, becomes `uri`. Fields without a value are left out."""
        suffixes = {"uri": "Uri", "CACerts": "CACerts", "audience": "Audience"}
        values = {key: entry.get(prefix + suffix) for key, suffix in suffixes.items()}
        return {key: value for key, value in values.items() if value}

    subscriber, reply = read_destination("subscriber"), read_destination("reply")
    if "uri" not in subscriber and "uri" in reply:
        # As upstream: without a subscriber the event itself is sent to the reply address.
        subscriber, reply = reply, {}
    spec: dict[str, Any] = {"subscriber": subscriber, "delivery": entry.get("delivery") or {}}
    if "uri" in reply:
        spec["reply"] = reply
    return spec


def _entry_status(channel: Document, uid: str, stored: Document | None) -> dict[str, Any]:
    """Return the status of the Subscription that stands for an entry: the annotations that the
    entry was promised (consumer group, dead-letter topic, dispatcher and start), and the readiness
    that the channel's status reports. `stored`, the stored Subscription with this UID (None: there
    is none), supplies the annotations only if the channel's status has no promise."""
    promised = find_promised_annotations(channel, uid)
    annotations = promised or _find_promise_in_stored(channel, uid, stored) or {}
    status: dict[str, Any] = {"annotations": annotations}
    reported_entries = (channel.get("status") or {}).get("subscribers") or ()
    for reported in reported_entries:
        if isinstance(reported, Mapping) and reported.get("uid") == uid:
            ready = {"type": "Ready", "status": reported.get("ready", "Unknown")}
            status["observedGeneration"] = reported.get("observedGeneration")
            status["conditions"] = [ready]
    return status


def with_promise(subscription: Document, channel: Document) -> Document:
    """Return a stored Subscription with the status annotations that its entry was promised while
    Knative Eventing reconciled Subscriptions; its own annotations take precedence."""
    promised = find_promised_annotations(channel, str(subscription["metadata"].get("uid", "")))
    if promised is None:
        return subscription
    status = subscription.get("status") or {}
    annotations = {**promised, **(status.get("annotations") or {})}
    return {**subscription, "status": {**status, "annotations": annotations}}


def find_promised_annotations(channel: Document, uid: str) -> dict[str, str] | None:
    """Return the status annotations that the entry with this UID was promised, from its channel's
    status; None: the entry was promised nothing. If the promise can't be parsed, the result has
    only the group."""
    text = status_annotations(channel).get(PROMISE + uid)
    if text is None:
        return None
    try:
        promise = json.loads(text)
    except ValueError:
        promise = {}
    if not isinstance(promise, Mapping):
        promise = {}
    strings = {str(key): value for key, value in promise.items() if isinstance(value, str)}
    return {**strings, GROUP_STATUS: entry_group(Identity.of(channel), uid)}


def _find_promise_in_stored(
    channel: Document, uid: str, stored: Document | None
) -> dict[str, str] | None:
    """Return the promised annotations that Knafka wrote into the status of `stored`, an entry's
    stored Subscription (None: there is none), while Knafka reconciled Subscriptions itself. None:
    that status doesn't name the entry's group."""
    annotations = status_annotations(stored or {})
    if annotations.get(GROUP_STATUS) != entry_group(Identity.of(channel), uid):
        return None
    promised_keys = {*_PROMISED_ANNOTATIONS, GROUP_STATUS}
    return {key: value for key, value in annotations.items() if key in promised_keys}


def promise_annotation(
    channel: Document, uid: str, annotations: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the annotation to write into a channel's status, so that it keeps an entry's promise.
    Empty: the stored annotation is up to date, or nothing is promised yet, as the entry has no
    group. `annotations` are those of the entry's status; None as a value removes one."""
    previous = find_promised_annotations(channel, uid)
    if previous is None and not annotations.get(GROUP_STATUS):
        return {}  # nothing is promised yet
    merged = {**(previous or {}), **annotations}
    promise = {
        key: value
        for key, value in sorted(merged.items())
        if key in _PROMISED_ANNOTATIONS and value is not None
    }
    text = json.dumps(promise)
    return {} if status_annotations(channel).get(PROMISE + uid) == text else {PROMISE + uid: text}


def is_promised(channel: Document, uid: str) -> bool:
    """Whether a channel's entry with this UID was promised a consumer group."""
    return PROMISE + uid in status_annotations(channel)


def promised_uids(channel: Document) -> set[str]:
    """Return the UIDs of the entries that were promised a consumer group."""
    keys = status_annotations(channel)
    return {key.removeprefix(PROMISE) for key in keys if key.startswith(PROMISE)}


def entry_group(channel: Identity, uid: str) -> str:
    """Return the consumer group of the channel's entry with this UID, as upstream names it
    (KN-CHN-11)."""
    return names.subscription_group(channel.namespace, channel.name, uid)


def own_uids(channel: Document) -> set[str]:
    """Return the UIDs of the entries in a channel's `spec.subscribers` that Knafka may have
    written, as its status records them."""
    return set(status_annotations(channel).get(DECLARED, "").split())


def merge_subscribers(
    listed: Iterable[Any], own_uids: Iterable[str], desired: Mapping[str, Document]
) -> list[Document]:
    """Return `listed`, a channel's `spec.subscribers`, with Knafka's entries replaced by the
    `desired` ones, which are given by UID; entries of other writers stay as they are.

    `own_uids` are the UIDs of entries that Knafka may replace or remove, besides the desired ones.
    """
    # `missing` has the desired entries that aren't in `merged` yet.
    missing, replaceable, merged = dict(desired), {*own_uids, *desired}, list[Any]()
    for entry in listed:
        uid = entry.get("uid") if isinstance(entry, Mapping) else None
        if uid not in replaceable:
            merged.append(entry)
        elif uid in missing:
            merged.append(missing.pop(uid))
    return [*merged, *(missing[uid] for uid in sorted(missing))]
