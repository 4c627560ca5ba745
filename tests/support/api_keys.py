"""An API server's keys over TLS, as a receiver's pod reads them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from support.loopback import LoopbackServer

from knafka_operator.webhooks.server import make_certificate

NAME = "localhost"


@dataclass
class Api:
    """Answers everything with `body`."""

    url: str = ""
    status: int = 200
    body: bytes = b""
    raw: bytes | None = None
    """Answers these bytes in place of a response, and closes; None: a whole response."""
    tokens: list[str] = field(default_factory=list)
    """`Authorization` of each request."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = [line.partition(": ") for line in head.splitlines()]
        self.tokens += [value for name, _, value in lines if name.lower() == "authorization"]
        # As Kubernetes, for its keys.
        accepted = "accept: application/json, application/jwk-set+json" in head.lower()
        self.status = self.status if accepted or "/jwks" not in lines[0][0] + lines[0][2] else 406
        location = f"Location: {self.url}/elsewhere\r\n" if self.status == 302 else ""
        length = f"Content-Length: {len(self.body)}\r\nConnection: close\r\n"
        if self.raw is not None:
            writer.write(self.raw)
            await writer.drain()
            return
        writer.write(f"HTTP/1.1 {self.status} X\r\n{location}{length}\r\n".encode() + self.body)
        await writer.drain()


@asynccontextmanager
async def serving_tls(folder: Path) -> AsyncIterator[Api]:
    """Serve with a certificate whose CA is put into `folder`, as `ca.crt`."""
    pem = make_certificate(NAME, datetime.now(UTC))
    for name, text in pem.items():
        (folder / name).write_text(text)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    api = Api()
    async with LoopbackServer(api.handle, tls=tls) as server:
        api.url = f"https://{NAME}:{server.port}"
        yield api
