"""Addressable: what is observed of Brokers, channels and KafkaSinks alike, and the steps that their
decisions share. Pure.

Each of these objects has an address at a receiver and a topic behind it. A kind's `decide` makes
`AddressableSteps`, takes the steps one after the other, and returns `decision` at the first step
that can't be taken yet.

Not here: the receiver's Service and the entry in its contract, which each kind has in its own way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final, Self

from knafka.core.contract import Ingress, Sink
from knafka.core.errors import KnafkaError
from knafka.ports.log import TopicDescription
from knafka_operator.decisions.effects import (
    Apply,
    AwaitReceivers,
    CreateTopic,
    Effect,
    Probe,
    Refusal,
    WriteIngress,
)
from knafka_operator.decisions.observed import Needed, ObservedObject
from knafka_operator.decisions.status import (
    ADDRESSABLE,
    DATA_PLANE_AVAILABLE,
    DEAD_LETTER_SINK_RESOLVED,
    TOPIC_READY,
    ConditionSet,
    NotReady,
    no_dead_letter_sink_condition,
    value_or_raise,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.functions.services import Manifest
from knafka_operator.kafka.desired import Defaults
from knafka_operator.kafka.topics import ObservedTopic, as_declared_condition, topic_annotations
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import DeliverySpec, Resource
from knafka_operator.senders.authentication import (
    NO_AUTHENTICATION,
    Authentication,
    addresses_status,
    http_address,
)
from knafka_operator.senders.encryption import NO_ENCRYPTION, Encryption, Https

NO_DEAD_LETTER_SINK: Final[Mapping[str, Any]] = {
    "deadLetterSinkUri": None,
    "deadLetterSinkCACerts": None,
}
"""Fields of the status of a Broker or channel whose dead letter sink isn't resolved."""


@dataclass(frozen=True)
class ObservedAddressable(ObservedObject):
    """What is observed of every object that has an address at a receiver; where reading failed, the
    error stands for the value."""

    _: KW_ONLY
    authentication: Authentication | KnafkaError = NO_AUTHENTICATION
    """How senders are authenticated."""
    encryption: Encryption | KnafkaError = NO_ENCRYPTION
    """Whether senders must use https."""
    https: Https | NotReady | None = None
    """The receiver's https address, or the error that explains why it has none; None: https is
    off."""
    probed: str | None = None
    """What has answered a probe (`Probe.answers_for`): a Revision of the receiver or, of a channel,
    its address; None: nothing has."""

    def after(self, effect: Effect, result: Any) -> Self:
        """Return a copy that also records that `effect` has run, and its `result`."""
        observed = super().after(effect, result)
        match effect:
            case Probe(answers_for=probed):
                return replace(observed, probed=probed)
        return observed


@dataclass(frozen=True)
class ObservedIngress(ObservedAddressable):
    """What is observed of Brokers and channels in addition: their events are delivered from a
    topic, and each has an entry in the contract of a receiver."""

    _: KW_ONLY
    dead_letter_sink: Sink | KnafkaError | None = None
    """Where it sends dead letters; None: it declares no sink."""
    topic: ObservedTopic | KnafkaError | None = None
    """Its topic in Kafka; None: there is no connection, or the topic is refused."""
    event_types: bool = False
    """Whether EventTypes are created for its events."""
    direct_served: bool = False
    """Whether the Service that leads to the receiver past Knative's proxy was applied."""
    ingress: Ingress | None = None
    """Its entry in the contract of its receiver; None: it has none."""
    accepted: bool = False
    """Whether all replicas of the receiver have read that entry."""

    def after(self, effect: Effect, result: Any) -> Self:
        """Return a copy that also records that `effect` has run, and its `result`."""
        observed = super().after(effect, result)
        match effect:
            case CreateTopic() if isinstance(observed.topic, ObservedTopic):
                return replace(observed, topic=replace(observed.topic, existing=result))
            case WriteIngress(ingress=ingress):
                # The receiver's replicas have yet to read the new entry.
                return replace(observed, ingress=ingress, accepted=False)
            case AwaitReceivers():
                return replace(observed, accepted=True)
            case Apply(Step.APPLY_DIRECT_SERVICE):
                return replace(observed, direct_served=True)
        return observed


@dataclass(frozen=True, slots=True)
class AddressableDecision:
    """Effects to run next, and the status, which is final once there are no effects."""

    effects: tuple[Effect, ...]
    conditions: ConditionSet
    status: Mapping[str, Any]
    """The status without its conditions."""
    topic: ObservedTopic | None = None
    """The topic of a Broker or channel; None: it has none yet."""


@dataclass(frozen=True, slots=True)
class SenderRules:
    """What a receiver asks of its senders: tokens and policies, and TLS."""

    authentication: Authentication
    encryption: Encryption

    def added_to(self, ingress: Ingress, resource: Resource) -> Ingress:
        """Return a copy of `ingress`, the contract entry of the Broker, channel or KafkaSink
        `resource`, with these rules added."""
        return self.encryption.with_encryption_rule(
            self.authentication.with_sender_rules(ingress, resource)
        )


class AddressableSteps:
    """The decision of one Broker, channel or KafkaSink while its steps are taken.

    A `with self.conditions.step(TYPE)` block decides the condition TYPE: an error that it raises
    ends the block and becomes the condition; without an error the condition is True.
    """

    def __init__(
        self, observed: ObservedObject, condition_types: Sequence[str], no_address: NotReady
    ) -> None:
        """Begin with the stored address, which stays while a receiver is replaced, as the old
        receiver still accepts events (KN-BRK-01). `condition_types` are those of the kind;
        `no_address` is the error to report while there is no address."""
        self._previous_status = observed.document.get("status") or {}
        self.no_address = no_address
        """The error to report while there is no address; a step may replace it by a better one."""
        self.conditions = ConditionSet(condition_types)
        self.needed = Needed(observed.failed)
        """The effects that must run before the decision can go on."""
        self.annotations = observed.annotations
        """Annotations of the new status."""
        self.status: dict[str, Any] = {
            "observedGeneration": observed.document["metadata"].get("generation", 0),
            "annotations": self.annotations,
            "address": self._previous_status.get("address"),
        }
        """The new status so far, without its conditions."""

    @property
    def stored_address(self) -> Mapping[str, Any]:
        """The address in the stored status; empty if it has none."""
        return self._previous_status.get("address") or {}

    def decision(self, topic: ObservedTopic | None = None) -> AddressableDecision:
        """Decide the condition `Addressable`, which is True if the status has an address, and
        return the decision, with the effects and the status of all steps taken. `topic` is the
        object's topic; None: not known yet."""
        with self.conditions.step(ADDRESSABLE):
            if self.status["address"] is None:
                raise self.no_address
        return AddressableDecision(tuple(self.needed.effects), self.conditions, self.status, topic)

    def resolve_dead_letter_sink(
        self, delivery: DeliverySpec, sink: Sink | KnafkaError | None
    ) -> None:
        """Decide the condition `DeadLetterSinkResolved`, and write the sink's address into the
        status (KN-BRK-03, KN-CHN-04). `sink` is the dead letter sink that `delivery` declares, as
        it was resolved, or the error of resolving it; None: `delivery` declares none."""
        with self.conditions.step(DEAD_LETTER_SINK_RESOLVED):
            if delivery.dead_letter_sink is None:
                self.conditions.set(no_dead_letter_sink_condition())
            elif (resolved := value_or_raise(sink)) is not None:
                self.status["deadLetterSinkUri"] = resolved.url
                self.status["deadLetterSinkCACerts"] = resolved.ca_certs

    def ensure_topic(
        self,
        observed: ObservedTopic | KnafkaError | None,
        defaults: Defaults,
        maxima: Maxima,
        recorded: Mapping[str, str],
        *,
        accepts_records: bool = False,
    ) -> tuple[ObservedTopic, TopicDescription] | None:
        """Decide the condition `TopicReady`: if the topic in `observed` is missing, request that it
        is created, within the limits `maxima`. Returns the topic, and its description in Kafka;
        None: it doesn't exist yet, or `observed` is an error. `recorded` are annotations to write
        before the topic is created; `accepts_records`: whether a topic that somebody else creates
        meanwhile is used even if it has records."""
        with self.conditions.step(TOPIC_READY):
            topic = value_or_raise(observed)
            assert topic is not None
            if creating_effects := topic.effects(
                self.annotations, maxima, recorded, accepts_records=accepts_records
            ):
                self.needed.run_first(*creating_effects)  # raises, which ends this step
            existing = topic.existing
            assert existing is not None  # else there would be effects that create the topic
            self.annotations.update(topic_annotations(topic.desired, existing, defaults))
            self.conditions.set(as_declared_condition(topic.desired, existing))
            return topic, existing
        return None  # the step has caught an error

    def ensure_direct_service(
        self, manifest: Manifest, refusal: Refusal, *, is_applied: bool
    ) -> bool:
        """Unless `is_applied`, request that `manifest` is applied: the Service that leads to the
        receiver past Knative's proxy. Until then the condition `DataPlaneAvailable` says that this
        is awaited, or why it has failed (`refusal`: its reasons and texts if the Service can't be
        applied). Returns `is_applied`."""
        with self.conditions.step(DATA_PLANE_AVAILABLE):
            if not is_applied:
                applying = Apply(Step.APPLY_DIRECT_SERVICE, (manifest,), refusal)
                self.needed.run_first(applying)  # raises, which ends this step
        return is_applied

    def set_addresses(
        self,
        url: str,
        ingress: Ingress,
        https: Https | NotReady | None,
        rules: SenderRules,
        resource: Resource,
    ) -> None:
        """Set the addresses of `resource` in the status, and the conditions of TLS and
        EventPolicies where `rules` have these on. `url` is the http address; `https` is the
        receiver's https address, or the error that explains why it has none; None: https is off.
        """
        authentication, encryption = rules.authentication, rules.encryption
        if isinstance(https, NotReady):
            self.no_address = https
        addresses = encryption.addresses(http_address(url, ingress.audience), ingress.path, https)
        self.status["address"] = addresses[-1] if addresses else None  # the preferred one is last
        self.status.update(
            addresses_status(addresses, self._previous_status)
            | authentication.policies_status(resource, self._previous_status)
        )
        for condition in (
            encryption.encrypted_condition(https),
            authentication.policies_condition(resource),
        ):
            if condition is not None:
                self.conditions.set(condition)
