"""Finds out whether Kafka is away, so that writers can fail at once instead of waiting.

Kafka is doubted when librdkafka reports that all brokers are down, or when nothing was acknowledged
for a while though records are in flight. Then requests are sent, and Kafka counts as away if it
neither answers nor acknowledges a record. Requests are repeated until Kafka answers, so that no
event is risked to find out that it is back.

Kafka is not away while some of its brokers answer, nor when a partition has no leader. Not here:
the request (`Ask`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from knafka.core.errors import LogError

log = logging.getLogger(__name__)

MAX_ACKNOWLEDGEMENT_SILENCE: Final = 2.0
"""Seconds without an acknowledgement, with records in flight, after which Kafka is doubted."""
REACHABILITY_CHECK_TIMEOUT: Final = 2.0
"""Seconds that Kafka may take to answer; it takes milliseconds."""
REACHABILITY_CHECK_INTERVAL: Final = 0.2
"""Seconds from one request without an answer to the next."""
MAX_UNANSWERED: Final = 2
"""Requests in a row without an answer after which Kafka counts as away: the first request may have
gone to a single broker that hangs. If all connections are broken, one request is enough."""

RENEW_INTERVAL: Final = 12.0
"""Seconds from when Kafka counts as away until `renew` replaces the client, and between further
replacements: librdkafka may have lost its brokers (see `kafka_liveness`). Longer than
`kafka_producer.DELIVERY_TIMEOUT`, so that the old client holds no records any more."""

Ask = Callable[[float], Awaitable[None]]
"""Sends a request and waits at most the given seconds for Kafka's answer. Raises `LogError`, which
is not `retriable` if Kafka refuses this client: then it isn't away."""


class Reachability:
    """Finds out for one writer whether Kafka is away. All methods must be called on the event
    loop."""

    def __init__(self, ask: Ask, on_away: Callable[[], None], renew: Callable[[], None]) -> None:
        """Begin with Kafka's state unknown. `ask` sends one request, `on_away` is called when Kafka
        begins to count as away, and `renew` replaces the producers."""
        self.away: LogError | None = None
        """Why Kafka is known to be away; None: it isn't."""
        self._ask = ask
        self._on_away = on_away
        self._renew = renew
        self._are_all_brokers_down = False
        """Whether librdkafka has reported that no broker is connected, and Kafka has neither
        answered nor acknowledged a record since."""
        self._acknowledged = 0
        """Number of acknowledgements noted so far; each may be of several records."""
        self._asking: asyncio.Task[None] | None = None
        """Sends requests until Kafka answers, after `doubt`; None: Kafka was never doubted."""
        self._timer: asyncio.TimerHandle | None = None
        """The planned `_check_progress`; None: none is planned."""

    def watch(self, count_in_flight: Callable[[], int]) -> None:
        """Watch that Kafka acknowledges records: doubt Kafka after `MAX_ACKNOWLEDGEMENT_SILENCE`
        seconds without an acknowledgement. `count_in_flight` returns the number of records in
        flight; the watch ends once that is 0."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(
                MAX_ACKNOWLEDGEMENT_SILENCE,
                self._check_progress,
                count_in_flight,
                self._acknowledged,
            )

    def _check_progress(self, count_in_flight: Callable[[], int], acknowledged_before: int) -> None:
        """Doubt Kafka if it has acknowledged nothing since the timer was set, when the number of
        acknowledgements was `acknowledged_before`. Go on watching while records are in flight."""
        self._timer = None
        if count_in_flight():
            if acknowledged_before == self._acknowledged:
                self.doubt()
            self.watch(count_in_flight)

    def note_acknowledgement(self) -> None:
        """Note that Kafka has stored records, so it isn't away."""
        self._acknowledged += 1
        self._are_all_brokers_down = False
        self.away = None

    def note_all_down(self) -> None:
        """Note that no broker is connected, as librdkafka reports, and doubt Kafka."""
        self._are_all_brokers_down = True
        self.doubt()

    def doubt(self) -> None:
        """Start to send requests until Kafka answers; do nothing if that is under way already."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._request_until_answered())

    async def _request_until_answered(self) -> None:
        """Send requests until Kafka answers. After `MAX_UNANSWERED` in a row without an answer, or
        one if all connections are broken, Kafka counts as away; from then on, `renew` is called
        every `RENEW_INTERVAL` seconds."""
        loop = asyncio.get_running_loop()
        unanswered_in_a_row = 0
        renew_at: float | None = None  # when to call `renew` next; None: not planned yet
        while True:
            acknowledged_before = self._acknowledged
            try:
                await self._ask(REACHABILITY_CHECK_TIMEOUT)
            except LogError as error:
                # If the error isn't retriable, Kafka refuses this client, which is an answer, too;
                # so is an acknowledgement meanwhile.
                is_unanswered = error.retriable and acknowledged_before == self._acknowledged
                unanswered_in_a_row = unanswered_in_a_row + 1 if is_unanswered else 0
                max_unanswered = 1 if self._are_all_brokers_down else MAX_UNANSWERED
                if unanswered_in_a_row >= max_unanswered:
                    self._note_away(error)
                    if renew_at is None:
                        renew_at = loop.time() + RENEW_INTERVAL
                if renew_at is not None and loop.time() >= renew_at:
                    self._renew()
                    renew_at = None
                await asyncio.sleep(REACHABILITY_CHECK_INTERVAL)
            else:
                self._are_all_brokers_down = False
                self.away = None
                return

    def _note_away(self, error: LogError) -> None:
        """Note that Kafka counts as away, because of `error`; call `on_away` if Kafka didn't count
        as away before."""
        if self.away is None:
            log.warning("Kafka is away: %s", error)
            self._on_away()
        self.away = error

    def close(self) -> None:
        """Stop sending requests and watching."""
        for pending in (self._asking, self._timer):
            if pending is not None:
                pending.cancel()
