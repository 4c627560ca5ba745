"""Settings: what a function takes from its environment, checked once at start.

    KNAFKA_INGRESSES   receiver: its contract, a JSON array of Ingress
    KNAFKA_EGRESS      dispatcher: its contract, one Egress as JSON
    KNAFKA_LOG_LEVEL   debug, info, warning (the default), error
    HOST, PORT         where to listen; PORT is set by Knative

Refused here: defaults for the contract. A function without one says so and ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from knafka.core.contract import Egress, Ingress, parse_ingresses, parse_json
from knafka.core.errors import InvalidDocument

INGRESSES: Final = "KNAFKA_INGRESSES"
EGRESS: Final = "KNAFKA_EGRESS"
LOG_LEVEL: Final = "KNAFKA_LOG_LEVEL"

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a function listens."""

    host: str = "0.0.0.0"
    port: int = 8080


def listen(environment: Environment) -> Listen:
    """Raises `InvalidDocument` if PORT is no port."""
    port = environment.get("PORT", "8080")
    if not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise InvalidDocument("PORT", f"invalid value: {port:.80}: want a port number")
    return Listen(environment.get("HOST", "0.0.0.0"), int(port))


def log_level(environment: Environment) -> str:
    level = environment.get(LOG_LEVEL, "warning").lower()
    if level not in ("debug", "info", "warning", "error"):
        raise InvalidDocument(
            LOG_LEVEL, f"invalid value: {level:.80}: want debug, info, warning, error"
        )
    return level


def ingresses(environment: Environment) -> Sequence[Ingress]:
    """Raises `InvalidDocument` that names the variable and the broken field."""
    text = _required(environment, INGRESSES)
    try:
        found = parse_ingresses(text)
    except InvalidDocument as error:
        raise InvalidDocument(INGRESSES, str(error)) from error
    for path, times in Counter(each.path for each in found).items():
        if times > 1:
            raise InvalidDocument(INGRESSES, f"{times} Brokers have the path {path}: want one")
    return found


def egress(environment: Environment) -> Egress:
    """Raises `InvalidDocument` that names the variable and the broken field."""
    text = _required(environment, EGRESS)
    try:
        return parse_json(Egress, text)
    except InvalidDocument as error:
        raise InvalidDocument(EGRESS, str(error)) from error


def _required(environment: Environment, name: str) -> str:
    if not (text := environment.get(name)):
        raise InvalidDocument(name, "is not set: the operator writes a function's contract there")
    return text
