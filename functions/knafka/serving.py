"""Serving: one function under uvicorn, from the command line or a supervisor.

    python -m knafka.receiver               on HOST and PORT
    python -m knafka.receiver --fd 3        on a listening socket that the parent opened

The same functions start under functions-framework and func without any of this, and without a port
of their own for TLS (`tls_listener`). Not here: more than one process, which Knative has.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from types import FrameType
from typing import Any, Final, Protocol, TypeAlias

import uvicorn

from knafka import settings
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka.observability import log_to_stderr

log = logging.getLogger(__name__)

GRACEFUL_TIMEOUT: Final = 4
"""Seconds in which connections finish after SIGTERM; with a function's own stop it makes ten."""

TICK: Final = 1.0
"""Seconds between two looks at the clock for the Date header."""

GC_THRESHOLD: Final = 20_000
"""New objects between two looks for cycles: some failures make a few, an event makes none."""

LIVENESS: Final = frozenset({"/health/liveness", "/healthz"})
READINESS: Final = frozenset({"/health/readiness", "/readyz"})
"""Paths of the readiness probe: func's, and upstream's (FN-4, KN-DP-13)."""

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ServedFunction(Protocol):
    """func's contract (FN-2), as far as serving needs it."""

    async def start(self, environment: Mapping[str, str]) -> None: ...
    async def stop(self) -> None: ...

    def interrupt(self) -> None:
        """The process is to end: begin with what takes time. Called on the event loop."""
        ...

    async def interrupted(self) -> None:
        """Wait for the end of what `interrupt` began, while requests are still answered."""
        ...

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def alive(self) -> tuple[bool, str]:
        """Whether a restart would not help, and why."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether requests may come, and why not."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return what the connections of a started function share (ASGI's lifespan state)."""
        ...


def asgi(function: ServedFunction, environment: Mapping[str, str]) -> Any:
    """The function as an ASGI application with a lifespan."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(function, environment, scope, receive, send)
        elif scope["type"] == "http":
            await function.handle(scope, receive, send)

    return application


async def _lifespan(
    function: ServedFunction,
    environment: Mapping[str, str],
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Start and stop the function as ASGI's lifespan protocol says."""
    await receive()
    try:
        start_profiling(environment)
        await function.start(environment)
    except KnafkaError as error:
        await send({"type": "lifespan.startup.failed", "message": f"error: {error}"})
        return
    scope["state"].update(function.state())
    # What is imported stays, and what an event needs is freed by counting references: looking for
    # cycles among it took a tenth of a dispatcher's time (docs/decisions/0010).
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 100)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await function.stop()
    await send({"type": "lifespan.shutdown.complete"})


def start_profiling(environment: Mapping[str, str]) -> None:
    """If it is wanted; called on the event loop. Raises `InvalidDocument`."""
    if settings.profiling(environment):
        # Here, as a function that isn't to be profiled pays nothing for it.
        from knafka.profiling import server

        server.start(asyncio.get_running_loop())


def serve(
    function: ServedFunction,
    *,
    protocol: type[asyncio.Protocol] | None = None,
    encrypted: type[asyncio.Protocol] | None = None,
) -> None:
    """Run until SIGTERM or SIGINT; `protocol` takes ASGI's place where it is given, and `encrypted`
    serves the port with TLS, where the settings want one.

    Exits with 2 and one line on stderr when the settings are not usable, with 3 when the contract
    is not or the start failed.
    """
    options = argparse.ArgumentParser(
        description=settings.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--fd", type=int, help="serve on this inherited listening socket")
    fd: int | None = options.parse_args().fd
    try:
        listen = settings.listen(os.environ)
        tls = settings.tls(os.environ)
        log_to_stderr(settings.log_level(os.environ), settings.log_format(os.environ))
    except InvalidDocument as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    config = uvicorn.Config(
        asgi(function, os.environ),
        host=listen.host,
        port=listen.port,
        http=protocol or "httptools",
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_TIMEOUT,
    )
    if tls is None or encrypted is None:
        server = _FunctionServer(config, function)
    else:
        server = _TlsServer(config, function, tls, encrypted)
    server.run(sockets=None if fd is None else [socket.socket(fileno=fd)])
    if not server.started:
        sys.exit(3)


class _FunctionServer(uvicorn.Server):
    """uvicorn's server, which tells the function of a signal before it waits for connections.

    It looks about once a second, for the Date header, and ends when it is told to: uvicorn's own
    looks, ten a second, were half of what a dispatcher costs that waits for events.
    """

    def __init__(self, config: uvicorn.Config, function: ServedFunction) -> None:
        super().__init__(config)
        self._function = function
        self._told = asyncio.Event()

    async def main_loop(self) -> None:
        """Serve until told to end."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._told.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the server at a signal, after interrupting the function."""
        super().handle_exit(sig, frame)
        asyncio.get_running_loop().call_soon_threadsafe(self._end)

    def _end(self) -> None:
        """Interrupt the function and wake the main loop."""
        self._function.interrupt()
        self._told.set()


class _TlsServer(_FunctionServer):
    """A `_FunctionServer` with a second port, at which the function ends TLS itself."""

    def __init__(
        self,
        config: uvicorn.Config,
        function: ServedFunction,
        tls: settings.Tls,
        protocol: type[asyncio.Protocol],
    ) -> None:
        super().__init__(config, function)
        # Here, as a function that has no such port pays nothing for it.
        from knafka.tls_listener import TlsListener

        self._problem = ""
        """Why the port can't be had."""
        self._protocol = protocol
        self._listener = TlsListener(tls.folder, config.host, tls.port, self._create_protocol)

    def _create_protocol(self) -> asyncio.Protocol:
        """Create the protocol of one connection."""
        of_uvicorn: Any = self._protocol
        made: asyncio.Protocol = of_uvicorn(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open both ports."""
        await super().startup(sockets)
        if self.started:
            await self._refresh_certificate()

    async def on_tick(self, counter: int) -> bool:
        """Check the certificate at each tick."""
        await self._refresh_certificate()
        return await super().on_tick(counter)

    async def _refresh_certificate(self) -> None:
        """Read the certificate again if it has changed; log problems once."""
        try:
            server = await self._listener.look()
        except OSError as error:
            if str(error) != self._problem:
                log.error("TLS is not served: %s", error)
            self._problem = str(error)
            return
        if server is not None:
            self.servers.append(server)  # uvicorn closes it with the others
