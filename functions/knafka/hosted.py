"""Runs our functions in the servers of func and functions-framework.

func calls `new()` once and then the instance's methods: `start` and `stop` are plain calls on the
event loop, `handle` is ASGI, `alive` and `ready` answer its probes (FN-2, FN-4).
`functions/function` exports `new` for a build from source (FN-13). Under functions-framework, the
targets in `functions/main.py` call `handle`.

Not here: an import of either framework. The two can't be installed together (FF-4), and this module
is used with both.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from types import FrameType
from typing import Final

from knafka.core.errors import InvalidDocument, KnafkaError
from knafka.serving import Receive, Scope, Send, ServedFunction, start_profiling

log = logging.getLogger(__name__)

TARGET: Final = "FUNCTION_TARGET"
"""Environment variable: the function to run, `receive`, `dispatch` or `sense`."""


class Hosted:
    """A function in a server that isn't ours, by func's contract (FN-2)."""

    def __init__(self, function: ServedFunction) -> None:
        """Start nothing yet: `start` or the first request starts the function."""
        self._function = function
        self._starting: asyncio.Task[None] | None = None
        """The start of the function; None: it hasn't begun."""
        self._ending: asyncio.Task[None] | None = None
        """The end of the server after SIGTERM; None: it hasn't begun."""
        self._stopping: asyncio.Task[None]
        """The stop of the function, set by `stop`."""

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the function in the background, and install the handler of SIGTERM that ends it.
        Called on the event loop by func, or else by the first request (`handle`)."""
        self._starting = asyncio.create_task(self._start(environment))
        self._handle_sigterm()

    async def _start(self, environment: Mapping[str, str]) -> None:
        """Start profiling if the environment enables it, then the function. Log and raise the
        `KnafkaError` that prevents either."""
        try:
            start_profiling(environment)
            await self._function.start(environment)
        except KnafkaError as error:
            # The readiness probe's answer has the error, too, but Kubernetes shows only the
            # answer's status.
            log.error("error: %s", error)
            raise

    def _handle_sigterm(self) -> None:
        """Install a handler of SIGTERM that ends the function before the server."""
        loop = asyncio.get_running_loop()
        if loop.remove_signal_handler(signal.SIGTERM):
            # The server's handler was on the event loop, as func's is: ours replaces it.
            loop.add_signal_handler(signal.SIGTERM, self._end_function_then_server)
            return
        # The server's handler, if any, was installed by `signal.signal`: ours calls it.
        previous_handler = signal.getsignal(signal.SIGTERM)

        def interrupt(number: int, frame: FrameType | None) -> None:
            """Interrupt the function on the event loop, and call the server's own handler."""
            loop.call_soon_threadsafe(self._function.interrupt)
            if callable(previous_handler):
                previous_handler(number, frame)

        signal.signal(signal.SIGTERM, interrupt)

    def _end_function_then_server(self) -> None:
        """Interrupt the function, and end the server once the function's drains have ended; called
        at SIGTERM. With its own handler, the server would wait for open connections, but not for
        the task of `stop`."""
        if self._ending is None:
            self._function.interrupt()
            self._ending = asyncio.create_task(self._end_server())

    async def _end_server(self) -> None:
        """Wait until the function has finished its drains, then end the server."""
        try:
            await self._function.wait_until_interrupted()
        finally:
            # Not SIGTERM, whose handler is ours: func's server ends at SIGINT, too.
            signal.raise_signal(signal.SIGINT)

    def stop(self) -> None:
        """Stop the function in the background. func calls this on the event loop once all requests
        have ended."""
        self._stopping = asyncio.create_task(self._function.stop())

    async def wait_until_stopped(self) -> None:
        """Wait until the function has stopped; call `stop` first."""
        await self._stopping

    def alive(self) -> tuple[bool, str]:
        """Answer the liveness probe: return False and the reason if only a restart of the process
        helps, else True and a text."""
        return self._function.alive()

    def ready(self) -> tuple[bool, str]:
        """Answer the readiness probe: return whether the function has started and is ready, and if
        not the reason."""
        if self._starting is None or not self._starting.done():
            return False, "starting"
        if error := self._starting.exception():
            return False, str(error)
        return self._function.ready()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request as an ASGI application. Before the first one, start the function if
        the server hasn't, and wait until it has started. Raises the error of a failed start."""
        if self._starting is None:
            self.start(os.environ)
            assert self._starting is not None
        # Shielded, as a request that is cancelled must not cancel the start.
        await asyncio.shield(self._starting)
        await self._function.handle(scope, receive, send)


def new() -> Hosted:
    """Return the function that FUNCTION_TARGET names, for func; `receive` if it is not set.

    Raises `InvalidDocument` for an unknown name. Only the named function is imported, as imports
    take most of a cold start's time.
    """
    match os.environ.get(TARGET) or "receive":
        case "receive":
            from knafka.receiver.function import ReceiverFunction

            return Hosted(ReceiverFunction())
        case "dispatch":
            from knafka.dispatcher.function import Dispatcher

            return Hosted(Dispatcher())
        case "sense":
            from knafka.sensor.function import SensorFunction

            return Hosted(SensorFunction())
        case target:
            problem = f"invalid value: {target!r:.80}: want receive, dispatch, sense"
            raise InvalidDocument(TARGET, problem)
