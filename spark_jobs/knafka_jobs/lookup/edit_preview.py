"""Previews the edits of a replay from the tables' files: events before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from knafka.core.dead_letter import headers_for_replay
from knafka.core.events import kafka_binding
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import RecordHeaders
from knafka_jobs.event_edits import CannotEdit, EventEdits, edited_record
from knafka_jobs.failure_selection import SHOWN_ORDER, FailureCondition
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.lookup import groups_plan
from knafka_jobs.lookup.lookup_run import headers_of, sendable_rows

SHOWN_EDITS: Final = 5
"""Most events that a preview shows, each before and after the edits."""
MAX_COUNTED_PROBLEMS: Final = 100
"""Most different problems that are counted, to find the most frequent one."""
StoredRecord: TypeAlias = tuple[RecordHeaders, bytes | None]
"""Headers and value of a record."""
BATCH_ROWS: Final = 1_000
"""Events that are read at a time."""


@dataclass(slots=True)
class EditPreview:
    """The effect that a replay's edits would have."""

    shown: list[tuple[Event, Event]] = field(default_factory=list)
    """The first `SHOWN_EDITS` events in the order of a dry run, each before and after the edits."""
    not_editable: int = 0
    """Number of events that would be left out, as the edits can't be applied to them."""
    problem: str = ""
    """The most frequent reason why the edits can't be applied; empty if `not_editable` is 0."""

    def document(self) -> dict[str, Any]:
        """Return the preview as a JSON document."""
        edits = [
            {"before": _event_document(before), "after": _event_document(after)}
            for before, after in self.shown
        ]
        return {"edits": edits, "not_editable": self.not_editable, "problem": self.problem}


class _ShownRecord(NamedTuple):
    """The record of an event, before and after the edits, with its sort key among all events."""

    order: tuple[Any, ...]
    """The event's values of the columns `SHOWN_ORDER`."""
    before: StoredRecord
    after: StoredRecord


def preview_edits(
    files: TableFiles, conditions: Sequence[FailureCondition], edits: EventEdits
) -> EditPreview:
    """Apply the edits to all events that a replay of the failures with these `conditions` would
    send, without sending any, and return the effect. Raises `JobError`."""
    rows, tables = sendable_rows(files, conditions)
    (totals,) = files.query(groups_plan.totals_of("true", f"({rows})"), *tables)
    preview = EditPreview()
    if not totals["number"]:
        return preview
    problems: Counter[str] = Counter()
    shown: list[_ShownRecord] = []  # the first events so far, sorted
    files.set_option("execution.batch_size", BATCH_ROWS)
    query = groups_plan.last_dead_letters("true", totals["first"], totals["last"], f"({rows})")
    for batch in files.query_in_batches(query, *tables, "records"):
        for row in batch:
            headers = headers_of(row)
            try:
                record = edited_record(edits, headers, row["data"])
            except CannotEdit as error:
                preview.not_editable += 1
                # A new problem is counted only while there are few, so that memory stays bounded.
                if len(problems) < MAX_COUNTED_PROBLEMS or str(error) in problems:
                    problems[str(error)] += 1
                continue
            order = tuple(row[name] for name in SHOWN_ORDER)
            if len(shown) < SHOWN_EDITS or order < shown[-1].order:
                # As the event came to its Trigger: without the headers that the dead letter added.
                before = headers_for_replay(headers, ""), row["data"]
                shown = sorted([*shown, _ShownRecord(order, before, record)])[:SHOWN_EDITS]
    preview.problem = next((problem for problem, _ in problems.most_common(1)), "")
    preview.shown = [
        (kafka_binding.read(*before).event, kafka_binding.read(*after).event)
        for _, before, after in shown
    ]
    return preview


def _event_document(event: Event) -> dict[str, Any]:
    """Return an event's attributes and data as a JSON document; bytes of the data that are no UTF-8
    become U+FFFD."""
    data = {} if event.data is None else {"data": event.data.decode(errors="replace")}
    return {**event.attributes, **data}
