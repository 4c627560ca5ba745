"""A subscriber that remembers its events, and answers as tests tell it to; `python -m subscriber`.

    POST /any/path    an event, binary or structured
    GET  /seen        all of them, as JSON, in the order of arrival; ?after=N leaves the first N out
    GET  /summary     {"received", "unique", "duplicates", "outOfOrder": {key: count}}
    DELETE /seen      forget them, and what it was told
    POST /control     how to answer from now on: a JSON object of `Behaviour`'s fields

SUBSCRIBER_STATUS, SUBSCRIBER_DELAY and SUBSCRIBER_REPLY_TYPE say the same from the start. An
event's key is its `partitionkey`, or else its subject; its number the extension `sequence`, or else
`n` in its JSON data. What it remembers is one process's: a test wants `max-scale: 1`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote

import uvicorn

Message: TypeAlias = dict[str, Any]
Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Answer: TypeAlias = tuple[int, dict[str, str], bytes]

BESIDE = ("authorization", "content-type", "kn-namespace", "prefer")
"""Headers that are kept beside the event's attributes."""


@dataclass
class Behaviour:
    """How events are answered."""

    status: int = 202
    times: int | None = None
    """Number of answers that have `status`, before those with 202; None: all have it."""
    delay: float = 0.0
    """Seconds before an answer."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers of an answer, such as Retry-After."""
    reply_type: str | None = None
    """The type of the event that is sent with a 2xx answer; its data are those of the received
    event. None: no event."""


def from_environment() -> Behaviour:
    """Return the behaviour that the environment declares."""
    return Behaviour(
        status=int(os.environ.get("SUBSCRIBER_STATUS", "202")),
        delay=float(os.environ.get("SUBSCRIBER_DELAY", "0")),
        reply_type=os.environ.get("SUBSCRIBER_REPLY_TYPE"),
    )


class Subscriber:
    """The ASGI application, with the events that it has received."""

    def __init__(self) -> None:
        self.behaviour = from_environment()
        self.seen: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        status, headers, answer = await self._answer(scope, body)
        if status != 204:
            headers = {**headers, "content-length": str(len(answer))}
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            }
        )
        await send({"type": "http.response.body", "body": answer})

    async def _answer(self, scope: Scope, body: bytes) -> Answer:
        """Handle any request, and return status, headers and body of its answer."""
        match scope["method"], scope["path"]:
            case "GET", "/seen":
                query = parse_qs(scope["query_string"].decode())
                return _json(self.seen[int(query.get("after", ["0"])[0]) :])
            case "GET", "/summary":
                return _json(summary(self.seen))
            case "GET", _:
                return _json("a subscriber of tests")
            case "DELETE", "/seen":
                self.seen.clear()
                self.behaviour = from_environment()
                return _json("forgotten")
            case "POST", "/control":
                self.behaviour = Behaviour(**json.loads(body))
                return _json("understood")
            case _:
                return await self._take(scope, body)

    async def _take(self, scope: Scope, body: bytes) -> Answer:
        """Remember an event, and answer it as the behaviour says."""
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        event = read_event(headers, body)
        behaviour = self.behaviour
        status = behaviour.status
        if behaviour.times is not None:
            if behaviour.times > 0:
                behaviour.times -= 1
            else:
                status = 202
        beside = {name: headers[name] for name in BESIDE if name in headers}
        told = {"path": scope["path"], "headers": beside, "answered": status, "at": time.time()}
        self.seen.append({**event, **told})
        if behaviour.delay:
            await asyncio.sleep(behaviour.delay)
        if behaviour.reply_type is None or status >= 300:
            return status, behaviour.headers, b""
        reply = {
            "ce-specversion": "1.0",
            "ce-id": f"reply-to-{event['id']}",
            "ce-source": "/subscriber",
            "ce-type": behaviour.reply_type,
            "content-type": headers.get("content-type", "application/octet-stream"),
        }
        return 200 if status == 202 else status, {**behaviour.headers, **reply}, body


def read_event(headers: dict[str, str], body: bytes) -> Message:
    """Return an event's attributes, the number of `bytes` of its body, and its key and number as
    `key` and `n`."""
    if headers.get("content-type", "").startswith("application/cloudevents+json"):
        document = json.loads(body)
        data = document.pop("data", None)
        attributes = {name: value for name, value in document.items() if name != "data_base64"}
    else:
        attributes = {
            name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")
        }
        is_json = headers.get("content-type", "").startswith("application/json")
        data = json.loads(body) if is_json and body else None
    number = attributes.get("sequence", data.get("n") if isinstance(data, dict) else None)
    return {
        "id": attributes.get("id"),
        "source": attributes.get("source"),
        "type": attributes.get("type"),
        "attributes": attributes,
        "bytes": len(body),
        "key": attributes.get("partitionkey") or attributes.get("subject"),
        "n": None if number is None else int(number),
    }


def summary(seen: list[Message]) -> Message:
    """Return the totals of events; a first arrival is out of order if its key had one with a higher
    number."""
    arrived: set[tuple[str, str]] = set()
    highest: dict[str, int] = {}
    out_of_order: Counter[str] = Counter()
    for event in seen:
        identity = (event["source"], event["id"])
        if identity in arrived:
            continue
        arrived.add(identity)
        key, number = event["key"], event["n"]
        if key is not None and number is not None:
            if number < highest.get(key, number):
                out_of_order[key] += 1
            highest[key] = max(number, highest.get(key, number))
    return {
        "received": len(seen),
        "unique": len(arrived),
        "duplicates": len(seen) - len(arrived),
        "outOfOrder": dict(out_of_order),
    }


def _json(value: object) -> Answer:
    """Return the answer 200 with a JSON body."""
    return 200, {"content-type": "application/json"}, json.dumps(value).encode()


if __name__ == "__main__":
    uvicorn.run(
        Subscriber(),
        host="0.0.0.0",
        port=int(os.environ.get("PORT", "8080")),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
