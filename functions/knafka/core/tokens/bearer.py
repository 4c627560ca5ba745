"""Bearer tokens in a request's headers (RFC 6750, 2.1). Pure.

Not here: checking a token (`caller_tokens`, `auth_tokens`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SCHEME: Final = b"bearer "
"""Begins the value of the header, in any case."""
_AUTHORIZATION: Final = b"authorization"


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the token in the header `Authorization: Bearer TOKEN`, without the whitespace around
    it (RFC 9110, 5.5 and 11.4). None: there is no such header, or there are several `Authorization`
    headers, so that it is unclear which one is the sender's."""
    credentials: bytes | None = None
    for name, value in headers:
        if len(name) == len(_AUTHORIZATION) and name.lower() == _AUTHORIZATION:
            if credentials is not None:
                return None
            credentials = value
    if credentials is None or credentials[: len(SCHEME)].lower() != SCHEME:
        return None
    return credentials[len(SCHEME) :].strip(b" \t")
