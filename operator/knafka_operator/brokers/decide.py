"""Broker: decides the status and the next effects of an observed Broker. Pure.

Read top-down: each condition is one step, and the decision ends at the first failed condition that
later ones need. After its effects have run, `decide` is called with their results, until it returns
none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from knafka.core.contract import Ingress, Receiver, Sink
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka.ports.log import TopicDescription
from knafka_operator.decisions.effects import (
    Annotate,
    Apply,
    ApplyService,
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
    BROKER_CONDITIONS,
    CONFIG_PARSED,
    CONTRACT_UPDATED,
    DATA_PLANE_AVAILABLE,
    DEAD_LETTER_SINK_RESOLVED,
    PROBE_SUCCEEDED,
    TOPIC_READY,
    ConditionSet,
    NotReady,
    no_dead_letter_sink_condition,
    value_or_raise,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.functions import receiver_services, services
from knafka_operator.functions.receiver_services import PROBED, check_receiver_scaling
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.kafka.credentials import Mount
from knafka_operator.kafka.desired import Defaults
from knafka_operator.kafka.topics import ObservedTopic, as_declared_condition, topic_annotations
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import Broker, ConfigMap
from knafka_operator.model.topics import TopicRefused
from knafka_operator.receivers import contract_topics as receivers
from knafka_operator.receivers.direct import direct_service, direct_url, is_direct
from knafka_operator.senders.authentication import (
    NO_AUTHENTICATION,
    Authentication,
    addresses_status,
    http_address,
)
from knafka_operator.senders.encryption import (
    NO_ENCRYPTION,
    TLS_SECRET,
    Encryption,
    Https,
    tls_service,
)

TLS_REFUSAL: Final = Refusal("this Broker", "ServiceNotOurs", "TLSServiceRejected")
BROKER_DIRECT_REFUSAL: Final = Refusal("this Broker", "ServiceNotOurs", "DirectServiceRejected")
RECEIVER_CONTRACT: Final = "knafka.dev/receiver-contract"
"""Key of `status.annotations`: the contract topic that has, or may have, the Broker's entry."""


@dataclass(frozen=True, slots=True)
class BrokerConnection:
    """Kafka configuration of a Broker, from its ConfigMaps and Secret."""

    config: ConfigMap
    defaults: Defaults
    mount: Mount | None = None
    """The Secret that the Broker's pods mount; None: none is needed."""


@dataclass(frozen=True)
class ObservedBroker(ObservedObject):
    """A Broker and everything read for its decision; where reading failed, the error stands for the
    value."""

    broker: Broker | InvalidDocument
    connection: BrokerConnection | KnafkaError | None = None
    """None: the Broker can't be read."""
    dead_letter_sink: Sink | KnafkaError | None = None
    """None: the Broker declares none."""
    refused: str | None = None
    """Why the Broker may not use the external topic that it names; None: it may."""
    stopped: bool = False
    """Whether the Broker had to stop using an external topic."""
    topic: ObservedTopic | KnafkaError | None = None
    """None: there is no connection, or it is refused."""
    authentication: Authentication | KnafkaError = NO_AUTHENTICATION
    """How senders are authenticated."""
    encryption: Encryption | KnafkaError = NO_ENCRYPTION
    """Whether senders must use https."""
    event_types: bool = False
    """Whether EventTypes are created for the Broker's events."""
    https: Https | NotReady | None = None
    """The receiver's https address, or the error that explains why it has none; None: https is
    off."""
    direct_served: bool = False
    """Whether the Service that leads to the receiver past Knative's proxy was applied."""
    tls_served: bool = False
    """Whether the Service that leads to the receiver's own TLS port was applied."""
    projected: bool = False
    """Whether the Secret was copied to the Broker's namespace."""
    ingress: Ingress | None = None
    """The Broker's entry in the contract of its receiver; None: it has none."""
    accepted: bool = False
    """Whether all replicas of the receiver have read that entry."""
    probed: str | None = None
    """The receiver's Revision that has answered a probe."""

    def after(self, effect: Effect, result: Any) -> ObservedBroker:
        """Return a copy that includes an effect's result."""
        observed = super().after(effect, result)
        match effect:
            case Apply(Step.PROJECT_SECRET):
                return replace(observed, projected=True)
            case CreateTopic() if isinstance(observed.topic, ObservedTopic):
                return replace(observed, topic=replace(observed.topic, existing=result))
            case WriteIngress(ingress=ingress):
                return replace(observed, ingress=ingress, accepted=False)
            case AwaitReceivers():
                return replace(observed, accepted=True)
            case Apply(Step.APPLY_TLS_SERVICE):
                return replace(observed, tls_served=True)
            case Apply(Step.APPLY_DIRECT_SERVICE):
                return replace(observed, direct_served=True)
            case Probe(answers_for=revision):
                return replace(observed, probed=revision)
        return observed


@dataclass(frozen=True, slots=True)
class BrokerDecision:
    """Effects to run next, and the status, which is final once there are no effects."""

    effects: tuple[Effect, ...]
    conditions: ConditionSet
    status: Mapping[str, Any]
    """The status without its conditions."""
    topic: ObservedTopic | None
    """The Broker's topic; None: it has none yet."""


def decide(observed: ObservedBroker, settings: Settings) -> BrokerDecision:
    """Decide a Broker's conditions, status and next effects, which keep `BROKER_ORDER`."""
    previous_status = observed.document.get("status") or {}
    conditions, needed = ConditionSet(BROKER_CONDITIONS), Needed(observed.failed)
    annotations = observed.annotations
    status: dict[str, Any] = {
        "observedGeneration": observed.document["metadata"].get("generation", 0),
        "annotations": annotations,
        # KN-BRK-01: once there is a receiver, it receives; while replaced, the old one does.
        "address": previous_status.get("address"),
        "deadLetterSinkUri": None,
        "deadLetterSinkCACerts": None,
    }
    if observed.stopped:
        status["address"] = None
        annotations.pop(PROBED, None)

    unaddressed = NotReady("NoReceiver", "no receiver has been Ready yet", transient=True)

    def make_decision(topic: ObservedTopic | None = None) -> BrokerDecision:
        """Return the decision with what is known so far; a missing address becomes the reason of
        `ADDRESSABLE`."""
        with conditions.step(ADDRESSABLE):
            if status["address"] is None:
                raise unaddressed
        return BrokerDecision(tuple(needed.effects), conditions, status, topic)

    broker: Broker | None = None
    connection: BrokerConnection | None = None
    senders: Authentication | None = None
    encryption: Encryption | None = None
    with conditions.step(CONFIG_PARSED):
        broker = value_or_raise(observed.broker)
        connection = value_or_raise(observed.connection)
        senders = value_or_raise(observed.authentication)
        encryption = value_or_raise(observed.encryption)
    if broker is not None:
        with conditions.step(DEAD_LETTER_SINK_RESOLVED):
            if broker.spec.delivery.dead_letter_sink is None:
                conditions.set(no_dead_letter_sink_condition())
            elif (sink := value_or_raise(observed.dead_letter_sink)) is not None:
                status["deadLetterSinkUri"] = sink.url  # KN-BRK-03
                status["deadLetterSinkCACerts"] = sink.ca_certs
    if observed.refused is not None:
        with conditions.step(TOPIC_READY):
            raise TopicRefused("ExternalTopicNotAllowed", observed.refused)
    if broker is None or connection is None or senders is None or encryption is None:
        return make_decision()
    mount = connection.mount
    if mount is not None and mount.projected is not None and not observed.projected:
        with conditions.step(CONFIG_PARSED):
            needed.run_first(Apply(Step.PROJECT_SECRET, (mount.projected,)))
        return make_decision()
    if observed.refused is not None:
        return make_decision()

    receiver = receiver_contract(broker, connection, settings)
    recorded = {RECEIVER_CONTRACT: receiver.contract_topic}
    topic: ObservedTopic | None = None
    existing_topic: TopicDescription | None = None
    with conditions.step(TOPIC_READY):
        topic = value_or_raise(observed.topic)
        assert topic is not None
        trusts = settings.trusts_statuses
        if creating_effects := topic.effects(
            annotations, settings.maxima, recorded, accepts_records=trusts
        ):
            needed.run_first(*creating_effects)
        existing_topic = topic.existing
        assert existing_topic is not None
        annotations.update(topic_annotations(topic.desired, existing_topic, connection.defaults))
        conditions.set(as_declared_condition(topic.desired, existing_topic))
    if topic is None or existing_topic is None:
        return make_decision()

    ingress = desired.broker_ingress(
        broker, topic.desired, existing_topic.config, connection.defaults
    )
    ingress = encryption.with_encryption_rule(senders.with_sender_rules(ingress, broker))
    service = Identity(broker.metadata.namespace, receiver_services.receiver_name(broker))
    with conditions.step(CONTRACT_UPDATED):
        if annotations.get(RECEIVER_CONTRACT) != receiver.contract_topic:
            needed.run_first(Annotate(Step.RECORD_CONTRACT, recorded))
        if observed.ingress != ingress:
            contract = receivers.contract_topic(receiver, connection.defaults)
            needed.run_first(WriteIngress(service, contract, ingress.path, ingress))
    if not conditions.holds(CONTRACT_UPDATED):
        return make_decision(topic)
    direct = False
    with conditions.step(DATA_PLANE_AVAILABLE):
        direct = is_direct(broker, settings)
        if observed.revision is None:
            check_receiver_scaling(broker.metadata.annotations, settings.maxima)
            secret = None if mount is None else (mount.name, mount.version)
            # Mount the Secret even if it can't be used now: the receiver keeps its last certificate
            # until it can.
            tls = broker.metadata.annotations.get(TLS_SECRET) if encryption.is_on else None
            manifest = receiver_services.receiver_service(
                broker,
                receiver,
                secret,
                settings,
                oidc=senders.is_on,
                tls=tls,
                direct=direct,
                event_types=observed.event_types,
            )
            needed.run_first(ApplyService(Step.APPLY_RECEIVER, manifest))
    if observed.revision is None:
        return make_decision(topic)
    with conditions.step(CONTRACT_UPDATED):
        if not observed.accepted:
            needed.run_first(AwaitReceivers(service, receiver.contract_topic, ingress.path))
        annotations[receivers.ACCEPTED_ANNOTATION] = receivers.entry_digest(
            receiver.contract_topic, ingress
        )
    url = services.service_url(service.name, service.namespace, settings) + ingress.path
    https = observed.https
    if isinstance(https, Https) and https.secret is not None and not observed.tls_served:
        try:
            needed.run_first(Apply(Step.APPLY_TLS_SERVICE, (tls_service(broker),), TLS_REFUSAL))
        except NotReady as error:
            https = error
    if isinstance(https, NotReady):
        unaddressed = https
    has_answered = observed.revision in (annotations.get(PROBED), observed.probed)
    probed = url
    if direct:
        with conditions.step(DATA_PLANE_AVAILABLE):
            if not observed.direct_served:
                manifest = direct_service(broker)
                needed.run_first(
                    Apply(Step.APPLY_DIRECT_SERVICE, (manifest,), BROKER_DIRECT_REFUSAL)
                )
        if not observed.direct_served:
            return make_decision(topic)
        probed = direct_url(broker, settings) + ingress.path
        # Once the Service has answered a probe, and then also while the receiver is replaced.
        if has_answered or (previous_status.get("address") or {}).get("url") == probed:
            url = probed
    http = http_address(url, ingress.audience)
    addresses = encryption.addresses(http, ingress.path, https)
    status["address"] = addresses[-1] if addresses else None
    status.update(
        addresses_status(addresses, previous_status)
        | senders.policies_status(broker, previous_status)
    )
    if (encrypted := encryption.encrypted_condition(https)) is not None:
        conditions.set(encrypted)
    if (policies := senders.policies_condition(broker)) is not None:
        conditions.set(policies)
    with conditions.step(PROBE_SUCCEEDED):
        if not has_answered:
            needed.run_first(Probe(probed, observed.revision))
        annotations[PROBED] = observed.revision
    return make_decision(topic)


def receiver_contract(broker: Broker, connection: BrokerConnection, settings: Settings) -> Receiver:
    """Return the configuration of a Broker's receiver: its Kafka, and the contract topic that all
    Brokers with the same Secret share. Client settings are in the Ingress instead, so that a change
    of them needs no new Revision."""
    kafka = connection.defaults.kafka.model_copy(update={"consumer": {}, "producer": {}})
    secret = None if connection.mount is None else connection.mount.secret
    path = f"/{broker.metadata.namespace}/{broker.metadata.name}"
    return receivers.contract_for_secret("Brokers", kafka, secret, settings, path)
