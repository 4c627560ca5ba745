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
        """Keep and measure the events of `records`; `append` hands them to Kafka."""
        self._records = records
        self._missing_reports = len(records)
        """Number of appended events that Kafka has not reported yet."""
        self._error: LogError | None = None
        """The first error that was reported; None: there was none so far."""
        self._on_all_reported: Reported
        """Called once all events are reported; set by `append`, but only if it got `tracing`."""
        self._span_enders: list[Callable[[Answer], None]] = []
        """The functions that end the events' spans with the answer, one for each event whose spans
        were started."""
        sizes = list(map(_record_bytes, records))
        self.largest = max(sizes, default=0)
        """Bytes of the batch's largest event, headers included."""
        self.held = sum(sizes)
        """Bytes of all events together, headers included."""
        self.headers = sum(len(record.headers) for record in records)
        """Number of headers of all events."""

    def append(
        self,
        ingress: Ingress,
        append: Append,
        append_all: AppendAll,
        tracing: IngestTracing | None,
        on_all_reported: Reported,
    ) -> None:
        """Append all events to the Ingress's topic, in their order, by the route's functions: by
        `append_all` if `tracing` is None, else one by one by `append`, as each event has its own
        spans. `on_all_reported` is called once, when Kafka has reported all events: with the first
        error, or with None if all are stored."""
        if tracing is None:
            append_all(ingress.topic, self._records, on_all_reported)
            return
        self._on_all_reported = on_all_reported
        for number, (key, headers, value) in enumerate(self._records):
            end_span, reported = tracing.start_spans(
                ingress, headers, _ignore_answer, self._note_report
            )
            self._span_enders.append(end_span)
            try:
                append(ingress.topic, key, value, headers, reported)
            except LogError as error:
                # The records after this one aren't appended, so no reports of them are waited for.
                self._missing_reports -= len(self._records) - number - 1
                reported(error)
                break

    def end_spans(self, answer: Answer) -> None:
        """End the spans of the batch's events with this answer."""
        for end_span in self._span_enders:
            end_span(answer)

    def _note_report(self, error: LogError | None) -> None:
        """Note Kafka's report of one event; after the last one, call `on_all_reported`."""
        self._error = self._error or error
        self._missing_reports -= 1
        if not self._missing_reports:
            self._on_all_reported(self._error)


def _ignore_answer(answer: Answer) -> None:
    """Do nothing with the answer to a single event, as the sender of a batch gets one answer for
    all of its events."""


def _record_bytes(record: Draft) -> int:
    """Return the size of a record in bytes: its value and its headers."""
    _, headers, value = record
    size = 0 if value is None else len(value)
    for name, text in headers:
        size += len(name) + len(text)
    return size
