"""The jobs as commands: `python -m knafka_jobs COMMAND`, and what the spark-submit launchers call.

What a job found out goes to stdout as one line of JSON, what it is doing to stderr. Exit codes:
0 done, 1 it failed (the last line of stderr says why), 2 it was asked what can't be answered.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from knafka.core.delivery import Reason
from knafka.core.documents import explained_faults
from knafka.core.errors import KnafkaError
from knafka_jobs import session
from knafka_jobs.compact import BATCH_RECORDS, SAFETY_WINDOW, Options, compact
from knafka_jobs.errors import JobError
from knafka_jobs.failures import Selection
from knafka_jobs.page import render
from knafka_jobs.replaying import plan, purge, replay
from knafka_jobs.reporting import DAYS, report, settled_since
from knafka_jobs.storage import Tables, explained
from knafka_jobs.topics import Connection, Topics

FAILED: Final = 1

SAYS: Final = "knafka: "
"""What our lines on stderr begin with; all others are Spark's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; see `--help`."""
    given = _parser().parse_args(arguments)
    spark = None
    try:
        spark = session.start(given.command)
        with explained_faults(), explained("Spark"):
            found = given.run(given, spark)
    except KnafkaError as error:
        _say(f"error: {error}")
        return FAILED
    finally:
        if spark is not None:
            spark.stop()
    print(json.dumps(found), flush=True)
    return 0


def _compact(given: argparse.Namespace, spark: SparkSession) -> dict[str, object]:
    broker = _broker(given.broker)
    options = Options(broker, given.keep_hours, given.batch_records)
    return asdict(compact(Tables(spark, given.tables), _topics(given), options, _say))


def _report(given: argparse.Namespace, spark: SparkSession) -> dict[str, object]:
    tables = Tables(spark, given.tables)
    topics = _topics(given) if given.bootstrap_servers or given.compact else None
    if topics is not None and given.compact:
        compact(tables, topics, Options(keep_hours=given.keep_hours), _say)
    settled = settled_since(topics) if topics else None
    made = report(tables, given.broker, datetime.now(UTC), given.days, settled)
    if given.json is not None:
        _write(given.json, made.model_dump_json(by_alias=True, indent=1) + "\n")
    if given.html is not None:
        _write(given.html, render(made))
    return {
        "report": made.id,
        **made.totals.model_dump(mode="json"),
        "changes": made.changes.model_dump(mode="json"),
    }


def _replay(given: argparse.Namespace, spark: SparkSession) -> dict[str, object]:
    tables = Tables(spark, given.tables)
    selection = _selection(given)
    if given.dry_run:
        planned, _ = plan(tables, selection)
        return {
            "would_send": planned.count,
            "left_out": planned.left_out,
            "triggers": {"/".join(name): count for name, count in planned.triggers.items()},
            "events": planned.events,
        }
    replay_id = given.replay_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    _say(f"replay {replay_id} (should it be cut short: --replay-id {replay_id} continues it)")
    sent = replay(tables, _topics(given), selection, replay_id, given.by, given.rate, _say)
    return {"replay": replay_id, "sent": sent}


def _purge(given: argparse.Namespace, spark: SparkSession) -> dict[str, object]:
    tables = Tables(spark, given.tables)
    purged = purge(tables, _selection(given), unresolved=given.unresolved, dry_run=given.dry_run)
    return {"would_purge" if given.dry_run else "purged": purged}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="knafka_jobs", description="Dead letters: compact, report, replay, purge."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[..., object], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=text,
            description=text,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        added.set_defaults(run=run)
        added.add_argument(
            "--tables", required=True, help="folder or object store URI that holds the tables"
        )
        return added

    added = command("compact", _compact, "Bring the tables up to date with the topics.")
    _add_kafka(added, required=True)
    _add_keep(added)
    added.add_argument("--broker", type=_named, help="NAMESPACE/NAME; all Brokers if not given")
    added.add_argument(
        "--batch-records", type=int, default=BATCH_RECORDS, help="records in one batch"
    )

    added = command("report", _report, "Tell what failed, and what changed since the last report.")
    added.add_argument("--broker", type=_named, help="NAMESPACE/NAME; all Brokers if not given")
    added.add_argument("--days", type=float, default=DAYS, help="how far back the timeline goes")
    added.add_argument("--json", type=Path, help="file for the report as JSON")
    added.add_argument("--html", type=Path, help="file for the report as a page")
    added.add_argument(
        "--compact", action="store_true", help="compact first (needs --bootstrap-servers)"
    )
    _add_kafka(added, required=False)
    _add_keep(added)

    added = command("replay", _replay, "Send failed events again to the Trigger that failed them.")
    _add_kafka(added, required=True)
    _add_selection(added)
    added.add_argument("--dry-run", action="store_true", help="say what would be sent")
    added.add_argument(
        "--replay-id",
        type=_replay_id,
        help="continue the replay of this id; a new one if not given",
    )
    added.add_argument("--rate", type=_rate, help="events a second at most")
    added.add_argument("--by", default=_user(), help="who replays, for the record")

    added = command("purge", _purge, "Forget resolved failures and their records.")
    _add_selection(added)
    added.add_argument("--unresolved", action="store_true", help="also what is not resolved")
    added.add_argument("--dry-run", action="store_true", help="say how many would be forgotten")
    return parser


def _add_kafka(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--bootstrap-servers", required=required, help="host:port,... of Kafka")
    parser.add_argument(
        "--secret", type=Path, help="folder of the mounted Secret for Kafka; plaintext without one"
    )


def _add_keep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-hours",
        type=float,
        default=SAFETY_WINDOW,
        help="hours that a dead letter stays in its topic though the table has it",
    )


def _add_selection(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_argument_group("which failures; all that is given must fit")
    chosen.add_argument("--broker", type=_named, help="NAMESPACE/NAME")
    chosen.add_argument("--trigger", help="its name")
    chosen.add_argument("--destination", help="the URL that failed")
    chosen.add_argument("--reason", type=Reason, choices=list(Reason), metavar="REASON")
    chosen.add_argument("--code", type=int, help="HTTP status code")
    chosen.add_argument("--type", help="the event's type")
    chosen.add_argument("--source", help="the event's source")
    chosen.add_argument("--id", help="the event's id")
    chosen.add_argument("--since", type=_moment, help="last failed then or later, ISO 8601, UTC")
    chosen.add_argument("--until", type=_moment, help="last failed before then")
    chosen.add_argument("--where", help="a predicate over the table `failures`, in SQL")


def _selection(given: argparse.Namespace) -> Selection:
    return Selection(**{each.name: getattr(given, each.name) for each in fields(Selection)})


def _topics(given: argparse.Namespace) -> Topics:
    if given.bootstrap_servers is None:
        raise KnafkaError("--bootstrap-servers is missing")
    topics = Topics(Connection.from_folder(given.bootstrap_servers, given.secret))
    topics.reach()
    return topics


def _broker(named: str | None) -> tuple[str, str] | None:
    if named is None:
        return None
    namespace, _, name = named.partition("/")
    return namespace, name


def _named(text: str) -> str:
    if re.fullmatch("[^/]+/[^/]+", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return text


def _replay_id(text: str) -> str:
    if re.fullmatch("[A-Za-z0-9._-]{1,64}", text) is None:
        raise argparse.ArgumentTypeError("want at most 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    return text


def _rate(text: str) -> float:
    if not (rate := float(text)) > 0:
        raise argparse.ArgumentTypeError("want more than 0")
    return rate


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise JobError(f"{path} can't be written: {error.strerror}") from error
    _say(f"wrote {path}")


def _say(line: str) -> None:
    print(f"{SAYS}{line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
