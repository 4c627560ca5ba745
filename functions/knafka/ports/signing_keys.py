"""The port by which a receiver gets the public keys that verify senders' tokens.

`knafka.clients.kubernetes.api_server_keys` reads the keys of Kubernetes' API server; tests use an
implementation in memory. Not here: checking a token's claims (`core.tokens.auth_tokens`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol


class SigningKey(Protocol):
    """A public key of the issuer of tokens."""

    @property
    def algorithms(self) -> Set[str]:
        """The algorithms with which the key may be used, such as RS256."""
        ...

    def verify(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Whether `signature` is this key's signature of the text `signed`; never raises.
        `algorithm` is one of `algorithms`."""
        ...


class SigningKeys(Protocol):
    """The issuer and its keys as last read; no method waits."""

    @property
    def issuer(self) -> str | None:
        """The issuer whose keys were read; None: no keys were read yet."""
        ...

    @property
    def generation(self) -> int:
        """A number that changes whenever a key or the issuer changes."""
        ...

    def find(self, key_id: str) -> SigningKey | None:
        """Return the key with this id; None: it isn't among the keys that were read last."""
        ...

    def request_read(self, issued: float) -> bool:
        """Start to read the keys again, because a token that was issued at the time `issued`
        (seconds since the Unix epoch) names an unknown key. Return True if the key may still be
        found, False if the keys were read after `issued`, so that the issuer has no such key."""
        ...
