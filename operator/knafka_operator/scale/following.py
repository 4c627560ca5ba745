"""Following: one task for each thing that is looked at, those that are added later among them.

Not here: when it is time for a look, and when to stop (`scaler`, `sensor_scaler`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class Following(Generic[Item]):
    def __init__(self, follow: Callable[[Item], Coroutine[Any, Any, None]]) -> None:
        self._follow = follow
        self._waiting: list[Item] = []
        """Those that have no task yet."""
        self._added = asyncio.Event()

    def add(self, item: Item) -> None:
        self._waiting.append(item)
        self._added.set()

    async def run(self, items: Iterable[Item]) -> None:
        """Follow what there is, and what is added, until cancelled."""
        self._waiting = list(items)
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._added.clear()
                added, self._waiting = self._waiting, []
                for each in added:
                    tasks.create_task(self._follow(each))
                await self._added.wait()
