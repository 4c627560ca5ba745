"""A Broker, and a KafkaChannel, go from eventing-kafka-broker to Knafka under load, and back
(issue 39, item 3).

    KNAFKA_RATE=100 pytest tests/cluster/test_adopt.py -s

Without that, 3 Triggers or Subscriptions at 25 events a second; with it 20. The peer isn't here:
what it would have left is made by hand (objects, its finalizers, topic, groups), and consumers of
Kafka's own client with plain commits play its dispatchers.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.channels import Channels, channel, subscription
from support.cluster import OPERATOR_NAMESPACE, Cluster
from support.gate import only_chaos
from support.installation import EVENTING, Installation, Subscriber
from typer.testing import CliRunner

from knafka_cli.command_line import app

FULL: Final = "KNAFKA_RATE" in os.environ
RATE: Final = float(os.environ.get("KNAFKA_RATE", "25"))
TRIGGERS: Final = [f"t{number:02}" for number in range(20 if FULL else 3)]
PARTITIONS: Final = 4
KEYS: Final = 16
IN_FLIGHT: Final = 5
"""Events that each of the peer's dispatchers has delivered and not committed when it ends."""
LONGEST_PAUSE: Final = 60.0
"""Seconds in which nothing arrives while a Broker is taken over: no pod runs before it."""
WITHIN: Final = 180.0
OF_TRIGGER: Final = "kafka.triggers.eventing.knative.dev"


@dataclass(frozen=True, slots=True)
class Kind:
    """What is taken over."""

    broker: str
    trigger: str
    name: str
    """Of the one Broker or channel."""
    argument: str
    """The same for `knafka adopt`."""
    finalizer: str
    """The peer's."""


BROKER: Final = Kind("broker", "trigger", "default", "default", "brokers.eventing.knative.dev")
CHANNEL: Final = Kind(
    "kafkachannel",
    "subscription.messaging.knative.dev",
    "orders",
    "channel/orders",
    "kafkachannels.messaging.knative.dev",
)

pytestmark = pytest.mark.timeout(900)


class Load:
    """Events that the peer's receiver writes, at a steady rate."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            number, self.sent = self.sent, self.sent + 1
            key = f"k{number % KEYS}"
            headers = {
                "ce_specversion": "1.0",
                "ce_id": str(number),
                "ce_source": "/load",
                "ce_type": "made",
                "ce_partitionkey": key,
                "ce_sequence": str(number),
                "content-type": "application/json",
            }
            given: list[Any] = [(name, value.encode()) for name, value in headers.items()]
            self._producer.produce(self._topic, key=key, value=b"{}", headers=given)
        self._producer.poll(0)

    def _run(self) -> None:
        while not self._stop.wait(1 / RATE):
            self.write(1)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


class PeersDispatcher:
    """A member of one Trigger's or Subscription's group that commits what it delivered, and nothing
    but offsets."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "partition.assignment.strategy": "roundrobin",
                "session.timeout.ms": 10_000,
            }
        )
        self._consumer.subscribe([topic])
        self._stop = threading.Event()
        self.delivered: list[tuple[int, float]] = []
        """Each event's number, and when."""
        self.in_flight: list[int] = []
        """Of those the ones that it didn't commit."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._take(commits=True)
        for _ in range(50):  # then it ends with some in flight
            if self._take(commits=False) and len(self.in_flight) >= IN_FLIGHT:
                break
        self._consumer.close()

    def _take(self, *, commits: bool) -> bool:
        if commits:
            self.in_flight = []
        record = self._consumer.poll(0.1)
        if record is None or record.error():
            return False
        headers: dict[str, Any] = dict(record.headers() or [])
        number = int(headers["ce_id"])
        self.delivered.append((number, time.time()))
        if commits:
            self._consumer.commit(message=record, asynchronous=False)
        else:
            self.in_flight.append(number)
        return True

    def until(self, world: World, count: int) -> None:
        """Wait until it has delivered so many."""
        world.cluster.wait_for(
            lambda: len(self.delivered) >= count, WITHIN, "the peer's dispatcher delivers"
        )

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


class World:
    """What the peer left, and what is asked of it."""

    def __init__(self, installed: Installation, namespace: str, kind: Kind) -> None:
        self.installed, self.namespace, self.kind = installed, namespace, kind
        self.cluster: Cluster = installed.cluster
        self.servers = installed.kafka.bootstrap("PLAINTEXT")
        self.topic = f"knative-broker-{namespace}-default"
        if kind is CHANNEL:
            self.topic = f"knative-messaging-kafka.{namespace}.orders"
        self.groups: dict[str, str] = {}
        """By the name of the Trigger or Subscription."""
        self.admin = AdminClient({"bootstrap.servers": self.servers})

    def made_by_the_peer(self, subscriber: Subscriber) -> None:
        """Topic, groups with offsets, and objects with finalizers and status."""
        topic = NewTopic(self.topic, PARTITIONS, 1)
        self.admin.create_topics([topic])[self.topic].result(30)
        annotations = {"eventing.knative.dev/broker.class": "Kafka"}
        if FULL:  # twenty pods of Java wouldn't be here either
            annotations["knafka.dev/isolation"] = "shared"
        make = self._make_channel if self.kind is CHANNEL else self._make_broker
        make(subscriber, annotations)
        for group in self.groups.values():
            consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group})
            places = [TopicPartition(self.topic, number, 0) for number in range(PARTITIONS)]
            consumer.commit(offsets=places, asynchronous=False)
            consumer.close()

    def _make_broker(self, subscriber: Subscriber, annotations: Mapping[str, str]) -> None:
        self.groups = {name: f"knative-trigger-{self.namespace}-{name}" for name in TRIGGERS}
        self.installed.configure("default-kafka", self.namespace)
        config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "default-kafka"}
        self._put("broker", "default", {"config": config}, annotations, BROKER.finalizer)
        recorded = {"default.topic": self.topic, "bootstrap.servers": self.servers}
        self._record("broker", "default", recorded)
        for name, group in self.groups.items():
            to = {"uri": f"{subscriber.url}/{name}"}
            spec = {"broker": "default", "subscriber": to}
            self._put("trigger", name, spec, {}, OF_TRIGGER)
            self._record("trigger", name, {"group.id": group})

    def _put(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        annotations: Mapping[str, str],
        finalizer: str,
    ) -> None:
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "annotations": dict(annotations),
            "finalizers": [finalizer],
        }
        document = {"apiVersion": EVENTING, "kind": kind.title(), "metadata": metadata}
        self.cluster.apply({**document, "spec": dict(spec)})

    def _make_channel(self, subscriber: Subscriber, annotations: Mapping[str, str]) -> None:
        """With the entries that Knative Eventing's controller would have written."""
        document = channel(self.namespace, "orders", numPartitions=PARTITIONS)
        document["metadata"] |= {
            "annotations": dict(annotations),
            "finalizers": [CHANNEL.finalizer],
        }
        self.cluster.apply(document)
        entries = []
        for name in TRIGGERS:
            to = {"uri": f"{subscriber.url}/{name}"}
            self.cluster.apply(subscription(self.namespace, name, "orders", to))
            stored = self.cluster.get(CHANNEL.trigger, name, self.namespace)
            assert stored is not None
            uid = stored["metadata"]["uid"]
            self.groups[name] = f"kafka.{self.namespace}.orders.{uid}"
            entries.append({"uid": uid, "generation": 1, "name": name, "subscriberUri": to["uri"]})
        self.patch("kafkachannel", "orders", {"spec": {"subscribers": entries}})
        subscribers = [
            {"uid": entry["uid"], "observedGeneration": 1, "ready": "True"} for entry in entries
        ]
        self._record("kafkachannel", "orders", {"default.topic": self.topic}, subscribers)

    def _record(
        self,
        kind: str,
        name: str,
        annotations: Mapping[str, str],
        subscribers: Collection[Mapping[str, Any]] = (),
    ) -> None:
        """As the peer says that it is Ready."""
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status: dict[str, Any] = {"annotations": dict(annotations), "conditions": [ready]}
        if subscribers:
            status["subscribers"] = list(subscribers)
        self.patch(kind, name, {"status": status}, "status")

    def patch(self, kind: str, name: str, body: Mapping[str, Any], subresource: str = "") -> None:
        of = (f"--subresource={subresource}",) if subresource else ()
        self.cluster.kubectl(
            "patch", kind, name, "-n", self.namespace, "--type=merge", *of, "-p", json.dumps(body)
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        """A command of `knafka`: its exit code, and what it printed."""
        kubeconfig = ("--kubeconfig", str(self.cluster.kubeconfig), "-n", self.namespace)
        result = CliRunner().invoke(app, [*arguments, *kubeconfig])
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result.exit_code, result.output

    def stored(self) -> dict[str, Any]:
        found = self.cluster.get(self.kind.broker, self.kind.name, self.namespace)
        assert found is not None
        return found

    def finalizers(self) -> list[str]:
        return list(self.stored()["metadata"].get("finalizers") or ())

    def functions(self) -> list[str]:
        """Knative Services of ours that are for this test's objects alone."""
        namespace = OPERATOR_NAMESPACE if self.kind is CHANNEL else self.namespace
        listed = self.cluster.kubectl(
            "get", "services.serving.knative.dev", "-n", namespace, "-oname"
        )
        named = listed.split()
        return [name for name in named if self.kind is BROKER or self.namespace in name]

    def unsettled(self, group: str) -> int:
        """What any client of Kafka finds uncommitted."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group})
        try:
            places = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
            return sum(
                consumer.get_watermark_offsets(each, 10)[1] - max(each.offset, 0)
                for each in consumer.committed(places, timeout=10)
            )
        finally:
            consumer.close()

    def until_settled(self, group: str) -> None:
        self.cluster.wait_for(
            lambda: self.unsettled(group) == 0, WITHIN, f"group {group} is settled"
        )

    def forget(self) -> None:
        """Have nobody's finalizer keep it, and Kafka clean."""
        for kind, names in ((self.kind.trigger, TRIGGERS), (self.kind.broker, [self.kind.name])):
            for name in names:
                self.patch(kind, name, {"metadata": {"finalizers": []}})
            of = ("--all", "-n", self.namespace, "--wait=false")
            self.cluster.kubectl("delete", kind, *of, check=False)
        for each in self.admin.delete_topics([self.topic]).values():
            each.result(30)


@pytest.fixture(
    params=[
        pytest.param(BROKER, id="a Broker"),
        pytest.param(CHANNEL, id="a KafkaChannel"),
    ]
)
def world(
    request: pytest.FixtureRequest, installed: Installation, channels: Channels, namespace: str
) -> Iterator[World]:
    world = World(installed, namespace, request.param)
    yield world
    world.forget()


def stop_all(peers: Collection[PeersDispatcher]) -> None:
    threads = [threading.Thread(target=each.stop) for each in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_trigger(subscriber: Subscriber) -> dict[str, list[tuple[int, float]]]:
    """What each Trigger delivered to it: the events' numbers, and when."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for event in subscriber.seen():
        found[event["path"].strip("/")].append((int(event["id"]), float(event["at"])))
    return found


@only_chaos
def test_what_the_peer_serves_is_adopted_under_load_and_given_back(
    world: World, installed: Installation
) -> None:
    subscriber = installed.subscriber(world.namespace)
    world.made_by_the_peer(subscriber)
    peers = {
        name: PeersDispatcher(world.servers, world.topic, group)
        for name, group in world.groups.items()
    }
    with Load(world.servers, world.topic) as load:
        for peer in peers.values():
            peer.until(world, 20)
        # As long as it runs, nothing is taken.
        types = [each["type"] for each in world.stored()["status"]["conditions"]]
        assert types == ["Ready"], "Knafka leaves what the peer has claimed alone"
        code, text = world.run("adopt", world.kind.argument)
        assert code == 1, text
        assert "members still: they have to leave first" in text
        assert world.finalizers() == [world.kind.finalizer]
        stop_all(peers.values())
        began = time.monotonic()
        code, text = world.run("adopt", world.kind.argument, "--yes", "--timeout", str(WITHIN))
        assert code == 0, text
        assert world.finalizers() == ["knafka.dev/finalizer"]
        took = time.monotonic() - began
        address = world.stored()["status"]["address"]["url"]
        assert installed.send(address, "999999").status_code == 202
        time.sleep(3 if not FULL else 10)  # a load on what is adopted
    for group in world.groups.values():
        world.until_settled(group)
    after = by_trigger(subscriber)
    pauses, repeated = [], 0
    for name, peer in peers.items():
        before = [number for number, _ in peer.delivered]
        ours = [number for number, _ in after[name]]
        assert set(before) | set(ours) == {*range(load.sent), 999_999}, f"{name}: none is lost"
        # What is delivered once more as our own pods come and go is no matter of adopting.
        by_both = set(before) & set(ours)
        assert by_both <= set(peer.in_flight), f"{name}: repeated is only what was in flight"
        repeated += len(by_both)
        for key in range(KEYS):
            numbers = [each for each in ours if each % KEYS == key and each != 999_999]
            assert numbers == sorted(numbers), f"{name}: in order by key"
        last = max(at for _, at in peer.delivered)
        pauses.append(min(at for _, at in after[name]) - last)
    in_flight = sum(len(peer.in_flight) for peer in peers.values())
    print(
        f"\nadopted {world.kind.broker} with {len(TRIGGERS)} at {RATE:.0f} events/s: "
        f"{load.sent} events, 0 lost, {repeated} repeated of {in_flight} in flight; "
        f"longest pause {max(pauses):.1f} s, knafka adopt took {took:.1f} s"
    )
    if FULL:  # with the machine to itself
        assert max(pauses) < LONGEST_PAUSE

    # And back.
    began = time.monotonic()
    code, text = world.run("release", world.kind.argument, "--yes", "--timeout", str(WITHIN))
    assert code == 0, text
    took = time.monotonic() - began
    assert world.finalizers() == [world.kind.finalizer]
    stored = world.stored()
    annotations = stored["metadata"]["annotations"]
    assert annotations["eventing.knative.dev/broker.class"] == "Kafka"
    assert stored["status"]["annotations"]["default.topic"] == world.topic
    assert world.functions() == [], "no function of ours is left"
    before_back = load.sent
    load.write(40)
    load._producer.flush(30)
    back = {
        name: PeersDispatcher(world.servers, world.topic, group)
        for name, group in world.groups.items()
    }
    for peer in back.values():
        peer.until(world, 40)
    stop_all(back.values())
    for name, peer in back.items():
        numbers = sorted(number for number, _ in peer.delivered)
        assert numbers == list(range(before_back, before_back + 40)), f"{name}: just what is new"
    print(f"given back in {took:.1f} s: the peer goes on with what is new, and nothing else")
