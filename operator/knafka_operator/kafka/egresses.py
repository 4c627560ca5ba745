"""Egresses: builds a Trigger's entry of the contract from what is declared.

    Trigger, Broker, Topic, resolved sinks -> Egress -> Egress of its replays

An `Egress` is the contract of a Trigger's dispatcher: what to read, which events to deliver, and
where to. Pure. Not here: resolving references to addresses (`Sink`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from knafka.core import names
from knafka.core.contract import Delivery, Egress, Order, Sink, TopicSettings
from knafka.core.errors import InvalidDocument
from knafka.core.filters.declared_filters import AttributesFilter
from knafka_operator.installation.naming import DEFAULT_NAMING, NameKind, Naming
from knafka_operator.kafka import dead_letter_topics, kafka_settings
from knafka_operator.kafka.desired import Defaults, kept_or_new_name, max_record_bytes
from knafka_operator.model.family import CHANNELS, family_of
from knafka_operator.model.resources import (
    DELIVERY_ORDER,
    GROUP_STATUS,
    MAX_IN_FLIGHT,
    Broker,
    DeliverySpec,
    Destination,
    Trigger,
    annotation_path,
    parse_whole_number,
)
from knafka_operator.model.topics import Topic

ORDERS_BY_ANNOTATION: Final[Mapping[str, Order]] = {
    "ordered": Order.PARTITION,
    "unordered": Order.NONE,
    "key": Order.KEY,
}
"""Values of the annotation `delivery.order`; `key` is Knafka's, and the default for Triggers."""

MAX_IN_FLIGHT_DEFAULT: Final[int] = Egress.model_fields["max_in_flight"].default
"""Events that may be with a subscriber at once, without the annotation `MAX_IN_FLIGHT`."""
LARGEST_MAX_IN_FLIGHT: Final = 10_000
"""Largest value of the annotation `MAX_IN_FLIGHT`."""


@dataclass(frozen=True, slots=True)
class TriggerDestinations:
    """The resolved destinations of a Trigger's events, and the service account that sends them."""

    subscriber: Sink
    dead_letter_sink: Sink | None = None
    """The resolved `dead_letter_destination`; None: dead letters go only to the dead-letter topic.
    """
    reply: Sink | None = None
    """The destination of a Subscription's replies; None: a Trigger's replies go to its Broker, a
    Subscription's are discarded."""
    sender: str | None = None
    """The service account whose tokens are sent to destinations with an audience; None: no tokens
    are sent."""

    @property
    def have_audience(self) -> bool:
        """Whether any destination has an audience, so that requests to it need a token."""
        sinks = self.subscriber, self.dead_letter_sink, self.reply
        return any(sink is not None and sink.audience for sink in sinks)

    def without_unused_audiences(self) -> TriggerDestinations:
        """Return the destinations as dispatchers use them: if there is no sender, and so no token,
        none of them has an audience."""
        if self.sender is not None:
            return self
        return TriggerDestinations(
            _without_audience(self.subscriber),
            self.dead_letter_sink and _without_audience(self.dead_letter_sink),
            self.reply and _without_audience(self.reply),
        )


def trigger_egress(
    trigger: Trigger,
    broker: Broker,
    topic: Topic,
    destinations: TriggerDestinations,
    defaults: Defaults,
    groups_of_others: Container[str] = frozenset(),
    naming: Naming = DEFAULT_NAMING,
) -> Egress:
    """Return the Egress, the dispatcher's contract, of one Trigger, Subscription or KafkaSource.
    The dispatcher reads `topic`, its Broker's, with the Kafka of `defaults`. `groups_of_others` has
    the consumer groups of other Triggers. Raises `InvalidDocument` for an invalid annotation, and
    `NameTaken` if there is no free name for the Trigger's group (`kept_or_new_name`)."""
    sender, destinations = destinations.sender, destinations.without_unused_audiences()
    namespace, name = trigger.metadata.namespace, trigger.metadata.name
    delivery_spec, family = _effective_delivery(trigger, broker), family_of(trigger.kind)
    internal_broker_name = family.own_name(broker.metadata.name)

    def dead_letter_settings(*declared: Mapping[str, str]) -> TopicSettings:
        """Return the settings of a dead-letter topic; `declared` has the annotations that may set
        its retention, those with precedence first."""
        return dead_letter_topics.dead_letter_topic_settings(
            topic.config,
            # The replication of an external topic isn't known here: -1 is Kafka's default.
            -1 if topic.external else topic.replication,
            max_record_bytes(topic.config),
            dead_letter_topics.effective_retention(defaults.dead_letter_retention, *declared),
        )

    trigger_annotations = trigger.metadata.annotations
    broker_annotations = broker.metadata.annotations
    trigger_settings = dead_letter_settings(trigger_annotations, broker_annotations)
    broker_settings = dead_letter_settings(broker_annotations)
    egress = Egress(
        namespace=namespace,
        broker=broker.metadata.name,
        trigger=name,
        kind="Subscription" if family is CHANNELS else "Trigger",
        topic=topic.name,
        group=_consumer_group(trigger, broker, groups_of_others, naming),
        reply=destinations.reply,
        dead_letter_topic=names.dead_letter_topic(namespace, internal_broker_name, name),
        dead_letter_settings=trigger_settings,
        # None if they are the same: dispatchers of an earlier release don't know this field.
        broker_dead_letter_settings=None
        if broker_settings == trigger_settings
        else broker_settings,
        kafka=kafka_settings.with_annotation_settings(defaults.kafka, trigger_annotations),
        subscriber=destinations.subscriber,
        dead_letter_sink=destinations.dead_letter_sink,
        delivery=defaults.delivery if delivery_spec is None else _delivery_options(delivery_spec),
        filter=trigger.spec.filter,
        filters=trigger.spec.filters,
        order=_parse_order(trigger),
        max_in_flight=_max_in_flight(trigger),
        rate_limit=kafka_settings.rate_limit(trigger_annotations),
        at_most_once=kafka_settings.is_at_most_once(trigger_annotations),
    ).model_copy(update=dict(family.egress_fields(trigger)))  # a KafkaSource's own fields
    # Without a destination that requires a token, no service account is needed.
    return egress.model_copy(update={"service_account": sender}) if egress.needs_tokens else egress


def _without_audience(sink: Sink) -> Sink:
    """Return a sink to which no token is sent."""
    return sink.model_copy(update={"audience": None})


def _consumer_group(
    trigger: Trigger, broker: Broker, groups_of_others: Container[str], naming: Naming
) -> str:
    """Return the name of a Trigger's or Subscription's consumer group. Raises `NameTaken` if the
    name is in `groups_of_others`, and the Trigger can't get a distinct one (`kept_or_new_name`)."""
    if family_of(trigger.kind) is CHANNELS:
        name_parts = trigger.metadata.namespace, broker.metadata.name, trigger.metadata.uid
        return names.subscription_group(*name_parts)
    # The Trigger keeps the group in its status if the name template changes (KN-BRK-19), but only
    # if naming rules allow that group for this Trigger.
    return kept_or_new_name(NameKind.TRIGGER_GROUP, trigger, GROUP_STATUS, groups_of_others, naming)


def dead_letter_destination(trigger: Trigger, broker: Broker) -> Destination | None:
    """Return the declared dead letter sink of a Trigger; its Broker's if the Trigger itself
    declares no delivery option. None: no sink is declared."""
    spec = _effective_delivery(trigger, broker)
    return None if spec is None else spec.dead_letter_sink


def replay_egress(egress: Egress) -> Egress:
    """Return the Egress of a Trigger's replayer, which delivers replayed dead letters from the
    replay topic. It has the Trigger's subscriber, retries and dead-letter topic, but not its
    filters, which these events have passed before.
    """
    topic_and_group = replay_topic(egress)
    return egress.model_copy(
        update={
            "topic": topic_and_group,
            "more_topics": (),
            "group": topic_and_group,
            "conversion": None,  # dead letters of a KafkaSource are events already
            "reply_topic": egress.reply_topic or egress.topic,
            "shares_topic": False,
            "filter": AttributesFilter(),
            "filters": (),
        }
    )


def replay_topic(egress: Egress) -> str:
    """Return the name of the topic from which a Trigger's dead letters are replayed."""
    internal_broker_name = family_of(egress.kind).own_name(egress.broker)
    return names.replay_topic(egress.namespace, internal_broker_name, egress.trigger)


def _effective_delivery(trigger: Trigger, broker: Broker) -> DeliverySpec | None:
    """Return the Trigger's delivery spec if it sets any option, else its Broker's; None: neither
    sets any (KN-BRK-15)."""
    for spec in (trigger.spec.delivery, broker.spec.delivery):
        if spec.is_set:
            return spec
    return None


def _delivery_options(spec: DeliverySpec) -> Delivery:
    """Return the options of a declared delivery spec, such as retries and backoff, without its dead
    letter sink."""
    return Delivery(**{name: getattr(spec, name) for name in Delivery.model_fields})


def order_name(trigger: Trigger) -> str:
    """Return the value of a Trigger's `delivery.order` annotation. Without the annotation, return
    the default: `ordered` for Subscriptions (KN-CHN-11), else `key`."""
    default = "ordered" if family_of(trigger.kind) is CHANNELS else "key"
    return trigger.metadata.annotations.get(DELIVERY_ORDER, default)


def _parse_order(trigger: Trigger) -> Order:
    """Return a Trigger's delivery order, declared or by default. Raises `InvalidDocument` for an
    unknown one."""
    name = order_name(trigger)
    if name not in ORDERS_BY_ANNOTATION:
        raise InvalidDocument(
            annotation_path(DELIVERY_ORDER),
            f"invalid value: {name:.80}: want {', '.join(ORDERS_BY_ANNOTATION)}",
        )
    return ORDERS_BY_ANNOTATION[name]


def _max_in_flight(trigger: Trigger) -> int:
    """Return the most events that may be with the subscriber at once, from the annotation or the
    default. Raises `InvalidDocument` for an invalid annotation."""
    declared = trigger.metadata.annotations.get(MAX_IN_FLIGHT)
    if declared is None:
        return MAX_IN_FLIGHT_DEFAULT
    return parse_whole_number(declared, annotation_path(MAX_IN_FLIGHT), 1, LARGEST_MAX_IN_FLIGHT)
