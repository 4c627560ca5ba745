"""The command line `python -m knafka_jobs COMMAND`, also used by the spark-submit launchers.

A job's answer goes to stdout as one line of JSON, its progress to stderr. Exit codes: 0 done,
1 failed (the last line of stderr says why), 2 the command line is wrong.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from knafka.core.documents import explain_faults
from knafka.core.errors import KnafkaError
from knafka_jobs.command_options import parser
from knafka_jobs.job_errors import error_in_one_line

FAILED: Final = 1
"""Exit code of a job that failed."""

PREFIX: Final = "knafka: "
"""Beginning of each line that a job itself writes to stderr; all other lines are Spark's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of the command line (see `--help`) and return its exit code. `arguments` are
    the words after the program's name; None: those of this process."""
    parsed = parser().parse_args(arguments)
    # Only now, as importing Spark takes a second: --help needs none of it.
    from knafka_jobs import commands

    try:
        with explain_faults():
            answer = commands.run(parsed, _print_progress)
    except Exception as error:
        if not isinstance(error, KnafkaError):
            traceback.print_exc()
        _print_progress(f"error: {error_in_one_line(error)}")
        return FAILED
    print(json.dumps(answer), flush=True)
    return 0


def _print_progress(line: str) -> None:
    """Print a line of progress on stderr."""
    print(f"{PREFIX}{line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
