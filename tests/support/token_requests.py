"""An API server over TLS that gives tokens of service accounts, as a dispatcher's pod asks it."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from support.loopback import LoopbackServer

from knafka.clients.kubernetes.api_server import ask_with_credentials, own_audiences
from knafka.clients.kubernetes.api_server_tokens import ApiServerTokens
from knafka.core.tokens.sink_tokens import Account
from knafka_operator.runtime.webhooks import make_certificate

NAME = "localhost"
OWN_AUDIENCE = "https://kubernetes.default.svc.cluster.local"
"""The API server's."""


@dataclass
class TokenApi:
    """Gives tokens of `accounts` to whoever shows `own`."""

    accounts: set[Account] = field(default_factory=set)
    own: str = ""
    url: str = ""
    status: int = 201
    """Of the answers to what is asked as it should be."""
    body: bytes | None = None
    """Of the answer, if it is another one than it should be."""
    expiration: float | None = None
    """Seconds for which tokens are given, if not those that are asked for."""
    clock: timedelta = timedelta()
    """By which its clock is wrong."""
    requests: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """Method, path and body."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        start, *lines = head.splitlines()
        headers = {
            name.lower(): value for name, _, value in (each.partition(": ") for each in lines)
        }
        method, path, _ = start.split(" ")
        document = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))))
        self.requests.append((method, path, document))
        status, answer = self._answer(path, document, headers.get("authorization", ""))
        body = json.dumps(answer).encode() if self.body is None else self.body
        location = f"Location: {self.url}/elsewhere\r\n" if status == 302 else ""
        length = f"Content-Length: {len(body)}\r\nConnection: close\r\n"
        writer.write(f"HTTP/1.1 {status} X\r\n{location}{length}\r\n".encode() + body)
        await writer.drain()

    def _answer(self, path: str, asked: dict[str, Any], shown: str) -> tuple[int, dict[str, Any]]:
        if shown != f"Bearer {self.own}":
            return 401, {}
        if self.status != 201:
            return self.status, {}
        parts = path.split("/")
        account = Account(parts[4], parts[6])
        if parts[:4] != ["", "api", "v1", "namespaces"] or parts[-1] != "token":
            return 404, {}
        if account not in self.accounts:
            return 404, {}
        spec, now = asked["spec"], datetime.now(UTC) + self.clock
        seconds = self.expiration or spec["expirationSeconds"]
        (audience,) = spec["audiences"]
        number = len(self.requests)
        token = f"{account.namespace}.{account.name}.{audience.replace('/', '-')}.{number}"
        return 201, {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"name": account.name, "creationTimestamp": _shown(now)},
            "spec": {**spec, "expirationSeconds": int(seconds), "boundObjectRef": None},
            "status": {
                "token": token,
                "expirationTimestamp": _shown(now + timedelta(seconds=seconds)),
            },
        }


def tokens_of(api: TokenApi, folder: Path) -> ApiServerTokens:
    """What asks it with what is in `folder`."""
    return ApiServerTokens(ask_with_credentials(api.url, folder), partial(own_audiences, folder))


def token_for(*audiences: str) -> str:
    """A pod's own, which nobody has signed."""
    claims = base64.urlsafe_b64encode(json.dumps({"aud": audiences}).encode()).decode()
    return f"head.{claims.rstrip('=')}.signature"


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@asynccontextmanager
async def giving_tokens(folder: Path, *accounts: Account) -> AsyncIterator[TokenApi]:
    """Serve with a certificate whose CA is put into `folder`, beside the pod's own token."""
    for name, text in make_certificate(NAME, datetime.now(UTC)).items():
        (folder / name).write_text(text)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    api = TokenApi(set(accounts), token_for(OWN_AUDIENCE))
    (folder / "token").write_text(f"{api.own}\n")
    async with LoopbackServer(api.handle, tls=tls) as server:
        api.url = f"https://{NAME}:{server.port}"
        yield api
