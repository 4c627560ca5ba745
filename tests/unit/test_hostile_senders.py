"""Hostile senders at a real socket: what they send costs a receiver little, and nobody else
anything (issue 38, "what it must show" 3)."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest
from support.receiver_requests import MINIMAL, PATH
from support.receiving import Server
from support.senders import (
    AUDIENCE,
    KEY_ID,
    NOW,
    OTHER_KEY,
    Keys,
    claims,
    encoded,
    jwk,
    logged,
    token,
    unsigned,
)

from knafka.receiver.authentication import (
    MAX_SENDER_FAILURES_PER_SECOND,
    MAX_UNKNOWN_FAILURES_PER_SECOND,
    TokenVerifier,
)

FLOOD = 10_000
"""Tokens, each another one."""
SENDERS = 8
"""Connections that they come by."""
PIPELINE = 25
"""Requests that one of them sends before it reads the answers."""
BLOCKS = FLOOD // 4
"""Python's blocks of memory that may be more afterwards: to keep a token takes one at least, and
connections, which have just been closed, some hundred. To count them costs nothing."""


class GuardedServer(Server):
    """A receiver whose Broker wants tokens; its verifier's clock stands still."""

    def __init__(self) -> None:
        self.keys = Keys()
        self.verifier = TokenVerifier(self.keys, lambda: NOW)
        super().__init__(verifier=self.verifier, audience=AUDIENCE)


@pytest.fixture
async def guarded() -> AsyncIterator[GuardedServer]:
    server = GuardedServer()
    await server.start()
    yield server
    await server.stop()


def request(*authorizations: bytes, path: bytes = PATH) -> bytes:
    """An event with these headers `Authorization`."""
    head = MINIMAL.wire(path=path).removesuffix(b"content-length: 0\r\n\r\n")
    lines = b"".join(b"Authorization: %b\r\n" % each for each in authorizations)
    return head + lines + b"content-length: 0\r\n\r\n"


def invented() -> list[bytes]:
    """Tokens of each kind that costs something: another key, another signature, other claims."""
    head, body, _ = token().split(b".")

    def one(number: int) -> bytes:
        match number % 4:
            case 0:
                return unsigned({"alg": "RS256", "kid": f"../{number}"})
            case 1:
                return b".".join([head, body, encoded(b"%d" % number * 50)])
            case 2:
                return b".".join([head, encoded(claims(sub=str(number))), encoded(b"x" * 256)])
            case _:
                return b"%d." % number + b"A" * 7_000 + b"."

    return [one(number) for number in range(FLOOD)]


async def flood(server: GuardedServer, tokens: Sequence[bytes]) -> Counter[int]:
    """The answers to one connection's share."""
    statuses: Counter[int] = Counter()
    async with server.connect() as wire:
        for first in range(0, len(tokens), PIPELINE):
            some = tokens[first : first + PIPELINE]
            await wire.sent(b"".join(request(b"Bearer " + each) for each in some))
            statuses.update(await wire.statuses(len(some)))
    return statuses


@pytest.mark.slow
async def test_a_flood_of_ten_thousand_tokens_holds_no_memory_and_delays_no_good_sender(
    guarded: GuardedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    good = request(b"Bearer " + token())
    tokens = invented()
    shares = [tokens[number::SENDERS] for number in range(SENDERS)]
    accepted = 0
    async with guarded.connect() as wire:
        wire.send(good)
        assert await wire.statuses(1) == [202]
        gc.collect()
        before = sys.getallocatedblocks()
        floods = [asyncio.create_task(flood(guarded, each)) for each in shares]
        while not all(each.done() for each in floods):
            wire.send(good)
            assert await wire.statuses(1) == [202], "whatever others send meanwhile"
            accepted += 1
        statuses = sum((each.result() for each in floods), Counter[int]())
        stored = len(guarded.values)
        guarded.log.topics["events"][0].clear()
        del floods
        gc.collect()
        used = sys.getallocatedblocks() - before
    assert accepted >= 10, "it had its turns among theirs"
    assert stored == 1 + accepted, "nothing of the others is stored"
    assert statuses.total() == FLOOD
    assert set(statuses) == {401, 503}
    looked_at = MAX_UNKNOWN_FAILURES_PER_SECOND + MAX_SENDER_FAILURES_PER_SECOND
    assert guarded.keys.verified == 1 + looked_at, "in one second, the verifier's"
    assert len(guarded.verifier) == 1
    assert used < BLOCKS, "beside what is stored in Kafka"
    assert logged(caplog) == []


async def test_a_token_of_a_megabyte_is_cut_off_before_it_is_looked_at(
    guarded: GuardedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded.connect() as wire, guarded.connect() as good:
        await wire.sent(request(b"Bearer " + b"A" * 1_000_000))
        assert (await wire.response()).status == 431
        await wire.closed()
        good.send(request(b"Bearer " + token()))
        assert await good.statuses(1) == [202]
    assert guarded.keys.found == 1, "the good one's"
    assert logged(caplog) == []


@pytest.mark.parametrize("name", ["access_token", "authorization", "token"])
async def test_a_token_in_a_query_is_none_and_is_shown_nowhere(
    guarded: GuardedServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Proxies and logs keep URLs (RFC 6750, 2.3)."""
    caplog.set_level(logging.DEBUG)
    path = PATH + b"?" + name.encode() + b"=" + token()
    async with guarded.connect() as wire:
        wire.send(request(path=path))
        answer = await wire.response()
        assert answer.status == 401
        assert token()[:20] not in answer.body
        wire.send(request(b"Bearer " + token(), path=path))
        assert await wire.statuses(1) == [202], "what is in a header counts"
    assert logged(caplog) == []
    (record,) = guarded.log.topics["events"][0]
    assert all(b"eyJ" not in value for _, value in record.headers() or ())


@pytest.mark.parametrize(
    "authorizations",
    [
        (b"Bearer " + token(), b"Bearer " + token()),
        (b"Bearer " + unsigned({"alg": "none", "kid": KEY_ID}), b"Bearer " + token()),
        (b"Bearer " + token(), b"Basic eDp5"),
        (b"Bearer " + token() + b", Bearer " + token(),),
        (b"Bearer " + token(OTHER_KEY, jwk=jwk(OTHER_KEY, KEY_ID)),),
        (b"",),
    ],
    ids=["twice", "a bad and a good one", "two schemes", "a list", "another's key", "empty"],
)
async def test_whoever_shows_not_exactly_one_token_is_refused_at_the_socket(
    guarded: GuardedServer, authorizations: Sequence[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded.connect() as wire:
        wire.send(request(*authorizations))
        answer = await wire.response()
        assert answer.status == 401
        assert answer.headers[b"www-authenticate"] == b"Bearer"
    assert guarded.values == []
    assert logged(caplog) == []
