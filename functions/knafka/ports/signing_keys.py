"""Signing keys: those of the issuer of senders' tokens, as a receiver asks for them.

`knafka.clients.kubernetes.api_server_keys` has those of Kubernetes' API server; tests have some
in memory.
Not here: what a token must say (`core.auth_tokens`).
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
        """Whether this key has signed it; never raises. `algorithm` is one of `algorithms`."""
        ...


class SigningKeys(Protocol):
    """The issuer and its keys as they were read last; asking waits for nothing."""

    @property
    def issuer(self) -> str | None:
        """The issuer whose keys were read; None: nothing was read yet."""
        ...

    @property
    def generation(self) -> int:
        """A number that changes whenever a key or the issuer changes."""
        ...

    def find(self, key_id: str) -> SigningKey | None: ...

    def read_again(self, issued: float) -> bool:
        """Read the keys again, as a token issued at that time (seconds since the Unix epoch) names
        an unknown one. Returns False if they were read since then, so that there is no such key."""
        ...
