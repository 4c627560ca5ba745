"""The address of a request, which says for which Broker or KafkaChannel it is.

    An address is the percent-decoded path (`/{namespace}/{name}`), or, if the path is only `/`, the
    host as `host:{host}` (KN-CHN-11). A receiver that always serves the same Broker serves it at
    any host.

Not here: routes (`ingest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias
from urllib.parse import unquote_to_bytes

HttpHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
"""A request's headers, names in any letter case."""

ROOTS: Final = frozenset({b"", b"/"})
"""Paths at which the request's host says which KafkaChannel is meant."""
_BY_HOST: Final = b"host:"
"""Begins the address of a host."""
_HOST: Final = b"host"
_ORIGINAL_HOST: Final = b"k-original-host"
"""Knative's header with the host that the sender requested, as a proxy may have changed `Host`."""
_HOST_HEADER_LENGTHS: Final = frozenset({len(_HOST), len(_ORIGINAL_HOST)})
"""Lengths of the two headers' names: comparing these first is faster."""


def address_of(path: bytes, headers: HttpHeaders) -> bytes:
    """Return the address of a request: its path, or its host if the path is empty or `/`."""
    return path if path not in ROOTS else address_of_host(_host_of(headers))


def address_of_host(host: bytes) -> bytes:
    """Return the address of requests to the root path of this host."""
    return _BY_HOST + host


def is_host(address: bytes) -> bool:
    """Whether an address is a host's; no path of a request begins with `host:`."""
    return address.startswith(_BY_HOST)


def path_of(url: bytes) -> bytes:
    """Return the percent-decoded path of a request's target, `url`, without the query."""
    if b"?" in url:
        url = url[: url.index(b"?")]
    if not url.startswith(b"/"):
        url = _origin_form(url)
    return decode_path(url) if b"%" in url else url


def decode_path(path: bytes) -> bytes:
    """Return the percent-decoded path. A path with an encoded slash is returned undecoded, so that
    it matches no route: decoded, the slash would separate segments, which it must not."""
    return path if b"%2f" in path.lower() else unquote_to_bytes(path)


def _host_of(headers: HttpHeaders) -> bytes:
    """Return the requested host in lower case and without its port: the host in `K-Original-Host`,
    else the one in `Host`; empty if neither header is there."""
    named_host = b""
    for name, value in headers:
        if len(name) in _HOST_HEADER_LENGTHS:
            name = name.lower()
            if name == _ORIGINAL_HOST:
                named_host = value
                break
            if name == _HOST:
                named_host = value
    host = named_host.strip().lower()
    # The last colon begins a port only if digits, or nothing, follow: an IPv6 address has colons.
    host_name, colon, port = host.rpartition(b":")
    return host_name if colon and (port.isdigit() or not port) else host


def _origin_form(url: bytes) -> bytes:
    """Return the path of an absolute-form target (`http://host/path`), which HTTP/1.1 servers must
    accept; any other text is returned unchanged."""
    _, separator, host_and_path = url.partition(b"://")
    return b"/" + host_and_path.partition(b"/")[2] if separator else url
