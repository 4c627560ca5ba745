"""Delivery effects: the effects that start or end the delivery of a Trigger's events. Pure.

A Trigger is delivered by its own dispatcher, or by a shard: a dispatcher that several Triggers of a
Broker share. A shard delivers the Triggers that have a record in its contract, which is a topic. A
Trigger's part of a dispatcher's contract is its Egress: the topics, the group and the destinations.

A drain is a lease by which one pod of a dispatcher delivers. A request begins it, but pods that
min-scale keeps running drain without requests. A `Watched` is a delivery, decided or running, as
the scaler watches it to open drains.

Not here: whether events may be delivered (`decide`), and running the effects (`engine.effects`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TypeVar

from knafka.core.contract import Egress, SharedEgress
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
from knafka_operator.decisions.status import is_ready
from knafka_operator.decisions.steps import Step
from knafka_operator.functions import dispatcher_services, service_accounts, services
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import kafka_settings, shards
from knafka_operator.kafka.dead_letter_topics import DEAD_LETTER_TOPIC
from knafka_operator.kafka.shards import DISPATCHER_KEY, ShardPlacement, SharedContract
from knafka_operator.model.cluster import status_annotations
from knafka_operator.model.family import family_of
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import GROUP_STATUS, SERVING, Trigger
from knafka_operator.records.delivery import BrokerState, Watched, offsets_key
from knafka_operator.triggers.observed import ObservedTrigger

K = TypeVar("K")
"""The type of a connection to Kafka, which is passed on but never used here."""

RECORDED_BEFORE_CREATION: Final = (GROUP_STATUS, DISPATCHER_KEY)
"""Keys of `status.annotations` that name a group or Service. They are written before it is created,
so that a deletion finds it."""


def delivery_effects(
    trigger: Trigger,
    broker: BrokerState[K],
    watched: Watched[K],
    contract: SharedContract,
    observed: ObservedTrigger[K],
    settings: Settings,
) -> tuple[Effect, ...]:
    """Return the effects that deliver a Trigger as `watched` says: they commit its offsets, apply
    its Service or shard, and start its drains. Once they have run, no event is missed (KN-TRG-06).
    A paused Trigger has no Service, so that no pod of min-scale drains; the scaler still reports
    its lag.

    `observed.watched` is the delivery that is running; `contract` is that of the Broker's shards.
    """
    egress = watched.egress
    # If only the bootstrap servers change, they mostly belong to the same Kafka, so the running
    # delivery goes on until the new one is Ready. If it is another Kafka, the group has no members
    # there, so its offsets can be written. With an external topic, delivery stops first, as its
    # group needs its start position at the new servers, too.
    servers_change = not broker.topic.external and _changes_only_servers(
        _delivered_egress(observed, contract, egress.group), egress
    )
    stops_first = _must_stop_first(watched, observed, contract, servers_change=servers_change)
    # What delivers until the new delivery begins: the Trigger's previous delivery, maybe a shard.
    running = None if stops_first else observed.watched
    shard_goes_on = not stops_first and _is_in_shard(contract, egress.group)
    effects: list[Effect] = []
    if stops_first:
        effects.append(StopDelivery())
    if watched.autoscaling.paused:
        effects.append(
            _owned_deletion(Step.DELETE_FUNCTIONS, own_services(observed.document, settings))
        )
    effects.append(ClaimGroup(egress.group))
    if running is None:  # the group has no members, so its offsets can be written
        effects += _offset_effects(trigger, broker, watched, observed)
    if watched.place is not None:
        effects += _shared_effects(
            trigger, broker, watched, contract, observed, settings, servers_change=servers_change
        )
    else:
        # With other servers, the shard that goes on may be in another contract than `contract`.
        takes_over = shard_goes_on or (
            servers_change and running is not None and running.place is not None
        )
        effects += _own_dispatcher_effects(
            trigger, broker, watched, running, observed, settings, takes_over=takes_over
        )
    return tuple(effects)


def _delivered_egress(
    observed: ObservedTrigger[K], contract: SharedContract, group: str
) -> Egress | None:
    """Return the Egress by which a Trigger with this group is delivered now, else the one in the
    `contract` of its Broker's shards; None: there is neither."""
    delivery = observed.watched or contract.records.get(group)
    return None if delivery is None else delivery.egress


def _changes_only_servers(delivered: Egress | None, desired: Egress) -> bool:
    """Whether an Egress is already delivered from the same topics with the same group, but with
    other bootstrap servers."""
    return (
        delivered is not None
        and (delivered.topics, delivered.group) == (desired.topics, desired.group)
        and offsets_key(delivered) != offsets_key(desired)
    )


def _is_in_shard(contract: SharedContract, group: str) -> bool:
    """Whether a shard delivers a Trigger with this group. Also True while the shard may not have
    read yet that the Trigger's record was removed."""
    return group in contract.records or group in contract.leaving


def _must_stop_first(
    watched: Watched[K],
    observed: ObservedTrigger[K],
    contract: SharedContract,
    *,
    servers_change: bool,
) -> bool:
    """Whether the running delivery must stop before it can change to `watched`; `servers_change`:
    only its bootstrap servers change."""
    egress, running = watched.egress, observed.watched
    is_in_shard = _is_in_shard(contract, egress.group)
    is_delivering = is_in_shard or (running is not None and not running.autoscaling.paused)
    if watched.autoscaling.paused and is_delivering:
        return True  # events in flight are settled before the function is deleted
    if watched.place is None and is_in_shard and watched.autoscaling.min_scale > 0:
        # Pods of min-scale drain from the moment they start, without a request.
        return True
    delivered = _delivered_egress(observed, contract, egress.group)
    if delivered is None:
        return False
    if delivered.broker != egress.broker:
        return True  # its record must leave the contract of the previous Broker's shards
    # Kafka refuses to write offsets of a group that has members.
    return offsets_key(delivered) != offsets_key(egress) and not servers_change


def _offset_effects(
    trigger: Trigger,
    broker: BrokerState[K],
    watched: Watched[K],
    observed: ObservedTrigger[K],
) -> Iterator[Effect]:
    """Yield the effects that give a group without members its start offsets:

        the status names no group     delete a leftover group of this name, if Knafka names the
                                      family's groups; then commit on every topic
        it names another group        commit on every topic
        it names this group           external topics: commit on those that aren't started yet
                                      (`ObservedTrigger.started_topics`), unless paused
                                      own topic: nothing, as the group must get every event

    If Kafka has lost the offsets on a started topic (the topic was recreated, or the group had no
    member for a week), delivery begins at the start of the topic.
    """
    egress = watched.egress
    promised_group = status_annotations(observed.document).get(GROUP_STATUS)
    if promised_group is None and family_of(trigger.kind).owns_group:
        yield DeleteGroup(egress.group)
    started: Collection[str] = ()  # topics on which nothing is committed
    if promised_group == egress.group:
        if not broker.topic.external or watched.autoscaling.paused:
            return
        servers = egress.kafka.bootstrap_servers
        started = observed.started_topics(egress.topics, servers, egress.group)
    start = kafka_settings.start_position(trigger.metadata.annotations)
    for topic in egress.topics:
        if topic not in started:
            yield CommitOffsets(egress.group, topic, start)


def _own_dispatcher_effects(
    trigger: Trigger,
    broker: BrokerState[K],
    watched: Watched[K],
    running: Watched[K] | None,
    observed: ObservedTrigger[K],
    settings: Settings,
    *,
    takes_over: bool,
) -> Iterator[Effect]:
    """Yield the effects by which the Trigger's own dispatcher delivers as `watched` says: they
    apply its Service unless the Trigger is paused, and start the delivery.

    `running` is the delivery that goes on until then; None: there is none. `takes_over`: whether a
    shard delivers until then; it must stop once the Service is awake.
    """
    paused = watched.autoscaling.paused
    egress = watched.egress
    family, identity = family_of(trigger.kind), services.identity_of(trigger)
    name = dispatcher_services.dispatcher_name(family, identity)
    namespace = services.function_namespace(family, identity, settings)
    yield _group_promise(egress, None if paused else name, observed)
    yield from _account_effects(trigger, broker, watched, observed, settings)
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
        yield ApplyService(Step.APPLY_DISPATCHER, manifest)
        if takes_over:
            yield Wake(services.service_url(name, namespace, settings))
            yield StopDelivery(Step.HAND_OVER)
    # Whether pods of an older Revision may still deliver.
    replaces = observed.may_have_old_pods
    if running != watched:
        replaces = replaces or (running is not None and _may_leave_pods(running, watched))
        yield StartDelivery(watched, replaces)
    if watched.autoscaling.min_scale or replaces or paused:
        yield AwaitReplacement(namespace, name)


def _shared_effects(
    trigger: Trigger,
    broker: BrokerState[K],
    watched: Watched[K],
    contract: SharedContract,
    observed: ObservedTrigger[K],
    settings: Settings,
    *,
    servers_change: bool,
) -> Iterator[Effect]:
    """Yield the effects by which a shard delivers a Trigger: they write its record to its Broker's
    contract, apply the shard's Service, and delete the Trigger's own Service if it has one.

    `servers_change`: the running delivery has the same topics and group, but at other servers,
    which have their own offsets.
    """
    egress, place, running = watched.egress, watched.place, observed.watched
    assert place is not None
    annotations = status_annotations(observed.document)
    family, broker_identity = family_of(trigger.kind), services.identity_of(broker.broker)
    identity = services.identity_of(trigger)
    own_dispatcher = dispatcher_services.dispatcher_name(family, identity)
    namespace = services.function_namespace(family, identity, settings)
    name = dispatcher_services.shard_name(family, broker_identity, place.number)
    # A Trigger whose status records a group has its own Service, unless the status names another
    # dispatcher.
    leaves_own_service = (
        GROUP_STATUS in annotations
        and annotations.get(DISPATCHER_KEY, own_dispatcher) == own_dispatcher
    )
    # Whether pods of the own Service may still deliver.
    replaces = observed.may_have_old_pods or (
        leaves_own_service and (running is None or _may_leave_pods(running, watched))
    )
    own_dispatcher_delivers = (
        running is not None and running.place is None and not running.autoscaling.paused
    )
    hands_over = servers_change or own_dispatcher_delivers
    desired_record = SharedEgress(shard=place.shard.group, egress=egress)
    must_write_record = hands_over or contract.records.get(egress.group) != desired_record

    yield _group_promise(egress, None if leaves_own_service else name, observed)
    yield from _account_effects(trigger, broker, watched, observed, settings)
    if not contract.exists:
        yield CreateContract(shards.contract_topic(broker.broker, broker.topic))
    yield _shard_application(broker, place, watched.secret, settings)
    if hands_over:
        yield StopDelivery(Step.HAND_OVER)
    if must_write_record:
        yield WriteContract(egress.group, desired_record)
    if hands_over or running != watched:
        yield StartDelivery(watched, replaces)
    if leaves_own_service:
        dispatcher = ObjectName(SERVING, "Service", namespace, own_dispatcher)
        yield _owned_deletion(Step.DELETE_DISPATCHER, (dispatcher,), {DISPATCHER_KEY: name})
    if must_write_record or not is_ready(observed.document):
        yield AwaitShard(place.shard.group)
    if replaces:
        yield AwaitReplacement(namespace, own_dispatcher)


def _may_leave_pods(running: Watched[K], watched: Watched[K]) -> bool:
    """Whether pods of the Trigger's own dispatcher may go on delivering as `running` says once
    `watched` has begun: the scaler ends the drains that it has requested, and waits for the
    group's members, but not if another Kafka's scaler takes over."""
    is_replaced = watched.place is not None or watched.egress != running.egress
    changes_scaler = running.place is None and running.kafka != watched.kafka
    return running.drains_without_requests or (is_replaced and changes_scaler)


def _shard_application(
    broker: BrokerState[K],
    place: ShardPlacement,
    secret: tuple[str, str] | None,
    settings: Settings,
) -> ApplyShard:
    """Return the effect that applies a shard's Service; `secret`: name and version of the Secret
    with the credentials for Kafka."""
    account = service_accounts.shard_account(broker.broker) if broker.oidc else None
    manifest = dispatcher_services.shard_service(
        broker.broker, place.shard, place.number, secret, settings, account=account
    )
    return ApplyShard(place.number, manifest)


def _account_effects(
    trigger: Trigger,
    broker: BrokerState[K],
    watched: Watched[K],
    observed: ObservedTrigger[K],
    settings: Settings,
) -> tuple[Effect, ...]:
    """Return the effects that create the service account as which a dispatcher sends; empty without
    OIDC."""
    if not broker.oidc:
        return ()
    return service_accounts.account_effects(
        trigger,
        observed.document,
        broker.broker,
        watched.egress,
        settings,
        shared=watched.place is not None,
    )


def stop_effects(document: Mapping[str, Any], settings: Settings) -> tuple[Effect, ...]:
    """Return the effects that end a Trigger's delivery and delete its own Services: for a Trigger
    that is paused, or whose Broker may not use the Broker's topic."""
    return StopDelivery(), _owned_deletion(Step.DELETE_FUNCTIONS, own_services(document, settings))


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


def _owned_deletion(
    step: Step, objects: tuple[ObjectName, ...], annotations: Mapping[str, str] | None = None
) -> Delete:
    """Return the effect that deletes objects if the Trigger owns them, and then writes
    `annotations` into its status."""
    return Delete(step, objects, owned=True, annotations=annotations or {})


def _group_promise(
    egress: Egress, dispatcher: str | None, observed: ObservedTrigger[K]
) -> Annotate:
    """Return the effect that records in the status the Trigger's group, its dead-letter topic and
    `dispatcher`, the Service that will deliver. The record promises that the group misses no event
    from here on. `dispatcher` None: the recorded name stays as it is, because that Service is still
    to be deleted, or because the Trigger is paused and has none."""
    promise = {GROUP_STATUS: egress.group, DEAD_LETTER_TOPIC: egress.dead_letter_topic}
    if dispatcher is not None:
        promise[DISPATCHER_KEY] = dispatcher
    status = status_annotations(observed.document)
    names_change = any(
        key in promise and status.get(key) != promise[key] for key in RECORDED_BEFORE_CREATION
    )
    return Annotate(Step.PROMISE_GROUP, promise, at_once=names_change)
