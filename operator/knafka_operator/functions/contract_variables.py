"""Contract variables: writes a function's contract into one environment variable, if it fits. Pure.

Not here: contracts in topics, which many functions share (`kafka.contracts`).
"""

from __future__ import annotations

from typing import Final

from knafka_operator.decisions.status import NotReady
from knafka_operator.functions.services import compact_json

MAX_CONTRACT: Final = 130_000
"""Most characters of a contract in an environment variable: Linux accepts 128 KiB for one with its
name, and a container with a larger one can't start."""


def contract_variable(document: object, function: str, advice: str) -> str:
    """Return a contract, `document`, as the value of an environment variable. Raises `NotReady` if
    it is too large; the message names the `function`, such as "dispatcher", and ends with the
    `advice`."""
    text = compact_json(document)
    if len(text) > MAX_CONTRACT:
        raise NotReady(
            "ContractTooLarge",
            f"its {function}'s contract has {len(text)} bytes, want at most {MAX_CONTRACT}: "
            f"{advice}",
        )
    return text
