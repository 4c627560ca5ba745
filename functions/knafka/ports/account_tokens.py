"""Account tokens: tokens of service accounts, as a dispatcher asks for them.

`knafka.clients.kubernetes.api_server_tokens` asks Kubernetes' API server; tests have some in
memory.
Not here: when one is asked for (`core.sink_tokens`).
"""

from __future__ import annotations

from typing import Protocol

from knafka.core.errors import KnafkaError
from knafka.core.tokens.sink_tokens import Account, IssuedToken


class TokenUnavailable(KnafkaError):
    """No token was given; the message says why, and nothing of any token."""


class AccountTokens(Protocol):
    """Gives tokens."""

    async def issue(self, account: Account, audience: str) -> IssuedToken:
        """A new token of this account for this audience and no other. Raises
        `TokenUnavailable`."""
        ...
