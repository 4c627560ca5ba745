"""An identity provider for tests: OIDC's token endpoint for client credentials, and its keys.

    async with TokenIssuer(folder) as issuer:
        issuer.endpoint, issuer.secret, issuer.jwks

Its tokens are signed (RS256), so that Kafka checks them as it does those of a real one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from support.loopback import HOST, LoopbackServer

CLIENT: Final = "knafka"
CLIENT_SECRET: Final = "never-shown"
AUDIENCE: Final = "kafka"
SCOPE: Final = "events"


class TokenIssuer:
    """Serves while it is entered; `lifetime` and `key` may be changed meanwhile."""

    def __init__(self, folder: Path, lifetime: float = 300.0) -> None:
        self.lifetime = lifetime
        """Seconds for which a token is good."""
        self.given = 0
        """Tokens that were given out."""
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.jwks = folder / "jwks.json"
        """The public key, which Kafka reads."""
        self.jwks.write_text(json.dumps({"keys": [_public(self.key)]}))
        self._server = LoopbackServer(self._serve)

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._server.port}/token"

    @property
    def secret(self) -> dict[str, str]:
        """What a user would put into the Secret for Kafka."""
        return {
            "protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": self.endpoint,
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
            "sasl.oauthbearer.scope": SCOPE,
            "sasl.oauthbearer.extensions": "traceId=1",
        }

    def token(self) -> tuple[str, float]:
        """A new one, and when it expires: seconds since the Unix epoch."""
        self.given += 1
        now = time.time()
        expires = math.ceil(now + self.lifetime)
        claims = {
            "sub": CLIENT,
            "aud": AUDIENCE,
            "scope": SCOPE,
            "iat": int(now),
            "exp": expires,
            "jti": str(self.given),
        }
        signed = f"{_encoded({'alg': 'RS256', 'kid': 'one'})}.{_encoded(claims)}"
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64(signature)}", float(expires)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = (line.partition(":") for line in head.split("\r\n")[1:-2])
        headers = {name.lower(): value.strip() for name, _, value in lines}
        form = parse_qs((await reader.readexactly(int(headers["content-length"]))).decode())
        login = base64.b64encode(f"{CLIENT}:{CLIENT_SECRET}".encode()).decode()
        status, answer = "401 Unauthorized", {"error": "invalid_client"}
        asked = form.get("grant_type") == ["client_credentials"] and form.get("scope") == [SCOPE]
        if headers.get("authorization") == f"Basic {login}" and asked:
            token, _ = self.token()
            status, answer = "200 OK", {"access_token": token, "token_type": "Bearer"}
        body = json.dumps(answer).encode()
        start = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        writer.write(start.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()


def _public(key: rsa.RSAPrivateKey) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    exponent, modulus = numbers.e.to_bytes(3, "big"), numbers.n.to_bytes(256, "big")
    return {
        "kty": "RSA",
        "kid": "one",
        "use": "sig",
        "alg": "RS256",
        "e": _base64(exponent),
        "n": _base64(modulus),
    }


def _encoded(document: dict[str, Any]) -> str:
    return _base64(json.dumps(document).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
