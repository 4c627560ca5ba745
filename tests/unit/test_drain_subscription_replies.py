"""What a Subscription's drain does with replies: sent before their event is settled. Fake time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.drains import DEAD, TOPIC, Answer, Request, World, response

from knafka.core.contract import Delivery, RateLimit, RateUnit, Sink
from knafka.core.errors import DeliveryError
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime

REPLIES = "http://replies/there?a=b"
REPLY = {"ce_specversion": "1.0", "ce_id": "r", "ce_source": "/reply", "ce_type": "answer"}
ANSWER = response(200, b"hello", content_type="text/plain", **REPLY)


class Replies:
    """Answers a subscriber gives, and its reply destination."""

    def __init__(self, take: Answer, answer: Response = ANSWER) -> None:
        self.taken: list[Request] = []
        self._take = take
        self._answer = answer

    async def __call__(self, request: Request) -> Response:
        if request.target.url != REPLIES:
            return self._answer
        self.taken.append(request)
        return await self._take(request)


def giving(*answers: Response | Exception) -> Answer:
    """These one after the other, the last one for ever."""
    left = list(answers)

    async def give(request: Request) -> Response:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return give


def subscription(answer: Answer, reply: str | None = REPLIES, **more: Any) -> World:
    to = None if reply is None else Sink(url=reply)
    return World(answer, kind="Subscription", reply=to, **more)


async def test_a_reply_is_sent_in_binary_mode_before_its_event_is_settled() -> None:
    """KN-SUB-07; the topic, which is the channel's, gets none."""
    free = asyncio.Event()

    async def wait(request: Request) -> Response:
        await free.wait()
        return response(202)

    replies = Replies(wait)
    world = subscription(replies, delivery=Delivery(timeout=50))
    world.send("1")
    drain = world.drain()
    running = world.begin(drain)
    await asyncio.sleep(5)
    (taken,) = replies.taken
    assert (drain.progress().delivered, world.committed.get(0, 0)) == (0, 0)
    free.set()
    progress = await running
    assert (progress.delivered, progress.replied, world.committed) == (1, 1, {0: 1})
    assert len(world.events_of(TOPIC)) == 1
    assert (taken.body, taken.timeout) == (b"hello", 50)
    assert sorted(taken.head.splitlines()) == [
        b"ce-id: r",
        b"ce-knativebrokerttl: 254",
        b"ce-source: /reply",
        b"ce-specversion: 1.0",
        b"ce-type: answer",
        b"content-type: text/plain",
        b"kn-namespace: ns",
    ]


async def test_a_reply_in_structured_mode_is_sent_in_binary_mode_too() -> None:
    document = b'{"specversion":"1.0","id":"r","source":"/r","type":"answer","data":{"a": 1}}'
    answer = response(200, document, content_type="application/cloudevents+json")
    replies = Replies(giving(response()), answer)
    world = subscription(replies)
    world.send("1")
    await world.run()
    (taken,) = replies.taken
    assert (taken.header(b"ce-id"), taken.body) == (b"r", b'{"a": 1}')


@pytest.mark.conformance("KN-SUB-02")
@pytest.mark.parametrize(
    "answer",
    [
        ANSWER,
        response(200, b"{", content_type="application/cloudevents+json"),
        ANSWER._replace(cut=True),
    ],
    ids=["an event", "malformed", "too large"],
)
async def test_without_a_reply_destination_replies_are_discarded(answer: Response) -> None:
    """KN-SUB-02."""
    world = subscription(Replies(giving(response()), answer), reply=None)
    world.send("1")
    progress = await world.run()
    assert (progress.delivered, progress.replied, progress.dead_lettered) == (1, 0, 0)
    assert len(world.subscriber.posts) == len(world.events_of(TOPIC)) == 1


async def test_what_is_no_reply_is_not_sent() -> None:
    replies = Replies(giving(response()), response(200, b"OK"))
    world = subscription(replies)
    world.send("1")
    assert (await world.run()).delivered == 1
    assert replies.taken == []


@pytest.mark.conformance("KN-SUB-07")
@pytest.mark.parametrize(
    ("failure", "counted"),
    [
        (response(503), "reply-not-delivered 503"),
        (response(404), "reply-not-delivered 404"),
        (DeliveryError("refused", "nobody listens"), "reply-not-delivered"),
        (DeliveryError("timeout", "no response"), "reply-not-delivered"),
    ],
)
async def test_a_reply_that_is_not_delivered_is_tried_again_without_the_subscriber(
    failure: Response | Exception, counted: str
) -> None:
    """KN-SUB-07, as upstream's channel conformance has it."""
    replies = Replies(giving(failure, failure, response()))
    world = subscription(replies, delivery=Delivery(retry=3, backoff_delay=1))
    world.send("1")
    drain = world.drain()
    progress = await world.begin(drain, idle=30)
    assert world.subscriber.ids == ["1", "r", "r", "r"]
    assert (progress.delivered, progress.replied, progress.retried) == (1, 1, 2)
    assert drain.counts.failures == {counted: 2}
    assert len({taken.head for taken in replies.taken}) == 1


@pytest.mark.conformance("KN-SUB-07")
async def test_a_reply_has_as_many_retries_as_its_event_whatever_the_event_took() -> None:
    """Upstream's channel conformance: each of them fails once, and one retry each is enough."""
    answers = giving(response(503), ANSWER)

    async def answer(request: Request) -> Response:
        return await (to_reply if request.target.url == REPLIES else answers)(request)

    to_reply = giving(response(503), response())
    world = subscription(answer, delivery=Delivery(retry=1, backoff_delay=1))
    world.send("1")
    progress = await world.begin(world.drain(), idle=30)
    assert world.subscriber.ids == ["1", "1", "r", "r"]
    assert (progress.delivered, progress.replied, progress.dead_lettered) == (1, 1, 0)


async def test_a_replys_retries_go_on_where_a_killed_dispatcher_has_left_them() -> None:
    """The reply is gone with it, so the subscriber is asked again; nothing is lost."""
    world = subscription(
        Replies(giving(response(503))), delivery=Delivery(retry=2, backoff_delay=100)
    )
    world.send("1")
    running = world.begin(world.drain(), idle=1000)
    await asyncio.sleep(50)
    await world.kill(running)
    progress = await world.begin(world.drain(), idle=1000)
    assert world.subscriber.ids == ["1", "r", "1", "r", "r"]
    assert world.subscriber.times[2] >= 100, "its retry is due as declared"
    assert progress.dead_lettered == 1
    (letter,) = world.events_of(DEAD)
    assert letter.attributes["knafkaattempts"] == "2"
    assert letter.attributes["knafkareplyattempts"] == "3"


async def test_another_reply_destination_begins_its_retries_anew() -> None:
    world = subscription(
        Replies(giving(response(503))), delivery=Delivery(retry=1, backoff_delay=100)
    )
    world.send("1")
    await world.begin(world.drain(), idle=1000, stop_after=50)
    world.egress = world.egress.model_copy(update={"reply": Sink(url="http://other/")})
    world.subscriber.answer = Replies(giving(response()))
    progress = await world.begin(world.drain(), idle=1000)
    assert (progress.delivered, progress.replied) == (1, 1)
    assert world.subscriber.times[-1] < 100


async def test_at_most_once_the_subscriber_is_not_asked_again_for_a_reply_either() -> None:
    """BUS-5: what is repeated is the reply, in the process that has it."""
    world = subscription(
        Replies(giving(response(503), response())),
        delivery=Delivery(retry=1, backoff_delay=1),
        at_most_once=True,
    )
    world.send("1")
    progress = await world.begin(world.drain(), idle=30)
    assert world.subscriber.ids == ["1", "r", "r"]
    assert (progress.delivered, progress.replied, progress.lost) == (1, 1, 0)


@pytest.mark.slow
async def test_a_replys_retries_take_nothing_of_the_subscribers_rate() -> None:
    limit = RateLimit(unit=RateUnit.HOUR, requests_per_unit=1)
    world = subscription(
        Replies(giving(response(503), response())),
        delivery=Delivery(retry=1, backoff_delay=1),
        rate_limit=limit,
    )
    world.send("1")
    world.send("2")
    await world.begin(world.drain(), idle=10_000)
    assert world.subscriber.ids == ["1", "r", "r", "2", "r"]
    assert world.subscriber.times[2] < 10
    assert world.subscriber.times[3] == pytest.approx(3600, abs=5)


async def test_replies_that_wait_for_another_attempt_count_to_what_is_held() -> None:
    """Memory is bounded: 88 of them, of a megabyte each, are more than a dispatcher may hold."""
    answer = ANSWER._replace(body=b"x" * 500_000)
    world = subscription(
        Replies(giving(response(503)), answer), delivery=Delivery(retry=1, backoff_delay=100)
    )
    world.send("1")
    drain = world.drain()
    running = world.begin(drain, idle=1000)
    await asyncio.sleep(50)
    assert drain.partitions[0].held_bytes > 500_000
    await asyncio.sleep(100)
    assert drain.partitions[0].held_bytes == 0
    await running


@pytest.mark.conformance("KN-SUB-07")
@pytest.mark.parametrize(
    ("failure", "attempts", "code", "data"),
    [
        (response(503, b"busy"), 3, "503", b"busy"),
        (response(400, b"no"), 1, "400", b"no"),
        (DeliveryError("broken", "cut off"), 3, None, b"cut off"),
    ],
)
async def test_an_event_whose_reply_is_never_delivered_is_a_dead_letter(
    failure: Response | Exception, attempts: int, code: str | None, data: bytes
) -> None:
    """KN-SUB-07, KN-DLV-07: it says where the reply should have gone, and what was said there."""
    world = subscription(Replies(giving(failure)), delivery=Delivery(retry=2, backoff_delay=1))
    world.send("1")
    progress = await world.begin(world.drain(), idle=30)
    assert (progress.delivered, progress.dead_lettered) == (0, 1)
    assert world.subscriber.ids == ["1"] + ["r"] * attempts
    (letter,) = world.events_of(DEAD)
    assert letter.attributes["knafkaattempts"] == "1"
    assert letter.attributes["knafkareplyattempts"] == str(attempts)
    assert letter.data == b"data"
    assert letter.attributes["knafkareason"] == "reply-not-delivered"
    assert letter.attributes["knativeerrordest"] == REPLIES
    assert letter.attributes.get("knativeerrorcode") == code
    assert world.committed == {0: 1}


async def test_a_reply_larger_than_is_read_fails_its_event_at_once() -> None:
    """What was read of it is no event."""
    replies = Replies(giving(response()), ANSWER._replace(cut=True))
    world = subscription(replies, delivery=Delivery(retry=10))
    world.send("1")
    assert (await world.run()).dead_lettered == 1
    assert replies.taken == []
    assert world.subscriber.ids == ["1"]
    assert world.events_of(DEAD)[0].attributes["knafkareason"] == "reply-not-delivered"


@pytest.mark.parametrize("away", [response(503), DeliveryError("refused", "nobody listens")])
async def test_a_reply_destination_that_is_away_does_not_cost_the_backlog(
    away: Response | Exception,
) -> None:
    """KN-DP-05: most events wait in Kafka without an attempt until it is back."""
    world = subscription(Replies(giving(away)), delivery=Delivery(retry=2, backoff_delay=0.2))
    for number in range(500):
        world.send(str(number), str(number))
    progress = await world.begin(world.drain(), idle=1000, stop_after=60)
    assert progress.dead_lettered < 150
    assert progress.delivered == 0


async def test_a_subscriptions_dead_letter_is_never_taken_for_a_triggers() -> None:
    """A replay goes by namespace, Broker and Trigger: a KafkaChannel's name isn't any Broker's."""
    world = subscription(giving(response(500)), reply=None, delivery=Delivery(retry=0))
    world.send("1")
    assert (await world.run()).dead_lettered == 1
    (letter,) = world.events_of(DEAD)
    assert letter.attributes["knafkabroker"].startswith("KafkaChannel-")
