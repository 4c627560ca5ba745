"""A request's address: what finds the Broker or KafkaChannel that it is for.

    /{namespace}/{name}   its path, percent-decoded
    host:{host}           the name of a host, where the path is only `/` (KN-CHN-11); of any host,
                          where a receiver serves one Broker for good

Not here: what is at an address (`ingest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias
from urllib.parse import unquote_to_bytes

HttpHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]

ROOTS: Final = frozenset({b"", b"/"})
"""Paths that leave it to the host."""
_BY_HOST: Final = b"host:"
_HOST: Final = b"host"
_ORIGINAL_HOST: Final = b"k-original-host"
"""Knative's: the host that was asked for, where what stands between has written another."""
_LENGTHS: Final = frozenset({len(_HOST), len(_ORIGINAL_HOST)})


def address_of(path: bytes, headers: HttpHeaders) -> bytes:
    """The address of a request to this path."""
    return path if path not in ROOTS else address_of_host(_host_of(headers))


def address_of_host(host: bytes) -> bytes:
    return _BY_HOST + host


def is_host(address: bytes) -> bool:
    """Whether it is a host's: no path of a request begins so."""
    return address.startswith(_BY_HOST)


def path_of(url: bytes) -> bytes:
    """The path of a request's target, without a query and percent-decoded."""
    if b"?" in url:
        url = url[: url.index(b"?")]
    if not url.startswith(b"/"):
        url = _origin_form(url)
    return decoded_path(url) if b"%" in url else url


def decoded_path(path: bytes) -> bytes:
    """The path that percent-encoding stands for. An encoded slash is none between segments, so a
    path with one is left as it is, and leads nowhere."""
    return path if b"%2f" in path.lower() else unquote_to_bytes(path)


def _host_of(headers: HttpHeaders) -> bytes:
    """The host that was asked for, in lower case and without a port; empty if none is named."""
    found = b""
    for name, value in headers:
        if len(name) in _LENGTHS:
            name = name.lower()
            if name == _ORIGINAL_HOST:
                found = value
                break
            if name == _HOST:
                found = value
    host = found.strip().lower()
    name, colon, port = host.rpartition(b":")
    return name if colon and (port.isdigit() or not port) else host


def _origin_form(url: bytes) -> bytes:
    """The path of an absolute-form target, which HTTP/1.1 servers must accept."""
    _, found, rest = url.partition(b"://")
    return b"/" + rest.partition(b"/")[2] if found else url
