"""Replaces a function of the standard library in one module of ours only.

`monkeypatch.setattr(time, "monotonic", …)` replaces it for every thread of the process: for the
loop watch, for the event loop and for what an earlier test may have left.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest


def replace_in(
    monkeypatch: pytest.MonkeyPatch, ours: ModuleType, library: str, **functions: object
) -> None:
    """Give `ours` a copy of the module that it has imported as `library`, with these functions.

    For the rest of the test; a second call adds to the first one's functions.
    """
    copied = SimpleNamespace(**{**vars(getattr(ours, library)), **functions})
    monkeypatch.setattr(ours, library, copied)
