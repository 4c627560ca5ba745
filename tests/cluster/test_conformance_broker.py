"""What a Broker promises, on a real cluster (KN-BRK)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.cluster import DIRECT, Cluster
from support.conformance_world import CLASS, event, own_namespace, topics
from support.installation import Installation
from support.listener import Answer, Listener
from support.watched import Watched, is_ready

pytestmark = pytest.mark.timeout(600)

EVERYTHING = "/all-of-broker"
TWINS = "/twins"
REPLIES = "/replier"
DEAD = "/dead-of-broker"


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, watched: Watched) -> Iterator[str]:
    yield from own_namespace(cluster, watched)


@dataclass(frozen=True, slots=True)
class World:
    """A Broker with a sink for dead letters, and four Triggers."""

    installed: Installation
    listener: Listener
    namespace: str
    address: str

    def send(self, id_: str, type_: str = "made", data: bytes = b"{}", **more: str) -> None:
        headers = event(id_, type_, **{"partitionkey": "k", **more})
        answer = self.installed.post(self.address, headers, data)
        assert answer.status_code == 202, answer.text


@pytest.fixture(scope="module")
def world(installed: Installation, namespace: str, listener: Listener, watched: Watched) -> World:
    address = installed.broker(
        namespace, delivery={"retry": 1, "deadLetterSink": listener.sink(DEAD)}
    )
    twins: dict[str, Any] = {"filter": {"attributes": {"type": "twins"}}, "ready": False}
    asked: dict[str, Any] = {"filter": {"attributes": {"conversation": ""}}, "ready": False}
    installed.trigger(namespace, "everything", listener.sink(EVERYTHING), ready=False)
    installed.trigger(namespace, "twin-1", listener.sink(TWINS), **twins)
    installed.trigger(namespace, "twin-2", listener.sink(TWINS), **twins)
    installed.trigger(namespace, "replier", listener.sink(REPLIES), **asked)
    for name in ("everything", "twin-1", "twin-2", "replier"):
        installed.until_ready("trigger", name, namespace, within=120)
    return World(installed, listener, namespace, address)


REQUIRED = {"specversion": "1.0", "source": "/conformance", "type": "made"}
PICTURE = bytes(range(256))


@pytest.mark.conformance("KN-BRK-01", "KN-BRK-02", "KN-BRK-10", "KN-DP-01")
@pytest.mark.parametrize(
    ("headers", "data"),
    [
        pytest.param({}, b"", id="no-data"),
        pytest.param({"content-type": "text/plain"}, "Grüße".encode(), id="text"),
        pytest.param({"content-type": "application/json"}, b'{"a" : 1.0e0 }', id="json-as-it-is"),
        pytest.param({"content-type": "application/octet-stream"}, PICTURE, id="bytes"),
        pytest.param(
            {
                "content-type": "application/xml",
                "ce-subject": "s",
                "ce-time": "2026-01-01T00:00:00.000000001Z",
                "ce-dataschema": "http://schema.test/",
                "ce-myextension": "with%20spaces,%20and%20%E2%82%AC",
            },
            b"<a/>",
            id="every-attribute",
        ),
    ],
)
def test_a_ready_broker_takes_and_passes_on_every_event_as_it_is_in_binary_mode(
    world: World, request: pytest.FixtureRequest, headers: dict[str, str], data: bytes
) -> None:
    id_ = f"binary-{request.node.callspec.id}"
    given = {"ce-id": id_, **{f"ce-{name}": value for name, value in REQUIRED.items()}, **headers}
    assert world.installed.post(world.address, given, data).status_code == 202
    arrival = world.listener.wait_for(world.installed.cluster, EVERYTHING, id_)[0]
    assert arrival.body == data
    assert given.items() <= arrival.headers.items()


@pytest.mark.conformance("KN-BRK-01", "KN-BRK-02", "KN-BRK-10", "KN-DP-01")
@pytest.mark.parametrize(
    ("content", "attributes", "data"),
    [
        pytest.param("", {}, b"", id="no-data"),
        pytest.param(
            ',"data":{"b" : [1.0e0, null]}', {}, b'{"b" : [1.0e0, null]}', id="json-as-it-is"
        ),
        pytest.param(
            f',"data_base64":"{base64.b64encode(PICTURE).decode()}","datacontenttype":"image/x"',
            {"content-type": "image/x"},
            PICTURE,
            id="base64",
        ),
        pytest.param(
            ',"subject":"s","number":7,"yes":true,"data":"x","datacontenttype":"text/plain"',
            {"ce-subject": "s", "ce-number": "7", "ce-yes": "true"},
            b"x",
            id="extensions",
        ),
    ],
)
def test_a_ready_broker_takes_and_passes_on_every_event_in_structured_mode(
    world: World,
    request: pytest.FixtureRequest,
    content: str,
    attributes: dict[str, str],
    data: bytes,
) -> None:
    """It is passed on in binary mode, unless the delivery says `format: json` (KN-DLV-05)."""
    id_ = f"structured-{request.node.callspec.id}"
    required = json.dumps({**REQUIRED, "id": id_}).removesuffix("}")
    headers = {"content-type": "application/cloudevents+json; charset=utf-8"}
    answer = world.installed.post(world.address, headers, f"{required}{content}}}".encode())
    assert answer.status_code == 202
    arrival = world.listener.wait_for(world.installed.cluster, EVERYTHING, id_)[0]
    assert arrival.body == data
    expected = {f"ce-{name}": value for name, value in REQUIRED.items()} | attributes
    assert expected.items() <= arrival.headers.items()


@pytest.mark.conformance("KN-BRK-03")
def test_the_sink_is_told_before_the_broker_is_ready(world: World, watched: Watched) -> None:
    states = [each for each in watched.states("broker", world.namespace, "default")]
    ready = [each for each in states if is_ready(each)]
    assert ready
    assert {each["status"]["deadLetterSinkUri"] for each in ready} == {world.listener.url(DEAD)}
    assert {each["status"]["address"]["url"] for each in ready} == {world.address}


@pytest.mark.conformance("KN-BRK-08", "KN-BRK-09")
def test_two_triggers_with_one_destination_are_two_deliveries_of_each_event(world: World) -> None:
    for number in range(5):
        world.send(f"twin-{number}", "twins")
    world.send("twin-last", "twins")
    world.listener.wait_for(world.installed.cluster, TWINS, "twin-last", 2)
    ids = [each.id for each in world.listener.at(TWINS)]
    assert sorted(ids) == sorted(2 * [*(f"twin-{number}" for number in range(5)), "twin-last"])


@pytest.mark.conformance("KN-BRK-11", "KN-DP-12", "KN-DP-06")
def test_a_reply_goes_to_all_triggers_that_match_it_also_to_the_one_that_replied(
    world: World,
) -> None:
    """36,000 bytes, as Knative's own test has it."""
    data = b"x" * 36_000
    reply = {**event("the-reply", "answered", conversation="c"), "content-type": "text/plain"}
    world.listener.answer(REPLIES, Answer(200, data, reply), id_="the-question")
    world.send("the-question", "asked", conversation="c")
    for path in (EVERYTHING, REPLIES):
        arrival = world.listener.wait_for(world.installed.cluster, path, "the-reply")[0]
        assert arrival.body == data
        assert reply.items() <= arrival.headers.items()
    questions = world.listener.at(REPLIES, "the-question")
    assert [each.headers["prefer"] for each in questions] == ["reply"]


@pytest.mark.conformance("KN-BRK-17")
def test_the_conditions_of_a_broker_are_upstreams(world: World) -> None:
    conditions = world.installed.status("broker", "default", world.namespace)["conditions"]
    assert {each["type"]: each["status"] for each in conditions} == dict.fromkeys(
        (
            *("Ready", "Addressable", "ConfigParsed", "TopicReady", "DataPlaneAvailable"),
            *("ContractUpdated", "ProbeSucceeded", "DeadLetterSinkResolved", "TopicAsDeclared"),
        ),
        "True",
    )


@pytest.mark.conformance("KN-BRK-19")
def test_the_status_tells_what_the_broker_has_in_kafka(world: World) -> None:
    annotations = world.installed.status("broker", "default", world.namespace)["annotations"]
    assert annotations["default.topic"] == f"knative-broker-{world.namespace}-default"
    assert annotations["default.topic.partitions"] == "4"
    assert annotations["default.topic.replication.factor"] == "1"
    assert annotations["bootstrap.servers"] == world.installed.kafka.bootstrap("PLAINTEXT")
    trigger = world.installed.status("trigger", "everything", world.namespace)["annotations"]
    assert trigger["group.id"] == f"knative-trigger-{world.namespace}-everything"


@pytest.mark.conformance("KN-BRK-20")
def test_the_address_is_a_path_of_the_brokers_own_receiver(world: World) -> None:
    url = urlsplit(world.address)
    assert url.scheme == "http"
    name = "default-kn-receiver-direct" if DIRECT else "default-kn-receiver"
    assert url.netloc == f"{name}.{world.namespace}.svc.cluster.local"
    assert url.path == f"/{world.namespace}/default"


@pytest.mark.conformance("KN-BRK-21")
def test_the_receiver_answers_the_probe_that_ready_waits_for(
    world: World, watched: Watched
) -> None:
    url = urlsplit(world.address)
    probe = {"K-Network-Probe": "probe", "K-Network-Hash": "a-hash"}
    answer = world.installed.cluster.request(url.netloc, url.path, method="GET", headers=probe)
    assert answer.status_code == 200
    assert answer.headers["K-Network-Hash"] == "a-hash"
    for state in watched.states("broker", world.namespace, "default"):
        conditions = {
            each["type"]: each["status"] for each in state.get("status", {}).get("conditions", [])
        }
        if conditions.get("Ready") == "True":
            assert conditions["ProbeSucceeded"] == "True"


@pytest.mark.conformance("KN-BRK-01")
def test_a_broker_takes_events_at_its_address_while_its_receiver_is_replaced(
    world: World, watched: Watched
) -> None:
    """An annotation of the Broker's is one of its receiver's, so a new Revision."""
    cluster = world.installed.cluster

    def revision() -> str:
        service = cluster.get("ksvc", "default-kn-receiver", world.namespace)
        assert service is not None
        return str(service["status"]["latestReadyRevisionName"])

    def replaced() -> bool:
        world.send("meanwhile")
        return revision() != before

    before = revision()
    annotation = "autoscaling.knative.dev/max-scale=5"
    cluster.kubectl("annotate", "broker", "default", annotation, "-n", world.namespace)
    cluster.wait_for(replaced, 120, "the receiver is replaced")
    world.installed.until_ready("broker", "default", world.namespace, within=120)
    states = watched.states("broker", world.namespace, "default")
    first = next(number for number, state in enumerate(states) if is_ready(state))
    addresses = [(state["status"].get("address") or {}).get("url") for state in states[first:]]
    assert set(addresses) == {world.address}


@pytest.mark.conformance("KN-BRK-01", "KN-BRK-18")
def test_a_broker_without_its_config_says_so_in_one_word_and_a_sentence(world: World) -> None:
    """And has no address, and can be deleted (KN-BRK-22)."""
    config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "missing"}
    world.installed.cluster.apply(
        {
            "apiVersion": "eventing.knative.dev/v1",
            "kind": "Broker",
            "metadata": {"name": "unconfigured", "annotations": {CLASS: "kafka"}},
            "spec": {"config": config},
        },
        namespace=world.namespace,
    )
    has = world.installed.until_condition(
        "broker", "unconfigured", world.namespace, "ConfigParsed", "ConfigMapNotFound"
    )
    assert has["message"] == f"ConfigMap {world.namespace}/missing does not exist"
    status = world.installed.status("broker", "unconfigured", world.namespace)
    assert "url" not in (status.get("address") or {})


@pytest.mark.conformance("KN-BRK-22")
def test_a_broker_whose_config_is_gone_is_deleted_all_the_same(world: World) -> None:
    """Its receiver and its topic go with it."""
    installed, cluster = world.installed, world.installed.cluster
    installed.broker(world.namespace, "going", annotations={CLASS: "Kafka"})
    topic = installed.status("broker", "going", world.namespace)["annotations"]["default.topic"]
    bootstrap = installed.kafka.bootstrap("PLAINTEXT")
    assert topics(bootstrap, topic) == {topic: []}
    cluster.kubectl("delete", "configmap", "going-kafka", "-n", world.namespace)
    for name in ("going", "unconfigured"):
        cluster.kubectl(
            "delete", "broker", name, "-n", world.namespace, "--ignore-not-found", "--timeout=110s"
        )
    assert topics(bootstrap, topic) == {topic: None}
    cluster.wait_for(
        lambda: cluster.get("ksvc", "going-kn-receiver", world.namespace) is None,
        60,
        "the receiver is gone",
    )


@pytest.mark.conformance("KN-BRK-04")
def test_a_broker_of_another_class_is_left_alone(world: World) -> None:
    """One of the class `Kafka` is ours, see above. When a later one was seen, so was this."""
    cluster = world.installed.cluster
    world.installed.broker(
        world.namespace, "foreign", ready=False, annotations={CLASS: "MTChannelBasedBroker"}
    )
    world.installed.trigger(
        world.namespace, "of-foreign", world.listener.sink("/"), broker="foreign", ready=False
    )
    world.installed.trigger(
        world.namespace, "of-none", world.listener.sink("/"), broker="none", ready=False
    )
    world.installed.until_condition(
        "trigger", "of-none", world.namespace, "BrokerReady", "BrokerDoesNotExist"
    )
    for kind, name in (("broker", "foreign"), ("trigger", "of-foreign")):
        found = cluster.get(kind, name, world.namespace)
        assert found is not None
        assert "status" not in found
