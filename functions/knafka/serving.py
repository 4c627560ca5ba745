"""Runs one function under uvicorn, from the command line or a supervisor.

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
"""Seconds that connections have after SIGTERM to finish. Together with the function's own stop,
that is less than ten seconds, Kubernetes' shortest grace period."""

TICK: Final = 1.0
"""Seconds between two ticks of the server, which update the Date header."""

GC_THRESHOLD: Final = 20_000
"""New objects between two runs of the garbage collector. Runs may be rare, as only some failures
make reference cycles, and an event makes none."""
OLDER_GC_THRESHOLDS: Final = (50, 100)
"""Runs of the garbage collector for the young objects between two runs for the middle generation,
and runs for the middle generation between two for the old one."""

LIVENESS: Final = frozenset({"/health/liveness", "/healthz"})
"""Paths of the liveness probe: func's, and upstream's (FN-4, KN-DP-13)."""
READINESS: Final = frozenset({"/health/readiness", "/readyz"})
"""Paths of the readiness probe: func's, and upstream's (FN-4, KN-DP-13)."""

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
"""ASGI's description of a connection, and its functions that receive and send a message."""


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
        """Begin to end long work, such as drains, because the process is about to end; returns at
        once. Called on the event loop."""
        ...

    async def wait_until_interrupted(self) -> None:
        """Wait until the work that `interrupt` ends is over; requests are still answered
        meanwhile."""
        ...

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, as an ASGI application."""
        ...

    def alive(self) -> tuple[bool, str]:
        """Return False and the reason if only a restart of the process helps, else True and a
        text."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Return whether requests may be sent to the process, and if not the reason."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return, by name, the objects that the connections of a started function share (ASGI's
        lifespan state)."""
        ...


def asgi(function: ServedFunction, environment: Mapping[str, str]) -> Any:
    """Return the function as an ASGI application. The function starts when the application's
    lifespan begins, with the settings in `environment`."""

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
    """Start and stop the function as ASGI's lifespan protocol says. If the start raises a
    `KnafkaError`, report it to the server, which then ends."""
    await receive()  # the request to start
    try:
        start_profiling(environment)
        await function.start(environment)
    except KnafkaError as error:
        await send({"type": "lifespan.startup.failed", "message": f"error: {error}"})
        return
    scope["state"].update(function.state())
    # The imported objects stay, and an event's objects are freed by reference counting. To let the
    # garbage collector search them took a tenth of a dispatcher's time (docs/decisions/0010).
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *OLDER_GC_THRESHOLDS)
    await send({"type": "lifespan.startup.complete"})
    await receive()  # comes when the server stops
    await function.stop()
    await send({"type": "lifespan.shutdown.complete"})


def start_profiling(environment: Mapping[str, str]) -> None:
    """Start the server of profiles if the environment enables it. Call this on the event loop.
    Raises `InvalidDocument` for an invalid setting."""
    if settings.serves_profiles(environment):
        # Imported here, so that it costs nothing unless profiling is enabled.
        from knafka.profiling import server

        server.start(asyncio.get_running_loop())


def serve(
    function: ServedFunction,
    *,
    protocol: type[asyncio.Protocol] | None = None,
    tls_protocol: type[asyncio.Protocol] | None = None,
) -> None:
    """Serve the function until SIGTERM or SIGINT.

    `protocol` handles the connections of the plain port; None: uvicorn's own protocol passes
    requests on as ASGI. `tls_protocol` handles those of the TLS port; None: there is no TLS port,
    even if the settings declare one.

    Exits with 2 and one line on stderr if the settings of the server or the log are invalid, with 3
    if the contract is invalid or the start failed.
    """
    options = argparse.ArgumentParser(
        description=settings.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--fd", type=int, help="serve on this inherited listening socket")
    fd: int | None = options.parse_args().fd
    try:
        address = settings.listen_address(os.environ)
        tls = settings.tls_settings(os.environ)
        log_to_stderr(settings.log_level(os.environ), settings.log_format(os.environ))
    except InvalidDocument as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    config = uvicorn.Config(
        asgi(function, os.environ),
        host=address.host,
        port=address.port,
        http=protocol or "httptools",
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_TIMEOUT,
    )
    if tls is None or tls_protocol is None:
        server = _FunctionServer(config, function)
    else:
        server = _TlsServer(config, function, tls, tls_protocol)
    server.run(sockets=None if fd is None else [socket.socket(fileno=fd)])
    if not server.started:
        sys.exit(3)


class _FunctionServer(uvicorn.Server):
    """A uvicorn server that, at a signal, interrupts the function before it waits for connections
    to end.

    Its main loop ticks once a second, for the Date header, and a signal wakes the loop. With
    uvicorn's own ten ticks a second, an idle dispatcher used twice as much CPU.
    """

    def __init__(self, config: uvicorn.Config, function: ServedFunction) -> None:
        """Create the server of `function`; `config` says where and how it serves."""
        super().__init__(config)
        self._function = function
        self._is_signalled = asyncio.Event()
        """Set once a signal was received."""

    async def main_loop(self) -> None:
        """Serve until a signal ends the server, in place of uvicorn's own loop: tick every `TICK`
        seconds, and at the signal."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._is_signalled.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: let uvicorn note that the server ends, and interrupt the function on the
        event loop."""
        super().handle_exit(sig, frame)
        asyncio.get_running_loop().call_soon_threadsafe(self._interrupt_function)

    def _interrupt_function(self) -> None:
        """Interrupt the function and wake the main loop."""
        self._function.interrupt()
        self._is_signalled.set()


class _TlsServer(_FunctionServer):
    """A `_FunctionServer` with a second port, on which it serves TLS itself."""

    def __init__(
        self,
        config: uvicorn.Config,
        function: ServedFunction,
        tls: settings.TlsSettings,
        protocol: type[asyncio.Protocol],
    ) -> None:
        """Create the server. `protocol` handles the connections of the TLS port, which opens in
        `startup`, or later if `tls.folder` has no certificate yet."""
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
        """Open the plain port, and the TLS port if there is a certificate; uvicorn calls this when
        it starts."""
        await super().startup(sockets)
        if self.started:
            await self._refresh_certificate()

    async def on_tick(self, counter: int) -> bool:
        """Check the certificate; `main_loop` calls this at each tick. Return whether the server is
        to end."""
        await self._refresh_certificate()
        return await super().on_tick(counter)

    async def _refresh_certificate(self) -> None:
        """Read the certificate again if it has changed, and open the TLS port as soon as there is
        one. Log a problem once, not at each tick."""
        try:
            server = await self._listener.refresh()
        except OSError as error:
            if str(error) != self._problem:
                log.error("TLS is not served: %s", error)
            self._problem = str(error)
            return
        if server is not None:
            self.servers.append(server)  # uvicorn closes it with the others
