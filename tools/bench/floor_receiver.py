"""The floor for a receiver: it parses HTTP and produces to Kafka, and does nothing else.

No validation beyond counting the required attributes, no limits, no routing, no tracing. Usage:
    floor_receiver.py PORT BOOTSTRAP TOPIC      (needs confluent-kafka, httptools, uvloop)
"""

import asyncio
import sys

import httptools
import uvloop
from confluent_kafka import Producer

PORT, BOOTSTRAP, TOPIC = int(sys.argv[1]), sys.argv[2], sys.argv[3]
REQUIRED = {b"ce-id", b"ce-source", b"ce-type", b"ce-specversion"}
ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
REJECTED = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


class Log:
    """A Kafka producer whose delivery reports are polled on the event loop, only while records are
    in flight."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": BOOTSTRAP,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
            }
        )
        self.loop, self.in_flight, self.polling = loop, 0, False

    def poll(self) -> None:
        self.producer.poll(0)
        if self.in_flight:
            self.loop.call_later(0.001, self.poll)
        else:
            self.polling = False

    def append(self, value: bytes, headers: list, report) -> None:
        self.producer.produce(TOPIC, value=value, headers=headers, on_delivery=report)
        self.in_flight += 1
        if not self.polling:
            self.polling = True
            self.loop.call_later(0.001, self.poll)


class Connection(asyncio.Protocol):
    def connection_made(self, transport) -> None:
        self.transport, self.write = transport, transport.write
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.headers, self.found, self.body = [], 0, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name.startswith(b"ce-"):
            self.found += name in REQUIRED
            self.headers.append(("ce_" + name[3:].decode(), value))
        elif name == b"content-type":
            self.headers.append(("content-type", value))

    def on_body(self, body: bytes) -> None:
        self.body = self.body + body if self.body else body

    def on_message_complete(self) -> None:
        if self.found == 4:
            log.append(self.body, self.headers, self.reported)
        else:
            self.write(REJECTED)

    def reported(self, error, _record) -> None:
        log.in_flight -= 1
        if not self.transport.is_closing():
            self.write(UNAVAILABLE if error else ACCEPTED)


async def main() -> None:
    global log
    loop = asyncio.get_running_loop()
    log = Log(loop)
    server = await loop.create_server(Connection, "127.0.0.1", PORT)
    await server.serve_forever()


uvloop.run(main())
