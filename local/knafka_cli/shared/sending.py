"""Sends events over HTTP, each until it is accepted or given up.

429 and 503 are retried, no sooner than their Retry-After; any other answer is final.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final

from knafka.clients.http.http_subscriber import HttpSubscriber
from knafka.core.delivery import retry_after_seconds
from knafka.core.errors import DeliveryError, InvalidDocument, KnafkaError
from knafka.core.events import json_format
from knafka.core.events.event import Event
from knafka.core.events.http_binding import head_of
from knafka.ports.subscriber import Response, Subscriber, Target

SEND_CONNECTIONS: Final = 16
"""Requests in flight at once, so that the receiver can write their events to Kafka together. They
arrive in any order: order within a key needs one connection."""
SEND_ATTEMPT_TIMEOUT: Final = 30.0
"""Seconds for one attempt; a receiver gives up on Kafka after ten."""
SEND_RETRIES: Final = 20
"""Attempts after the first one."""
FIRST_SEND_BACKOFF: Final = 0.2
"""Seconds before the first retry; doubled for each further one."""
LONGEST_SEND_BACKOFF: Final = 5.0
"""The longest backoff in seconds; twenty retries outlast a restart of Kafka by a minute."""
LONGEST_ANSWER_TEXT: Final = 500
"""Largest number of characters that are kept of an answer's body."""
RETRIED_STATUSES: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
"""Status codes after which an event is sent again."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """The final answer to one event, after all retries."""

    event: Event
    status: int | None
    """HTTP status code; None if there was no answer."""
    text: str
    """The answer's body, or why there was no answer."""
    attempts: int
    """Number of requests, the first one included."""

    @property
    def is_accepted(self) -> bool:
        """Whether the receiver accepted the event."""
        return self.status == HTTPStatus.ACCEPTED

    def __str__(self) -> str:
        """Return one line: `503 Service Unavailable  order 17: REASON after 3 attempts`."""
        about = f"{self.event.attributes['type']} {self.event.attributes['id']}"
        tried = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        if self.status is None:
            return f"not sent  {about}: {self.text}{tried}"
        reason = f": {self.text}" if self.text and not self.is_accepted else ""
        phrase = ""
        with suppress(ValueError):  # a proxy may answer with a status of its own
            phrase = HTTPStatus(self.status).phrase
        return f"{self.status} {phrase}  {about}{reason}{tried}"


@dataclass(slots=True)
class SendSummary:
    """Counts the events that were sent, by the answers to them."""

    statuses: Counter[int | None] = field(default_factory=Counter)
    """Number of events by the status code of the answer; None stands for no answer."""
    began: float = field(default_factory=time.monotonic)
    """When sending began, by the monotonic clock."""

    @property
    def all_accepted(self) -> bool:
        """Whether every event was accepted; True if none was sent."""
        return set(self.statuses) <= {HTTPStatus.ACCEPTED}

    def __str__(self) -> str:
        """Return one line: `98 of 100 accepted, 2 × 503 in 1.2 s (83 a second)`."""
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


def target_of(url: str) -> Target:
    """Return the parsed `url`, the target of requests. Raises `InvalidDocument` if no event can be
    posted there."""
    target = Target.parse(url)
    if target.problem:
        raise InvalidDocument("", target.problem)  # no document, so no field's path
    return target


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
    summary: SendSummary | None = None,
) -> SendSummary:
    """Post every event to `url`, at most `rate` events a second; `show` is called with each event's
    final answer.

    `rate` None: as fast as possible. `connections` requests are in flight at once. `retry` False:
    each request is sent only once. With `batch`, a request has up to that many events, which share
    its answer (CE-H11); 0: each event has a request of its own. `authorization` returns a request's
    `authorization` header line; the default returns an empty one: none is sent. The answers are
    counted in `summary`, which a caller has also after an error; None: in a new one.

    Raises `InvalidDocument` for an unusable URL. An error that `events` raises, such as `BadInput`,
    is raised once the events before it are answered; one that `show` raises, at once.
    """
    target = target_of(url)
    subscriber = HttpSubscriber(limit=connections)
    summary = summary or SendSummary()
    loop = asyncio.get_running_loop()
    start = loop.time()
    input_error: KnafkaError | OSError | None = None

    def take_events() -> Iterator[Event]:
        """Yield the events up to the first that can't be read; keep the error in `input_error`."""
        nonlocal input_error
        try:
            yield from events
        except (KnafkaError, OSError) as error:
            input_error = error

    numbered_groups = _split_into_groups(take_events(), max(1, batch))

    async def send_remaining_groups() -> None:
        """Send one group of events after the other, until none is left."""
        # All tasks take from this one iterator, so each group is sent by one of them.
        for number_before, request_events in numbered_groups:
            if rate is not None:
                # At this rate, the events before these take `number_before / rate` seconds.
                await asyncio.sleep(start + number_before / rate - loop.time())
            first = request_events[0]
            head, body = _batch_request(request_events) if batch else _single_request(first)
            head += authorization()
            retries = SEND_RETRIES if retry else 0
            answer = await _post_with_retries(subscriber, target, first, head, body, retries)
            for event in request_events:
                summary.statuses[answer.status] += 1
                show(replace(answer, event=event))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(send_remaining_groups())
    except* Exception as errors:
        raise errors.exceptions[0] from None
    finally:
        await subscriber.close()
    if input_error is not None:
        raise input_error
    return summary


def _split_into_groups(events: Iterable[Event], size: int) -> Iterator[tuple[int, Sequence[Event]]]:
    """Yield the events in groups of up to `size`, in order. Each group comes as a pair: how many
    events precede the group, and its events."""
    remaining_events, number_before = iter(events), 0
    while group := list(itertools.islice(remaining_events, size)):
        yield number_before, group
        number_before += len(group)


def _single_request(event: Event) -> tuple[bytes, bytes]:
    """Return header lines and body of a request with one event in binary content mode: the
    attributes are headers, the data are the body."""
    return head_of(event.attributes), event.data or b""


def _batch_request(events: Sequence[Event]) -> tuple[bytes, bytes]:
    """Return header lines and body of a request with a batch of events, a JSON array."""
    head = f"content-type: {json_format.BATCH_MEDIA_TYPE}\r\n".encode()
    return head, json_format.write_batch(events)


async def _post_with_retries(
    subscriber: Subscriber, target: Target, event: Event, head: bytes, body: bytes, retries: int
) -> SendResult:
    """Post one request, and post it again at most `retries` times; returns the last answer, whose
    `event` is the one given.

    `head` are the request's header lines. A request is posted again after a failed connection and
    after `RETRIED_STATUSES`, once the backoff is over, or later if Retry-After says so.
    """
    backoff = FIRST_SEND_BACKOFF
    attempt = 1
    while True:
        delay = backoff
        try:
            response = await subscriber.post(target, head, body, SEND_ATTEMPT_TIMEOUT)
        except DeliveryError as error:
            answer = SendResult(event, None, str(error), attempt)
        else:
            text = response.body.decode(errors="replace").strip()
            answer = SendResult(event, response.status, text[:LONGEST_ANSWER_TEXT], attempt)
            if response.status not in RETRIED_STATUSES:
                return answer
            delay = max(delay, _retry_after(response))
        if attempt > retries:
            return answer
        await asyncio.sleep(delay)
        backoff = min(2 * backoff, LONGEST_SEND_BACKOFF)
        attempt += 1


def _retry_after(response: Response) -> float:
    """Return the seconds that the response's Retry-After asks for; 0 if it has no valid one."""
    value = response.header(b"retry-after")
    if not value:
        return 0.0
    return retry_after_seconds(value, time.time()) or 0.0
