"""The issuer on loopback, over TLS, as functions ask an API server for it.

    GET /.well-known/openid-configuration                         its name
    GET /openid/v1/jwks                                           its public key
    POST /api/v1/namespaces/NAMESPACE/serviceaccounts/NAME/token  a token, as for dispatchers

The functions' folder has what a projected volume has on a cluster: the CA and a token, both made
anew at each start. Only who shows that token is given others: every account of the machine reaches
loopback, and the folder is the user's.
Not here: signing anything (`issuer`).
"""

from __future__ import annotations

import contextlib
import hmac
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from knafka import settings
from knafka.clients.api_server import CA, TOKEN
from knafka.clients.api_server_keys import DISCOVERY, JWKS
from knafka_client.sockets import listen, port_of
from knafka_local.tokens.accounts import ServiceAccount
from knafka_local.tokens.issuer import ISSUER, Issuer
from knafka_operator.runtime.webhooks import make_certificate

ISSUER_HOST: Final = "localhost"
"""In the certificate; it is looked up as loopback, where we listen."""
TOKEN_REQUEST: Final = "/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
FUNCTIONS_ACCOUNT: Final = ServiceAccount("knafka", "functions")
"""As whom they ask: it is the audience of that token that counts, the issuer's own."""
FUNCTIONS_TOKEN_LIFETIME: Final = timedelta(days=365)
"""Of that token, which is made anew at each start."""
LONGEST_TOKEN_LIFETIME: Final = 24 * 3600.0
"""Seconds that a token is given for at most."""


class _TokenSpec(msgspec.Struct, rename="camel"):
    audiences: list[str]
    expiration_seconds: float = 3600.0


class _TokenRequest(msgspec.Struct):
    spec: _TokenSpec


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Mapping[str, str]]:
    """Serve the issuer of this folder, made if there is none; gives what the functions' environment
    needs to know of it. Raises `BadIssuer`."""
    issuer = Issuer.made_in(folder)
    answers = {DISCOVERY: issuer.discovery, JWKS: issuer.jwks}

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=answers[request.path], content_type="application/json")

    own = issuer.token(FUNCTIONS_ACCOUNT, [ISSUER], FUNCTIONS_TOKEN_LIFETIME.total_seconds())

    async def give(request: web.Request) -> web.Response:
        shown = request.headers.get("authorization", "")
        if not hmac.compare_digest(shown.encode(), f"Bearer {own}".encode()):
            raise web.HTTPUnauthorized
        try:
            spec = msgspec.json.decode(await request.read(), type=_TokenRequest).spec
        except msgspec.MsgspecError:
            raise web.HTTPBadRequest from None
        account = ServiceAccount(request.match_info["namespace"], request.match_info["name"])
        lifetime = min(spec.expiration_seconds, LONGEST_TOKEN_LIFETIME)
        now = datetime.now(UTC)
        token = issuer.token(account, spec.audiences, lifetime, now.timestamp())
        ends = now + timedelta(seconds=lifetime)
        status = {"token": token, "expirationTimestamp": ends.isoformat()}
        metadata = {"creationTimestamp": now.isoformat()}
        return web.json_response({"metadata": metadata, "status": status}, status=201)

    application = web.Application()
    application.add_routes([web.get(path, answer) for path in answers])
    application.add_routes([web.post(TOKEN_REQUEST, give)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    with listen() as listener:
        try:
            await web.SockSite(runner, listener, ssl_context=_tls(folder, own)).start()
            yield {
                settings.OIDC_URL: f"https://{ISSUER_HOST}:{port_of(listener)}",
                settings.OIDC_FOLDER: str(folder),
            }
        finally:
            await runner.cleanup()  # before its socket is closed


def _tls(folder: Path, token: str) -> ssl.SSLContext:
    """The files that functions read are written, too."""
    pem = make_certificate(ISSUER_HOST, datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = folder / "tls.key"
    for file, text in {
        folder / "tls.crt": pem["tls.crt"],
        key: pem["tls.key"],
        folder / CA: pem["ca.crt"],
        folder / TOKEN: token,
    }.items():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(text)
    context.load_cert_chain(folder / "tls.crt", key)
    key.unlink()
    return context
