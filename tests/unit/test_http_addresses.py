"""Where no event is sent: addresses of the pod and the node, by what a name resolves to."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from typing import Any

import pytest
from support.loopback import HOST, LoopbackServer
from support.scaling import SHARD, egress

from knafka.clients.http.http_pool import Refusal
from knafka.clients.http.http_subscriber import HttpSubscriber
from knafka.core import addresses, documents
from knafka.core.addresses import LOCAL_ADDRESSES
from knafka.core.errors import DeliveryError, InvalidDocument
from knafka.dispatcher import function
from knafka.ports.subscriber import Target
from knafka.settings import EGRESS, allows_local_addresses
from knafka.settings import SHARD as SHARD_VARIABLE


class Server:
    """Accepts every event, and counts who has connected."""

    def __init__(self) -> None:
        self.connections = 0
        self.events = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.readuntil(b"\r\n\r\n")
        self.events += 1
        writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()


async def post(server: Server, host: str, refusal: Refusal | None) -> int:
    async with LoopbackServer(server.handle) as listening:
        subscriber = HttpSubscriber(refusal=refusal)
        try:
            target = Target.parse(f"http://{host}:{listening.port}/")
            return (await subscriber.post(target, b"", b"", 5.0)).status
        finally:
            await subscriber.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "0x7f000001", "0.0.0.0"])
async def test_a_loopback_destination_is_not_even_connected_to(host: str) -> None:
    server = Server()
    with pytest.raises(DeliveryError, match="not allowed here") as caught:
        await post(server, host, addresses.refusal)
    assert caught.value.reason == "refused"
    assert server.connections == 0


async def test_a_local_mode_that_allows_it_delivers() -> None:
    server = Server()
    assert await post(server, "localhost", None) == 202
    assert server.events == 1


def _resolving_to(*found: str) -> Any:
    asked = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    getaddrinfo.asked = asked  # type: ignore[attr-defined]
    return getaddrinfo


async def test_a_name_is_judged_by_what_it_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner may have it lead anywhere, after it was looked at, too."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", _resolving_to("169.254.169.254", HOST))
    server = Server()
    with pytest.raises(DeliveryError, match=r"169\.254\.169\.254 is a link-local address"):
        await post(server, "rebound.example.com", addresses.refusal)
    assert server.connections == 0


async def test_of_a_names_addresses_those_that_are_allowed_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was judged is connected to: nobody resolves the name again."""
    loop, resolve = asyncio.get_running_loop(), _resolving_to("169.254.169.254", HOST)
    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    server = Server()

    def refusal(address: str) -> str | None:
        return None if address == HOST else addresses.refusal(address)

    assert await post(server, "two.example.com", refusal) == 202
    assert resolve.asked.count("two.example.com") == 1


async def test_the_next_address_of_a_name_is_tried_where_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", _resolving_to("127.0.0.2", HOST))
    server = Server()  # listens on HOST alone
    assert await post(server, "two.example.com", lambda _: None) == 202
    monkeypatch.setattr(loop, "getaddrinfo", _resolving_to("127.0.0.2"))
    with pytest.raises(DeliveryError, match="no connection"):
        await post(server, "one.example.com", lambda _: None)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("environment", "refused"),
    [({}, True), ({LOCAL_ADDRESSES: "refused"}, True), ({LOCAL_ADDRESSES: "allowed"}, False)],
)
async def test_a_dispatcher_refuses_them_unless_it_is_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], refused: bool, shared: bool
) -> None:
    given: list[Refusal | None] = []

    def connect(_: object, refusal: Refusal | None, **others: object) -> Any:
        given.append(refusal)
        raise InvalidDocument("", "enough")

    monkeypatch.setattr(function, "connect_shard" if shared else "connect", connect)
    contract = {
        SHARD_VARIABLE if shared else EGRESS: json.dumps(
            documents.dump(SHARD if shared else egress("orders"))
        )
    }
    dispatcher = function.Dispatcher()
    with pytest.raises(InvalidDocument, match="enough"):
        await dispatcher.start({**contract, **environment})
    assert given == [addresses.refusal if refused else None]


def test_another_word_is_told_by_its_name() -> None:
    with pytest.raises(InvalidDocument, match=LOCAL_ADDRESSES):
        allows_local_addresses({LOCAL_ADDRESSES: "yes"})
