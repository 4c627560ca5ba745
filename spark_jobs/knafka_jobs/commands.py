"""The commands of `python -m knafka_jobs`: parsed options in, a document for JSON out."""

from __future__ import annotations

import contextlib
import getpass
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from knafka_jobs.backtest.backtest_run import (
    TimeSpan,
    backtest,
    read_sensor,
    records_of_archive,
    records_of_topic,
)
from knafka_jobs.command_options import CompactOptions, EngineName, FailureSelection
from knafka_jobs.compact.compact_run import compact, fold_leftovers
from knafka_jobs.event_edits import EventEdits
from knafka_jobs.forget import delete_failures, expired_failures
from knafka_jobs.io import kept_rows, session
from knafka_jobs.io.delta import Tables, explain_spark_errors
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.job_errors import JobError
from knafka_jobs.replay.purge_run import purge, purgeable
from knafka_jobs.replay.replay_plan import select_failures
from knafka_jobs.replay.replay_run import preview, replay
from knafka_jobs.replay.runs import finished_event_count
from knafka_jobs.report.report_command import report_without_spark, write_report
from knafka_jobs.report.report_run import SettledSpansReader, make_report, settled_spans
from knafka_jobs.report.spark_engine import SparkEngine

Progress: TypeAlias = Callable[[str], None]
"""Called with one line of progress."""
Answer: TypeAlias = dict[str, Any]
"""A command's result, which is printed as JSON."""

REPORT: Final = "report"
"""The command that may need no Spark."""
BACKTEST: Final = "backtest"
"""The command that needs no tables."""
MAX_SHOWN_PROBLEMS: Final = 5
"""Largest number of problems that the answer of a replay lists; its progress has all of them."""


def run(arguments: Namespace, progress: Progress) -> Answer:
    """Run the command `arguments.command` in a Spark session of its own, and return its answer. A
    report is made without Spark if that is possible.

    Raises `KnafkaError`.
    """
    if arguments.command == REPORT and not arguments.compact:
        kafka = connect(arguments) if arguments.bootstrap_servers else None
        settled = _settled_source(kafka)
        if (report := report_without_spark(arguments, progress, settled)) is not None:
            return write_report(report, arguments, progress)
        arguments.engine = EngineName.SPARK  # `_run_report` needn't try without Spark again
    spark = session.start_session(arguments.command)
    try:
        return run_in_session(spark, arguments, progress)
    finally:
        spark.stop()


def run_in_session(spark: SparkSession, arguments: Namespace, progress: Progress) -> Answer:
    """Run the command `arguments.command` in a Spark session that the caller ends; return its
    answer.

    Raises `KnafkaError`.
    """
    if arguments.command == BACKTEST:
        with explain_spark_errors("Spark"):
            return _run_backtest(arguments, spark, progress)
    with _opened_tables(spark, arguments.tables) as tables:
        return _COMMANDS[arguments.command](arguments, tables, progress)


@contextlib.contextmanager
def _opened_tables(spark: SparkSession, root: str) -> Iterator[Tables]:
    """Open the tables below `root`, and remove at the end the rows that Spark has kept meanwhile.
    Raises `JobError`, also for Spark's errors inside."""
    with explain_spark_errors("Spark"):
        tables = Tables(spark, root)
        tables.check_layouts()
        kept_rows.use_folder(spark, tables.root)
        try:
            yield tables
        finally:
            kept_rows.remove_own(spark)


def store_file(spark: SparkSession, root: str, file: Path, name: str) -> None:
    """Copy a local file to `name` below the tables' root, a folder or URI. Raises `JobError`."""
    with explain_spark_errors(f"{name} can't be written to {root}"):
        target, system = Tables(spark, root).file(name)
        stream = system.create(target, True)
        stream.write(bytearray(file.read_bytes()))
        stream.close()


def delete_expired(spark: SparkSession, arguments: Namespace, now: datetime) -> int:
    """Delete the failures of a Broker whose retention has ended by `now`; returns how many.

    `arguments` has the Broker, the tables, and for how many hours resolved and unresolved failures
    are kept (None: for ever). Raises `JobError`.
    """

    def choose(failures: DataFrame) -> DataFrame:
        """Return the Broker's failures whose retention has ended."""
        own_failures = select_failures(failures, FailureSelection(broker=arguments.broker))
        hours = (arguments.resolved_hours, arguments.unresolved_hours)
        return expired_failures(own_failures, now, *hours, timedelta(hours=1))

    with _opened_tables(spark, arguments.tables) as tables, tables.locked():
        return delete_failures(tables, choose, partial(fold_leftovers, tables))


def sent_event_count(spark: SparkSession, arguments: Namespace) -> int | None:
    """Return the number of events that the replay `arguments.replay_id` sent; None if it has not
    finished. Raises `JobError`."""
    with explain_spark_errors("Spark"):
        return finished_event_count(Tables(spark, arguments.tables), arguments.replay_id)


def _run_compact(arguments: Namespace, tables: Tables, progress: Progress) -> Answer:
    """Run the command `compact`; returns the fields of `CompactResult`. Raises `KnafkaError`."""
    options = replace(_compact_options(arguments), batch_records=arguments.batch_records)
    return asdict(compact(tables, connect(arguments), options, progress))


def _run_report(arguments: Namespace, tables: Tables, progress: Progress) -> Answer:
    """Run the command `report`: compact first if `--compact` is given, then make the report and
    write its files. Returns the answer of `write_report`. Raises `KnafkaError`."""
    kafka = connect(arguments) if arguments.bootstrap_servers or arguments.compact else None
    if kafka is not None and arguments.compact:
        compact(tables, kafka, _compact_options(arguments), progress)
    settled = _settled_source(kafka)
    report = report_without_spark(arguments, progress, settled, session.object_store(tables.spark))
    if report is None:
        engine = SparkEngine(tables)
        report = make_report(engine, arguments.broker, datetime.now(UTC), arguments.days, settled)
    return write_report(report, arguments, progress)


def _settled_source(kafka: KafkaClient | None) -> SettledSpansReader | None:
    """Return a function that reads from Kafka which offsets Triggers have settled; None if `kafka`
    is None."""
    return partial(settled_spans, kafka) if kafka else None


def _compact_options(arguments: Namespace) -> CompactOptions:
    """Return the options of a compaction, as the commands `compact` and `report` have them. The
    size of its batches is the default: only `compact` has an option for it."""
    return CompactOptions(
        broker=arguments.broker,
        keep_hours=arguments.keep_hours,
        forget_resolved_days=arguments.forget_resolved_days,
        forget_unresolved_days=arguments.forget_unresolved_days,
    )


def _run_replay(arguments: Namespace, tables: Tables, progress: Progress) -> Answer:
    """Run the command `replay`, or preview it for a dry run. Returns the replay's id and how many
    events it sent and left out; for a dry run, `Preview.document`. Raises `KnafkaError`."""
    selection = FailureSelection.from_arguments(arguments)
    edits = _event_edits(arguments)
    if arguments.dry_run and edits:
        raise JobError(
            "a dry run that Spark does can't show edits: leave out the edits, or --where if you "
            "gave one"
        )
    if arguments.dry_run:
        return preview(tables, selection).document()
    result = replay(
        tables,
        connect(arguments),
        selection,
        arguments.replay_id,
        arguments.by or _user_name(),
        arguments.rate,
        progress,
        edits=edits,
        is_alone=getattr(arguments, "is_alone", False),  # no option: only `pod` sets it
    )
    answer: Answer = {"replay": result.replay_id, "sent": result.sent}
    if result.cancelled_by is not None:
        answer["cancelled_by"] = result.cancelled_by
    if result.problems:
        answer |= {
            "left_out": result.left_out,
            "problems": list(result.problems[:MAX_SHOWN_PROBLEMS]),
        }
    return answer


def _event_edits(arguments: Namespace) -> EventEdits:
    """Return the edits that the options of a replay declare. Raises `JobError`."""
    names = ("set_attribute", "remove_attribute", "set_data")
    try:
        return EventEdits.parse(*(getattr(arguments, name, None) or () for name in names))
    except ValueError as error:
        raise JobError(str(error)) from None


def _run_purge(arguments: Namespace, tables: Tables, progress: Progress) -> Answer:
    """Run the command `purge`; returns the number of deleted failures. For a dry run, only count
    the failures that would be deleted. Raises `KnafkaError`."""
    selection = FailureSelection.from_arguments(arguments)
    if arguments.dry_run:
        return {"would_purge": purgeable(tables, selection, arguments.unresolved).count()}
    purged = purge(tables, selection, arguments.unresolved, partial(fold_leftovers, tables))
    return {"purged": purged}


def _run_backtest(arguments: Namespace, spark: SparkSession, progress: Progress) -> Answer:
    """Run the command `backtest`; returns the fields of `BacktestResult`. Raises `KnafkaError`."""
    if (arguments.topic is None) == (arguments.archive is None):  # both are given, or neither
        raise JobError("give either --topic or --archive: a backtest reads one of them")
    sensor = read_sensor(arguments.sensor)
    span = TimeSpan(_milliseconds(arguments.events_since), _milliseconds(arguments.events_until))
    # `firings_until` (ms): the time of --events-until; without this option, the source's own end.
    if arguments.archive is not None:
        records, firings_until = records_of_archive(spark, arguments.archive, span)
    else:
        records, firings_until = records_of_topic(
            spark, connect(arguments), arguments.topic, span, datetime.now(UTC)
        )
    progress(f"reading events of {arguments.archive or arguments.topic}")
    return asdict(backtest(records, sensor, firings_until, arguments.limit, arguments.output))


def _milliseconds(moment: datetime | None) -> int | None:
    """Return a time in milliseconds since the Unix epoch; None stays None."""
    return None if moment is None else round(moment.timestamp() * 1000)


_COMMANDS: Final[Mapping[str, Callable[[Namespace, Tables, Progress], Answer]]] = {
    "compact": _run_compact,
    REPORT: _run_report,
    "replay": _run_replay,
    "purge": _run_purge,
}
"""The commands that need the tables, by name."""


def connect(arguments: Namespace) -> KafkaClient:
    """Connect to the Kafka that the options name, and wait until it answers. Raises `KnafkaError`,
    also if `--bootstrap-servers` is missing."""
    if arguments.bootstrap_servers is None:
        raise JobError("--bootstrap-servers is missing: give Kafka's addresses, HOST:PORT,...")
    kafka = KafkaClient(KafkaConnection.from_folder(arguments.bootstrap_servers, arguments.secret))
    kafka.connect()
    return kafka


def _user_name() -> str:
    """Return the name of the user who runs the job, or the user's number if there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
