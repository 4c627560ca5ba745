"""A receiver under an ASGI server that is played by hand."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from support.memory.log import MemoryLog
from support.receiver_requests import MINIMAL, PATH, Headers

from knafka.receiver.function import ReceiverFunction


class Hosted:
    """A started receiver on a log in memory, and what it sent."""

    def __init__(self, log: MemoryLog, receiver: ReceiverFunction) -> None:
        self.log = log
        self.receiver = receiver
        self.sent: list[MutableMapping[str, Any]] = []

    async def ask(
        self,
        parts: Iterable[bytes | None] = (b"",),
        headers: Headers = MINIMAL.headers,
        method: str = "POST",
        path: str = PATH.decode(),
    ) -> int:
        """One request; its body comes in parts, None for a disconnect; 0 if nothing is sent."""
        events: list[MutableMapping[str, Any]] = [
            {"type": "http.disconnect"}
            if part is None
            else {"type": "http.request", "body": part, "more_body": True}
            for part in parts
        ]
        if events[-1]["type"] == "http.request":
            events[-1]["more_body"] = False
        coming = iter(events)
        self.sent = []

        async def receive() -> MutableMapping[str, Any]:
            return next(coming)

        async def send(event: MutableMapping[str, Any]) -> None:
            self.sent.append(event)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [[name.lower(), value] for name, value in headers],
        }
        await self.receiver.handle(scope, receive, send)
        self.left = len(list(coming))
        if not self.sent:
            return 0
        start, body = self.sent
        assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
        assert dict(start["headers"])[b"content-length"] == b"%d" % len(body["body"])
        return int(start["status"])

    @property
    def stored(self) -> int:
        return len(self.log.topics["events"][0])

    @property
    def receiving_bytes(self) -> int:
        shared = self.receiver.state()["connections"]
        assert isinstance(shared.receiving_bytes, int)
        return shared.receiving_bytes
