"""The options of all jobs, each declared once. Imports no Spark, so that `--help` is quick."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from knafka.core.delivery import Reason
from knafka.core.trace_url import EXPECTED_TRACE_URL, is_trace_url
from knafka_jobs.topic_offsets import BrokerName

KEEP_HOURS: Final = 24.0
"""Hours for which a dead letter stays in its topic after the tables have it: time to notice that a
table was lost, and to look at recent dead letters without Spark."""

BATCH_RECORDS: Final = 1_000_000
"""Dead letters in one batch: few large batches cost far less than many small ones."""

TIMELINE_DAYS: Final = 30.0
"""Days that the timeline of a report covers, by default."""

MAX_DAYS: Final = 365_000
"""Largest number of days that an option may go back: a thousand years, which a date allows."""

SHOWN_FIRINGS: Final = 20
"""Firings that a backtest prints, by default."""


class EngineName(StrEnum):
    """The engine that counts the failures for a report."""

    AUTO = "auto"
    """DataFusion if the tables fit one machine, else Spark."""
    DATAFUSION = "datafusion"
    """DataFusion, in one process without Java."""
    SPARK = "spark"


N = TypeVar("N", int, float)
"""A type of numbers."""


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """The options of a compaction."""

    broker: BrokerName | None = None
    """The Broker whose dead letters are compacted; None: all Brokers of the installation."""
    keep_hours: float = KEEP_HOURS
    """Hours for which a dead letter stays in its topic after the tables have it."""
    batch_records: int = BATCH_RECORDS
    """Dead letters in one batch, about."""
    forget_resolved_days: int | None = None
    """Days after which a resolved failure is deleted; None: never."""
    forget_unresolved_days: int | None = None
    """Days after its last attempt after which an unresolved failure is deleted; None: never."""


@dataclass(frozen=True, slots=True)
class FailureSelection:
    """Selects the failures that fit every field that is set. A field that is None isn't set, and
    leaves no failure out. In `OPTIONS`, the option of the same name explains a field."""

    broker: BrokerName | None = None
    trigger: str | None = None
    destination: str | None = None
    reason: Reason | None = None
    code: int | None = None
    summary: str | None = None
    type: str | None = None
    source: str | None = None
    id: str | None = None
    ids: tuple[str, ...] | None = None
    """Ids of events; a failure fits if its event has one of them. No option sets it, only
    DeadLetterReplays and DeadLetterPurges do."""
    since: datetime | None = None
    """The failure's last attempt was at this time or later."""
    until: datetime | None = None
    """The failure's last attempt was before this time."""
    where: str | None = None
    """SQL predicate over the table `failures`, for Spark."""

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> FailureSelection:
        """Return the selection that parsed options of the command line declare. The field of an
        option that is missing stays None."""
        return cls(**{field.name: getattr(arguments, field.name, None) for field in fields(cls)})

    def __str__(self) -> str:
        """Return the selection as options of a shell's command line, so that selections of
        different failures have different texts; `everything` if no field is set."""
        options = [
            f"--{field.name} {shlex.quote(str(value))}"
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None and field.name != "ids"
        ]
        options += [f"--id {shlex.quote(event_id)}" for event_id in self.ids or ()]
        return " ".join(options) or "everything"


def parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m knafka_jobs`."""
    argument_parser = argparse.ArgumentParser(
        prog="knafka_jobs",
        description="Jobs on Spark. For dead letters: compact, report, replay and purge. For "
        "Sensors: backtest.",
    )
    commands = argument_parser.add_subparsers(dest="command", required=True)
    for name, (description, options) in COMMANDS.items():
        subcommand = commands.add_parser(name, help=description, description=description)
        for option in options.split():
            option_name = option.rstrip("!")  # `!` marks an option that the command requires
            argument = dict(OPTIONS[option_name])
            if option.endswith("!"):
                argument["required"] = True
            subcommand.add_argument(f"--{option_name}", **argument)
    return argument_parser


def _parse_broker(text: str) -> BrokerName:
    """Parse the name of a Broker, `NAMESPACE/NAME`. Raises `ArgumentTypeError`."""
    if re.fullmatch("[^/]+/[^/]+", text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAMESPACE/NAME: give for example shop/orders"
        )
    return BrokerName(*text.split("/"))


def _parse_replay_id(text: str) -> str:
    """Check the length and the characters of a replay id, and return it unchanged. Raises
    `ArgumentTypeError`."""
    if re.fullmatch("[A-Za-z0-9._-]{1,64}", text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no replay id: use 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'"
        )
    return text


def _parse_trace_url(text: str) -> str:
    """Check that a URL can link to traces, and return it unchanged. Raises
    `ArgumentTypeError`."""
    if not is_trace_url(text):
        raise argparse.ArgumentTypeError(f"{text!r}: {EXPECTED_TRACE_URL}")
    return text


def positive_parser(number_type: Callable[[str], N], most: float = math.inf) -> Callable[[str], N]:
    """Return a function that parses a finite number of this type, int or float, that is above 0 and
    at most `most`."""

    # The function's name is in argparse's message: "invalid number value".
    def number(text: str) -> N:
        """Parse a number. Raises `ArgumentTypeError` unless it is in the range, and `ValueError` if
        the text is no number."""
        if not (value := number_type(text)) > 0:  # not `<= 0`, which NaN would pass
            raise argparse.ArgumentTypeError(f"{text!r} is too small: give a number above 0")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text!r} is too large: give at most {most:,}")
        return _check_finite(value, text)

    return number


def _parse_not_negative(text: str) -> float:
    """Parse a finite number that is at least 0. Raises `ArgumentTypeError`, and `ValueError` if it
    is no number."""
    if not (value := float(text)) >= 0:  # not `< 0`, which NaN would pass
        raise argparse.ArgumentTypeError(f"{text!r} is too small: give 0 or more")
    return _check_finite(value, text)


def _check_finite(value: N, text: str) -> N:
    """Return the number `value`, parsed from `text`. Raises `ArgumentTypeError` if it is
    infinite."""
    if value == math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: give a finite number")
    return value


def _parse_moment(text: str) -> datetime:
    """Parse a time in ISO 8601; a time without an offset is in UTC. Raises `ValueError`."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
"""The argument of `timedelta` for each unit of an age."""
_match_age = re.compile(r"(\d+(?:\.\d+)?)([smhdw])").fullmatch
"""Matches an age such as `30d`: number and unit."""


def parse_moment_or_age(text: str) -> datetime:
    """Parse a time (ISO 8601; in UTC if it has no offset), or an age such as `30d` or `12h`: the
    time that long before now. Raises `ArgumentTypeError`."""
    try:
        if (match := _match_age(text)) is None:
            return _parse_moment(text)
        number, unit = match.groups()
        return datetime.now(UTC) - timedelta(**{_UNITS[unit]: float(number)})
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: give an age such as 30d, 12h or 90m, or a time such as "
            "2026-01-31T12:00"
        ) from None


OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "tables": {"help": "folder or object store URI that holds the tables"},
    "bootstrap-servers": {"help": "Kafka's addresses: HOST:PORT,..."},
    "secret": {
        "help": "folder where the Secret for Kafka is mounted (default: connect in plaintext)",
        "type": Path,
    },
    "keep-hours": {
        "help": "hours for which a dead letter stays in its topic after the tables have it "
        "(default: %(default)s)",
        "type": _parse_not_negative,
        "default": KEEP_HOURS,
    },
    "batch-records": {
        "help": "dead letters that are read and stored at a time (default: %(default)s)",
        "type": positive_parser(int),
        "default": BATCH_RECORDS,
    },
    "forget-resolved-days": {
        "help": "delete failures and their records this many days after they were resolved "
        "(default: never)",
        "type": positive_parser(int, MAX_DAYS),
    },
    "forget-unresolved-days": {
        "help": "delete unresolved failures and their records this many days after they last "
        "failed: they can no longer be replayed (default: never)",
        "type": positive_parser(int, MAX_DAYS),
    },
    "days": {
        "help": "days that the report's timeline covers (default: %(default)s)",
        "type": positive_parser(float, MAX_DAYS),
        "default": TIMELINE_DAYS,
    },
    "engine": {
        "help": "who counts the failures: datafusion (one process without Java), spark, or auto: "
        "datafusion where the tables fit one machine (default: %(default)s)",
        "type": EngineName,
        "metavar": "ENGINE",
        "default": EngineName.AUTO,
    },
    "json": {"help": "file to write the report to, as JSON", "type": Path},
    "html": {"help": "file to write the report to, as an HTML page", "type": Path},
    "replay-command": {
        "help": "how the report's commands to replay a group begin (default: this program's, with "
        "these tables and this Kafka)",
        "default": "",
    },
    "trace-url": {
        "help": "address that links to a trace; {trace} stands for the trace's id",
        "type": _parse_trace_url,
        "default": "",
    },
    "compact": {
        "help": "bring the tables up to date first (needs --bootstrap-servers)",
        "action": "store_true",
    },
    "dry-run": {"help": "only print what would be done", "action": "store_true"},
    "replay-id": {
        "help": "continue the interrupted replay that has this id",
        "type": _parse_replay_id,
    },
    "rate": {
        "help": "send at most this many events a second (default: no limit)",
        "type": positive_parser(float),
    },
    "set-attribute": {
        "help": "send events with this value of an attribute; can be repeated",
        "metavar": "NAME=VALUE",
        "action": "append",
    },
    "remove-attribute": {
        "help": "send events without this attribute; can be repeated",
        "metavar": "NAME",
        "action": "append",
    },
    "set-data": {
        "help": "send events with this value in their JSON data: JSON, else text; can be repeated",
        "metavar": "JSON-POINTER=VALUE",
        "action": "append",
    },
    "by": {"help": "name to record as the person who replays (default: your user name)"},
    "unresolved": {
        "help": "also delete unresolved failures: they can no longer be replayed",
        "action": "store_true",
    },
    # Options of a backtest only.
    "sensor": {
        "help": "file with the Sensor as JSON, as `kubectl get -o json` prints it",
        "type": Path,
    },
    "topic": {"help": "topic that holds the events: the Broker's"},
    "archive": {
        "help": "folder or URI of archived events: Kafka records as Delta or Parquet, or "
        "structured CloudEvents as NDJSON"
    },
    "events-since": {
        "help": "use only events of this time or later: an age (30d, 12h) or an ISO 8601 time "
        "(UTC without an offset)",
        "type": parse_moment_or_age,
    },
    "events-until": {"help": "use only events before this time", "type": parse_moment_or_age},
    "limit": {
        "help": "number of firings to print (default: %(default)s)",
        "type": positive_parser(int),
        "default": SHOWN_FIRINGS,
    },
    "output": {"help": "folder or URI where a new Delta table of all firings is written"},
    # Options that select failures: a failure is selected if it fits all of them.
    "broker": {"help": "only dead letters of this Broker: NAMESPACE/NAME", "type": _parse_broker},
    "trigger": {"help": "only failures of the Trigger with this name"},
    "destination": {"help": "only failures at this URL of a subscriber"},
    "reason": {
        "help": f"only failures for this reason: {', '.join(Reason)}",
        "type": Reason,
        "metavar": "REASON",
    },
    "code": {"help": "only failures with this HTTP status code", "type": int},
    "summary": {"help": "only failures with this error summary, as a report shows it"},
    "type": {"help": "only failures of events of this type"},
    "source": {"help": "only failures of events of this source"},
    "id": {"help": "only failures of the event with this id"},
    "since": {
        "help": "only failures whose last attempt was at this time or later: ISO 8601 (UTC "
        "without an offset)",
        "type": _parse_moment,
    },
    "until": {
        "help": "only failures whose last attempt was before this time",
        "type": _parse_moment,
    },
    "where": {
        "help": "only failures for which this SQL predicate over the table `failures` is true"
    },
}
"""Every option of any command by its name: the keyword arguments of `add_argument`."""

SELECTION: Final = tuple(field.name for field in fields(FailureSelection) if field.name != "ids")
"""The options that select failures."""

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "compact": (
        "Copy new dead letters from their topics into the tables.",
        "tables! bootstrap-servers! secret broker keep-hours batch-records "
        "forget-resolved-days forget-unresolved-days",
    ),
    "report": (
        "Report what failed, and what has changed since the last report.",
        "tables! broker days engine json html trace-url replay-command compact "
        "bootstrap-servers secret keep-hours forget-resolved-days forget-unresolved-days",
    ),
    "replay": (
        "Send failed events again to the Trigger that failed them.",
        "tables! bootstrap-servers! secret dry-run replay-id rate set-attribute remove-attribute "
        f"set-data by {' '.join(SELECTION)}",
    ),
    "purge": (
        "Delete resolved failures and their records from the tables.",
        f"tables! unresolved dry-run {' '.join(SELECTION)}",
    ),
    "backtest": (
        "Show what a Sensor would have fired for the events of a topic or an archive.",
        "sensor! topic archive bootstrap-servers secret events-since events-until limit output",
    ),
}
"""Each command's description and its options; `!` marks options that it requires."""
