"""The port by which a receiver gets the keys of the issuer of senders' tokens.

`knafka.clients.kubernetes.api_server_keys` reads those of Kubernetes' API server; tests use an
implementation in memory. Not here: checking a token's claims (`core.tokens.auth_tokens`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol


class SigningKey(Protocol):
    """A public key of the issuer of tokens."""

    @property
    def algorithms(self) -> Set[str]:
        """The algorithms that the key may be used with."""
        ...

    def verify(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Whether this key made the signature of `signed`; never raises. `algorithm` is one of
        `algorithms`."""
        ...


class SigningKeys(Protocol):
    """The issuer and its keys as last read; no method waits."""

    @property
    def issuer(self) -> str | None:
        """The issuer whose keys were read; None: nothing was read yet."""
        ...

    @property
    def generation(self) -> int:
        """A number that changes whenever a key or the issuer changes."""
        ...

    def find(self, key_id: str) -> SigningKey | None:
        """Return the key with this id; None: the issuer has none, as far as is known."""
        ...

    def read_again(self, issued: float) -> bool:
        """Start to read the keys again, because a token issued at that time (seconds since the Unix
        epoch) names an unknown key. Returns False if they were read since then, so that there is no
        such key."""
        ...
