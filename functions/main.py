"""The targets that functions-framework starts: thin, nothing is opened at import.

    functions-framework --source functions/main.py --target receive|dispatch|sense

They run the same functions as `python -m knafka`, but on the framework's server. That server
reports neither the start nor the end of the process to an asynchronous function: `knafka.hosted`
handles both. Not here: func, which has `functions/function`.
"""

from __future__ import annotations

import functions_framework.aio
from starlette.requests import Request
from starlette.responses import Response

from knafka.dispatcher.function import Dispatcher
from knafka.hosted import Hosted
from knafka.receiver.function import ReceiverFunction
from knafka.sensor.function import SensorFunction
from knafka.serving import Receive, Scope, Send


class _Handled(Response):
    """A response that the function writes by itself, from the untouched request."""

    def __init__(self, hosted: Hosted) -> None:
        super().__init__()
        self._hosted = hosted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._hosted.handle(scope, receive, send)


_RECEIVER = Hosted(ReceiverFunction())
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
