"""Operations as declared: one-time actions on an archive's failures (issue 18). A DeadLetterReplay
sends events again, a DeadLetterPurge deletes them. Events are selected by fields, never by SQL, so
that users can't run code beside the store's credentials. Unknown fields are refused, as in
`model.resources`; `parse_operation` parses one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from knafka.core.delivery import Reason
from knafka.core.documents import parse, problem
from knafka_operator.model.resources import Declared, Metadata, NonEmpty, Resource

REPLAY: Final = "DeadLetterReplay"
PURGE: Final = "DeadLetterPurge"
OPERATIONS: Final = (REPLAY, PURGE)
"""The kinds of operations; of two operations created in the same second, the first kind runs first.
"""
OPERATION_LABEL: Final = "knafka.dev/operation"
"""Label of the Job that runs an operation: the operation's UID."""
OPERATION_ANNOTATION: Final = "knafka.dev/operation-name"
"""Annotation of the Job that runs an operation: the operation's kind, a slash and its name."""

MAX_IDS: Final = 500
"""Most event ids of a selection."""
MAX_SELECT: Final = 100_000
"""Most bytes of a selection as JSON, as it becomes one argument of a process: Linux accepts
128 KiB."""


def _normalize_to_utc(text: str) -> str:
    """Return an ISO 8601 time in UTC; a time without a zone is taken as UTC, as the jobs do. Raises
    a validation error."""
    try:
        moment = datetime.fromisoformat(text)
        utc_moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # such as the year 1, east of Greenwich
        raise problem(
            f"invalid value: {text:.80}: want a time such as 2026-01-31T12:00:00Z"
        ) from None
    return utc_moment.isoformat()


Moment: TypeAlias = Annotated[str, AfterValidator(_normalize_to_utc)]
"""A time as text: ISO 8601, in UTC."""


class Select(Declared):
    """Selects failures; every field that is set must match, and None matches any. Fields are named
    like the jobs' options: `trigger` and `destination` are those that failed, `code` is the HTTP
    status of the last response, `summary` the short form of the error (empty: no error text);
    `type` and `source` are the event's attributes."""

    trigger: NonEmpty | None = None
    destination: NonEmpty | None = None
    reason: Reason | None = None
    code: Annotated[int, Field(ge=100, le=999)] | None = None
    summary: str | None = None
    type: NonEmpty | None = None
    source: NonEmpty | None = None
    ids: Annotated[tuple[NonEmpty, ...], Field(max_length=MAX_IDS)] = ()
    """Ids of events to select; empty selects all."""
    since: Moment | None = None
    """The last failure was at this time or later; None: at any time."""
    until: Moment | None = None
    """The last failure was before this time; None: at any time."""

    @model_validator(mode="after")
    def _check_selection_size(self) -> Select:
        """Check that the selection fits into one argument of a process. Raises a validation
        error."""
        # As `services.compact_json` writes it: in ASCII, and without `$`.
        text = json.dumps(self.model_dump(mode="json", exclude_defaults=True))
        if len(text.replace("$", r"\u0024")) > MAX_SELECT:
            raise problem(f"has more than {MAX_SELECT} bytes as JSON: make several operations")
        return self


class OperationSpec(Declared):
    """The fields that the specs of all operations have."""

    archive: NonEmpty
    """A DeadLetterArchive of the same namespace."""
    select: Select = Select()
    """The failures that the operation is for; by default all."""
    dry_run: bool = False
    """Whether the operation only reports what it would do."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    """Seconds after its end at which the operation is deleted; None: never."""


class ReplaySpec(OperationSpec):
    """The spec of a DeadLetterReplay."""

    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Most events sent per second; None: no limit."""


class PurgeSpec(OperationSpec):
    """The spec of a DeadLetterPurge."""

    unresolved: bool = False
    """Whether unresolved failures are purged as well as resolved ones."""


class Created(Metadata):
    """Metadata of a stored object, which has a creation time."""

    creation_timestamp: Moment
    """When the API server stored the object, in UTC and whole seconds."""


class Replay(Resource):
    """A DeadLetterReplay: sends the events of failures again."""

    metadata: Created
    spec: ReplaySpec


class Purge(Resource):
    """A DeadLetterPurge: deletes failures from the tables."""

    metadata: Created
    spec: PurgeSpec


Operation: TypeAlias = Replay | Purge


def parse_operation(document: Mapping[str, Any]) -> Operation:
    """Parse a DeadLetterReplay or DeadLetterPurge. Raises `InvalidDocument`."""
    if document["kind"] == REPLAY:
        return parse(Replay, document)
    return parse(Purge, document)
