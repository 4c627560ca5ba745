"""The API server, asked by a function's pod with its own token and the cluster's CA.

Files of the folder are read for each request, as they change. No redirection is followed and no
proxy is used: whoever is asked gets this pod's token.

Not here: what is asked (`api_server_keys`, `api_server_tokens`).
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Final, TypeAlias

from knafka.core.errors import InvalidDocument

TOKEN: Final = "token"
CA: Final = "ca.crt"
"""Files of the folder with the pod's own credentials."""
TIMEOUT: Final = 5.0
MAX_BYTES: Final = 256 * 1024
ACCEPT: Final = "application/json, application/jwk-set+json"
"""`Accept` header of a request; the keys come in the second type only, and a client that doesn't
accept it gets 406."""

Ask: TypeAlias = Callable[[str, "bytes | None"], bytes]
"""The body of the answer at a path, to GET, or to POST of JSON; blocks. Raises `OSError`."""


def ask_with_credentials(url: str, folder: Path) -> Ask:
    """Ask the API server at `url` with what is in `folder`. Raises `InvalidDocument` for another
    URL than one of HTTPS."""
    if not url.startswith("https://"):
        raise InvalidDocument("", f"invalid value: {url:.200}: want https://HOST")

    def ask(path: str, document: bytes | None) -> bytes:
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
            with opener.open(request, timeout=TIMEOUT) as response:
                body: bytes = response.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection
            raise
        if len(body) > MAX_BYTES:
            raise OSError(f"{path} has more than {MAX_BYTES} bytes")
        return body

    return ask


def own_audiences(folder: Path) -> Set[str]:
    """Return the audiences of this pod's own token, which are the API server's. Raises `OSError` if
    the token names none."""
    try:
        claims = (folder / TOKEN).read_text().strip().split(".")[1]
        audiences = json.loads(base64.urlsafe_b64decode(claims + "=="))["aud"]
        return {audiences} if isinstance(audiences, str) else frozenset(audiences)
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):
        # Without its cause, whose text may have a part of the token.
        raise OSError("this pod's own token names no audience") from None


def shown(error: Exception) -> str:
    """Why the API server gave nothing: no word of its answer."""
    if isinstance(error, urllib.error.HTTPError):
        return f"it answered {error.code}"
    return str(error) or type(error).__name__


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Refuses redirections, as the server redirected to would get this pod's token."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None
