"""Channel: decides the status and the next effects of an observed KafkaChannel. Pure.

Read top-down, as `brokers.decide`: each condition is one step, and the decision ends at the first
failed condition that later ones need. A channel has no receiver of its own: many share one. Its
entry is in that receiver's contract, and it is Ready once every replica of the receiver has read
the entry (KN-CHN-01).

Not here: what was read for a decision (`observed`), and a channel that another implementation
serves (`rival`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from knafka.core.contract import Ingress, Receiver
from knafka_operator.channels import routes
from knafka_operator.channels.observed import (
    RECEIVERS,
    ChannelConnection,
    ObservedChannel,
    receivers_of,
)
from knafka_operator.channels.rival import rival_message
from knafka_operator.decisions.effects import (
    Annotate,
    Apply,
    ApplyReceiver,
    AwaitReceivers,
    LeaveReceivers,
    Probe,
    ProbeDirect,
    Refusal,
    WriteIngress,
)
from knafka_operator.decisions.status import (
    CHANNEL_CONDITIONS,
    CONFIG_PARSED,
    CONTRACT_UPDATED,
    DATA_PLANE_AVAILABLE,
    PROBE_SUCCEEDED,
    SUBSCRIPTIONS_HANDLED,
    NotReady,
    value_or_raise,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.functions import receiver_services, services
from knafka_operator.functions.receiver_services import PROBED
from knafka_operator.installation.handler import Handler, Handling
from knafka_operator.installation.naming import DEFAULT_NAMING, NameKind, Naming
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.kafka.desired import LOG_APPEND_TIME_CONFIG, MIN_IN_SYNC, Defaults
from knafka_operator.model.channels import KafkaChannel
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import TOPIC_STATUS, Broker
from knafka_operator.model.topics import Topic
from knafka_operator.receivers import contract_topics
from knafka_operator.receivers.addressable import (
    NO_DEAD_LETTER_SINK,
    AddressableDecision,
    AddressableSteps,
    SenderRules,
)
from knafka_operator.receivers.direct import (
    channels_direct_host,
    channels_direct_service,
    is_direct_channel,
)

CHANNEL_DIRECT_REFUSAL: Final = Refusal("this KafkaChannel", "", "DirectServiceRejected")
"""The errors if the Service that leads past Knative's proxy can't be applied. Its owner isn't
checked, as many channels share it."""
ROUTE_REFUSAL: Final = Refusal("this KafkaChannel", "ServiceNotOurs", "RouteRejected", "Service")
"""The errors if a channel's route can't be applied. The Service of an earlier channel with the same
name, which is still being deleted, also counts as not ours. Only the Service is checked: the
Ingress is in the operator's namespace, where only the operator creates one."""


@dataclass(frozen=True, slots=True)
class _ChannelConfiguration:
    """What a channel's decision needs beside its topic; all of it was read without an error."""

    channel: KafkaChannel
    broker: Broker
    """The channel in the form of a Broker."""
    connection: ChannelConnection
    rules: SenderRules


@dataclass(frozen=True, slots=True)
class _SharedReceiver:
    """The receiver that all channels with one Secret share."""

    service: Identity
    """Namespace and name of the receiver's Knative Service."""
    spec: Receiver
    """The receiver's configuration, as its Service's environment has it."""
    contract: Topic
    """The receiver's contract topic, with the channels' entries."""

    @property
    def name(self) -> str:
        """The name of the receiver's Service."""
        return self.service.name


@dataclass(frozen=True, slots=True)
class _ChannelEntry:
    """A channel's entry in the contract of the receiver that it shares."""

    configuration: _ChannelConfiguration
    ingress: Ingress
    receiver: _SharedReceiver
    hosts: Sequence[str]
    """The channel's own host names; the last is the full one."""


def decide(observed: ObservedChannel, settings: Settings) -> AddressableDecision:
    """Decide a KafkaChannel's conditions, status and next effects, whose order is declared by
    `decisions.steps.CHANNEL_ORDER`. After an early return, the conditions that aren't decided
    yet wait for the one that isn't True."""
    no_address = NotReady("NoAddress", "it has no address yet", transient=True)
    steps = AddressableSteps(observed, CHANNEL_CONDITIONS, no_address)
    if (handled_condition := _subscriptions_handled_condition(observed.handling)) is not None:
        steps.conditions.set(handled_condition)
    steps.status |= {**NO_DEAD_LETTER_SINK, "subscribers": list(observed.subscribers)}
    configuration = _decide_configuration(observed, steps)
    if configuration is None:
        return steps.decision()
    connection = configuration.connection
    receiver = _shared_receiver(connection, settings)
    recorded = {RECEIVERS: " ".join(_receivers_with(receiver.name, steps.annotations))}
    topics = steps.ensure_topic(observed.topic, connection.defaults, settings.maxima, recorded)
    if topics is None:
        return steps.decision()
    topic, existing_topic = topics

    is_direct_way = _decide_receiver(observed, configuration, receiver, settings, steps)
    if observed.revision is None:
        return steps.decision(topic)
    hosts = routes.channel_hosts(configuration.broker, settings)
    ingress = desired.broker_ingress(
        configuration.broker, topic.desired, existing_topic.config, connection.defaults, hosts
    )
    entry = _ChannelEntry(
        configuration,
        configuration.rules.added_to(ingress, configuration.channel),
        receiver,
        hosts,
    )
    _write_entry(observed, entry, recorded, steps)
    if not steps.conditions.holds(CONTRACT_UPDATED):
        return steps.decision(topic)
    if is_direct_way and not steps.ensure_direct_service(
        channels_direct_service(receiver.name, settings),
        CHANNEL_DIRECT_REFUSAL,
        is_applied=observed.direct_served,
    ):
        return steps.decision(topic)
    _set_address(observed, entry, is_direct_way, settings, steps)
    if steps.conditions.holds(PROBE_SUCCEEDED):
        # This part of `ContractUpdated` comes last: until the new address answers, senders may
        # still use a former receiver.
        with steps.conditions.step(CONTRACT_UPDATED):
            if other_receivers := tuple(
                name for name in receivers_of(steps.annotations) if name != receiver.name
            ):
                steps.needed.run_first(LeaveReceivers(other_receivers, receiver.name))
    return steps.decision(topic)


def _decide_configuration(
    observed: ObservedChannel, steps: AddressableSteps
) -> _ChannelConfiguration | None:
    """Decide `ConfigParsed` and `DeadLetterSinkResolved`; return the channel's configuration. None:
    something can't be read, or another implementation serves the channel.

    An error that is raised in a step becomes that step's condition, and goes no further.
    """
    channel: KafkaChannel | None = None
    configuration: _ChannelConfiguration | None = None
    with steps.conditions.step(CONFIG_PARSED):
        channel = value_or_raise(observed.channel)
        if observed.rival is not None:
            raise NotReady("OtherImplementation", rival_message(observed.rival))
        connection = value_or_raise(observed.connection)
        authentication = value_or_raise(observed.authentication)
        rules = SenderRules(authentication, value_or_raise(observed.encryption))
        # They are None only if an error above has ended this step; the types don't show that.
        if observed.broker is not None and connection is not None:
            configuration = _ChannelConfiguration(channel, observed.broker, connection, rules)
    if channel is not None:  # its spec could be parsed, even if the step has failed later
        steps.resolve_dead_letter_sink(channel.spec.delivery, observed.dead_letter_sink)
    return configuration


def _decide_receiver(
    observed: ObservedChannel,
    configuration: _ChannelConfiguration,
    receiver: _SharedReceiver,
    settings: Settings,
    steps: AddressableSteps,
) -> bool:
    """Decide `DataPlaneAvailable`: apply the Service of the shared receiver, unless this
    reconciliation has applied it already. Returns whether senders are to reach the receiver past
    Knative's proxy; False if their declaration is invalid."""
    is_direct_way = False
    with steps.conditions.step(DATA_PLANE_AVAILABLE):
        is_direct_way = is_direct_channel(configuration.channel, settings)
        if observed.revision is None:
            manifest = receiver_services.channels_receiver_service(
                receiver.spec,
                configuration.connection.secret,
                settings,
                oidc=configuration.rules.authentication.is_on,
                event_types=observed.event_types,
            )
            steps.needed.run_first(ApplyReceiver(receiver.service, receiver.contract, manifest))
    return is_direct_way


def _write_entry(
    observed: ObservedChannel,
    entry: _ChannelEntry,
    recorded: Mapping[str, str],
    steps: AddressableSteps,
) -> None:
    """Decide `ContractUpdated`: write the channel's entry, and wait until every replica of the
    receiver has read it. `recorded` is the annotation that names the receiver: it is put into the
    status before the entry is written."""
    receiver, ingress = entry.receiver, entry.ingress
    await_receivers = AwaitReceivers(receiver.service, receiver.contract.name, ingress.path)
    with steps.conditions.step(CONTRACT_UPDATED):
        if receiver.name not in receivers_of(steps.annotations):
            steps.needed.run_first(Annotate(Step.RECORD_RECEIVERS, recorded))
        if observed.ingress != ingress:
            steps.needed.run_first(
                WriteIngress(receiver.service, receiver.contract, ingress.path, ingress),
                await_receivers,
            )
        if not observed.accepted:
            steps.needed.run_first(await_receivers)
        steps.annotations[contract_topics.ACCEPTED_ANNOTATION] = contract_topics.entry_digest(
            receiver.spec.contract_topic, ingress
        )


def _set_address(
    observed: ObservedChannel,
    entry: _ChannelEntry,
    is_direct_way: bool,
    settings: Settings,
    steps: AddressableSteps,
) -> None:
    """Decide `ProbeSucceeded`: route the channel's own host, if there is a gateway, to its receiver
    (KN-CHN-11), probe the address, and set the addresses. `is_direct_way`: the host leads to the
    receiver past Knative's proxy, and the receiver is probed there."""
    configuration, gateway = entry.configuration, observed.gateway
    broker, receiver = configuration.broker, entry.receiver.name
    with steps.conditions.step(PROBE_SUCCEEDED):
        answered_addresses = steps.annotations.get(PROBED), observed.probed
        # The host to which the channel's own host leads: by default the receiver's Service.
        route_host = services.service_host(receiver, settings.namespace, settings)
        if is_direct_way:
            route_host = channels_direct_host(receiver, settings)
        elif gateway is not None:
            route_host = gateway.host
        receiver_url = f"http://{route_host}{entry.ingress.path}"
        url = receiver_url if gateway is None else f"http://{entry.hosts[-1]}"
        url_to_probe = receiver_url if is_direct_way else url
        if is_direct_way and url_to_probe not in answered_addresses:
            # Before the host leads there, as events would fail while the receiver doesn't answer.
            steps.needed.run_first(ProbeDirect(url_to_probe, url_to_probe))
        if gateway is not None and observed.routed != route_host:
            manifests = (
                routes.route_manifest(broker, receiver, gateway, settings),
                routes.external_name_service(broker, route_host),
            )
            steps.needed.run_first(Apply(Step.APPLY_ROUTE, manifests, ROUTE_REFUSAL))
        if url_to_probe not in answered_addresses:
            steps.needed.run_first(Probe(url_to_probe, url_to_probe))
        steps.annotations[PROBED] = url_to_probe
        rules, channel = configuration.rules, configuration.channel
        steps.set_addresses(url, entry.ingress, observed.https, rules, channel)


def _receivers_with(name: str, annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the receivers in a channel's `status.annotations`, and the receiver
    `name`, which is added at the end if it is missing."""
    # The keys of a dict keep their order, and are unique.
    return tuple(dict.fromkeys((*receivers_of(annotations), name)))


def _shared_receiver(connection: ChannelConnection, settings: Settings) -> _SharedReceiver:
    """Return the receiver shared by all channels with this connection's Secret."""
    name = receiver_services.channels_receiver_name(_secret_name(connection))
    spec = receiver_contract(connection, settings)
    contract = contract_topics.contract_topic(spec, connection.defaults)
    return _SharedReceiver(Identity(settings.namespace, name), spec, contract)


def channel_topic(
    channel: KafkaChannel,
    defaults: Defaults,
    names_of_others: Container[str] = frozenset(),
    naming: Naming = DEFAULT_NAMING,
) -> Topic:
    """Return a channel's desired topic (KN-CHN-10, CHN-24). It has the name in the channel's status
    if `naming` accepts that as the channel's own, else a new name. Raises `NameTaken` if the name
    is in `names_of_others`, the names of other channels' topics, and `InvalidDocument` for a new
    name that Kafka doesn't accept."""
    spec = channel.spec
    name = desired.kept_or_new_name(
        NameKind.CHANNEL_TOPIC, channel, TOPIC_STATUS, names_of_others, naming
    )
    replication = min(spec.replication_factor, defaults.max_replication)
    retention = {"retention.ms": str(int(spec.retention_duration * 1000))}
    config = {**LOG_APPEND_TIME_CONFIG, **defaults.topic_config, **retention}
    # With fewer than three replicas, a topic that needs two couldn't be written while one is down.
    if replication >= 3:
        config = {MIN_IN_SYNC: "2", **config}
    return Topic(
        name, spec.num_partitions, replication, config, replication_key="spec.replicationFactor"
    )


def receiver_contract(connection: ChannelConnection, settings: Settings) -> Receiver:
    """Return the configuration of the receiver shared by all channels with one Secret. Client
    settings are in each Ingress instead: channels may have their own, and a change needs no new
    Revision."""
    kafka = connection.defaults.kafka.model_copy(update={"consumer": {}, "producer": {}})
    name = _secret_name(connection)
    secret = None if name is None else Identity(settings.namespace, name)
    return contract_topics.receiver_for_secret("KafkaChannels", kafka, secret, settings)


def _secret_name(connection: ChannelConnection) -> str | None:
    """Return the name of the Secret for a channel's Kafka; None: it needs none."""
    return None if connection.secret is None else connection.secret[0]


def _subscriptions_handled_condition(handling: Handling) -> Condition | None:
    """Return the informational condition `SubscriptionsHandled`, which says which controller
    reconciles Subscriptions. None: that needs no explanation, as only Knafka can."""

    def handled_condition(status: Status, reason: str, message: str) -> Condition:
        """Return the condition with this status, reason and message."""
        return Condition(SUBSCRIPTIONS_HANDLED, status, reason, message, Severity.INFO)

    if handling.handler is None:
        message = "it isn't known yet whether Knative Eventing is here"
        return handled_condition(Status.UNKNOWN, "Waiting", message)
    if not handling.reason:
        return None
    if handling.handler is Handler.EVENTING and not handling.is_eventing_installed:
        return handled_condition(Status.FALSE, "KnativeEventingNotSeen", handling.reason)
    reason = "ByKnafka" if handling.handler is Handler.OWN else "ByKnativeEventing"
    return handled_condition(Status.TRUE, reason, handling.reason)
