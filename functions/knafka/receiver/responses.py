"""The responses of one connection: they are sent in the order of the requests, whatever the order
in which Kafka acknowledges; reading stops while too many requests wait.

Not here: the answers themselves (`ingest`), and when a connection ends (`protocol`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from knafka.receiver.answers import Answer

PIPELINED: Final = 64
"""Requests of one connection that may wait for Kafka; reading stops while there are more."""
LINGER_TIMEOUT: Final = 2.0
"""Seconds in which the rest of a refused request is read and discarded: closing a socket with
unread bytes would reset it, and the sender would never read the answer."""


class Slot:
    """One request's place in the order of answers; calling it with the answer, once, sends that in
    its turn."""

    __slots__ = ("_queue", "answer", "head_only", "is_cut", "last")

    def __init__(
        self, queue: ResponseQueue, head_only: bool, last: bool, *, is_cut: bool = False
    ) -> None:
        """Reserve the place; `queue` holds it, the other arguments are described below."""
        self._queue = queue
        self.answer: Answer | None = None
        """The answer; None: there is none yet."""
        self.head_only = head_only
        """Whether the answer is sent without its body, for HEAD."""
        self.last = last
        """Whether the connection is closed after the answer."""
        self.is_cut = is_cut
        """Whether the answer is sent before the request is whole."""

    def __call__(self, answer: Answer) -> None:
        """Store the answer, and write it (and further answers that waited for it) if all earlier
        requests are answered."""
        self.answer = answer
        if self._queue.slots[0] is self:
            self._queue.flush()


class ResponseQueue:
    """The slots of one connection's unanswered requests."""

    __slots__ = (
        "_is_writable",
        "_lingering",
        "_loop",
        "_transport",
        "ends",
        "is_reading",
        "slots",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Begin without requests; answers are written to `transport`."""
        self.slots: deque[Slot] = deque()
        """The requests that aren't answered, in their order."""
        self.ends = False
        """Whether the connection takes no more requests, so that further bytes are discarded."""
        self.is_reading = True
        """Whether bytes are read from the connection; False while it is paused."""
        self._is_writable = True
        """Whether the client reads its answers."""
        self._transport = transport
        self._loop = loop
        self._lingering: asyncio.TimerHandle | None = None
        """Timer that closes the connection after a refused request; None: it isn't set."""

    def flush(self) -> None:
        """Write the answers up to the first request that has none yet, and end the connection after
        its last answer."""
        slots, transport = self.slots, self._transport
        while slots and (answer := slots[0].answer) is not None:
            slot = slots.popleft()
            if transport.is_closing():
                continue  # nobody reads the answer
            if not slot.last and not slot.head_only:
                transport.write(answer.wire)
                continue
            wire = answer.closing if slot.last else answer.wire
            transport.write(wire[: len(wire) - len(answer.body)] if slot.head_only else wire)
            if slot.last and slot.is_cut:
                self._linger()
            elif slot.last:
                transport.close()
        if not self.is_reading:
            self.regulate_reading()

    def regulate_reading(self) -> None:
        """Pause or resume reading from the connection. It is paused while the client doesn't read
        its answers, and from `PIPELINED` waiting requests on until fewer than half as many wait.
        Once the connection takes no more requests it is always read, to discard the rest."""
        max_waiting = PIPELINED if self.is_reading else PIPELINED // 2
        reading = self.ends or (self._is_writable and len(self.slots) < max_waiting)
        if reading != self.is_reading and not self._transport.is_closing():
            self.is_reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def set_writable(self, is_writable: bool) -> None:
        """Note whether the client reads its answers."""
        self._is_writable = is_writable
        self.regulate_reading()

    def _linger(self) -> None:
        """End the connection's own side now, and close it after `LINGER_TIMEOUT`: until then the
        rest of a refused request is read and discarded."""
        self._transport.write_eof()
        self._lingering = self._loop.call_later(LINGER_TIMEOUT, self._transport.close)

    def close(self) -> None:
        """Cancel the timer, as the connection is lost; from now on reading isn't paused any
        more."""
        self.ends = True
        if self._lingering is not None:
            self._lingering.cancel()
