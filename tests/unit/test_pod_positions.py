"""What pods of a receiver say of their position, whoever has put them there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.loopback import HOST, LoopbackServer

from knafka_operator.model.resources import CORE
from knafka_operator.reconcile.receivers import POSITION_BYTES, PodPositions
from knafka_operator.runtime.memory_cluster import MemoryCluster

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
