"""The types of values in CESQL expressions (§3.1); `values` casts between them."""

from __future__ import annotations

from typing import TypeAlias

Value: TypeAlias = str | int | bool
"""A String, an Integer (32 bits, signed) or a Boolean; exactly these types, no subclasses."""
