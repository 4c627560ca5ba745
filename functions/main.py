"""The targets that functions-framework starts. Importing this module opens nothing.

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
    """A response that the function itself writes, from the request that the framework hasn't read:
    so the targets below don't use their argument."""

    def __init__(self, hosted: Hosted) -> None:
        super().__init__()
        self._hosted = hosted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on to the function; the framework calls this to send the response."""
        await self._hosted.handle(scope, receive, send)


_RECEIVER = Hosted(ReceiverFunction())
_DISPATCHER = Hosted(Dispatcher())
_SENSOR = Hosted(SensorFunction())


@functions_framework.aio.http
async def receive(request: Request) -> Response:
    """Let the receiver handle a request."""
    return _Handled(_RECEIVER)


@functions_framework.aio.http
async def dispatch(request: Request) -> Response:
    """Handle a request by the dispatcher."""
    return _Handled(_DISPATCHER)


@functions_framework.aio.http
async def sense(request: Request) -> Response:
    """Handle a request by the sensor."""
    return _Handled(_SENSOR)
