"""Authentication: verifies a request's token, and checks whether its sender may send (KN-DP-09).

    A request without a valid token is answered 401, and a sender that no policy admits 403. While
    keys are not read yet, or are being read again, the answer is 503, as the token may be valid.

A token that was verified before costs two look-ups. Only good tokens are cached,
`MAX_SENDER_TOKENS` at most. The cost of bad tokens is bounded too: claims are checked before the
signature, and only so many wrong signatures are checked per second. They are counted by claimed
sender, so that invented tokens of others don't hold up a known sender's new token.

Not here: what a token must claim (`core.tokens.auth_tokens`), keys (`ports.signing_keys`), policies
(`core.authorization`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from knafka.core.authorization import AdmitsAll, Authorization
from knafka.core.contract import Ingress
from knafka.core.errors import KnafkaError
from knafka.core.tokens.auth_tokens import (
    MAX_TOKEN_BYTES,
    InvalidToken,
    VerifiedToken,
    check_claims,
    split,
)
from knafka.core.tokens.bearer import bearer_token
from knafka.ports.signing_keys import SigningKeys
from knafka.receiver import answers
from knafka.receiver.address import HttpHeaders
from knafka.receiver.answers import Answer

MAX_SENDER_TOKENS: Final = 2048
"""Most verified tokens that are cached; then the older half is removed. With tokens of the greatest
length they take 16 MB."""
MAX_FAILURES_PER_SECOND: Final = 2_500
"""Wrong signatures checked per second, each some 0.04 ms: a tenth of a core. Beyond that, tokens
that aren't cached are answered 503 for the rest of the second."""
MAX_UNKNOWN_FAILURES_PER_SECOND: Final = 500
"""Wrong signatures checked per second for all claimed senders without a cached token."""
MAX_SENDER_FAILURES_PER_SECOND: Final = 100
"""Wrong signatures checked per second for one claimed sender with a cached token."""
MAX_SENDERS: Final = 2048
"""Senders of one Broker whose verdict is cached."""


class Undecided(KnafkaError):
    """Raised when a token can't be verified now: keys are missing, or too many tokens were
    wrong."""


class TokenVerifier:
    """Verifies senders' tokens for all Brokers and KafkaChannels of one receiver.

    Verified tokens are cached in two generations, new and old. When the new ones are half of
    `MAX_SENDER_TOKENS`, the old ones are removed, and the new ones become the old ones.
    """

    def __init__(self, keys: SigningKeys, clock: Callable[[], float] = time.time) -> None:
        """`keys`: the issuer's keys, which may change later; `clock` returns seconds since the Unix
        epoch."""
        self._keys = keys
        self._clock = clock
        self._generation = keys.generation
        """The keys' generation when the cached tokens were verified."""
        self._new_tokens: dict[tuple[str, bytes], VerifiedToken] = {}
        """The new cached tokens, by audience and token: those used since the old ones were last
        removed."""
        self._old_tokens: dict[tuple[str, bytes], VerifiedToken] = {}
        """The old cached tokens, which are removed next unless they are used again."""
        self._new_subjects: set[str] = set()
        """Subjects of `_new_tokens`."""
        self._old_subjects: set[str] = set()
        """Subjects of `_old_tokens`."""
        self._failures = _Failures()
        """The wrong signatures of the present second."""

    def __len__(self) -> int:
        """Number of cached tokens."""
        return len(self._new_tokens) + len(self._old_tokens)

    def verify(self, token: bytes, audience: str) -> str:
        """Verify a token for this audience and return its subject. Raises `InvalidToken` if it
        isn't valid, and `Undecided` if that can't be decided now."""
        if len(token) > MAX_TOKEN_BYTES:
            raise InvalidToken(f"it is longer than {MAX_TOKEN_BYTES} bytes")
        if self._generation != self._keys.generation:
            self._forget_tokens()  # a key may have been withdrawn
        now = self._clock()
        cached = self._new_tokens.get((audience, token))
        if cached is not None and now < cached.until:
            return cached.subject
        return self._verify_and_cache(token, audience, now)

    def _verify_and_cache(self, token: bytes, audience: str, now: float) -> str:
        """Verify a token that isn't among the new cached ones, cache it among them, and return its
        subject. A token among the old ones isn't verified again, unless it has expired by `now`
        (Unix time). Raises as `verify` does."""
        verified = self._old_tokens.get((audience, token))
        if verified is None or now >= verified.until:
            verified = self._check_token(token, audience, now)
        if len(self._new_tokens) >= MAX_SENDER_TOKENS // 2:
            self._new_tokens, self._old_tokens = {}, self._new_tokens
            self._new_subjects, self._old_subjects = set(), self._new_subjects
        self._new_tokens[audience, token] = verified
        self._new_subjects.add(verified.subject)
        return verified.subject

    def _check_token(self, token: bytes, audience: str, now: float) -> VerifiedToken:
        """Verify claims, key and signature of a token at `now` (Unix time), and return its subject
        and times. Raises `InvalidToken` if one of the three is wrong. Raises `Undecided` if no keys
        were read yet, if the token's key isn't known and the keys are being read again, or if too
        many wrong signatures were checked in this second."""
        parts = split(token)
        if (issuer := self._keys.issuer) is None:
            raise Undecided
        verified = check_claims(parts.claims, issuer, audience, now)
        key = self._keys.find(parts.key_id)
        if key is None:
            # The token may be signed with a key that is newer than the last read.
            if self._keys.request_read(verified.issued):
                raise Undecided
            raise InvalidToken("its key is not the issuer's")
        if parts.algorithm not in key.algorithms:
            raise InvalidToken("its algorithm is not the key's")
        subject = verified.subject
        sender = subject if self._is_known_sender(subject) else None
        if self._failures.is_over_limit(sender, int(now)):
            raise Undecided
        if not key.verify(parts.algorithm, parts.signed, parts.signature):
            self._failures.add(sender)
            raise InvalidToken("its signature is wrong")
        return verified

    def _is_known_sender(self, subject: str) -> bool:
        """Whether a token of this subject is cached."""
        return subject in self._new_subjects or subject in self._old_subjects

    def _forget_tokens(self) -> None:
        """Empty the cache, as a key may have been withdrawn."""
        self._generation = self._keys.generation
        self._new_tokens, self._old_tokens = {}, {}
        self._new_subjects, self._old_subjects = set(), set()


class _Failures:
    """Counts the wrong signatures of one second by claimed sender. In place of a sender, None
    stands for all senders without a cached token."""

    def __init__(self) -> None:
        """Begin without wrong signatures."""
        self._second = 0
        """The second (Unix time) that is counted."""
        self._by_sender: dict[str | None, int] = {}
        """Wrong signatures by claimed sender."""
        self._all = 0
        """Wrong signatures of all senders."""

    def is_over_limit(self, sender: str | None, second: int) -> bool:
        """Whether no more tokens of this sender may be checked in this second (Unix time)."""
        if second != self._second:  # the first call in a new second: begin to count anew
            self._second, self._all = second, 0
            self._by_sender.clear()
        limit = (
            MAX_UNKNOWN_FAILURES_PER_SECOND if sender is None else MAX_SENDER_FAILURES_PER_SECOND
        )
        return self._all >= MAX_FAILURES_PER_SECOND or self._by_sender.get(sender, 0) >= limit

    def add(self, sender: str | None) -> None:
        """Count a wrong signature that claimed to be this sender's."""
        self._all += 1
        self._by_sender[sender] = self._by_sender.get(sender, 0) + 1


class SenderCheck:
    """Checks who may send to one Broker or KafkaChannel that has an audience."""

    def __init__(self, ingress: Ingress, audience: str, verifier: TokenVerifier | None) -> None:
        """`ingress` has the policies; senders must show tokens for `audience`. `verifier`: None if
        this process has no keys; then every request is answered 503."""
        self._audience = audience
        self._verifier = verifier
        self._authorization = Authorization(
            ingress.policies, ingress.default_authorization, ingress.namespace
        )
        self._verdicts: dict[str, bool | AdmitsAll] = {}
        """The cached verdicts (`Authorization.verdict`) by the senders' subjects."""

    def admit(self, headers: HttpHeaders) -> Answer | AdmitsAll | None:
        """Check a request's token and its sender by the policies. Returns None if the sender may
        send any event, a predicate that the attributes of the request's events must fulfil, or the
        answer with which the request is refused."""
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
            verdict = self._verdicts[subject] = self._authorization.verdict(subject)
        if verdict is True:
            return None
        return answers.FORBIDDEN if verdict is False else verdict
