"""Identity: namespace and name of an object, the key by which the operator stores and finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias


class Identity(NamedTuple):
    """Namespace and name of an object; its kind follows from the context."""

    namespace: str
    name: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Identity:
        """Return the identity of a stored object, which must have a namespace."""
        metadata = document["metadata"]
        return cls(metadata["namespace"], metadata["name"])

    def __str__(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"


Key: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name of an object that is reconciled."""
