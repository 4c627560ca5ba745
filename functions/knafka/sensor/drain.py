"""Runs a Sensor's processor on a thread of its own, until it is idle or stopped.

A drain is a lease to handle the Sensor's events, which the operator's requests extend. Its slot is
the number of the Sensor's process that it runs in. The processor holds events until their trigger's
condition is true.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from knafka.clients.kafka.call_thread import CallThread
from knafka.core.drain import DrainProgress, Ended, Holding
from knafka.core.errors import LogError
from knafka.draining.lease import DRAIN_STOP_TIMEOUT
from knafka.sensor.counts import SensorCounts
from knafka.sensor.processor import Processor

log = logging.getLogger(__name__)

FIRST_RECORD_TIMEOUT: Final = 1.0
"""Most seconds that a step waits for a first record; a stop is noticed after a step."""
JOIN_PATIENCE: Final = 50.0
"""Least seconds that a drain without partitions waits before it counts as idle, as in a dispatcher
(docs/decisions/0013)."""
SENSOR_CLOSE_TIMEOUT: Final = 5.0
"""Most seconds to leave the group."""
HOLDING_INTERVAL: Final = 5.0
"""Least seconds between two reports of held events."""
HOLDING_SHARE: Final = 50
"""Share of the time that reports of held events may take, as a divisor: 50 stands for a fiftieth. A
report visits every key, so with many keys reports are made less often."""
DUE_SOON: Final = 30.0
"""The drain doesn't end as idle if something is due within this many seconds."""


class SensorDrain:
    """The drain of one Sensor in this process; implements `draining.lease.Leased`."""

    def __init__(
        self,
        open_processor: Callable[[int | None], Processor],
        slot: int | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`open_processor` opens the processor of a slot; `slot` is the slot of this drain
        (`DrainRequest.slot`; None: it has none). `now` returns seconds since the Unix epoch."""
        self.idle: float | None = None
        """Seconds without work after which the drain ends; None: it never ends as idle."""
        self.shrunk_at: float | None = None
        """When this process last lost a partition, on the event loop's clock; None: never."""
        self.slot = slot
        self._open_processor = open_processor
        self._now = now
        self.processor: Processor | None = None
        """Handles the Sensor's records; None before `run`."""
        self._stopping = False
        """Whether `stop` was called, or `run` has ended."""
        self._reported = SensorCounts()
        """The counts that ended requests of the operator have reported."""
        self._active_at = time.monotonic()
        """When the drain began or last handled something, on `time.monotonic`'s clock."""
        self._holding: Holding | None = None
        """The last report of held events; None: `progress` has returned it, or there was none."""
        self._report_at = 0.0
        """When the next report of held events is made, on `time.monotonic`'s clock."""

    @property
    def is_stopping(self) -> bool:
        """Whether the drain was told to stop, or has ended."""
        return self._stopping

    def stop(self, timeout: float = DRAIN_STOP_TIMEOUT) -> None:
        """End the drain soon, within a second; `timeout` isn't used."""
        self._stopping = True

    def reset_reported_counts(self) -> None:
        """Let the counts of `progress` begin at 0 again, as the operator's request that has ended
        has reported them."""
        if self.processor is not None:
            self._reported = self.processor.counts.copy()

    def progress(self, ended: Ended | None = None, error: str | None = None) -> DrainProgress:
        """Return the drain's counts since the operator's last request ended
        (`reset_reported_counts`), and the latest report of held events, which only one call
        returns. `ended` says how the drain ended (None: it goes on), and `error` why it failed
        (None: it didn't fail)."""
        if self.processor is None:
            return DrainProgress(slot=self.slot, ended=ended, error=error)
        counts, reported = self.processor.counts, self._reported
        holding, self._holding = self._holding, None
        return DrainProgress(
            read=counts.read - reported.read,
            # A Sensor delivers by firing its triggers.
            delivered=counts.fired.total() - reported.fired.total(),
            dead_lettered=counts.dead_letters.total() - reported.dead_letters.total(),
            dead_letters=dict(counts.dead_letters - reported.dead_letters),
            late=counts.late.total() - reported.late.total(),
            partitions=self.processor.partitions,
            slot=self.slot,
            holding=holding,
            ended=ended,
            error=error,
        )

    async def run(self) -> DrainProgress:
        """Process the Sensor's events on a thread of its own until idle or stopped; returns the
        last progress. A `LogError` isn't raised: it ends the drain as failed."""
        self._loop = asyncio.get_running_loop()
        thread = CallThread(self._loop, "sensor")
        try:
            ended: Ended = await thread.call(self._process)
            return self.progress(ended)
        except LogError as error:
            log.error("the drain failed: %s", error)
            return self.progress(Ended.FAILED, str(error))
        finally:
            self._stopping = True
            thread.end()

    # On the thread

    def _process(self) -> Ended:
        """Open the processor, call its `step` until idle or stopped, and close it; returns
        `Ended.IDLE` or `Ended.STOPPED`. Raises `LogError`."""
        self._active_at = time.monotonic()
        processor = self.processor = self._open_processor(self.slot)
        previous_partitions: tuple[int, ...] = ()
        try:
            processor.check_topics()
            while not self._stopping:
                if self._is_idle(processor):
                    return Ended.IDLE
                if processor.step(round(self._now() * 1000), FIRST_RECORD_TIMEOUT):
                    self._active_at = time.monotonic()
                current_partitions = processor.partitions
                if set(previous_partitions) - set(current_partitions):
                    self.shrunk_at = self._loop.time()
                previous_partitions = current_partitions
                if time.monotonic() >= self._report_at:
                    self._update_holding(processor)
            return Ended.STOPPED
        finally:
            self._update_holding(processor)  # while the processor still has its keys
            processor.close(SENSOR_CLOSE_TIMEOUT)

    def _update_holding(self, processor: Processor) -> None:
        """Make a new report of held events, which the next `progress` returns, and set the time of
        the following report."""
        began = time.monotonic()
        self._holding = processor.holding()
        duration = time.monotonic() - began
        self._report_at = began + max(HOLDING_INTERVAL, HOLDING_SHARE * duration)

    def _is_idle(self, processor: Processor) -> bool:
        """Whether the drain is to end: nothing was handled for `idle` seconds, no event that was
        read waits for its turn, and no firing is due within `DUE_SOON`."""
        if self.idle is None or processor.is_waiting:
            return False
        if processor.due is not None and processor.due / 1000 <= self._now() + DUE_SOON:
            return False
        required_idle = self.idle if processor.partitions else max(self.idle, JOIN_PATIENCE)
        return time.monotonic() - self._active_at >= required_idle
