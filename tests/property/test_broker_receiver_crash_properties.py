"""Properties: whenever an operator dies, each pod that takes a Broker's requests stores its events.

It dies before or after one of its effects. What is stored then is what the next one starts from.
Pods are as Knative has them: those of the Revision that serves take requests, and a new one begins
with all that stands in its contract then, or with what its environment says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.crashing import crashes_at_least, sampled
from support.examples import examples
from support.memory.log import MemoryWriter
from support.operator_world import INSTALLATION, OperatorWorld, condition

from knafka.core import names
from knafka.core.contract import Ingress, Receiver
from knafka.core.documents import parse_json
from knafka_operator.brokers.decide import RECEIVER_CONTRACT
from knafka_operator.decisions.status import is_ready
from knafka_operator.kafka import desired
from knafka_operator.model.resources import CORE, EVENTING, EXTERNAL_TOPIC, SERVING
from knafka_operator.receivers import receivers

EFFECTS = frozenset(
    {*("create", "apply", "write_status", "delete"), *("ensure_topic", "delete_topic", "append")}
    | {"probe"}
)
SHOP, BROKER, RECEIVER, PATH = "shop", "default", "default-kn-receiver", "/shop/default"
TOPIC = names.broker_topic(SHOP, BROKER)
THEIRS = "theirs"
EDITS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "another topic": {"external": True},
    "another limit": {"limit": "500000"},
    "another producer": {"producer": "zstd"},
    "another Secret": {"secret": True},
    "all of it": {"external": True, "limit": "400000", "producer": "lz4", "secret": True},
}


class Crash(BaseException):
    """The process is gone."""


class Crashing:
    """Dies before or after one effect of those to come."""

    def __init__(self) -> None:
        self.at: tuple[str, int] | None = None
        self.world: World | None = None

    def __call__(self, when: str, call: str) -> None:
        if call not in EFFECTS:
            return
        if when == "after" and self.world is not None:
            self.world.check()
        if self.at is not None and self.at[0] == when:
            left = self.at[1] - 1
            self.at = (when, left) if left else None
            if not left:
                raise Crash


@dataclass
class Pod:
    """One of a Revision's: what it has read of its contract, or was given."""

    environment: Mapping[str, str]
    position: int = 0
    entries: Mapping[str, Ingress] = field(default_factory=dict)

    @property
    def follows(self) -> Receiver | None:
        text = self.environment.get("KNAFKA_RECEIVER")
        return None if text is None else parse_json(Receiver, text)


class World(OperatorWorld):
    """One Broker, and one in another namespace that nothing may happen to."""

    def __init__(self) -> None:
        crashing = Crashing()
        super().__init__(crashing)
        self.crashing = crashing
        self.pods: dict[str, Pod] = {}
        """By Revision."""
        self.deleting = False
        self.served = False
        """Whether it was Ready once: from then on every request must be answered 202."""
        self.log.create(THEIRS, 3, 1, {})
        login = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "x"}
        self.declare_secret(SHOP, "kafka", **login)
        self.edit("nothing")
        self.crashing.world = self

    async def _positions(self, namespace: str, name: str) -> Mapping[str, int | None]:
        """Each reads what there is whenever it is asked, and answers what it had read before."""
        if namespace != SHOP:
            return {}
        self.start_pods()
        answers: dict[str, int | None] = {}
        for revision, pod in self.pods.items():
            answers[revision] = pod.position
            self.read(pod)
        return answers

    def read(self, pod: Pod) -> None:
        """All that stands in its contract, of which it serves its own path."""
        followed = pod.follows
        assert followed is not None
        records = self.log.topics[followed.contract_topic][0]
        pod.position = len(records)
        found = receivers.read_ingresses(records)
        pod.entries = {path: each for path, each in found.items() if path == followed.path}

    def start_pods(self) -> None:
        """Have one of the Revision that serves, and none of the others."""
        service = self.cluster.objects.get((SERVING, "Service", SHOP, RECEIVER))
        serving = None if service is None else service["status"]["latestReadyRevisionName"]
        self.pods = {name: each for name, each in self.pods.items() if name == serving}
        if serving is None or serving in self.pods:
            return
        revision = self.cluster.objects[SERVING, "Revision", SHOP, serving]
        container = revision["spec"]["containers"][0]
        pod = Pod({each["name"]: each["value"] for each in container["env"]})
        self.read(pod)
        self.pods[serving] = pod

    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.cluster.objects.get((EVENTING, "Broker", SHOP, BROKER), {})
        return found.get("status") or {}

    def check(self) -> None:
        """What must hold after every effect."""
        self.start_pods()
        for pod in self.pods.values():
            if not self.deleting:
                assert PATH in pod.entries, "a sender is answered 404"
                assert pod.entries[PATH].topic in self.log.topics, "nothing can keep its event"
        self.served = self.served or holds_ready(self.status())
        if self.served and not self.deleting:
            assert self.pods, "nobody takes requests"
        if self.deleting and TOPIC not in self.log.topics:
            assert not self.pods, "events are accepted that nothing can keep"

    def send(self) -> None:
        """An event, as its receivers store it."""
        for pod in self.pods.values():
            topic = pod.entries[PATH].topic
            MemoryWriter(self.log).append(topic, None, b"{}", [], lambda _: None)

    def edit(self, what: str) -> None:
        """Declare the Broker, so that its entry is another one."""
        wanted = EDITS[what]
        data = {"bootstrap.servers": "kafka:9092"}
        self.configure(*INSTALLATION, **{**data, "external.topics": THEIRS})
        if "secret" in wanted:
            data["auth.secret.ref.name"] = "kafka"
        if "producer" in wanted:
            data["producer.compression.type"] = wanted["producer"]
        self.configure(SHOP, "mine", **data)
        limit = {"max.message.bytes": wanted["limit"]} if "limit" in wanted else {}
        for topic in (TOPIC, THEIRS):
            if (found := self.log.descriptions.get(topic)) is not None:
                kept = {k: v for k, v in found.config.items() if k != "max.message.bytes"}
                self.log.descriptions[topic] = replace(found, config={**kept, **limit})
        annotations = {EXTERNAL_TOPIC: THEIRS} if "external" in wanted else {}
        config = {"apiVersion": CORE, "kind": "ConfigMap", "name": "mine"}
        self.declare_broker(SHOP, BROKER, annotations, config=config)

    async def look(self) -> None:
        """Reconcile both as they are stored; whatever crashes is started anew."""
        try:
            await self.reconcile_broker(SHOP)
        except Crash:
            await self.restart()
            await self.operator.resume()
            self.check()


def holds_ready(status: Mapping[str, Any]) -> bool:
    return is_ready({"status": {**status, "observedGeneration": None}, "metadata": {}})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "REPLICA_POLL_INTERVAL", 0.0)


async def until_ready(world: World, edit: str) -> None:
    """It becomes Ready as it was edited last, and every pod stores its events so."""
    for _ in range(3):
        world.edit(edit)  # again, as only now its topic may be there
        await world.look()
    status, wanted = world.status(), EDITS[edit]
    assert condition(status, "Ready")["status"] == "True", status
    world.check()
    (pod,) = world.pods.values()
    entry, followed = pod.entries[PATH], pod.follows
    assert followed is not None, "its contract is in its environment"
    assert entry.topic == (THEIRS if "external" in wanted else TOPIC)
    limit = wanted.get("limit")
    assert entry.max_batch_bytes == (None if limit is None else int(str(limit)))
    assert entry.kafka.producer.get("compression.type") == wanted.get("producer")
    assert (followed.kafka.secret_path is not None) == ("secret" in wanted)
    assert status["annotations"][RECEIVER_CONTRACT] == followed.contract_topic
    assert status["annotations"][desired.BOOTSTRAP_SERVERS] == "kafka:9092"
    assert status["address"]["url"] == f"http://{RECEIVER}.{SHOP}.svc.cluster.local{PATH}"


@pytest.mark.conformance("KN-BRK-01")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("edit", sorted(EDITS))
@pytest.mark.parametrize("from_", ["made", "edited"])
async def test_an_operator_that_dies_at_any_effect_loses_no_event_and_answers_no_404(
    from_: str, edit: str, when: str
) -> None:
    """KN-BRK-01, KN-BRK-21."""
    crashes = 0
    for number in sampled(count(1)):
        world = World()
        if from_ != "made":
            await until_ready(world, "nothing")
        revisions = len([key for key in world.cluster.objects if key[1] == "Revision"])
        before = world.operator
        world.crashing.at = when, number
        world.edit(edit)
        await world.look()
        has_crashed, world.crashing.at = world.operator is not before, None
        world.send()
        await until_ready(world, edit)
        if from_ == "edited" and "secret" not in EDITS[edit]:
            now = len([key for key in world.cluster.objects if key[1] == "Revision"])
            assert now == revisions, "a pod was rolled for it"
        await world.operator.close()
        if not has_crashed:
            break
        crashes += 1
    assert crashes >= (0 if (from_, edit) == ("edited", "nothing") else 1)


@pytest.mark.conformance("KN-BRK-22")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_operator_that_dies_while_it_deletes_leaves_neither_entry_nor_topic(
    when: str,
) -> None:
    crashes = 0
    for number in sampled(count(1)):
        world = World()
        world.declare_broker("elsewhere")
        await until_ready(world, "nothing")
        await world.reconcile_broker("elsewhere")
        world.deleting, before = True, world.operator
        key = EVENTING, "Broker", SHOP, BROKER
        world.cluster.set_finalizers(*key, "knafka.dev/finalizer")
        await world.cluster.delete(*key)
        world.crashing.at = when, number
        try:
            await world.delete_broker(SHOP)
        except Crash:
            await world.restart()
            await world.operator.resume()
            await world.delete_broker(SHOP)
        has_crashed, world.crashing.at = world.operator is not before, None
        assert world.entries().keys() == {"/elsewhere/default"}
        assert TOPIC not in world.log.topics
        await world.delete_broker("elsewhere")
        kept = {name: each for name, each in vars(world.operator.states).items() if each}
        assert kept.keys() == {"family", "naming"}
        assert world.operator.brokers.receivers.records == {}
        await world.operator.close()
        if not has_crashed:
            break
        crashes += 1
    assert crashes >= crashes_at_least(2)


STEPS = st.lists(
    st.one_of(
        st.just(("look", 0, "")),
        st.just(("send", 0, "")),
        st.just(("restart", 0, "")),
        st.tuples(st.just("edit"), st.just(0), st.sampled_from(sorted(EDITS))),
        st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 8), st.just("")),
    ),
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(steps=STEPS)
def test_whenever_an_operator_of_receivers_dies_the_next_one_keeps_every_promise(
    steps: list[tuple[str, int, str]],
) -> None:
    asyncio.run(_run(steps))


async def _run(steps: list[tuple[str, int, str]]) -> None:
    world = World()
    await until_ready(world, "nothing")
    for what, number, edit in steps:
        match what:
            case "look":
                await world.look()
            case "send":
                world.send()
            case "restart":
                await world.restart()
                world.check()
            case "edit":
                world.edit(edit)
            case _:
                world.crashing.at = what, number
                await world.look()
    world.crashing.at = None
    for last in ("nothing", "all of it", "another limit"):
        await until_ready(world, last)
    await world.operator.close()
