"""Authorizing: requests to destinations that have an audience, with a token for it (KN-DP).

    audience of the target --> its Egress's token for it --> Authorization: Bearer --> the target
    401                    --> another token at once, and the same attempt goes on with it

A token goes to the destination that it is for and to nobody else: no redirection is followed
(`ports.subscriber`), and an answer that repeats it is kept without it. Without a token nothing is
sent: the attempt hasn't taken place, and the event waits.

Imported only where an Egress has such a destination. Not here: what a token's life means
(`core.sink_tokens`), and where tokens come from (`ports.account_tokens`).
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
from knafka.core.sink_tokens import Account, SinkToken
from knafka.observability import RateLimitedFilter
from knafka.ports.account_tokens import AccountTokens, TokenUnavailable
from knafka.ports.subscriber import Response, Subscriber, Target

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter())

MAX_TOKENS: Final = 4096
"""Tokens that are kept, three of each Egress at most; the oldest goes when there are more."""
HIDDEN: Final = b"(token)"
"""What stands for a token where a destination has repeated it."""

_AUTHORIZATION: Final = re.compile(rb"(?im)^authorization[ \t]*:[^\r\n]*\r\n")


class _Kept:
    """One token, and the request for the next."""

    __slots__ = ("asking", "token", "why")

    def __init__(self, jitter: float) -> None:
        self.token = SinkToken(jitter)
        self.asking: asyncio.Task[None] | None = None
        self.why = ""
        """Why the last request gave none."""


class SinkTokens:
    """Tokens of all Egresses of this process, each of its own account."""

    def __init__(
        self,
        issuer: AccountTokens | None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`issuer`: None where this process can ask nobody; then there are none."""
        self._issuer = issuer
        self._clock = clock
        self._chance = chance
        self._kept: dict[tuple[Account, str], _Kept] = {}

    def __len__(self) -> int:
        """Tokens that are kept."""
        return len(self._kept)

    async def token(self, account: Account, audience: str) -> bytes:
        """One that lives; raises `TokenUnavailable`."""
        kept = self._of(account, audience)
        if kept.token.is_due(self._clock()):
            self._ask(kept, account, audience)
        if (value := kept.token.current(self._clock())) is not None:
            return value
        return await self._asked(kept)

    def refused(self, account: Account, audience: str, value: bytes) -> bool:
        """As `SinkToken.refused`."""
        return self._of(account, audience).token.refused(value, self._clock())

    async def another(self, account: Account, audience: str, value: bytes) -> bytes:
        """Another one than that which was refused; raises `TokenUnavailable`."""
        kept = self._of(account, audience)
        if kept.token.current(self._clock()) == value:
            if kept.token.is_due(self._clock()):
                self._ask(kept, account, audience)
            await self._asked(kept, value)
        return await self.token(account, audience)

    async def close(self) -> None:
        asking = [each.asking for each in self._kept.values() if each.asking is not None]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _of(self, account: Account, audience: str) -> _Kept:
        kept = self._kept.get((account, audience))
        if kept is None:
            if len(self._kept) >= MAX_TOKENS:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[account, audience] = _Kept(self._chance())
        return kept

    def _ask(self, kept: _Kept, account: Account, audience: str) -> None:
        """Have one request under way."""
        if kept.asking is None:
            kept.asking = asyncio.create_task(self._renew(kept, account, audience))

    async def _asked(self, kept: _Kept, refused: bytes | None = None) -> bytes:
        """Wait for the request under way; raises `TokenUnavailable` if it brings none."""
        if kept.asking is not None:
            # Shielded: who is cancelled is not the only one who waits.
            await asyncio.shield(kept.asking)
        value = kept.token.current(self._clock())
        if value is None or value == refused:
            raise TokenUnavailable(kept.why or "it was not asked for")
        return value

    async def _renew(self, kept: _Kept, account: Account, audience: str) -> None:
        asked_at = self._clock()
        try:
            if self._issuer is None:
                raise TokenUnavailable("this function has nobody to ask for one (KNAFKA_OIDC_URL)")
            token = await self._issuer.issue(account, audience)
            if not kept.token.issued(token, asked_at):
                raise TokenUnavailable("what was given can't be used")
            kept.why = ""
        except TokenUnavailable as error:
            self._failed(kept, account, audience, str(error))
        except Exception as error:  # a bug of ours: its text may have what it was about
            self._failed(kept, account, audience, type(error).__name__)
        finally:
            kept.asking = None

    def _failed(self, kept: _Kept, account: Account, audience: str, why: str) -> None:
        kept.token.failed(self._clock())
        kept.why = f"no token of {account} for {audience:.200}: {why}"
        log.warning("%s", kept.why)


class AuthorizedSubscriber:
    """A `Subscriber` whose requests to targets with an audience carry a token of one account."""

    def __init__(self, subscriber: Subscriber, tokens: SinkTokens, account: Account | None) -> None:
        """`account`: None where the Egress names none; then such targets get nothing."""
        self._subscriber = subscriber
        self._tokens = tokens
        self._account = account

    async def post(self, target: Target, head: bytes, body: bytes, timeout: float) -> Response:
        audience, account = target.audience, self._account
        if audience is None:
            return await self._subscriber.post(target, head, body, timeout)
        if account is None:
            raise _no_token("its Trigger has no service account yet")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if _AUTHORIZATION.search(head) is not None:
            head = _AUTHORIZATION.sub(b"", head)  # no event says who we are
        try:
            async with asyncio.timeout_at(deadline):
                token = await self._tokens.token(account, audience)
            response = await self._send(target, token, head, body, deadline - loop.time())
            if response.status != 401 or not self._tokens.refused(account, audience, token):
                return response
            async with asyncio.timeout_at(deadline):
                another = await self._tokens.another(account, audience, token)
            return await self._send(target, another, head, body, deadline - loop.time())
        except TokenUnavailable as error:
            raise _no_token(str(error)) from None
        except TimeoutError:
            raise _no_token("none came in time") from None

    async def _send(
        self, target: Target, token: bytes, head: bytes, body: bytes, timeout: float
    ) -> Response:
        head = b"%bauthorization: Bearer %b\r\n" % (head, token)
        return _without(token, await self._subscriber.post(target, head, body, max(0.0, timeout)))

    async def close(self) -> None:
        await self._subscriber.close()


def authorized(egress: Egress, subscriber: Subscriber, tokens: SinkTokens | None) -> Subscriber:
    """What posts for this Egress, one of whose destinations has an audience."""
    account = egress.service_account
    whose = None if account is None else Account(egress.namespace, account)
    # Not `or`: those that have given nothing so far are as good as none.
    tokens = SinkTokens(None) if tokens is None else tokens
    return AuthorizedSubscriber(subscriber, tokens, whose)


def _without(token: bytes, response: Response) -> Response:
    """An answer becomes a reply, or a part of a dead letter: others read those."""
    if token not in response.body and not any(token in value for _, value in response.headers):
        return response
    headers = [(name, value.replace(token, HIDDEN)) for name, value in response.headers]
    return response._replace(headers=headers, body=response.body.replace(token, HIDDEN))


def _no_token(why: str) -> DeliveryError:
    return DeliveryError(Reason.NO_TOKEN.value, why)
