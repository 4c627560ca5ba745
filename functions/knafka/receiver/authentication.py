"""Authentication: whose token a request shows, and whether that sender may send (KN-DP-09).

    no token, or one that proves nothing        401
    a sender that no policy lets through        403
    keys that aren't read yet, or are read anew 503, to be sent again: the token may be good

A token that was seen before costs two look-ups. What is kept is bounded (`MAX_TOKENS`), and only of
tokens that are good: whoever invents some has none kept. What they cost is bounded, too: the claims
are looked at before the signature, and of signatures that don't hold only so many a second. Those
are counted by whom a token says that it is of, so that a sender who is known, and has a new token,
isn't held up by the inventions of others.

Not here: what a token must say (`core.auth_tokens`), keys (`ports.signing_keys`), policies
(`core.authorization`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from knafka.core.auth_tokens import (
    MAX_TOKEN_BYTES,
    InvalidToken,
    VerifiedToken,
    check_claims,
    split,
)
from knafka.core.authorization import Authorization
from knafka.core.bearer import bearer_token
from knafka.core.contract import Ingress
from knafka.core.errors import KnafkaError
from knafka.core.filters import Predicate
from knafka.ports.signing_keys import SigningKeys
from knafka.receiver import answers
from knafka.receiver.address import HttpHeaders
from knafka.receiver.answers import Answer

MAX_TOKENS: Final = 2048
"""Tokens that are kept once they are verified; half of them go when there are more. With the
longest tokens that is 16 MB."""
MAX_FAILURES: Final = 2_500
"""Signatures that don't hold, a second, each some 0.04 ms: a tenth of a core. After those, tokens
that weren't seen before are answered 503 for the rest of it, and those that were go on as ever."""
MAX_STRANGERS_FAILURES: Final = 500
"""The same of tokens that say they are of somebody of whom no good one is kept."""
MAX_FAILURES_OF_ONE: Final = 100
"""The same of tokens that say they are of one sender of whom a good one is kept."""
MAX_SENDERS: Final = 2048
"""Senders of one Broker whose verdict is kept."""


class Undecided(KnafkaError):
    """It can't be told yet whether a token is good."""


class TokenVerifier:
    """Verifies tokens for all Brokers and KafkaChannels of one receiver."""

    def __init__(self, keys: SigningKeys, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since the Unix epoch."""
        self._keys = keys
        self._clock = clock
        self._generation = keys.generation
        self._young: dict[tuple[str, bytes], VerifiedToken] = {}
        self._old: dict[tuple[str, bytes], VerifiedToken] = {}
        self._young_subjects: set[str] = set()
        self._old_subjects: set[str] = set()
        """Of the tokens that are kept."""
        self._failures = _Failures()

    def __len__(self) -> int:
        """Tokens that are kept."""
        return len(self._young) + len(self._old)

    def verify(self, token: bytes, audience: str) -> str:
        """The token's subject; raises `InvalidToken` and `Undecided`."""
        if len(token) > MAX_TOKEN_BYTES:
            raise InvalidToken(f"it is longer than {MAX_TOKEN_BYTES} bytes")
        if self._generation != self._keys.generation:
            self._forget()  # a key may have been withdrawn
        now = self._clock()
        kept = self._young.get((audience, token))
        if kept is not None and now < kept.until:
            return kept.subject
        return self._verify(token, audience, now)

    def _verify(self, token: bytes, audience: str, now: float) -> str:
        kept = self._old.get((audience, token))
        if kept is None or now >= kept.until:
            kept = self._verified(token, audience, now)
        if len(self._young) >= MAX_TOKENS // 2:
            self._young, self._old = {}, self._young
            self._young_subjects, self._old_subjects = set(), self._young_subjects
        self._young[audience, token] = kept
        self._young_subjects.add(kept.subject)
        return kept.subject

    def _verified(self, token: bytes, audience: str, now: float) -> VerifiedToken:
        parts = split(token)
        if (issuer := self._keys.issuer) is None:
            raise Undecided
        claimed = check_claims(parts.claims, issuer, audience, now)
        key = self._keys.find(parts.key_id)
        if key is None:
            if self._keys.read_again(claimed.issued):
                raise Undecided
            raise InvalidToken("its key is not the issuer's")
        if parts.algorithm not in key.algorithms:
            raise InvalidToken("its algorithm is not the key's")
        subject = claimed.subject
        sender = subject if self._knows(subject) else None
        if self._failures.are_too_many(sender, int(now)):
            raise Undecided
        if not key.verify(parts.algorithm, parts.signed, parts.signature):
            self._failures.add(sender)
            raise InvalidToken("its signature is wrong")
        return claimed

    def _knows(self, subject: str) -> bool:
        return subject in self._young_subjects or subject in self._old_subjects

    def _forget(self) -> None:
        self._generation = self._keys.generation
        self._young, self._old = {}, {}
        self._young_subjects, self._old_subjects = set(), set()


class _Failures:
    """Signatures that didn't hold in one second, by the sender that they claimed to be of; None is
    every stranger."""

    def __init__(self) -> None:
        self._second = 0
        self._by_sender: dict[str | None, int] = {}
        self._all = 0

    def are_too_many(self, sender: str | None, second: int) -> bool:
        """Whether no more of this sender may be looked at in this second."""
        if second != self._second:
            self._second, self._all = second, 0
            self._by_sender.clear()
        limit = MAX_STRANGERS_FAILURES if sender is None else MAX_FAILURES_OF_ONE
        return self._all >= MAX_FAILURES or self._by_sender.get(sender, 0) >= limit

    def add(self, sender: str | None) -> None:
        self._all += 1
        self._by_sender[sender] = self._by_sender.get(sender, 0) + 1


class SenderCheck:
    """Who may send to one Broker or KafkaChannel that has an audience."""

    def __init__(self, ingress: Ingress, audience: str, verifier: TokenVerifier | None) -> None:
        """`verifier`: None where this process has no keys; then nobody is let through."""
        self._audience = audience
        self._verifier = verifier
        self._authorization = Authorization(
            ingress.policies, ingress.default_authorization, ingress.namespace
        )
        self._verdicts: dict[str, bool | Predicate] = {}

    def admit(self, headers: HttpHeaders) -> Answer | Predicate | None:
        """None: any event of this sender is taken; else the answer to the request, or what an
        event's attributes must fulfil."""
        if self._verifier is None:
            return answers.UNDECIDED
        if (token := bearer_token(headers)) is None:
            return answers.UNAUTHENTICATED
        try:
            subject = self._verifier.verify(token, self._audience)
        except InvalidToken:
            return answers.UNAUTHENTICATED
        except Undecided:
            return answers.UNDECIDED
        verdict = self._verdicts.get(subject)
        if verdict is None:
            if len(self._verdicts) >= MAX_SENDERS:
                self._verdicts.clear()
            verdict = self._verdicts[subject] = self._authorization.of(subject)
        if verdict is True:
            return None
        return answers.FORBIDDEN if verdict is False else verdict
