"""The port by which a dispatcher posts an event to a destination.

`knafka.clients.http.http_subscriber` implements `Subscriber` over HTTP/1.1; tests use an
implementation in memory. Not here: retries, redirects, proxies, and the meaning of a status
(`core.delivery`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from knafka.core.documents import holds_credentials, shown_url
from knafka.core.errors import InvalidDocument

_USUAL_PORTS = {"http": 80, "https": 443}
_match_visible = re.compile(r"[\x21-\x7e]+").fullmatch
"""Matches text of visible ASCII characters only."""
_match_host = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]*:[0-9a-f:.]*").fullmatch
"""Matches a host name, or the characters of an IP address."""


class HttpOrigin(NamedTuple):
    """The scheme, host, port and trusted certificates of a target. Posts to one origin share
    connections."""

    tls: bool
    """Whether the scheme is https, not http."""
    host: str
    port: int
    ca_certs: str | None
    """PEM to trust beside the system's; None: the system's only."""

    def __str__(self) -> str:
        """Return `host:port`, without the scheme's usual port and with brackets around an IPv6
        address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        has_usual_port = self.port == _USUAL_PORTS["https" if self.tls else "http"]
        return host if has_usual_port else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """A destination's URL, parsed once; the caller keeps it for every attempt."""

    url: str
    origin: HttpOrigin
    start: bytes
    """Request line and Host header, ready for the wire."""
    problem: str = ""
    """Why no event can be posted to this target; empty if events can be."""
    audience: str | None = None
    """Audience of the token that the target wants; None: it wants none."""

    @staticmethod
    def parse(url: str, ca_certs: str | None = None, audience: str | None = None) -> Target:
        """Parse an absolute URL; its fragment is dropped, as it is never sent. `ca_certs`: PEM to
        trust besides the system's certificates. `audience`: that of the token which the target
        wants; None: it wants no token.

        A target to which no event can be posted, such as one with another scheme than http or
        https, has a `problem`. Raises `InvalidDocument` for a URL that isn't absolute, that
        `urlsplit` can't read, or that holds credentials; and for a character other than visible
        ASCII, as it could end the request line.
        """
        if not _match_visible(url):
            raise _invalid_url_error(url, "holds a space, a control or a non-ASCII character")
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError as error:
            raise _invalid_url_error(url, f"can't be read: {error}") from None
        if not parts.scheme or not host:
            raise _invalid_url_error(url, "is not absolute")
        if holds_credentials(parts):
            raise _invalid_url_error(url, "holds credentials, which belong in a Secret")
        try:
            port = parts.port
            host.encode("idna")  # it isn't needed, but connecting would fail for the same reason
        except ValueError as error:
            return _unusable_target(url, f"the URL {url!r} can't be read: {error}")
        if parts.scheme not in _USUAL_PORTS:
            return _unusable_target(url, f"unsupported scheme {parts.scheme}: want http or https")
        if not _match_host(host) or port == 0:
            return _unusable_target(url, f"the URL {url!r} has no usable host and port")
        port = port or _USUAL_PORTS[parts.scheme]
        origin = HttpOrigin(parts.scheme == "https", host, port, ca_certs)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        start = f"POST {path} HTTP/1.1\r\nhost: {origin}\r\n".encode()
        return Target(url, origin, start, audience=audience)


def _unusable_target(url: str, problem: str) -> Target:
    """Return the target of a URL to which no event can be posted; posts to it fail with
    `problem`."""
    return Target(url, HttpOrigin(False, "", 0, None), b"", problem)


def _invalid_url_error(url: str, problem: str) -> InvalidDocument:
    """Return the error for an invalid URL; in the error's text, `problem` follows the URL."""
    return InvalidDocument("", f"the URL {shown_url(url)} {problem}")


class Response(NamedTuple):
    """A complete final response; header names are in lower case, headers in the order received."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    cut: bool = False
    """Whether the body was longer than `body`, which is its beginning."""

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of the header `name` (in lower case); None: there is no such
        header."""
        return next((value for header, value in self.headers if header == name), None)


class Subscriber(Protocol):
    """Takes events over HTTP: a Trigger's subscriber, or a dead letter sink."""

    async def post(self, target: Target, head: bytes, body: bytes, timeout: float) -> Response:
        """Make one attempt: send a POST with the header lines `head` (each ending in CRLF) and the
        body, and return the whole response, whatever its status. Raises `DeliveryError` if there is
        no response, at the latest after `timeout` seconds."""
        ...

    async def close(self) -> None:
        """Close every connection. Posts under way, and later ones, fail with the reason
        `broken`."""
        ...
