"""Delivery as it is declared: retries, replies, dead letters, on a real cluster (KN-DLV)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from support.cluster import Cluster
from support.conformance_world import event, own_namespace, topics
from support.installation import Installation
from support.listener import Answer, Arrival, Listener
from support.watched import Watched

from testcluster import settings

pytestmark = pytest.mark.timeout(600)

BROKERS_DEAD = "/dead-of-the-broker"
DEAD = "/dead-of-strict"
NOBODY = f"http://{settings.HOST_IP}:1/"

TRIGGERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own": {"retry": 0},
    "strict": {
        "retry": 2,
        "backoffPolicy": "linear",
        "backoffDelay": "PT0.4S",
        "timeout": "PT3S",
        "retryAfterMax": "PT2S",
    },
    "unreachable": {"retry": 0},
    "json": {"format": "json"},
    "binary": {"format": "binary"},
}
"""Triggers by name, which is the type of their events, with their delivery."""


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, watched: Watched) -> Iterator[str]:
    yield from own_namespace(cluster, watched)


@dataclass(frozen=True, slots=True)
class World:
    """A Broker that retries once, and Triggers with their own ideas."""

    installed: Installation
    listener: Listener
    namespace: str
    address: str

    def send(self, type_: str, id_: str, *answers: Answer) -> str:
        """Send an event to the Trigger of that name, which is answered so."""
        self.listener.answer(f"/{type_}", *answers, id_=id_)
        headers = event(id_, type_)
        assert self.installed.post(self.address, headers, b'{"a":1}').status_code == 202
        return id_

    def wait_for(self, path: str, id_: str | None, count: int = 1) -> list[Arrival]:
        return self.listener.wait_for(self.installed.cluster, path, id_, count)


@pytest.fixture(scope="module")
def world(installed: Installation, namespace: str, listener: Listener) -> World:
    delivery = {
        "retry": 1,
        "backoffDelay": "PT0.1S",
        "deadLetterSink": listener.sink(BROKERS_DEAD),
    }
    address = installed.broker(namespace, delivery=delivery)
    for name, delivery in TRIGGERS.items():
        if name in ("strict", "unreachable"):
            delivery = {**delivery, "deadLetterSink": listener.sink(DEAD)}
        subscriber = {"uri": NOBODY} if name == "unreachable" else listener.sink(f"/{name}")
        passes: dict[str, Any] = {"filter": {"attributes": {"type": name}}}
        if delivery:
            passes["delivery"] = delivery
        installed.trigger(namespace, name, subscriber, ready=False, **passes)
    for name in TRIGGERS:
        installed.until_ready("trigger", name, namespace, within=120)
    return World(installed, listener, namespace, address)


def waits(arrivals: list[Arrival]) -> list[float]:
    """Seconds between them."""
    return [after.at - before.at for before, after in pairwise(arrivals)]


@pytest.mark.conformance("KN-BRK-15", "KN-DLV-01", "KN-DLV-07")
def test_a_trigger_without_delivery_has_the_brokers(world: World) -> None:
    id_ = world.send("plain", "plain-503", Answer(503))
    dead = world.wait_for(BROKERS_DEAD, id_)[0]
    assert dead.headers["ce-knativeerrorcode"] == "503"
    assert len(world.listener.at("/plain", id_)) == 2
    status = world.installed.status("trigger", "plain", world.namespace)
    assert status["deadLetterSinkUri"] == world.listener.url(BROKERS_DEAD)


@pytest.mark.conformance("KN-BRK-15", "KN-DLV-01", "KN-DLV-09")
def test_any_option_of_a_trigger_replaces_the_brokers_delivery(world: World) -> None:
    """`retry: 0` is one: no second attempt, no sink; its own durable topic keeps the event."""
    id_ = world.send("own", "own-503", Answer(503))
    status = world.installed.status("trigger", "own", world.namespace)
    assert not status.get("deadLetterSinkUri")
    topic = status["annotations"]["knafka.dev/dead-letter-topic"]
    bootstrap = world.installed.kafka.bootstrap("PLAINTEXT")
    records = world.installed.cluster.wait_for(
        lambda: topics(bootstrap, topic)[topic] or [], 120, f"{id_} is in {topic}"
    )
    assert [dict(each.headers() or [])["ce_id"] for each in records] == [id_.encode()]
    assert len(world.listener.at("/own", id_)) == 1
    assert world.listener.at(BROKERS_DEAD, id_) == []


@pytest.mark.conformance("KN-DLV-01", "KN-DLV-02", "KN-DP-05", "KN-DP-04")
def test_attempts_are_as_many_and_as_far_apart_as_declared(world: World) -> None:
    """Twice the same event: it is delivered twice, whatever became of the first."""
    world.send("strict", "linear", Answer(500), Answer(500), Answer(202))
    first, second = waits(world.wait_for("/strict", "linear", 3))
    assert first >= 0.4
    assert second >= 0.8
    world.send("strict", "linear")
    world.wait_for("/strict", "linear", 4)
    assert world.listener.at(DEAD, "linear") == []


@pytest.mark.conformance("KN-DLV-03")
def test_an_attempt_has_a_time_limit(world: World) -> None:
    """What has no answer in time is tried again, and is no answer in the dead letter."""
    world.send("strict", "once-late", Answer(after=6), Answer(202))
    world.send("strict", "always-late", Answer(after=6))
    assert waits(world.wait_for("/strict", "once-late", 2))[0] >= 3
    dead = world.wait_for(DEAD, "always-late")[0]
    assert "ce-knativeerrorcode" not in dead.headers
    assert world.listener.at(DEAD, "once-late") == []


@pytest.mark.conformance("KN-DLV-04", "KN-DP-05")
def test_a_subscriber_may_ask_for_more_time_within_a_limit(world: World) -> None:
    world.send("strict", "in-1", Answer(429, headers={"Retry-After": "1"}), Answer(202))
    world.send("strict", "in-an-hour", Answer(503, headers={"Retry-After": "3600"}), Answer(202))
    assert waits(world.wait_for("/strict", "in-1", 2))[0] >= 1
    assert waits(world.wait_for("/strict", "in-an-hour", 2))[0] >= 2


@pytest.mark.conformance("KN-DLV-05")
def test_the_content_mode_is_the_one_declared(world: World) -> None:
    world.send("json", "was-binary")
    structured = {
        "specversion": "1.0",
        "id": "was-structured",
        "source": "/conformance",
        "type": "binary",
        "data": {"a": [1.0, "ü"]},
    }
    headers = {"content-type": "application/cloudevents+json"}
    answer = world.installed.post(world.address, headers, json.dumps(structured).encode())
    assert answer.status_code == 202
    became_json = world.wait_for("/json", "")[0]
    assert became_json.headers["content-type"].startswith("application/cloudevents+json")
    assert json.loads(became_json.body)["id"] == "was-binary"
    assert json.loads(became_json.body)["data"] == {"a": 1}
    became_binary = world.wait_for("/binary", "was-structured")[0]
    assert became_binary.headers["ce-type"] == "binary"
    assert json.loads(became_binary.body) == {"a": [1.0, "ü"]}


@pytest.mark.conformance("KN-DLV-07", "KN-DLV-08")
@pytest.mark.parametrize("body", [b"", b"the reason why"], ids=["no-body", "body"])
def test_a_refused_event_goes_to_the_sink_with_the_answer(world: World, body: bytes) -> None:
    """Knative's two cases: 422 without and with a body; it is not tried again."""
    id_ = world.send("strict", f"unprocessable-{len(body)}", Answer(422, body))
    dead = world.wait_for(DEAD, id_)[0]
    assert dead.body == b'{"a":1}'
    assert dead.headers["ce-knativeerrordest"].rstrip("/") == world.listener.url("/strict")
    assert dead.headers["ce-knativeerrorcode"] == "422"
    data = dead.headers.get("ce-knativeerrordata")
    assert data == (base64.b64encode(body).decode() if body else None)
    assert len(world.listener.at("/strict", id_)) == 1


@pytest.mark.conformance("KN-DLV-07", "KN-DLV-08")
def test_an_event_for_nobody_goes_to_the_sink(world: World) -> None:
    id_ = world.send("unreachable", "for-nobody")
    dead = world.wait_for(DEAD, id_)[0]
    assert dead.headers["ce-knativeerrordest"] == NOBODY
    assert "ce-knativeerrorcode" not in dead.headers


@pytest.mark.conformance("KN-DLV-07", "KN-DP-06")
def test_the_delivery_to_the_sink_is_retried_and_asks_for_no_reply(world: World) -> None:
    world.listener.answer(DEAD, Answer(503), Answer(503), Answer(202), id_="sink-fails")
    id_ = world.send("strict", "sink-fails", Answer(400))
    dead = world.wait_for(DEAD, id_, 3)
    assert [each.headers.get("prefer") for each in dead] == [None, None, None]
    assert world.listener.at("/strict", id_)[0].headers["prefer"] == "reply"


@pytest.mark.conformance("KN-DP-08")
def test_a_body_that_is_no_event_is_a_success_and_half_an_event_is_none(world: World) -> None:
    half = {"ce-specversion": "1.0", "ce-id": "no-type-no-source"}
    broken = world.send("strict", "half-a-reply", Answer(200, b"{}", half))
    fine = world.send("strict", "says-ok", Answer(200, b"OK", {"content-type": "text/plain"}))
    reply = {**event("ignored", "plain"), "content-type": "application/json"}
    accepted = world.send("strict", "reply-with-202", Answer(202, b"{}", reply))
    world.wait_for(DEAD, broken)
    for id_ in (fine, accepted):
        assert len(world.wait_for("/strict", id_)) == 1
        assert world.listener.at(DEAD, id_) == []
    assert world.listener.at("/plain", "ignored") == []
