"""Source: merges a KafkaSource's credentials to one Secret for Kafka, and translates a Trigger's
status to upstream's for KafkaSources. Pure.

    SinkProvided             its sink has an address
    ConnectionEstablished    its Kafka accepts the credentials, and has its topics
    InitialOffsetsCommitted  its group has start offsets: nothing is missed from here on
    Deployed                 its dispatcher is Ready, and watched by the scaler

Not here: the decisions about these conditions, as `triggers.decide` decides about a KafkaSource as
if it were a Trigger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from knafka.core.errors import KnafkaError
from knafka.core.kafka_settings.kafka_secret import with_protocol
from knafka_operator.decisions.status import (
    BROKER_READY,
    DEAD_LETTER_SINK_RESOLVED,
    DELIVERING,
    DEPENDENCY_READY,
    OIDC_IDENTITY_CREATED,
    ROLLED_OUT,
    SUBSCRIBER_RESOLVED,
    SUBSCRIPTION_READY,
    ConditionSet,
    NotReady,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.dispatchers.dead_letters import DEAD_LETTERS_TYPE
from knafka_operator.functions import dispatcher_services
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import Condition, Status
from knafka_operator.model.family import SOURCES
from knafka_operator.model.identity import Identity
from knafka_operator.model.sources import (
    Credential,
    KafkaSourceSpec,
    SourceTrigger,
    security_protocol,
)
from knafka_operator.scale.decide import ScalingStatus

# Types of a KafkaSource's conditions, as upstream's.
CONNECTION: Final = "ConnectionEstablished"
SINK_PROVIDED: Final = "SinkProvided"
OFFSETS: Final = "InitialOffsetsCommitted"
DEPLOYED: Final = "Deployed"

CONDITIONS: Final = (CONNECTION, SINK_PROVIDED, DEAD_LETTER_SINK_RESOLVED, OFFSETS, DEPLOYED)
"""A KafkaSource's conditions, on which Ready depends."""

_SOURCE_CONDITIONS: Final = {
    BROKER_READY: CONNECTION,
    SUBSCRIBER_RESOLVED: SINK_PROVIDED,
    SUBSCRIPTION_READY: DEPLOYED,
}
"""A KafkaSource's condition by the Trigger's condition that it translates."""
_KEPT_CONDITIONS: Final = (
    DEAD_LETTER_SINK_RESOLVED,
    OIDC_IDENTITY_CREATED,
    DELIVERING,
    DEAD_LETTERS_TYPE,
    ROLLED_OUT,
)
"""A Trigger's conditions that a KafkaSource has, too, by the same name."""
_ADDRESSES: Final = {
    "subscriberUri": "sinkUri",
    "subscriberCACerts": "sinkCACerts",
    "subscriberAudience": "sinkAudience",
}
"""A KafkaSource's status field by the Trigger's status field that it translates."""


def kafka_secret_values(
    spec: KafkaSourceSpec, credential_values: Mapping[Credential, str | None], namespace: str
) -> Mapping[str, str] | None:
    """Return a source's credentials in the form of a Secret for Kafka (`kafka_secret`); None: the
    source needs no credentials. `credential_values` has the values of the required credentials,
    None for a missing one; `namespace` is the source's. Raises `NotReady` if one is missing."""
    values: dict[str, str] = {}
    for (name, path, secret, key), value in credential_values.items():
        if value is None:
            raise NotReady(
                "SecretNotFound",
                f"{path}: Secret {namespace}/{secret} has no key {key:.253}, or does not exist: "
                "create it, or name another one",
            )
        values[name] = value
    protocol = security_protocol(spec.net)
    return None if protocol is None else with_protocol(values, protocol)


def missing_topics_error(topics: list[str], servers: str) -> NotReady:
    """Return the error for `topics` that don't exist in the Kafka at `servers`; their owner must
    create them."""
    return NotReady(
        "TopicNotFound",
        f"{servers:.300} has no topic {', '.join(topics):.600}: create it, correct spec.topics, or "
        "let the source's user describe it",
    )


_STEPS_AFTER_OFFSETS: Final = frozenset(
    step for step in Step if step.value > Step.COMMIT_OFFSETS.value
)
"""Steps that run only after start offsets have been committed."""


def source_conditions(decided: ConditionSet, failed: Mapping[Step, KnafkaError]) -> ConditionSet:
    """Return the conditions of a KafkaSource, translated from those that were `decided` for it as
    for a Trigger. `failed` has the error of each step that failed, which the condition
    `InitialOffsetsCommitted` depends on."""
    trigger_conditions, translated = decided.by_type(), ConditionSet(CONDITIONS)
    for trigger_type, type_ in _SOURCE_CONDITIONS.items():
        condition = trigger_conditions[trigger_type]
        translated.set(replace(condition, type=type_, message=_source_message(condition)))
    # A KafkaSource has no condition `DependencyReady`: report it as `Deployed`.
    dependency = trigger_conditions[DEPENDENCY_READY]
    if dependency.status is not Status.TRUE and translated.holds(CONNECTION):
        translated.set(replace(dependency, type=DEPLOYED))
    for type_ in _KEPT_CONDITIONS:
        if type_ in trigger_conditions:
            translated.set(trigger_conditions[type_])
    is_deployed = trigger_conditions[SUBSCRIPTION_READY].status is Status.TRUE
    if (error := failed.get(Step.COMMIT_OFFSETS)) is not None:
        translated.fail(OFFSETS, error)
    elif is_deployed or failed.keys() & _STEPS_AFTER_OFFSETS:
        # Steps run in order, so one that failed after the commit shows that the commit succeeded.
        translated.set_true(OFFSETS)
    else:
        deployed = translated.by_type()[DEPLOYED]
        message = "the condition Deployed says what it waits for"
        translated.set(Condition(OFFSETS, Status.UNKNOWN, deployed.reason or "Waiting", message))
    return translated


def _source_message(condition: Condition) -> str:
    """Return the message of a Trigger's condition, with the parts that name a Trigger's conditions
    and subscriber reworded for a KafkaSource."""
    if condition.type == SUBSCRIPTION_READY and condition.reason == "Waiting":
        return condition.message.replace("subscriber to deliver to", "sink to deliver to").replace(
            "it has no KafkaSource that could send it events", f"waits for {CONNECTION}"
        )
    return condition.message.replace("SubscriberResolved", SINK_PROVIDED).replace(
        BROKER_READY, CONNECTION
    )


def source_status(
    trigger_status: Mapping[str, Any],
    document: Document,
    trigger: SourceTrigger | KnafkaError,
    scaling: ScalingStatus | None,
) -> dict[str, Any]:
    """Translate `trigger_status`, a Trigger's status without conditions, to the status of the
    KafkaSource `document`. `trigger` is the source read as a Trigger, or the error if it can't be
    parsed; `scaling` is the scaler's status of the source, None: it isn't scaled."""
    translated = {_ADDRESSES.get(key, key): value for key, value in trigger_status.items()}
    # An unknown address is "" in a Trigger's status, and absent from a KafkaSource's.
    translated["sinkUri"] = translated.get("sinkUri") or None
    identity = Identity.of(document)
    dispatcher = dispatcher_services.dispatcher_name(SOURCES, identity)
    translated["consumers"] = 0 if scaling is None else scaling.replicas
    translated["selector"] = f"serving.knative.dev/service={dispatcher}"
    if isinstance(trigger, SourceTrigger):
        source = trigger.egress_fields()["conversion"].source
        topics = trigger.source.spec.topics
        translated["ceAttributes"] = [
            {"type": "dev.knative.kafka.event", "source": f"{source}#{topic}"} for topic in topics
        ]
    return translated
