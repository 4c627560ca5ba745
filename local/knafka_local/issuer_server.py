"""The issuer's public half on loopback, over TLS, as receivers ask an API server for it.

    GET /.well-known/openid-configuration    its name
    GET /openid/v1/jwks                      its public key

The receivers' folder has what a projected volume has on a cluster: the CA, made anew at each start,
and a token, which nobody looks at here.
Not here: signing anything (`issuer`).
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aiohttp import web

from knafka import settings
from knafka.clients.api_server import CA, TOKEN
from knafka.clients.api_server_keys import DISCOVERY, JWKS
from knafka_local.children import listen, port_of
from knafka_local.issuer import Issuer
from knafka_operator.runtime.webhooks import make_certificate

NAME: Final = "localhost"
"""In the certificate; it is looked up as loopback, where we listen."""


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Mapping[str, str]]:
    """Serve the issuer of this folder, made if there is none; gives what its receivers' environment
    needs to know of it. Raises `BadIssuer`."""
    issuer = Issuer.made_in(folder)
    answers = {DISCOVERY: issuer.discovery, JWKS: issuer.jwks}

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=answers[request.path], content_type="application/json")

    application = web.Application()
    application.add_routes([web.get(path, answer) for path in answers])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    with listen() as listener:
        try:
            await web.SockSite(runner, listener, ssl_context=_tls(folder)).start()
            yield {
                settings.OIDC_URL: f"https://{NAME}:{port_of(listener)}",
                settings.OIDC_FOLDER: str(folder),
            }
        finally:
            await runner.cleanup()  # before its socket is closed


def _tls(folder: Path) -> ssl.SSLContext:
    """Those files that receivers read are written, too."""
    pem = make_certificate(NAME, datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = folder / "tls.key"
    for file, text in {
        folder / "tls.crt": pem["tls.crt"],
        key: pem["tls.key"],
        folder / CA: pem["ca.crt"],
        folder / TOKEN: "nobody looks at it",
    }.items():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(text)
    context.load_cert_chain(folder / "tls.crt", key)
    key.unlink()
    return context
