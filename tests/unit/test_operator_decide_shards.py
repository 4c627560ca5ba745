"""What is decided of a Trigger that shares a dispatcher, or moves: effects, order and place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.memory.records import MemoryRecord

from knafka.core import names
from knafka.core.contract import Egress, Kafka, SharedEgress, Sink
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, LogError
from knafka_operator.decisions.effects import Annotate, Delete, Effect, ObjectName
from knafka_operator.decisions.steps import TRIGGER_ORDER, Step
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import shards
from knafka_operator.kafka.desired import Defaults
from knafka_operator.kafka.shards import SharedContract
from knafka_operator.model.isolation import Isolation, declared_isolation
from knafka_operator.model.resources import ISOLATION, SERVING, Broker, Trigger
from knafka_operator.model.topics import Topic
from knafka_operator.records.delivery import BrokerState, Watched
from knafka_operator.triggers import decide as triggers
from knafka_operator.triggers.observed import ObservedTrigger

SETTINGS = Settings(namespace="knafka", image="knafka:latest", shard_size=2)
KAFKA = Kafka(bootstrap_servers="kafka:9092")
BROKER = parse(
    Broker,
    {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Broker",
        "metadata": {"namespace": "shop", "name": "default", "uid": "u1"},
    },
)
STATE = BrokerState(
    BROKER, Topic("events", 4, 3, {"min.insync.replicas": "2"}), 4, Defaults(kafka=KAFKA), None,
    kafka=None, ready="True",
)  # fmt: skip
GROUP = names.trigger_group("shop", "orders")
FIRST = names.shard_group("shop", "default", 0)
SHARED = {ISOLATION: "shared"}
OWN = {ISOLATION: "own"}
PAUSED = {"knafka.dev/paused": "true"}
MIN_SCALE = {"autoscaling.eventing.knative.dev/min-scale": "1"}
IN_SHARD = {"group.id": GROUP, shards.DISPATCHER_KEY: "default-kn-shard-0"}
BY_ITSELF = {"group.id": GROUP, shards.DISPATCHER_KEY: "orders-kn-dispatcher"}
READY = [{"type": "Ready", "status": "True"}]
NOBODYS = SharedContract(exists=True)


def decide(
    annotations: dict[str, str], status: dict[str, str] | None = None, **seen: Any
) -> triggers.TriggerDecision[None]:
    document = {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {
            "namespace": "shop",
            "name": "orders",
            "uid": "u2",
            "annotations": annotations,
        },
        "spec": {"broker": "default", "subscriber": {"uri": "http://there/"}},
        "status": {"annotations": status or {}, "conditions": READY if status else []},
    }
    given: dict[str, Any] = {
        "broker": STATE,
        "subscriber": Sink(url="http://there/"),
        "contract": NOBODYS,
        **seen,
    }
    observed: ObservedTrigger[None] = ObservedTrigger(document, parse(Trigger, document), **given)
    decision = triggers.decide(observed, frozenset(), SETTINGS)
    places = [TRIGGER_ORDER.index(each) for each in kinds(decision.effects)]
    assert places == sorted(places)
    return decision


def kinds(effects: Sequence[Effect]) -> list[Step]:
    return [each.step for each in effects]


def watched(annotations: dict[str, str]) -> Watched[None]:
    """How it is delivered where it declares these."""
    found = decide(annotations).watched
    assert found is not None
    return found


def has(egress: Egress | None = None) -> SharedContract:
    """A contract in which it has a record."""
    record = SharedEgress(shard=FIRST, egress=egress or watched(SHARED).egress)
    return SharedContract(exists=True, records={GROUP: record}, numbers={GROUP: 0})


OTHERS = watched(SHARED).egress.model_copy(update={"max_in_flight": 3})
MOVED = watched(SHARED).egress.model_copy(update={"topic": "before"})
ELSEWHERE = replace(
    watched(SHARED),
    egress=OTHERS.model_copy(update={"kafka": Kafka(bootstrap_servers="another:9092")}),
)
LEAVING = SharedContract(exists=True, leaving={GROUP: 1})
OFFSETS = [Step.CLAIM_GROUP, Step.DELETE_GROUP, Step.COMMIT_OFFSETS]
RECORD = [Step.WRITE_CONTRACT, Step.START_DELIVERY]


@pytest.mark.parametrize(
    ("annotations", "status", "seen", "effects"),
    [
        pytest.param(
            SHARED,
            {},
            {"contract": SharedContract()},
            [*OFFSETS, Step.PROMISE_GROUP, Step.CREATE_CONTRACT, Step.APPLY_SHARD, *RECORD,
             Step.AWAIT_SHARD],
            id="new, the first of its Broker",
        ),
        pytest.param(
            SHARED, {}, {}, [*OFFSETS, Step.PROMISE_GROUP, Step.APPLY_SHARD, *RECORD,
             Step.AWAIT_SHARD], id="new"
        ),
        pytest.param(
            SHARED,
            IN_SHARD,
            {"watched": watched(SHARED), "contract": has()},
            [Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_SHARD],
            id="as it was",
        ),
        pytest.param(
            SHARED,
            IN_SHARD,
            {"contract": has()},
            [Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_SHARD, Step.START_DELIVERY],
            id="after a start",
        ),
        pytest.param(
            SHARED,
            IN_SHARD,
            {"watched": watched(SHARED), "contract": has(OTHERS)},
            [Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_SHARD, Step.WRITE_CONTRACT,
             Step.AWAIT_SHARD],
            id="changed",
        ),
        pytest.param(
            SHARED,
            IN_SHARD,
            {"contract": has(MOVED)},
            [
                *(Step.STOP_DELIVERY, Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_SHARD),
                *(*RECORD, Step.AWAIT_SHARD),
            ],
            id="of another topic",
        ),
        pytest.param(
            SHARED,
            IN_SHARD,
            {"watched": ELSEWHERE, "contract": has(ELSEWHERE.egress)},
            [
                *(Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_SHARD, Step.HAND_OVER, *RECORD),
                Step.AWAIT_SHARD,
            ],
            id="by other servers",
        ),
        pytest.param(
            SHARED,
            IN_SHARD,
            {"watched": ELSEWHERE},
            [
                *(Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_SHARD, Step.HAND_OVER, *RECORD),
                Step.AWAIT_SHARD,
            ],
            id="in another Kafka",
        ),
        pytest.param(
            OWN,
            IN_SHARD,
            {"watched": ELSEWHERE},
            [Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_DISPATCHER,
             Step.WAKE_DISPATCHER, Step.HAND_OVER, Step.START_DELIVERY],
            id="to its own, in another Kafka",
        ),
        pytest.param(
            SHARED,
            BY_ITSELF,
            {"watched": watched(OWN)},
            [
                *(Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_SHARD, Step.HAND_OVER, *RECORD),
                *(Step.DELETE_DISPATCHER, Step.AWAIT_SHARD),
            ],
            id="from its own",
        ),
        pytest.param(
            SHARED,
            BY_ITSELF,
            {"watched": watched({**OWN, **MIN_SCALE})},
            [
                *(Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_SHARD, Step.HAND_OVER, *RECORD),
                *(Step.DELETE_DISPATCHER, Step.AWAIT_SHARD, Step.AWAIT_REPLACEMENT),
            ],
            id="from its own, which drains unasked",
        ),
        pytest.param(
            SHARED,
            BY_ITSELF,
            {"contract": has()},
            [
                *(Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_SHARD, Step.START_DELIVERY),
                *(Step.DELETE_DISPATCHER, Step.AWAIT_REPLACEMENT),
            ],
            id="from its own, as far as an operator came that died",
        ),
        pytest.param(
            OWN,
            IN_SHARD,
            {"watched": watched(SHARED), "contract": has()},
            [Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_DISPATCHER,
             Step.WAKE_DISPATCHER, Step.HAND_OVER, Step.START_DELIVERY],
            id="to its own",
        ),
        pytest.param(
            OWN,
            IN_SHARD,
            {"contract": LEAVING},
            [Step.CLAIM_GROUP, Step.PROMISE_GROUP, Step.APPLY_DISPATCHER,
             Step.WAKE_DISPATCHER, Step.HAND_OVER, Step.START_DELIVERY],
            id="to its own, while the shard may not have let go",
        ),
        pytest.param(
            {**OWN, **MIN_SCALE},
            IN_SHARD,
            {"watched": watched(SHARED), "contract": has()},
            [
                *(Step.STOP_DELIVERY, Step.CLAIM_GROUP, Step.PROMISE_GROUP,
                 Step.APPLY_DISPATCHER, Step.START_DELIVERY),
                Step.AWAIT_REPLACEMENT,
            ],
            id="to its own, which drains unasked",
        ),
        pytest.param(
            {**SHARED, **PAUSED},
            IN_SHARD,
            {"watched": watched(SHARED), "contract": has()},
            [
                *(Step.STOP_DELIVERY, Step.DELETE_FUNCTIONS, Step.CLAIM_GROUP,
                 Step.PROMISE_GROUP, Step.START_DELIVERY),
                Step.AWAIT_REPLACEMENT,
            ],
            id="paused",
        ),
        pytest.param(
            SHARED, {}, {"contract": None},
            [*OFFSETS, Step.PROMISE_GROUP, Step.APPLY_DISPATCHER, Step.START_DELIVERY],
            id="where nothing is shared",
        ),
        pytest.param(
            SHARED, {}, {"contract": LogError("away")}, [], id="while its contract can't be read"
        ),
    ],
)  # fmt: skip
def test_a_shared_triggers_effects_in_their_order(
    annotations: dict[str, str], status: dict[str, str], seen: dict[str, Any], effects: list[Step]
) -> None:
    assert kinds(decide(annotations, status, **seen).effects) == effects


WINDOWS: list[tuple[Step, Step]] = [
    (Step.STOP_DELIVERY, Step.COMMIT_OFFSETS),
    (Step.COMMIT_OFFSETS, Step.WRITE_CONTRACT),
    (Step.PROMISE_GROUP, Step.WRITE_CONTRACT),
    (Step.PROMISE_GROUP, Step.APPLY_DISPATCHER),  # the Service is written down before it is there
    (Step.CREATE_CONTRACT, Step.APPLY_SHARD),  # what follows a topic finds it
    (Step.APPLY_SHARD, Step.HAND_OVER),
    (Step.APPLY_SHARD, Step.WRITE_CONTRACT),
    (Step.APPLY_DISPATCHER, Step.WAKE_DISPATCHER),
    (Step.WAKE_DISPATCHER, Step.HAND_OVER),
    (Step.HAND_OVER, Step.WRITE_CONTRACT),
    (Step.HAND_OVER, Step.START_DELIVERY),
    (Step.WRITE_CONTRACT, Step.DELETE_DISPATCHER),
    (Step.WRITE_CONTRACT, Step.AWAIT_SHARD),
    (Step.START_DELIVERY, Step.AWAIT_SHARD),  # which is asked of those that are asked to drain
    (Step.AWAIT_SHARD, Step.PUBLISH_STATUS),
    (Step.DELETE_DISPATCHER, Step.AWAIT_REPLACEMENT),
]


@pytest.mark.parametrize(("first", "then"), WINDOWS, ids=lambda each: each.name)
def test_a_move_has_an_order(first: Step, then: Step) -> None:
    order: tuple[Step, ...] = TRIGGER_ORDER
    assert order.index(first) < order.index(then)


def test_a_service_of_its_own_is_written_down_before_it_is_made() -> None:
    (promise,) = promises(decide(OWN, IN_SHARD, contract=has()).effects)
    assert promise[shards.DISPATCHER_KEY] == "orders-kn-dispatcher"


def test_a_service_of_its_own_stays_written_down_until_it_is_deleted() -> None:
    moving = decide(SHARED, BY_ITSELF, watched=watched(OWN)).effects
    (promise,) = promises(moving)
    assert shards.DISPATCHER_KEY not in promise
    dispatcher = ObjectName(SERVING, "Service", "shop", "orders-kn-dispatcher")
    written = {shards.DISPATCHER_KEY: "default-kn-shard-0"}
    assert Delete(Step.DELETE_DISPATCHER, (dispatcher,), owned=True, annotations=written) in moving


def promises(effects: Sequence[Effect]) -> list[Mapping[str, str]]:
    """What is written down of the group, and of the Service that will deliver."""
    return [each.annotations for each in effects if isinstance(each, Annotate)]


@pytest.mark.parametrize(
    ("trigger", "broker", "default", "is_"),
    [
        (None, None, "own", "own"),
        (None, None, "shared", "shared"),
        (None, "shared", "own", "shared"),
        (None, "own", "shared", "own"),
        ("own", "shared", "shared", "own"),
        ("shared", "own", "own", "shared"),
        ("auto", "own", "own", "auto"),
        (None, "auto", "own", "auto"),
        (None, None, "auto", "auto"),
    ],
)
def test_the_nearest_that_declares_an_isolation_decides(
    trigger: str | None, broker: str | None, default: str, is_: str
) -> None:
    def with_(declared: str | None, of: Any) -> Any:
        annotations = {} if declared is None else {ISOLATION: declared}
        metadata = of.metadata.model_copy(update={"annotations": annotations})
        return of.model_copy(update={"metadata": metadata})

    found = shards.effective_isolation(
        with_(trigger, BROKER), with_(broker, BROKER), Isolation(default)
    )
    assert found is Isolation(is_)


@pytest.mark.parametrize("text", ["", "Shared", "own ", "alone"])
def test_another_isolation_is_refused(text: str) -> None:
    wrong = decide({ISOLATION: text}, IN_SHARD, contract=has())
    assert wrong.effects == ()
    with pytest.raises(InvalidDocument, match="want own, shared, auto"):
        declared_isolation({ISOLATION: text})


@pytest.mark.parametrize(
    ("numbers", "number"),
    [
        ({}, 0),
        ({"a": 0}, 0),
        ({"a": 0, "b": 0}, 1),
        ({"a": 0, "b": 0, "c": 1, "d": 1}, 2),
        ({"a": 1, "b": 1, "c": 0}, 0),
        ({"a": 0, "b": 0, GROUP: 0}, 0),
        ({GROUP: 3}, 3),
    ],
)
def test_a_trigger_stays_in_its_shard_and_a_new_one_gets_the_lowest_with_room(
    numbers: dict[str, int], number: int
) -> None:
    assert shards.shard_number_for(GROUP, numbers, 2) == number


def test_a_contracts_topic_is_as_durable_as_its_brokers() -> None:
    topic = shards.contract_topic(BROKER, STATE.topic)
    assert (topic.name, topic.partitions) == (names.contract_topic("shop", "default"), 1)
    assert topic.config == {"cleanup.policy": "compact", "min.insync.replicas": "2"}
    assert topic.replication == 3


def test_beside_an_external_topic_the_contract_is_a_topic_of_ours() -> None:
    external = Topic("legacy", 4, 1, {"min.insync.replicas": "2"}, external=True)
    topic = shards.contract_topic(BROKER, external)
    assert (topic.name, topic.replication) == (names.contract_topic("shop", "default"), -1)
    assert (topic.external, topic.config) == (False, {"cleanup.policy": "compact"})


def test_a_contract_is_what_its_last_records_say() -> None:
    def record(group: str, value: bytes | None) -> MemoryRecord:
        return MemoryRecord("contract", 0, 0, group.encode(), value, None)

    text = has().records[GROUP].model_dump_json(by_alias=True).encode()
    records = [
        record("a", text), record("b", text), record("c", text), record("d", b"{}"),
        record("a", None), record("b", b"no JSON"), record("d", text),
    ]  # fmt: skip
    found = shards.read_shared_egresses(records)
    assert found.keys() == {"c", "d"}
    assert found["c"] == has().records[GROUP]
    assert shards.shard_numbers("shop", "default", found) == {"c": 0, "d": 0}
