"""Broker: decides the status and the next effects of an observed Broker. Pure.

Read top-down: each condition is one step, and the decision ends at the first failed condition that
later ones need. After its effects have run, `decide` is called with their results, until it returns
none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from knafka.core.contract import Ingress, Receiver
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decisions.effects import (
    Annotate,
    Apply,
    ApplyService,
    AwaitReceivers,
    Effect,
    Probe,
    Refusal,
    WriteIngress,
)
from knafka_operator.decisions.status import (
    BROKER_CONDITIONS,
    CONFIG_PARSED,
    CONTRACT_UPDATED,
    DATA_PLANE_AVAILABLE,
    PROBE_SUCCEEDED,
    TOPIC_READY,
    NotReady,
    value_or_raise,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.functions import receiver_services, services
from knafka_operator.functions.receiver_services import PROBED, check_receiver_scaling
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.kafka.credentials import Mount
from knafka_operator.kafka.desired import Defaults
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import Broker, ConfigMap
from knafka_operator.model.topics import TopicRefused
from knafka_operator.receivers import contract_topics
from knafka_operator.receivers.addressable import (
    NO_DEAD_LETTER_SINK,
    AddressableDecision,
    AddressableSteps,
    ObservedIngress,
    SenderRules,
)
from knafka_operator.receivers.direct import direct_service, direct_url, is_direct
from knafka_operator.senders.encryption import (
    TLS_SECRET,
    Https,
    tls_service,
)

TLS_REFUSAL: Final = Refusal("this Broker", "ServiceNotOurs", "TLSServiceRejected")
"""The errors if the Service of the receiver's TLS port can't be applied."""
BROKER_DIRECT_REFUSAL: Final = Refusal("this Broker", "ServiceNotOurs", "DirectServiceRejected")
"""The errors if the Service that leads past Knative's proxy can't be applied."""
RECEIVER_CONTRACT: Final = "knafka.dev/receiver-contract"
"""Key of `status.annotations`: the contract topic that has, or may have, the Broker's entry."""


@dataclass(frozen=True, slots=True)
class BrokerConnection:
    """Kafka configuration of a Broker, from its ConfigMaps and Secret."""

    config: ConfigMap
    """The Broker's ConfigMap, merged over the installation's."""
    defaults: Defaults
    """What the merged ConfigMap declares, and built-in values for the rest."""
    mount: Mount | None = None
    """The Secret that the Broker's pods mount; None: none is needed."""


@dataclass(frozen=True)
class ObservedBroker(ObservedIngress):
    """A Broker and everything read for its decision; where reading failed, the error stands for the
    value."""

    broker: Broker | InvalidDocument
    connection: BrokerConnection | KnafkaError | None = None
    """The Broker's Kafka configuration; None: not read, as the Broker is invalid."""
    refused: str | None = None
    """Why the Broker may not use the external topic that it names; None: it may."""
    stopped: bool = False
    """Whether the receiver was deleted, as the Broker may not use its external topic."""
    tls_served: bool = False
    """Whether the Service that leads to the receiver's own TLS port was applied."""
    projected: bool = False
    """Whether the Secret was copied to the Broker's namespace."""

    def after(self, effect: Effect, result: Any) -> ObservedBroker:
        """Return a copy that includes an effect's result."""
        observed = super().after(effect, result)
        match effect:
            case Apply(Step.PROJECT_SECRET):
                return replace(observed, projected=True)
            case Apply(Step.APPLY_TLS_SERVICE):
                return replace(observed, tls_served=True)
        return observed


@dataclass(frozen=True, slots=True)
class _BrokerConfiguration:
    """What a Broker's decision needs beside its topic."""

    broker: Broker
    connection: BrokerConnection
    rules: SenderRules
    """What the receiver asks of senders."""


@dataclass(frozen=True, slots=True)
class _BrokerEntry:
    """A Broker's entry in the contract of its receiver, and the receiver's Service."""

    configuration: _BrokerConfiguration
    ingress: Ingress
    receiver: Receiver
    service: Identity
    """Namespace and name of the receiver's Knative Service."""


def decide(observed: ObservedBroker, settings: Settings) -> AddressableDecision:
    """Decide a Broker's conditions, status and next effects. The effects are in the order in which
    they must run (`decisions.steps.BROKER_ORDER`). After an early return, the conditions that
    aren't decided yet wait for the one that isn't True."""
    no_receiver = NotReady("NoReceiver", "no receiver has been Ready yet", transient=True)
    steps = AddressableSteps(observed, BROKER_CONDITIONS, no_receiver)
    steps.status |= NO_DEAD_LETTER_SINK
    if observed.stopped:  # the receiver is deleted, so its address is, too
        steps.status["address"] = None
        steps.annotations.pop(PROBED, None)
    configuration = _decide_configuration(observed, steps)
    if configuration is None or not _project_secret(observed, configuration, steps):
        return steps.decision()
    if observed.refused is not None:  # `_decide_configuration` has failed `TopicReady`
        return steps.decision()

    broker, connection = configuration.broker, configuration.connection
    receiver = receiver_contract(broker, connection, settings)
    recorded = {RECEIVER_CONTRACT: receiver.contract_topic}
    topics = steps.ensure_topic(
        observed.topic,
        connection.defaults,
        settings.maxima,
        recorded,
        accepts_records=settings.trusts_statuses,  # only in the local mode
    )
    if topics is None:
        return steps.decision()
    topic, existing_topic = topics

    ingress = desired.broker_ingress(
        broker, topic.desired, existing_topic.config, connection.defaults
    )
    entry = _BrokerEntry(
        configuration,
        configuration.rules.added_to(ingress, broker),
        receiver,
        Identity(broker.metadata.namespace, receiver_services.receiver_name(broker)),
    )
    _write_entry(observed, entry, recorded, steps)
    if not steps.conditions.holds(CONTRACT_UPDATED):
        return steps.decision(topic)
    is_direct_way = _decide_receiver(observed, entry, settings, steps)
    if observed.revision is None:  # the receiver isn't Ready yet
        return steps.decision(topic)
    _await_entry(observed, entry, steps)
    https = _decide_tls_service(observed, broker, steps)
    if is_direct_way and not steps.ensure_direct_service(
        direct_service(broker), BROKER_DIRECT_REFUSAL, is_applied=observed.direct_served
    ):
        return steps.decision(topic)
    _set_address(observed, entry, https, is_direct_way, settings, steps)
    return steps.decision(topic)


def _decide_configuration(
    observed: ObservedBroker, steps: AddressableSteps
) -> _BrokerConfiguration | None:
    """Decide `ConfigParsed` and `DeadLetterSinkResolved`, and fail `TopicReady` if the Broker's
    external topic isn't allowed. Returns the configuration; None: a part of it can't be read.

    An error that is raised in a `step` block becomes that step's condition, and goes no further.
    """
    broker: Broker | None = None
    configuration: _BrokerConfiguration | None = None
    with steps.conditions.step(CONFIG_PARSED):
        broker = value_or_raise(observed.broker)
        connection = value_or_raise(observed.connection)
        authentication = value_or_raise(observed.authentication)
        rules = SenderRules(authentication, value_or_raise(observed.encryption))
        # It is None only if an error above has ended this step; the types don't show that.
        if connection is not None:
            configuration = _BrokerConfiguration(broker, connection, rules)
    if broker is not None:  # its spec could be parsed, even if the step has failed later
        steps.resolve_dead_letter_sink(broker.spec.delivery, observed.dead_letter_sink)
    if observed.refused is not None:
        error = TopicRefused("ExternalTopicNotAllowed", observed.refused)
        steps.conditions.fail(TOPIC_READY, error)
    return configuration


def _project_secret(
    observed: ObservedBroker, configuration: _BrokerConfiguration, steps: AddressableSteps
) -> bool:
    """Request that Kafka's Secret is copied to the Broker's namespace, if the pods need a copy and
    this reconciliation hasn't made one yet. Returns whether the decision can go on: the pods can
    mount the Secret, or need none."""
    mount = configuration.connection.mount
    if mount is None or mount.projected is None or observed.projected:
        return True
    with steps.conditions.step(CONFIG_PARSED):
        steps.needed.run_first(Apply(Step.PROJECT_SECRET, (mount.projected,)))
    return False


def _write_entry(
    observed: ObservedBroker,
    entry: _BrokerEntry,
    recorded: Mapping[str, str],
    steps: AddressableSteps,
) -> None:
    """Decide the first part of `ContractUpdated`: write the Broker's entry to the contract of its
    receiver. `recorded` is the annotation that names the contract topic: it is put into the status
    before the entry is written."""
    receiver, ingress = entry.receiver, entry.ingress
    with steps.conditions.step(CONTRACT_UPDATED):
        if steps.annotations.get(RECEIVER_CONTRACT) != receiver.contract_topic:
            steps.needed.run_first(Annotate(Step.RECORD_CONTRACT, recorded))
        if observed.ingress != ingress:
            defaults = entry.configuration.connection.defaults
            contract = contract_topics.contract_topic(receiver, defaults)
            steps.needed.run_first(WriteIngress(entry.service, contract, ingress.path, ingress))


def _await_entry(observed: ObservedBroker, entry: _BrokerEntry, steps: AddressableSteps) -> None:
    """Decide the last part of `ContractUpdated`: wait until every replica of the receiver has read
    the Broker's entry."""
    topic, ingress = entry.receiver.contract_topic, entry.ingress
    with steps.conditions.step(CONTRACT_UPDATED):
        if not observed.accepted:
            steps.needed.run_first(AwaitReceivers(entry.service, topic, ingress.path))
        digest = contract_topics.entry_digest(topic, ingress)
        steps.annotations[contract_topics.ACCEPTED_ANNOTATION] = digest


def _decide_receiver(
    observed: ObservedBroker, entry: _BrokerEntry, settings: Settings, steps: AddressableSteps
) -> bool:
    """Decide `DataPlaneAvailable`: request that the receiver's Service is applied, unless this
    reconciliation has applied it already. Returns whether senders are to reach the receiver past
    Knative's proxy; False if the annotation that declares this is invalid."""
    broker, rules = entry.configuration.broker, entry.configuration.rules
    mount = entry.configuration.connection.mount
    direct = False
    with steps.conditions.step(DATA_PLANE_AVAILABLE):
        direct = is_direct(broker, settings)
        if observed.revision is None:
            check_receiver_scaling(broker.metadata.annotations, settings.maxima)
            secret = None if mount is None else (mount.name, mount.version)
            # Mount the Secret even if it can't be used now: the receiver keeps its last certificate
            # until it can.
            tls = broker.metadata.annotations.get(TLS_SECRET) if rules.encryption.is_on else None
            manifest = receiver_services.receiver_service(
                broker,
                entry.receiver,
                secret,
                settings,
                oidc=rules.authentication.is_on,
                tls=tls,
                direct=direct,
                event_types=observed.event_types,
            )
            steps.needed.run_first(ApplyService(Step.APPLY_RECEIVER, manifest))
    return direct


def _decide_tls_service(
    observed: ObservedBroker, broker: Broker, steps: AddressableSteps
) -> Https | NotReady | None:
    """Request that the Service of the receiver's own TLS port is applied, if the receiver has one.
    Returns the receiver's https address, or the error that explains why it has none; None: https is
    off. The error also becomes the reason if the Broker gets no address at all."""
    https = observed.https
    # Caught here, not by a `step`: the error must explain the missing https address.
    if isinstance(https, Https) and https.secret is not None and not observed.tls_served:
        try:
            steps.needed.run_first(
                Apply(Step.APPLY_TLS_SERVICE, (tls_service(broker),), TLS_REFUSAL)
            )
        except NotReady as error:
            https = error
    if isinstance(https, NotReady):
        steps.no_address = https
    return https


def _set_address(
    observed: ObservedBroker,
    entry: _BrokerEntry,
    https: Https | NotReady | None,
    is_direct_way: bool,
    settings: Settings,
    steps: AddressableSteps,
) -> None:
    """Set the Broker's addresses, and decide `ProbeSucceeded`.

    `is_direct_way`: the address is to be the direct one, past Knative's proxy. It is set once its
    Service has answered a probe, and stays while the receiver is replaced; until then the address
    is Knative's. `https` is the result of `_decide_tls_service`.
    """
    service, path = entry.service, entry.ingress.path
    broker, rules = entry.configuration.broker, entry.configuration.rules
    url = services.service_url(service.name, service.namespace, settings) + path
    # The last Revision that has answered a probe: by the status, and in this reconciliation.
    probed_revisions = steps.annotations.get(PROBED), observed.probed
    has_answered = observed.revision in probed_revisions
    url_to_probe = direct_url(broker, settings) + path if is_direct_way else url
    if has_answered or steps.stored_address.get("url") == url_to_probe:
        url = url_to_probe
    steps.set_addresses(url, entry.ingress, https, rules, broker)
    with steps.conditions.step(PROBE_SUCCEEDED):
        assert observed.revision is not None
        if not has_answered:
            steps.needed.run_first(Probe(url_to_probe, observed.revision))
        steps.annotations[PROBED] = observed.revision


def receiver_contract(broker: Broker, connection: BrokerConnection, settings: Settings) -> Receiver:
    """Return the configuration of a Broker's receiver: its Kafka, and the contract topic that all
    Brokers with the same Secret share. Client settings are in the Ingress instead, so that a change
    of them needs no new Revision."""
    kafka = connection.defaults.kafka.model_copy(update={"consumer": {}, "producer": {}})
    secret = None if connection.mount is None else connection.mount.secret
    path = f"/{broker.metadata.namespace}/{broker.metadata.name}"
    return contract_topics.receiver_for_secret("Brokers", kafka, secret, settings, path)
