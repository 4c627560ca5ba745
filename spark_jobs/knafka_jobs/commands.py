"""The commands of `python -m knafka_jobs`: parsed options in, a document for JSON out."""

from __future__ import annotations

import getpass
import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark.sql import SparkSession

from knafka_jobs.backtest.backtest_run import (
    TimeSpan,
    backtest,
    read_sensor,
    records_of_archive,
    records_of_topic,
)
from knafka_jobs.command_options import CompactOptions, FailureSelection
from knafka_jobs.compact.compact_run import compact, fold_all
from knafka_jobs.io import session
from knafka_jobs.io.delta import Tables, explained
from knafka_jobs.io.kafka import KafkaClient, KafkaConnection
from knafka_jobs.job_errors import JobError
from knafka_jobs.replay.replay_run import preview, purge, purgeable, replay
from knafka_jobs.replay.runs import finished_event_count
from knafka_jobs.report.report_page import render
from knafka_jobs.report.report_run import report, settled_spans

Progress: TypeAlias = Callable[[str], None]
Found: TypeAlias = dict[str, Any]


MAX_SHOWN_PROBLEMS: Final = 5
"""Problems that the answer of a replay lists; its progress has all of them."""


def run(given: Namespace, progress: Progress) -> Found:
    """Run the command `given.command` in a Spark session of its own and return its answer.

    Raises `KnafkaError`.
    """
    spark = session.start(given.command)
    try:
        return run_in(spark, given, progress)
    finally:
        spark.stop()


def run_in(spark: SparkSession, given: Namespace, progress: Progress) -> Found:
    """Run the command `given.command` in a session that the caller ends; return its answer.

    Raises `KnafkaError`.
    """
    with explained("Spark"):
        if given.command == BACKTEST:
            return _backtest(given, spark, progress)
        tables = Tables(spark, given.tables)
        tables.check_layouts()
        return _COMMANDS[given.command](given, tables, progress)


def store(spark: SparkSession, root: str, file: Path, name: str) -> None:
    """Copy a local file to `name` below the tables' root, a folder or URI. Raises `JobError`."""
    with explained(f"{name} can't be written to {root}"):
        target, system = Tables(spark, root).file(name)
        stream = system.create(target, True)
        stream.write(bytearray(file.read_bytes()))
        stream.close()


def sent_by(spark: SparkSession, given: Namespace) -> int | None:
    """The number of events that the replay `given.replay_id` sent; None unless it is finished."""
    with explained("Spark"):
        return finished_event_count(Tables(spark, given.tables), given.replay_id)


def _compact(given: Namespace, tables: Tables, progress: Progress) -> Found:
    options = replace(_compaction(given), batch_records=given.batch_records)
    return asdict(compact(tables, connect(given), options, progress))


def _report(given: Namespace, tables: Tables, progress: Progress) -> Found:
    kafka = connect(given) if given.bootstrap_servers or given.compact else None
    if kafka is not None and given.compact:
        compact(tables, kafka, _compaction(given), progress)
    settled = partial(settled_spans, kafka) if kafka else None
    made = report(tables, given.broker, datetime.now(UTC), given.days, settled)
    if given.json is not None:
        _write(given.json, made.model_dump_json(by_alias=True, indent=1) + "\n", progress)
    if given.html is not None:
        _write(given.html, render(made, given.trace_url), progress)
    return {
        "report": made.id,
        **made.totals.model_dump(mode="json"),
        "changes": made.changes.model_dump(mode="json"),
    }


def _compaction(given: Namespace) -> CompactOptions:
    return CompactOptions(
        broker=given.broker,
        keep_hours=given.keep_hours,
        forget_resolved_days=given.forget_resolved_days,
        forget_unresolved_days=given.forget_unresolved_days,
    )


def _replay(given: Namespace, tables: Tables, progress: Progress) -> Found:
    selection = FailureSelection.given(given)
    if given.dry_run:
        return preview(tables, selection).document()
    done = replay(
        tables,
        connect(given),
        selection,
        given.replay_id,
        given.by or _user(),
        given.rate,
        progress,
        is_alone=getattr(given, "is_alone", False),
    )
    answer: Found = {"replay": done.replay_id, "sent": done.sent}
    if done.problems:
        answer |= {"left_out": done.left_out, "problems": list(done.problems[:MAX_SHOWN_PROBLEMS])}
    return answer


def _purge(given: Namespace, tables: Tables, progress: Progress) -> Found:
    selection = FailureSelection.given(given)
    if given.dry_run:
        return {"would_purge": purgeable(tables, selection, given.unresolved).count()}
    purged = purge(tables, selection, given.unresolved, partial(fold_all, tables))
    return {"purged": purged}


BACKTEST: Final = "backtest"
"""The command that needs no tables."""


def _backtest(given: Namespace, spark: SparkSession, progress: Progress) -> Found:
    if (given.topic is None) is (given.archive is None):
        raise JobError("give either --topic or --archive: a backtest reads one of them")
    sensor = read_sensor(given.sensor)
    span = TimeSpan(_milliseconds(given.events_since), _milliseconds(given.events_until))
    if given.archive is not None:
        records, until = records_of_archive(spark, given.archive, span)
    else:
        records, until = records_of_topic(
            spark, connect(given), given.topic, span, datetime.now(UTC)
        )
    progress(f"reading events of {given.archive or given.topic}")
    return asdict(backtest(records, sensor, until, given.limit, given.output))


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


_COMMANDS: Final[Mapping[str, Callable[[Namespace, Tables, Progress], Found]]] = {
    "compact": _compact,
    "report": _report,
    "replay": _replay,
    "purge": _purge,
}


def connect(given: Namespace) -> KafkaClient:
    """Connect to Kafka and wait until it answers. Raises `KnafkaError`."""
    if given.bootstrap_servers is None:
        raise JobError("--bootstrap-servers is missing: give Kafka's addresses, HOST:PORT,...")
    kafka = KafkaClient(KafkaConnection.from_folder(given.bootstrap_servers, given.secret))
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
