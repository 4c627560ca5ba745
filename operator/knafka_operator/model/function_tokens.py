"""Tokens of functions: what the operator sends to be answered (decision 0038).

The keys change while the operator runs (`runtime.function_keys`): during a rotation functions
accept tokens of the old key and of the new one.
"""

from __future__ import annotations

from collections.abc import Sequence

from knafka.core.caller_tokens import token_of, verifiers_of


class FunctionTokens:
    """Tokens by a function's URL, from the installation's keys."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self.keys = keys
        """The newest first; none: functions answer everybody."""

    def bearers(self, url: str) -> list[str]:
        """What to call the function at `url` with, the newest key's first: one that hasn't rolled
        since a rotation knows the next."""
        return [token_of(key, url) for key in self.keys]

    def verifiers(self, url: str) -> str:
        """The value of `CALLERS` of the function at `url`; empty: it answers everybody."""
        return verifiers_of(self.bearers(url))


def authorization(bearer: str) -> dict[str, str]:
    """The header that shows a token; none for an empty one."""
    return {"authorization": f"Bearer {bearer}"} if bearer else {}
