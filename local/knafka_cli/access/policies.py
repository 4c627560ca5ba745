"""Tests whether EventPolicies accept a sender's event, and which policy decides it.

    EventPolicies, config-features -> the receiver's configuration (`senders.authentication`)
                                   -> the receiver's verdict (`knafka.core.authorization`)
                                   -> each policy's verdict, by the same code, with its reason

Only declared documents are needed; nothing has to run. Not here: verifying tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from knafka.core.authorization import Authorization, subject_matches
from knafka.core.contract import Ingress, Kafka
from knafka.core.documents import parse
from knafka.core.events.event import Attributes
from knafka.core.filters.declared_filters import AttributesFilter
from knafka.core.filters.predicates import why_not
from knafka_client.declared.manifests import DeclaredObjects
from knafka_client.declared.triggers import UnknownObject
from knafka_client.state.installation import CHANNEL_PREFIX
from knafka_local.cluster.localize import LOCAL_OPERATOR_SETTINGS, config_map
from knafka_operator.model.channels import KafkaChannel
from knafka_operator.model.event_policies import POLICY
from knafka_operator.model.resources import Broker, ConfigMap
from knafka_operator.senders.authentication import OIDC, Authentication
from knafka_operator.senders.event_policies import AppliedPolicy, StoredPolicy

FEATURES_CONFIG_MAP: Final = LOCAL_OPERATOR_SETTINGS.features_config.name
"""Name of the ConfigMap with Knative Eventing's features."""


@dataclass(frozen=True, slots=True)
class PolicyVerdict:
    """Whether a Broker or KafkaChannel accepts a sender's event, and why."""

    accepts: bool | None
    """Whether the event is accepted; None: no event was given, and some events of the sender are
    accepted."""
    reasons: Sequence[str]
    """A sentence for each policy that applies, or for the default if none does."""


def find_target(declared: DeclaredObjects, name: str | None) -> Broker | KafkaChannel:
    """Return the declared object that the user names: a Broker (`[NAMESPACE/]NAME`) or a
    KafkaChannel (`channel/[NAMESPACE/]NAME`). `name` None: return the only one that is declared.

    Raises `UnknownObject` if none has the name, or, without a name, unless exactly one is declared.
    """
    targets: dict[str, Broker | KafkaChannel] = {
        broker.id: broker for broker in declared.of_type(Broker)
    }
    targets |= {CHANNEL_PREFIX + channel.id: channel for channel in declared.of_type(KafkaChannel)}
    declared_names = ", ".join(targets) or "none"
    if name is None:
        if len(targets) == 1:
            return next(iter(targets.values()))
        raise UnknownObject(f"which Broker? There is {declared_names}: choose one with --broker")
    own_name = name.removeprefix(CHANNEL_PREFIX)
    prefix = CHANNEL_PREFIX if name.startswith(CHANNEL_PREFIX) else ""
    full_name = own_name if "/" in own_name else f"default/{own_name}"
    # `channel/NAME` may be a Broker in a namespace called `channel`, which has precedence.
    for key in (name, prefix + full_name):
        if key in targets:
            return targets[key]
    raise UnknownObject(f"there is no Broker {name}: there is {declared_names}")


def authentication_of(declared: DeclaredObjects, namespace: str) -> Authentication:
    """Return what Brokers and channels in a namespace require of senders, by its declared
    EventPolicies and the ConfigMap `config-features`.

    `authentication-oidc` counts as enabled, since without it no policy is applied. Raises
    `InvalidDocument` if the ConfigMap can't be used.
    """
    return replace(
        Authentication.of(_features_with_oidc(declared)),
        policies=tuple(
            StoredPolicy(document)
            for identity, (document, _) in declared.documents.items()
            if (identity.kind, identity.namespace) == (POLICY, namespace)
        ),
    )


def policy_verdict(
    authentication: Authentication,
    broker: Broker | KafkaChannel,
    subject: str,
    event: Attributes | None,
) -> PolicyVerdict:
    """Decide whether a Broker or channel, `broker`, accepts an event from the sender with this
    subject, which is the `sub` of its tokens.

    `authentication` has the rules that its namespace declares. `event` has the event's attributes;
    None: decide whether all events of the sender are accepted, none, or only some.
    """
    ingress = authentication.with_sender_rules(_ingress_for_senders(broker), broker)
    authorization = Authorization(
        ingress.policies, ingress.default_authorization, ingress.namespace
    )
    # True: it may send any event; False: none; else the predicate that its events must fulfil.
    verdict = authorization.verdict(subject)
    if isinstance(verdict, bool):
        accepts: bool | None = verdict
    else:
        accepts = None if event is None else bool(verdict([event]))
    applied_policies = authentication.applied_policies_of(broker)
    if not applied_policies:
        reasons = [
            f"no EventPolicy applies, and default-authorization-mode is {authentication.mode}"
        ]
    else:
        reasons = [_policy_reason(policy, subject, event) for policy in applied_policies]
    return PolicyVerdict(accepts, reasons)


def _policy_reason(applied: AppliedPolicy, subject: str, event: Attributes | None) -> str:
    """Return a sentence that says whether one policy accepts an event from the sender with this
    subject, and if not, why. `event` are the event's attributes; None: any event."""
    policy, name = applied.policy, f"EventPolicy {applied.name}"
    if applied.is_too_large:
        return f"{name}: the filters of all applying policies are too large, so it accepts nobody"
    if not applied.is_ready:
        return f"{name}: it isn't Ready or can't be read, so it accepts nobody"
    if not any(subject_matches(subject, pattern) for pattern in policy.subjects):
        subjects = ", ".join(policy.subjects) or "nobody"
        return f"{name}: it names {subjects}, but not this sender"
    if not policy.filters:
        return f"{name}: accepts the event"
    if event is None:
        return f"{name}: accepts the events that pass its filters"
    # An EventPolicy has no `spec.filter` as Triggers have, so that one is empty.
    clauses = why_not(AttributesFilter(), policy.filters, event)
    return f"{name}: {'; '.join(clauses) or 'accepts the event'}"


def _features_with_oidc(declared: DeclaredObjects) -> ConfigMap:
    """Return the declared ConfigMap of Knative Eventing's features, or an empty one, with
    `authentication-oidc` enabled."""
    # Found by name in any namespace, since that of Knative Eventing differs between installations.
    for features in declared.of_type(ConfigMap):
        if features.metadata.name == FEATURES_CONFIG_MAP:
            data = {**features.data, OIDC: "enabled"}
            enabled: ConfigMap = features.model_copy(update={"data": data})
            return enabled
    return parse(ConfigMap, config_map(*LOCAL_OPERATOR_SETTINGS.features_config, {OIDC: "enabled"}))


def _ingress_for_senders(broker: Broker | KafkaChannel) -> Ingress:
    """Return an Ingress of a Broker or KafkaChannel that serves only to decide about senders; its
    topic and Kafka are placeholders."""
    metadata = broker.metadata
    return Ingress(
        namespace=metadata.namespace,
        broker=metadata.name,
        topic="none",
        kafka=Kafka(bootstrap_servers="none"),
    )
