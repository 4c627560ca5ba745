"""Prints the CPU, in µs, that one event takes in a receiver's `IngestHandler` which requires no
token.

A program of its own, since `tokens` also runs it on the code of another checkout (PYTHONPATH); it
uses only what both have. No sockets and no Kafka, so that nothing but Python's own is measured.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from knafka.core.contract import Ingress, Kafka
from knafka.receiver.ingest import IngestHandler

LOOP = 5_000
EVENT_HEADERS = (
    (b"host", b"default-kn-receiver.shop.svc.cluster.local"),
    (b"user-agent", b"Go-http-client/1.1"),
    (b"content-length", b"128"),
    (b"content-type", b"application/json"),
    (b"ce-id", b"0f6a4a52-8b0e-4f0e-9c3c-2a7d3f4b5c6d"),
    (b"ce-source", b"/shop/checkout"),
    (b"ce-specversion", b"1.0"),
    (b"ce-type", b"com.example.order.placed"),
)


class Writer:
    """A Kafka writer that reports each record as written at once."""

    away = None
    in_flight = 0

    def append(self, topic: str, key: Any, value: Any, headers: Any, reported: Any) -> None:
        """Report the record as stored."""
        reported(None)

    def append_all(self, topic: str, records: Any, reported: Any) -> None:
        """Report the records as stored; no request here is a batch."""
        reported(None)


def main() -> None:
    """Print the least time of as many loops as the argument says: whatever disturbs a loop makes it
    longer."""
    kafka = Kafka(bootstrap_servers="none")
    ingress = Ingress(namespace="shop", broker="default", topic="t", kafka=kafka)
    writer: Any = Writer()
    handler = IngestHandler([ingress], [writer])
    body, answers = b"x" * 128, []

    def loop() -> float:
        """Handle `LOOP` events; return the seconds of CPU that they took."""
        answers.clear()
        handle, respond = handler.handle, answers.append
        began = time.thread_time()
        for _ in range(LOOP):
            handle(b"POST", b"/shop/default", EVENT_HEADERS, body, respond)
        return time.thread_time() - began

    spent = min(loop() for _ in range(int(sys.argv[1])))
    assert {answer.status for answer in answers} == {202}
    print(spent * 1e6 / LOOP)


if __name__ == "__main__":
    main()
