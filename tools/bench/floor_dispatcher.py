"""The floor for a dispatcher: it consumes, filters by one attribute, and sends HTTP POSTs.

No ordering, no retries, no replies, no offsets committed. Usage:
    floor_dispatcher.py BOOTSTRAP TOPIC SINK_HOST:PORT [IN_FLIGHT [PATH]]      (until it is killed)
"""

import asyncio
import sys
import uuid

import httptools
import uvloop
from confluent_kafka import Consumer

BOOTSTRAP, TOPIC, SINK = sys.argv[1:4]
IN_FLIGHT = int(sys.argv[4]) if len(sys.argv) > 4 else 64
PATH = sys.argv[5] if len(sys.argv) > 5 else "/"
HOST, PORT = SINK.rsplit(":", 1)
REQUEST = f"POST {PATH} HTTP/1.1\r\nhost: {SINK}\r\nprefer: reply\r\n".encode()


class Connection(asyncio.Protocol):
    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        if not self.answer.done():
            self.answer.set_result(self.parser.get_status_code())


async def main() -> None:
    loop = asyncio.get_running_loop()
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": f"floor-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "queued.min.messages": 20000,
        }
    )
    consumer.subscribe([TOPIC])
    idle: list[Connection] = []
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def deliver(record) -> None:
        headers, is_match = [], False
        for name, value in record.headers() or ():
            if name[:3] == "ce_":
                is_match = is_match or name == "ce_type"
                headers.append(b"ce-%s: %s\r\n" % (name[3:].encode(), value))
            else:
                headers.append(b"%s: %s\r\n" % (name.encode(), value))
        if is_match:
            if idle:
                connection = idle.pop()
            else:
                _, connection = await loop.create_connection(Connection, HOST, int(PORT))
            connection.parser = httptools.HttpResponseParser(connection)
            connection.answer = loop.create_future()
            data = record.value() or b""
            connection.transport.writelines(
                [REQUEST, *headers, b"content-length: %d\r\n\r\n" % len(data), data]
            )
            await connection.answer
            idle.append(connection)
        slots.release()

    while True:
        for record in await loop.run_in_executor(None, consumer.consume, 500, 0.1):
            if not record.error():
                await slots.acquire()
                loop.create_task(deliver(record))  # noqa: RUF006  # it is the floor


uvloop.run(main())
