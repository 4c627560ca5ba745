"""The port by which a dispatcher requests tokens of service accounts.

`knafka.clients.kubernetes.api_server_tokens` requests tokens from Kubernetes' API server; tests use
an implementation in memory. Not here: when to request a token (`core.tokens.sink_tokens`).
"""

from __future__ import annotations

from typing import Protocol

from knafka.core.errors import KnafkaError
from knafka.core.tokens.sink_tokens import Account, IssuedToken


class TokenUnavailable(KnafkaError):
    """Raised if no token was issued; the message says why, without any text of a token."""


class AccountTokens(Protocol):
    """Issues tokens of service accounts."""

    async def issue(self, account: Account, audience: str) -> IssuedToken:
        """Return a new token of this account, which is valid for this audience only. Raises
        `TokenUnavailable`."""
        ...
