"""What every `Subscriber` promises, asked of the HTTP client with a real server.

The server acts a `DeliveryError` out: `broken` closes the connection, `timeout` never answers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from support.loopback import LoopbackServer

from knafka.clients.http.http_subscriber import HttpSubscriber
from knafka.core.errors import DeliveryError
from knafka.ports.subscriber import Response, Subscriber, Target

Answer: TypeAlias = Callable[[bytes], Response | DeliveryError]
"""By the body of the request."""

HEAD = b"ce-id: 1\r\nce-type: t\r\nprefer: reply\r\n"


@dataclass
class World:
    """A subscriber to post with, where to, and the (head, body) pairs that arrived there."""

    subscriber: Subscriber
    target: Target
    arrived: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def post(self, body: bytes = b"x", timeout: float = 5.0) -> Response:
        return await self.subscriber.post(self.target, HEAD, body, timeout)


@asynccontextmanager
async def open_world(answer: Answer) -> AsyncIterator[World]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await respond(reader, writer):
            pass

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        start, host, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        assert start == b"POST /path?q=1 HTTP/1.1"
        assert host == b"host: " + str(world.target.origin).encode()
        name, length = lines.pop().split(b": ")
        assert name == b"content-length"
        head = b"".join(line + b"\r\n" for line in lines)
        body = await reader.readexactly(int(length))
        world.arrived.append((head, body))
        outcome = answer(body)
        if isinstance(outcome, DeliveryError):
            if outcome.reason == "timeout":
                await reader.read()
            return False
        writer.write(b"HTTP/1.1 %d Status\r\n" % outcome.status)
        for header in outcome.headers:
            writer.write(b"%b: %b\r\n" % header)
        if outcome.status != 204:
            writer.write(b"Content-Length: %d\r\n" % len(outcome.body))
        writer.write(b"\r\n" + outcome.body)
        return True

    async with LoopbackServer(handle) as server:
        target = Target.parse(f"http://127.0.0.1:{server.port}/path?q=1")
        world = World(HttpSubscriber(), target)
        yield world
        await world.subscriber.close()


@pytest.mark.conformance("KN-DP-06")
async def test_head_and_body_arrive_as_they_were_given() -> None:
    """KN-DP-06: `Prefer: reply` is the caller's, like every other header."""
    async with open_world(lambda _: Response(202, [], b"")) as world:
        await world.post(b"\x00\xff\r\n\r\n")
        await world.post(b"")
        assert world.arrived == [(HEAD, b"\x00\xff\r\n\r\n"), (HEAD, b"")]


async def test_a_reply_comes_back_byte_for_byte() -> None:
    answer = Response(200, [(b"ce-id", b"2"), (b"ce-id", b"3")], b"\x00reply\xff")
    async with open_world(lambda _: answer) as world:
        response = await world.post()
        assert (response.status, response.body) == (200, answer.body)
        assert response.headers[:2] == answer.headers
        assert response.header(b"ce-id") == b"2"
        assert response.header(b"ce-type") is None


@pytest.mark.parametrize("status", [200, 202, 204, 302, 400, 404, 429, 500, 503])
async def test_any_final_status_is_a_response(status: int) -> None:
    """The data-plane table is `core.delivery`'s: also a redirect is answered, not followed."""
    headers = [(b"location", b"/elsewhere")]
    async with open_world(lambda _: Response(status, headers, b"")) as world:
        assert (await world.post()).status == status
        assert len(world.arrived) == 1


@pytest.mark.parametrize("reason", ["broken", "timeout"])
async def test_no_response_is_a_delivery_error(reason: str) -> None:
    async with open_world(lambda _: DeliveryError(reason, "no response")) as world:
        with pytest.raises(DeliveryError) as caught:
            await world.post(timeout=0.05)
        assert caught.value.reason == reason


@pytest.mark.conformance("KN-DP-08")
async def test_a_large_response_is_a_response() -> None:
    """KN-DP-08: its status counts, whatever its body is; how much of it is kept is the client's."""
    async with open_world(lambda _: Response(200, [], b"x" * 3_000_000)) as world:
        response = await world.post()
        assert (response.status, response.body[:10]) == (200, b"x" * 10)


async def test_many_posts_at_once_get_each_their_own_answer() -> None:
    async with open_world(lambda body: Response(200, [], body)) as world:
        bodies = [b"%d" % number for number in range(250)]
        responses = await asyncio.gather(*(world.post(body) for body in bodies))
        assert [response.body for response in responses] == bodies


async def test_a_closed_client_refuses_to_post() -> None:
    async with open_world(lambda _: Response(202, [], b"")) as world:
        await world.post()
        await world.subscriber.close()
        await world.subscriber.close()
        with pytest.raises(DeliveryError) as caught:
            await world.post()
        assert caught.value.reason == "broken"


async def test_a_url_that_cannot_be_posted_to_is_refused_with_its_problem() -> None:
    async with open_world(lambda _: Response(202, [], b"")) as world:
        with pytest.raises(DeliveryError, match="unsupported scheme bad") as caught:
            await world.subscriber.post(Target.parse("bad://uri"), HEAD, b"", 5.0)
        assert caught.value.reason == "refused"
        assert world.arrived == []


async def test_nobody_listening_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = HttpSubscriber()
    with pytest.raises(DeliveryError) as caught:
        await client.post(Target.parse(f"http://127.0.0.1:{port}/"), b"", b"", 5.0)
    await client.close()
    assert caught.value.reason == "refused"
