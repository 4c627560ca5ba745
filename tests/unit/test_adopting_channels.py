"""`knafka adopt channel/NAME` and `knafka release channel/NAME`: what they say and write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kubernetes
import pytest
from support.adopters import adopter_of
from support.api_server import ApiServer, api_server
from support.memory.log import MemoryLog
from typer.testing import CliRunner

from knafka.core import names
from knafka.ports.log import OffsetAndMetadata
from knafka_cli.adoption import cluster as adopting
from knafka_cli.adoption.channel_plan import plan_channel_adoption
from knafka_cli.adoption.cluster import Adopter
from knafka_cli.adoption.plan import Plan
from knafka_cli.command_line import app
from knafka_client.declared import cluster_source
from knafka_operator.model.channels import (
    KAFKA_CHANNEL,
    KAFKA_CHANNEL_VERSIONS,
    PEERS_CHANNEL_FINALIZER,
    PROMISE,
)
from knafka_operator.model.cluster import ClusterError
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import FINALIZER, TOPIC_STATUS

VERSION, CORE, APPS = KAFKA_CHANNEL_VERSIONS[0], "v1", "apps/v1"
OF = Identity("shop", "orders")
TOPIC = names.channel_topic(*OF)
AUDIT, MAIL = "0d4d51a9-7d9c-4b5e-8f3f-6a4a1a6f0f11", "11111111-2222-3333-4444-555555555555"
OURS = [{"type": "Ready", "status": "True"}, {"type": "ContractUpdated", "status": "True"}]

DRY_RUN = """\
KafkaChannel shop/orders: from eventing-kafka-broker to Knafka

what stays
  topic knative-messaging-kafka.shop.orders  2 partitions, id ID
  Subscription audit  group kafka.shop.orders.0d4d51a9-7d9c-4b5e-8f3f-6a4a1a6f0f11  4 events waiting
  Subscription mail  group kafka.shop.orders.11111111-2222-3333-4444-555555555555  9 events waiting

what is different
  all Subscriptions: an event that fails for good goes to a dead-letter topic; \
eventing-kafka-broker drops it
  mail: eventing-kafka-broker also applies the channel's retry to it, Knafka doesn't
  eventing-kafka-broker connects to Kafka with the Secret kafka-ns/theirs, Knafka with Secret ours \
of its own namespace

what is done
  1. write into the status of KafkaChannel shop/orders: \
default.topic: knative-messaging-kafka.shop.orders, knafka.dev/topic-id: ID, \
knafka.dev/subscriber.0d4d51a9-7d9c-4b5e-8f3f-6a4a1a6f0f11: {}, \
knafka.dev/subscriber.11111111-2222-3333-4444-555555555555: {}; and empty its subscribers
  2. take kafkachannels.messaging.knative.dev off KafkaChannel shop/orders

what follows
  Knafka's operator takes it: receiver, dispatchers, the channel's host; then it is Ready with all \
Subscriptions
  senders go on at the same host, which then leads to Knafka's receiver; until then, \
eventing-kafka-broker's receiver still writes their events to the same topic
  eventing-kafka-broker's controller stays away while a KafkaChannel is Knafka's

Nothing was changed. --yes does it.
"""


class World:
    """A KafkaChannel as the peer left it, and its Kafka."""

    def __init__(self, server: ApiServer, client: kubernetes.client.ApiClient) -> None:
        self.server, self.client, self.log = server, client, MemoryLog()
        server.kinds[APPS] = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
        server.kinds[VERSION] = {KAFKA_CHANNEL: "kafkachannels"}
        self.members: dict[str, list[str]] = {}
        servers = {"bootstrap.servers": "kafka:9092"}
        ours = {"auth.secret.ref.name": "ours", **servers}
        theirs = {"auth.secret.ref.name": "theirs", "auth.secret.ref.namespace": "kafka-ns"}
        self.config("knafka", "kafka-channel-config", **ours)
        self.config("knative-eventing", "kafka-channel-config", **theirs, **servers)
        data = {"protocol": "UExBSU5URVhU"}  # PLAINTEXT
        server.put(CORE, "Secret", "knafka", "ours", data=data)
        env = [{"name": "KNAFKA_CHANNELS", "value": "enabled"}]
        template = {"spec": {"containers": [{"name": "operator", "env": env}]}}
        server.put(APPS, "Deployment", "knafka", "knafka-operator", spec={"template": template})
        self.log.create(TOPIC, 2)
        for _ in range(10):
            self.log.store(TOPIC, None, b"{}", [])
        for uid, left in ((AUDIT, 4), (MAIL, 9)):
            self.commit(uid, left)
        entries = [
            {"uid": AUDIT, "name": "audit", "generation": 1, "subscriberUri": "http://audit/"},
            {
                "uid": MAIL, "name": "mail", "generation": 1, "subscriberUri": "http://mail/",
                "delivery": {"backoffDelay": "PT1S"},
            },
        ]  # fmt: skip
        server.put(
            VERSION, KAFKA_CHANNEL, *OF,
            metadata={"finalizers": ["others", PEERS_CHANNEL_FINALIZER]},
            spec={"subscribers": entries, "delivery": {"retry": 3, "backoffDelay": "PT2S"}},
            status={
                "annotations": {TOPIC_STATUS: TOPIC},
                "subscribers": [{"uid": uid, "ready": "True"} for uid in (AUDIT, MAIL)],
                "conditions": OURS[:1],
            },
        )  # fmt: skip

    def commit(self, uid: str, left: int) -> None:
        """Have a Subscription's group that many events before it."""
        ends = [len(records) for records in self.log.topics[TOPIC]]
        committed = self.log.group(group(uid)).committed
        committed[TOPIC, 0] = OffsetAndMetadata(max(ends[0] - left, 0), "")
        first = ends[0] - committed[TOPIC, 0].offset
        committed[TOPIC, 1] = OffsetAndMetadata(ends[1] - (left - first), "")

    def config(self, namespace: str, name: str, **data: str) -> None:
        self.server.put(CORE, "ConfigMap", namespace, name, data=data)

    @property
    def stored(self) -> dict[str, Any]:
        stored = self.server.objects[self.server.path(VERSION, KAFKA_CHANNEL, *OF)]
        assert isinstance(stored, dict)
        return stored

    @property
    def annotations(self) -> dict[str, str]:
        annotations: dict[str, str] = self.stored["status"]["annotations"]
        return annotations

    def adopter(self) -> Adopter:
        return adopter_of(self.client, self.log, self.members)

    def plan(self) -> Plan:
        return plan_channel_adoption(self.adopter().observe_channel(OF))

    def run(self, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exception is None or isinstance(result.exception, (SystemExit, ClusterError))
        text = result.output + str(result.exception or "")
        return result.exit_code, text.replace(self.log.descriptions[TOPIC].id, "ID")


def group(uid: str) -> str:
    return names.subscription_group(*OF, uid)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with api_server() as (server, client):
        world = World(server, client)
        monkeypatch.setattr(cluster_source, "client_of", lambda *_: (client, "shop"))
        monkeypatch.setattr(adopting, "Adopter", lambda *_, **__: world.adopter())
        monkeypatch.setattr(adopting, "ADOPTION_POLL_INTERVAL", 0.01)
        yield world


def test_a_dry_run_says_what_stays_what_differs_and_what_would_be_done(world: World) -> None:
    before = str(world.stored)
    assert world.run("adopt", "channel/orders") == (0, DRY_RUN)
    assert str(world.stored) == before


@pytest.mark.parametrize("killed_after", range(3))
def test_killed_after_any_step_it_is_simply_run_again(world: World, killed_after: int) -> None:
    """After each step the channel is the peer's, or the operator can take it as it is."""
    adopter = world.adopter()
    for step in world.plan().steps[:killed_after]:
        adopter.run_step(step)
        if PEERS_CHANNEL_FINALIZER not in world.stored["metadata"]["finalizers"]:
            assert world.annotations["knafka.dev/topic-id"]
            assert world.annotations.keys() >= {PROMISE + AUDIT, PROMISE + MAIL}
            assert world.stored["status"]["subscribers"] == []
    adopter.carry_out(world.plan())
    assert world.stored["metadata"]["finalizers"] == ["others"]
    assert world.annotations == {
        TOPIC_STATUS: TOPIC,
        "knafka.dev/topic-id": world.log.descriptions[TOPIC].id,
        PROMISE + AUDIT: "{}",
        PROMISE + MAIL: "{}",
    }
    assert not world.plan().steps
    assert world.plan().about.endswith("it is Knafka's already")


def test_with_yes_it_waits_until_it_and_each_subscription_are_ready_by_knafka(
    world: World,
) -> None:
    def adopted() -> str:
        code, text = world.run("adopt", "channel/shop/orders", "--yes", "--timeout", "0")
        assert code in (0, 1)
        return text.splitlines()[-1]

    theirs = "its status is still the one that eventing-kafka-broker wrote"
    assert adopted() == f"not Ready after 0 s: KafkaChannel shop/orders: {theirs}"
    world.stored["status"]["conditions"] = OURS
    world.stored["status"]["subscribers"] = [
        {"uid": MAIL, "ready": "True"},
        {"uid": AUDIT, "ready": "False", "message": "no pod"},
    ]
    assert adopted().endswith("KafkaChannel shop/orders: Subscription audit: no pod")
    world.stored["status"]["subscribers"][1]["ready"] = "True"
    assert adopted() == "KafkaChannel shop/orders is Knafka's, and Ready."


def test_what_is_in_the_way_is_said_and_nothing_is_changed(world: World) -> None:
    world.members[group(MAIL)] = ["a"]
    for kind, name in (
        ("Deployment", "kafka-controller"),
        ("Deployment", "kafka-channel-receiver"),
        ("StatefulSet", "kafka-channel-dispatcher"),
    ):
        world.server.put(APPS, kind, "knative-eventing", name, spec={})
    world.server.put(APPS, "Deployment", "knafka", "knafka-operator", spec={"template": {}})
    world.config("knative-eventing", "kafka-channel-config", **{"bootstrap.servers": "there:9092"})
    other = {"annotations": {TOPIC_STATUS: TOPIC}}
    world.server.put(VERSION, KAFKA_CHANNEL, "other", "x", spec={}, status=other)
    world.stored["spec"]["subscribers"].append({"uid": "UPPER", "subscriberUri": "http://x/"})
    del world.log.descriptions[TOPIC]
    before = str(world.stored)
    plan = world.plan()
    assert plan.waits == []
    expected = (
        "Deployment knative-eventing/kafka-controller is running, and would go on serving this",
        "StatefulSet knative-eventing/kafka-channel-dispatcher is running, and would deliver event",
        "this installation serves no KafkaChannels: set KNAFKA_CHANNELS=enabled",
        f"topic {TOPIC} isn't in the Kafka at kafka:9092",
        "eventing-kafka-broker has all channels in the Kafka at there:9092, and Knafka has this",
        f"topic {TOPIC} is in the status of KafkaChannel other/x, too",
        "the entry UPPER of spec.subscribers: invalid value: UPPER: uid: want a-z",
    )
    assert len(plan.problems) == len(expected), plan.problems
    for problem, begins in zip(plan.problems, expected, strict=True):
        assert problem.startswith(begins)
    assert str(world.stored) == before


def test_members_of_a_group_have_to_leave_first(world: World) -> None:
    world.members[group(MAIL)] = ["a", "b"]
    code, text = world.run("adopt", "channel/orders", "--yes", "--timeout", "0")
    assert code == 1
    assert f"group {group(MAIL)} has 2 members still: they have to leave first" in text
    assert PEERS_CHANNEL_FINALIZER in world.stored["metadata"]["finalizers"]


def test_a_topic_by_the_peers_template_is_taken_and_another_is_not(world: World) -> None:
    world.annotations[TOPIC_STATUS] = "events-orders"
    world.log.create("events-orders", 1)
    for uid in (AUDIT, MAIL):
        world.log.group(group(uid)).committed["events-orders", 0] = OffsetAndMetadata(0, "")
    (problem,) = world.plan().problems
    assert problem.startswith(
        "topic events-orders: this installation knows no template of channels.topic.template"
    )
    template = {"channels.topic.template": "events-{{.Name}}"}
    world.config("knative-eventing", "config-kafka-features", **template)
    plan = world.plan()
    assert not plan.problems
    assert "default.topic: events-orders" in str(plan.steps[0])


def test_an_entry_that_was_never_ready_begins_at_the_end_and_one_without_offsets_is_refused(
    world: World,
) -> None:
    del world.log.groups[group(MAIL)]
    (problem,) = world.plan().problems
    assert problem.startswith(f"group {group(MAIL)} has no offset: Subscription mail would get")
    world.stored["status"]["subscribers"][1]["ready"] = "False"
    plan = world.plan()
    assert not plan.problems
    assert "Subscription mail  was never Ready: it begins at the topic's end" in plan.stays
    assert PROMISE + MAIL not in str(plan.steps[0]), "it is a new one"
    assert PROMISE + AUDIT in str(plan.steps[0])


def test_giving_back_is_one_write_and_waits_until_the_operator_has_let_go(world: World) -> None:
    world.adopter().carry_out(world.plan())
    world.stored["metadata"]["finalizers"] = ["others", FINALIZER]
    world.annotations["knafka.dev/receivers"] = "kafka-channel-receiver"
    code, text = world.run("release", "channel/orders", "--yes", "--timeout", "0")
    assert code == 1
    assert "take knafka.dev/finalizer off, and put kafkachannels.messaging.knative.dev on" in text
    assert "the channel's host leads to eventing-kafka-broker's receiver" in text
    assert text.endswith("not released after 0 s: KafkaChannel shop/orders")
    assert world.stored["metadata"]["finalizers"] == ["others", PEERS_CHANNEL_FINALIZER]
    waits = ["Knafka's operator still has to release it: it was given back"]
    assert world.plan().waits == waits, "it can't be taken anew at once"
    del world.annotations["knafka.dev/receivers"]
    code, text = world.run("release", "channel/orders", "--yes", "--timeout", "0")
    assert code == 0, text
    assert "is released: nothing of Knafka's is in its groups" in text


def test_a_channel_in_a_kafka_of_its_own_is_not_given_away(world: World) -> None:
    """The peer has one Kafka for all channels."""
    world.stored["metadata"]["annotations"] = {"knafka.dev/kafka-secret": "second"}
    data = {"protocol": "UExBSU5URVhU", "bootstrap.servers": "c2Vjb25kOjkwOTI="}  # second:9092
    labels = {"labels": {"knafka.dev/kafka-secret": "true"}}
    world.server.put(CORE, "Secret", "knafka", "second", metadata=labels, data=data)
    world.adopter().carry_out(world.plan())
    code, text = world.run("release", "channel/orders")
    assert code == 1
    assert "has all channels in the Kafka at kafka:9092, and Knafka has this one at second" in text


def test_a_channel_that_is_not_there_is_said(world: World) -> None:
    code, text = world.run("adopt", "channel/another")
    assert (code, text.splitlines()[-1]) == (1, "there is no KafkaChannel shop/another")
