"""The response to `POST /drain`: progress as JSON lines, until the request is over."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

from knafka.core import drain as drain_protocol
from knafka.core.drain import DrainProgress, DrainRequest, Ended, ShardProgress
from knafka.core.tokens.caller_tokens import REFUSED
from knafka.draining.lease import DrainLease, Leased
from knafka.serving import Send

REPLACED: Final = "another request, which says what is drained, has taken over this drain"
"""Error of a request that was replaced by a request with the digest of the Egress, shard or
Sensor."""
STOP_REFUSED: Final = (
    "the drain goes on: a stop needs the digest of what is drained, as egress, shard or sensor"
)
"""Error of a request that asks for a stop without the digest of the Egress, shard or Sensor."""

P = TypeVar("P", bound=DrainProgress | ShardProgress)


async def stream(
    lease: DrainLease[P],
    request: DrainRequest,
    caller: asyncio.Task[bool],
    send: Send,
    part_to_send: Callable[[P], P] = lambda progress: progress,
    news: asyncio.Event | None = None,
) -> None:
    """Answer a request for a drain: send lines of the drain's progress, one each second, until the
    drain ends, the request's budget is spent or the caller disconnects. The drain itself goes on,
    unless the caller asks for a stop. A process that has begun to end answers 503.

    `caller` is a task that ends when the caller acts: it returns True if the caller asks for a
    stop, False if it disconnects. It is cancelled if another request replaces this one.
    `part_to_send` returns the part of a progress that a line holds; by default all of it. When the
    event `news` is set, the next line is sent at once; None: lines are sent each second only.
    """
    loop = asyncio.get_running_loop()
    if (attached := await lease.attach(request)) is None:
        await refuse_while_ending(send)
        return
    drain, running = attached
    deadline = loop.time() + request.budget
    error = None  # why this request has ended before the drain and before its budget was spent
    await send_head(send, 200, b"application/x-ndjson")
    while not running.done() and (seconds_left := deadline - loop.time()) > 0:
        if news is not None:
            news.clear()  # before `progress`, so that no later news are missed
        await _send_line(send, part_to_send(drain.progress()))
        tasks: set[asyncio.Task[Any]] = {running} if caller.done() else {running, caller}
        await _wait(tasks, news, min(seconds_left, drain_protocol.PROGRESS_INTERVAL))
        if not caller.done():
            continue  # a second has passed, there is news, or the drain has ended
        if caller.cancelled():
            error = REPLACED
            break
        if not caller.result():
            return  # the caller has disconnected
        if not request.can_be_stopped:
            error = STOP_REFUSED
            break
        drain.stop()  # called again after each further line, which changes nothing
        deadline = math.inf  # the response lasts until the drain has ended
    if running.done():
        last_progress = _last_progress_of(running, drain)
    else:
        last_progress = drain.progress(Ended.BUDGET, error)
    await _send_line(send, part_to_send(last_progress))
    await send({"type": "http.response.body", "body": b""})


async def _wait(tasks: set[asyncio.Task[Any]], news: asyncio.Event | None, timeout: float) -> None:
    """Wait until one of the tasks is done or `news` is set, for at most `timeout` seconds."""
    news_task = None if news is None else asyncio.create_task(news.wait())
    if news_task is not None:
        tasks = {*tasks, news_task}
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if news_task is not None:
            news_task.cancel()


def _last_progress_of(running: asyncio.Task[P], drain: Leased[P]) -> P:
    """Return the last progress of a drain whose task, `running`, has ended. If the task has raised
    an error, return the drain's progress as failed, with the error's text."""
    try:
        return running.result()
    except Exception as error:
        return drain.progress(Ended.FAILED, f"{type(error).__name__}: {error}")


async def refuse_while_ending(send: Send) -> None:
    """Send 503, as this process has begun to end and starts no drain."""
    await answer(send, 503, b"this process is ending\n")


async def refuse_caller(send: Send, reason: str = REFUSED) -> None:
    """Send 401 with this `reason` as its text, as the caller shows no valid token."""
    text = f"{reason}\n".encode()
    await send_head(send, 401, b"text/plain; charset=utf-8", (b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.body", "body": text})


async def send_head(
    send: Send, status: int, content_type: bytes, *headers: tuple[bytes, bytes]
) -> None:
    """Send the status and the headers of a response. The caller must then send the body."""
    headers = ((b"content-type", content_type), *headers)
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def answer(
    send: Send, status: int, body: bytes, content_type: bytes = b"text/plain; charset=utf-8"
) -> None:
    """Send a whole response with this body."""
    await send_head(send, status, content_type)
    await send({"type": "http.response.body", "body": body})


async def _send_line(send: Send, progress: DrainProgress | ShardProgress) -> None:
    """Send one line of progress as JSON; more of the body follows."""
    line = progress.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
    await send({"type": "http.response.body", "body": line, "more_body": True})
