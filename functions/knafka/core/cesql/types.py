"""Types: what a CESQL expression computes with (§3.1). Casts between them: `values`."""

from __future__ import annotations

from typing import TypeAlias

Value: TypeAlias = str | int | bool
"""A String, an Integer (32 bits, signed) or a Boolean; exactly these types, no subclasses."""
