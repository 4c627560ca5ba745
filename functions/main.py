"""The targets that functions-framework and func start: thin, nothing is opened at import.

    functions-framework --source functions/main.py --target receive|dispatch|sense
    func (invoke: http): `new()`, chosen by FUNCTION_TARGET

Both ways run the same functions as `python -m knafka` does under its own server,
only on the server that the framework brings. Neither framework tells an asynchronous function that
the process is to end, and functions-framework doesn't tell that it began: `Hosted` sees to both.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from types import FrameType

import functions_framework.aio
from starlette.requests import Request
from starlette.responses import Response

from knafka.dispatcher.function import Dispatcher
from knafka.receiver.function import Receiver
from knafka.sensor.function import SensorFunction
from knafka.serving import Function, Receive, Scope, Send, start_profiling


class Hosted:
    """A function under a foreign server, as func's contract has it (FN-2)."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._starting: asyncio.Task[None] | None = None

    def start(self, environment: Mapping[str, str]) -> None:
        """Begin to start; called on the event loop, by func or by the first request."""
        self._starting = asyncio.create_task(self._start(environment))
        self._listen_for_the_end()

    async def _start(self, environment: Mapping[str, str]) -> None:
        start_profiling(environment)
        await self._function.start(environment)

    def _listen_for_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        before = signal.getsignal(signal.SIGTERM)

        def interrupt(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self._function.interrupt)
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, interrupt)

    def stop(self) -> None:
        """Begin to stop; called on the event loop, by func when requests have ended."""
        self._stopping = asyncio.create_task(self._function.stop())

    async def stopped(self) -> None:
        """Wait for what `stop` began."""
        await self._stopping

    def alive(self) -> tuple[bool, str]:
        return self._function.alive()

    def ready(self) -> tuple[bool, str]:
        if self._starting is None or not self._starting.done():
            return False, "starting"
        if error := self._starting.exception():
            return False, str(error)
        return self._function.ready()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._starting is None:
            self.start(os.environ)
            assert self._starting is not None
        await asyncio.shield(self._starting)
        await self._function.handle(scope, receive, send)


class _Handled(Response):
    """A response that the function writes by itself, from the untouched request."""

    def __init__(self, hosted: Hosted) -> None:
        super().__init__()
        self._hosted = hosted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._hosted.handle(scope, receive, send)


_RECEIVER = Hosted(Receiver())
_DISPATCHER = Hosted(Dispatcher())
_SENSOR = Hosted(SensorFunction())


@functions_framework.aio.http
async def receive(request: Request) -> Response:
    """The receiver, as a functions-framework target."""
    return _Handled(_RECEIVER)


@functions_framework.aio.http
async def dispatch(request: Request) -> Response:
    """The dispatcher, as a functions-framework target."""
    return _Handled(_DISPATCHER)


@functions_framework.aio.http
async def sense(request: Request) -> Response:
    """The sensor, as a functions-framework target."""
    return _Handled(_SENSOR)


def new() -> Hosted:
    """The function that FUNCTION_TARGET names, for func: `receive`, unless it says `dispatch` or
    `sense`."""
    match os.environ.get("FUNCTION_TARGET"):
        case "dispatch":
            return Hosted(Dispatcher())
        case "sense":
            return Hosted(SensorFunction())
        case _:
            return Hosted(Receiver())
