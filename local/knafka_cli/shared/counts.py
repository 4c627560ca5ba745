"""Numbers with their nouns, as commands print them. Pure."""

from __future__ import annotations


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: `1 error`, `2 errors`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
