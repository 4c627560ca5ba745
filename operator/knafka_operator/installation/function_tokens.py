"""Function tokens: derives the bearer tokens by which functions recognise the operator (decision
0038).

The keys change while the operator runs (`runtime.function_keys`): during a rotation functions
accept tokens of the old key and of the new one.
"""

from __future__ import annotations

from collections.abc import Sequence

from knafka.core.tokens.caller_tokens import token_of, verifiers_of


class FunctionTokens:
    """Derives tokens for functions' URLs from the installation's keys."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self.keys = keys
        """The installation's keys, newest first; without keys functions require no token."""

    def bearers(self, url: str) -> list[str]:
        """Return the tokens to try, in this order, at the function at `url`: one for each key, the
        newest first. A function that hasn't rolled since a key rotation accepts only an older one.
        Empty: the function requires no token."""
        return [token_of(key, url) for key in self.keys]

    def verifiers(self, url: str) -> str:
        """Return the value of the variable `CALLERS` (`knafka.core.tokens.caller_tokens`) by which
        the function at `url` checks tokens; empty: it requires no token."""
        return verifiers_of(self.bearers(url))


def authorization(bearer: str) -> dict[str, str]:
    """Return the `Authorization` header for a bearer token; an empty mapping for an empty token."""
    return {"authorization": f"Bearer {bearer}"} if bearer else {}
