"""Keys of the API server: the issuer of service accounts' tokens, and its public keys.

    /.well-known/openid-configuration -> issuer
    /openid/v1/jwks                   -> public keys

The keys are read in the background with the pod's own token and CA: at the start, every
`KEY_READ_INTERVAL`, and when a token names an unknown key, at most once in
`UNKNOWN_KEY_READ_INTERVAL`. While the API server is away, the last keys stay in use.

Not here: what a token must claim (`core.tokens.auth_tokens`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, Final

import msgspec
from jwt import PyJWK

from knafka.clients.kubernetes.api_server import ask_with_credentials, describe_request_error
from knafka.core.errors import KnafkaError
from knafka.core.tokens.auth_tokens import ALGORITHMS, LEEWAY
from knafka.observability import RateLimitedFilter
from knafka.ports.signing_keys import SigningKey

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))

DISCOVERY: Final = "/.well-known/openid-configuration"
"""Path of the discovery document, which names the issuer."""
JWKS: Final = "/openid/v1/jwks"
"""Kubernetes' own path of the keys. The discovery document's `jwks_uri` is not used: it may lead to
another server, which would get this pod's token."""
KEY_READ_INTERVAL: Final = 300.0
"""Seconds between two regular reads; a withdrawn key is accepted for so long."""
UNKNOWN_KEY_READ_INTERVAL: Final = 10.0
"""Least seconds between two reads because of unknown keys: tokens that name invented keys must not
cause more reads."""
FAILED_READ_INTERVAL: Final = 2.0
"""Seconds from a failed read to the next."""
MAX_KEYS: Final = 64
"""Keys of the key set beyond this number are ignored."""
MIN_RSA_BITS: Final = 2048
"""Bits of the shortest RSA key that is trusted."""
MIN_EC_BITS: Final = 256
"""Bits of the shortest EC key that is trusted."""

Fetch = Callable[[str], bytes]
"""Sends a GET to a path of the API server, and returns the response's body; blocks. Raises
`OSError`."""


class KeysUnreadable(KnafkaError):
    """Raised if the API server's response holds no usable issuer or keys."""


class _Discovery(msgspec.Struct):
    """The OpenID discovery document."""

    issuer: str


class _Jwks(msgspec.Struct):
    """A JWK set."""

    keys: list[dict[str, Any]]


class JwkKey:
    """A `SigningKey` of the library PyJWT."""

    def __init__(self, key: PyJWK) -> None:
        """`key` verifies only signatures of the algorithm that it names."""
        self._key = key
        self.algorithms: Set[str] = frozenset({key.algorithm_name})

    def verify(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Whether `signature` is this key's signature of `signed`; False also for a malformed one.
        `algorithm` must be the key's own, the only one in `algorithms`; it is ignored here."""
        try:
            return bool(self._key.Algorithm.verify(signed, self._key.key, signature))
        except Exception:  # a signature at which the library fails isn't this key's
            return False


def parse_keys(document: bytes) -> Mapping[str, SigningKey]:
    """Return the usable keys of a JWK set by id: RSA and EC keys for signatures, of an allowed
    algorithm and sufficient length. Raises `KeysUnreadable` if the document is no JWK set."""
    try:
        jwks = msgspec.json.decode(document, type=_Jwks).keys
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise KeysUnreadable("its keys are no JWKS") from None
    keys: dict[str, SigningKey] = {}
    for jwk in jwks[:MAX_KEYS]:
        key_id = jwk.get("kid")
        if not isinstance(key_id, str) or jwk.get("use", "sig") != "sig":
            continue
        if jwk.get("kty") not in ("RSA", "EC"):
            continue  # never a shared secret
        try:
            key = PyJWK(jwk)
        except Exception:  # the library raises many kinds of errors for invalid keys
            continue
        min_bits = MIN_RSA_BITS if jwk["kty"] == "RSA" else MIN_EC_BITS
        if key.algorithm_name in ALGORITHMS and getattr(key.key, "key_size", 0) >= min_bits:
            keys[key_id] = JwkKey(key)
    return keys


class ApiServerKeys:
    """`ports.signing_keys.SigningKeys` of the API server, up to date while `follow` runs."""

    def __init__(
        self,
        fetch: Fetch,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`fetch` reads from the API server. `clock` returns monotonic seconds, `wall_clock`
        seconds since the Unix epoch, as in tokens."""
        self.issuer: str | None = None
        """The issuer that tokens must name; None: not read yet."""
        self.generation = 0
        """How often the issuer or the keys have changed."""
        self._keys: Mapping[str, SigningKey] = {}
        """The usable keys by id, as last read."""
        self._jwks: bytes = b""
        """The key set that was read last, as JSON; empty: none was read yet."""
        self._fetch = fetch
        self._clock = clock
        self._wall_clock = wall_clock
        self._read_at: float | None = None
        """When the keys were last read, by `clock`; None: not yet."""
        self._complete_until = 0.0
        """Unix time of the last read, less a leeway for clocks: the key of a token that was issued
        until then must be in `_keys`; a later token may have a newer key."""
        self._read_requested = asyncio.Event()
        """Set by `request_read`; wakes `follow`."""
        self.tried = asyncio.Event()
        """Set after the first read, whether it succeeded or not."""

    def find(self, key_id: str) -> SigningKey | None:
        """Return the key with this id, as last read; None: there is none."""
        return self._keys.get(key_id)

    def request_read(self, issued: float) -> bool:
        """Have `follow` read the keys soon, because a token that was issued at `issued` (Unix time)
        names an unknown key; within `UNKNOWN_KEY_READ_INTERVAL` of the last read, request nothing.
        Returns True if the key may still turn up: a read was requested, or the token is newer than
        the last read. False: the last read was after `issued`, so the issuer has no such key."""
        if self._read_at is not None and self._clock() - self._read_at < UNKNOWN_KEY_READ_INTERVAL:
            # The sender of a newer token tries again, and another read is allowed by then.
            return issued > self._complete_until
        self._read_requested.set()
        return True

    async def follow(self) -> None:
        """Read the keys regularly, and when `request_read` was called, until cancelled. A read that
        fails is logged and repeated."""
        while True:
            self._read_requested.clear()
            try:
                await self._read()
                wait = KEY_READ_INTERVAL
            except (OSError, KnafkaError) as error:
                log.warning(
                    "can't read the API server's keys for senders' tokens: %s",
                    describe_request_error(error),
                )
                wait = FAILED_READ_INTERVAL
            except Exception:  # without this task, no key would be read any more
                log.exception("can't read the API server's keys for senders' tokens")
                wait = FAILED_READ_INTERVAL
            self.tried.set()
            try:
                async with asyncio.timeout(wait):
                    await self._read_requested.wait()
            except TimeoutError:
                continue
            if wait == FAILED_READ_INTERVAL:
                # After a failure, not even a request shortens the wait.
                await asyncio.sleep(FAILED_READ_INTERVAL)

    async def _read(self) -> None:
        """Read the issuer and its keys from the API server. Raises `OSError` and `KeysUnreadable`;
        then the keys that were read before stay in use."""
        began_at = self._wall_clock()  # a key that is created during the requests may be missing
        discovery = await asyncio.to_thread(self._fetch, DISCOVERY)
        jwks = await asyncio.to_thread(self._fetch, JWKS)
        try:
            issuer = msgspec.json.decode(discovery, type=_Discovery).issuer
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise KeysUnreadable("its discovery document names no issuer") from None
        if (issuer, jwks) != (self.issuer, self._jwks):
            keys = parse_keys(jwks)
            if not keys:
                raise KeysUnreadable("none of its keys can be used")
            self.issuer, self._keys, self._jwks = issuer, keys, jwks
            self.generation += 1
        self._read_at, self._complete_until = self._clock(), began_at - LEEWAY


def fetch_with_credentials(url: str, folder: Path) -> Fetch:
    """Return the `Fetch` that reads from the API server at `url` with the token and CA in `folder`.
    Raises `InvalidDocument` if the URL isn't https."""
    ask = ask_with_credentials(url, folder)
    return lambda path: ask(path, None)
