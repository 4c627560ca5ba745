"""Serving: runs one function under uvicorn, from the command line or a supervisor.

    python -m knafka.receiver               on HOST and PORT
    python -m knafka.receiver --fd 3        on a listening socket that the parent opened

Under functions-framework and func, the same functions start without this module, and without a TLS
port of their own (`tls_listener`). Not here: several processes, which Knative provides.
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
"""Seconds in which connections finish after SIGTERM; with a function's own stop, less than ten."""

TICK: Final = 1.0
"""Seconds between two ticks of the server, which update the Date header."""

GC_THRESHOLD: Final = 20_000
"""New objects between two runs of the garbage collector: some failures make a few reference cycles,
an event makes none."""

LIVENESS: Final = frozenset({"/health/liveness", "/healthz"})
READINESS: Final = frozenset({"/health/readiness", "/readyz"})
"""Paths of the readiness probe: func's, and upstream's (FN-4, KN-DP-13)."""

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ServedFunction(Protocol):
    """The methods of func's contract (FN-2) that serving calls."""

    async def start(self, environment: Mapping[str, str]) -> None:
        """Read the settings from the environment, and open what the function needs. Raises
        `InvalidDocument`."""
        ...

    async def stop(self) -> None:
        """End the function's work, and close what `start` opened."""
        ...

    def interrupt(self) -> None:
        """Begin to end long work, such as drains, as the process will end; returns at once. Called
        on the event loop."""
        ...

    async def wait_until_interrupted(self) -> None:
        """Wait until the work that `interrupt` ends is over; requests are still answered
        meanwhile."""
        ...

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, as an ASGI application."""
        ...

    def alive(self) -> tuple[bool, str]:
        """Return False and the reason if only a restart helps, else True."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Return whether requests may be sent to the process, and if not why."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return the objects by name that the connections of a started function share (ASGI's
        lifespan state)."""
        ...


def asgi(function: ServedFunction, environment: Mapping[str, str]) -> Any:
    """Return the function as an ASGI application with a lifespan, in which it reads its settings
    from `environment`."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        """Start and stop the function by the lifespan protocol, or pass an HTTP request on to it;
        ignore other kinds of connections."""
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
    """Start and stop the function as ASGI's lifespan protocol says; a `KnafkaError` of the start is
    reported to the server, which then ends."""
    await receive()
    try:
        start_profiling(environment)
        await function.start(environment)
    except KnafkaError as error:
        await send({"type": "lifespan.startup.failed", "message": f"error: {error}"})
        return
    scope["state"].update(function.state())
    # Imported objects stay, and an event's objects are freed by reference counting: the garbage
    # collector's search among them took a tenth of a dispatcher's time (docs/decisions/0010).
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 100)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await function.stop()
    await send({"type": "lifespan.shutdown.complete"})


def start_profiling(environment: Mapping[str, str]) -> None:
    """Start the server of profiles if the environment enables it; call it on the event loop. Raises
    `InvalidDocument`."""
    if settings.profiling(environment):
        # Imported here, so that it costs nothing unless profiling is enabled.
        from knafka.profiling import server

        server.start(asyncio.get_running_loop())


def serve(
    function: ServedFunction,
    *,
    protocol: type[asyncio.Protocol] | None = None,
    encrypted: type[asyncio.Protocol] | None = None,
) -> None:
    """Serve the function until SIGTERM or SIGINT. `protocol` handles connections in place of ASGI;
    `encrypted` handles those of the TLS port, if the settings declare one.

    Exits with 2 and one line on stderr if these settings are invalid, with 3 if the contract is
    invalid or the start failed.
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
    """A uvicorn server that interrupts the function at a signal, before it waits for connections to
    end.

    Its main loop ticks once a second, for the Date header, and a signal wakes it: uvicorn's own ten
    ticks a second were half of an idle dispatcher's CPU.
    """

    def __init__(self, config: uvicorn.Config, function: ServedFunction) -> None:
        super().__init__(config)
        self._function = function
        self._is_signalled = asyncio.Event()

    async def main_loop(self) -> None:
        """Serve until a signal ends the server, in place of uvicorn's own loop: tick every `TICK`
        seconds, and at the signal."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._is_signalled.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal, overriding uvicorn's handler: let the server end, and interrupt the
        function on the event loop."""
        super().handle_exit(sig, frame)
        asyncio.get_running_loop().call_soon_threadsafe(self._end)

    def _end(self) -> None:
        """Interrupt the function and wake the main loop."""
        self._function.interrupt()
        self._is_signalled.set()


class _TlsServer(_FunctionServer):
    """A `_FunctionServer` with a second port, on which it serves TLS itself."""

    def __init__(
        self,
        config: uvicorn.Config,
        function: ServedFunction,
        tls: settings.Tls,
        protocol: type[asyncio.Protocol],
    ) -> None:
        """Create the server; the TLS port opens in `startup`, or later if `tls.folder` has no
        certificate yet. `protocol` handles its connections."""
        super().__init__(config, function)
        # Imported here, so that it costs nothing without a TLS port.
        from knafka.tls_listener import TlsListener

        self._problem = ""
        """Why the TLS port can't be opened; empty: no attempt has failed."""
        self._protocol = protocol
        self._listener = TlsListener(tls.folder, config.host, tls.port, self._create_protocol)

    def _create_protocol(self) -> asyncio.Protocol:
        """Create the protocol of one connection at the TLS port, as uvicorn does for its own
        port."""
        protocol_class: Any = self._protocol
        protocol: asyncio.Protocol = protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the plain port, and the TLS port if there is a certificate; uvicorn calls it at the
        start."""
        await super().startup(sockets)
        if self.started:
            await self._refresh_certificate()

    async def on_tick(self, counter: int) -> bool:
        """Check the certificate at each tick, which `main_loop` makes; returns whether the server
        ends."""
        await self._refresh_certificate()
        return await super().on_tick(counter)

    async def _refresh_certificate(self) -> None:
        """Read the certificate again if it has changed, and open the TLS port at the first one; log
        each problem once."""
        try:
            server = await self._listener.refresh()
        except OSError as error:
            if str(error) != self._problem:
                log.error("TLS is not served: %s", error)
            self._problem = str(error)
            return
        if server is not None:
            self.servers.append(server)  # uvicorn closes it with the others
