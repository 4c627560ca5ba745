"""Tokens of service accounts in memory."""

from __future__ import annotations

import asyncio
from collections import Counter

from knafka.core.tokens.sink_tokens import EXPIRATION, Account, IssuedToken
from knafka.ports.account_tokens import TokenUnavailable


class MemoryTokens:
    """`AccountTokens` of the accounts in `accounts`; each token says whose it is, and for whom."""

    def __init__(self, *accounts: Account, life: float = EXPIRATION) -> None:
        self.accounts = set(accounts)
        self.life = life
        self.takes = 0.0
        """Seconds that a request takes."""
        self.problem = ""
        """Why none is given."""
        self.asked = Counter[tuple[Account, str]]()

    async def issue(self, account: Account, audience: str) -> IssuedToken:
        self.asked[account, audience] += 1
        await asyncio.sleep(self.takes)
        if self.problem:
            raise TokenUnavailable(self.problem)
        if account not in self.accounts:
            raise TokenUnavailable("it answered 404: there is no such service account")
        number = self.asked[account, audience]
        value = f"{account.namespace}.{account.name}.{audience.replace('/', '-')}.{number}"
        return IssuedToken(value.encode(), self.life)
