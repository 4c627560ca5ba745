"""Channel: decides the status and the next effects of an observed KafkaChannel. Pure.

Read top-down, as `brokers.decide`: each condition is one step, and the decision ends with the first
that others need. A channel has no receiver of its own: it is an entry in the contract of one that
many share, and Ready once every replica of that has read it (KN-CHN-01).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from knafka.core.contract import Ingress, Receiver, Sink
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka.ports.log import TopicDescription
from knafka_operator.channels import routes
from knafka_operator.channels.routes import Gateway
from knafka_operator.decisions.effects import (
    Annotate,
    Apply,
    ApplyReceiver,
    AwaitReceivers,
    CreateTopic,
    Effect,
    LeaveReceivers,
    Probe,
    ProbeDirect,
    Refusal,
    WriteIngress,
)
from knafka_operator.decisions.observed import Needed, ObservedObject
from knafka_operator.decisions.status import (
    ADDRESSABLE,
    CHANNEL_CONDITIONS,
    CONFIG_PARSED,
    CONTRACT_UPDATED,
    DATA_PLANE_AVAILABLE,
    DEAD_LETTER_SINK_RESOLVED,
    PROBE_SUCCEEDED,
    SERVED_BY_KNAFKA,
    SUBSCRIPTIONS_HANDLED,
    TOPIC_READY,
    ConditionSet,
    NotReady,
    no_dead_letter_sink_condition,
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
from knafka_operator.kafka.topics import ObservedTopic, as_declared_condition, topic_annotations
from knafka_operator.model.channels import KafkaChannel
from knafka_operator.model.conditions import READY, Condition, Severity, Status, merge_conditions
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import TOPIC_STATUS, Broker
from knafka_operator.model.topics import Topic
from knafka_operator.receivers import contract_topics as receivers
from knafka_operator.receivers.direct import (
    channels_direct_host,
    channels_direct_service,
    is_direct_channel,
)
from knafka_operator.senders.authentication import (
    NO_AUTHENTICATION,
    Authentication,
    addresses_status,
    http_address,
)
from knafka_operator.senders.encryption import NO_ENCRYPTION, Encryption, Https

RECEIVERS: Final = "knafka.dev/receivers"
"""Key of `status.annotations`: names of the receivers that may have an entry of the channel; more
than one while the channel moves to the receiver of another Secret."""

CHANNEL_DIRECT_REFUSAL: Final = Refusal("this KafkaChannel", "", "DirectServiceRejected")
ROUTE_REFUSAL: Final = Refusal("this KafkaChannel", "ServiceNotOurs", "RouteRejected", "Service")
"""A Service that is being deleted with an earlier channel of the name also counts as foreign. Only
the Service is checked: the Ingress is in the operator's namespace, where only the operator creates
one."""


@dataclass(frozen=True, slots=True)
class ChannelConnection:
    """Kafka configuration of a channel, from the installation's ConfigMap, a Secret and the
    channel's annotations."""

    defaults: Defaults
    secret: tuple[str, str] | None = None
    """Name and version of the Secret; it is in the functions' own namespace."""


@dataclass(frozen=True)
class ObservedChannel(ObservedObject):
    """A KafkaChannel and everything read for its decision; where reading failed, the error stands
    for the value."""

    channel: KafkaChannel | InvalidDocument
    broker: Broker | None = None
    """The channel in the form of a Broker (`model.family`)."""
    rival: str | None = None
    """Name of another implementation that serves KafkaChannels here; None: there is none."""
    connection: ChannelConnection | KnafkaError | None = None
    dead_letter_sink: Sink | KnafkaError | None = None
    """None: the channel declares none."""
    topic: ObservedTopic | KnafkaError | None = None
    authentication: Authentication | KnafkaError = NO_AUTHENTICATION
    """How senders are authenticated."""
    event_types: bool = False
    """Whether EventTypes are created for the channel's events."""
    encryption: Encryption | KnafkaError = NO_ENCRYPTION
    """Whether senders must use https."""
    https: Https | NotReady | None = None
    """The receiver's https address, or the error that explains why it has none; None: https is
    off."""
    ingress: Ingress | None = None
    """The channel's entry in the receiver's contract."""
    accepted: bool = False
    """Whether all replicas of the receiver have read that entry."""
    gateway: Gateway | None = None
    """Knative's gateway, which gives the channel its own host; None: the channel is addressed by a
    path at its receiver."""
    routed: str | None = None
    """The host to which this reconciliation has routed the channel's own host; None: it hasn't
    yet."""
    direct_served: bool = False
    """Whether the Service past Knative's proxy is as declared."""
    probed: str | None = None
    """The address that has answered a probe."""
    subscribers: Sequence[Mapping[str, Any]] = ()
    """`status.subscribers` (DSP-10)."""
    handling: Handling = field(default_factory=Handling)
    """Whether Knafka or Knative Eventing reconciles Subscriptions."""

    def after(self, effect: Effect, result: Any) -> ObservedChannel:
        """Return a copy that includes an effect's result."""
        observed = super().after(effect, result)
        match effect:
            case CreateTopic() if isinstance(observed.topic, ObservedTopic):
                return replace(observed, topic=replace(observed.topic, existing=result))
            case WriteIngress(ingress=ingress):
                return replace(observed, ingress=ingress, accepted=False)
            case AwaitReceivers():
                return replace(observed, accepted=True)
            case Apply(Step.APPLY_ROUTE, (*_, service)):
                return replace(observed, routed=service["spec"]["externalName"])
            case Apply(Step.APPLY_DIRECT_SERVICE):
                return replace(observed, direct_served=True)
            case Probe(answers_for=url):
                return replace(observed, probed=url)
            case LeaveReceivers(stays=stays):
                return observed.with_annotations({RECEIVERS: stays})
        return observed


@dataclass(frozen=True, slots=True)
class ChannelDecision:
    """Effects to run next, and the status, which is final once there are no effects."""

    effects: tuple[Effect, ...]
    conditions: ConditionSet
    status: Mapping[str, Any]
    """The status without its conditions."""
    topic: ObservedTopic | None


def decide(observed: ObservedChannel, settings: Settings) -> ChannelDecision:
    """Decide a KafkaChannel's conditions, status and next effects, which keep `CHANNEL_ORDER`."""
    previous_status = observed.document.get("status") or {}
    conditions, needed = ConditionSet(CHANNEL_CONDITIONS), Needed(observed.failed)
    if (handled_condition := _subscriptions_handled_condition(observed.handling)) is not None:
        conditions.set(handled_condition)
    annotations = observed.annotations
    status: dict[str, Any] = {
        "observedGeneration": observed.document["metadata"].get("generation", 0),
        "annotations": annotations,
        "address": previous_status.get("address"),
        "deadLetterSinkUri": None,
        "deadLetterSinkCACerts": None,
        "subscribers": list(observed.subscribers),
    }

    unaddressed = NotReady("NoAddress", "it has no address yet", transient=True)

    def make_decision(topic: ObservedTopic | None = None) -> ChannelDecision:
        """Return the decision with what is known so far; a missing address becomes the reason of
        `ADDRESSABLE`."""
        with conditions.step(ADDRESSABLE):
            if status["address"] is None:
                raise unaddressed
        return ChannelDecision(tuple(needed.effects), conditions, status, topic)

    channel: KafkaChannel | None = None
    connection: ChannelConnection | None = None
    senders: Authentication | None = None
    encryption: Encryption | None = None
    with conditions.step(CONFIG_PARSED):
        channel = value_or_raise(observed.channel)
        if observed.rival is not None:
            connection = None
            raise NotReady("OtherImplementation", _rival_message(observed.rival))
        connection = value_or_raise(observed.connection)
        senders = value_or_raise(observed.authentication)
        encryption = value_or_raise(observed.encryption)
    if channel is not None:
        with conditions.step(DEAD_LETTER_SINK_RESOLVED):
            if channel.spec.delivery.dead_letter_sink is None:
                conditions.set(no_dead_letter_sink_condition())
            elif (sink := value_or_raise(observed.dead_letter_sink)) is not None:
                status["deadLetterSinkUri"] = sink.url  # KN-CHN-04
                status["deadLetterSinkCACerts"] = sink.ca_certs
    broker = observed.broker
    if channel is None or broker is None or connection is None or senders is None:
        return make_decision()
    if encryption is None:
        return make_decision()

    topic: ObservedTopic | None = None
    existing_topic: TopicDescription | None = None
    with conditions.step(TOPIC_READY):
        topic = value_or_raise(observed.topic)
        assert topic is not None
        recorded = {RECEIVERS: " ".join(_receivers_with_current(annotations, connection))}
        if creating_effects := topic.effects(annotations, settings.maxima, recorded):
            needed.run_first(*creating_effects)
        existing_topic = topic.existing
        assert existing_topic is not None
        annotations.update(topic_annotations(topic.desired, existing_topic, connection.defaults))
        conditions.set(as_declared_condition(topic.desired, existing_topic))
    if topic is None or existing_topic is None:
        return make_decision()

    receiver = receiver_services.channels_receiver_name(_secret_name(connection))
    service, contract_spec = (
        Identity(settings.namespace, receiver),
        receiver_contract(connection, settings),
    )
    contract = receivers.contract_topic(contract_spec, connection.defaults)
    direct = False
    with conditions.step(DATA_PLANE_AVAILABLE):
        direct = is_direct_channel(channel, settings)
        if observed.revision is None:
            manifest = receiver_services.channels_receiver_service(
                contract_spec,
                connection.secret,
                settings,
                oidc=senders.is_on,
                event_types=observed.event_types,
            )
            needed.run_first(ApplyReceiver(service, contract, manifest))
    if observed.revision is None:
        return make_decision(topic)
    hosts = routes.channel_hosts(broker, settings)
    ingress = desired.broker_ingress(
        broker, topic.desired, existing_topic.config, connection.defaults, hosts
    )
    ingress = encryption.with_encryption_rule(senders.with_sender_rules(ingress, channel))
    await_receivers = AwaitReceivers(service, contract.name, ingress.path)
    with conditions.step(CONTRACT_UPDATED):
        if receiver not in receivers_of(annotations):
            receiver_names = " ".join(_receivers_with_current(annotations, connection))
            needed.run_first(Annotate(Step.RECORD_RECEIVERS, {RECEIVERS: receiver_names}))
        if observed.ingress != ingress:
            needed.run_first(
                WriteIngress(service, contract, ingress.path, ingress), await_receivers
            )
        if not observed.accepted:
            needed.run_first(await_receivers)
        annotations[receivers.ACCEPTED_ANNOTATION] = receivers.entry_digest(
            contract_spec.contract_topic, ingress
        )
    if not conditions.holds(CONTRACT_UPDATED):
        return make_decision(topic)
    gateway, route_host = (
        observed.gateway,
        services.service_host(receiver, settings.namespace, settings),
    )
    if direct:
        with conditions.step(DATA_PLANE_AVAILABLE):
            if not observed.direct_served:
                manifest = channels_direct_service(receiver, settings)
                needed.run_first(
                    Apply(Step.APPLY_DIRECT_SERVICE, (manifest,), CHANNEL_DIRECT_REFUSAL)
                )
        if not observed.direct_served:
            return make_decision(topic)
    with conditions.step(PROBE_SUCCEEDED):
        answered_addresses = annotations.get(PROBED), observed.probed
        if direct:
            route_host = channels_direct_host(receiver, settings)
        elif gateway is not None:
            route_host = gateway.host
        path = f"http://{route_host}{ingress.path}"
        url = path if gateway is None else f"http://{hosts[-1]}"  # KN-CHN-11
        probed = path if direct else url
        if direct and probed not in answered_addresses:
            needed.run_first(ProbeDirect(probed, probed))
        if gateway is not None and observed.routed != route_host:
            manifests = (
                routes.route_manifest(broker, receiver, gateway, settings),
                routes.external_name_service(broker, route_host),
            )
            needed.run_first(Apply(Step.APPLY_ROUTE, manifests, ROUTE_REFUSAL))
        if probed not in answered_addresses:
            needed.run_first(Probe(probed, probed))
        annotations[PROBED] = probed
        if isinstance(observed.https, NotReady):
            unaddressed = observed.https
        http = http_address(url, ingress.audience)
        addresses = encryption.addresses(http, ingress.path, observed.https)
        status["address"] = addresses[-1] if addresses else None
        status.update(
            addresses_status(addresses, previous_status)
            | senders.policies_status(channel, previous_status)
        )
        if (encrypted := encryption.encrypted_condition(observed.https)) is not None:
            conditions.set(encrypted)
        if (policies := senders.policies_condition(channel)) is not None:
            conditions.set(policies)
    if conditions.holds(PROBE_SUCCEEDED):
        with conditions.step(CONTRACT_UPDATED):
            if other_receivers := tuple(
                name for name in receivers_of(annotations) if name != receiver
            ):
                needed.run_first(LeaveReceivers(other_receivers, receiver))
    return make_decision(topic)


def receivers_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the receivers that may have an entry of a channel, from its `status.annotations`."""
    return tuple(annotations.get(RECEIVERS, "").split())


def _receivers_with_current(
    annotations: Mapping[str, str], connection: ChannelConnection
) -> tuple[str, ...]:
    """Return the receivers in the status, and the one that serves the channel now."""
    name = receiver_services.channels_receiver_name(_secret_name(connection))
    return tuple(dict.fromkeys((*receivers_of(annotations), name)))


def channel_topic(
    channel: KafkaChannel,
    defaults: Defaults,
    names_of_others: Container[str] = frozenset(),
    naming: Naming = DEFAULT_NAMING,
) -> Topic:
    """Return a channel's desired topic (KN-CHN-10, CHN-24); `names_of_others` has the names of
    other channels' topics. Raises `NameTaken`."""
    spec = channel.spec
    name = desired.kept_or_new_name(
        NameKind.CHANNEL_TOPIC, channel, TOPIC_STATUS, names_of_others, naming
    )
    replication = min(spec.replication_factor, defaults.max_replication)
    retention = {"retention.ms": str(int(spec.retention_duration * 1000))}
    config = {**LOG_APPEND_TIME_CONFIG, **defaults.topic_config, **retention}
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
    return receivers.contract_for_secret("KafkaChannels", kafka, secret, settings)


def _secret_name(connection: ChannelConnection) -> str | None:
    return None if connection.secret is None else connection.secret[0]


def conditions_beside_rival(
    status: Mapping[str, Any], rival: str, timestamp: str
) -> list[dict[str, Any]] | None:
    """Return the conditions of a channel that another implementation serves, with Knafka's
    informational one added. None: the other implementation has written none.

    `timestamp` is the time (RFC 3339).
    """
    conditions = [each for each in status.get("conditions") or () if isinstance(each, Mapping)]
    types = {each.get("type") for each in conditions}
    own_types = {READY, *CHANNEL_CONDITIONS, SUBSCRIPTIONS_HANDLED, SERVED_BY_KNAFKA}
    if READY not in types or not types - own_types:
        return None
    message = _rival_message(rival)
    own_condition = Condition(
        SERVED_BY_KNAFKA, Status.FALSE, "OtherImplementation", message, Severity.INFO
    )
    their_conditions = [dict(each) for each in conditions if each.get("type") != SERVED_BY_KNAFKA]
    merged = merge_conditions(conditions, [own_condition], timestamp)
    return their_conditions + [each for each in merged if each["type"] == SERVED_BY_KNAFKA]


def _subscriptions_handled_condition(handling: Handling) -> Condition | None:
    """Return the informational condition that tells who reconciles Subscriptions; None: only Knafka
    can."""

    def handled_condition(status: Status, reason: str, message: str) -> Condition:
        return Condition(SUBSCRIPTIONS_HANDLED, status, reason, message, Severity.INFO)

    if handling.handler is None:
        message = "it isn't known yet whether Knative Eventing is here"
        return handled_condition(Status.UNKNOWN, "Waiting", message)
    if not handling.reason:
        return None
    if handling.handler is Handler.EVENTING and not handling.seen:
        return handled_condition(Status.FALSE, "KnativeEventingNotSeen", handling.reason)
    by = "ByKnafka" if handling.handler is Handler.OWN else "ByKnativeEventing"
    return handled_condition(Status.TRUE, by, handling.reason)


def _rival_message(rival: str) -> str:
    """Return the sentence for users about another implementation, `rival`, that serves
    KafkaChannels here."""
    return (
        f"{rival} serves KafkaChannels here, too: have `knafka adopt` take this one over, remove "
        "the other, or run this operator without KNAFKA_CHANNELS=enabled"
    )
