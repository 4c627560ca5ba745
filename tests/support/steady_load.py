"""A sender that sends on, whatever becomes of what it sent: open-loop load on a Broker."""

from __future__ import annotations

import asyncio
import threading
from typing import Final
from urllib.parse import urlsplit

import httpx

from testcluster import settings

RATE: Final = 25
"""Events a second."""
TIMEOUT: Final = 30.0
"""Seconds until a sender gives up."""


class Load:
    """Sends `RATE` events a second from a thread of its own, until it is left."""

    def __init__(self, address: str) -> None:
        self._url = urlsplit(address)
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.statuses: dict[str, int] = {}
        """By event id; 0: no answer."""

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
        async with httpx.AsyncClient(
            base_url=f"http://{settings.NODE_IP}:81", timeout=TIMEOUT, limits=limits,
            trust_env=False,
        ) as client, asyncio.TaskGroup() as sending:  # fmt: skip
            began, number = loop.time(), 0
            while not self._over.is_set():
                sending.create_task(self._send(client, str(number)))
                number += 1
                await asyncio.sleep(max(0.0, began + number / RATE - loop.time()))

    async def _send(self, client: httpx.AsyncClient, event: str) -> None:
        headers = {
            "host": self._url.netloc,
            "ce-specversion": "1.0",
            "ce-id": event,
            "ce-source": "/load",
            "ce-type": "made",
        }
        try:
            answer = await client.post(self._url.path, headers=headers, content=event.encode())
        except httpx.HTTPError:
            self.statuses[event] = 0
        else:
            self.statuses[event] = answer.status_code

    @property
    def accepted(self) -> set[str]:
        return {event for event, status in self.statuses.copy().items() if status == 202}
