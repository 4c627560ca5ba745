"""Isolation: whether a Trigger has its own dispatcher, or shares one with other Triggers.

Not here: which shard a Trigger gets (`kafka.shards`), and which of the two a Trigger with `auto`
needs (`dispatchers.activity`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from knafka.core.errors import InvalidDocument
from knafka_operator.model.resources import ISOLATION, annotation_path


class Isolation(StrEnum):
    """The kind of dispatcher that delivers a Trigger."""

    OWN = "own"
    """A Service of the Trigger's own, whose pods handle no other Trigger's events."""
    SHARED = "shared"
    """A shard, which is a dispatcher that several Triggers of a Broker share
    (docs/decisions/0018)."""
    AUTO = "auto"
    """Shared while it is quiet, its own while it is busy. Only declared: a running delivery is
    `own` or `shared`."""


def parse_isolation(text: str, path: str) -> Isolation:
    """Parse `own`, `shared` or `auto`. Raises `InvalidDocument` with the path of the field that
    holds `text`."""
    try:
        return Isolation(text)
    except ValueError:
        allowed_values = ", ".join(Isolation)
        raise InvalidDocument(path, f"invalid value: {text:.80}: want {allowed_values}") from None


def declared_isolation(annotations: Mapping[str, str]) -> Isolation | None:
    """Return the isolation that an object's annotations declare; None: they declare none. Raises
    `InvalidDocument`."""
    text = annotations.get(ISOLATION)
    return None if text is None else parse_isolation(text, annotation_path(ISOLATION))
