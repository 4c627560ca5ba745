"""`knafka adopt` and `knafka release`: what they say and write, and when they write nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kubernetes
import pytest
from support.adopters import adopter_of
from support.api_server import ApiServer, api_server
from support.memory.log import MemoryLog
from typer.testing import CliRunner

from knafka.ports.log import OffsetAndMetadata
from knafka_cli.adoption import cluster as adopting
from knafka_cli.adoption.broker_plan import plan_broker_adoption, plan_broker_release
from knafka_cli.adoption.cluster import Adopter, explain_not_ready
from knafka_cli.adoption.plan import Plan, find_not_released
from knafka_cli.command_line import app
from knafka_client.declared import cluster_source
from knafka_client.declared.kubernetes_api import KubernetesApi
from knafka_operator.model.cluster import ClusterError, Conflict
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EXTERNAL_TOPIC, FINALIZER, PEERS_FINALIZER
from knafka_operator.model.sources import (
    KAFKA_SOURCE,
    PEERS_SOURCE_FINALIZER,
    SOURCES_VERSION,
)

EVENTING, CORE, APPS = "eventing.knative.dev/v1", "v1", "apps/v1"
TOPIC, OF = "knative-broker-shop-default", Identity("shop", "default")
MAIL, BILL = "knative-trigger-shop-mail", "11111111-2222-3333-4444-555555555555"
OF_TRIGGER = "kafka.triggers.eventing.knative.dev"

READY = [
    {"type": "Ready", "status": "True"},
    # What no other implementation says: of Triggers and KafkaSources, of Brokers and KafkaChannels.
    {"type": "Delivering", "status": "True"},
    {"type": "ContractUpdated", "status": "True"},
]

DRY_RUN = """\
Broker shop/default, class Kafka: from eventing-kafka-broker to Knafka

what stays
  topic knative-broker-shop-default  2 partitions, id ID
  Trigger bill  group 11111111-2222-3333-4444-555555555555  4 events waiting
  Trigger mail  group knative-trigger-shop-mail  9 events waiting

what is different
  bill: the first wait is PT1S; eventing-kafka-broker waits twice that
  all Triggers: an event that fails for good goes to a dead-letter topic; eventing-kafka-broker \
drops it
  bill: its CESQL mixes AND and OR: read from the left; eventing-kafka-broker reads from the right
  mail: no delivery is declared: 10 retries from 0.2 s on; eventing-kafka-broker doesn't retry
  mail: order is kept for each key (delivery.order); eventing-kafka-broker keeps none
  mail: an empty attribute of the filter must be in the event; eventing-kafka-broker ignores it

what is done
  1. write into the status of Trigger shop/mail: group.id: knative-trigger-shop-mail
  2. write into the status of Broker shop/default: default.topic: knative-broker-shop-default, \
knafka.dev/topic-id: ID
  3. take kafka.triggers.eventing.knative.dev off Trigger shop/bill
  4. take brokers.eventing.knative.dev off Broker shop/default

what follows
  Knafka's operator takes it: receiver, dispatchers, address; then all are Ready
  senders go on at the new address, in .status.address.url; what they still send to \
eventing-kafka-broker's receiver arrives in the same topic, for as long as that runs
  eventing-kafka-broker's controller stays away while a Broker of class Kafka is Knafka's"""

BACK = """\
Broker shop/default: from Knafka to eventing-kafka-broker

what stays
  topic knative-broker-shop-default  2 partitions, id ID
  Trigger bill  group 11111111-2222-3333-4444-555555555555  4 events waiting
  Trigger mail  group knative-trigger-shop-mail  9 events waiting

what is different
  eventing-kafka-broker delivers some events again: those that Knafka delivered while an earlier \
event of their partition was still being retried, as its commits have one offset for each partition
  dead letters stay in Kafka, in the topics knafka-dead-letters-*

what is done
  1. take knafka.dev/finalizer off, and put brokers.eventing.knative.dev on Broker shop/default

what follows
  Knafka's operator ends its deliveries and deletes its functions
  then start eventing-kafka-broker: kubectl -n knative-eventing scale deployment \
kafka-controller --replicas=1"""


class World:
    """A cluster as the peer left it, and its Kafka."""

    def __init__(self, server: ApiServer, client: kubernetes.client.ApiClient) -> None:
        self.server, self.client, self.log = server, client, MemoryLog()
        server.kinds[APPS] = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
        self.members: dict[str, list[str]] = {}
        self.config("knafka", "kafka-broker-config", **{"bootstrap.servers": "kafka:9092"})
        self.log.create(TOPIC, 2)
        for _ in range(10):
            self.log.store(TOPIC, None, b"{}", [])
        ends = [len(each) for each in self.log.topics[TOPIC]]
        for group, left in ((MAIL, 9), (BILL, 4)):
            committed = self.log.group(group).committed
            committed[TOPIC, 0] = OffsetAndMetadata(max(ends[0] - left, 0), "")
            first = ends[0] - committed[TOPIC, 0].offset
            committed[TOPIC, 1] = OffsetAndMetadata(ends[1] - (left - first), "")
        self.put(
            "Broker", "default", {}, {"default.topic": TOPIC, "bootstrap.servers": "kafka:9092"},
            [PEERS_FINALIZER], {"eventing.knative.dev/broker.class": "Kafka"},
        )  # fmt: skip
        delivery = {"backoffPolicy": "exponential", "backoffDelay": "PT1S", "retry": 3}
        mixed = [{"cesql": "a = '1' AND b = '2' OR c = '3'"}]
        self.put(
            "Trigger", "bill", {"delivery": delivery, "filters": mixed}, {"group.id": BILL},
            [OF_TRIGGER], {"kafka.eventing.knative.dev/delivery.order": "ordered"},
            uid=BILL,
        )  # fmt: skip
        # Of a release that doesn't write the group down.
        self.put("Trigger", "mail", {"filter": {"attributes": {"tenant": ""}}}, {}, [], {})
        self.put("Trigger", "others", {}, {"group.id": "x"}, [], {}, broker="another")

    def config(self, namespace: str, name: str, **data: str) -> None:
        self.server.put(CORE, "ConfigMap", namespace, name, data=data)

    def put(
        self, kind: str, name: str, spec: dict[str, Any], kept: dict[str, str],
        finalizers: list[str], annotations: dict[str, str], broker: str = "default", uid: str = "",
    ) -> None:  # fmt: skip
        if kind == "Trigger":
            spec = {"broker": broker, "subscriber": {"uri": "http://there/"}, **spec}
        metadata: dict[str, Any] = {"finalizers": finalizers, "annotations": annotations}
        if uid:
            metadata["uid"] = uid
        status = {"status": {"annotations": kept}} if kept else {}
        self.server.put(EVENTING, kind, "shop", name, metadata=metadata, spec=spec, **status)

    def found(self, kind: str, name: str) -> dict[str, Any]:
        found = self.server.found(EVENTING, kind, "shop", name)
        assert found is not None
        return found

    def adopter(self) -> Adopter:
        return adopter_of(self.client, self.log, self.members)

    def plan(self) -> Plan:
        return plan_broker_adoption(self.adopter().observe_broker(OF))

    def text(self, plan: Plan) -> str:
        return plan.text.replace(self.log.descriptions[TOPIC].id, "ID")

    def state(self) -> dict[tuple[str, str], Any]:
        """All that a plan may write."""
        return {
            each: (
                self.found(*each)["metadata"].get("finalizers"),
                (self.found(*each).get("status") or {}).get("annotations"),
            )
            for each in (("Broker", "default"), ("Trigger", "bill"), ("Trigger", "mail"))
        }


@pytest.fixture
def world() -> Iterator[World]:
    with api_server() as (server, client):
        yield World(server, client)


def test_a_dry_run_says_what_stays_what_differs_and_what_would_be_done(world: World) -> None:
    before = world.state()
    plan = world.plan()
    assert world.text(plan) == DRY_RUN
    assert world.state() == before


@pytest.mark.parametrize("killed_after", range(5))
def test_killed_after_any_step_it_is_simply_run_again(world: World, killed_after: int) -> None:
    """After each step the Broker is the peer's, or the operator can take it as it is."""
    adopter = world.adopter()
    for step in world.plan().steps[:killed_after]:
        adopter.run_step(step)
        # Before the operator may take it, all that it goes by is written.
        if PEERS_FINALIZER not in world.found("Broker", "default")["metadata"]["finalizers"]:
            assert world.state()["Broker", "default"][1]["knafka.dev/topic-id"]
            assert world.state()["Trigger", "mail"][1] == {"group.id": MAIL}
    adopter.carry_out(world.plan())
    assert world.state() == {
        ("Broker", "default"): (
            [],
            {
                "default.topic": TOPIC,
                "bootstrap.servers": "kafka:9092",
                "knafka.dev/topic-id": world.log.descriptions[TOPIC].id,
            },
        ),
        ("Trigger", "bill"): ([], {"group.id": BILL}),
        ("Trigger", "mail"): ([], {"group.id": MAIL}),
    }
    assert not world.plan().steps
    assert world.found("Trigger", "others")["status"]["annotations"] == {"group.id": "x"}


def test_members_of_a_group_have_to_leave_first(world: World) -> None:
    world.members[MAIL] = ["a", "b"]
    plan = world.plan()
    assert plan.waits == [f"group {MAIL} has 2 members still: they have to leave first"]
    with pytest.raises(ClusterError, match=r"after 0 s group .* has 2 members still"):
        world.adopter().wait_for_preconditions("Broker", OF, 0)


def test_what_runs_of_the_peer_is_in_the_way_and_its_receiver_is_not(world: World) -> None:
    for kind, name in (
        ("Deployment", "kafka-controller"),
        ("Deployment", "kafka-broker-receiver"),
        ("StatefulSet", "kafka-broker-dispatcher"),
    ):
        world.server.put(APPS, kind, "knative-eventing", name, spec={"replicas": 1})
    plan = world.plan()
    assert plan.problems == [
        "Deployment knative-eventing/kafka-controller is running, and would go on serving this "
        "Broker: stop it by kubectl -n knative-eventing scale deployment kafka-controller "
        "--replicas=0",
        "StatefulSet knative-eventing/kafka-broker-dispatcher is running, and would deliver events "
        "of this Broker, too: stop it by kubectl -n knative-eventing scale statefulset "
        "kafka-broker-dispatcher --replicas=0",
    ]
    for kind, name in (
        ("Deployment", "kafka-controller"),
        ("StatefulSet", "kafka-broker-dispatcher"),
    ):
        world.server.put(
            APPS, kind, "knative-eventing", name, spec={"replicas": 0}, status={"replicas": 1}
        )
    assert len(world.plan().problems) == 2, "their pods are there still"


def test_a_class_that_the_installation_does_not_serve_is_in_the_way(world: World) -> None:
    env = [{"name": "KNAFKA_BROKER_CLASSES", "value": "kafka, knafka"}]
    template = {"spec": {"containers": [{"name": "operator", "env": env}]}}
    world.server.put(APPS, "Deployment", "knafka", "knafka-operator", spec={"template": template})
    assert world.plan().problems == [
        "this installation serves the classes kafka, knafka: add Kafka to KNAFKA_BROKER_CLASSES "
        "of its Deployment knafka-operator"
    ]


def test_a_topic_that_is_not_there_or_elsewhere_or_somebody_elses_is_in_the_way(
    world: World,
) -> None:
    world.server.put(
        EVENTING, "Broker", "other", "x", status={"annotations": {"default.topic": TOPIC}}
    )
    world.config("knafka", "kafka-broker-config", **{"bootstrap.servers": "elsewhere:9092"})
    del world.log.descriptions[TOPIC]
    assert world.plan().problems == [
        f"topic {TOPIC} isn't in the Kafka at elsewhere:9092",
        "eventing-kafka-broker has its topic in the Kafka at kafka:9092, and Knafka would look for "
        "it at elsewhere:9092: set bootstrap.servers in its ConfigMap",
        f"topic {TOPIC} is in the status of Broker other/x, too",
    ]


def test_names_by_the_peers_templates_are_taken_and_others_are_not(world: World) -> None:
    mine = {"group.id": "group-mail", "default.topic": ""}
    world.put("Trigger", "mail", {}, mine, [], {})
    path = world.server.path(EVENTING, "Trigger", "shop", "mail")
    world.server.objects[path]["status"] = {"annotations": {"group.id": "group-mail"}}
    world.log.group("group-mail").committed[TOPIC, 0] = OffsetAndMetadata(1, "")
    assert [each.partition(":")[0] for each in world.plan().problems] == [
        "Trigger shop/mail has the group group-mail"
    ]
    template = {"triggers.consumergroup.template": "group-{{.Name}}"}
    world.config("knative-eventing", "config-kafka-features", **template)
    assert not world.plan().problems
    world.config(
        "knative-eventing", "config-kafka-features", **dict.fromkeys(template, "x-{{.Name}}")
    )
    record = {"triggers.consumergroup.template": "x-{{ .Name }}\ngroup-{{ .Name }}"}
    world.config("knafka", "knafka-name-templates", **record)
    assert not world.plan().problems, "it was in force before"


def test_a_trigger_that_was_never_ready_begins_at_the_end_and_one_without_offsets_is_refused(
    world: World,
) -> None:
    del world.log.groups[MAIL]
    plan = world.plan()
    assert "Trigger mail  was never Ready: it begins at the topic's end" in plan.stays
    assert not plan.problems
    assert not [each for each in plan.steps if "shop/mail" in str(each)]
    path = world.server.path(EVENTING, "Trigger", "shop", "mail")
    world.server.objects[path]["status"] = {"annotations": {"group.id": MAIL}}
    (problem,) = world.plan().problems
    assert problem.startswith(f"group {MAIL} has no offset on partitions 0, 1")


def test_giving_back_is_one_write_and_says_what_follows(world: World) -> None:
    adopter = world.adopter()
    adopter.carry_out(world.plan())
    path = world.server.path(EVENTING, "Broker", "shop", "default")
    world.server.objects[path]["metadata"]["finalizers"] = ["somebodys", FINALIZER]
    plan = plan_broker_release(adopter.observe_broker(OF))
    assert world.text(plan) == BACK
    adopter.carry_out(plan)
    finalizers = world.found("Broker", "default")["metadata"]["finalizers"]
    assert finalizers == ["somebodys", PEERS_FINALIZER]
    broker, trigger = world.found("Broker", "default"), world.found("Trigger", "mail")
    assert find_not_released([broker, trigger]) == "Broker shop/default", "the topic's id is there"
    del broker["status"]["annotations"]["knafka.dev/topic-id"]
    assert find_not_released([broker, trigger]) is None
    assert not plan_broker_release(adopter.observe_broker(OF)).steps


def test_a_broker_of_our_own_class_can_not_be_given_away(world: World) -> None:
    path = world.server.path(EVENTING, "Broker", "shop", "default")
    metadata = world.server.objects[path]["metadata"]
    metadata["annotations"] = {"eventing.knative.dev/broker.class": "kafka"}
    (problem,) = plan_broker_release(world.adopter().observe_broker(OF)).problems
    assert "its class is kafka" in problem


def test_a_finalizer_that_somebody_else_writes_meanwhile_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, raised = KubernetesApi.patch, list[bool]()

    def meanwhile(self: KubernetesApi, objects: Any, *of: Any, **more: Any) -> Any:
        if objects.plural == "brokers" and "subresource" not in more and not raised:
            raised.append(True)
            metadata = {"finalizers": [PEERS_FINALIZER, "somebodys"]}
            world.server.put(EVENTING, "Broker", "shop", "default", metadata=metadata)
            raise Conflict("the object has been modified")
        return patch(self, objects, *of, **more)

    monkeypatch.setattr(KubernetesApi, "patch", meanwhile)
    world.adopter().carry_out(world.plan())
    assert world.found("Broker", "default")["metadata"]["finalizers"] == ["somebodys"]


def test_an_external_topic_stays_external_and_has_to_be_allowed(world: World) -> None:
    path = world.server.path(EVENTING, "Broker", "shop", "default")
    world.server.objects[path]["metadata"]["annotations"] |= {EXTERNAL_TOPIC: "legacy"}
    world.server.objects[path]["status"]["annotations"]["default.topic"] = "legacy"
    world.log.create("legacy", 1)
    for group in (MAIL, BILL):
        world.log.group(group).committed["legacy", 0] = OffsetAndMetadata(0, "")
    (problem,) = world.plan().problems
    assert problem.startswith("external topic legacy is not allowed in namespace shop")
    given = {"bootstrap.servers": "kafka:9092", "external.topics": "legacy"}
    world.config("knafka", "kafka-broker-config", **given)
    plan = world.plan()
    assert not plan.problems
    assert not [each for each in plan.steps if "topic-id" in str(each)], "it is nobody's own"


# The commands.


@pytest.fixture
def commands(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(cluster_source, "client_of", lambda *_: (world.client, "shop"))
    adopter = world.adopter()
    monkeypatch.setattr(adopting, "Adopter", lambda *_, **__: adopter)
    monkeypatch.setattr(adopting, "ADOPTION_POLL_INTERVAL", 0.01)
    return world


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, (SystemExit, ClusterError))
    return result.exit_code, result.output + str(result.exception or "")


def test_without_yes_nothing_is_changed(commands: World) -> None:
    before = commands.state()
    code, text = run("adopt", "default")
    assert code == 0
    assert text.rstrip().endswith("Nothing was changed. --yes does it.")
    assert commands.state() == before


def test_with_yes_it_waits_until_all_are_ready(commands: World) -> None:
    code, text = run("adopt", "shop/default", "--yes", "--timeout", "0")
    assert code == 1
    assert "not Ready after 0 s: Broker shop/default: it says nothing yet" in text
    for kind, name in (("Broker", "default"), ("Trigger", "bill"), ("Trigger", "mail")):
        path = commands.server.path(EVENTING, kind, "shop", name)
        commands.server.objects[path]["status"]["conditions"] = READY[:1]
    code, text = run("adopt", "shop/default", "--yes", "--timeout", "0")
    assert code == 1
    assert (
        "Broker shop/default: its status is still the one that eventing-kafka-broker wrote" in text
    )
    for kind, name in (("Broker", "default"), ("Trigger", "bill"), ("Trigger", "mail")):
        path = commands.server.path(EVENTING, kind, "shop", name)
        commands.server.objects[path]["status"]["conditions"] = READY
    code, text = run("adopt", "shop/default", "--yes", "--timeout", "0")
    assert (code, text.splitlines()[-1]) == (
        0,
        "Broker shop/default is Knafka's, and Ready.",
    )


def test_with_something_in_the_way_nothing_is_changed(commands: World) -> None:
    commands.server.put(APPS, "Deployment", "knative-eventing", "kafka-controller", spec={})
    before = commands.state()
    code, text = run("adopt", "default", "--yes")
    assert code == 1
    assert "what is in the way" in text
    assert commands.state() == before


def test_release_waits_until_the_operator_has_let_go(commands: World) -> None:
    path = commands.server.path(EVENTING, "Broker", "shop", "default")
    metadata = commands.server.objects[path]["metadata"]
    metadata["finalizers"] = [FINALIZER]
    annotations = commands.server.objects[path]["status"]["annotations"]
    annotations["knafka.dev/topic-id"] = "x"
    code, text = run("release", "default", "--yes", "--timeout", "0")
    assert (code, "not released after 0 s: Broker shop/default" in text) == (1, True)
    del commands.server.objects[path]["status"]["annotations"]["knafka.dev/topic-id"]
    code, text = run("release", "default", "--yes", "--timeout", "0")
    assert code == 0
    assert "is released: nothing of Knafka's is in its groups" in text


@pytest.mark.parametrize("name", ["", "a/", "/b", "a/b/c", "source/", "channel/", "source/a/b/c"])
def test_a_name_that_no_broker_has_is_refused(commands: World, name: str) -> None:
    code, text = run("adopt", name)
    assert code == 2
    assert "want [NAMESPACE/]NAME, channel/[NAMESPACE/]NAME or source/[NAMESPACE/]NAME" in text


def test_a_broker_that_is_not_there_is_said(commands: World) -> None:
    code, text = run("adopt", "another")
    assert code == 1
    assert "there is no Broker shop/another" in text


def test_not_ready_names_each_that_is_not() -> None:
    ready = {"conditions": READY}
    metadata = {"namespace": "shop", "name": "mail"}
    trigger = {"kind": "Trigger", "metadata": metadata}
    assert explain_not_ready([{**trigger, "status": ready}]) is None
    text = explain_not_ready([{**trigger, "status": ready}, trigger])
    assert text == "Trigger shop/mail: it says nothing yet"


def test_once_it_is_taken_the_members_of_its_groups_are_knafkas_own(world: World) -> None:
    """Whoever was killed while all was getting Ready runs it again."""
    world.adopter().carry_out(world.plan())
    world.members[MAIL] = ["a dispatcher of ours"]
    plan = world.plan()
    assert not plan.waits
    assert plan.about.endswith("it is Knafka's already")


# KafkaSources.

SOURCE_RUN = """\
KafkaSource shop/raw: from eventing-kafka-broker to Knafka

what stays
  topics raw, more
  group readers  3 events waiting

what is different
  a record that fails for good goes to a dead-letter topic; eventing-kafka-broker drops it
  consumers: there are at most 2; eventing-kafka-broker always has that number

what is done
  1. take kafkasources.sources.knative.dev off KafkaSource shop/raw

what follows
  Knafka's operator takes it: a dispatcher of its own; then it is Ready

Nothing was changed. --yes does it.
"""


@pytest.fixture
def source(commands: World) -> World:
    """A KafkaSource of the peer's, of whose two topics three records wait."""
    for topic, count in (("raw", 4), ("more", 1)):
        commands.log.create(topic, 1)
        for _ in range(count):
            commands.log.store(topic, None, b"any", [])
    commands.log.group("readers").committed["raw", 0] = OffsetAndMetadata(2, "")
    commands.server.kinds[SOURCES_VERSION] = {KAFKA_SOURCE: "kafkasources"}
    env = [{"name": "KNAFKA_SOURCES", "value": "enabled"}]
    template = {"spec": {"containers": [{"name": "operator", "env": env}]}}
    spec = {"template": template}
    commands.server.put(APPS, "Deployment", "knafka", "knafka-operator", spec=spec)
    declared = {
        "topics": ["raw", "more"], "bootstrapServers": ["kafka:9092"], "consumerGroup": "readers",
        "consumers": 2, "sink": {"uri": "http://sink/"},
    }  # fmt: skip
    metadata = {"finalizers": ["others", PEERS_SOURCE_FINALIZER]}
    commands.server.put(
        SOURCES_VERSION, KAFKA_SOURCE, "shop", "raw", metadata=metadata, spec=declared
    )
    return commands


def stored_source(world: World) -> dict[str, Any]:
    path = world.server.path(SOURCES_VERSION, KAFKA_SOURCE, "shop", "raw")
    return world.server.objects[path]


def test_a_source_is_taken_over_by_one_write_and_given_back_by_another(source: World) -> None:
    code, text = run("adopt", "source/raw")
    assert (code, text) == (0, SOURCE_RUN)
    assert PEERS_SOURCE_FINALIZER in stored_source(source)["metadata"]["finalizers"]
    stored_source(source)["status"] = {"conditions": READY}
    code, text = run("adopt", "source/shop/raw", "--yes", "--timeout", "0")
    assert (code, text.splitlines()[-1]) == (0, "KafkaSource shop/raw is Knafka's, and Ready.")
    assert stored_source(source)["metadata"]["finalizers"] == ["others"]
    source.members["readers"] = ["a dispatcher of ours"]
    code, text = run("adopt", "source/raw")
    assert (code, text.splitlines()[0]) == (0, "KafkaSource shop/raw: it is Knafka's already")
    stored_source(source)["metadata"]["finalizers"] = ["others", FINALIZER]
    source.members.clear()
    code, text = run("release", "source/raw", "--yes", "--timeout", "0")
    assert code == 0, text
    assert stored_source(source)["metadata"]["finalizers"] == ["others", PEERS_SOURCE_FINALIZER]


def test_what_is_in_the_way_of_a_source_is_said(source: World) -> None:
    source.members["readers"] = ["a"]
    source.server.put(APPS, "StatefulSet", "knative-eventing", "kafka-source-dispatcher", spec={})
    source.server.put(APPS, "Deployment", "knafka", "knafka-operator", spec={"template": {}})
    del source.log.descriptions["more"]
    code, text = run("adopt", "source/raw", "--yes")
    assert code == 1
    for problem in (
        "StatefulSet knative-eventing/kafka-source-dispatcher is running, and would deliver",
        "this installation serves no KafkaSources: set KNAFKA_SOURCES=enabled",
        "topic more isn't in the Kafka at kafka:9092",
        "group readers has 1 members still: they have to leave first",
    ):
        assert problem in text
    assert PEERS_SOURCE_FINALIZER in stored_source(source)["metadata"]["finalizers"]


def test_a_source_whose_secret_is_missing_is_an_error_that_names_it(source: World) -> None:
    reference = {"secretKeyRef": {"name": "kafka", "key": "user"}}
    net = {"sasl": {"enable": True, "user": reference, "password": reference}}
    stored_source(source)["spec"]["net"] = net
    result = CliRunner().invoke(app, ["adopt", "source/raw"])
    assert result.exit_code == 1
    assert "kafka" in str(result.exception)
