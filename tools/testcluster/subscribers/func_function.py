"""A function for func's own runtime that answers each event with another one.

`python -m func_function` starts it as the scaffolding that func generates does (FN-5).
"""

from __future__ import annotations

import json
import os
from typing import Any

import func_python.cloudevent  # type: ignore[import-not-found]  # only in its image (FF-4)
from cloudevents.core.v1.event import CloudEvent  # type: ignore[import-not-found]


class Function:
    """Counts and prints the events, and replies with an event of the type FUNC_REPLY_TYPE, if set
    (FN-3)."""

    def __init__(self) -> None:
        self.count = 0

    async def handle(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one event: print it, and send the reply, or 204 without one."""
        event = scope["event"]
        self.count += 1
        print(json.dumps({"count": self.count, "id": event.get_id()}), flush=True)
        if reply_type := os.environ.get("FUNC_REPLY_TYPE"):
            attributes = {
                "id": f"reply-to-{event.get_id()}",
                "source": "/func",
                "type": reply_type,
                "datacontenttype": "application/json",
            }
            await send(CloudEvent(attributes=attributes, data={"count": self.count}))
        else:
            await send.http({"type": "http.response.start", "status": 204, "headers": []})
            await send.http({"type": "http.response.body", "body": b""})


def new() -> Function:
    """Return the function, for func's runtime."""
    return Function()


if __name__ == "__main__":
    func_python.cloudevent.serve(new)
