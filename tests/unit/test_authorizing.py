"""Requests with a token for who is asked, and for nobody else (issue 38, decision 0040)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from support.drains import Request, ScriptedSubscriber, at_first, response
from support.memory.account_tokens import MemoryTokens

from knafka.core.contract import Egress, Kafka, Sink
from knafka.core.errors import DeliveryError
from knafka.core.tokens.sink_tokens import EXPIRATION, Account
from knafka.dispatcher.engine.sending import authorizing
from knafka.dispatcher.engine.sending.authorizing import AuthorizedSubscriber, SinkTokens, authorize
from knafka.ports.subscriber import Response, Target

pytestmark = pytest.mark.looptime

MAIL, BILLS = Account("shop", "mail"), Account("shop", "bills")
TARGET = Target.parse("http://subscriber.test/", audience="orders")
PLAIN = Target.parse("http://subscriber.test/plain")
HEAD = b"ce-id: 1\r\n"


class World:
    """Two Triggers in one process."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]] | None = None) -> None:
        self.issuer = MemoryTokens(MAIL, BILLS)
        self.inner = ScriptedSubscriber(answer or at_first())
        clock = asyncio.get_running_loop().time
        self.tokens = SinkTokens(self.issuer, clock, lambda: 0.0)
        self.mail = AuthorizedSubscriber(self.inner, self.tokens, MAIL)
        self.bills = AuthorizedSubscriber(self.inner, self.tokens, BILLS)

    async def post(self, target: Target = TARGET, timeout: float = 30.0) -> Response:
        return await self.mail.post(target, HEAD, b"data", timeout)

    @property
    def shown(self) -> list[str]:
        """What was shown, one after the other."""
        found = [each.request.header(b"authorization") for each in self.inner.posts]
        return [(each or b"").decode().removeprefix("Bearer shop.") for each in found]


async def test_a_token_for_the_audience_is_shown_and_kept() -> None:
    world = World()
    for _ in range(3):
        await world.post()
    assert world.shown == ["mail.orders.1"] * 3
    assert world.inner.posts[0].request.header(b"ce-id") == b"1"


async def test_a_destination_without_an_audience_gets_none() -> None:
    world = World()
    await world.post(PLAIN)
    assert world.inner.posts[0].request.head == HEAD
    assert not world.issuer.asked


async def test_each_trigger_has_its_own_and_each_audience_another() -> None:
    world = World()
    await world.post()
    await world.bills.post(TARGET, HEAD, b"", 30)
    await world.post(Target.parse("http://sink.test/", audience="dead"))
    assert world.shown == ["mail.orders.1", "bills.orders.1", "mail.dead.1"]


async def test_many_events_at_once_ask_once() -> None:
    world = World()
    world.issuer.takes = 1.0
    await asyncio.gather(*(world.post() for _ in range(100)))
    assert world.issuer.asked == {(MAIL, "orders"): 1}
    assert world.shown == ["mail.orders.1"] * 100


async def test_it_is_renewed_before_it_ends_while_events_go_on() -> None:
    world = World()
    await world.post()
    world.issuer.takes = 20.0
    await asyncio.sleep(0.8 * EXPIRATION)
    await world.post()
    assert world.shown[-1] == "mail.orders.1", "nobody waits for the next one"
    await asyncio.sleep(21)
    await world.post()
    assert world.shown[-1] == "mail.orders.2"
    await world.tokens.close()


async def test_while_the_api_server_is_away_a_token_that_lives_is_used() -> None:
    world = World()
    await world.post()
    world.issuer.problem = "the API server: away"
    await asyncio.sleep(0.9 * EXPIRATION)
    await world.post()
    assert world.shown == ["mail.orders.1"] * 2
    await asyncio.sleep(0.2 * EXPIRATION)
    with pytest.raises(DeliveryError, match="no token of shop/mail for orders: the API server"):
        await world.post()
    assert len(world.inner.posts) == 2, "nothing is sent without one"
    world.issuer.problem = ""
    await asyncio.sleep(11)
    await world.post()
    assert len(world.inner.posts) == 3


async def test_without_a_token_nothing_is_sent_and_the_api_server_is_asked_rarely() -> None:
    world = World()
    world.issuer.problem = "the API server: away"
    for _ in range(100):
        with pytest.raises(DeliveryError) as raised:
            await world.post()
        assert raised.value.reason == "no-token"
        await asyncio.sleep(0.1)
    assert world.inner.posts == []
    assert world.issuer.asked[MAIL, "orders"] <= 4


async def test_a_request_for_one_takes_no_longer_than_an_attempt_may() -> None:
    world = World()
    world.issuer.takes = 1000.0
    with pytest.raises(DeliveryError, match="none came in time"):
        await world.post(timeout=5)
    assert asyncio.get_running_loop().time() < 6
    await world.tokens.close()


async def test_what_takes_a_token_after_a_key_was_rotated_gets_a_new_one_in_the_same_attempt() -> (
    None
):
    accepted = "mail.orders.1"

    async def answer(request: Request) -> Response:
        shown = (request.header(b"authorization") or b"").decode()
        return response(200 if shown == f"Bearer shop.{accepted}" else 401)

    world = World(answer)
    assert (await world.post()).status == 200
    accepted = "mail.orders.2"
    world.issuer.takes = 0.1
    answers = await asyncio.gather(*(world.post() for _ in range(50)))
    assert {each.status for each in answers} == {200}
    assert world.issuer.asked[MAIL, "orders"] == 2


async def test_what_takes_no_token_answers_401_and_is_not_asked_again_and_again() -> None:
    world = World(at_first(*[response(401)] * 1000))
    for _ in range(100):
        assert (await world.post()).status == 401
    assert world.issuer.asked[MAIL, "orders"] == 2
    assert len(world.inner.posts) == 101


async def test_a_401_while_the_api_server_is_away_is_no_answer_to_the_event() -> None:
    """It would be a dead letter, although another token may be taken."""
    world = World(at_first(response(), *[response(401)] * 2))
    await world.post()
    world.issuer.problem = "the API server: away"
    for _ in range(2):
        with pytest.raises(DeliveryError, match="away"):
            await world.post()
        await asyncio.sleep(0.5)
    world.issuer.problem = ""
    await asyncio.sleep(2)
    assert (await world.post()).status == 200


async def test_who_gives_up_waiting_takes_it_from_nobody_else() -> None:
    world = World()
    world.issuer.takes = 10.0
    first = asyncio.create_task(world.post())
    second = asyncio.create_task(world.post())
    await asyncio.sleep(1)
    first.cancel()
    await second
    assert world.shown == ["mail.orders.1"]


async def test_an_events_header_says_nothing_of_who_sends_it() -> None:
    world = World()
    forged = b"Authorization: Bearer forged\r\n", b"AUTHORIZATION : x\r\n"
    head = forged[0] + HEAD + forged[1] + b"ce-authorization: mine\r\n"
    await world.mail.post(TARGET, head, b"authorization: in its data\r\n", 30)
    (post,) = world.inner.posts
    lines = post.request.head.splitlines()
    assert lines == [
        b"ce-id: 1",
        b"ce-authorization: mine",
        b"authorization: Bearer shop.mail.orders.1",
    ]
    assert post.request.body == b"authorization: in its data\r\n"


async def test_a_token_that_is_repeated_becomes_no_part_of_a_reply_or_dead_letter() -> None:
    async def answer(request: Request) -> Response:
        shown = request.header(b"authorization") or b""
        headers = [(b"kne-debug", b"you sent " + shown)]
        return Response(500, headers, b"500: " + request.head)

    world = World(answer)
    said = await world.post()
    assert said.headers == [(b"kne-debug", b"you sent Bearer (token)")]
    assert b"Bearer (token)" in said.body
    assert b"mail.orders" not in said.body


async def test_no_token_is_in_a_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(authorizing.log, "filters", [])  # it says each thing once a minute
    world = World(at_first(response(401), response(401)))
    await world.post()
    world.issuer.problem = "the API server: away"
    await asyncio.sleep(2 * EXPIRATION)
    with pytest.raises(DeliveryError):
        await world.post()
    assert "no token of shop/mail for orders" in caplog.text
    assert "mail.orders" not in caplog.text


async def test_a_bug_in_asking_is_told_by_its_kind_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def issue(account: Account, audience: str) -> None:
        raise ValueError("eyJ0b2tlbg")

    world = World()
    monkeypatch.setattr(world.issuer, "issue", issue)
    with pytest.raises(DeliveryError, match="ValueError"):
        await world.post()
    assert "eyJ0b2tlbg" not in caplog.text


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizing, "MAX_SINK_TOKENS", 3)
    world = World()
    for number in range(10):
        await world.post(Target.parse("http://sink.test/", audience=f"a{number}"))
    assert len(world.tokens) == 3


def egress(account: str | None) -> Egress:
    return Egress(
        namespace="shop", broker="default", trigger="mail", topic="t", group="g",
        dead_letter_topic="d", kafka=Kafka(bootstrap_servers="k:1"),
        subscriber=Sink(url=TARGET.url, audience="orders"), service_account=account,
    )  # fmt: skip


@pytest.mark.parametrize("has_issuer", [True, False])
async def test_without_an_account_or_anybody_to_ask_nothing_is_sent(has_issuer: bool) -> None:
    """A shared dispatcher of before has no way to the API server yet."""
    inner = ScriptedSubscriber(at_first())
    tokens = SinkTokens(MemoryTokens(MAIL)) if has_issuer else None
    posts = authorize(egress(None if has_issuer else "mail"), inner, tokens)
    with pytest.raises(DeliveryError) as raised:
        await posts.post(TARGET, HEAD, b"", 5)
    assert raised.value.reason == "no-token"
    assert inner.posts == []
    assert (await posts.post(PLAIN, HEAD, b"", 5)).status == 200


async def test_what_posts_for_an_egress_shows_tokens_of_its_account() -> None:
    """The tokens of a process that has just begun: there are none so far."""
    inner = ScriptedSubscriber(at_first())
    posts = authorize(egress("mail"), inner, SinkTokens(MemoryTokens(MAIL)))
    assert (await posts.post(TARGET, HEAD, b"", 5)).status == 200
    assert inner.posts[0].request.header(b"authorization") == b"Bearer shop.mail.orders.1"
