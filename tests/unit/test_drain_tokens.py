"""What a drain does where destinations want tokens, and there are none (issue 38). Fake time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.drains import SINK, SUBSCRIBER, Request, World, response
from support.memory.account_tokens import MemoryTokens

from knafka.core.contract import Delivery, Order, Sink
from knafka.core.tokens.sink_tokens import Account
from knafka.dispatcher.engine.sending.authorizing import AuthorizedSubscriber, SinkTokens
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime

MAIL = Account("ns", "mail")
REPLIES = "http://replies.test/"
AWAY = "the API server: away"
REPLY = {"ce_specversion": "1.0", "ce_id": "r", "ce_source": "/reply", "ce_type": "answer"}


class Tokens:
    """A Trigger whose destinations take events with a token for them only."""

    def __init__(self, *, answer: Response | None = None, **more: Any) -> None:
        self.fails = False
        """Whether the subscriber doesn't take what it is sent."""
        self._answer = answer or response()
        self.world = World(self._take, sink=True, service_account="mail", **more)
        self.world.egress = self.world.egress.model_copy(
            update={
                "subscriber": Sink(url=SUBSCRIBER, audience="orders"),
                "dead_letter_sink": Sink(url=SINK, audience="dead"),
            }
        )
        self.issuer = MemoryTokens(MAIL)
        self.inner = self.world.subscriber
        clock = asyncio.get_running_loop().time
        tokens = SinkTokens(self.issuer, clock, lambda: 0.0)
        authorized: Any = AuthorizedSubscriber(self.inner, tokens, MAIL)
        self.world.subscriber = authorized

    async def _take(self, request: Request) -> Response:
        shown = (request.header(b"authorization") or b"").decode()
        if not shown.startswith(f"Bearer ns.mail.{request.target.audience}."):
            return response(401)
        if request.target.url == SUBSCRIBER and self.fails:
            return response(400)
        return self._answer if request.target.url == SUBSCRIBER else response()

    def send(self, *ids: str) -> None:
        for each in ids:
            self.world.send(each, key=each)

    @property
    def urls(self) -> list[str]:
        return [each.request.target.url for each in self.inner.posts]


async def test_subscriber_and_dead_letter_sink_get_a_token_each() -> None:
    tokens = Tokens()
    tokens.fails = True
    tokens.send("1")
    progress = await tokens.world.run()
    assert (progress.delivered, progress.dead_lettered) == (0, 1)
    assert tokens.urls == [SUBSCRIBER, SINK]
    assert tokens.world.committed == {0: 1}


@pytest.mark.slow
async def test_events_wait_without_an_attempt_until_there_is_a_token() -> None:
    """However few retries they have: nothing was tried, so nothing has failed."""
    tokens = Tokens(delivery=Delivery(retry=0))
    tokens.issuer.problem = AWAY
    tokens.send(*map(str, range(300)))
    drain = tokens.world.drain()
    running = tokens.world.begin(drain)
    await asyncio.sleep(600)
    assert tokens.inner.posts == []
    assert (drain.progress().dead_lettered, tokens.world.committed.get(0, 0)) == (0, 0)
    assert "no-token" in drain.congestion.describe()
    assert tokens.issuer.asked[MAIL, "orders"] < 100, "the API server has enough to do"
    tokens.issuer.problem = ""
    progress = await running
    assert (progress.delivered, progress.dead_lettered) == (300, 0)
    assert sorted(map(int, tokens.inner.ids)) == list(range(300)), "each once"
    assert tokens.world.committed == {0: 300}


@pytest.mark.slow
@pytest.mark.parametrize("order", list(Order))
async def test_more_events_than_a_commit_can_tell_of_go_on_when_there_is_a_token(
    order: Order,
) -> None:
    """The first ones are no attempts: none waits for one that waits for it."""
    tokens = Tokens(delivery=Delivery(retry=0), order=order, max_in_flight=500)
    tokens.issuer.problem = AWAY
    tokens.issuer.takes = 0.5
    tokens.send(*map(str, range(500)))
    running = tokens.world.begin(tokens.world.drain())
    await asyncio.sleep(120)
    tokens.issuer.problem = ""
    assert (await running).delivered == 500


async def test_a_dead_letter_waits_for_its_sinks_token_and_is_not_tried_before() -> None:
    tokens = Tokens()
    tokens.fails = True
    tokens.send("1")
    drain = tokens.world.drain()
    running = tokens.world.begin(drain)

    async def away(account: Account, audience: str) -> Any:
        if audience == "dead" and asyncio.get_running_loop().time() < 600:
            tokens.issuer.problem = AWAY
        else:
            tokens.issuer.problem = ""
        return await MemoryTokens.issue(tokens.issuer, account, audience)

    tokens.issuer.issue = away  # type: ignore[method-assign]
    progress = await running
    assert asyncio.get_running_loop().time() >= 600
    assert progress.dead_lettered == 1
    assert tokens.urls == [SUBSCRIBER, SINK]


async def test_a_reply_waits_for_its_token_and_the_subscriber_is_not_asked_again() -> None:
    answer = response(200, b"hello", **REPLY)
    to = Sink(url=REPLIES, audience="replies")
    tokens = Tokens(answer=answer, kind="Subscription", reply=to, delivery=Delivery(retry=0))
    tokens.send("1")
    running = tokens.world.begin(tokens.world.drain())

    async def away(account: Account, audience: str) -> Any:
        late = audience == "replies" and asyncio.get_running_loop().time() < 600
        tokens.issuer.problem = AWAY if late else ""
        return await MemoryTokens.issue(tokens.issuer, account, audience)

    tokens.issuer.issue = away  # type: ignore[method-assign]
    progress = await running
    assert (progress.delivered, progress.replied, progress.dead_lettered) == (1, 1, 0)
    assert tokens.urls == [SUBSCRIBER, REPLIES]


async def test_a_subscriber_that_takes_no_token_has_its_events_dead_lettered() -> None:
    """401 is final, as any 4xx: with another token it was asked once more."""

    async def refuse(request: Request) -> Response:
        return response(401 if request.target.url == SUBSCRIBER else 200)

    tokens = Tokens()
    tokens.inner.answer = refuse
    tokens.send("1")
    progress = await tokens.world.run()
    assert progress.dead_lettered == 1
    assert tokens.urls == [SUBSCRIBER, SUBSCRIBER, SINK]
