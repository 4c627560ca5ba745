"""Families: the kinds whose events are delivered in the same way.

    Broker        <- Trigger         eventing.knative.dev
    KafkaChannel  <- Subscription    messaging.knative.dev
    KafkaSource                      sources.knative.dev: topics and their reader in one object

Except for its receiver, a KafkaChannel is treated as a Broker, a Subscription as a Trigger without
filters whose replies go to an address, and a KafkaSource as a Trigger of topics without a Broker.
They are parsed as such, so that the same code reconciles all of them. `Family` has the differences:
kinds, names, and the namespace of functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from knafka.core import names
from knafka.core.documents import parse
from knafka_operator.model.channels import (
    DECLARED,
    KAFKA_CHANNEL_VERSIONS,
    MESSAGING,
    PEERS_CHANNEL_FINALIZER,
    PROMISE,
    KafkaChannel,
    Subscription,
)
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    EVENTING,
    PEERS_FINALIZER,
    Broker,
    BrokerSpec,
    Destination,
    Resource,
    Trigger,
    TriggerSpec,
)
from knafka_operator.model.sources import (
    KAFKA_SOURCE,
    PEERS_SOURCE_FINALIZER,
    SOURCES_VERSION,
    SourceTrigger,
    parse_source_as_trigger,
)

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """The differences of one family: of Brokers and Triggers, of KafkaChannels and Subscriptions,
    or of KafkaSources."""

    broker_version: str
    """The apiVersion of the kind `broker`."""
    broker: str
    """The kind that events are sent to, such as KafkaChannel."""
    trigger_version: str
    """The apiVersion of the kind `trigger`."""
    trigger: str
    """The kind that subscribes to events, such as Subscription."""
    read_broker: Callable[[Document], Broker]
    """Parses a stored object of the kind `broker`. Raises `InvalidDocument`."""
    read_trigger: Callable[[Document], Trigger]
    """Parses a stored object of the kind `trigger`. Raises `InvalidDocument`."""
    broker_of: Callable[[Document], Identity]
    """Returns the Broker or channel that a stored Trigger or Subscription refers to."""
    reply_of: Callable[[Document], Destination | None]
    """Returns the declared destination of replies; None: a Trigger's replies go to the Broker's
    topic, a Subscription's are discarded. Only for documents that `read_trigger` accepts."""
    peers_finalizer: str
    """The finalizer that eventing-kafka-broker puts on the Brokers, channels or sources that it
    serves."""
    infix: str = ""
    """A part of functions' names that differs between families, so that objects of two families
    may have the same name."""
    centralized: bool = False
    """Whether functions run in the operator's namespace; False: in that of their owner (CHN-22)."""
    internal_name_of: Callable[[str], str] = str
    """Returns, for a Broker's name, the part that stands for the Broker in names of topics and
    groups; by default the name itself. Call it through `own_name`."""
    egress_fields: Callable[[Trigger], Mapping[str, Any]] = lambda trigger: {}
    """Returns the fields of a Trigger's Egress that only this family sets."""
    credentials_volume_of: Callable[[Trigger], Mapping[str, Any] | None] = lambda trigger: None
    """Returns the volume with a Trigger's credentials; None: they are one Secret, or none."""
    owns_group: bool = True
    """Whether Knafka names the consumer groups, so that a new Trigger may delete leftover offsets.
    False: the user names them, and their offsets are kept."""

    @property
    def short_name(self) -> str:
        """Return the name of the kind `broker` in reasons of conditions: `Broker`, `Channel` or
        `Source`."""
        return self.broker.removeprefix("Kafka")

    def own_name(self, broker: str) -> str:
        """Return the internal name of the Broker, channel or source with the name `broker`: the
        part that stands for it in names of topics and groups, such as `KafkaChannel-NAME`. A
        Broker's is its name itself."""
        return self.internal_name_of(broker)

    def function_name_prefix(self, owner: Identity) -> str:
        """Return the prefix of the names of an object's functions: `NAME`, or `NAMESPACE.NAME` for
        functions in the operator's namespace."""
        return f"{owner.namespace}.{owner.name}" if self.centralized else owner.name

    def label_value(self, owner: Identity) -> str:
        """Return the label value that identifies the object `owner`: the prefix of its functions'
        names, shortened and with a digest if it is too long or has dots (`names.child`)."""
        return names.child(self.function_name_prefix(owner), "")

    def trigger_id(self, trigger: Identity) -> str:
        """Return the id by which the scaler knows the object `trigger` of this family:
        `NAMESPACE/NAME` of a Trigger, `KIND NAMESPACE/NAME` of a Subscription or KafkaSource."""
        return str(trigger) if self.trigger == "Trigger" else f"{self.trigger} {trigger}"


def _broker_of_trigger(trigger: Document) -> Identity:
    """Return the identity of a stored Trigger's Broker, from `spec.broker` or `spec.brokerRef`; the
    name is empty if the Trigger has neither. The document needn't be valid."""
    spec = trigger.get("spec") or {}
    reference = spec.get("brokerRef")
    referenced_name = reference.get("name") if isinstance(reference, Mapping) else None
    name = spec.get("broker") or referenced_name or ""
    return Identity(trigger["metadata"]["namespace"], str(name))


def _channel_of(subscription: Document) -> Identity:
    """Return the identity of the channel that a stored Subscription names; the name is empty if it
    names none. The document needn't be valid."""
    channel = (subscription.get("spec") or {}).get("channel")
    name = channel.get("name") if isinstance(channel, Mapping) else ""
    return Identity(subscription["metadata"]["namespace"], str(name or ""))


def is_of_kafka_channel(subscription: Document) -> bool:
    """Whether a stored Subscription refers to a KafkaChannel."""
    channel = (subscription.get("spec") or {}).get("channel")
    return isinstance(channel, Mapping) and channel.get("kind") == CHANNELS.broker


def omit_subscribers(channel: Document) -> Document:
    """Return a stored KafkaChannel without `spec.subscribers`, so that an invalid entry doesn't
    prevent parsing the channel."""
    spec = channel.get("spec")
    if not isinstance(spec, Mapping) or "subscribers" not in spec:
        return channel
    return {**channel, "spec": {key: value for key, value in spec.items() if key != "subscribers"}}


def _parse_channel_as_broker(document: Document) -> Broker:
    """Parse a KafkaChannel as a Broker. The generation, the entries of `spec.subscribers` and the
    annotations about them are left out, as each Subscription changes them. Raises
    `InvalidDocument`."""
    channel = parse(KafkaChannel, omit_subscribers(document))
    spec = BrokerSpec(delivery=channel.spec.delivery)
    # If a change of one Subscription changed the Broker, all others would be reconciled.
    metadata = channel.metadata.model_copy(update={"generation": 0})
    kept_annotations = {
        key: value
        for key, value in channel.status.annotations.items()
        if key != DECLARED and not key.startswith(PROMISE)
    }
    status = channel.status.model_copy(update={"annotations": kept_annotations})
    fields = {**_resource_fields(channel), "metadata": metadata, "status": status}
    return Broker(spec=spec, **fields)


def subscription_as_trigger(subscription: Subscription) -> Trigger:
    """Return a Subscription as a Trigger, whose `kind` is still Subscription."""
    subscription_spec = subscription.spec
    spec = TriggerSpec(
        broker=subscription_spec.channel.name,
        subscriber=subscription_spec.subscriber,
        delivery=subscription_spec.delivery,
    )
    return Trigger(spec=spec, **_resource_fields(subscription))


def _resource_fields(resource: Resource) -> dict[str, Any]:
    """Return a resource's type, metadata and status, by field name."""
    return {name: getattr(resource, name) for name in Resource.model_fields}


BROKERS: Final = Family(
    EVENTING,
    "Broker",
    EVENTING,
    "Trigger",
    read_broker=lambda document: parse(Broker, document),
    read_trigger=lambda document: parse(Trigger, document),
    broker_of=_broker_of_trigger,
    reply_of=lambda document: None,
    peers_finalizer=PEERS_FINALIZER,
)

CHANNELS: Final = Family(
    KAFKA_CHANNEL_VERSIONS[0],
    "KafkaChannel",
    MESSAGING,
    "Subscription",
    read_broker=_parse_channel_as_broker,
    read_trigger=lambda document: subscription_as_trigger(parse(Subscription, document)),
    broker_of=_channel_of,
    reply_of=lambda document: parse(Subscription, document).spec.reply,
    peers_finalizer=PEERS_CHANNEL_FINALIZER,
    infix="-channel",
    centralized=True,
    internal_name_of=names.of_channel,
)


def _parse_source_as_broker(document: Document) -> Broker:
    """Parse a KafkaSource's type, metadata and status as a Broker with the default spec. Raises
    `InvalidDocument`."""
    # `Resource` has no spec and refuses one. Parsing ignores fields that are null.
    return Broker(**_resource_fields(parse(Resource, {**document, "spec": None})))


def _cast_to_source(trigger: Trigger) -> SourceTrigger:
    """Return a Trigger of the family `SOURCES` unchanged, for the type checker: such a Trigger is
    always a `SourceTrigger`."""
    assert isinstance(trigger, SourceTrigger)
    return trigger


SOURCES: Final = Family(
    SOURCES_VERSION,
    KAFKA_SOURCE,
    SOURCES_VERSION,
    KAFKA_SOURCE,
    read_broker=_parse_source_as_broker,
    read_trigger=parse_source_as_trigger,
    broker_of=Identity.of,
    reply_of=lambda document: None,
    peers_finalizer=PEERS_SOURCE_FINALIZER,
    infix="-source",
    internal_name_of=names.of_source,
    egress_fields=lambda trigger: _cast_to_source(trigger).egress_fields(),
    credentials_volume_of=lambda trigger: _cast_to_source(trigger).credentials_volume(),
    owns_group=False,
)

FAMILIES: Final = (BROKERS, CHANNELS, SOURCES)


def family_of(kind: str) -> Family:
    """Return the family of a kind: Broker, Trigger, KafkaChannel, Subscription or KafkaSource; for
    any other kind, `BROKERS`."""
    if kind == SOURCES.trigger:
        return SOURCES
    return CHANNELS if kind in (CHANNELS.broker, CHANNELS.trigger) else BROKERS
