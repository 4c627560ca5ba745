"""A Broker's receiver follows a contract's topic (docs/decisions/0024-broker-receivers.md)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from support.intercepted import Intercepted
from support.operator_world import INSTALLATION, OperatorWorld, condition, running_operator

from knafka.core.contract import Receiver
from knafka.core.documents import parse_json
from knafka.core.errors import LogError
from knafka_operator.kube_api.memory_cluster import MemoryCluster
from knafka_operator.model.resources import CORE, EVENTING, EXTERNAL_TOPIC, SERVING
from knafka_operator.receivers import receivers
from knafka_operator.receivers.receivers import PodPositions

SHOP, RECEIVER, PATH = "shop", "default-kn-receiver", "/shop/default"
pytestmark = pytest.mark.looptime

TOPIC = "knative-broker-shop-default"
CONTRACT = "knafka.dev/receiver-contract"
MINE = {"apiVersion": CORE, "kind": "ConfigMap", "name": "mine"}
INSTALLED = {"installation": "c0ffee00-0000-4000-8000-000000000000"}


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OperatorWorld]:
    monkeypatch.setattr(receivers, "CONTRACT_READ_TIMEOUT", 0.5)
    monkeypatch.setattr(receivers, "REPLICA_POLL_INTERVAL", 0.01)
    async with running_operator() as world:
        yield world


async def ready(world: OperatorWorld, namespace: str = SHOP, **spec: Any) -> Mapping[str, Any]:
    world.declare_broker(namespace, **spec)
    status = await world.reconcile_broker(namespace)
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    return status


def service(world: OperatorWorld, namespace: str = SHOP) -> dict[str, Any]:
    return world.cluster.objects[SERVING, "Service", namespace, RECEIVER]


def environment(of: Mapping[str, Any]) -> dict[str, str]:
    container = of["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each["value"] for each in container["env"]}


def followed(world: OperatorWorld, namespace: str = SHOP) -> Receiver:
    return parse_json(Receiver, environment(service(world, namespace))["KNAFKA_RECEIVER"])


@pytest.mark.conformance("KN-BRK-21")
async def test_what_an_ingress_says_changes_without_a_new_revision(world: OperatorWorld) -> None:
    await ready(world)
    before = service(world)["metadata"]["generation"]
    world.log.create("theirs", 3, 1, {"max.message.bytes": "2000000"})
    world.configure(
        *INSTALLATION,
        **{
            "bootstrap.servers": "kafka:9092",
            "external.topics": "theirs",
            "producer.compression.type": "zstd",
        },
    )
    world.declare_broker(SHOP, annotations={EXTERNAL_TOPIC: "theirs"})
    status = await world.reconcile_broker(SHOP)
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    entry = world.entries()[PATH]
    assert (entry.topic, entry.max_batch_bytes) == ("theirs", 2_000_000)
    assert entry.kafka.producer == {"compression.type": "zstd"}
    assert service(world)["metadata"]["generation"] == before


@pytest.mark.conformance("KN-BRK-21")
async def test_a_broker_is_ready_once_every_replica_has_read_its_entry(
    world: OperatorWorld,
) -> None:
    world.behind = {"pod-1": 1, "pod-2": 0}
    world.declare_broker(SHOP)
    status = await world.reconcile_broker(SHOP)
    contract = condition(status, "ContractUpdated")
    assert (contract["status"], contract["reason"]) == ("Unknown", "ReceiverBehind")
    assert "pod-2" in contract["message"]
    assert "pod-1" not in contract["message"]
    assert condition(status, "Ready")["status"] != "True"
    world.behind["pod-2"] = 1
    status = await world.reconcile_broker(SHOP)
    assert condition(status, "Ready")["status"] == "True"


async def test_a_replica_that_has_read_more_than_we_have_written_has_read_ours(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else writes there, too: an operator that is being replaced, or this one by another
    Broker, whose ConfigMap writes the same servers in another way."""
    monkeypatch.setattr(receivers, "CONTRACT_READ_TIMEOUT", 30.0)
    await ready(world, "other")
    topic = followed(world, "other").contract_topic
    (others,) = (each.value() for each in world.log.topics[topic][0])
    asked: list[int] = []

    async def positions(namespace: str, name: str) -> Mapping[str, int | None]:
        if not asked:
            world.log.store(topic, b"/other/default", others, [])
        asked.append(len(world.log.topics[topic][0]))
        return {"pod-1": asked[-1]}

    world.operator.brokers.receivers.positions = positions
    await ready(world)
    assert asked == [3, 3], "it is found out at once"
    assert world.entries().keys() == {PATH, "/other/default"}


async def test_another_operator_asks_no_replica_and_writes_nothing(world: OperatorWorld) -> None:
    """Its start must wake no receiver, and leave no trace."""
    before = await ready(world)
    records = {name: len(each[0]) for name, each in world.log.topics.items()}
    await world.restart()
    world.asked, world.behind = 0, {"pod-1": None}
    status = await world.reconcile_broker(SHOP)
    assert status["conditions"] == before["conditions"]
    assert world.asked == 0
    assert {name: len(each[0]) for name, each in world.log.topics.items()} == records


async def test_brokers_of_one_secret_share_a_topic_that_is_read_once(world: OperatorWorld) -> None:
    for namespace in ("a", "b", "c"):
        await ready(world, namespace)
    (topic,) = {followed(world, each).contract_topic for each in ("a", "b", "c")}
    assert world.log.descriptions[topic].config["cleanup.policy"] == "compact"
    assert [followed(world, each).path for each in ("a", "b")] == ["/a/default", "/b/default"]
    (contract,) = world.operator.brokers.receivers.contracts.values()
    assert contract.times_read == 1
    assert len(world.operator.brokers.receivers.records) == 3


async def test_a_secret_of_its_own_means_a_contract_of_its_own(world: OperatorWorld) -> None:
    """Nobody else's credentials read it, and its own read no other."""
    login = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "x"}
    world.declare_secret(SHOP, "kafka", **login)
    given = {"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "kafka"}
    world.configure(SHOP, "mine", **given)
    await ready(world, "other")
    await ready(world, config=MINE)
    own, others = followed(world), followed(world, "other")
    assert own.contract_topic != others.contract_topic
    assert own.kafka.secret_path is not None
    assert "password" not in json.dumps(service(world))
    assert {key[2] for key in world.cluster.objects if key[1] == "Secret"} == {SHOP}
    for topic, paths in ((own.contract_topic, {PATH}), (others.contract_topic, {"/other/default"})):
        assert world.entries(topic).keys() == paths


async def test_two_installations_with_one_kafka_keep_their_entries_apart(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receivers, "CONTRACT_CHECK_INTERVAL", 0.0)
    await world.restart(installation="11111111-0000-4000-8000-000000000000")
    await ready(world, "theirs")
    first = followed(world, "theirs").contract_topic
    world.cluster.remove(EVENTING, "Broker", "theirs", "default")  # it is in another cluster
    await world.restart(**INSTALLED)
    await ready(world)
    await world.reconcile_broker(SHOP)
    assert followed(world).contract_topic != first
    assert world.entries(first).keys() == {"/theirs/default"}


async def test_the_entry_of_a_broker_that_went_without_us_is_withdrawn(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receivers, "CONTRACT_CHECK_INTERVAL", 0.0)
    await world.restart(**INSTALLED)
    await ready(world)
    await ready(world, "gone")
    world.cluster.remove(EVENTING, "Broker", "gone", "default")
    await world.restart(**INSTALLED)
    await world.reconcile_broker(SHOP)
    assert world.entries().keys() == {PATH}


async def test_a_contract_that_somebody_deleted_is_written_anew(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receivers, "CONTRACT_CHECK_INTERVAL", 0.0)
    await ready(world)
    await ready(world, "other")
    topic = followed(world).contract_topic
    del world.log.topics[topic], world.log.descriptions[topic]
    await world.reconcile_broker(SHOP)
    assert world.entries().keys() == {PATH}
    assert ("Broker", "other", "default") in world.operator.queue._items, "it writes its own, too"
    await world.reconcile_broker("other")
    assert world.entries().keys() == {PATH, "/other/default"}


@pytest.mark.parametrize("refused", [False, True])
async def test_a_contract_that_somebody_made_is_kept_for_ever(
    world: OperatorWorld, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka would drop what is older than a week, and receivers that start later serve nothing."""
    await ready(world)
    topic = followed(world).contract_topic
    found = world.log.descriptions[topic]
    world.log.descriptions[topic] = replace(found, config={"min.insync.replicas": "1"})
    if refused:
        world.kafka_failures["set_topic_config"] = LogError("not authorized")
    await world.restart()
    status = await world.reconcile_broker(SHOP)
    assert condition(status, "Ready")["status"] == "True"
    compacted = world.log.descriptions[topic].config.get("cleanup.policy")
    assert compacted == (None if refused else "compact")
    assert f"topic {topic} " in caplog.text
    caplog.clear()
    await world.reconcile_broker(SHOP)
    assert topic not in caplog.text


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("without", [None, "config", "service"])
async def test_a_broker_that_is_deleted_leaves_no_entry(
    world: OperatorWorld, restarted: bool, without: str | None
) -> None:
    """KN-BRK-22: whatever went before it, by `kubectl delete -f`."""
    await ready(world, "other")
    world.configure(SHOP, "mine", **{"bootstrap.servers": "kafka:9092"})
    await ready(world, config=MINE)
    if without == "config":
        world.cluster.remove(CORE, "ConfigMap", SHOP, "mine")
    elif without == "service":
        world.cluster.remove(SERVING, "Service", SHOP, RECEIVER)
    if restarted:
        await world.restart()
    await world.delete_broker(SHOP)
    assert world.entries().keys() == {"/other/default"}
    assert TOPIC not in world.log.topics
    if not restarted:
        await world.delete_broker("other")
        found = world.operator.brokers.receivers
        assert (found.records, found.contracts) == ({}, {}), "nothing only grows"


async def ready_with_password(world: OperatorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Broker whose Kafka answers only with the password of its Secret; no other Kafka answers."""
    connect = world._connect

    def connect_checked(configuration: Mapping[str, Any]) -> Any:
        def refuse(when: str, call: str) -> None:
            if configuration != {**configuration, **accepted}:
                raise LogError("not authorized")

        return Intercepted(connect(configuration), refuse)

    accepted = {"bootstrap.servers": "kafka:9092", "sasl.password": "x"}
    monkeypatch.setattr(world, "_connect", connect_checked)
    await world.restart()
    login = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "x"}
    world.declare_secret(SHOP, "kafka-login", **login)
    servers = {"bootstrap.servers": "kafka:9092"}
    world.configure(SHOP, "mine", **servers, **{"auth.secret.ref.name": "kafka-login"})
    await ready(world, config=MINE)


@pytest.mark.parametrize("reconciled", [False, True])
async def test_a_broker_that_names_other_servers_by_now_is_deleted_where_its_topic_is(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch, reconciled: bool
) -> None:
    """A typo in its ConfigMap: topic and contract stayed, and the next Broker was refused."""
    await ready_with_password(world, monkeypatch)
    world.configure(SHOP, "mine", **{"bootstrap.servers": "typo:9092"})
    if reconciled:
        status = await world.reconcile_broker(SHOP)
        assert "not authorized" in condition(status, "TopicReady")["message"]
    await world.delete_broker(SHOP)
    assert not world.log.topics


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("handed_over", [False, True])
async def test_a_broker_whose_spec_is_invalid_is_deleted_and_handed_over_like_any_other(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch, restarted: bool, handed_over: bool
) -> None:
    """An edit while the webhook was away: its topic stayed, with the Event `LeftInKafka`."""
    await ready_with_password(world, monkeypatch)
    world.declare_broker(SHOP, config=MINE, delivery={"retry": 3, "backoffDelay": "soon"})
    assert condition(await world.reconcile_broker(SHOP), "ConfigParsed")["reason"] == "Invalid"
    if restarted:
        await world.restart()
    if handed_over:
        await world.operator.brokers.hand_over(world.document("Broker", SHOP))
        assert set(world.log.topics) == {TOPIC}, "only what the other implementation goes on with"
        assert CONTRACT not in world.document("Broker", SHOP)["status"]["annotations"]
    else:
        await world.delete_broker(SHOP)
        assert not world.log.topics
    assert (SERVING, "Service", SHOP, RECEIVER) not in world.cluster.objects


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("installation", ["", "c0ffee00-0000-4000-8000-000000000000"])
async def test_the_contract_of_a_namespaces_secret_goes_with_its_last_broker(
    world: OperatorWorld, restarted: bool, installation: str
) -> None:
    """Issue 30: the topic of a namespace that is gone stayed for ever."""
    await world.restart(installation=installation)
    login = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "x"}
    world.declare_secret(SHOP, "kafka-login", **login)
    given = {"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "kafka-login"}
    world.configure(SHOP, "mine", **given)
    await ready(world, "other")
    await ready(world, config=MINE)
    world.declare_broker(SHOP, "second", config=MINE)
    await world.reconcile_broker(SHOP, "second")
    own, others = followed(world).contract_topic, followed(world, "other").contract_topic
    if restarted:
        await world.restart(installation=installation)
    await world.delete_broker(SHOP)
    assert own in world.log.topics, "the second one follows it"
    await world.delete_broker(SHOP, "second")
    assert own not in world.log.topics
    await world.delete_broker("other")
    assert others in world.log.topics, "the installation's own stays"
    await ready(world, config=MINE)
    assert world.entries(own).keys() == {PATH}, "and it comes again with another Broker"


@pytest.mark.parametrize(
    "topic",
    [
        "precious",
        "knafka-contract-other-Brokers-kafka-0123456789",
        "knafka-contract-shop-Brokers-kafka-0123456789",
    ],
)
async def test_a_status_that_names_another_topic_has_none_deleted(
    world: OperatorWorld, topic: str
) -> None:
    """Anybody who may write a Broker's status could name any topic there."""
    await ready(world)
    world.log.create(topic, 1)
    document = world.document("Broker", SHOP, "default")
    await world.cluster.write_status(document, {"annotations": {CONTRACT: topic}})
    await world.delete_broker(SHOP)
    assert topic in world.log.topics


async def test_an_entry_that_cannot_be_written_is_a_condition_and_what_serves_goes_on(
    world: OperatorWorld,
) -> None:
    address = (await ready(world))["address"]
    found = world.log.descriptions[TOPIC]
    world.log.descriptions[TOPIC] = replace(found, config={"max.message.bytes": "500000"})
    world.kafka_failures["append"] = LogError("not authorized to write")
    status = await world.reconcile_broker(SHOP)
    contract = condition(status, "ContractUpdated")
    assert (contract["status"], contract["reason"]) == ("False", "KafkaNotAuthorized")
    assert status["address"] == address
    assert world.entries()[PATH].max_batch_bytes is None
    world.kafka_failures.clear()
    status = await world.reconcile_broker(SHOP)
    assert condition(status, "Ready")["status"] == "True"
    assert world.entries()[PATH].max_batch_bytes == 500_000


# Pods, asked for their position.


class Pod:
    """A pod's `/contract` on this machine."""

    def __init__(self, answer: web.Response | None) -> None:
        self.answer = answer
        self.asked = 0

    async def __aenter__(self) -> Pod:
        async def contract(_: web.Request) -> web.Response:
            self.asked += 1
            assert self.answer is not None
            return self.answer

        app = web.Application()
        app.router.add_get("/contract", contract)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def cluster_with_pod(namespace: str = SHOP) -> MemoryCluster:
    cluster = MemoryCluster()
    for where in (namespace, "another"):
        labels = {"serving.knative.dev/service": RECEIVER}
        metadata = {"namespace": where, "name": f"{where}-pod", "labels": labels}
        status = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        cluster.put({"apiVersion": CORE, "kind": "Pod", "metadata": metadata, "status": status})
    return cluster


async def test_pods_are_asked_for_their_position() -> None:
    async with Pod(web.json_response({"position": 7})) as pod:
        asked = PodPositions(cluster_with_pod(), port=pod.port)
        assert await asked(SHOP, RECEIVER) == {"shop-pod": 7}
    async with Pod(web.Response(status=503)) as pod:
        asked = PodPositions(cluster_with_pod(), port=pod.port)
        assert await asked(SHOP, RECEIVER) == {"shop-pod": None}


async def test_where_no_pod_can_be_asked_the_receivers_address_is(
    unused_tcp_port: int,
) -> None:
    """A mesh with strict mTLS, or a NetworkPolicy: a Broker must not wait for ever."""
    async with Pod(web.json_response({"position": 7})) as through:
        url = f"http://127.0.0.1:{through.port}"
        asked = PodPositions(cluster_with_pod(), lambda name, namespace: url, unused_tcp_port)
        assert await asked(SHOP, RECEIVER) == {url: 7}
        nobody = PodPositions(MemoryCluster(), lambda name, namespace: url, unused_tcp_port)
        assert await nobody(SHOP, RECEIVER) == {}
        assert through.asked == 1, "one that sleeps is not woken"


async def test_fifty_brokers_at_once_have_one_contract(world: OperatorWorld) -> None:
    names = [f"shop-{number}" for number in range(50)]
    for each in names:
        world.declare_broker(each)
    statuses = await asyncio.gather(*map(world.reconcile_broker, names))
    assert {condition(each, "Ready")["status"] for each in statuses} == {"True"}
    assert len(world.entries()) == 50
    assert len(world.operator.brokers.receivers.contracts) == 1
