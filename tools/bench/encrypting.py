"""Measures TLS that a receiver terminates itself: the cost of an event, and of a handshake.

One process serves both ports, so that both had the same machine. The load generator accepts any
certificate, and resumes no session.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from bench.receiving import AT_64, load
from bench.results import OURS, Results
from bench.targets import External, Running, receiver
from bench.world import World, listens
from knafka.settings import TLS, TLS_PORT
from knafka_client.sockets import HOST, free_port
from knafka_operator.webhooks.server import make_certificate

RATE: Final = 1000
"""New connections a second; few, since each blocks its port for a minute after it is closed."""
KEPT: Final = f"TLS, {AT_64}"
PLAIN_EACH: Final = "plain, a connection for each event"
EACH: Final = "TLS, a connection for each event"


async def tls_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure the CPU of an event in plain and over TLS, over kept connections and over new
    ones."""
    seconds, port = world.sized(5, 1.5), free_port()
    folder = world.folder / "tls"
    folder.mkdir()
    for name, text in make_certificate(HOST, datetime.now(UTC)).items():
        (folder / name).write_text(text)
    environment = {TLS: str(folder), TLS_PORT: str(port)}
    async with world.topic() as topic, receiver(world, OURS, topic, environment) as plain:
        await listens(f"{HOST}:{port}")
        url = f"https://{HOST}:{port}{urlsplit(plain.url).path}"
        encrypted = Running(OURS, plain.pids, url)
        await load(world, plain, seconds=seconds)
        for _ in range(world.options.runs):
            for what, target in ((AT_64, plain), (KEPT, encrypted)):
                results.add(what, OURS, **await load(world, target, seconds=seconds))
            for what, target in ((PLAIN_EACH, plain), (EACH, encrypted)):
                measured = await load(world, target, seconds=seconds, c=8, rate=RATE, new="true")
                results.add(what, OURS, **measured)
