"""Batches: the events of one request on their way to Kafka, with one answer for all (CE-H11).

    all are valid --append, one after the other--> Kafka --reports--> the answer, after the last

If one event isn't stored, the sender must send the whole batch again, so that later events of its
key stay behind it; events that were stored are then stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from knafka.core.contract import Ingress
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Draft
from knafka.ports.log import Append, AppendAll, Reported
from knafka.receiver.answers import Answer
from knafka.receiver.tracing import IngestTracing


class EventBatch:
    """The valid events of one request, which get one answer."""

    def __init__(self, records: Sequence[Draft]) -> None:
        """Measure these events; `append` hands them to Kafka."""
        self._records = records
        self._left = len(records)
        """Number of events of which a report is waited for."""
        self._error: LogError | None = None
        """The first error that was reported."""
        self._stored: Reported
        """Called once all events are reported; set by `append`."""
        self._traced: list[Callable[[Answer], None]] = []
        """For each event whose spans were started, the function that ends them with the answer."""
        sizes = list(map(_record_bytes, records))
        self.largest = max(sizes, default=0)
        """Bytes of the batch's largest event, headers included."""
        self.held = sum(sizes)
        """Bytes of all events, headers included."""
        self.headers = sum(len(record.headers) for record in records)
        """Number of headers of all events."""

    def append(
        self,
        ingress: Ingress,
        append: Append,
        append_all: AppendAll,
        tracing: IngestTracing | None,
        stored: Reported,
    ) -> None:
        """Append all events to the Ingress's topic, in their order, by the functions of its route:
        `append_all`, or with `tracing` `append`, as each event has spans. `stored` is called once
        all are reported, with the first error or None."""
        if tracing is None:
            append_all(ingress.topic, self._records, stored)
            return
        self._stored = stored
        for number, (key, headers, value) in enumerate(self._records):
            respond, reported = tracing.receive(ingress, headers, _ignore, self._note_report)
            self._traced.append(respond)
            try:
                append(ingress.topic, key, value, headers, reported)
            except LogError as error:
                # The records after this one aren't appended, so no reports of them are waited for.
                self._left -= len(self._records) - number - 1
                reported(error)
                break

    def end_spans(self, answer: Answer) -> None:
        """End the spans of the batch's events with this answer."""
        for respond in self._traced:
            respond(answer)

    def _note_report(self, error: LogError | None) -> None:
        """Note Kafka's report of one event; after the last one, call `stored`."""
        self._error = self._error or error
        self._left -= 1
        if not self._left:
            self._stored(self._error)


def _ignore(answer: Answer) -> None:
    """Send nothing: a batch gets one answer for all of its events."""


def _record_bytes(record: Draft) -> int:
    """Return the bytes of a record's value and headers."""
    _, headers, value = record
    size = 0 if value is None else len(value)
    for name, text in headers:
        size += len(name) + len(text)
    return size
