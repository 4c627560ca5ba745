"""Policies as the command line asks about them: is a sender's event taken, and which says so?

    EventPolicies, config-features -> what a receiver is told (`decide.authentication`)
                                   -> its own verdict (`knafka.core.authorization`)
                                   -> each policy's, by the same code, with what speaks against it

All from the declared documents; nothing has to run. Not here: whether a token is good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from knafka.core.authorization import Authorization, subject_matches
from knafka.core.contract import AttributesFilter, Ingress, Kafka
from knafka.core.documents import parse
from knafka.core.event import Attributes
from knafka.core.filters import why_not
from knafka_client.declared.manifests import DeclaredObjects
from knafka_client.declared.triggers import Unknown
from knafka_client.state.installation import CHANNEL_PREFIX
from knafka_local.cluster.localize import LOCAL_SETTINGS, config_map
from knafka_operator.decide.authentication import OIDC, Authentication
from knafka_operator.decide.event_policies import AppliedPolicy
from knafka_operator.model.channels import KafkaChannel
from knafka_operator.model.event_policies import POLICY
from knafka_operator.model.resources import Broker, ConfigMap

FEATURES_CONFIG_MAP: Final = LOCAL_SETTINGS.features_config.name


@dataclass(frozen=True, slots=True)
class PolicyVerdict:
    """What a Broker or KafkaChannel does with a sender's event."""

    passes: bool | None
    """None: with some of its events; it wasn't said which."""
    reasons: Sequence[str]
    """Of each policy that applies, or of the default: which lets it through, and which not, why."""


def target(declared: DeclaredObjects, name: str | None) -> Broker | KafkaChannel:
    """The Broker of this name, or the KafkaChannel of `channel/[NAMESPACE/]NAME`, or the only one
    of both. Raises `Unknown`."""
    targets: dict[str, Broker | KafkaChannel] = {
        broker.id: broker for broker in declared.all(Broker)
    }
    targets |= {CHANNEL_PREFIX + channel.id: channel for channel in declared.all(KafkaChannel)}
    known = ", ".join(targets) or "none"
    if name is None:
        if len(targets) == 1:
            return next(iter(targets.values()))
        raise Unknown(f"which Broker? There is {known}: choose one with --broker")
    bare = name.removeprefix(CHANNEL_PREFIX)
    full = bare if "/" in bare else f"default/{bare}"
    for key in (name, full) if name == bare else (name, CHANNEL_PREFIX + full):
        if key in targets:
            return targets[key]
    raise Unknown(f"there is no Broker {name}: there is {known}")


def authentication(declared: DeclaredObjects, namespace: str) -> Authentication:
    """What is asked of the senders of a namespace, as if `authentication-oidc` were enabled.

    Raises `InvalidDocument`.
    """
    return replace(
        Authentication.of(_enabled(declared)),
        policies=tuple(
            document
            for identity, (document, _) in declared.documents.items()
            if (identity.kind, identity.namespace) == (POLICY, namespace)
        ),
    )


def judge(
    asked: Authentication,
    broker: Broker | KafkaChannel,
    subject: str,
    event: Attributes | None,
) -> PolicyVerdict:
    """Whether `broker` takes `event` of the sender with this subject; None: any of its events."""
    ingress = asked.with_sender_rules(_ingress(broker), broker)
    authorization = Authorization(
        ingress.policies, ingress.default_authorization, ingress.namespace
    )
    verdict = authorization.verdict(subject)
    passes = verdict if isinstance(verdict, bool) else None if event is None else verdict(event)
    applied = asked.applied_policies_of(broker)
    if not applied:
        reasons = [f"no EventPolicy applies, and default-authorization-mode is {asked.mode}"]
    else:
        reasons = [_reason(policy, subject, event) for policy in applied]
    return PolicyVerdict(passes, reasons)


def _reason(applied: AppliedPolicy, subject: str, event: Attributes | None) -> str:
    policy, name = applied.policy, f"EventPolicy {applied.name}"
    if not applied.is_ready:
        return f"{name}: it isn't Ready or can't be read, so it lets nobody through"
    if not any(subject_matches(subject, pattern) for pattern in policy.subjects):
        named = ", ".join(policy.subjects) or "nobody"
        return f"{name}: names {named}, and not this sender"
    if not policy.filters:
        return f"{name}: lets it through"
    if event is None:
        return f"{name}: lets those events through that pass its filters"
    clauses = why_not(AttributesFilter(), policy.filters, event)
    return f"{name}: {'; '.join(clauses) or 'lets it through'}"


def _enabled(declared: DeclaredObjects) -> ConfigMap:
    """The features that are declared, with authentication."""
    # Knative Eventing's namespace may be another one, the name isn't.
    for features in declared.all(ConfigMap):
        if features.metadata.name == FEATURES_CONFIG_MAP:
            data = {**features.data, OIDC: "enabled"}
            enabled: ConfigMap = features.model_copy(update={"data": data})
            return enabled
    return parse(ConfigMap, config_map(*LOCAL_SETTINGS.features_config, {OIDC: "enabled"}))


def _ingress(broker: Broker | KafkaChannel) -> Ingress:
    """As the receiver knows it, as far as senders are concerned."""
    metadata = broker.metadata
    return Ingress(
        namespace=metadata.namespace,
        broker=metadata.name,
        topic="none",
        kafka=Kafka(bootstrap_servers="none"),
    )
