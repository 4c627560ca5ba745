"""A real dispatcher process that sends over TLS, while authorities change (issue 38)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from support.kafka import Kafka, MakeTopic
from support.loopback import HOST, LoopbackServer
from support.trigger_world import Held, TriggerWorld
from support.waiting import until
from support.web_certificates import WebAuthority, write

from knafka.core.contract import BackoffPolicy, Delivery, Sink
from knafka.settings import TRUST_BUNDLES
from knafka.tls_listener import ServerCertificate

AGAIN = Delivery(retry=100, backoff_policy=BackoffPolicy.LINEAR, backoff_delay=0.2)


class Destination:
    """Takes events, refuses the ids that begin with "bad" at `/`, and keeps no connection."""

    def __init__(self) -> None:
        self.taken: dict[str, list[str]] = {"/": [], "/dead": []}
        """Ids of events by path."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        length = re.search(r"(?i)content-length: (\d+)", head)
        id_ = re.search(r"(?i)ce-id: (\S+)", head)
        assert length
        assert id_
        await reader.readexactly(int(length[1]))
        status = b"400 Bad Request"
        if path != "/" or not id_[1].startswith("bad"):
            self.taken[path].append(id_[1])
            status = b"202 Accepted"
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        await writer.drain()


@pytest.mark.kafka
async def test_a_changed_authority_reaches_a_dispatcher_that_runs_and_no_event_is_lost(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Its subscriber is known by a bundle, its dead letter sink by what that names itself."""
    one, two, trust = WebAuthority("one"), WebAuthority("two"), tmp_path / "trust"
    write(tmp_path / "server", one.files(HOST))
    certificate = ServerCertificate(tmp_path / "server")
    certificate.reload_if_changed()
    handshakes, hand_on = [], certificate.context.sni_callback

    def counted(*handshake: Any) -> None:
        handshakes.append(1)
        assert hand_on is not None
        hand_on(*handshake)

    certificate.context.sni_callback = counted
    world, destination = TriggerWorld(kafka, topic, tmp_path), Destination()
    async with LoopbackServer(destination.handle, tls=certificate.context) as server:
        url = f"https://{HOST}:{server.port}/"
        sink = Sink(url=f"{url}dead", ca_certs=two.certificate)
        function = world.dispatcher(url, dead_letter_sink=sink, delivery=AGAIN)
        function.environment |= {TRUST_BUNDLES: str(trust)}
        world.send("1")
        async with function:
            held = Held(function)
            # There is no bundle yet: the subscriber isn't believed, and the event waits.
            await until(lambda: len(handshakes) > 1)
            assert destination.taken["/"] == []
            write(trust, {"bundle.pem": one.certificate})
            await until(lambda: destination.taken["/"] == ["1"])
            write(trust, {"bundle.pem": one.certificate + two.certificate})
            write(tmp_path / "server", two.files(HOST, with_rsa=True))
            certificate.reload_if_changed()
            world.send("2", "bad")
            await until(lambda: destination.taken == {"/": ["1", "2"], "/dead": ["bad"]})
            await held.hang_up()
    assert await world.letters() == {}
