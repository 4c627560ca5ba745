"""The report's JSON document: what failed, where, since when, and the outcome of replays.

It is the schema that machines may rely on (docs/report-schema.json, printed by
`python -m knafka_jobs.report.report_document`), and the contract between counting and the page:

    Report ── Totals, Changes, PreviousReport, ReplayRun…
       └── Group… (Broker × Trigger × subscriber × reason × status code × error's summary)
              └── Bucket…, Top…, Example…, Change

It counts *events* (distinct per Trigger: an event that fails three times is one event) and
*failures* (each time an event was dead-lettered). All text is bounded. Text of an event is
untrusted and kept unchanged: a program that shows it must escape it.
"""

from __future__ import annotations

import base64
import codecs
import json
import shlex
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, ConfigDict, Field

from knafka.core.delivery import Reason
from knafka.core.documents import Model
from knafka_jobs.failure_groups import OTHER_SUMMARIES
from knafka_jobs.fingerprint import FINGERPRINT_CHARACTERS
from knafka_jobs.replay_state import ReplayState

PREVIEW_CHARACTERS: Final = 512
"""Largest number of characters of an example's data: enough to recognise the event."""

ERROR_CHARACTERS: Final = 1024
"""Largest number of characters of an example's error; its 768 bytes never decode to more."""

MAX_EXAMPLES: Final = 5
"""Largest number of examples of a group."""

MAX_TOPS: Final = 5
"""Largest number of event types, and of sources, that are listed of a group."""

MAX_HISTORY: Final = 30
"""Largest number of earlier reports in the history of a group."""

REPLAY_COMMAND: Final = "knafka dead-letters replay"
"""The first words of the command that replays a group; `with_replay_command` replaces them by words
that also name the tables and Kafka."""

MAX_BUCKETS: Final = 1000
"""Largest number of time buckets of a group; `bucket_seconds` makes far fewer of them."""

Count = Annotated[int, Field(ge=0)]
"""A number of things, never negative."""


class Part(Model):
    """Part of a report; docstrings of its fields are the descriptions in the JSON schema."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class GroupAge(StrEnum):
    """How long before the report a group failed for the first time; a report orders by it."""

    LAST_HOUR = "last-hour"
    """Within the hour before the report was made."""
    LAST_DAY = "last-day"
    """Within the 24 hours before the report was made, but not within the last one."""
    OLDER = "older"


class ChangeKind(StrEnum):
    """How a group changed since the last report; the first kind that applies, in this order."""

    FAILED_AGAIN = "failed-again"
    """An event of the group was replayed since then and was dead-lettered again."""
    NEW = "new"
    """The last report did not have the group, or there was no report."""
    GROWING = "growing"
    """The group has more failures."""
    RESOLVED = "resolved"
    """The group has no unresolved events any more; at the last report it had some."""
    STEADY = "steady"
    """None of the other kinds applies."""


class Change(Part):
    """The changes of a group since the last report."""

    kind: ChangeKind
    failures: Count = 0
    """Number of failures since the last report."""
    resolved: Count = 0
    """Number of events resolved since the last report."""
    failed_again: Count = 0
    """Number of events that were replayed since the last report and failed again."""


class Bucket(Part):
    """Failures within a period of `Report.bucket_seconds`; empty buckets are left out."""

    start: AwareDatetime
    """Start of the period: a multiple of `bucket_seconds` since the Unix epoch."""
    failures: Count


class Past(Part):
    """The figures of a group in an earlier report."""

    made: AwareDatetime
    """Time at which that report was made."""
    failures: Count
    unresolved: Count


class Top(Part):
    """One of the most frequent values of an event attribute."""

    value: str
    events: Count


class Example(Part):
    """One failed event, with what is needed to recognise it and to see why it failed."""

    id: str
    """The CloudEvent's id; of an undecodable record `topic/partition/offset`."""
    source: str | None = None
    type: str | None = None
    failed_at: AwareDatetime
    """When the last attempt to deliver the event began."""
    attempts: Count
    failures: Count = 1
    """How often the event was dead-lettered: more than 1 if replays failed again."""
    resolved: bool = False
    error: str | None = Field(default=None, max_length=ERROR_CHARACTERS)
    """`knativeerrordata`, decoded: the beginning of the response's body, or the error."""
    data_bytes: Count | None = None
    """Size of the event's data; None if it has none, which is not the same as empty (CE-K3)."""
    data_preview: str | None = Field(default=None, max_length=PREVIEW_CHARACTERS)
    """The beginning of the data, as text if it is UTF-8, else as `hex: 0a 1b…`; see `preview`."""
    data_content_type: str | None = None
    trace: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    """The id of the event's trace; None without one."""
    topic: str | None = None
    """The event's record in the Broker's topic: topic, partition, offset."""
    partition: int | None = None
    offset: int | None = None


class Acknowledged(Part):
    """Who takes care of a group, or has it ignored."""

    by: str
    at: AwareDatetime
    until: AwareDatetime | None = None
    """When the acknowledgement ends; None: never."""
    note: str = ""


class Group(Part):
    """All failures of one kind: same Broker, Trigger, subscriber, reason, status code, summary."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    """Digest of what the failures have in common; the same in every report."""
    namespace: str
    broker: str
    trigger: str
    """Name of the Trigger; empty for records that hold no event, which have no Trigger."""
    subscriber: str
    """`knativeerrordest`: the URL that failed; empty if no URL was tried."""
    reason: Reason
    status: int | None = None
    """The HTTP status code; None without a response."""
    summary: Annotated[str, Field(max_length=FINGERPRINT_CHARACTERS)]
    """The error's first line with addresses, UUIDs, ids and numbers replaced (`<n>`): the text that
    the failures have in common. Empty if the error has no text; `…` is a group of all further
    failures, if there are very many summaries."""
    events: Count
    failures: Count
    unresolved: Count
    """Events neither resolved by a replay nor purged; `events - unresolved` are resolved."""
    share: Annotated[float, Field(ge=0, le=1)] | None = None
    """The group's events as a share of all events that the Trigger delivered or failed to deliver
    in the report's time; None if unknown. Kafka's offsets don't tell a delivered event from a
    filtered one, so the share is known only where every event failed."""
    retries: Count
    """Attempts after the first, over all failures: the load that failing put on the subscriber."""
    last_hour: Count = 0
    """Failures within the hour before the report was made."""
    rate: Annotated[float, Field(ge=0)] = 0
    """Failures an hour within the 24 hours before the report was made; of a group that failed for
    the first time within these, since then (one hour at least)."""
    first_seen: AwareDatetime
    last_seen: AwareDatetime
    age: GroupAge = GroupAge.OLDER
    oldest_unresolved: AwareDatetime | None = None
    """First failure of the event that has waited longest; None if all are resolved."""
    buckets: Annotated[tuple[Bucket, ...], Field(max_length=MAX_BUCKETS)] = ()
    """Failures over time, in time order."""
    top_types: Annotated[tuple[Top, ...], Field(max_length=MAX_TOPS)] = ()
    top_sources: Annotated[tuple[Top, ...], Field(max_length=MAX_TOPS)] = ()
    examples: Annotated[tuple[Example, ...], Field(max_length=MAX_EXAMPLES)] = ()
    """The latest first, unresolved ones before resolved ones."""
    change: Change
    first_reported: AwareDatetime | None = None
    """When the first report with this group was made; None if that is this report."""
    history: Annotated[tuple[Past, ...], Field(max_length=MAX_HISTORY)] = ()
    """The group's figures in the latest reports before this one, in time order; reports without the
    group are left out."""
    acknowledged: Acknowledged | None = None
    """The acknowledgement that held when the report was made."""
    replay_command: str
    """Command that replays the group's unresolved events, quoted for a POSIX shell; empty if the
    group has no events that could be sent."""


class ReplayRun(Part):
    """A replay: who replayed which events and when, and the events' outcomes."""

    id: str
    by: str
    started: AwareDatetime
    finished: AwareDatetime | None = None
    """None while the replay runs, or if it was killed; the same replay id continues it."""
    state: ReplayState | None = None
    """The replay's state when the report was made; None in reports of earlier versions."""
    selection: str
    """The options of the command line that selected the events."""
    sent: Count
    """Number of events sent so far, as noted by the replay; all of them once it is finished."""
    total: Count | None = None
    """Number of events that it sends if it is neither cancelled nor cut short; None: unknown."""
    rate: Annotated[float, Field(ge=0)] | None = None
    """Events sent in a second, since its progress was noted first; None: unknown."""
    resolved: Count
    failed_again: Count
    """Number of events that failed again; `sent - resolved - failed_again` are not settled yet."""


class Totals(Part):
    """Sums over all groups, including groups that a shortened copy of the report leaves out."""

    groups: Count
    events: Count
    failures: Count
    unresolved: Count
    retries: Count
    oldest_unresolved: AwareDatetime | None = None


class Cut(Part):
    """What a copy of a report leaves out to fit into one Kafka record."""

    groups: Count
    """Number of groups that are left out: the last ones of the report."""
    examples: Count
    """Number of examples that are left out of the remaining groups."""


class PreviousReport(Part):
    """The report with which this report is compared."""

    id: str
    made: AwareDatetime


class Changes(Part):
    """Number of groups per kind of change since the previous report."""

    new: Count = 0
    growing: Count = 0
    steady: Count = 0
    resolved: Count = 0
    failed_again: Count = 0


class Report(Part):
    """A report: everything that one run of the job `report` found out."""

    version: Literal[2] = 2
    """Version of this schema; it grows when a field is removed or changes its meaning."""
    id: str
    made: AwareDatetime
    namespace: str | None = None
    """Namespace of the Broker that the report is about; None: the whole installation."""
    broker: str | None = None
    since: AwareDatetime
    """Start of the time that the buckets cover: from `since`, inclusive, to `until`, exclusive."""
    until: AwareDatetime
    bucket_seconds: Annotated[int, Field(ge=1)]
    previous: PreviousReport | None = None
    totals: Totals
    changes: Changes
    groups: tuple[Group, ...] = ()
    """The groups, ordered by three criteria: those that aren't acknowledged before acknowledged
    ones; then by `age`, the latest first; then by unresolved events, the most first."""
    replays: tuple[ReplayRun, ...] = ()
    """The latest replays, the newest first."""
    cut: Cut | None = None
    """What this copy leaves out; None: nothing."""


def replay_command(
    namespace: str,
    broker: str,
    trigger: str,
    subscriber: str,
    reason: str,
    status: int | None,
    summary: str,
) -> str:
    """Return the command that replays a group, quoted for a POSIX shell; empty if the group has no
    Trigger, as such records hold no event.

    If no URL was tried (`subscriber` is empty), the command selects failures at any destination.
    """
    if not trigger:
        return ""
    words = shlex.split(REPLAY_COMMAND)
    words += ["--broker", f"{namespace}/{broker}", "--trigger", trigger]
    if subscriber:
        words += ["--destination", subscriber]
    words += ["--reason", reason]
    if status is not None:
        words += ["--code", str(status)]
    if summary != OTHER_SUMMARIES:
        words += ["--summary", summary]
    return shlex.join(words)


def with_replay_command(report: Report, command: str) -> Report:
    """Return a copy of the report, with `command` in place of `REPLAY_COMMAND` in the replay
    command of each group. `command` is quoted for a POSIX shell, and names the tables and Kafka."""
    groups = (
        group.model_copy(
            update={"replay_command": group.replay_command.replace(REPLAY_COMMAND, command, 1)}
        )
        for group in report.groups
    )
    return report.model_copy(update={"groups": tuple(groups)})


def bucket_seconds(since: datetime, until: datetime, at_most: int = 60) -> int:
    """Return the length in seconds of the time buckets of a report: the shortest of some round
    lengths with which `at_most` buckets cover the time from `since` to `until`; a week if none is
    long enough. As buckets begin at multiples of their length, there may be one more."""
    lengths = (1, 5, 15, 60, 300, 900, 3600, 10_800, 21_600, 86_400, 604_800)
    span = (until - since).total_seconds()
    return next((length for length in lengths if span / length <= at_most), lengths[-1])


def preview(data: bytes | None) -> str | None:
    """Return the beginning of an event's data for people to read: as text if the data are UTF-8,
    else as `hex: 0a 1b…`; None if there are no data."""
    if data is None:
        return None
    beginning = data[: PREVIEW_CHARACTERS * 4]  # a character has at most 4 bytes
    try:
        # Decode incrementally: a character that is cut at the end is no error.
        text = codecs.getincrementaldecoder("utf-8")().decode(beginning, final=beginning == data)
    except UnicodeDecodeError:
        text = f"hex: {data[:PREVIEW_CHARACTERS].hex(' ')}"
    return _cut_text(text, PREVIEW_CHARACTERS)


def error_text(error_data: str | None) -> str | None:
    """Return the text of an error, cut to `ERROR_CHARACTERS`; None if there is none. `error_data`
    is the attribute `knativeerrordata`: base64, else taken as plain text."""
    if not error_data:
        return None
    try:
        text = base64.b64decode(error_data, validate=True).decode("utf-8", "replace")
    except ValueError:
        text = error_data
    return _cut_text(text, ERROR_CHARACTERS)


def _cut_text(text: str, characters: int) -> str:
    """Cut a text to a number of characters; a text that was cut ends with `…`."""
    return text if len(text) <= characters else text[: characters - 1] + "…"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a report; the docstrings above are its descriptions."""
    return Report.model_json_schema(by_alias=True, mode="serialization")


def schema_text() -> str:
    """Return the right content of docs/report-schema.json; a test compares the file with it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
