"""Declining: an HTTP server on a socket for which there is no process yet.

A port that accepts connections and never answers looks like a program that hangs. So every request
there is answered with 404 and a sentence that says why, until a receiver takes the socket over.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

DECLINED_REQUEST_TIMEOUT: Final = 5.0
"""Seconds for a request to arrive, and for the answer to be taken."""
BODY_CHUNK_BYTES: Final = 64 * 1024
"""Bytes of a request's body that are read, and thrown away, at once."""


class DecliningServer:
    """Answers every request on a socket with 404, from `start` to `stop`; the socket stays the
    caller's."""

    def __init__(self, listener: socket.socket, reason: str) -> None:
        """`listener` is a listening socket; `reason` is the body of every answer."""
        self._listener = listener
        body = f"{reason}\n".encode()
        self._answer = (
            b"HTTP/1.1 404 Not Found\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
        )
        self._server: asyncio.Server | None = None
        """Accepts connections; None: it isn't started, or is stopped."""
        self._answering: set[asyncio.Task[None]] = set()
        """A task for each accepted connection that isn't closed yet."""

    async def start(self) -> None:
        """Start to answer requests; also possible again after `stop`. Does nothing if it is started
        already."""
        if self._server is None:
            # A copy: the server closes its socket when it stops, and `_listener` must stay open.
            copy = self._listener.dup()
            self._server = await asyncio.start_server(self._decline, sock=copy)

    def stop(self) -> None:
        """Accept no further connection. Requests on connections that were accepted are still
        answered."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Accept no further connection; returns once every request has been answered."""
        self.stop()
        if self._answering:
            await asyncio.wait(self._answering)

    def _decline(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of a new connection, in a task that `close` waits for."""
        task = asyncio.create_task(self._answer_request(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read a request's headers, answer 404 and close the connection."""
        try:
            async with asyncio.timeout(DECLINED_REQUEST_TIMEOUT):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer)
                await writer.drain()
                writer.write_eof()
                # Closing while the client still sends its body would reset the connection, and the
                # client might lose the answer.
                while await reader.read(BODY_CHUNK_BYTES):
                    pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # there is nobody to answer
        finally:
            writer.close()
