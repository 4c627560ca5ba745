"""A subscriber that counts which events were lost, came twice, or came out of order.

    python loadtests/subscriber.py [--host 127.0.0.1] [--port 8099] [--delay SECONDS]

    POST /            an event, answered 204 (or 503, every Nth time)
    POST /_accepted   {key: count}: of that key so many events were accepted by the Broker
    POST /_reset      begin anew
    GET  /_summary    the counts, as JSON

An event's key is its `subject`, its number the extension `sequence`. One Trigger may deliver here:
two would look like duplicates. Not here: TLS, and replies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict
from typing import Any, Final, cast

import httptools
import uvloop
from arrivals import Arrivals

PHRASES: Final = {200: b"OK", 204: b"No Content", 404: b"Not Found", 503: b"Service Unavailable"}
"""Reason phrases of the statuses that are answered."""


class Counting:
    """Counts events and answers requests; all connections share it."""

    def __init__(self, delay: float, fail_every: int) -> None:
        """`delay`: seconds before an event is answered. `fail_every`: every Nth event is
        answered 503; 0: none."""
        self.arrivals = Arrivals()
        self.delay = delay
        """Seconds before an event is answered."""
        self._fail_every = fail_every
        self._attempts = 0

    def take(self, headers: dict[bytes, bytes], body: bytes) -> int:
        """Count one event, in binary or structured mode, and return the status to answer; header
        names are in lower case. An event that is answered 503 isn't counted."""
        self._attempts += 1
        if self._fail_every and not self._attempts % self._fail_every:
            return 503
        if headers.get(b"content-type", b"").startswith(b"application/cloudevents+json"):
            event = json.loads(body)
            key, number = event.get("subject"), event.get("sequence")
        else:
            key, number = headers.get(b"ce-subject", b"").decode(), headers.get(b"ce-sequence")
        if key and number:
            self.arrivals.add(key, int(number))
        else:
            self.arrivals.add_unnumbered()
        return 204

    def answer(self, url: bytes, body: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer to a request of the load test itself, whose path
        begins with `/_`."""
        match url:
            case b"/_accepted":
                self.arrivals.accept(json.loads(body))
            case b"/_reset":
                self.arrivals = Arrivals()
            case b"/_summary":
                return 200, json.dumps(asdict(self.arrivals.summary())).encode()
            case _:
                return 404, b""
        return 200, b""


class Connection(asyncio.Protocol):
    """A connection of HTTP/1.1, which handles one request after the other.

    asyncio calls `connection_made` and `data_received`; the parser calls the methods `on_…` with
    the parts of each request.
    """

    def __init__(self, counting: Counting) -> None:
        self._counting = counting
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, for answers."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse what the client sent; close the connection if it isn't HTTP."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        """Begin a new request."""
        self._url, self._body = b"", b""
        self._headers: dict[bytes, bytes] = {}

    def on_url(self, url: bytes) -> None:
        """Add a part of the request's URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, with its name in lower case."""
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        """Add a part of the request's body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer the request: an event after the delay, any other request at once."""
        if self._url.startswith(b"/_"):
            self._respond(*self._counting.answer(self._url, self._body))
            return
        status = self._counting.take(self._headers, self._body)
        if delay := self._counting.delay:
            asyncio.get_running_loop().call_later(delay, self._respond, status)
        else:
            self._respond(status)

    def _respond(self, status: int, body: bytes = b"") -> None:
        """Send an answer, unless the connection is closed; a 204 has no `content-length`."""
        length = b"" if status == 204 else b"content-length: %d\r\n" % len(body)
        head = b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, PHRASES[status], length)
        if not self._transport.is_closing():
            self._transport.write(head + body)


async def serve(host: str, port: int, counting: Counting) -> None:
    """Serve until cancelled, after printing the URL; `port` 0 takes a free port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(counting), host, port, backlog=1024)
    print(f"counting at http://{host}:{server.sockets[0].getsockname()[1]}/", flush=True)
    await server.serve_forever()


def main() -> None:
    """Run the subscriber with the options of the command line, until Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8099, help="0 takes a free one (8099)")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before an answer (0)")
    parser.add_argument("--fail-every", type=int, default=0, help="answer 503 so often (never)")
    options: Any = parser.parse_args()
    try:
        uvloop.run(serve(options.host, options.port, Counting(options.delay, options.fail_every)))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
