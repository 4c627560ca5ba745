"""Trigger: decides the status and the effects of an observed Trigger. Pure.

Read top-down: each condition is one step, and the decision ends at the first failed condition that
later ones need; then come the effects. `SubscriptionReady` is True on the assumption that every
effect succeeds. An error that is raised within `conditions.step(X)` goes no further: it becomes the
reason of the condition X.

Not here: the effects of delivery (`delivery_effects`).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from knafka.core.contract import Egress, Sink
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decisions.effects import Effect, StopDelivery
from knafka_operator.decisions.status import (
    BROKER_READY,
    DEAD_LETTER_SINK_RESOLVED,
    DEPENDENCY_READY,
    OIDC_IDENTITY_CREATED,
    SUBSCRIBER_RESOLVED,
    SUBSCRIPTION_READY,
    TRIGGER_CONDITIONS,
    ConditionSet,
    no_dead_letter_sink_condition,
    value_or_raise,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.dispatchers import conditions as trigger_conditions
from knafka_operator.dispatchers.conditions import check_broker, check_dependency, check_min_scale
from knafka_operator.functions import dispatcher_services, service_accounts, services
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import egresses, shards
from knafka_operator.kafka.desired import SensorActions
from knafka_operator.kafka.shards import DISPATCHER_KEY, ShardPlacement, SharedContract
from knafka_operator.model.autoscaling import DEFAULT_AUTOSCALING, Autoscaling
from knafka_operator.model.cluster import status_annotations
from knafka_operator.model.conditions import Condition, Status
from knafka_operator.model.family import BROKERS, family_of
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import (
    BATCH_PAYLOAD,
    GROUP_STATUS,
    PAUSED_ANNOTATION,
    PAYLOAD,
    Trigger,
)
from knafka_operator.records.delivery import BrokerState, Watched
from knafka_operator.triggers.delivery_effects import delivery_effects, stop_effects
from knafka_operator.triggers.observed import ObservedTrigger
from knafka_operator.triggers.started_topics import STARTED_TOPICS, started_topics_annotation

K = TypeVar("K")
"""The type of a connection to Kafka, which is passed on but never used here."""


@dataclass(frozen=True)
class TriggerDecision(Generic[K]):
    """The effects to run, and the status if all of them succeed. The status after a failed effect
    comes from a second decision, which knows its error."""

    effects: tuple[Effect, ...]
    conditions: ConditionSet
    status: dict[str, Any]
    """The status without conditions, and without annotations that effects write."""
    watched: Watched[K] | None = None
    """The delivery that the effect `StartDelivery` begins; None: nothing is delivered."""
    chosen_isolation: Isolation | None = None
    """The isolation that was chosen for an `auto` Trigger; None: the Trigger isn't `auto`."""


class _TriggerSteps(Generic[K]):
    """The decision of one Trigger while its steps are taken, with the conditions and status so
    far."""

    def __init__(self, observed: ObservedTrigger[K]) -> None:
        """Begin with a status in which no address is known."""
        self.observed = observed
        self.conditions = ConditionSet(TRIGGER_CONDITIONS)
        self.status: dict[str, Any] = {
            "observedGeneration": observed.document["metadata"].get("generation", 0),
            "annotations": observed.annotations,
            "subscriberUri": "",  # empty, not absent, while it is unknown (KN-TRG-03)
            "subscriberCACerts": None,
            "deadLetterSinkUri": None,
            "deadLetterSinkCACerts": None,
            "subscriberAudience": None,
            "deadLetterSinkAudience": None,
        }

    def decision(self, effects: tuple[Effect, ...] = ()) -> TriggerDecision[K]:
        """Return the decision, with these effects, of a Trigger whose events can't be delivered
        yet."""
        return TriggerDecision(effects, self.conditions, self.status)

    def set_waiting(self, message: str) -> None:
        """Set `SubscriptionReady` to Unknown; `message` tells users the reason."""
        self.conditions.set(Condition(SUBSCRIPTION_READY, Status.UNKNOWN, "Waiting", message))


def decide(
    observed: ObservedTrigger[K], groups_of_others: Container[str], settings: Settings
) -> TriggerDecision[K]:
    """Decide a Trigger's conditions, status and effects; the effects are in the order in which they
    must run (`decisions.steps.TRIGGER_ORDER`). If they have run already (`observed.acted`), the
    decision has none. `groups_of_others` has the consumer groups of other Triggers.
    """
    decision = _decide(observed, groups_of_others, settings)
    if observed.failure is not None:
        decision.conditions.fail(SUBSCRIPTION_READY, observed.failure)
    if (account_error := observed.failed.get(Step.APPLY_ACCOUNT)) is not None:
        decision.conditions.fail(OIDC_IDENTITY_CREATED, account_error)
    return replace(decision, effects=()) if observed.acted else decision


def _decide(
    observed: ObservedTrigger[K], groups_of_others: Container[str], settings: Settings
) -> TriggerDecision[K]:
    """Take the steps of `decide`, which then adds the errors of failed effects. Returns as soon as
    something is missing without which nothing can be delivered."""
    steps = _TriggerSteps(observed)
    conditions = steps.conditions
    if isinstance(observed.trigger, InvalidDocument):
        conditions.fail(SUBSCRIPTION_READY, observed.trigger)
        return steps.decision()
    trigger, broker = observed.trigger, observed.broker
    paused = trigger.metadata.annotations.get(PAUSED_ANNOTATION) == "true"
    # An unpaused Trigger keeps its functions, as they may be needed again soon.
    effects_to_stop = stop_effects(observed.document, settings) if paused else (StopDelivery(),)
    if paused:
        conditions.set(trigger_conditions.DELIVERY_PAUSED)
    _check_broker_and_dependency(trigger, steps)
    subscriber, reply = _resolve_subscriber(steps)
    if broker is None:
        steps.set_waiting(f"it has no {family_of(trigger.kind).broker} that could send it events")
        # A running delivery ends only if its Broker is gone: one that exists may not be reconciled
        # yet.
        lost_broker = observed.watched is not None and observed.stored_broker is None
        return steps.decision(effects_to_stop if paused or lost_broker else ())

    _record_started_topics(trigger, broker, steps)
    conditions.set(
        service_accounts.ACCOUNT_WAITS if broker.oidc else service_accounts.OIDC_DISABLED
    )
    if isinstance(observed.actions, KnafkaError):
        conditions.fail(SUBSCRIPTION_READY, observed.actions)
        return steps.decision(stop_effects(observed.document, settings))
    dead_letter_sink = _resolve_dead_letter_sink(trigger, broker, subscriber, steps)
    if subscriber is None or not conditions.holds(
        DEPENDENCY_READY, SUBSCRIBER_RESOLVED, DEAD_LETTER_SINK_RESOLVED
    ):
        steps.set_waiting("it has no subscriber to deliver to: its events wait in Kafka")
        return steps.decision(effects_to_stop)

    destinations = egresses.TriggerDestinations(subscriber, dead_letter_sink, reply)
    if broker.oidc:
        destinations = _decide_sender(trigger, destinations, steps)
        if destinations.sender is None and destinations.have_audience:
            steps.set_waiting("it has no service account to send as: its events wait in Kafka")
            return steps.decision(effects_to_stop)
    decision = _decide_delivery(trigger, broker, destinations, groups_of_others, settings, steps)
    return decision or steps.decision(effects_to_stop if paused else ())


def _check_broker_and_dependency(trigger: Trigger, steps: _TriggerSteps[K]) -> None:
    """Decide `BrokerReady` and `DependencyReady`."""
    observed, family = steps.observed, family_of(trigger.kind)
    with steps.conditions.step(BROKER_READY):
        if observed.unreachable is not None:
            raise observed.unreachable
        name, stored_broker = trigger.spec.broker, observed.stored_broker
        check_broker(family, name, observed.stopped, observed.broker, stored_broker)
    with steps.conditions.step(DEPENDENCY_READY):
        check_dependency(trigger, value_or_raise(observed.dependency))


def _resolve_subscriber(steps: _TriggerSteps[K]) -> tuple[Sink | None, Sink | None]:
    """Decide `SubscriberResolved`. Returns the subscriber (None: it has no address) and the
    declared destination of its replies (None: the Broker, or for a Subscription nobody)."""
    subscriber = reply = None
    with steps.conditions.step(SUBSCRIBER_RESOLVED):
        subscriber = value_or_raise(steps.observed.subscriber)
        assert subscriber is not None
        steps.status["subscriberUri"] = subscriber.url
        steps.status["subscriberCACerts"] = subscriber.ca_certs
        if (reply := value_or_raise(steps.observed.reply)) is not None:
            steps.status["replyUri"] = reply.url  # KN-SUB-03
            steps.status["replyCACerts"] = reply.ca_certs
    return subscriber, reply


def _resolve_dead_letter_sink(
    trigger: Trigger, broker: BrokerState[K], subscriber: Sink | None, steps: _TriggerSteps[K]
) -> Sink | None:
    """Decide `DeadLetterSinkResolved`, and warn if one of the Trigger's destinations leads back to
    its Broker. Returns the sink; None: none is declared, or it has no address."""
    declared = egresses.dead_letter_destination(trigger, broker.broker)
    resolved = None
    with steps.conditions.step(DEAD_LETTER_SINK_RESOLVED):
        if declared is None:
            steps.conditions.set(no_dead_letter_sink_condition())
        elif (resolved := value_or_raise(steps.observed.dead_letter_sink)) is not None:
            steps.status["deadLetterSinkUri"] = resolved.url  # KN-TRG-04
            steps.status["deadLetterSinkCACerts"] = resolved.ca_certs
    loop = trigger_conditions.loop_condition(
        trigger, steps.observed.document, declared, subscriber, resolved
    )
    if loop is not None and steps.observed.actions is None:  # not for a Sensor's actions
        steps.conditions.set(loop)
    return resolved


def _decide_sender(
    trigger: Trigger, destinations: egresses.TriggerDestinations, steps: _TriggerSteps[K]
) -> egresses.TriggerDestinations:
    """Decide `OIDCIdentityCreated`, and write account and audiences into the status. Returns the
    destinations with the service account that the Trigger sends as. If the Trigger may not have
    that account, the condition has the error, and the destinations are returned unchanged."""
    with steps.conditions.step(OIDC_IDENTITY_CREATED):
        sender = service_accounts.sender_account(trigger, steps.observed.document)
        destinations = replace(destinations, sender=sender)
        steps.status["auth"] = {"serviceAccountName": sender}
        steps.status.update(_audience_fields(destinations))
        steps.conditions.set_true(OIDC_IDENTITY_CREATED)
    return destinations


def _decide_delivery(
    trigger: Trigger,
    broker: BrokerState[K],
    destinations: egresses.TriggerDestinations,
    groups_of_others: Container[str],
    settings: Settings,
    steps: _TriggerSteps[K],
) -> TriggerDecision[K] | None:
    """Decide `SubscriptionReady`. Returns the decision with the delivery and the effects that start
    it; None: nothing can be delivered, and the condition says why."""
    observed, actions = steps.observed, steps.observed.actions
    assert not isinstance(actions, KnafkaError)
    with steps.conditions.step(SUBSCRIPTION_READY):
        egress, autoscaling = _desired_delivery(
            trigger, broker, destinations, actions, observed, groups_of_others, settings
        )
        contract = value_or_raise(observed.contract)
        place, chosen_isolation = _choose_dispatcher(
            trigger, broker, egress, autoscaling, contract, observed, settings
        )
        watched = Watched(
            broker.kafka, egress, autoscaling, broker.partitions, broker.secret, place
        )
        if autoscaling.paused:
            steps.status["annotations"].pop(DISPATCHER_KEY, None)
        broker_to_read = broker if actions is None else replace(broker, topic=actions.topic)
        effects: tuple[Effect, ...] = ()
        if not observed.acted:
            effects = delivery_effects(
                trigger, broker_to_read, watched, contract or SharedContract(), observed, settings
            )
        account = service_accounts.account_in_status(observed.document)
        if account is not None and not broker.oidc:
            # The status names the account until its deletion has succeeded.
            if not observed.acted:
                effects += (service_accounts.account_deletion(observed.document, account),)
            auth_status = None if observed.failure is None else {"serviceAccountName": account}
            steps.status["auth"] = auth_status
        return TriggerDecision(effects, steps.conditions, steps.status, watched, chosen_isolation)
    return None


def _record_started_topics(
    trigger: Trigger, broker: BrokerState[K], steps: _TriggerSteps[K]
) -> None:
    """Record in the status on which external topics the Trigger's group has got start offsets. A
    topic that the Trigger no longer reads is left out: if added again, it starts like a new one."""
    annotations, observed = steps.status["annotations"], steps.observed
    group = annotations.get(GROUP_STATUS)
    if group is None or observed.actions is not None or not broker.topic.external:
        return
    more_topics = family_of(trigger.kind).egress_fields(trigger).get("more_topics", ())
    servers = broker.defaults.kafka.bootstrap_servers
    if started := observed.started_topics((broker.topic.name, *more_topics), servers, group):
        annotations[STARTED_TOPICS] = started_topics_annotation(started, servers, group)


def _desired_delivery(
    trigger: Trigger,
    broker: BrokerState[K],
    destinations: egresses.TriggerDestinations,
    actions: SensorActions | None,
    observed: ObservedTrigger[K],
    groups_of_others: Container[str],
    settings: Settings,
) -> tuple[Egress, Autoscaling]:
    """Return the Trigger's Egress, its part of a dispatcher's contract, and its autoscaling.
    `actions` are the actions of a Sensor that the Trigger delivers; None: it delivers its Broker's
    events. `groups_of_others` has the consumer groups of other Triggers.

    Raises `InvalidDocument` for an invalid annotation, and `NotReady` for a min-scale that the
    namespace may not have.
    """
    autoscaling = Autoscaling.from_annotations(
        trigger.metadata.annotations, DEFAULT_AUTOSCALING, settings.maxima
    )
    granted, others = observed.granted_min_scale, observed.others_min_scale
    check_min_scale(autoscaling.min_scale, granted, others, settings.maxima)
    topic = broker.topic if actions is None else actions.topic
    defaults, naming = broker.defaults, settings.naming
    egress = egresses.trigger_egress(
        trigger, broker.broker, topic, destinations, defaults, groups_of_others, naming
    )
    if actions is not None:
        fields = _sensor_action_fields(trigger, broker, actions)
        # Its drains never rest (`scale.filter_rest`): few events of its topic are filtered out.
        return egress.model_copy(update=fields), replace(autoscaling, may_rest=False)
    if not settings.record_position:
        egress = egress.model_copy(update={"record_position": False})
    return egress, autoscaling


def _sensor_action_fields(
    trigger: Trigger, broker: BrokerState[K], actions: SensorActions
) -> dict[str, Any]:
    """Return the Egress's fields that differ from an ordinary Trigger's if it delivers a Sensor's
    actions: it filters by the Sensor's trigger, and replies still go to the Broker's topic. The
    actions are in an internal topic, whose positions mean nothing to subscribers."""
    fields: dict[str, Any] = {
        "filters": actions.filters,
        "batch": trigger.metadata.annotations.get(PAYLOAD) == BATCH_PAYLOAD,
        "record_position": False,
        "shares_topic": False,
    }
    if trigger.kind == BROKERS.trigger:
        fields["reply_topic"] = broker.topic.name
    return fields


def _choose_dispatcher(
    trigger: Trigger,
    broker: BrokerState[K],
    egress: Egress,
    autoscaling: Autoscaling,
    contract: SharedContract | None,
    observed: ObservedTrigger[K],
    settings: Settings,
) -> tuple[ShardPlacement | None, Isolation | None]:
    """Return the shard, a shared dispatcher, that delivers the Trigger (None: its own dispatcher
    does, or it is paused), and the isolation that was chosen for an `auto` Trigger (None: it isn't
    `auto`). `contract` is the contract of the Broker's shards; None: the Broker has none."""
    # A Trigger that reads another topic than its Broker's can't share a dispatcher.
    if contract is None or observed.actions is not None:
        return None, None
    default = settings.isolation if trigger.kind == BROKERS.trigger else Isolation.SHARED
    isolation = shards.effective_isolation(trigger, broker.broker, default)
    chosen_isolation = None
    if isolation is Isolation.AUTO:
        isolation = chosen_isolation = _automatic_isolation(
            trigger, egress, autoscaling, contract, observed
        )
    if isolation is not Isolation.SHARED or autoscaling.paused:
        return None, chosen_isolation
    number = shards.shard_number_for(egress.group, contract.numbers, settings.shard_size)
    return shards.shard_placement(broker.broker, number, broker.defaults.kafka), chosen_isolation


def _audience_fields(destinations: egresses.TriggerDestinations) -> dict[str, str | None]:
    """Return the status fields with the OIDC audiences of a Trigger's destinations."""
    dead_letter_sink, reply = destinations.dead_letter_sink, destinations.reply
    audiences = {
        "subscriberAudience": destinations.subscriber.audience,
        "deadLetterSinkAudience": None if dead_letter_sink is None else dead_letter_sink.audience,
    }
    return audiences if reply is None else {**audiences, "replyAudience": reply.audience}


def _automatic_isolation(
    trigger: Trigger,
    egress: Egress,
    autoscaling: Autoscaling,
    contract: SharedContract,
    observed: ObservedTrigger[K],
) -> Isolation:
    """Return the isolation of an `auto` Trigger, `SHARED` or `OWN`, by its activity and its current
    dispatcher (`shards.automatic_isolation`)."""
    annotations = status_annotations(observed.document)
    own_dispatcher = dispatcher_services.dispatcher_name(
        family_of(trigger.kind), services.identity_of(trigger)
    )
    return shards.automatic_isolation(
        observed.chosen_isolation,
        observed.watched.isolation if observed.watched else None,
        drains_always=bool(autoscaling.min_scale),
        has_record=egress.group in contract.records,
        has_own=annotations.get(DISPATCHER_KEY) == own_dispatcher,
    )
