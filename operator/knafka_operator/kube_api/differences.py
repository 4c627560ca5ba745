"""Differences: whether a write would change a stored object. Pure.

    stored, manifest     -> whether the stored object has all that the manifest declares
    stored, merge patch  -> whether the patch would change nothing

Not here: the writes that are skipped if they would change nothing (`cache`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def contains(stored: Any, desired: Any) -> bool:
    """Whether a stored value contains the desired one: a mapping may have additional keys, a list
    no additional elements, and any other value must be equal."""
    if isinstance(desired, Mapping):
        return isinstance(stored, Mapping) and all(
            key in stored and contains(stored[key], value) for key, value in desired.items()
        )
    if isinstance(desired, list | tuple):
        return (
            isinstance(stored, list)
            and len(stored) == len(desired)
            and all(map(contains, stored, desired))
        )
    return bool(stored == desired)


def changes_nothing(stored: Mapping[str, Any], patch: Mapping[str, Any]) -> bool:
    """Whether merging `patch` (RFC 7386) into `stored` would change nothing."""
    for key, value in patch.items():
        if value is None:  # it would remove the key
            if key in stored:
                return False
        elif isinstance(value, Mapping):
            stored_value = stored.get(key)
            if not isinstance(stored_value, Mapping) or not changes_nothing(stored_value, value):
                return False
        elif stored.get(key) != value:
            return False
    return True
