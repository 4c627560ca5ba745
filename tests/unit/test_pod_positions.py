"""What pods of a receiver say of their position, and of new types of events, whoever has put them
there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.loopback import HOST, LoopbackServer

from knafka_operator.kube_api.memory_cluster import MemoryCluster
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE
from knafka_operator.receivers.event_type_manifests import ReportedType
from knafka_operator.receivers.event_types import PodEventTypes
from knafka_operator.receivers.receivers import POSITION_BYTES, PodPositions

READY = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": HOST}


class Pod:
    """Answers with a head and a body without an end."""

    def __init__(self) -> None:
        self.head = "HTTP/1.1 200 OK"
        self.body = b'{"position": 7}'
        self.endless = False
        self.written = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"{self.head}\r\nConnection: close\r\n\r\n".encode() + self.body)
        while self.endless and not writer.is_closing():
            writer.write(b" " * 65_536)
            self.written += 65_536
            await writer.drain()


@pytest.fixture
async def pod() -> AsyncIterator[tuple[Pod, PodPositions]]:
    answering = Pod()
    cluster = MemoryCluster()
    labels = {"serving.knative.dev/service": "receiver"}
    metadata = {"namespace": "shop", "name": "pod", "labels": labels}
    cluster.objects[CORE, "Pod", "shop", "pod"] = {
        **{"apiVersion": CORE, "kind": "Pod"},
        **{"metadata": metadata, "status": READY},
    }
    async with LoopbackServer(answering.handle) as server:
        yield answering, PodPositions(cluster, port=server.port)


async def test_a_pod_says_how_far_it_has_read(pod: tuple[Pod, PodPositions]) -> None:
    assert await pod[1]("shop", "receiver") == {"pod": 7}


async def test_of_an_answer_without_an_end_only_the_beginning_is_read(
    pod: tuple[Pod, PodPositions],
) -> None:
    """It was read whole into the operator's memory, for two seconds."""
    pod[0].endless = True
    assert await pod[1]("shop", "receiver") == {"pod": 7}
    assert pod[0].written < 16 * 1024 * 1024


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("HTTP/1.1 200 OK", b"[" * POSITION_BYTES),
        ("HTTP/1.1 200 OK", b'{"position": 1e999}'),
        ("HTTP/1.1 200 OK", b"[]"),
        ("HTTP/1.1 200 OK\r\nContent-Encoding: deflate", b"x\x9c" * 100),
        ("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/", b""),
    ],
    ids=["deep", "infinite", "a list", "compressed", "elsewhere"],
)
async def test_what_is_no_position_is_none(
    pod: tuple[Pod, PodPositions], head: str, body: bytes
) -> None:
    pod[0].head, pod[0].body = head, body
    assert await pod[1]("shop", "receiver") == {"pod": None}


SERVICE = Identity("shop", "receiver")
TOLD = b'{"eventTypes": [{"path": "/shop/default", "type": "made", "source": "/s"}]}'


async def test_pods_say_which_types_of_events_are_new() -> None:
    pod = Pod()
    pod.body = TOLD
    async with LoopbackServer(pod.handle) as server:
        asking = PodEventTypes(lambda name, namespace: ["secret", "older"])
        addresses = [f"http://{HOST}:{server.port}", f"http://{HOST}:1"]
        assert await asking(SERVICE, addresses) == [ReportedType("/shop/default", "made", "/s")]


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("HTTP/1.1 404 Not Found", b"no Broker is served here"),
        ("HTTP/1.1 401 Unauthorized", TOLD),
        ("HTTP/1.1 200 OK", b"[" * 100_000),
        ("HTTP/1.1 200 OK", TOLD[:-1]),
        ("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/", TOLD),
    ],
    ids=["an older receiver", "another's token", "deep", "cut", "elsewhere"],
)
async def test_what_is_no_answer_tells_of_no_types(head: str, body: bytes) -> None:
    pod = Pod()
    pod.head, pod.body = head, body
    async with LoopbackServer(pod.handle) as server:
        found = await PodEventTypes(lambda name, namespace: [])(
            SERVICE, [f"http://{HOST}:{server.port}"]
        )
        assert found == []


async def test_of_types_without_an_end_only_the_beginning_is_read() -> None:
    pod = Pod()
    pod.body, pod.endless = TOLD, True
    async with LoopbackServer(pod.handle) as server:
        asking = PodEventTypes(lambda name, namespace: [])
        found = await asking(SERVICE, [f"http://{HOST}:{server.port}"])
        assert len(found) <= 1
        assert pod.written < 16 * 1024 * 1024
