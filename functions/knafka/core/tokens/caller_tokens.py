"""Makes and checks the tokens by which a function recognises its operator's requests (decision
0038). Pure.

    key of the installation, URL of a function --HMAC-SHA-256--> token, which the operator sends
    token --SHA-256--> verifier, which is in the function's environment

A verifier is no secret: a token of 256 bits can't be found from its digest. So a function's
Service, environment and image contain nothing to call it with. A token is valid for one function
only: a server that impersonates a function learns only that function's token.

Not here: storing and rotating keys (the operator's `function_keys`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from knafka.core.errors import InvalidDocument
from knafka.core.tokens.bearer import SCHEME, bearer_token

CALLERS: Final = "KNAFKA_CALLERS"
"""Environment variable with the verifiers of the tokens that a function accepts."""
SCRAPERS: Final = "KNAFKA_SCRAPERS"
"""Environment variable with the verifiers of the tokens that a function accepts for its metrics."""
METRICS_TOKENS: Final = "KNAFKA_METRICS_TOKENS"
"""Environment variable of the operator and the console with the tokens for metrics."""
MAX_HEADER_BYTES: Final = 256
"""Longest `Authorization` header that is read, in bytes; `Bearer` and a token have 50."""
MAX_VERIFIERS: Final = 16
"""Most verifiers, or tokens for metrics, in one variable. Usually there is one, and two while one
key replaces another."""

REFUSED: Final = "only this function's operator is answered here: want its token in Authorization"
"""Text of the 401 for callers without a token."""

NO_SCRAPER: Final = "metrics want one of the installation's tokens (KNAFKA_METRICS_TOKENS)"
"""Text of the 401 for requests for metrics without a token."""

_match_token: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,200}").fullmatch
_match_verifier: Final = re.compile(r"[0-9a-f]{64}").fullmatch
_PURPOSE: Final = b"knafka caller token\n"
"""Precedes the URL from which a token is made, so that the key's other uses never make a token."""


def token_of(key: bytes, url: str) -> str:
    """Return the token with which this installation's operator calls the function at `url`; `key`
    is the installation's secret."""
    digest = hmac.digest(key, _PURPOSE + url.encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def verifier_of(token: str) -> str:
    """Return the verifier by which a function recognises this token: the token's SHA-256 digest in
    hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()


def verifiers_of(tokens: Iterable[str]) -> str:
    """Return the value of the variable `CALLERS` or `SCRAPERS` with which a function accepts these
    tokens: their verifiers, comma-separated."""
    return ",".join(map(verifier_of, tokens))


def parse_metrics_tokens(text: str) -> tuple[str, ...]:
    """Parse the comma-separated tokens for metrics; an empty text has no tokens. Raises
    `InvalidDocument`, whose text shows no token, for an invalid token or more than
    `MAX_VERIFIERS`."""
    metrics_tokens = tuple(token.strip() for token in text.split(",") if token.strip())
    if len(metrics_tokens) > MAX_VERIFIERS or not all(map(_match_token, metrics_tokens)):
        problem = f"invalid value: want up to {MAX_VERIFIERS} tokens of 16 to 200 characters each"
        raise InvalidDocument(METRICS_TOKENS, f"{problem}, such as `openssl rand -hex 32` gives")
    return metrics_tokens


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the token in a request's `Authorization: Bearer`; empty if there is no token, if there
    are several, or if the token is too long to be ours."""
    token = bearer_token(headers)
    if token is None or len(SCHEME) + len(token) > MAX_HEADER_BYTES:
        return ""
    return token.decode("latin-1")


@dataclass(frozen=True, slots=True)
class Callers:
    """The callers that a function answers, by the verifiers of their tokens."""

    verifiers: Sequence[bytes] = ()
    """Digests of tokens; empty: everybody is answered."""

    @classmethod
    def parse(cls, text: str, variable: str = CALLERS) -> Callers:
        """Parse comma-separated verifiers in hexadecimal; an empty text means that everybody is
        answered. Raises `InvalidDocument` that names `variable`, the environment variable with the
        text, for an invalid verifier or more than `MAX_VERIFIERS`."""
        verifiers = [digest.strip() for digest in text.split(",") if digest.strip()]
        if len(verifiers) > MAX_VERIFIERS or not all(map(_match_verifier, verifiers)):
            problem = f"invalid value: want up to {MAX_VERIFIERS} SHA-256 digests in hexadecimal"
            raise InvalidDocument(variable, problem)
        return cls(tuple(bytes.fromhex(digest) for digest in verifiers))

    @classmethod
    def of(cls, tokens: Iterable[str]) -> Callers:
        """Return the `Callers` that answer only requests with one of these tokens; everybody if
        there are none."""
        return cls(tuple(bytes.fromhex(verifier_of(token)) for token in tokens))

    def accepts(self, bearer: str) -> bool:
        """Whether a request with the token `bearer` is answered (empty: the request has no token);
        always True without `verifiers`. The check takes equally long for wrong and right tokens.
        """
        if not self.verifiers:
            return True
        digest = hashlib.sha256(bearer.encode("utf-8", "replace")).digest()
        # The list makes `any` compare all verifiers, so that the time taken is always the same.
        return any([hmac.compare_digest(digest, verifier) for verifier in self.verifiers])


EVERYBODY: Final = Callers()
"""The callers of a function without verifiers."""
