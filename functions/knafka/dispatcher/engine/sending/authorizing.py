"""Authorizing: adds a bearer token to each request whose destination has an audience (KN-DP).

    audience of the target --> its Egress's token for it --> Authorization: Bearer --> the target
    401                    --> another token at once, and the same attempt goes on with it

A token is sent only to the destination that it is for: redirects are not followed
(`ports.subscriber`), and the token is removed from a response that repeats it. Without a token no
request is sent: no attempt has taken place, and the event waits.

Imported only where an Egress has such a destination. Not here: when a token is renewed
(`core.tokens.sink_tokens`), and who issues it (`ports.account_tokens`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable
from typing import Final

from knafka.core.contract import Egress
from knafka.core.delivery import Reason
from knafka.core.errors import DeliveryError
from knafka.core.tokens.sink_tokens import Account, SinkToken
from knafka.observability import RateLimitedFilter
from knafka.ports.account_tokens import AccountTokens, TokenUnavailable
from knafka.ports.subscriber import Response, Subscriber, Target

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter())

MAX_SINK_TOKENS: Final = 4096
"""Most tokens that are cached; the oldest is removed first. An Egress needs three at most."""
HIDDEN: Final = b"(token)"
"""Text that replaces a token in a response that repeats the token."""

_AUTHORIZATION: Final = re.compile(rb"(?im)^authorization[ \t]*:[^\r\n]*\r\n")
"""A header line with the header Authorization."""


class _CachedToken:
    """The token of one account for one audience, and the request for the next token."""

    __slots__ = ("problem", "request", "token")

    def __init__(self, jitter: float) -> None:
        """Begin without a token; `jitter`, from 0 to 1, varies when it is renewed."""
        self.token = SinkToken(jitter)
        self.request: asyncio.Task[None] | None = None
        """The request for a token that is under way; None: none is."""
        self.problem = ""
        """Why the last request brought no token; empty if it brought one."""


class SinkTokens:
    """Caches the tokens that this process shows to destinations, for the accounts of all its
    Egresses."""

    def __init__(
        self,
        issuer: AccountTokens | None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Begin with an empty cache. `issuer` None: no API server is configured, so every request
        for a token fails. `clock` returns monotonic seconds; `chance` returns random numbers from 0
        to 1, by which tokens are renewed at different times."""
        self._issuer = issuer
        self._clock = clock
        self._chance = chance
        self._cache: dict[tuple[Account, str], _CachedToken] = {}
        """Cached tokens by account and audience, the oldest entry first."""

    def __len__(self) -> int:
        """Number of cached tokens."""
        return len(self._cache)

    async def token(self, account: Account, audience: str) -> bytes:
        """Return a valid token of `account` for `audience`: the cached one, whose renewal is
        started if it is due, or a new one. Raises `TokenUnavailable`."""
        cached = self._ensure_cached(account, audience)
        if cached.token.is_due(self._clock()):
            self._request_token(cached, account, audience)
        if (value := cached.token.current(self._clock())) is not None:
            return value
        return await self._await_request(cached)

    def note_refusal(self, account: Account, audience: str, refused_token: bytes) -> bool:
        """Note that a destination answered 401 to a request with the token `refused_token` of
        `account` for `audience`. Returns True if a request with another token is worth a try,
        False if the answer stands."""
        return self._ensure_cached(account, audience).token.note_refusal(
            refused_token, self._clock()
        )

    async def replace_token(self, account: Account, audience: str, refused_token: bytes) -> bytes:
        """Return another token of `account` for `audience` than `refused_token`, which the
        destination refused. Raises `TokenUnavailable`."""
        cached = self._ensure_cached(account, audience)
        # Another caller may have replaced the refused token already.
        if cached.token.current(self._clock()) == refused_token:
            if cached.token.is_due(self._clock()):
                self._request_token(cached, account, audience)
            await self._await_request(cached, refused_token)
        return await self.token(account, audience)

    async def close(self) -> None:
        """Cancel all requests for tokens, and wait for their end."""
        requests = [cached.request for cached in self._cache.values() if cached.request is not None]
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    def _ensure_cached(self, account: Account, audience: str) -> _CachedToken:
        """Return the cache entry of this account and audience, creating it if necessary."""
        cached = self._cache.get((account, audience))
        if cached is None:
            if len(self._cache) >= MAX_SINK_TOKENS:
                del self._cache[next(iter(self._cache))]
            cached = self._cache[account, audience] = _CachedToken(self._chance())
        return cached

    def _request_token(self, cached: _CachedToken, account: Account, audience: str) -> None:
        """Start a request for a new token of `account` for `audience`, stored in `cached`, unless
        one is under way."""
        if cached.request is None:
            cached.request = asyncio.create_task(self._renew(cached, account, audience))

    async def _await_request(self, cached: _CachedToken, refused: bytes | None = None) -> bytes:
        """Wait for the request under way, if there is one, and return the valid token. Raises
        `TokenUnavailable` if there is none, or only `refused`, the token that the destination has
        refused (None: it has refused none)."""
        if cached.request is not None:
            # Shielded: other callers wait for the same request.
            await asyncio.shield(cached.request)
        value = cached.token.current(self._clock())
        if value is None or value == refused:
            raise TokenUnavailable(cached.problem or "it was not requested")
        return value

    async def _renew(self, cached: _CachedToken, account: Account, audience: str) -> None:
        """Request a token from the issuer and store it, or store why it was not issued."""
        requested_at = self._clock()
        try:
            if self._issuer is None:
                raise TokenUnavailable("this function has nobody to ask for one (KNAFKA_OIDC_URL)")
            token = await self._issuer.issue(account, audience)
            if not cached.token.store_issued(token, requested_at):
                raise TokenUnavailable("the issued token can't be used")
            cached.problem = ""
        except TokenUnavailable as error:
            self._store_failure(cached, account, audience, str(error))
        except Exception as error:  # a bug of ours; its text may contain the token
            self._store_failure(cached, account, audience, type(error).__name__)
        finally:
            cached.request = None

    def _store_failure(
        self, cached: _CachedToken, account: Account, audience: str, problem: str
    ) -> None:
        """Note in `cached`, and log, that no token was issued because of `problem`."""
        cached.token.note_failure(self._clock())
        cached.problem = f"no token of {account} for {audience:.200}: {problem}"
        log.warning("%s", cached.problem)


class AuthorizedSubscriber:
    """A `Subscriber` that adds a bearer token of one account to requests whose target has an
    audience."""

    def __init__(self, subscriber: Subscriber, tokens: SinkTokens, account: Account | None) -> None:
        """`subscriber` sends the requests, and `tokens` has the tokens of `account`. `account`
        None: the Egress has no service account yet, so requests that need a token fail."""
        self._subscriber = subscriber
        self._tokens = tokens
        self._account = account

    async def post(self, target: Target, head: bytes, body: bytes, timeout: float) -> Response:
        """POST `body` with the header lines `head` to `target`, within `timeout` seconds. If the
        target has an audience, send a token, too, and after a 401 try once more with a new token.
        Raises `DeliveryError`, with `Reason.NO_TOKEN` if there is no token."""
        audience, account = target.audience, self._account
        if audience is None:
            return await self._subscriber.post(target, head, body, timeout)
        if account is None:
            raise _no_token_error("its Trigger has no service account yet")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if _AUTHORIZATION.search(head) is not None:
            head = _AUTHORIZATION.sub(b"", head)  # an event must not set our authorization
        try:
            async with asyncio.timeout_at(deadline):
                token = await self._tokens.token(account, audience)
            response = await self._send(target, token, head, body, deadline - loop.time())
            if response.status != 401 or not self._tokens.note_refusal(account, audience, token):
                return response
            async with asyncio.timeout_at(deadline):
                new_token = await self._tokens.replace_token(account, audience, token)
            return await self._send(target, new_token, head, body, deadline - loop.time())
        except TokenUnavailable as error:
            raise _no_token_error(str(error)) from None
        except TimeoutError:
            raise _no_token_error("none came in time") from None

    async def _send(
        self, target: Target, token: bytes, head: bytes, body: bytes, timeout: float
    ) -> Response:
        """Send one request with this token within `timeout` seconds, and return the response
        without the token. Raises `DeliveryError`."""
        head = b"%bauthorization: Bearer %b\r\n" % (head, token)
        return _redact(token, await self._subscriber.post(target, head, body, max(0.0, timeout)))

    async def close(self) -> None:
        """Close the connections of the wrapped subscriber."""
        await self._subscriber.close()


def authorize(egress: Egress, subscriber: Subscriber, tokens: SinkTokens | None) -> Subscriber:
    """Return a `Subscriber` that adds tokens of the Egress's account to the requests of
    `subscriber`. `tokens` None: requests that need a token fail."""
    account = egress.service_account
    sender_account = None if account is None else Account(egress.namespace, account)
    # Not `or`: an empty cache is false.
    tokens = SinkTokens(None) if tokens is None else tokens
    return AuthorizedSubscriber(subscriber, tokens, sender_account)


def _redact(token: bytes, response: Response) -> Response:
    """Return the response with each occurrence of the token replaced by `HIDDEN`, as replies and
    dead letters repeat what a response holds."""
    if token not in response.body and not any(token in value for _, value in response.headers):
        return response
    headers = [(name, value.replace(token, HIDDEN)) for name, value in response.headers]
    return response._replace(headers=headers, body=response.body.replace(token, HIDDEN))


def _no_token_error(problem: str) -> DeliveryError:
    """Return the `DeliveryError` of a request that was not sent because there is no token."""
    return DeliveryError(Reason.NO_TOKEN.value, problem)
