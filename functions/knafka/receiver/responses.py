"""The responses of one connection: they are sent in the order of the requests, in whatever order
Kafka acknowledges the events; reading stops while too many requests wait.

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
"""Seconds for which the rest of a refused request is read and discarded before the connection is
closed: closing a socket with unread bytes would reset it, and the sender would never read the
answer."""


class Slot:
    """One request's place in the order of answers. A slot is the request's `routes.Respond`: call
    it once with the answer, which is sent when all earlier requests are answered."""

    __slots__ = ("_queue", "answer", "head_only", "is_cut", "last")

    def __init__(
        self, queue: ResponseQueue, head_only: bool, last: bool, *, is_cut: bool = False
    ) -> None:
        """Create a slot for `queue`, to whose `slots` the caller adds it. The other parameters are
        the fields of the same names."""
        self._queue = queue
        self.answer: Answer | None = None
        """The answer; None: there is none yet."""
        self.head_only = head_only
        """Whether the answer is sent without its body, as the request's method is HEAD."""
        self.last = last
        """Whether the connection is closed after the answer."""
        self.is_cut = is_cut
        """Whether the request was refused before it was whole, so that its rest may still arrive
        and must be discarded (`LINGER_TIMEOUT`)."""

    def __call__(self, answer: Answer) -> None:
        """Store the answer. If all earlier requests are answered, write it, and those later answers
        that waited for it."""
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
        """Begin without requests; answers are written to `transport`, whose event loop is
        `loop`."""
        self.slots: deque[Slot] = deque()
        """The requests that aren't answered, in their order."""
        self.ends = False
        """Whether the connection takes no more requests, so that further bytes are discarded."""
        self.is_reading = True
        """Whether bytes are read from the connection; False while it is paused."""
        self._is_writable = True
        """Whether the client reads its answers; False: they pile up in `_transport`."""
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
            if slot.head_only:
                wire = wire[: len(wire) - len(answer.body)]
            transport.write(wire)
            if slot.last and slot.is_cut:
                self._linger()
            elif slot.last:
                transport.close()
        if not self.is_reading:
            self.regulate_reading()

    def regulate_reading(self) -> None:
        """Pause or resume reading from the connection, as needed. Reading is paused while the
        client doesn't read its answers; also once `PIPELINED` requests wait, until fewer than half
        as many do. A connection that takes no more requests (`ends`) is always read, to discard the
        rest."""
        max_waiting = PIPELINED if self.is_reading else PIPELINED // 2
        should_read = self.ends or (self._is_writable and len(self.slots) < max_waiting)
        if should_read != self.is_reading and not self._transport.is_closing():
            self.is_reading = should_read
            if should_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def set_writable(self, is_writable: bool) -> None:
        """Note whether the client reads its answers, and pause or resume reading accordingly."""
        self._is_writable = is_writable
        self.regulate_reading()

    def _linger(self) -> None:
        """Send the end of the answers now, unless the connection uses TLS, which can't be ended in
        one direction only. Close the connection after `LINGER_TIMEOUT`: until then the rest of a
        refused request is read and discarded."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._lingering = self._loop.call_later(LINGER_TIMEOUT, self._transport.close)

    def close(self) -> None:
        """Cancel the timer, as the connection is lost; from now on reading isn't paused any
        more."""
        self.ends = True
        if self._lingering is not None:
            self._lingering.cancel()
