"""Ending: requests that were stopped, and must be over before anything is opened in their place.

Not here: what is opened then (`scaler`, `sensor_scaler`), stopping itself (`holds`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from knafka_operator.scale.holds import Hold, Holds


class EndingHolds:
    """By id of the Trigger or Sensor."""

    def __init__(self, on_over: Callable[[str], None]) -> None:
        """`on_over` is called with an id once nothing of it ends any more."""
        self._on_over = on_over
        self._holds: dict[str, set[Hold]] = {}

    def __contains__(self, id_: str) -> bool:
        return id_ in self._holds

    @property
    def all(self) -> set[Hold]:
        return set[Hold]().union(*self._holds.values())

    def end(self, id_: str, holds: Holds[Any]) -> None:
        """Begin to end these."""
        for hold in holds.stop():
            self._holds.setdefault(id_, set()).add(hold)
            hold.add_done_callback(partial(self._is_over, id_))

    async def wait(self, id_: str) -> None:
        """Until those that end now are over."""
        if holds := self._holds.get(id_):
            await asyncio.wait(set(holds))

    def _is_over(self, id_: str, hold: Hold) -> None:
        holds = self._holds[id_]
        holds.discard(hold)
        if not holds:
            del self._holds[id_]
            self._on_over(id_)
