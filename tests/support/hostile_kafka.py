"""A Kafka that answers each request for metadata with far more topics than anybody has.

It knows ApiVersions and Metadata, which is what every client of librdkafka begins with.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

API_VERSIONS, METADATA = 18, 3
UNSUPPORTED_VERSION = 35


class HostileKafka(socketserver.ThreadingTCPServer):
    """`size` is that of an answer, in bytes."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, size: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.answers = 0
        self._metadata = self._made(size)

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def metadata(self) -> bytes:
        self.answers += 1
        return self._metadata

    def _made(self, size: int) -> bytes:
        """Version 1: this broker, and topics without partitions until it is large enough."""
        topic = struct.Struct(">hh20s?i")
        host = b"127.0.0.1"
        broker = struct.pack(f">ih{len(host)}sih", 1, len(host), host, self.server_address[1], -1)
        count = size // topic.size
        topics = b"".join(topic.pack(0, 20, b"%020d" % number, False, 0) for number in range(count))
        return struct.pack(">i", 1) + broker + struct.pack(">ii", 1, count) + topics


class _Connection(socketserver.BaseRequestHandler):
    server: HostileKafka

    def handle(self) -> None:
        try:
            while head := self._exactly(4):
                request = self._exactly(struct.unpack(">i", head)[0])
                key, version, correlation = struct.unpack(">hhi", request[:8])
                answer = struct.pack(">i", correlation) + self._answer(key, version)
                self.request.sendall(struct.pack(">i", len(answer)) + answer)
        except OSError:
            return  # the client has hung up

    def _answer(self, key: int, version: int) -> bytes:
        if key == METADATA:
            return self.server.metadata()
        versions = [(API_VERSIONS, 0, 0), (METADATA, 0, 1)]
        error = UNSUPPORTED_VERSION if version else 0
        text = struct.pack(">hi", error, len(versions))
        return text + b"".join(struct.pack(">hhh", *each) for each in versions)

    def _exactly(self, size: int) -> bytes:
        text = b""
        while len(text) < size and (more := self.request.recv(size - len(text))):
            text += more
        return text


@contextmanager
def hostile_kafka(size: int) -> Iterator[HostileKafka]:
    with HostileKafka(size) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
