"""Loops end: dead letters that come back from their sink, and replies that are answered again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from support.drains import DEAD, SINK, SUBSCRIBER, TOPIC, Answer, Request, World, response
from support.local_world import URL, broker, running_locally, trigger

from knafka.core.contract import Delivery, Sink
from knafka.core.documents import dump
from knafka.core.drain import DrainProgress
from knafka.core.events.hops import FIRST_TTL, MAX_HOPS, hops_of, ttl_of
from knafka.core.events.http_binding import record_of
from knafka.core.events.kafka_binding import Draft, read
from knafka.ports.subscriber import Response
from knafka_operator.dispatchers.conditions import delivering_condition, loop_condition
from knafka_operator.model.family import CHANNELS
from knafka_operator.scale.decide import Scale, ScalingStatus

pytestmark = pytest.mark.looptime

REPLY = {"ce_specversion": "1.0", "ce_id": "r", "ce_source": "/reply", "ce_type": "answer"}
JSON_REPLY = b'{"specversion":"1.0","id":"r","source":"/reply","type":"answer","data":{"a": 1}}'


def received(request: Request) -> Draft:
    """What a Broker's receiver stores of a request."""
    lines = [line.split(b": ", 1) for line in request.head.split(b"\r\n")[:-1]]
    return record_of([(name, value) for name, value in lines], request.body)


def store(world: World, draft: Draft) -> None:
    world.log.store(TOPIC, draft.key, draft.value, draft.headers)


class Looping:
    """A Broker in whose topic lands what is sent to any URL but the subscriber's."""

    def __init__(self, answer: Answer, into: World | None = None, **egress: Any) -> None:
        self._answer = answer
        self.world = World(self.give, sink=egress.pop("sink", True), **egress)
        self.into = into or self.world

    async def give(self, request: Request) -> Response:
        if request.target.url == SUBSCRIBER:
            return await self._answer(request)
        store(self.into, received(request))
        return response(202)

    @property
    def attempts(self) -> Counter[str]:
        """Requests by URL."""
        return Counter(each.request.target.url for each in self.world.subscriber.posts)


async def refuse(request: Request) -> Response:
    return response(400)


async def reply(request: Request) -> Response:
    return response(200, b"x", **REPLY)


async def reply_as_json(request: Request) -> Response:
    return response(200, JSON_REPLY, content_type="application/cloudevents+json")


async def reply_with_a_count(request: Request) -> Response:
    return response(200, b"x", **REPLY, ce_knativebrokerttl="255", ce_knafkahops="0")


async def reply_with_a_content_type_of_events(request: Request) -> Response:
    document = JSON_REPLY.replace(
        b'"data"', b'"datacontenttype":"application/cloudevents+json","data"'
    )
    return response(200, document, content_type="application/cloudevents+json")


async def hand_back(request: Request) -> Response:
    """Fails, but answers dead letters with the event once more."""
    return response(400) if request.header(b"ce-knativeerrordest") is None else await reply(request)


@pytest.mark.parametrize("retry", [0, 2])
@pytest.mark.conformance("KN-BRK-13")
async def test_a_dead_letter_that_comes_back_to_its_own_broker_ends_in_the_topic(
    retry: int,
) -> None:
    """One event had 2,772 attempts in 45 s, and no end."""

    async def fail(request: Request) -> Response:
        return response(503)

    looping = Looping(fail, delivery=Delivery(retry=retry, backoff_delay=0.1))
    world = looping.world
    world.send("1", "k")
    drain = world.drain()
    await world.begin(drain)
    assert looping.attempts == {SUBSCRIBER: (MAX_HOPS + 1) * (retry + 1), SINK: MAX_HOPS}
    (letter,) = world.events_of(DEAD)
    assert (letter.attributes["id"], letter.data) == ("1", b"data")
    assert letter.attributes["knafkareason"] == "status"
    assert world.committed == {0: MAX_HOPS + 1}
    assert drain.progress().loop == "its dead letters come back from their sink, 3 in a row"


@pytest.mark.parametrize("kind", ["cloudevents", "cloudevents-batch"])
@pytest.mark.conformance("KN-BRK-13", "KN-DLV-08")
async def test_a_dead_letter_whose_data_are_events_has_its_count_and_its_story_in_the_event(
    kind: str,
) -> None:
    """Headers beside such an event, which is a JSON document in its record, are no attributes."""
    looping = Looping(refuse)
    world = looping.world
    world.send("1", "k", b'{"a": 1.10}', datacontenttype=f"application/{kind}+json")
    await world.run()
    assert looping.attempts == {SUBSCRIBER: MAX_HOPS + 1, SINK: MAX_HOPS}
    for round_, letter in enumerate(world.events_of(TOPIC)[1:], 1):
        assert letter.attributes["knafkahops"] == str(round_)
        assert letter.attributes["knativeerrordest"] == SUBSCRIBER
        assert letter.attributes["knafkaoffset"] == str(round_ - 1)
        assert letter.data == b'{"a": 1.10}'
    (stored,) = world.events_of(DEAD)
    own = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "k"}
    own["datacontenttype"] = f"application/{kind}+json"
    assert (stored.attributes, stored.data) == (own, b'{"a": 1.10}'), "what a replay sends"


@pytest.mark.conformance("KN-BRK-13")
async def test_a_dead_letter_that_goes_round_two_brokers_ends_too() -> None:
    first = Looping(refuse)
    second = Looping(refuse, into=first.world)
    first.into = second.world
    first.world.send("1")
    await asyncio.gather(first.world.run(idle=5), second.world.run(idle=5))
    assert first.attempts[SINK] + second.attempts[SINK] == MAX_HOPS
    letters = [*first.world.events_of(DEAD), *second.world.events_of(DEAD)]
    assert [each.attributes["id"] for each in letters] == ["1"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(reply, id="in binary mode"),
        pytest.param(reply_as_json, id="in structured mode"),
        pytest.param(reply_with_a_count, id="with a count of its own"),
        pytest.param(reply_with_a_content_type_of_events, id="in a structured record"),
    ],
)
@pytest.mark.conformance("KN-BRK-13")
async def test_a_reply_that_matches_its_own_trigger_ends_as_a_dead_letter(answer: Answer) -> None:
    """KN-BRK-13: as in upstream's broker, at the 255th in a row."""
    world = World(answer)
    world.send("1")
    drain = world.drain()
    await world.begin(drain)
    assert len(world.subscriber.posts) == FIRST_TTL
    stored = world.records_of(TOPIC)
    assert [ttl_of(each.headers(), each.value()) for each in stored] == [
        FIRST_TTL,
        *range(FIRST_TTL - 1, 0, -1),
    ]
    (letter,) = world.records_of(DEAD)
    headers = dict(letter.headers() or ())
    assert headers["ce_knafkareason"] == b"reply-not-stored"
    assert headers["ce_knafkaattempts"] == b"1", "another attempt would end alike"
    assert "255 in a row" in str(drain.progress().loop)


@pytest.mark.conformance("KN-BRK-13")
async def test_a_subscriptions_reply_that_comes_back_to_its_channel_ends_too() -> None:
    """KN-SUB-07, on the other family."""
    looping = Looping(
        reply, sink=False, kind="Subscription", reply=Sink(url="http://channel.test/")
    )
    looping.world.send("1")
    await looping.world.run()
    assert looping.attempts == {SUBSCRIBER: FIRST_TTL, "http://channel.test/": FIRST_TTL - 1}
    (letter,) = looping.world.events_of(DEAD)
    assert letter.attributes["knafkareason"] == "reply-not-delivered"


@pytest.mark.conformance("KN-BRK-13")
async def test_a_dead_letter_whose_reply_fails_again_ends_too() -> None:
    """The reply takes over how often there was a dead letter before it."""
    looping = Looping(hand_back)
    looping.world.send("1")
    await looping.world.run()
    assert looping.attempts[SINK] == MAX_HOPS
    assert len(looping.world.events_of(DEAD)) == 1


@pytest.mark.parametrize(
    ("attributes", "ttl", "hops"),
    [
        pytest.param({}, 255, 0, id="none"),
        pytest.param({"knativebrokerttl": "7", "knafkahops": "2"}, 7, 2, id="numbers"),
        pytest.param({"knativebrokerttl": "0", "knafkahops": "0"}, 0, 0, id="zero"),
        pytest.param({"knativebrokerttl": "1000", "knafkahops": "1000"}, 255, 1000, id="large"),
        pytest.param({"knativebrokerttl": "9" * 5000}, 255, 0, id="longer than Python reads"),
        pytest.param({"knativebrokerttl": "-1", "knafkahops": "-1"}, 255, 0, id="negative"),
        pytest.param({"knativebrokerttl": "", "knafkahops": ""}, 255, 0, id="empty"),
        pytest.param({"knativebrokerttl": "a", "knafkahops": "²"}, 255, 0, id="no numbers"),
    ],
)
@pytest.mark.conformance("KN-BRK-13")
def test_counts_that_cant_be_read_are_as_none(
    attributes: Mapping[str, str], ttl: int, hops: int
) -> None:
    headers = [(f"ce_{name}", value.encode()) for name, value in attributes.items()]
    assert (ttl_of(headers, None), hops_of(headers, None)) == (ttl, hops)


@pytest.mark.parametrize("header", ["content-type", "Content-Type"])
@pytest.mark.conformance("KN-BRK-13")
def test_counts_of_a_structured_event_are_read_whatever_the_case_of_its_content_type(
    header: str,
) -> None:
    """Another producer's record, which is read as a structured event, too."""
    headers = [(header, b"Application/CloudEvents+json")]
    counts = b'"knativebrokerttl":"7","knafkahops":"2",'
    event = JSON_REPLY.replace(b"{", b"{" + counts, 1)
    assert read(headers, event).attributes["knafkahops"] == "2"
    assert (ttl_of(headers, event), hops_of(headers, event)) == (7, 2)


@pytest.mark.conformance("KN-BRK-13")
def test_of_a_count_given_twice_the_last_one_counts() -> None:
    """CE-K6, as for every attribute."""
    headers = [("ce_knafkahops", b"1"), ("ce_knafkahops", b"3")]
    assert hops_of(headers, None) == 3


@pytest.mark.conformance("KN-BRK-13")
async def test_a_chain_of_replies_that_ends_by_itself_is_no_loop() -> None:
    answers = iter(range(8))

    async def eight_times(request: Request) -> Response:
        return response() if next(answers, None) is None else await reply(request)

    world = World(eight_times)
    world.send("1")
    drain = world.drain()
    progress = await world.begin(drain)
    assert (progress.replied, progress.dead_lettered) == (8, 0)
    assert drain.progress().loop is None


@pytest.mark.conformance("KN-BRK-13")
async def test_an_ordinary_dead_letter_says_that_it_is_the_first() -> None:
    """And a sink that keeps it is asked as ever."""
    world = World(refuse_but_keep, sink=True)
    world.send("1")
    await world.run()
    first, second = world.subscriber.posts
    assert first.request.header(b"ce-knafkahops") is None
    assert second.request.header(b"ce-knafkahops") == b"1"
    assert world.records_of(DEAD) == []


async def refuse_but_keep(request: Request) -> Response:
    return response(202 if request.target.url == SINK else 400)


BROKER = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "shop"}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param(
            {"delivery": {"deadLetterSink": {"ref": BROKER}}}, "DeadLetterSinkLeadsBack", id="sink"
        ),
        pytest.param(
            {"delivery": {"deadLetterSink": {"uri": f"{URL}/default/shop"}}},
            "DeadLetterSinkLeadsBack",
            id="sink, by its address",
        ),
        pytest.param({"subscriber": {"ref": BROKER}}, "SubscriberLeadsBack", id="subscriber"),
        pytest.param({}, "", id="neither"),
        pytest.param(
            {"delivery": {"deadLetterSink": {"uri": f"{URL}/default/other"}}}, "", id="another"
        ),
    ],
)
@pytest.mark.conformance("KN-BRK-13")
async def test_a_trigger_that_sends_to_its_own_broker_says_so(
    spec: dict[str, Any], reason: str
) -> None:
    """A warning: it is Ready, as what it does may be meant."""
    async with running_locally() as world:
        document = trigger("orders")
        document["spec"].update(spec)
        await world.apply(broker(), document)
        assert world.reason("Trigger", "orders") == "", "it is Ready"
        conditions = world.status("Trigger", "orders")["conditions"]
        told = [each for each in conditions if each["type"] == "LoopFree"]
        assert [each["reason"] for each in told] == ([reason] if reason else [])
        for each in told:
            assert (each["status"], each["severity"]) == ("False", "Warning")
            assert each["message"].startswith("it is its own Broker: ")


@pytest.mark.conformance("KN-BRK-13")
def test_a_loop_that_a_dispatcher_has_seen_is_a_condition() -> None:
    """A reply that matches its own Trigger can't be seen in what is declared."""
    text = "replies come back to it and are answered again, 255 in a row"
    scaled = ScalingStatus(0, 1, Scale(1, "lag"), DrainProgress(loop=text), None)
    condition = delivering_condition(scaled)
    assert (condition.status, condition.reason, condition.severity) == ("False", "Loop", "Warning")
    assert condition.message.startswith(f"{text}: it ends after 255 replies or 3 dead letters")
    assert "loop" not in dump(DrainProgress()), "an older operator knows no such field"


@pytest.mark.conformance("KN-BRK-13")
def test_a_subscription_whose_reply_is_its_own_channel_says_so() -> None:
    channel = {"apiVersion": "messaging.knative.dev/v1beta1", "kind": "KafkaChannel", "name": "c"}
    document = {
        "apiVersion": "messaging.knative.dev/v1",
        "kind": "Subscription",
        "metadata": {"name": "s", "namespace": "shop", "uid": "1"},
        "spec": {
            "channel": channel,
            "subscriber": {"uri": "http://x/"},
            "reply": {"ref": channel},
        },
    }
    found = loop_condition(CHANNELS.read_trigger(document), document, None, None, None)
    assert found is not None
    assert (found.type, found.reason) == ("LoopFree", "ReplyLeadsBack")
    assert found.message.startswith("it is its own channel: ")
