"""The command `report`: chooses the engine that counts the failures, and writes the report's files.

    --engine auto        DataFusion, in this process; if that can't, Spark, and the reason is shown
    --engine datafusion  DataFusion alone
    --engine spark       Spark alone

Imports no Spark: where it is not needed, it need not be installed.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from knafka_jobs.command_options import EngineName
from knafka_jobs.job_errors import JobError, NeedsSpark
from knafka_jobs.report.report_document import Report, with_replay_command
from knafka_jobs.report.report_page import render_file
from knafka_jobs.report.report_run import SettledSpansReader, make_report

Progress: TypeAlias = Callable[[str], object]
"""Called with one line of progress."""


def report_without_spark(
    arguments: Namespace,
    progress: Progress,
    settled: SettledSpansReader | None = None,
    store: Mapping[str, str] | None = None,
) -> Report | None:
    """Make a report in this process and return it. Returns None if Spark has to make it, because
    `--engine` says so or because DataFusion can't.

    `settled` reads which offsets Triggers have settled; None: the groups' shares of deliveries stay
    unknown. `store` are delta-rs's options of an object store; None: the usual variables. Raises
    `JobError`.
    """
    if arguments.engine == EngineName.SPARK:
        return None
    try:
        # Spark reads more stores than delta-rs is set up for.
        if "://" in arguments.tables and not arguments.tables.startswith(("s3://", "s3a://")):
            raise NeedsSpark(f"only Spark reads {arguments.tables}")
        try:
            from knafka_jobs.report.datafusion_engine import DataFusionEngine
        except ImportError as error:
            raise NeedsSpark("the package deltalake is not installed") from error
        engine = DataFusionEngine(arguments.tables, store=store)
        return make_report(engine, arguments.broker, datetime.now(UTC), arguments.days, settled)
    except JobError as error:
        if arguments.engine == EngineName.DATAFUSION:
            raise
        progress(f"the report is left to Spark: {error}")
        return None


def write_report(report: Report, arguments: Namespace, progress: Progress) -> dict[str, Any]:
    """Write a report to the files that `--json` and `--html` name. Returns the command's answer:
    the report's id, totals and number of groups by kind of change. Raises `JobError`."""
    report = with_replay_command(report, arguments.replay_command or _replay_command(arguments))
    if arguments.json is not None:
        document = report.model_dump_json(by_alias=True, indent=1) + "\n"
        _write_file(arguments.json, document, progress)
    if arguments.html is not None:
        _write_file(arguments.html, render_file(report, arguments.trace_url), progress)
    return {
        "report": report.id,
        **report.totals.model_dump(mode="json"),
        "changes": report.changes.model_dump(mode="json"),
    }


def _replay_command(arguments: Namespace) -> str:
    """Return the beginning of a replay command: it names this program, the report's tables and
    Kafka. The options that select a group's failures follow it in the report."""
    words = ["python3", "-m", "knafka_jobs", "replay", "--tables", arguments.tables]
    if arguments.bootstrap_servers is not None:
        words += ["--bootstrap-servers", arguments.bootstrap_servers]
    if arguments.secret is not None:
        words += ["--secret", str(arguments.secret)]
    return shlex.join(words)


def _write_file(path: Path, text: str, progress: Progress) -> None:
    """Write a text file, create its missing folders, and report the file as progress. Raises
    `JobError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise JobError(f"{path} can't be written: {error.strerror}") from error
    progress(f"wrote {path}")
