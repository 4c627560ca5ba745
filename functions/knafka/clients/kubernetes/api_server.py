"""Requests to the API server, with the pod's own token and the cluster's CA.

The files with token and CA are read for each request, as they change. Redirects are not followed
and no proxy is used, as they would get this pod's token.

Not here: which paths are requested, and what for (`api_server_keys`, `api_server_tokens`).
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Final, TypeAlias

from knafka.core.errors import InvalidDocument

TOKEN: Final = "token"
"""File with the pod's own token, in the folder with its credentials."""
CA: Final = "ca.crt"
"""File with the cluster's certificate authority, in the same folder."""
API_SERVER_TIMEOUT: Final = 5.0
"""Most seconds for connecting, and for each wait for a part of the response."""
MAX_RESPONSE_BYTES: Final = 256 * 1024
"""Most bytes of a response's body; a longer one is refused."""
ACCEPT: Final = "application/json, application/jwk-set+json"
"""`Accept` header of all requests. The API server serves its keys only as
`application/jwk-set+json`, and answers 406 to a request for them that doesn't accept this type."""

Ask: TypeAlias = Callable[[str, "bytes | None"], bytes]
"""Sends a request to a path, and returns the response's body: a POST with this JSON document, or a
GET if the document is None. Blocks. Raises `OSError`."""


def ask_with_credentials(url: str, folder: Path) -> Ask:
    """Return the function that sends requests to the API server at `url` with the credentials in
    `folder`. Raises `InvalidDocument` if the URL isn't https."""
    if not url.startswith("https://"):
        raise InvalidDocument("", f"invalid value: {url:.200}: want https://HOST")

    def ask(path: str, document: bytes | None) -> bytes:
        """Send a GET, or a POST with `document` unless that is None, and return the response's
        body. Raises `OSError` if the request fails or the body exceeds `MAX_RESPONSE_BYTES`."""
        token = (folder / TOKEN).read_text().strip()
        context = ssl.create_default_context(cafile=str(folder / CA))
        headers = {"authorization": f"Bearer {token}", "accept": ACCEPT}
        if document is not None:
            headers["content-type"] = "application/json"
        request = urllib.request.Request(url.rstrip("/") + path, document, headers)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=context),
            _NoRedirection(),
        )
        try:
            with opener.open(request, timeout=API_SERVER_TIMEOUT) as response:
                body: bytes = response.read(MAX_RESPONSE_BYTES + 1)
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection
            raise
        except http.client.HTTPException as error:  # the response is cut, or is no HTTP
            # The cause is left out, as it may hold a part of the body.
            raise OSError(f"it answered no whole response ({type(error).__name__})") from None
        if len(body) > MAX_RESPONSE_BYTES:
            raise OSError(f"{path} has more than {MAX_RESPONSE_BYTES} bytes")
        return body

    return ask


def own_audiences(folder: Path) -> Set[str]:
    """Return the audiences in this pod's own token, whose file is in `folder`. The API server
    accepts tokens with these audiences. Raises `OSError` if the token can't be read or has no
    `aud`."""
    try:
        # The token is a JWT: header, claims and signature, joined by dots.
        encoded_claims = (folder / TOKEN).read_text().strip().split(".")[1]
        # JWT leaves the padding out; more padding than needed does no harm.
        audiences = json.loads(base64.urlsafe_b64decode(encoded_claims + "=="))["aud"]
        return {audiences} if isinstance(audiences, str) else frozenset(audiences)
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):
        # The cause is left out, as its text may contain a part of the token.
        raise OSError("this pod's own token names no audience") from None


def describe_request_error(error: Exception) -> str:
    """Return the reason why a request to the API server failed, as text. It contains nothing of the
    response's body, which may hold a part of a token."""
    if isinstance(error, urllib.error.HTTPError):
        return f"it answered {error.code}"
    return str(error) or type(error).__name__


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Refuses redirections, as the server that they lead to would get this pod's token."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        """Return None, so that urllib raises the redirection as an `HTTPError`."""
        return None
