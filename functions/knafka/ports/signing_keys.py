"""Signing keys: those of the issuer of senders' tokens, as a receiver asks for them.

`knafka.clients.api_server_keys` has those of Kubernetes' API server; tests have some in memory.
Not here: what a token must say (`core.auth_tokens`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol


class SigningKey(Protocol):
    """One public key."""

    @property
    def algorithms(self) -> Set[str]:
        """Those that it may be used with."""
        ...

    def verify(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Whether this key has signed it; never raises. `algorithm` is one of `algorithms`."""
        ...


class SigningKeys(Protocol):
    """The issuer and its keys as they were read last; asking waits for nothing."""

    @property
    def issuer(self) -> str | None:
        """None: nothing was read so far."""
        ...

    @property
    def generation(self) -> int:
        """Another number whenever a key or the issuer is another."""
        ...

    def find(self, key_id: str) -> SigningKey | None: ...

    def read_again(self, issued: float) -> bool:
        """Have the keys read anew, as one is unknown that a token of that time names (seconds since
        the Unix epoch). False: they have just been, since that time, so there is no such key."""
        ...
