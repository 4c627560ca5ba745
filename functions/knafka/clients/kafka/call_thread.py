"""A thread that makes blocking calls in order, for one owner on the event loop.

It is for librdkafka's blocking calls, such as a consumer's poll and a producer's flush.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any


class CallThread:
    """A daemon thread that makes blocking calls in order. It doesn't keep the process alive, as
    librdkafka's close can hang while Kafka is frozen."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        """Start the thread with this name; results are passed to `loop`."""
        self._loop = loop
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """The calls that are still to be made; None ends the thread."""
        Thread(target=self._run, name=name, daemon=True).start()

    def call(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call `function` on the thread, after all earlier calls; returns at once. The returned
        future gets the function's result or exception."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def resolve(result: Any, error: BaseException | None) -> None:
            """Give the call's result or error to the future, unless the future was cancelled."""
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        def run_on_thread() -> None:
            """Call `function`, and pass its result or error to the event loop."""
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:
                error = raised
            # If the loop is closed, which raises `RuntimeError`, no caller waits any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(resolve, result, error)

        self._calls.put(run_on_thread)
        return answer

    def end(self) -> None:
        """End the thread after all calls that were requested before; returns at once."""
        self._calls.put(None)

    def _run(self) -> None:
        """Make the calls in order, until `end`."""
        while (call := self._calls.get()) is not None:
            call()
