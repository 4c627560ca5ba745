"""The producers of one writer: opens, polls and replaces them.

    prompt      sends each record at once
    gathering   gathers records for a millisecond, which saves most of the requests
    unbatched   sends each record in a batch of its own
    retired     former producers that take no more records, and still have some to report
A thread waits for the prompt producer's reports, and wakes the event loop once for many; the other
producers are polled on the loop.

Not here: which producer gets a record, and what its report means (`kafka_writer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sized
from typing import Any, Final

from confluent_kafka import KafkaError

from knafka.clients.kafka.kafka_client import Connection
from knafka.clients.kafka.producers.kafka_producer import ReplaceableProducer
from knafka.core.errors import LogError
from knafka.core.kafka_settings.kafka_oauth import MSK_REGION

log = logging.getLogger(__name__)

LINGER_MS: Final = 1
"""Milliseconds for which the gathering producer gathers records by default: the shortest time that
librdkafka can wait."""
POLL_BUSY: Final = 0.001
"""Seconds between polls for reports of gathered records; a poll costs a microsecond."""
POLL_IDLE: Final = 1.0
"""Most seconds for which the thread waits for a report, and seconds between two polls on the loop
while the producers polled there have no records."""
SINGLE_RECORD_BATCHES: Final = {"batch.num.messages": 1}
"""Configuration that makes a producer send each record in its own batch."""
RETIREMENT_TIME: Final = 5.0
"""Seconds for which a retired producer may still send records, of topics that it can reach. The
records that it hasn't sent by then wait for a leader that it won't find."""


class WriterProducers:
    """Up to three producers that take records, and retired ones. All methods must be called on the
    event loop."""

    def __init__(
        self,
        connection: Connection,
        on_error: Callable[[KafkaError], None],
        reports: Sized,
        deliver_reports: Callable[[], None],
    ) -> None:
        """Open the prompt producer; its reports wait until `start_polling`.

        `on_error` is called on the polling thread with errors of librdkafka. A poll calls the
        records' callbacks, which put their results into `reports`; then `deliver_reports` is called
        on the loop. Raises `LogError`.
        """
        self._connection = connection
        self._linger_ms = float(connection.get("linger.ms", LINGER_MS))
        self._on_error = on_error
        self._reports = reports
        self._deliver_reports = deliver_reports
        self._loop = asyncio.get_running_loop()
        self.prompt = self._open(linger_ms=0)
        """Sends each record at once."""
        self.gathering: ReplaceableProducer | None = None
        """Gathers records for `_linger_ms` before it sends them; None: it isn't open yet."""
        if MSK_REGION in connection:
            # Opened at the start, not in the first burst of records: opening blocks the loop for a
            # second, in which confluent-kafka (2.16.1) sleeps to wait for its token.
            self.gathering = self._open(self._linger_ms)
        self._unbatched: ReplaceableProducer | None = None
        """Sends each record in a batch of its own; None: it isn't open yet."""
        self._retired: list[ReplaceableProducer] = []
        """Former producers that still have records in flight."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer of the next poll on the loop; None: none was planned yet."""
        self._is_polling_often = False
        """Whether the next poll is planned after `POLL_BUSY` seconds, not `POLL_IDLE`."""
        self._is_wake_scheduled = False  # whether `_on_wake` is scheduled and has not run
        self._is_stopped = False  # whether `stop_timers` was called
        self._ended = threading.Event()

    def _open(self, linger_ms: float, **more_settings: Any) -> ReplaceableProducer:
        """Open a producer with this linger time and these further settings. Raises `LogError`."""
        settings = {**self._connection, **more_settings}
        return ReplaceableProducer(settings, linger_ms, self._on_error)

    @property
    def failure(self) -> LogError | None:
        """The error because of which a producer can send no more records, the prompt one's first;
        None: all producers work."""
        failures = (producer.failure for producer in self._active())
        return next((failure for failure in failures if failure is not None), None)

    def ensure_gathering(self) -> ReplaceableProducer:
        """Return the producer that gathers records, opening it at its first use. Raises
        `LogError`."""
        if self.gathering is None:
            self.gathering = self._open(self._linger_ms)
        self._poll_soon()
        return self.gathering

    def ensure_unbatched(self) -> ReplaceableProducer:
        """Return the producer that sends each record in its own batch, opening it at its first use.
        Raises `LogError`."""
        if self._unbatched is None:
            self._unbatched = self._open(0, **SINGLE_RECORD_BATCHES)
        self._poll_soon()
        return self._unbatched

    def _active(self) -> list[ReplaceableProducer]:
        """Return the open producers that take records, the prompt one first."""
        producers = (self.prompt, self.gathering, self._unbatched)
        return [producer for producer in producers if producer is not None]

    def _all(self) -> list[ReplaceableProducer]:
        """Return the open producers and those that are retired, the prompt one first."""
        return [*self._active(), *self._retired]

    # Polls

    def start_polling(self) -> None:
        """Start the thread that polls the prompt producer, until `end_polling`."""
        threading.Thread(target=self._poll_prompt, name="kafka-writer", daemon=True).start()

    def _poll_prompt(self) -> None:
        """Wait for reports of the prompt producer, and wake the loop once for many reports, until
        `end_polling`; the thread runs this."""
        while not self._ended.is_set():
            try:
                self.prompt.poll(POLL_IDLE)
            except Exception:  # no error may keep later reports from being delivered
                log.exception("looking for Kafka's reports failed")
                self._ended.wait(POLL_IDLE)
            if self.prompt.failure is not None:
                self._ended.wait(POLL_IDLE)  # polls of a failed producer return at once
            if self._reports and not self._is_wake_scheduled:
                self._is_wake_scheduled = True
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._on_wake)

    def _on_wake(self) -> None:
        """Deliver the reports for which the thread has woken the loop."""
        self._is_wake_scheduled = False
        self._deliver_reports()

    def _poll_soon(self) -> None:
        """Plan a poll of the producers without a thread in `POLL_BUSY` seconds, unless such a poll
        is planned already."""
        if not self._is_polling_often:
            self._poll_after(POLL_BUSY)

    def _poll_after(self, delay: float) -> None:
        """Plan the next poll of the producers without a thread, in `delay` seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_polling_often = delay == POLL_BUSY
        self._timer = self._loop.call_later(delay, self._poll)

    def _poll(self) -> None:
        """Poll the producers without a thread, plan the next poll, and deliver reports."""
        if not self._is_stopped:
            self._poll_after(POLL_BUSY if self.poll_unthreaded() else POLL_IDLE)
            self._deliver_reports()

    def poll_unthreaded(self) -> int:
        """Poll the producers that have no thread: all but the prompt one. Returns the number of
        their records without a report."""
        _, *polled = self._all()
        for producer in polled:
            producer.poll(0)
        return sum(map(len, polled))

    def stop_timers(self) -> None:
        """Plan no more polls: from now on, the producers without a thread are polled only when
        `poll_unthreaded` is called."""
        self._is_stopped = True

    def end_polling(self) -> None:
        """Let the thread of `start_polling` end, after the poll under way; returns at once."""
        self._ended.set()

    # Replacement

    def purge(self, *, in_flight: bool) -> None:
        """Let all unsent records be reported as failed. `in_flight`: whether that includes records
        that were sent and aren't acknowledged."""
        for producer in self._all():
            producer.purge(in_flight=in_flight)

    def renew(self) -> None:
        """Let all producers open new clients at their next poll, as Kafka doesn't answer."""
        for producer in self._all():
            producer.renew()
        self._poll_soon()

    async def replace(self) -> None:
        """Replace all producers by new ones, and retire the former ones. Further records of a key
        are refused until the former producer's records of the key are reported, as they could
        overtake these. Raises `LogError` if no new producer can be opened; then nothing is
        replaced."""
        linger_times = [0.0] if self.gathering is None else [0.0, self._linger_ms]
        # On a thread, as waiting for a token blocks (see `__init__`).
        new_producers = [
            await asyncio.to_thread(self._open, linger_ms) for linger_ms in linger_times
        ]
        for producer in self._active():
            producer.retire()
            self._retired.append(producer)
        self.prompt, *gathering = new_producers
        self.gathering = gathering[0] if gathering else None
        self._unbatched = None
        self._poll_soon()
        self._loop.call_later(RETIREMENT_TIME, self._end_retirement)

    def _end_retirement(self) -> None:
        """Let the unsent records of retired producers be reported as failed, and drop the retired
        producers that have nothing to report. Repeats itself every `RETIREMENT_TIME` seconds until
        none is left."""
        ended = [producer for producer in self._retired if not len(producer)]
        self._retired = [producer for producer in self._retired if len(producer)]
        for producer in self._retired:
            producer.purge(in_flight=False)
        if ended:
            # `clear` drops the last references. On a thread, as the end of a producer waits for
            # librdkafka's threads.
            self._loop.run_in_executor(None, ended.clear)
        if self._retired and not self._is_stopped:
            self._poll_soon()
            self._loop.call_later(RETIREMENT_TIME, self._end_retirement)
