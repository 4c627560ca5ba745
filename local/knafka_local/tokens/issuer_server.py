"""Serves the issuer on loopback over TLS, with the paths of an API server.

    GET /.well-known/openid-configuration                         its name
    GET /openid/v1/jwks                                           its public key
    POST /api/v1/namespaces/NAMESPACE/serviceaccounts/NAME/token  a token, as for dispatchers

The folder holds what a projected volume holds on a cluster: the CA and a token, both new at each
start. The server issues tokens only to a caller that shows the token in the folder: every account
of the machine can reach loopback, but only the user can read the folder.
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
from knafka.clients.kubernetes.api_server import CA, TOKEN
from knafka.clients.kubernetes.api_server_keys import DISCOVERY, JWKS
from knafka_client.sockets import listen, port_of
from knafka_local.tokens.accounts import ServiceAccount
from knafka_local.tokens.issuer import ISSUER, Issuer
from knafka_operator.webhooks.server import make_certificate

ISSUER_HOST: Final = "localhost"
"""The host name in the certificate; it resolves to loopback, where the server listens."""
TOKEN_REQUEST: Final = "/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
"""The path of Kubernetes' TokenRequest API."""
FUNCTIONS_ACCOUNT: Final = ServiceAccount("knafka", "functions")
"""The account of functions when they ask for tokens; only the audience of their token is
checked."""
FUNCTIONS_TOKEN_LIFETIME: Final = timedelta(days=365)
"""How long the functions' token is valid; a new one is made at each start."""
LONGEST_TOKEN_LIFETIME: Final = 24 * 3600.0
"""The longest lifetime of a requested token, in seconds."""


class _TokenSpec(msgspec.Struct, rename="camel"):
    """The spec of Kubernetes' TokenRequest."""

    audiences: list[str]
    """The audiences that shall accept the token."""
    expiration_seconds: float = 3600.0
    """The requested lifetime of the token; at most `LONGEST_TOKEN_LIFETIME` is granted."""


class _TokenRequest(msgspec.Struct):
    """Kubernetes' TokenRequest (authentication.k8s.io/v1)."""

    spec: _TokenSpec


@contextlib.asynccontextmanager
async def serve_issuer(folder: Path) -> AsyncIterator[Mapping[str, str]]:
    """Serve the issuer whose key is in `folder` while the context is open; without a key, make one.

    Yields the environment variables by which functions (receivers and dispatchers) find it. Raises
    `BadIssuer`.
    """
    issuer = Issuer.load_or_create(folder)
    documents = {DISCOVERY: issuer.discovery, JWKS: issuer.jwks}

    async def serve_document(request: web.Request) -> web.Response:
        """Answer with the discovery document or the public key, by the request's path."""
        return web.Response(body=documents[request.path], content_type="application/json")

    functions_token = issuer.token(
        FUNCTIONS_ACCOUNT, [ISSUER], FUNCTIONS_TOKEN_LIFETIME.total_seconds()
    )

    async def issue_token(request: web.Request) -> web.Response:
        """Answer a TokenRequest, as `_answer_token_request` does."""
        return await _answer_token_request(request, issuer, functions_token)

    application = web.Application()
    application.add_routes([web.get(path, serve_document) for path in documents])
    application.add_routes([web.post(TOKEN_REQUEST, issue_token)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    with listen() as listener:
        try:
            await web.SockSite(
                runner, listener, ssl_context=_make_tls_context(folder, functions_token)
            ).start()
            yield {
                settings.OIDC_URL: f"https://{ISSUER_HOST}:{port_of(listener)}",
                settings.OIDC_FOLDER: str(folder),
            }
        finally:
            await runner.cleanup()  # before its socket is closed


async def _answer_token_request(
    request: web.Request, issuer: Issuer, functions_token: str
) -> web.Response:
    """Answer a TokenRequest with 201 and a token that `issuer` signs.

    Raises aiohttp's error for 401 unless the request shows `functions_token`, and for 400 if its
    body is no TokenRequest.
    """
    authorization = request.headers.get("authorization", "")
    if not hmac.compare_digest(authorization.encode(), f"Bearer {functions_token}".encode()):
        raise web.HTTPUnauthorized
    try:
        spec = msgspec.json.decode(await request.read(), type=_TokenRequest).spec
    except msgspec.MsgspecError:
        raise web.HTTPBadRequest from None
    account = ServiceAccount(request.match_info["namespace"], request.match_info["name"])
    lifetime = min(spec.expiration_seconds, LONGEST_TOKEN_LIFETIME)
    now = datetime.now(UTC)
    token = issuer.token(account, spec.audiences, lifetime, now.timestamp())
    expires = now + timedelta(seconds=lifetime)
    status = {"token": token, "expirationTimestamp": expires.isoformat()}
    metadata = {"creationTimestamp": now.isoformat()}
    return web.json_response({"metadata": metadata, "status": status}, status=201)


def _make_tls_context(folder: Path, token: str) -> ssl.SSLContext:
    """Return the server's TLS context, with a new certificate. Writes the CA and the token, which
    functions read, to the folder; the server's key is removed from it again."""
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
