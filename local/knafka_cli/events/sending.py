"""Sending: events from the command line or a file, posted until each is accepted or given up.

Not here: hurrying a receiver that says 503. Its Retry-After is kept, and a 4xx is final.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final

from knafka.clients.http_subscriber import HttpSubscriber
from knafka.core import json_format
from knafka.core.delivery import retry_after_seconds
from knafka.core.errors import DeliveryError, InvalidDocument, KnafkaError
from knafka.core.event import Event
from knafka.core.http_binding import head_of
from knafka.ports.subscriber import Response, Subscriber, Target

SEND_CONNECTIONS: Final = 16
"""Events under way at once: Kafka answers them together, and order is kept per key only for a
sender who waits, so `--rate` or one connection is for those who need it."""
SEND_ATTEMPT_TIMEOUT: Final = 30.0
"""Seconds for one attempt; a receiver gives up on Kafka after ten."""
SEND_RETRIES: Final = 20
FIRST_SEND_BACKOFF: Final = 0.2
LONGEST_SEND_BACKOFF: Final = 5.0
"""Seconds; twenty of them outlast a restart of Kafka by a minute."""
RETRIED_STATUSES: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


@dataclass(frozen=True, slots=True)
class SendResult:
    """The final answer to one event, after all retries; `status` is None if nobody answered."""

    event: Event
    status: int | None
    text: str
    attempts: int

    @property
    def accepted(self) -> bool:
        return self.status == HTTPStatus.ACCEPTED

    def __str__(self) -> str:
        about = f"{self.event.attributes['type']} {self.event.attributes['id']}"
        tried = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        if self.status is None:
            return f"not sent  {about}: {self.text}{tried}"
        reason = f": {self.text}" if self.text and not self.accepted else ""
        return f"{self.status} {HTTPStatus(self.status).phrase}  {about}{reason}{tried}"


@dataclass(slots=True)
class Summary:
    """Counts the answers to all events, by status."""

    statuses: Counter[int | None] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)

    @property
    def all_accepted(self) -> bool:
        return set(self.statuses) <= {HTTPStatus.ACCEPTED}

    def __str__(self) -> str:
        seconds = max(time.monotonic() - self.began, 1e-6)
        total = sum(self.statuses.values())
        accepted = self.statuses[HTTPStatus.ACCEPTED]
        others = "".join(
            f", {count} × {status or 'no answer'}"
            for status, count in sorted(self.statuses.items(), key=str)
            if status != HTTPStatus.ACCEPTED
        )
        speed = f"{total / seconds:.0f} a second"
        return f"{accepted} of {total} accepted{others} in {seconds:.1f} s ({speed})"


async def send(
    events: Iterable[Event],
    url: str,
    show: Callable[[SendResult], None],
    *,
    retry: bool = True,
    rate: float | None = None,
    connections: int = SEND_CONNECTIONS,
    batch: int = 0,
    authorization: Callable[[], bytes] = bytes,
) -> Summary:
    """Post every event to `url`, at most `rate` a second; `show` is given each answer. With a
    `batch` so many go in one request, and have one answer (CE-H11). `authorization`: the header
    line of each request that shows who sends; nobody does.

    Raises `InvalidDocument` for a URL that can't be used, and `BadInput` from the events.
    """
    target = Target.parse(url)
    if target.problem:
        raise InvalidDocument("", target.problem)
    subscriber = HttpSubscriber(limit=connections)
    summary = Summary()
    source = _together(events, max(1, batch))
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def work() -> None:
        for number, together in source:  # all workers take from it, in turn
            if rate is not None:
                await asyncio.sleep(began + number / rate - loop.time())
            head, body = _batch_of(together) if batch else _request_of(together[0])
            head += authorization()
            retries = SEND_RETRIES if retry else 0
            answer = await _post(subscriber, target, together[0], head, body, retries)
            for event in together:
                summary.statuses[answer.status] += 1
                show(replace(answer, event=event))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(work())
    except* KnafkaError as errors:
        raise errors.exceptions[0] from None
    finally:
        await subscriber.close()
    return summary


def _together(events: Iterable[Event], size: int) -> Iterator[tuple[int, Sequence[Event]]]:
    """Up to `size` events after each other, and how many were before them."""
    source, number = iter(events), 0
    while some := list(itertools.islice(source, size)):
        yield number, some
        number += len(some)


def _request_of(event: Event) -> tuple[bytes, bytes]:
    """Header lines and body."""
    return head_of(event.attributes), event.data or b""


def _batch_of(events: Sequence[Event]) -> tuple[bytes, bytes]:
    head = f"content-type: {json_format.BATCH_MEDIA_TYPE}\r\n".encode()
    return head, json_format.write_batch(events)


async def _post(
    subscriber: Subscriber, target: Target, event: Event, head: bytes, body: bytes, retries: int
) -> SendResult:
    backoff = FIRST_SEND_BACKOFF
    attempt = 1
    while True:
        wait = backoff
        try:
            response = await subscriber.post(target, head, body, SEND_ATTEMPT_TIMEOUT)
        except DeliveryError as error:
            answer = SendResult(event, None, str(error), attempt)
        else:
            text = response.body.decode(errors="replace").strip()
            answer = SendResult(event, response.status, text[:500], attempt)
            if response.status not in RETRIED_STATUSES:
                return answer
            wait = max(wait, _asked_to_wait(response))
        if attempt > retries:
            return answer
        await asyncio.sleep(wait)
        backoff = min(2 * backoff, LONGEST_SEND_BACKOFF)
        attempt += 1


def _asked_to_wait(response: Response) -> float:
    value = response.header(b"retry-after")
    return (retry_after_seconds(value, time.time()) or 0.0) if value else 0.0
