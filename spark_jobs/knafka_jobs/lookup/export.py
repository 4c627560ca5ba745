"""Exports all events of a group to a file, without Spark.

    ndjson   one CloudEvent in JSON per line: the events as they came to the Trigger
    parquet  a row for each failure: what its last dead letter says of the event and the last
             attempt, with key, data and headers

In memory are the positions of the group's dead letters (some hundred bytes each) and as many events
as fit `EXPORT_BATCH_BYTES`. The file appears when it is complete.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from knafka.core.dead_letter import OMITTED, headers_for_replay
from knafka.core.delivery import Reason
from knafka.core.errors import InvalidEvent
from knafka.core.events import json_format, kafka_binding
from knafka.core.events.event import Event
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.job_errors import JobError
from knafka_jobs.lookup import groups_plan
from knafka_jobs.lookup.lookup_run import headers_of

EXPORT_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes of data that are read at a time, about."""
MAX_BATCH_ROWS: Final = 8_192
"""Most rows that are read at a time, and most rows in a row group of a Parquet file."""
EXPORT_ROW_GROUP_BYTES: Final = 8 * EXPORT_BATCH_BYTES
"""Bytes of data in a row group of a Parquet file, about, uncompressed."""
ROW_OVERHEAD_BYTES: Final = 1_024
"""Estimated bytes of a row beside its data."""

SORT_MEMORY: Final = "256M"
"""Memory in which events are sorted, in the form of DataFusion's setting."""
SORT_FILES: Final = "64G"
"""Largest size of the temporary files of a sort."""


class ExportFormat(StrEnum):
    """The format of an exported file."""

    NDJSON = "ndjson"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """How many failures an export has written and left out."""

    events: int
    """Failures that were written."""
    left_out: int
    """Failures without an event, or whose data were too large to be kept (NDJSON), or whose dead
    letter the tables lack."""


def export_failures(
    files: TableFiles, predicate_sql: str, path: Path, file_format: ExportFormat
) -> ExportResult:
    """Write the events of all failures for which `predicate_sql` is true, each from its last dead
    letter, to a file. If there are no such failures, no file is written.

    Raises `JobError`; then a file that was there before stays as it was.
    """
    (totals,) = files.query(groups_plan.totals_of(predicate_sql), "failures")
    if not totals["number"]:
        return ExportResult(0, 0)
    row_bytes = _limit_batch_size(files, totals)
    query = groups_plan.last_dead_letters(predicate_sql, totals["first"], totals["last"])
    tables = ("failures", "records")
    with _replace_when_complete(path) as unfinished:
        if file_format is ExportFormat.PARQUET:
            row_group = _rows_within(EXPORT_ROW_GROUP_BYTES, row_bytes)
            files.set_option("execution.parquet.max_row_group_size", row_group)
            # A path with `*`, `?` or `[` would be a pattern; in a URL they are escaped.
            copying = groups_plan.copy_to_parquet(query, unfinished.absolute().as_uri())
            (copied,) = files.query(copying, *tables)
            written = int(copied["count"])
        else:
            with unfinished.open("wb") as lines:
                written = 0
                for batch in files.query_in_batches(query, *tables):
                    events = [line for row in batch if (line := event_line(row)) is not None]
                    lines.writelines(events)
                    written += len(events)
    return ExportResult(written, totals["number"] - written)


def read_events(files: TableFiles, predicate_sql: str) -> Iterator[Event | None]:
    """Yield the events of all failures for which `predicate_sql` is true, in the order in which
    they came to their Trigger; None for a dead letter that holds no whole event.

    Raises `JobError`. Sorting writes temporary files if `SORT_MEMORY` is too small.
    """
    (totals,) = files.query(groups_plan.totals_of(predicate_sql), "failures")
    if not totals["number"]:
        return
    files.limit_memory(SORT_MEMORY, SORT_FILES)
    _limit_batch_size(files, totals)
    query = groups_plan.last_dead_letters(predicate_sql, totals["first"], totals["last"])
    ordered = f"{query} ORDER BY r.origin_topic, r.origin_partition, r.origin_offset, first_failed"
    for batch in files.query_in_batches(ordered, "failures", "records"):
        yield from map(event_of, batch)


def _limit_batch_size(files: TableFiles, totals: Mapping[str, Any]) -> int:
    """Make queries return only as many rows at once as fit into about `EXPORT_BATCH_BYTES`; returns
    the average bytes of a row. `totals` is the row of `groups_plan.totals_of`, for at least one
    failure."""
    row_bytes: int = totals["bytes"] // totals["number"] + ROW_OVERHEAD_BYTES
    files.set_option("execution.batch_size", _rows_within(EXPORT_BATCH_BYTES, row_bytes))
    files.set_option("execution.target_partitions", 1)
    return row_bytes


def event_line(row: Mapping[str, Any]) -> bytes | None:
    """Return the event of a dead letter (a row of `groups_plan.last_dead_letters`) as a line of
    NDJSON; None if it holds no whole event (`event_of`)."""
    if (event := event_of(row)) is None:
        return None
    # Line breaks in JSON stand between its tokens only.
    return json_format.write(event).replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def event_of(row: Mapping[str, Any]) -> Event | None:
    """Return the event of a dead letter (a row of `groups_plan.last_dead_letters`) as it came to
    the Trigger, without Knafka's headers. None if it holds no whole event, as the record was no
    event, or its data were omitted."""
    headers = headers_of(row)
    if row["reason"] == Reason.UNDECODABLE or any(name == f"ce_{OMITTED}" for name, _ in headers):
        return None
    try:
        return kafka_binding.read(headers_for_replay(headers, ""), row["data"]).event
    except InvalidEvent:
        return None


def _rows_within(size: int, row_bytes: int) -> int:
    """Return how many rows of `row_bytes` bytes fit into `size` bytes: at least 1, and at most
    `MAX_BATCH_ROWS`."""
    return max(1, min(MAX_BATCH_ROWS, size // row_bytes))


@contextmanager
def _replace_when_complete(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file beside `path`, which the `with` block must write. When the
    block ends, the file replaces `path`; after an error it is deleted. Raises `JobError` for an
    error of the file system."""
    unfinished = path.parent / f".{secrets.token_hex(6)}.unfinished.parquet"
    try:
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise JobError(f"{path} can't be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
