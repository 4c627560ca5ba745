"""Trigger: decides the status and the effects of an observed Trigger. Pure.

Read top-down: each condition is one step, and the decision ends at the first failed condition that
later ones need; then come the effects. `SubscriptionReady` is True on the assumption that every
effect succeeds. More than 400 lines, so that a Trigger's decision is in one file.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from knafka.core.contract import Egress, SharedEgress, Sink
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decisions.effects import (
    Annotate,
    ApplyService,
    ApplyShard,
    AwaitReplacement,
    AwaitShard,
    ClaimGroup,
    CommitOffsets,
    CreateContract,
    Delete,
    DeleteGroup,
    Effect,
    ObjectName,
    StartDelivery,
    StopDelivery,
    Wake,
    WriteContract,
)
from knafka_operator.decisions.observed import ObservedObject
from knafka_operator.decisions.status import (
    BROKER_READY,
    DEAD_LETTER_SINK_RESOLVED,
    DEPENDENCY_READY,
    OIDC_IDENTITY_CREATED,
    SUBSCRIBER_RESOLVED,
    SUBSCRIPTION_READY,
    TRIGGER_CONDITIONS,
    ConditionSet,
    is_ready,
    no_dead_letter_sink_condition,
    value_or_raise,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.dispatchers import conditions as trigger_conditions
from knafka_operator.dispatchers.conditions import check_broker, check_dependency, check_min_scale
from knafka_operator.functions import dispatcher_services, service_accounts, services
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired, kafka_settings, shards
from knafka_operator.kafka.dead_letter_topics import DEAD_LETTER_TOPIC
from knafka_operator.kafka.desired import SensorActions
from knafka_operator.kafka.shards import DISPATCHER_KEY, ShardPlacement, SharedContract
from knafka_operator.model.autoscaling import DEFAULT_AUTOSCALING, Autoscaling
from knafka_operator.model.conditions import Condition, Status
from knafka_operator.model.family import BROKERS, family_of
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import (
    BATCH_PAYLOAD,
    GROUP_STATUS,
    PAUSED_ANNOTATION,
    PAYLOAD,
    SERVING,
    START,
    Trigger,
)
from knafka_operator.records.delivery import BrokerState, Watched, offsets_key

K = TypeVar("K")
"""The type of a connection to Kafka, which is passed on but never used here."""

RECORDED_BEFORE_CREATION: Final = (GROUP_STATUS, DISPATCHER_KEY)
"""Keys of `status.annotations` that are written before the group or Service that they name is
created."""


@dataclass(frozen=True)
class ObservedTrigger(ObservedObject, Generic[K]):
    """A Trigger and everything read for its decision; where reading failed, the error stands for
    the value."""

    trigger: Trigger | InvalidDocument
    broker: BrokerState[K] | None = None
    stored_broker: Mapping[str, Any] | None = None
    """The Broker's document, read only if it has no topic; None: it doesn't exist."""
    stopped: str | None = None
    """Why the Trigger's Broker may not use its topic; None: it may."""
    unreachable: KnafkaError | None = None
    """Why a KafkaSource's Kafka can't be used."""
    dependency: Mapping[str, Any] | KnafkaError | None = None
    """The object that the annotation `knative.dev/dependency` names; None: it doesn't exist."""
    subscriber: Sink | KnafkaError | None = None
    dead_letter_sink: Sink | KnafkaError | None = None
    """None: neither the Trigger nor its Broker declares one."""
    reply: Sink | KnafkaError | None = None
    """None: replies go to the Broker's topic; a Subscription's are discarded."""
    watched: Watched[K] | None = None
    """The delivery that is running; None: there is none."""
    replaced: bool = False
    """Whether pods of an older Revision may still drain without requests."""
    contract: SharedContract | KnafkaError | None = None
    """The contract of the Broker's shared dispatchers; None: there are none here."""
    actions: SensorActions | KnafkaError | None = None
    """A Sensor's firings, which the Trigger delivers; None: it delivers its Broker's events."""
    needed: Isolation | None = None
    """The isolation that an `auto` Trigger was last found to need; None: not known."""
    foreign_groups: frozenset[str] = frozenset()
    """Existing groups of applications whose name is the one that a template gives to the Trigger's
    group."""
    others_min_scale: int = 0
    """Sum of min-scale of the other Triggers in the namespace."""
    acted: bool = False
    """Whether the effects have run, up to the first that failed; then the decision contains
    none."""

    @property
    def failure(self) -> KnafkaError | None:
        """Return the error of the effect that failed; None: none has failed."""
        return next(iter(self.failed.values()), None)

    def after(self, effect: Effect, result: Any) -> ObservedTrigger[K]:
        """Return a copy that includes an effect's result."""
        observed = super().after(effect, result)
        start = (self.document["metadata"].get("annotations") or {}).get(START)
        status = (self.document.get("status") or {}).get("annotations") or {}
        match effect:
            case CommitOffsets(group) if start is not None and status.get(GROUP_STATUS) != group:
                return observed.with_annotations({START: start})
        return observed


@dataclass(frozen=True)
class TriggerDecision(Generic[K]):
    """The effects to run, and the status if all of them succeed."""

    effects: tuple[Effect, ...]
    conditions: ConditionSet
    status: dict[str, Any]
    """The status without conditions, and without annotations that effects write."""
    watched: Watched[K] | None = None
    """The delivery from `StartDelivery` on; None: nothing is delivered."""
    automatic: Isolation | None = None
    """The isolation that was chosen for an `auto` Trigger; None: it isn't `auto`."""


def decide(
    observed: ObservedTrigger[K], taken: Container[str], settings: Settings
) -> TriggerDecision[K]:
    """Decide a Trigger's conditions, status and effects, which keep `TRIGGER_ORDER`.

    `taken` has the consumer groups of other Triggers.
    """
    decision = _decide(observed, taken, settings)
    decision.status["annotations"].update(observed.written)
    if observed.failure is not None:
        decision.conditions.fail(SUBSCRIPTION_READY, observed.failure)
    if (account_error := observed.failed.get(Step.APPLY_ACCOUNT)) is not None:
        decision.conditions.fail(OIDC_IDENTITY_CREATED, account_error)
    return replace(decision, effects=()) if observed.acted else decision


def _decide(
    observed: ObservedTrigger[K], taken: Container[str], settings: Settings
) -> TriggerDecision[K]:
    """Decide a Trigger's conditions, status and delivery, and the effects to run next. Returns as
    soon as something is missing without which nothing can be delivered."""
    previous_status = observed.document.get("status") or {}
    conditions = ConditionSet(TRIGGER_CONDITIONS)
    status: dict[str, Any] = {
        "observedGeneration": observed.document["metadata"].get("generation", 0),
        "annotations": dict(previous_status.get("annotations") or {}),
        "subscriberUri": "",  # KN-TRG-03
        "subscriberCACerts": None,
        "deadLetterSinkUri": None,
        "deadLetterSinkCACerts": None,
        "subscriberAudience": None,
        "deadLetterSinkAudience": None,
    }
    subscriber = dead_letter_sink = reply = None

    if isinstance(observed.trigger, InvalidDocument):
        conditions.fail(SUBSCRIPTION_READY, observed.trigger)
        return TriggerDecision((), conditions, status)
    trigger, broker = observed.trigger, observed.broker
    paused = trigger.metadata.annotations.get(PAUSED_ANNOTATION) == "true"
    effects_to_stop = stop_effects(observed.document, settings) if paused else (StopDelivery(),)
    if paused:
        conditions.set(trigger_conditions.DELIVERY_PAUSED)
    with conditions.step(BROKER_READY):
        if observed.unreachable is not None:
            raise observed.unreachable
        broker_reference = family_of(trigger.kind), trigger.spec.broker
        check_broker(*broker_reference, observed.stopped, observed.broker, observed.stored_broker)
    with conditions.step(DEPENDENCY_READY):
        check_dependency(trigger, value_or_raise(observed.dependency))
    with conditions.step(SUBSCRIBER_RESOLVED):
        subscriber = value_or_raise(observed.subscriber)
        assert subscriber is not None
        status["subscriberUri"] = subscriber.url
        status["subscriberCACerts"] = subscriber.ca_certs
        if (reply := value_or_raise(observed.reply)) is not None:
            status["replyUri"] = reply.url  # KN-SUB-03
            status["replyCACerts"] = reply.ca_certs
    if broker is None:
        kind = family_of(trigger.kind).broker
        conditions.set(_waiting_condition(f"it has no {kind} that could send it events"))
        keeps_delivery = not paused and (
            observed.watched is None or observed.stored_broker is not None
        )
        return TriggerDecision(() if keeps_delivery else effects_to_stop, conditions, status)

    conditions.set(
        service_accounts.ACCOUNT_WAITS if broker.oidc else service_accounts.OIDC_DISABLED
    )
    if isinstance(observed.actions, KnafkaError):
        conditions.fail(SUBSCRIPTION_READY, observed.actions)
        return TriggerDecision(stop_effects(observed.document, settings), conditions, status)
    source = broker.topic if observed.actions is None else observed.actions.topic
    sink = desired.dead_letter_destination(trigger, broker.broker)
    with conditions.step(DEAD_LETTER_SINK_RESOLVED):
        if sink is None:
            conditions.set(no_dead_letter_sink_condition())
        elif (dead_letter_sink := value_or_raise(observed.dead_letter_sink)) is not None:
            status["deadLetterSinkUri"] = dead_letter_sink.url  # KN-TRG-04
            status["deadLetterSinkCACerts"] = dead_letter_sink.ca_certs
    loop = trigger_conditions.loop_condition(
        trigger, observed.document, sink, subscriber, dead_letter_sink
    )
    if loop is not None and observed.actions is None:  # not for a Sensor's actions
        conditions.set(loop)
    needed = DEPENDENCY_READY, SUBSCRIBER_RESOLVED, DEAD_LETTER_SINK_RESOLVED
    if subscriber is None or not conditions.holds(*needed):
        conditions.set(
            _waiting_condition("it has no subscriber to deliver to: its events wait in Kafka")
        )
        return TriggerDecision(effects_to_stop, conditions, status)

    sender = None
    with conditions.step(OIDC_IDENTITY_CREATED):
        if broker.oidc:
            sender = service_accounts.sender_account(trigger, observed.document)
            status["auth"] = {"serviceAccountName": sender}
            status.update(_audiences(subscriber, dead_letter_sink, reply))
            conditions.set_true(OIDC_IDENTITY_CREATED)
    wants_token = any(each and each.audience for each in (subscriber, dead_letter_sink, reply))
    if broker.oidc and sender is None and wants_token:
        conditions.set(
            _waiting_condition("it has no service account to send as: its events wait in Kafka")
        )
        return TriggerDecision(effects_to_stop, conditions, status)
    with conditions.step(SUBSCRIPTION_READY):
        autoscaling = Autoscaling.from_annotations(
            trigger.metadata.annotations, DEFAULT_AUTOSCALING, settings.maxima
        )
        granted = observed.watched.autoscaling.min_scale if observed.watched else 0
        check_min_scale(autoscaling.min_scale, granted, observed.others_min_scale, settings.maxima)
        egress = desired.trigger_egress(
            trigger,
            broker.broker,
            source,
            subscriber,
            dead_letter_sink,
            broker.defaults,
            taken,
            reply,
            sender,
            settings.naming,
        )
        if observed.actions is not None:
            batch = trigger.metadata.annotations.get(PAYLOAD) == BATCH_PAYLOAD
            # A Sensor's actions are in an internal topic, whose positions mean nothing to
            # subscribers.
            sensor_fields: dict[str, Any] = {
                "filters": observed.actions.filters,
                "batch": batch,
                "record_position": False,
                "shares_topic": False,
            }
            if trigger.kind == BROKERS.trigger:
                sensor_fields["reply_topic"] = broker.topic.name
            egress = egress.model_copy(update=sensor_fields)
            autoscaling = replace(autoscaling, may_rest=False)
        elif not settings.record_position:
            egress = egress.model_copy(update={"record_position": False})
        contract = value_or_raise(observed.contract)
        shared = automatic = None
        # A Trigger that reads another topic than its Broker's can't share a dispatcher.
        if contract is not None and observed.actions is None:
            default = settings.isolation if trigger.kind == BROKERS.trigger else Isolation.SHARED
            isolation = shards.effective_isolation(trigger, broker.broker, default)
            if isolation is Isolation.AUTO:
                isolation = automatic = _automatic_isolation(
                    trigger, egress, autoscaling, contract, observed
                )
            if isolation is Isolation.SHARED and not autoscaling.paused:
                number = shards.shard_number_for(
                    egress.group, contract.numbers, settings.shard_size
                )
                shared = shards.shard_placement(broker.broker, number, broker.defaults.kafka)
        watched = Watched(
            broker.kafka, egress, autoscaling, broker.partitions, broker.secret, shared
        )
        if paused:
            status["annotations"].pop(DISPATCHER_KEY, None)
        broker = replace(broker, topic=source)
        effects: tuple[Effect, ...] = ()
        if not observed.acted:
            effects = _delivery_effects(
                trigger, broker, watched, contract or SharedContract(), observed, settings
            )
        account = service_accounts.account_in_status(observed.document)
        if account is not None and not broker.oidc:
            # The status names the account until it is deleted.
            effects += (
                ()
                if observed.acted
                else (service_accounts.delete_accounts(observed.document, account),)
            )
            status["auth"] = None if observed.failure is None else {"serviceAccountName": account}
        return TriggerDecision(effects, conditions, status, watched, automatic)
    return TriggerDecision(effects_to_stop if paused else (), conditions, status)


def _delivery_effects(
    trigger: Trigger,
    broker: BrokerState[K],
    watched: Watched[K],
    contract: SharedContract,
    observed: ObservedTrigger[K],
    settings: Settings,
) -> tuple[Effect, ...]:
    """Return the effects that deliver a Trigger: offsets, Service or shard, scaler. Once they have
    run, no event is missed (KN-TRG-06). A paused Trigger has no Service, so that no pod of
    min-scale drains; the scaler still reports its lag.
    """
    egress, running, place = watched.egress, observed.watched, watched.place
    paused = watched.autoscaling.paused
    promised_group = ((observed.document.get("status") or {}).get("annotations") or {}).get(
        GROUP_STATUS
    )
    record = contract.records.get(egress.group)
    shared = record is not None or egress.group in contract.leaving
    delivered = running or record
    # The same group at other servers, mostly of the same Kafka: the running delivery goes on until
    # the new one is Ready. If it is another Kafka, the group has no members there.
    has_other_offsets = (
        delivered is not None and offsets_key(delivered.egress) != watched.offsets_key()
    )
    elsewhere = (
        delivered is not None
        and has_other_offsets
        and not broker.topic.external
        and (delivered.egress.topics, delivered.egress.group) == (egress.topics, egress.group)
    )
    effects: list[Effect] = []
    if (
        # The delivery has other offsets, which can't be written while a group has members.
        (has_other_offsets and not elsewhere)
        # Before its function is deleted, so that events in flight are settled.
        or (paused and (shared or (running is not None and not running.autoscaling.paused)))
        # Pods of min-scale drain from the moment they start, without a request, so the shard must
        # stop before.
        or (place is None and shared and watched.autoscaling.min_scale)
    ):
        effects.append(StopDelivery())
        running, record, shared = None, None, False
    if paused:
        effects.append(
            _delete_owned(Step.DELETE_FUNCTIONS, own_services(observed.document, settings))
        )
    effects.append(ClaimGroup(egress.group))
    if running is None:
        if promised_group is None and family_of(trigger.kind).owns_group:
            effects.append(DeleteGroup(egress.group))
        if promised_group != egress.group or (broker.topic.external and not paused):
            start = kafka_settings.start_position(trigger.metadata.annotations)
            effects += [CommitOffsets(egress.group, topic, start) for topic in egress.topics]
        # Otherwise the Trigger was promised every event: if Kafka has no offsets of it any more, as
        # its Broker was recreated or it had no member for a week, it begins at the start of the
        # topic.
    if place is not None:
        effects += _shared_effects(
            trigger, broker, watched, contract, place, observed, settings, elsewhere=elsewhere
        )
        return tuple(effects)
    family, identity = family_of(trigger.kind), services.identity_of(trigger)
    name = dispatcher_services.dispatcher_name(family, identity)
    namespace = services.function_namespace(family, identity, settings)
    effects.append(_promise_group(egress, None if paused else name, observed))
    effects += _account_effects(trigger, broker, watched, observed, settings)
    if not paused:
        manifest = dispatcher_services.dispatcher_service(
            trigger,
            egress,
            watched.autoscaling,
            watched.partitions,
            watched.secret,
            settings,
            account=service_accounts.dispatcher_account(egress),
        )
        effects.append(ApplyService(Step.APPLY_DISPATCHER, manifest))
        if shared or (elsewhere and running is not None and running.place is not None):
            url = services.service_url(name, namespace, settings)
            effects += [Wake(url), StopDelivery(Step.HAND_OVER)]
    replaces = observed.replaced
    if running != watched:
        replaces = replaces or (running is not None and running.drains_without_requests)
        effects.append(StartDelivery(watched, replaces))
    if watched.autoscaling.min_scale or replaces or paused:
        effects.append(AwaitReplacement(namespace, name))
    return tuple(effects)


def _shared_effects(
    trigger: Trigger,
    broker: BrokerState[K],
    watched: Watched[K],
    contract: SharedContract,
    place: ShardPlacement,
    observed: ObservedTrigger[K],
    settings: Settings,
    *,
    elsewhere: bool,
) -> Iterator[Effect]:
    """Yield the effects by which a shard delivers a Trigger: they write its record to its Broker's
    contract, apply the shard's Service, and delete the Trigger's own Service if it has one.

    `elsewhere`: the running delivery has the same topics and group, but its offsets are at other
    servers.
    """
    egress, running = watched.egress, observed.watched
    annotations = (observed.document.get("status") or {}).get("annotations") or {}
    family, broker_identity = family_of(trigger.kind), services.identity_of(broker.broker)
    identity = services.identity_of(trigger)
    own_dispatcher, namespace = (
        dispatcher_services.dispatcher_name(family, identity),
        services.function_namespace(family, identity, settings),
    )
    name = dispatcher_services.shard_name(family, broker_identity, place.number)
    # A Trigger whose status records a group has its own Service, unless the status names another
    # dispatcher.
    leaves_own_service = (
        GROUP_STATUS in annotations
        and annotations.get(DISPATCHER_KEY, own_dispatcher) == own_dispatcher
    )
    replaces = observed.replaced or (
        leaves_own_service and (running is None or running.drains_without_requests)
    )
    own_delivers = running is not None and running.place is None and not running.autoscaling.paused
    hands_over = elsewhere or own_delivers
    desired_record = SharedEgress(shard=place.shard.group, egress=egress)
    must_write_record = hands_over or contract.records.get(egress.group) != desired_record

    yield _promise_group(egress, None if leaves_own_service else name, observed)
    yield from _account_effects(trigger, broker, watched, observed, settings)
    if not contract.exists:
        yield CreateContract(shards.contract_topic(broker.broker, broker.topic))
    manifest = dispatcher_services.shard_service(
        broker.broker,
        place.shard,
        place.number,
        watched.secret,
        settings,
        account=service_accounts.shard_account(broker.broker) if broker.oidc else None,
    )
    yield ApplyShard(place.number, manifest)
    if hands_over:
        yield StopDelivery(Step.HAND_OVER)
    if must_write_record:
        yield WriteContract(egress.group, desired_record)
    if hands_over or running != watched:
        yield StartDelivery(watched, replaces)
    if leaves_own_service:
        dispatcher = ObjectName(SERVING, "Service", namespace, own_dispatcher)
        yield _delete_owned(Step.DELETE_DISPATCHER, (dispatcher,), {DISPATCHER_KEY: name})
    if must_write_record or not is_ready(observed.document):
        yield AwaitShard(place.shard.group)
    if replaces:
        yield AwaitReplacement(namespace, own_dispatcher)


def _account_effects(
    trigger: Trigger,
    broker: BrokerState[K],
    watched: Watched[K],
    observed: ObservedTrigger[K],
    settings: Settings,
) -> tuple[Effect, ...]:
    """Return the effects that create the service account with which a dispatcher sends; none
    without OIDC."""
    if not broker.oidc:
        return ()
    shared = watched.place is not None
    account_arguments = trigger, observed.document, broker.broker, watched.egress
    return service_accounts.account_effects(*account_arguments, settings, shared=shared)


def _audiences(
    subscriber: Sink, dead_letter_sink: Sink | None, reply: Sink | None
) -> dict[str, str | None]:
    """Return the status fields with the OIDC audiences of a Trigger's destinations."""
    shown = {
        "subscriberAudience": subscriber.audience,
        "deadLetterSinkAudience": None if dead_letter_sink is None else dead_letter_sink.audience,
    }
    return shown if reply is None else {**shown, "replyAudience": reply.audience}


def stop_effects(document: Mapping[str, Any], settings: Settings) -> tuple[Effect, ...]:
    """Return the effects that end all delivery of a Trigger that is paused, or whose Broker may not
    use its topic."""
    return StopDelivery(), _delete_owned(Step.DELETE_FUNCTIONS, own_services(document, settings))


def own_services(document: Mapping[str, Any], settings: Settings) -> tuple[ObjectName, ...]:
    """Return the names of a Trigger's own Services, which may not exist: dispatcher and
    replayer."""
    family, identity = family_of(document["kind"]), Identity.of(document)
    namespace = services.function_namespace(family, identity, settings)
    service_names = (
        dispatcher_services.dispatcher_name(family, identity),
        dispatcher_services.replayer_name(family, identity),
    )
    return tuple(ObjectName(SERVING, "Service", namespace, name) for name in service_names)


def _delete_owned(
    step: Step, objects: tuple[ObjectName, ...], annotations: Mapping[str, str] | None = None
) -> Delete:
    return Delete(step, objects, owned=True, annotations=annotations or {})


def _promise_group(
    egress: Egress, dispatcher: str | None, observed: ObservedTrigger[K]
) -> Annotate:
    """Return the effect that records the Trigger's group, dead-letter topic and `dispatcher`, the
    Service that will deliver. `dispatcher` None keeps the recorded one, which is still to be
    deleted."""
    promise = {GROUP_STATUS: egress.group, DEAD_LETTER_TOPIC: egress.dead_letter_topic}
    if dispatcher is not None:
        promise[DISPATCHER_KEY] = dispatcher
    status = (observed.document.get("status") or {}).get("annotations") or {}
    is_changed = any(
        key in promise and status.get(key) != promise[key] for key in RECORDED_BEFORE_CREATION
    )
    return Annotate(Step.PROMISE_GROUP, promise, at_once=is_changed)


def _automatic_isolation(
    trigger: Trigger,
    egress: Egress,
    autoscaling: Autoscaling,
    contract: SharedContract,
    observed: ObservedTrigger[K],
) -> Isolation:
    """Return the isolation of an `auto` Trigger, shared or own, by its activity and its current
    dispatcher."""
    annotations = (observed.document.get("status") or {}).get("annotations") or {}
    return shards.automatic_isolation(
        observed.needed,
        observed.watched.isolation if observed.watched else None,
        drains_always=bool(autoscaling.min_scale),
        has_record=egress.group in contract.records,
        has_own=annotations.get(DISPATCHER_KEY)
        == dispatcher_services.dispatcher_name(
            family_of(trigger.kind), services.identity_of(trigger)
        ),
    )


def _waiting_condition(message: str) -> Condition:
    return Condition(SUBSCRIPTION_READY, Status.UNKNOWN, "Waiting", message)
