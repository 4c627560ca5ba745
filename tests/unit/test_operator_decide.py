"""What is decided of a Broker or Trigger, as values: the effects and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from knafka.core.contract import Kafka, Sink
from knafka.core.documents import parse
from knafka.core.errors import LogError
from knafka.ports.log import TopicDescription
from knafka_operator.brokers import decide as brokers
from knafka_operator.brokers.decide import BrokerConnection, ObservedBroker
from knafka_operator.decisions.effects import CommitOffsets, CreateTopic, Effect, WriteIngress
from knafka_operator.decisions.resolving import Unresolved
from knafka_operator.decisions.steps import BROKER_ORDER, TRIGGER_ORDER, Step
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.kafka.credentials import Mount
from knafka_operator.kafka.desired import Defaults
from knafka_operator.kafka.topics import ObservedTopic
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import Broker, ConfigMap, Trigger
from knafka_operator.model.topics import Topic
from knafka_operator.receivers.addressable import AddressableDecision
from knafka_operator.records.delivery import BrokerState, Watched
from knafka_operator.triggers import decide as triggers
from knafka_operator.triggers.observed import ObservedTrigger

SETTINGS = Settings(namespace="knafka", image="knafka:latest")
DEFAULTS = Defaults(kafka=Kafka(bootstrap_servers="kafka:9092"))
NAMED = {"namespace": "shop", "name": "default", "uid": "u1"}
BROKER_DOCUMENT: dict[str, Any] = {
    "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "metadata": NAMED, "spec": {},
}  # fmt: skip
BROKER = parse(Broker, BROKER_DOCUMENT)
CONFIG = parse(ConfigMap, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": NAMED, "data": {}})
TOPIC = Topic("orders", 4, 1)
FOUND = TopicDescription("id", 4, 1, {})
SINK = Sink(url="http://there/")


def _kinds(effects: Sequence[Effect]) -> list[Step]:
    return [each.step for each in effects]


def _is_in(order: Sequence[Step], effects: Sequence[Effect]) -> bool:
    places = [order.index(each) for each in _kinds(effects)]
    return places == sorted(places)


def _broker(status: dict[str, Any] | None = None, **seen: Any) -> AddressableDecision:
    given: dict[str, Any] = {
        "connection": BrokerConnection(CONFIG, DEFAULTS),
        "topic": ObservedTopic(TOPIC),
        **seen,
    }
    document = {**BROKER_DOCUMENT, "status": status or {}}
    decision = brokers.decide(ObservedBroker(document, BROKER, **given), SETTINGS)
    assert _is_in(BROKER_ORDER, decision.effects)
    return decision


THERE = ObservedTopic(TOPIC, FOUND)
EMPTY = ObservedTopic(TOPIC, FOUND, disputed=False)
NAMED_TOPIC = {"default.topic": "orders", "knafka.dev/topic-id": ""}
MADE = {"annotations": {"default.topic": "orders", "knafka.dev/topic-id": "id"}}
SECRET = Identity("knafka", "kafka")
COPIED = BrokerConnection(CONFIG, DEFAULTS, Mount("copy", "1", SECRET, {"kind": "Secret"}))
FOLLOWED = brokers.receiver_contract(
    BROKER, BrokerConnection(CONFIG, DEFAULTS), SETTINGS
).contract_topic
RECORDED = {"annotations": {**MADE["annotations"], "knafka.dev/receiver-contract": FOLLOWED}}
ENTRY = desired.broker_ingress(BROKER, TOPIC, {}, DEFAULTS)
STALE = ENTRY.model_copy(update={"topic": "before"})
WRITTEN = {"topic": THERE, "ingress": ENTRY}
READ = {**WRITTEN, "revision": "r1", "accepted": True}


@pytest.mark.parametrize(
    ("status", "seen", "next_"),
    [
        ({}, {}, [Step.RECORD_TOPIC, Step.CREATE_TOPIC]),
        ({}, {"connection": COPIED}, [Step.PROJECT_SECRET]),
        ({}, {"connection": COPIED, "projected": True}, [Step.RECORD_TOPIC, Step.CREATE_TOPIC]),
        ({}, {"written": NAMED_TOPIC}, [Step.CREATE_TOPIC]),
        ({}, {"written": MADE["annotations"], "topic": THERE}, [Step.RECORD_CONTRACT]),
        ({}, {"written": NAMED_TOPIC, "topic": EMPTY}, [Step.CREATE_TOPIC]),
        ({}, {"written": NAMED_TOPIC, "topic": THERE}, []),  # it may be somebody else's
        (MADE, {"topic": THERE}, [Step.RECORD_CONTRACT]),
        (MADE, {"topic": THERE, "written": RECORDED["annotations"]}, [Step.WRITE_INGRESS]),
        (RECORDED, {"topic": THERE}, [Step.WRITE_INGRESS]),
        (RECORDED, {**WRITTEN, "ingress": STALE}, [Step.WRITE_INGRESS]),
        (RECORDED, WRITTEN, [Step.APPLY_RECEIVER]),
        (RECORDED, {**WRITTEN, "revision": "r1"}, [Step.AWAIT_RECEIVERS, Step.PROBE_RECEIVER]),
        (RECORDED, READ, [Step.PROBE_RECEIVER]),
        (RECORDED, {**READ, "probed": "r1"}, []),
        (MADE, {"topic": THERE, "refused": "not allowed"}, []),
        ({}, {"topic": THERE}, []),  # it is somebody else's
    ],
)
def test_a_brokers_next_effects(
    status: dict[str, Any], seen: dict[str, Any], next_: list[Step]
) -> None:
    assert _kinds(_broker(status, **seen).effects) == next_


def test_a_broker_has_no_address_before_its_receiver_is_ready() -> None:
    assert _broker(RECORDED, **WRITTEN).status["address"] is None
    ready = _broker(RECORDED, **READ, probed="r1")
    assert ready.status["address"]["url"].startswith("http://default-kn-receiver.shop.svc.")
    assert ready.status["annotations"]["knafka.dev/probed"] == "r1"


def test_a_broker_that_must_stop_has_no_address_whatever_its_status_says() -> None:
    status = {"address": {"url": "http://before/"}, "annotations": {"knafka.dev/probed": "r1"}}
    decision = _broker(status, refused="not allowed", stopped=True)
    assert decision.status["address"] is None
    assert "knafka.dev/probed" not in decision.status["annotations"]


def test_an_effect_that_failed_is_a_condition_and_nothing_after_it_is_done() -> None:
    seen = ObservedBroker(
        BROKER_DOCUMENT, BROKER, BrokerConnection(CONFIG, DEFAULTS), topic=ObservedTopic(TOPIC)
    )
    error = LogError("Topic authorization failed")
    decision = brokers.decide(seen.with_failure(CreateTopic(TOPIC), error), SETTINGS)
    assert decision.effects == ()
    (topic,) = (
        each
        for each in decision.conditions.merge_into((), "2026-11-23T01:00:00Z")
        if each["type"] == "TopicReady"
    )
    assert (topic["status"], topic["reason"]) == ("False", "KafkaNotAuthorized")


STATE = BrokerState(BROKER, TOPIC, 4, DEFAULTS, None, kafka=None, ready="True")
TRIGGER_DOCUMENT: dict[str, Any] = {
    "apiVersion": "eventing.knative.dev/v1",
    "kind": "Trigger",
    "metadata": {"namespace": "shop", "name": "orders", "uid": "u2"},
    "spec": {"broker": "default", "subscriber": {"uri": "http://there/"}},
}
GROUP = "knative-trigger-shop-orders"
PROMISED = {"annotations": {"group.id": GROUP}}
MIN_SCALE = {"autoscaling.eventing.knative.dev/min-scale": "1"}


def _trigger(
    status: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    settings: Settings = SETTINGS,
    **seen: Any,
) -> triggers.TriggerDecision[None]:
    metadata = {**TRIGGER_DOCUMENT["metadata"], "annotations": annotations or {}}
    document = {**TRIGGER_DOCUMENT, "metadata": metadata, "status": status or {}}
    given: dict[str, Any] = {"broker": STATE, "subscriber": SINK, **seen}
    observed: ObservedTrigger[None] = ObservedTrigger(document, parse(Trigger, document), **given)
    decision = triggers.decide(observed, frozenset(), settings)
    assert _is_in(TRIGGER_ORDER, decision.effects)
    return decision


def _watched(**changed: Any) -> Watched[None]:
    """What a Trigger of ours is delivered as, or nearly so."""
    watched = _trigger().watched
    assert watched is not None
    scale = Autoscaling(min_scale=changed.pop("min_scale", 0), paused=changed.pop("paused", False))
    egress = watched.egress.model_copy(update=changed)
    return Watched(watched.kafka, egress, scale, watched.partitions, watched.secret)


PAUSE = {"knafka.dev/paused": "true"}
STAYS_PAUSED = [Step.DELETE_FUNCTIONS, Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.AWAIT_REPLACEMENT]
PAUSING = [
    Step.DELETE_FUNCTIONS,
    Step.CLAIM_GROUP,
    Step.PROMISE_GROUP,
    Step.START_DELIVERY,
    Step.AWAIT_REPLACEMENT,
]
NEW = [
    Step.CLAIM_GROUP,
    Step.DELETE_GROUP,
    Step.COMMIT_OFFSETS,
    Step.PROMISE_GROUP,
    Step.APPLY_DISPATCHER,
    Step.START_DELIVERY,
]


@pytest.mark.parametrize(
    ("status", "annotations", "seen", "effects"),
    [
        ({}, {}, {}, NEW),
        ({}, MIN_SCALE, {}, [*NEW, Step.AWAIT_REPLACEMENT]),
        # Promised: what Kafka has of it is never written over, nor deleted.
        (
            PROMISED,
            {},
            {},
            [Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_DISPATCHER, Step.START_DELIVERY],
        ),
        (
            PROMISED,
            {},
            {"watched": _watched()},
            [Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_DISPATCHER],
        ),
        (
            PROMISED,
            {},
            {"watched": _watched(max_in_flight=3)},
            [Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_DISPATCHER, Step.START_DELIVERY],
        ),
        (
            PROMISED,
            {},
            {"watched": _watched(min_scale=2)},
            [
                Step.CLAIM_GROUP,
                Step.PROMISE_GROUP,
                Step.APPLY_DISPATCHER,
                Step.START_DELIVERY,
                Step.AWAIT_REPLACEMENT,
            ],
        ),
        (
            PROMISED,
            {},
            {"watched": _watched(topic="another")},
            [
                Step.STOP_DELIVERY,
                Step.CLAIM_GROUP,
                Step.PROMISE_GROUP,
                Step.APPLY_DISPATCHER,
                Step.START_DELIVERY,
            ],
        ),
        # By other servers: the Revision before delivers until the new one is Ready.
        (
            PROMISED,
            {},
            {"watched": _watched(kafka=Kafka(bootstrap_servers="another:9092"))},
            [Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_DISPATCHER, Step.START_DELIVERY],
        ),
        # Paused: what is in flight is settled first, then no function is left.
        (
            {},
            PAUSE,
            {},
            [Step.DELETE_FUNCTIONS, *NEW[:4], Step.START_DELIVERY, Step.AWAIT_REPLACEMENT],
        ),
        (PROMISED, PAUSE, {"watched": _watched(min_scale=2)}, [Step.STOP_DELIVERY, *PAUSING]),
        (PROMISED, PAUSE, {"watched": _watched(paused=True)}, STAYS_PAUSED),
        (
            PROMISED,
            PAUSE,
            {"subscriber": None, "broker": None},
            [Step.STOP_DELIVERY, Step.DELETE_FUNCTIONS],
        ),
        (
            PROMISED,
            {},
            {"watched": _watched(paused=True)},
            [Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_DISPATCHER, Step.START_DELIVERY],
        ),
        (PROMISED, {}, {"subscriber": None, "broker": None}, [Step.STOP_DELIVERY]),
        (PROMISED, {}, {"broker": None, "stored_broker": BROKER_DOCUMENT}, []),
    ],
)
def test_a_triggers_effects_in_their_order(
    status: dict[str, Any],
    annotations: dict[str, str],
    seen: dict[str, Any],
    effects: list[Step],
) -> None:
    if seen.get("broker", STATE) is None:
        seen = {"watched": _watched(), **seen, "subscriber": SINK}
    assert _kinds(_trigger(status, annotations, **seen).effects) == effects


def test_offsets_of_an_external_topic_are_looked_after_again_each_time() -> None:
    """Somebody else may have made it anew."""
    external = Topic("legacy", 4, 1, external=True)
    state = BrokerState(BROKER, external, 4, DEFAULTS, None, kafka=None, ready="True")
    assert CommitOffsets(GROUP, "legacy") in _trigger(PROMISED, broker=state).effects


def test_offsets_of_a_paused_trigger_are_never_written_over() -> None:
    """Kafka may have forgotten them meanwhile: what waits would be passed over."""
    external = Topic("legacy", 4, 1, external=True)
    state = BrokerState(BROKER, external, 4, DEFAULTS, None, kafka=None, ready="True")
    paused = _trigger(PROMISED, PAUSE, broker=state)
    assert CommitOffsets(GROUP, "legacy") not in paused.effects
    again = _trigger(PROMISED, broker=state, watched=paused.watched)
    assert CommitOffsets(GROUP, "legacy") not in again.effects


NO_SUBSCRIBER = {"subscriber": Unresolved("NotFound", "it does not exist")}


@pytest.mark.parametrize("seen", [{}, NO_SUBSCRIBER, {"broker": None}], ids=str)
def test_a_paused_trigger_says_so_whatever_else_is_wrong(seen: dict[str, Any]) -> None:
    decision = _trigger(PROMISED, PAUSE, **seen)
    found = decision.conditions.merge_into((), "2026-11-23T01:00:00Z")
    (delivering,) = (each for each in found if each["type"] == "Delivering")
    assert (delivering["reason"], delivering["severity"]) == ("Paused", "Info")
    assert Step.DELETE_FUNCTIONS in _kinds(decision.effects)


BROKER_WINDOWS: list[tuple[Step, Step]] = [
    (Step.STOP_RECEIVER, Step.CREATE_TOPIC),
    (Step.RECORD_TOPIC, Step.CREATE_TOPIC),
    (Step.CREATE_TOPIC, Step.APPLY_RECEIVER),
    (Step.APPLY_RECEIVER, Step.PROBE_RECEIVER),
    (Step.PROBE_RECEIVER, Step.PUBLISH_STATUS),
]
TRIGGER_WINDOWS: list[tuple[Step, Step]] = [
    (Step.STOP_DELIVERY, Step.DELETE_FUNCTIONS),
    (Step.STOP_DELIVERY, Step.COMMIT_OFFSETS),
    (Step.CLAIM_GROUP, Step.DELETE_GROUP),
    (Step.DELETE_GROUP, Step.COMMIT_OFFSETS),
    (Step.COMMIT_OFFSETS, Step.PROMISE_GROUP),
    (Step.PROMISE_GROUP, Step.APPLY_DISPATCHER),
    (Step.APPLY_DISPATCHER, Step.START_DELIVERY),
    (Step.START_DELIVERY, Step.PUBLISH_STATUS),
]


def test_in_no_window_between_two_effects_an_event_is_missed() -> None:
    """Or accepted in vain: the first of each pair is done before the second."""
    broker: tuple[Step, ...] = BROKER_ORDER
    trigger: tuple[Step, ...] = TRIGGER_ORDER
    assert all(broker.index(first) < broker.index(then) for first, then in BROKER_WINDOWS)
    assert all(trigger.index(first) < trigger.index(then) for first, then in TRIGGER_WINDOWS)


def test_brokers_of_one_secret_have_one_contract_and_others_have_another() -> None:
    """A principal reads the entries of those alone that have its credentials, too."""
    own = BrokerConnection(CONFIG, DEFAULTS, Mount("kafka", "1", Identity("shop", "kafka")))
    installed = replace(SETTINGS, installation="c0ffee00-0000-4000-8000-000000000000")
    topics = [
        brokers.receiver_contract(BROKER, connection, settings).contract_topic
        for connection in (BrokerConnection(CONFIG, DEFAULTS), COPIED, own)
        for settings in (SETTINGS, installed)
    ]
    assert len(set(topics)) == 6
    again = replace(COPIED, mount=Mount("another-copy", "2", SECRET))
    assert brokers.receiver_contract(BROKER, again, SETTINGS).contract_topic == topics[2]


def test_settings_of_clients_are_in_the_entry_and_not_in_the_receivers_environment() -> None:
    """Else each change of them would be a new Revision."""
    kafka = DEFAULTS.kafka.model_copy(
        update={"producer": {"linger.ms": "5"}, "consumer": {"fetch.min.bytes": "1"}}
    )
    connection = BrokerConnection(CONFIG, replace(DEFAULTS, kafka=kafka))
    receiver = brokers.receiver_contract(BROKER, connection, SETTINGS)
    assert receiver.kafka == DEFAULTS.kafka
    assert receiver.path == "/shop/default"
    (effect,) = _broker(RECORDED, topic=THERE, connection=connection).effects
    assert isinstance(effect, WriteIngress)
    assert effect.ingress.kafka.producer == {"linger.ms": "5"}
    assert effect.ingress.kafka.consumer == {}


@pytest.mark.parametrize("said", [True, False])
def test_whether_deliveries_say_where_their_record_lies_is_the_installations(said: bool) -> None:
    trigger = _trigger(settings=replace(SETTINGS, record_position=said))
    assert trigger.watched is not None
    assert trigger.watched.egress.record_position is said
