"""A token on the wire: once, where it belongs, and not where an answer points to (issue 38)."""

from __future__ import annotations

import pytest
from support.memory.account_tokens import MemoryTokens
from support.scripted import Arrival, ScriptedServer, raw

from knafka.clients.http_subscriber import HttpSubscriber
from knafka.core.sink_tokens import Account
from knafka.dispatcher.authorizing import AuthorizedSubscriber, SinkTokens
from knafka.ports.subscriber import Target

MAIL = Account("shop", "mail")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_token_follows_no_redirection(status: int) -> None:
    async with ScriptedServer() as elsewhere:

        async def redirect(arrival: Arrival) -> bytes:
            return raw(status, location=elsewhere.url)

        async with ScriptedServer(redirect) as server:
            plain = HttpSubscriber()
            posts = AuthorizedSubscriber(plain, SinkTokens(MemoryTokens(MAIL)), MAIL)
            try:
                target = Target.parse(server.url, audience="orders")
                answer = await posts.post(target, b"ce-id: 1\r\n", b"data", 5)
                other = await posts.post(Target.parse(elsewhere.url), b"ce-id: 2\r\n", b"", 5)
            finally:
                await posts.close()
        assert (answer.status, other.status) == (status, 200)
        assert [each.headers["authorization"] for each in server.arrivals] == [
            "Bearer shop.mail.orders.1"
        ]
        (arrival,) = elsewhere.arrivals
        assert (arrival.id, "authorization" in arrival.headers) == ("2", False)
