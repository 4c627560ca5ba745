"""Keeps the token that a Trigger sends to a destination with an audience, and decides when to
request another (decision 0040). Pure.

    no token, or most of its life is over --> request one; until it is there, send the present one
    the request failed                    --> request again, after a wait that grows each time
    the destination answers 401           --> request another token at once, but not for each 401

Times are seconds of one monotonic clock; the issuer's clock isn't used.

Not here: requesting tokens (`ports.account_tokens`), and sending them
(`knafka.dispatcher.engine.sending.authorizing`).
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from knafka.core.tokens.auth_tokens import MAX_TOKEN_BYTES

EXPIRATION: Final = 3600
"""Requested lifetime of a token in seconds, as upstream; the API server may choose another."""
RENEWAL_FRACTION: Final = 0.8
"""Fraction of its life after which a token is renewed at the latest, as by kubelet. If the API
server goes away just before, the token can still be sent for about a fifth of its life."""
RENEWAL_SPREAD: Final = 0.1
"""Fraction of its life by which a token may be renewed earlier, at random, so that tokens that were
issued together aren't renewed together."""
MARGIN: Final = 10.0
"""Seconds before its end (or a tenth of its life, if that is less) at which a token ceases to be
sent, as it has to arrive in time, and clocks differ."""
SHORTEST_LIFE: Final = 1.0
"""Shortest life of a usable token, in seconds."""
FIRST_RETRY_WAIT: Final = 1.0
LAST_RETRY_WAIT: Final = 10.0
"""Seconds to wait after a failed request: the first wait is doubled each time, up to the last."""
FIRST_REFUSAL_PAUSE: Final = 10.0
LAST_REFUSAL_PAUSE: Final = 300.0
"""Seconds from one renewal for a 401 to the next: the first pause is doubled each time, up to the
last. So a sink that accepts no token costs the API server little, and one whose keys were rotated
gets a new token at once."""
REFUSAL_RESET_TIME: Final = 600.0
"""Seconds without a 401 after which the next pause is `FIRST_REFUSAL_PAUSE` again."""

_match_token: Final = re.compile(rb"[A-Za-z0-9._~+/=-]+").fullmatch
"""Matches the characters that RFC 6750 allows after `Bearer`; none of them ends a header."""


class Account(NamedTuple):
    """A service account."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class IssuedToken(NamedTuple):
    """A newly issued token; its value is never shown."""

    value: bytes
    life: float
    """Lifetime in seconds, counted from its request."""

    @property
    def is_usable(self) -> bool:
        """Whether the token can be sent in a header: it lives for `SHORTEST_LIFE` or longer, has at
        most `MAX_TOKEN_BYTES`, and only characters that RFC 6750 allows."""
        value = self.value
        return (
            self.life >= SHORTEST_LIFE
            and len(value) <= MAX_TOKEN_BYTES
            and _match_token(value) is not None
        )

    def __repr__(self) -> str:
        return f"IssuedToken(life={self.life!r})"


class SinkToken:
    """The token of one account for one audience."""

    __slots__ = (
        "_failures",
        "_is_refused",
        "_jitter",
        "_next_request_at",
        "_refusal_pause",
        "_refusals_count_from",
        "_renew_at",
        "_until",
        "_value",
    )

    def __init__(self, jitter: float = 0.0) -> None:
        """Begin without a token. `jitter`: a random number from 0 to 1, which moves each renewal
        earlier by up to `RENEWAL_SPREAD` of the token's life."""
        self._jitter = jitter
        self._value = b""
        """The token; empty: none was issued yet."""
        self._until = -math.inf
        """Time from which on the token isn't sent any more."""
        self._renew_at = -math.inf
        """Time from which on another token is due."""
        self._next_request_at = -math.inf
        """Time before which no token is requested."""
        self._failures = 0
        """Failed requests for a token in a row."""
        self._is_refused = False
        """Whether the destination has refused the present token, so that its renewal is due."""
        self._refusals_count_from = -math.inf
        """Time from which on a 401 is a reason to renew the token."""
        self._refusal_pause = FIRST_REFUSAL_PAUSE
        """Seconds during which further 401s are no reason to renew the token, after the next 401
        that is a reason."""

    def __repr__(self) -> str:
        return f"SinkToken(until={self._until!r})"

    def current(self, now: float) -> bytes | None:
        """Return the token if it may be sent at the time `now`; None: none was issued yet, or its
        end is too near (`MARGIN`) or past."""
        return self._value if now < self._until else None

    def is_due(self, now: float) -> bool:
        """Whether another token is to be requested at the time `now`: a renewal is due, and the
        wait after a failed request is over."""
        return now >= self._renew_at and now >= self._next_request_at

    def store_issued(self, token: IssuedToken, asked_at: float) -> bool:
        """Store a newly issued token, which was requested at the time `asked_at`, and return True.
        If the token can't be used, note the request as failed and return False."""
        if not token.is_usable:
            self.note_failure(asked_at)
            return False
        life = token.life
        self._value = token.value
        self._until = asked_at + life - min(MARGIN, life / 10)
        self._renew_at = asked_at + life * (RENEWAL_FRACTION - RENEWAL_SPREAD * self._jitter)
        self._failures, self._next_request_at, self._is_refused = 0, -math.inf, False
        return True

    def note_failure(self, failed_at: float) -> None:
        """Note that a request for a token failed at this time; the next one has to wait, longer
        after each failure in a row."""
        # The exponent is limited, as the power would overflow after a thousand failures.
        wait = min(FIRST_RETRY_WAIT * 2.0 ** min(self._failures, 30), LAST_RETRY_WAIT)
        self._failures += 1
        self._next_request_at = failed_at + wait

    def note_refusal(self, refused_token: bytes, refused_at: float) -> bool:
        """Note that the destination answered 401 to a request with `refused_token`. Return whether
        to send the request again: True if there is another token already, or one is requested now;
        False if the token was renewed shortly before, so that another one wouldn't help."""
        if refused_token != self._value or self._is_refused:
            return True  # another token is there already, or will be requested
        if refused_at < self._refusals_count_from:
            return False  # a token that was renewed shortly before is refused, too
        if refused_at - self._refusals_count_from > REFUSAL_RESET_TIME:
            self._refusal_pause = FIRST_REFUSAL_PAUSE
        self._refusals_count_from = refused_at + self._refusal_pause
        self._refusal_pause = min(self._refusal_pause * 2, LAST_REFUSAL_PAUSE)
        self._is_refused = True
        self._renew_at = min(self._renew_at, refused_at)
        return True
