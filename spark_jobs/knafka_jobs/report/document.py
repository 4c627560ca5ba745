"""The report's document: what failed, where and since when, and what became of it, as JSON.

The schema that machines may rely on (docs/report-schema.json, printed by
`python -m knafka_jobs.report.document`) and the contract between what counts and the page:

    Report ── Totals, Changes, PreviousReport, ReplayRun…
       └── Group… (Broker × Trigger × subscriber × reason × status code × error's summary)
              └── Bucket…, Top…, Example…, Change

Counted are *events* (distinct per Trigger: one that fails thrice is one event) and *failures* (each
time one was dead-lettered). All text is bounded. What came with an event is untrusted and kept as
it is: what shows it must escape it.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import json
import shlex
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, ConfigDict, Field

from knafka.core.delivery import Reason
from knafka.core.documents import Model
from knafka_jobs.fingerprint import CHARACTERS

PREVIEW_CHARACTERS: Final = 512
"""Of an example's data: enough to know the event by, little enough for thousands of examples."""

ERROR_CHARACTERS: Final = 1024
"""Of an example's decoded error data; its 768 bytes never decode to more."""

MAX_EXAMPLES: Final = 5
"""Per group."""

MAX_TOPS: Final = 5
"""Event types and sources listed per group."""

MAX_SUMMARIES: Final = 50
"""Groups that differ in their summaries alone."""

OTHERS: Final = "…"
"""The summary of all others."""

MAX_HISTORY: Final = 30
"""Earlier reports that a group tells of."""

MAX_BUCKETS: Final = 1000
"""Time buckets that a report may span: `bucket_seconds` is chosen so that they suffice."""

Count = Annotated[int, Field(ge=0)]


class Part(Model):
    """Part of a report: the docstrings below are the schema's descriptions."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ChangeKind(StrEnum):
    """What became of a group since the last report; the first that applies, in this order."""

    FAILED_AGAIN = "failed-again"
    """An event of it was replayed since and was dead-lettered again."""
    NEW = "new"
    """The last report did not have it (or there was none)."""
    GROWING = "growing"
    """It had more failures."""
    RESOLVED = "resolved"
    """Nothing of it is unresolved any more, and something was at the last report."""
    STEADY = "steady"
    """None of these."""


class Change(Part):
    """A group now beside the same group in the last report."""

    kind: ChangeKind
    failures: Count = 0
    """More than at the last report."""
    resolved: Count = 0
    """Events resolved since."""
    failed_again: Count = 0
    """Events that were replayed since and failed again."""


class Bucket(Part):
    """Failures within one stretch of `Report.bucket_seconds`; empty buckets are left out."""

    start: AwareDatetime
    """A multiple of `bucket_seconds` since the Unix epoch."""
    failures: Count


class Past(Part):
    """What an earlier report said of a group."""

    made: AwareDatetime
    """When that report was made."""
    failures: Count
    unresolved: Count


class Top(Part):
    """One of the most frequent values of an attribute."""

    value: str
    events: Count


class Example(Part):
    """One failed event, fit to recognise it and to see why it failed."""

    id: str
    """The CloudEvent's; of an undecodable record `topic/partition/offset`."""
    source: str | None = None
    type: str | None = None
    failed_at: AwareDatetime
    """When its last attempt began."""
    attempts: Count
    failures: Count = 1
    """How often it was dead-lettered: more than 1 if replays failed again."""
    resolved: bool = False
    error: str | None = Field(default=None, max_length=ERROR_CHARACTERS)
    """`knativeerrordata`, decoded: the beginning of the response's body, or what went wrong."""
    data_bytes: Count | None = None
    """Size of the event's data; None if it has none, which is not the same as empty (CE-K3)."""
    data_preview: str | None = Field(default=None, max_length=PREVIEW_CHARACTERS)
    """The beginning of the data, as text if it is UTF-8, else as `hex: 0a 1b…`; see `preview`."""
    data_content_type: str | None = None
    trace: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    """The id of the event's trace, if it had one."""
    topic: str | None = None
    """The record in the Broker's topic: topic, partition, offset."""
    partition: int | None = None
    offset: int | None = None


class Group(Part):
    """All failures of one kind: same Broker, Trigger, subscriber, reason, status code, summary."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    """`group_id` of these; the same in every report."""
    namespace: str
    broker: str
    trigger: str
    """Empty: no Trigger's, as the records hold no event."""
    subscriber: str
    """`knativeerrordest`: the URL that failed; empty if the event never got as far as one."""
    reason: Reason
    status: int | None = None
    """The HTTP status code; None where there was no response."""
    summary: Annotated[str, Field(max_length=CHARACTERS)]
    """The error's first line with addresses, UUIDs, ids and numbers taken out (`<n>`): what its
    failures have in common. Empty if the error says nothing; `…` are all that remain of a kind that
    fails in very many ways."""
    events: Count
    failures: Count
    unresolved: Count
    """Events neither resolved by a replay nor purged; `events - unresolved` are resolved."""
    share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Events of it by all that its Trigger delivered or failed to deliver in the report's time;
    None if that is unknown. Kafka's offsets don't tell a delivered event from one that the filter
    left out, so it is known only where every event failed."""
    retries: Count
    """Attempts after the first, over all failures: what failing has cost the subscriber."""
    first_seen: AwareDatetime
    last_seen: AwareDatetime
    oldest_unresolved: AwareDatetime | None = None
    """First failure of the event that has waited longest; None if all are resolved."""
    buckets: Annotated[tuple[Bucket, ...], Field(max_length=MAX_BUCKETS)] = ()
    """In time order."""
    top_types: Annotated[tuple[Top, ...], Field(max_length=MAX_TOPS)] = ()
    top_sources: Annotated[tuple[Top, ...], Field(max_length=MAX_TOPS)] = ()
    examples: Annotated[tuple[Example, ...], Field(max_length=MAX_EXAMPLES)] = ()
    """The latest first, unresolved ones before resolved ones."""
    change: Change
    first_reported: AwareDatetime | None = None
    """When a report had it first; None: none had it before this one."""
    history: Annotated[tuple[Past, ...], Field(max_length=MAX_HISTORY)] = ()
    """What the latest reports before this one said of it, in time order; those that did not have it
    are left out."""
    replay_command: str
    """Replays what is unresolved of it; ready for a POSIX shell (see `replay_command`). Empty: it
    has no events that could be sent."""


class ReplayRun(Part):
    """Who replayed what and when, and what became of it."""

    id: str
    by: str
    started: AwareDatetime
    finished: AwareDatetime | None = None
    """None while it runs, or if it was killed; the same replay id continues it."""
    selection: str
    """What was selected, as the command line said it."""
    sent: Count
    resolved: Count
    failed_again: Count
    """`sent - resolved - failed_again` are still on their way."""


class Totals(Part):
    """Sums over all groups, also those that a bounded report leaves out."""

    groups: Count
    events: Count
    failures: Count
    unresolved: Count
    retries: Count
    oldest_unresolved: AwareDatetime | None = None


class Cut(Part):
    """What a copy of a report leaves out, as it has to fit into a record of Kafka's."""

    groups: Count
    """Those with the fewest unresolved events."""
    examples: Count
    """Of the groups that are left."""


class PreviousReport(Part):
    """The report that the changes are told against."""

    id: str
    made: AwareDatetime


class Changes(Part):
    """Groups per kind of change since the previous report."""

    new: Count = 0
    growing: Count = 0
    steady: Count = 0
    resolved: Count = 0
    failed_again: Count = 0


class Report(Part):
    """Everything that one run of `report_failures` found out."""

    version: Literal[2] = 2
    """Of this schema; it grows when a field is removed or changes its meaning."""
    id: str
    made: AwareDatetime
    namespace: str | None = None
    """The report is about this namespace (and Broker); None: the whole installation."""
    broker: str | None = None
    since: AwareDatetime
    """The time that the buckets cover: from `since`, inclusive, to `until`, exclusive."""
    until: AwareDatetime
    bucket_seconds: Annotated[int, Field(ge=1)]
    previous: PreviousReport | None = None
    totals: Totals
    changes: Changes
    groups: tuple[Group, ...] = ()
    """The most unresolved events first."""
    replays: tuple[ReplayRun, ...] = ()
    """The latest first."""
    cut: Cut | None = None
    """None: nothing is left out."""


def group_id(
    namespace: str,
    broker: str,
    trigger: str,
    subscriber: str,
    reason: str,
    status: int | None,
    summary: str,
) -> str:
    """What names a group in every report: a digest, so that it can be part of a link."""
    parts = json.dumps([namespace, broker, trigger, subscriber, reason, status, summary])
    return hashlib.sha256(parts.encode()).hexdigest()[:12]


def replay_command(
    namespace: str, broker: str, trigger: str, reason: str, status: int | None, summary: str
) -> str:
    """The command that replays a group, quoted for a POSIX shell; empty for what is no Trigger's,
    as it holds no event."""
    if not trigger:
        return ""
    words = ["knafka", "dead-letters", "replay"]
    words += ["--broker", f"{namespace}/{broker}", "--trigger", trigger, "--reason", reason]
    if status is not None:
        words += ["--code", str(status)]
    if summary != OTHERS:
        words += ["--summary", summary]
    return shlex.join(words)


def bucket_seconds(since: datetime, until: datetime, at_most: int = 60) -> int:
    """The shortest round length that covers the time in `at_most` buckets or so."""
    lengths = (1, 5, 15, 60, 300, 900, 3600, 10_800, 21_600, 86_400, 604_800)
    span = (until - since).total_seconds()
    return next((each for each in lengths if span / each <= at_most), lengths[-1])


def preview(data: bytes | None) -> str | None:
    """The beginning of an event's data for people: text if it is UTF-8, else hexadecimal."""
    if data is None:
        return None
    cut = data[: PREVIEW_CHARACTERS * 4]
    try:
        # Incrementally, as a cut within a character is no reason to take text for binary.
        text = codecs.getincrementaldecoder("utf-8")().decode(cut, final=cut == data)
    except UnicodeDecodeError:
        text = f"hex: {data[:PREVIEW_CHARACTERS].hex(' ')}"
    return _bounded(text, PREVIEW_CHARACTERS)


def error_text(error_data: str | None) -> str | None:
    """`knativeerrordata` decoded; what is no base64 is shown as it stands."""
    if not error_data:
        return None
    try:
        text = base64.b64decode(error_data, validate=True).decode("utf-8", "replace")
    except ValueError:
        text = error_data
    return _bounded(text, ERROR_CHARACTERS)


def _bounded(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a report, with these docstrings as its descriptions."""
    return Report.model_json_schema(by_alias=True, mode="serialization")


def schema_text() -> str:
    """docs/report-schema.json, as a test demands it to be."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
