"""What the jobs can be asked for, each option declared once: its type, default and help.

A command's options are the fields of dataclasses; `add_options` makes arguments of them, and
`read_options` reads them back. Needs no Spark, so that `--help` is quick.
"""

# ruff: noqa: RUF009 - `_option` makes a dataclass field

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from knafka.core.delivery import Reason
from knafka_jobs.topics import BrokerName

KEEP_HOURS: Final = 24.0
"""Time to notice that the table was lost, and to look at recent dead letters without Spark."""

BATCH_RECORDS: Final = 1_000_000
"""Records in one batch: few large ones cost far less than many small ones."""

DAYS: Final = 30.0

T = TypeVar("T")
N = TypeVar("N", int, float)


def _option(text: str, default: Any = None, **argument: Any) -> Any:
    """A field that is an option; `argument` is for `ArgumentParser.add_argument`."""
    if default is False:
        argument["action"] = "store_true"
    elif default is not None:
        text = f"{text} (default: {default})"
    return field(default=default, metadata={"help": text, **argument})


def _broker(text: str) -> BrokerName:
    if re.fullmatch("[^/]+/[^/]+", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return BrokerName(*text.split("/"))


def _replay_id(text: str) -> str:
    if re.fullmatch("[A-Za-z0-9._-]{1,64}", text) is None:
        raise argparse.ArgumentTypeError("want at most 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    return text


def _positive(kind: Callable[[str], N]) -> Callable[[str], N]:
    def number(text: str) -> N:
        if not (found := kind(text)) > 0:
            raise argparse.ArgumentTypeError("want more than 0")
        return found

    return number


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """Bring the tables up to date with the topics."""

    broker: BrokerName | None = _option("only this Broker: NAMESPACE/NAME", type=_broker)
    keep_hours: float = _option(
        "hours that a dead letter stays in its topic though the table has it",
        KEEP_HOURS,
        type=float,
    )
    batch_records: int = _option("records in one batch", BATCH_RECORDS, type=_positive(int))


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Tell what failed, and what changed since the last report."""

    broker: BrokerName | None = _option("only this Broker: NAMESPACE/NAME", type=_broker)
    days: float = _option("how far back the timeline goes", DAYS, type=_positive(float))
    json: Path | None = _option("file for the report as JSON", type=Path)
    html: Path | None = _option("file for the report as a page", type=Path)
    compact: bool = _option("compact first (needs --bootstrap-servers)", False)
    keep_hours: float = _option("as for compact", KEEP_HOURS, type=float)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Send failed events again to the Trigger that failed them."""

    dry_run: bool = _option("say what would be sent", False)
    replay_id: str | None = _option(
        "continue the replay of this id; a new one if not given", type=_replay_id
    )
    rate: float | None = _option("events a second at most", type=_positive(float))
    by: str | None = _option("who replays, for the record; the user if not given")


@dataclass(frozen=True, slots=True)
class PurgeOptions:
    """Forget resolved failures and their records."""

    unresolved: bool = _option("also what is not resolved", False)
    dry_run: bool = _option("say how many would be forgotten", False)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which failures; all that is given must fit."""

    broker: BrokerName | None = _option("NAMESPACE/NAME", type=_broker)
    trigger: str | None = _option("its name")
    destination: str | None = _option("the URL that failed")
    reason: Reason | None = _option(f"one of {', '.join(Reason)}", type=Reason, metavar="REASON")
    code: int | None = _option("HTTP status code", type=int)
    type: str | None = _option("the event's type")
    source: str | None = _option("the event's source")
    id: str | None = _option("the event's id")
    since: datetime | None = _option("last failed then or later, ISO 8601, UTC", type=_moment)
    until: datetime | None = _option("last failed before then", type=_moment)
    where: str | None = _option("a predicate over the table `failures`, in SQL")

    def __str__(self) -> str:
        """As the command line says it; `everything` if nothing is left out."""
        said = [
            f"--{each.name} {value}"
            for each in fields(self)
            if (value := getattr(self, each.name)) is not None
        ]
        return " ".join(said) or "everything"


COMMANDS: Final[Mapping[str, tuple[type, ...]]] = {
    "compact": (CompactOptions,),
    "report": (ReportOptions,),
    "replay": (ReplayOptions, Selection),
    "purge": (PurgeOptions, Selection),
}
"""Each command's options; what it does is the docstring of the first."""


def parser() -> argparse.ArgumentParser:
    """The parser of `python -m knafka_jobs`."""
    made = argparse.ArgumentParser(
        prog="knafka_jobs", description="Dead letters: compact, report, replay, purge."
    )
    commands = made.add_subparsers(dest="command", required=True)
    for name, declared in COMMANDS.items():
        text = declared[0].__doc__
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument(
            "--tables", required=True, help="folder or object store URI that holds the tables"
        )
        if name != "purge":
            added.add_argument(
                "--bootstrap-servers", required=name != "report", help="host:port,... of Kafka"
            )
            added.add_argument(
                "--secret",
                type=Path,
                help="folder of the mounted Secret for Kafka; plaintext without one",
            )
        add_options(added, name)
    return made


def add_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Add a command's own options; where the tables and Kafka are is the caller's to ask."""
    own, *groups = COMMANDS[command]
    for each in fields(own):
        parser.add_argument(_flag(each.name), default=each.default, **each.metadata)
    for declared in groups:
        group = parser.add_argument_group((declared.__doc__ or "").strip("."))
        for each in fields(declared):
            group.add_argument(_flag(each.name), default=each.default, **each.metadata)


def read_options(declared: type[T], given: argparse.Namespace) -> T:
    """What was given for a dataclass."""
    names = [each.name for each in fields(declared)]  # type: ignore[arg-type]
    return declared(**{name: getattr(given, name) for name in names})


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
