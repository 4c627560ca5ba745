"""A subscriber in memory, for tests: answers come from a function, requests are remembered.

Refused here: time. A delivery that should time out is answered with a `DeliveryError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from knafka.core.errors import DeliveryError
from knafka.ports.subscriber import Response, Target


@dataclass(frozen=True, slots=True)
class Request:
    """One attempt, as it was asked for."""

    target: Target
    head: bytes
    body: bytes
    timeout: float

    def header(self, name: bytes) -> bytes | None:
        """The first value of the lower-cased `name`."""
        for line in self.head.split(b"\r\n"):
            each, _, value = line.partition(b":")
            if each.lower() == name:
                return value.strip()
        return None


Answer: TypeAlias = Callable[[Request], Response | DeliveryError]


class MemorySubscriber:
    """A `Subscriber` whose answers are made by `answer`."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[Request] = []
        self._answer = answer
        self._closed = False

    async def post(self, target: Target, head: bytes, body: bytes, timeout: float) -> Response:
        # Like a real post it never ends in the turn of the loop in which it began.
        await asyncio.sleep(0)
        if self._closed:
            raise DeliveryError("broken", "the client is closed")
        if target.problem:
            raise DeliveryError("refused", target.problem)
        request = Request(target, head, body, timeout)
        self.requests.append(request)
        outcome = self._answer(request)
        if isinstance(outcome, DeliveryError):
            raise outcome
        return outcome

    async def close(self) -> None:
        self._closed = True
