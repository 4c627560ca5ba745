"""`python -m knafka.receiver` that ends TLS itself: the real process on real Kafka (issue 38)."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from support.kafka import Kafka
from support.receivers import running
from support.waiting import until, until_found
from support.web_certificates import WebAuthority, write

from knafka.clients.http.http_subscriber import HttpSubscriber
from knafka.clients.http.trust_bundles import TrustBundles
from knafka.ports.subscriber import Target
from knafka.settings import TLS, TLS_PORT
from knafka_client.sockets import HOST, free_port

RATE = 100
"""Events a second."""


class Sender:
    """Sends events at `RATE` over connections that are soon new ones."""

    def __init__(self, port: int, trust: Path) -> None:
        self.target = Target.parse(f"https://{HOST}:{port}/ns/broker")
        self._subscriber = HttpSubscriber(bundles=TrustBundles(trust), max_age=lambda: 0.1)
        self._sent: list[asyncio.Task[int]] = []
        self.stopping = False

    @property
    def accepted(self) -> int:
        return sum(each.done() for each in self._sent)

    async def run(self) -> list[int]:
        """The status of each event; raises what an attempt failed with."""
        loop = asyncio.get_running_loop()
        at = loop.time()
        while not self.stopping:
            self._sent.append(asyncio.create_task(self._send(len(self._sent))))
            at += 1 / RATE
            await asyncio.sleep(max(0.0, at - loop.time()))
        try:
            return await asyncio.gather(*self._sent)
        finally:
            await self._subscriber.close()

    async def _send(self, number: int) -> int:
        head = b"ce-specversion: 1.0\r\nce-type: t\r\nce-source: /s\r\nce-id: %d\r\n" % number
        return (await self._subscriber.post(self.target, head, b"data", 20.0)).status


async def shown(port: int) -> str:
    """The certificate that a new connection is shown, as PEM."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(HOST, port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(True)
    writer.close()
    return ssl.DER_cert_to_PEM_cert(der)


@pytest.mark.kafka
async def test_a_certificate_and_its_authority_are_rotated_and_no_event_is_lost(
    kafka: Kafka, tmp_path: Path
) -> None:
    """At 100 events a second: no attempt fails, all are in Kafka, and no process starts anew."""
    one, two = WebAuthority("one"), WebAuthority("two")
    server, trust, port = tmp_path / "server", tmp_path / "trust", free_port()
    write(server, one.files(HOST))
    write(trust, {"bundle.pem": one.certificate})
    environment = {TLS: str(server), TLS_PORT: str(port)}
    log = tmp_path / "receiver.log"
    async with running(
        kafka.bootstrap_servers, log, environment=environment, encrypted_only=True
    ) as served:
        sender = Sender(port, trust)
        sending = asyncio.create_task(sender.run())

        async def go_on(events: int = RATE // 2) -> None:
            before = sender.accepted
            await until(lambda: sending.done() or sender.accepted > before + events)

        async def show(files: dict[str, str]) -> None:
            write(server, files)

            async def is_shown() -> bool:
                return await shown(port) == files["tls.crt"]

            await until_found(is_shown)

        await go_on()
        await show(one.files(HOST, with_rsa=True))  # the certificate, with a key of another kind
        await go_on()
        write(trust, {"bundle.pem": one.certificate + two.certificate})
        await go_on(RATE * 3 // 2)  # senders look at their bundles once a second
        await show(two.files(HOST))
        await go_on()
        write(trust, {"bundle.pem": two.certificate})
        await go_on()
        write(server, {"tls.crt": "broken", "tls.key": "broken"})
        await until(lambda: "the previous one stays in use" in served.process.log)
        await go_on()
        sender.stopping = True
        answers = await sending
        assert set(answers) == {202}
        found = [dict(each.headers() or ())["ce_id"] for each in await served.records(limit=10_000)]
        assert sorted(found, key=int) == [b"%d" % number for number in range(len(answers))]
        # Plain HTTP is still there, for probes, and takes no events.
        async with served.connect() as wire:
            head = b"POST /ns/broker HTTP/1.1\r\nhost: x\r\nce-specversion: 1.0\r\nce-type: t\r\n"
            wire.send(head + b"ce-source: /s\r\nce-id: 1\r\ncontent-length: 0\r\n\r\n")
            wire.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await wire.statuses(2) == [403, 200]
