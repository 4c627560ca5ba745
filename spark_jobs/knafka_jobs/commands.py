"""The commands: what was asked for in, a document for JSON out."""

from __future__ import annotations

import getpass
import os
import secrets
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from knafka_jobs.compact.run import compact
from knafka_jobs.errors import JobError
from knafka_jobs.io import session
from knafka_jobs.io.delta import Tables, explained
from knafka_jobs.io.kafka import Connection, KafkaClient
from knafka_jobs.options import CompactOptions, Selection
from knafka_jobs.replay.run import preview, purge, replay
from knafka_jobs.report.page import render
from knafka_jobs.report.run import report, settled_events

Progress: TypeAlias = Callable[[str], None]
Found: TypeAlias = dict[str, Any]


def run(given: Namespace, progress: Progress) -> Found:
    """Run `given.command`. Raises `KnafkaError`."""
    spark = session.start(given.command)
    try:
        with explained("Spark"):
            return _COMMANDS[given.command](given, Tables(spark, given.tables), progress)
    finally:
        spark.stop()


def _compact(given: Namespace, tables: Tables, progress: Progress) -> Found:
    options = CompactOptions(given.broker, given.keep_hours, given.batch_records)
    return asdict(compact(tables, connect(given), options, progress))


def _report(given: Namespace, tables: Tables, progress: Progress) -> Found:
    kafka = connect(given) if given.bootstrap_servers or given.compact else None
    if kafka is not None and given.compact:
        compact(tables, kafka, CompactOptions(keep_hours=given.keep_hours), progress)
    settled = partial(settled_events, kafka) if kafka else None
    made = report(tables, given.broker, datetime.now(UTC), given.days, settled)
    if given.json is not None:
        _write(given.json, made.model_dump_json(by_alias=True, indent=1) + "\n", progress)
    if given.html is not None:
        _write(given.html, render(made), progress)
    return {
        "report": made.id,
        **made.totals.model_dump(mode="json"),
        "changes": made.changes.model_dump(mode="json"),
    }


def _replay(given: Namespace, tables: Tables, progress: Progress) -> Found:
    selection = Selection.given(given)
    if given.dry_run:
        planned = preview(tables, selection)
        return {
            "would_send": planned.count,
            "left_out": planned.left_out,
            "triggers": {"/".join(name): count for name, count in planned.triggers.items()},
            "events": planned.events,
        }
    replay_id = given.replay_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    progress(f"replay {replay_id} (should it be cut short: --replay-id {replay_id} continues it)")
    by = given.by or _user()
    sent = replay(tables, connect(given), selection, replay_id, by, given.rate, progress)
    return {"replay": replay_id, "sent": sent}


def _purge(given: Namespace, tables: Tables, progress: Progress) -> Found:
    purged = purge(
        tables, Selection.given(given), unresolved=given.unresolved, dry_run=given.dry_run
    )
    return {"would_purge" if given.dry_run else "purged": purged}


_COMMANDS: Final[Mapping[str, Callable[[Namespace, Tables, Progress], Found]]] = {
    "compact": _compact,
    "report": _report,
    "replay": _replay,
    "purge": _purge,
}


def connect(given: Namespace) -> KafkaClient:
    """Kafka, once it answers. Raises `KnafkaError`."""
    if given.bootstrap_servers is None:
        raise JobError("--bootstrap-servers is missing")
    kafka = KafkaClient(Connection.from_folder(given.bootstrap_servers, given.secret))
    kafka.connect()
    return kafka


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def _write(path: Path, text: str, progress: Progress) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise JobError(f"{path} can't be written: {error.strerror}") from error
    progress(f"wrote {path}")
