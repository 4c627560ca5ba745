"""What the jobs can be asked for: each option declared once. Needs no Spark: `--help` is quick."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from knafka.core.delivery import Reason
from knafka.core.trace_url import WANTED, is_trace_url
from knafka_jobs.topics import BrokerName

KEEP_HOURS: Final = 24.0
"""Time to notice that the table was lost, and to look at recent dead letters without Spark."""

BATCH_RECORDS: Final = 1_000_000
"""Records in one batch: few large ones cost far less than many small ones."""

DAYS: Final = 30.0

SHOWN: Final = 20
"""Firings of a backtest."""

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class CompactOptions:
    broker: BrokerName | None = None
    """None: all of the installation."""
    keep_hours: float = KEEP_HOURS
    batch_records: int = BATCH_RECORDS
    forget_resolved_days: int | None = None
    """None: never, as below."""
    forget_unresolved_days: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which failures; every field that is set must fit."""

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
    """Any of them; no option has it."""
    since: datetime | None = None
    until: datetime | None = None
    where: str | None = None

    @classmethod
    def given(cls, arguments: argparse.Namespace) -> Selection:
        return cls(**{each.name: getattr(arguments, each.name, None) for each in fields(cls)})

    def __str__(self) -> str:
        """As the command line says it; `everything` if nothing is left out."""
        said = [
            f"--{each.name} {value}"
            for each in fields(self)
            if (value := getattr(self, each.name)) is not None and each.name != "ids"
        ]
        said += [f"--id {each}" for each in self.ids or ()]
        return " ".join(said) or "everything"


def parser() -> argparse.ArgumentParser:
    """The parser of `python -m knafka_jobs`."""
    made = argparse.ArgumentParser(
        prog="knafka_jobs",
        description="Dead letters: compact, report, replay, purge. Sensors: backtest.",
    )
    commands = made.add_subparsers(dest="command", required=True)
    for name, (text, options) in COMMANDS.items():
        added = commands.add_parser(name, help=text, description=text)
        for option in options.split():
            bare = option.rstrip("!")
            argument = {**OPTIONS[bare], **({"required": True} if option != bare else {})}
            added.add_argument(f"--{bare}", **argument)
    return made


def _broker(text: str) -> BrokerName:
    if re.fullmatch("[^/]+/[^/]+", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return BrokerName(*text.split("/"))


def _replay_id(text: str) -> str:
    if re.fullmatch("[A-Za-z0-9._-]{1,64}", text) is None:
        raise argparse.ArgumentTypeError("want at most 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    return text


def _trace_url(text: str) -> str:
    if not is_trace_url(text):
        raise argparse.ArgumentTypeError(f"{text!r}: {WANTED}")
    return text


def _positive(kind: Callable[[str], N]) -> Callable[[str], N]:
    def number(text: str) -> N:
        if not (found := kind(text)) > 0:
            raise argparse.ArgumentTypeError("want more than 0")
        return found

    return number


def _not_negative(text: str) -> float:
    if not (found := float(text)) >= 0:
        raise argparse.ArgumentTypeError("want 0 or more")
    return found


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_ago = re.compile(r"(\d+(?:\.\d+)?)([smhdw])").fullmatch


def moment_or_ago(text: str) -> datetime:
    """A time, or how long ago it was. Raises `ArgumentTypeError`."""
    try:
        if (ago := _ago(text)) is None:
            return _moment(text)
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: want how long ago, such as 30d, 12h or 90m, or a time such as "
            "2026-01-31T12:00"
        ) from None


OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "tables": {"help": "folder or object store URI that holds the tables"},
    "bootstrap-servers": {"help": "host:port,... of Kafka"},
    "secret": {
        "help": "folder of the mounted Secret for Kafka; plaintext without one",
        "type": Path,
    },
    "keep-hours": {
        "help": "hours that a dead letter stays in its topic though the table has it "
        "(default: %(default)s)",
        "type": _not_negative,
        "default": KEEP_HOURS,
    },
    "batch-records": {
        "help": "records in one batch (default: %(default)s)",
        "type": _positive(int),
        "default": BATCH_RECORDS,
    },
    "forget-resolved-days": {
        "help": "forget failures, with their records, so many days after they were resolved "
        "(default: never)",
        "type": _positive(int),
    },
    "forget-unresolved-days": {
        "help": "forget failures that nobody resolved so many days after they last failed: they "
        "can't be replayed any more (default: never)",
        "type": _positive(int),
    },
    "days": {
        "help": "how far back the timeline goes (default: %(default)s)",
        "type": _positive(float),
        "default": DAYS,
    },
    "json": {"help": "file for the report as JSON", "type": Path},
    "html": {"help": "file for the report as a page", "type": Path},
    "trace-url": {
        "help": "address of a trace, for links; {trace} stands for its id",
        "type": _trace_url,
        "default": "",
    },
    "compact": {"help": "compact first (needs --bootstrap-servers)", "action": "store_true"},
    "dry-run": {"help": "only say what would be done", "action": "store_true"},
    "replay-id": {
        "help": "continue the replay of this id, which was cut short",
        "type": _replay_id,
    },
    "rate": {"help": "events a second at most", "type": _positive(float)},
    "by": {"help": "who replays, for the record; the user if not given"},
    "unresolved": {"help": "also what is not resolved: it is given up", "action": "store_true"},
    # A backtest's.
    "sensor": {"help": "file with the Sensor as JSON, as kubectl get -o json has it", "type": Path},
    "topic": {"help": "the topic with the events: the Broker's"},
    "archive": {
        "help": "folder or URI of archived events: records (Delta, Parquet), or NDJSON of "
        "structured events"
    },
    "events-since": {
        "help": "only events of then or later: how long ago (30d, 12h), or ISO 8601, UTC",
        "type": moment_or_ago,
    },
    "events-until": {"help": "only events before then", "type": moment_or_ago},
    "limit": {
        "help": "firings that are shown (default: %(default)s)",
        "type": _positive(int),
        "default": SHOWN,
    },
    "output": {"help": "folder or URI for a new table (Delta) of all firings"},
    # What follows selects failures; all that is given must fit.
    "broker": {"help": "only this Broker: NAMESPACE/NAME", "type": _broker},
    "trigger": {"help": "only of the Trigger of this name"},
    "destination": {"help": "only what failed at this URL"},
    "reason": {
        "help": f"only what failed for this reason: {', '.join(Reason)}",
        "type": Reason,
        "metavar": "REASON",
    },
    "code": {"help": "only what failed with this HTTP status code", "type": int},
    "summary": {"help": "only what failed with this error, as a report sums it up"},
    "type": {"help": "only events of this type"},
    "source": {"help": "only events of this source"},
    "id": {"help": "only the event of this id"},
    "since": {"help": "only what last failed then or later, ISO 8601, UTC", "type": _moment},
    "until": {"help": "only what last failed before then", "type": _moment},
    "where": {"help": "only what fits this predicate over the table `failures`, in SQL"},
}
"""Every option of any command, as `add_argument` takes it."""

SELECTION: Final = tuple(each.name for each in fields(Selection) if each.name != "ids")
"""The options that select failures."""

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "compact": (
        "Bring the tables up to date with the topics.",
        "tables! bootstrap-servers! secret broker keep-hours batch-records "
        "forget-resolved-days forget-unresolved-days",
    ),
    "report": (
        "Tell what failed, and what changed since the last report.",
        "tables! broker days json html trace-url compact bootstrap-servers secret keep-hours "
        "forget-resolved-days forget-unresolved-days",
    ),
    "replay": (
        "Send failed events again to the Trigger that failed them.",
        f"tables! bootstrap-servers! secret dry-run replay-id rate by {' '.join(SELECTION)}",
    ),
    "purge": (
        "Forget resolved failures and their records.",
        f"tables! unresolved dry-run {' '.join(SELECTION)}",
    ),
    "backtest": (
        "Say what a Sensor would have fired for the events of a topic or an archive.",
        "sensor! topic archive bootstrap-servers secret events-since events-until limit output",
    ),
}
"""What each command does, and its options; `!` marks what it can't do without."""
