"""Tokens of service accounts from the API server: TokenRequest, for one account and one audience.

    POST /api/v1/namespaces/NAMESPACE/serviceaccounts/NAME/token

The rights of the pod's own account decide for which accounts it gets tokens (decision 0040). A
token's lifetime is the difference of two times in the response, both of the API server's clock.

Not here: caching and renewing tokens (`core.tokens.sink_tokens`).
"""

from __future__ import annotations

import asyncio
import re
import urllib.error
from collections.abc import Callable, Set
from datetime import datetime
from typing import Final

import msgspec

from knafka.clients.kubernetes.api_server import Ask, describe_request_error
from knafka.core.tokens.sink_tokens import EXPIRATION, Account, IssuedToken
from knafka.ports.account_tokens import TokenUnavailable

# The patterns of a namespace's name and of a service account's; they return None for another text.
_match_namespace: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?").fullmatch
_match_name: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?").fullmatch

_STATUS_HINTS: Final = {
    401: "this pod's own token isn't taken",
    403: "this pod's service account may not create serviceaccounts/token of it",
    404: "there is no such service account",
}
"""Likely causes of an error, by the status of the API server's answer."""


class _Metadata(msgspec.Struct, rename="camel"):
    """Metadata of a TokenRequest: when the token was issued."""

    creation_timestamp: datetime | None = None


class _Spec(msgspec.Struct, rename="camel"):
    """Spec of a TokenRequest in the API server's answer: the seconds for which the token is valid,
    which may be more or fewer than were requested."""

    expiration_seconds: float = EXPIRATION


class _Status(msgspec.Struct, rename="camel"):
    """Status of a TokenRequest: the token, and when it expires."""

    token: str
    expiration_timestamp: datetime | None = None


class _Answer(msgspec.Struct):
    """The API server's answer to a TokenRequest."""

    status: _Status
    spec: _Spec = msgspec.field(default_factory=_Spec)
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class ApiServerTokens:
    """`ports.account_tokens.AccountTokens` of Kubernetes."""

    def __init__(self, ask: Ask, own_audiences: Callable[[], Set[str]]) -> None:
        """`ask` sends requests to the API server. `own_audiences` returns the API server's
        audiences, or raises `OSError`. No token is requested for these audiences, as a destination
        that got such a token could use it at the API server."""
        self._ask = ask
        self._own_audiences = own_audiences

    async def issue(self, account: Account, audience: str) -> IssuedToken:
        """Request a token of `account` for `audience` from the API server. Raises
        `TokenUnavailable`."""
        if _match_namespace(account.namespace) is None or _match_name(account.name) is None:
            # The names become parts of a path.
            raise TokenUnavailable("its name is no service account's")
        path = f"/api/v1/namespaces/{account.namespace}/serviceaccounts/{account.name}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": EXPIRATION},
        }
        try:
            if audience in self._own_audiences():
                raise TokenUnavailable(
                    "that is the API server's own audience, for which no destination gets a token"
                )
            body = await asyncio.to_thread(self._ask, path, msgspec.json.encode(request))
        except OSError as error:
            raise TokenUnavailable(f"the API server: {_failure_text(error)}") from None
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            # The cause is left out, as its text may contain a part of a token.
            raise TokenUnavailable("the API server answered with no token") from None
        token = IssuedToken(answer.status.token.encode(), _lifetime_seconds(answer))
        if not token.is_usable:
            raise TokenUnavailable(
                "the API server answered with a token that expires too soon, is too long or has "
                "characters that a header can't have"
            )
        return token


def _failure_text(error: OSError) -> str:
    """Return why the API server issued no token, with a likely cause if `_STATUS_HINTS` has one for
    the status of its answer."""
    failure = describe_request_error(error)
    if isinstance(error, urllib.error.HTTPError) and error.code in _STATUS_HINTS:
        return f"{failure}: {_STATUS_HINTS[error.code]}"
    return failure


def _lifetime_seconds(answer: _Answer) -> float:
    """Return the token's lifetime in seconds: from its creation to its expiration if the answer has
    both times, else the seconds that its spec names."""
    created, expires = answer.metadata.creation_timestamp, answer.status.expiration_timestamp
    if created is not None and expires is not None:
        try:
            return (expires - created).total_seconds()
        except TypeError:  # only one of them has a time zone
            pass
    return answer.spec.expiration_seconds
