"""`python -m knafka_jobs COMMAND`, and what the spark-submit launchers call.

What a job found out goes to stdout as one line of JSON, what it is doing to stderr. Exit codes:
0 done, 1 it failed (the last line of stderr says why), 2 it was asked what can't be answered.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from knafka.core.documents import explained_faults
from knafka.core.errors import KnafkaError
from knafka_jobs.errors import in_one_line
from knafka_jobs.options import parser

FAILED: Final = 1

PREFIX: Final = "knafka: "
"""What our lines on stderr begin with; all others are Spark's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; see `--help`."""
    given = parser().parse_args(arguments)
    # Only now, as importing Spark takes a second: --help needs none of it.
    from knafka_jobs import commands

    try:
        with explained_faults():
            found = commands.run(given, _progress)
    except Exception as error:
        if not isinstance(error, KnafkaError):
            traceback.print_exc()
        _progress(f"error: {in_one_line(error)}")
        return FAILED
    print(json.dumps(found), flush=True)
    return 0


def _progress(line: str) -> None:
    print(f"{PREFIX}{line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
