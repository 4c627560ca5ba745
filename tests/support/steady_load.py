"""A sender that sends on, whatever becomes of what it sent: open-loop load on a Broker."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from testcluster import settings

RATE: Final = 25
"""Events a second."""
TIMEOUT: Final = 30.0
"""Seconds until a sender gives up."""


class Load:
    """Sends so many events a second from a thread of its own, until it is left."""

    def __init__(
        self,
        address: str,
        rate: float = RATE,
        *,
        source: str = "/load",
        types: Sequence[str] = ("made",),
        headers: Mapping[str, str] | None = None,
        through: str = f"http://{settings.NODE_IP}:81",
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        """Event number N, whose id is N, has the type `types[N % len(types)]`.

        `through`: what is connected to, the cluster's private ingress or a Service's address.
        """
        self._rate = rate
        self._source = source
        self._types = types
        self._url = urlsplit(address)
        self._headers = dict(headers or {})
        self._through = through
        self._verify = verify
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

    def send_to(self, address: str, through: str) -> None:
        """Send what comes next to another address, as a sender that has read it anew."""
        self._url, self._through = urlsplit(address), through

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
        async with httpx.AsyncClient(
            timeout=TIMEOUT, limits=limits, trust_env=False, verify=self._verify,
        ) as client, asyncio.TaskGroup() as sending:  # fmt: skip
            began, number = loop.time(), 0
            while not self._over.is_set():
                sending.create_task(self._send(client, number))
                number += 1
                await asyncio.sleep(max(0.0, began + number / self._rate - loop.time()))

    async def _send(self, client: httpx.AsyncClient, number: int) -> None:
        event = str(number)
        headers = {
            **self._headers,
            "host": self._url.netloc,
            "ce-specversion": "1.0",
            "ce-id": event,
            "ce-source": self._source,
            "ce-type": self._type_of(event),
        }
        try:
            answer = await client.post(
                self._through + self._url.path,
                headers=headers,
                content=event.encode(),
                extensions={"sni_hostname": self._url.netloc},
            )
        except httpx.HTTPError:
            self.statuses[event] = 0
        else:
            self.statuses[event] = answer.status_code

    @property
    def failed(self) -> Mapping[str, int]:
        """Those that were answered with something else than 202, so far."""
        return {event: status for event, status in self.statuses.copy().items() if status != 202}

    @property
    def accepted(self) -> set[str]:
        return {event for event, status in self.statuses.copy().items() if status == 202}

    def accepted_of(self, type_: str) -> set[str]:
        """Ids of the accepted events that have this type."""
        return {event for event in self.accepted if self._type_of(event) == type_}

    def _type_of(self, event: str) -> str:
        return self._types[int(event) % len(self._types)]


def longest_pause(seen: Sequence[Mapping[str, Any]], began: float, ended: float) -> float:
    """Seconds of the longest time in which nothing arrived of what a subscriber has seen."""
    arrivals: list[float] = sorted(each["at"] for each in seen)
    times = [began, *(each for each in arrivals if began <= each <= ended), ended]
    return max(later - earlier for earlier, later in pairwise(times))
