"""Splits senders' tokens (JWT) and checks their claims (RFC 7515, 7519). Pure.

    token  --split-------->  algorithm, key id, signed text, signature, claims: nothing is verified
    claims --check_claims->  subject and times, to be believed only if the signature is valid, too

The work is bounded by a token's length; no error contains text of a token.

Not here: signatures and keys (`ports.signing_keys`), and who may send (`authorization`).
"""

from __future__ import annotations

import binascii
import math
from typing import Any, Final, NamedTuple

import msgspec

from knafka.core.errors import KnafkaError

ALGORITHMS: Final = frozenset(
    f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)
)
"""Accepted algorithms, all with public keys. Never `none`, and never one such as HS256, which would
take a public key for a shared secret."""
MAX_TOKEN_BYTES: Final = 8 * 1024
"""Longest token that is accepted; Kubernetes' have one or two thousand bytes."""
LEEWAY: Final = 60.0
"""Seconds by which the issuer's clock may differ from ours."""

_TO_STANDARD_BASE64: Final = bytes.maketrans(b"-_", b"+/")


class InvalidToken(KnafkaError):
    """Raised for an invalid token. The message says why, and holds no text of the token."""


class SplitToken(NamedTuple):
    """The parts of a token that isn't verified yet."""

    algorithm: str
    """One of `ALGORITHMS`."""
    key_id: str
    """The issuer's id of the key that verifies the signature."""
    signed: bytes
    """The text that is signed: header and claims as the token has them."""
    signature: bytes
    claims: bytes
    """The claims as JSON (`check_claims`)."""


class VerifiedToken(NamedTuple):
    """Subject and times of a token whose claims are right (`check_claims`)."""

    subject: str
    """Subject of the token, such as `system:serviceaccount:NAMESPACE:NAME`."""
    until: float
    """When the token expires, in seconds since the Unix epoch, `LEEWAY` included."""
    issued: float = 0.0
    """When the token was issued, in seconds since the Unix epoch; 0: the token doesn't say."""


class _Head(msgspec.Struct):
    """The header of a JWT (RFC 7515, 4.1). Of the optional members only their presence counts, not
    their value."""

    alg: str
    kid: str
    crit: Any = None
    jwk: Any = None
    jku: Any = None
    x5u: Any = None
    x5c: Any = None

    @property
    def names_a_key(self) -> bool:
        """Whether the header contains a key, or says where a key is. A token with such a header is
        refused, as only the issuer's published keys count, which are found by `kid`."""
        return any(value is not None for value in (self.jwk, self.jku, self.x5u, self.x5c))


class _Claims(msgspec.Struct):
    """The claims of a JWT that are checked (RFC 7519, 4.1); times are Unix times in seconds."""

    iss: str
    sub: str
    aud: str | list[str]
    exp: float
    nbf: float = -math.inf
    iat: float = 0.0


_HEAD: Final = msgspec.json.Decoder(_Head)
_CLAIMS: Final = msgspec.json.Decoder(_Claims)


def split(token: bytes) -> SplitToken:
    """Split a token of at most `MAX_TOKEN_BYTES` into its parts, without verifying it. Raises
    `InvalidToken` if it is no JWT, or if its header isn't acceptable."""
    parts = token.split(b".")
    if len(parts) != 3:
        raise InvalidToken("it is no signed JWT")
    head, claims, signature = map(_decode_base64url, parts)
    try:
        parsed_header = _HEAD.decode(head)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise InvalidToken("its header is none, or has no alg or kid") from None
    if parsed_header.alg not in ALGORITHMS:
        raise InvalidToken("its algorithm is not accepted")
    if parsed_header.crit is not None:
        raise InvalidToken("it wants extensions that are not known")
    if parsed_header.names_a_key:
        raise InvalidToken("it brings a key, or says where one is")
    signed = token[: token.rindex(b".")]
    return SplitToken(parsed_header.alg, parsed_header.kid, signed, signature, claims)


def check_claims(claims: bytes, issuer: str, audience: str, now: float) -> VerifiedToken:
    """Return the subject and times that a token's `claims` (JSON) state; believe them only if the
    signature is valid, too. Raises `InvalidToken` if the token is of another issuer, for another
    audience, or not valid at `now` (seconds since the Unix epoch)."""
    try:
        claim_set = _CLAIMS.decode(claims)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise InvalidToken("it lacks iss, sub, aud or exp") from None
    if claim_set.iss != issuer:
        raise InvalidToken("it is another issuer's")
    audiences = [claim_set.aud] if isinstance(claim_set.aud, str) else claim_set.aud
    if audience not in audiences:
        raise InvalidToken("it is for another audience")
    if now >= claim_set.exp + LEEWAY:
        raise InvalidToken("it has expired")
    if now < claim_set.nbf - LEEWAY:
        raise InvalidToken("it is not valid yet")
    if not claim_set.sub:
        raise InvalidToken("it is nobody's")
    return VerifiedToken(claim_set.sub, claim_set.exp + LEEWAY, claim_set.iat)


def _decode_base64url(part: bytes) -> bytes:
    """Decode base64url without padding (RFC 7515, 2). Raises `InvalidToken` for any other text."""
    # `+`, `/` and `=` belong to ordinary base64. The decoder below would accept them.
    if not part or b"+" in part or b"/" in part or b"=" in part:
        raise InvalidToken("it is not base64url")
    try:
        padded = part.translate(_TO_STANDARD_BASE64) + b"=" * (-len(part) % 4)
        return binascii.a2b_base64(padded, strict_mode=True)
    except binascii.Error:
        raise InvalidToken("it is not base64url") from None
