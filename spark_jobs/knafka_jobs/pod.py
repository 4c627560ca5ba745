"""The jobs in a pod of the image knafka-jobs: `python3 -m knafka_jobs.pod archive|replay|...`.

    archive     compact, apply the retention and report, for one DeadLetterArchive
    replay      compact, then send the events again that a DeadLetterReplay selects
    purge       compact, then delete the failures that a DeadLetterPurge selects
    backtest    show what a Sensor would have fired, as `knafka_jobs backtest` does
    executor    run the executor that Spark's Kubernetes scheduler starts in its pods

Each command runs in one Spark session. The image has Java and all jars, so a start downloads
nothing. A run's answer is a line of JSON on stdout. The answer, or the error, is also the
container's termination message, where the operator reads it; only a backtest leaves none. Exit
codes are those of `__main__`. Any run can be repeated. The operator decides when one is due.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from knafka.core.documents import explain_faults, parse_json
from knafka.core.errors import KnafkaError
from knafka_jobs.__main__ import FAILED, PREFIX
from knafka_jobs.command_options import MAX_DAYS, OPTIONS, parser, positive_parser
from knafka_jobs.job_errors import error_in_one_line
from knafka_jobs.spark_launch import (
    EXECUTOR_TEMPLATE_FILE,
    LOOPBACK,
    WRITABLE_FOLDER,
    executor_command,
    submit_arguments,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from knafka_jobs.io.kafka import KafkaClient
    from knafka_jobs.topic_offsets import TopicState

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""File whose content Kubernetes keeps as the container's termination message."""
MAX_MESSAGE_CHARACTERS: Final = 3_500
"""Largest number of characters of a termination message: Kubernetes keeps 4,096 bytes."""
REPORT_FOLDER: Final = Path(WRITABLE_FOLDER, "report")
"""Folder for a report until it is stored beside the tables."""
POD_COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "archive": ("days", "trace-url"),
    "replay": ("replay-id", "by", "rate", "dry-run"),
    "purge": ("unresolved", "dry-run"),
}
"""Options that only this command has; `_pod_parser` adds those that all commands have."""


class RunCommand(Protocol):
    """Runs a command of `python -m knafka_jobs` on the tables, in the Spark session of this pod."""

    def __call__(self, command: str, *words: object, ids: Sequence[str] = ()) -> dict[str, Any]:
        """Run the command; `words` are the further words of its command line. Returns its answer.
        If `ids` isn't empty, the command selects only failures of events with these ids."""
        ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command in a pod and return its exit code; `executor` replaces this process instead.
    `arguments` are the words after the program's name; None: those of this process."""
    command_words = list(sys.argv[1:] if arguments is None else arguments)
    # Spark makes folders where it is started; all else of the container is read-only.
    os.chdir(WRITABLE_FOLDER)
    if command_words == ["executor"]:
        command = executor_command(os.environ)
        os.execv(command[0], command)
    is_backtest = command_words[:1] == ["backtest"]
    parsed = (parser() if is_backtest else _pod_parser()).parse_args(command_words)
    _prepare_spark()
    try:
        with explain_faults():
            answer = (backtest if is_backtest else run)(parsed, _print_progress)
    except Exception as error:
        if not isinstance(error, KnafkaError):
            traceback.print_exc()
        message = error_in_one_line(error)
        print(f"{PREFIX}error: {message}", file=sys.stderr, flush=True)
        _write_termination_message({"error": message[: MAX_MESSAGE_CHARACTERS // 2]})
        return FAILED
    if not is_backtest:  # a backtest's firings have no room in a termination message
        _write_termination_message(answer)
    print(json.dumps(answer), flush=True)
    return 0


def _prepare_spark() -> None:
    """Set the environment variables by which PySpark starts Spark in this pod, and write the file
    with the pod template of Spark's executors, if there is a template."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(submit_arguments(os.environ))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    has_executors = int(os.environ.get("KNAFKA_EXECUTORS", "0")) != 0
    os.environ["SPARK_LOCAL_IP"] = os.environ["KNAFKA_POD_IP"] if has_executors else LOOPBACK
    if template := os.environ.get("KNAFKA_EXECUTOR_TEMPLATE"):
        EXECUTOR_TEMPLATE_FILE.write_text(template)


def _pod_parser() -> argparse.ArgumentParser:
    """Return the command-line parser of this module's commands `archive`, `replay` and `purge`.
    They take some of the options of `python -m knafka_jobs` (`OPTIONS`)."""
    argument_parser = argparse.ArgumentParser(prog="knafka_jobs.pod")
    commands = argument_parser.add_subparsers(dest="command", required=True)
    for command, options in POD_COMMANDS.items():
        subcommand = commands.add_parser(command)
        for name in ("tables", "bootstrap-servers", "broker"):
            subcommand.add_argument(f"--{name}", **{**OPTIONS[name], "required": True})
        for name in ("secret", "keep-hours", *options):
            subcommand.add_argument(f"--{name}", **OPTIONS[name])
        help_text = "consumer group that commits how far the dead letters are in the tables"
        subcommand.add_argument("--group", required=True, help=help_text)
        if command == "archive":
            subcommand.add_argument("--report", action="store_true", help="also write a report")
            for name, help_text in (
                ("archive", "name of the DeadLetterArchive: its report is served under this name"),
                ("announce", "URL of the Broker that gets an event about each report"),
                ("console-url", "URL of the console that serves the report"),
            ):
                subcommand.add_argument(f"--{name}", default="", help=help_text)
            for name in ("resolved", "unresolved"):
                help_text = f"hours for which {name} failures are kept (default: for ever)"
                hours = positive_parser(float, 24 * MAX_DAYS)
                subcommand.add_argument(f"--{name}-hours", type=hours, help=help_text)
        else:
            help_text = "failures to select: a JSON object of the selecting options and `ids`"
            subcommand.add_argument("--select", type=json.loads, default={}, help=help_text)
    return argument_parser


def _print_progress(line: str) -> None:
    """Print a line of progress on stderr."""
    print(PREFIX + line, file=sys.stderr, flush=True)


def backtest(arguments: argparse.Namespace, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run the command `knafka_jobs backtest` and return its answer; `progress` is called with lines
    of progress. Raises `KnafkaError`."""
    from knafka_jobs import commands

    return commands.run(arguments, progress)


def run(arguments: argparse.Namespace, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run the command `archive`, `replay` or `purge` of `arguments` in a Spark session of its own,
    and return its answer; `progress` is called with lines of progress.

    Raises `KnafkaError`; another run then goes on where this one ended.
    """
    # Only now, as importing Spark takes a second, and an executor needs none of it.
    from knafka_jobs import commands
    from knafka_jobs.io import session

    progress(f"copying dead letters of {arguments.broker} into {arguments.tables}")
    kafka = commands.connect(arguments)
    spark = session.start_session(arguments.command)
    try:
        return compact_and_run(spark, kafka, arguments, progress)
    finally:
        spark.stop()


def compact_and_run(
    spark: SparkSession,
    kafka: KafkaClient,
    arguments: argparse.Namespace,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Copy new dead letters into the tables, and commit that for `--group`; then run the command
    `archive`, `replay` or `purge` of `arguments`. All is done in a session that the caller ends.
    Returns the answer of both.

    Raises `KnafkaError`.
    """
    from knafka_jobs import commands

    started = datetime.now(UTC)
    topics = kafka.dead_letter_topics(arguments.broker)

    def run_command(command: str, *words: object, ids: Sequence[str] = ()) -> dict[str, Any]:
        """Run a command of `knafka_jobs` on the archive's tables, in this session, and return its
        answer; see `RunCommand`."""
        tables_and_broker = ("--tables", arguments.tables, "--broker", arguments.broker)
        parsed = parser().parse_args(
            [command, *(str(word) for word in (*tables_and_broker, *words))]
        )
        parsed.ids = tuple(ids) or None  # no option sets the ids
        parsed.is_alone = True  # the operator's Lease keeps other replays away
        return commands.run_in_session(spark, parsed, progress)

    keep_hours = f"--keep-hours={arguments.keep_hours}"
    answer = run_command("compact", *_kafka_options(arguments), keep_hours)
    # Commits the topics' ends that were read before the compaction: all dead letters below them are
    # in the tables now. Later ones may be, too; another run commits them.
    kafka.commit(arguments.group, topics)
    if arguments.command == "archive":
        answer |= _purge_and_report(arguments, started, spark, run_command)
        if arguments.report and arguments.archive:
            answer["report"] |= _publish_report(arguments, kafka, topics, progress)
        return answer
    if arguments.command == "replay":
        sent = commands.sent_event_count(spark, arguments)
        if sent is not None:
            # An earlier run finished the replay and was killed before it could report that.
            return answer | {"replay": arguments.replay_id, "sent": sent}
    return answer | _run_operation(arguments, run_command)


def replay_command(arguments: argparse.Namespace) -> str:
    """Return the beginning of the commands that an archive's report shows for replaying its groups.
    They are for a shell whose kubeconfig has the cluster as its current context."""
    namespace, archive = map(shlex.quote, (arguments.broker.namespace, arguments.archive))
    return (
        'knafka dead-letters replay --context "$(kubectl config current-context)" '
        f"--namespace {namespace} --archive {archive}"
    )


def _purge_and_report(
    arguments: argparse.Namespace, started: datetime, spark: SparkSession, run_command: RunCommand
) -> dict[str, Any]:
    """Delete failures whose retention has ended by `started`, and write the report if `--report` is
    given. Returns the fields `purged` and `report` of the answer, each only if it was done."""
    from knafka_jobs import commands

    answer: dict[str, Any] = {}
    if arguments.resolved_hours is not None or arguments.unresolved_hours is not None:
        answer["purged"] = commands.delete_expired(spark, arguments, started)
    if arguments.report:
        answer["report"] = _write_report(arguments, started, spark, run_command)
    return answer


def _write_report(
    arguments: argparse.Namespace, started: datetime, spark: SparkSession, run_command: RunCommand
) -> dict[str, Any]:
    """Run the command `report` and store its files below the tables' root, as the latest report and
    under the time `started`. Returns the command's answer."""
    from knafka_jobs import commands

    files = {
        format_name: REPORT_FOLDER / f"report.{format_name}" for format_name in ("json", "html")
    }
    report_options = [
        word for format_name, path in files.items() for word in (f"--{format_name}", path)
    ]
    report_options += ["--trace-url", arguments.trace_url]
    if arguments.archive:
        report_options += ["--replay-command", replay_command(arguments)]
    answer = run_command(
        "report", *_kafka_options(arguments), "--days", arguments.days, *report_options
    )
    for path in files.values():
        commands.store_file(spark, arguments.tables, path, f"reports/{path.name}")
        history_name = f"reports/history/{started:%Y%m%dT%H%M%SZ}-{path.name}"
        commands.store_file(spark, arguments.tables, path, history_name)
    return answer


def _publish_report(
    arguments: argparse.Namespace,
    kafka: KafkaClient,
    topics: Mapping[str, TopicState],
    progress: Callable[[str], None],
) -> dict[str, str]:
    """Publish the report for the console, and send an event about it to the Broker at `--announce`.
    Returns the problems of these two steps, by `notServed` and `notAnnounced`; empty if both
    succeed.

    `topics` are the dead-letter topics, whose replication the topic of reports gets.
    """
    from knafka_jobs.report.publish import publish
    from knafka_jobs.report.report_document import Report

    report = parse_json(Report, (REPORT_FOLDER / "report.json").read_text())
    # -1 stands for the Kafka cluster's default.
    replication = max((topic.replication for topic in topics.values()), default=-1)
    return publish(
        kafka,
        report,
        arguments.archive,
        replication,
        arguments.announce,
        arguments.console_url,
        progress,
    )


def _run_operation(arguments: argparse.Namespace, run_command: RunCommand) -> dict[str, Any]:
    """Run the replay or purge that the arguments describe; returns its answer. Raises
    `KnafkaError`."""
    selection = dict(arguments.select)
    ids = selection.pop("ids", ())
    words = [f"--{name}={value}" for name, value in selection.items()]
    if arguments.command == "replay":
        words += _kafka_options(arguments)
        replay_options = {
            "replay-id": arguments.replay_id,
            "by": arguments.by,
            "rate": arguments.rate,
        }
        words += [
            f"--{name}={value}" for name, value in replay_options.items() if value is not None
        ]
    words += [f"--{name}" for name in ("dry-run", "unresolved") if _is_given(arguments, name)]
    return run_command(arguments.command, *words, ids=ids)


def _is_given(arguments: argparse.Namespace, flag: str) -> bool:
    """Whether a flag is set; False if the command has no such flag."""
    return bool(getattr(arguments, flag.replace("-", "_"), False))


def _kafka_options(arguments: argparse.Namespace) -> list[str]:
    """Return the options that tell a job how to reach Kafka."""
    secret = [] if arguments.secret is None else [f"--secret={arguments.secret}"]
    return [f"--bootstrap-servers={arguments.bootstrap_servers}", *secret]


def _write_termination_message(answer: Mapping[str, Any]) -> None:
    """Write the answer, or the error, to the container's termination message, where the operator
    reads it; outside a pod nothing is written."""
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(termination_message(answer))


def termination_message(answer: Mapping[str, Any]) -> str:
    """Return an answer as JSON that fits a termination message. Lists and a long error in it are
    shortened step by step until it fits; numbers stay. If it still doesn't fit, the JSON text is
    cut, and is no valid JSON."""
    shortened = dict(answer)
    while len(message := json.dumps(shortened)) > MAX_MESSAGE_CHARACTERS:
        if events := shortened.get("events"):
            shortened["events"] = events[:-1]
        elif triggers := shortened.get("triggers"):
            shortened["triggers"] = dict(list(triggers.items())[: len(triggers) // 2])
        elif problems := shortened.get("problems"):
            shortened["problems"] = problems[:-1]
        elif error := shortened.get("error"):
            shortened["error"] = error[: len(error) * 3 // 4]
        else:  # nothing is left to shorten, so the JSON is cut, below Kubernetes' limit
            return message[: MAX_MESSAGE_CHARACTERS + 100]
    return message


if __name__ == "__main__":
    sys.exit(main())
