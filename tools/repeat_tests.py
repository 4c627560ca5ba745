"""Run the tests of real services many times, under load and in random order, and list what failed.

    python tools/repeat_tests.py [--runs 10] [--busy 2] [--pause 0] [--seed 1] [PYTEST OPTIONS]

Whether a test fails by luck shows only when it runs often, beside other work, after other tests.
Each run shuffles files and tests by its own seed (`--shuffle`), with `--busy` processes beside it
that only compute; with `--pause` its workers are stopped for about so many seconds again and again
(pytest-xdist's, so with `-n`). Without options for pytest it runs what `make test` and
`make test-integration` run and is not pure, but for what needs Go. Prints a row for each test that
failed: how often, and the seeds with which. Exits with 1 if any did.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final

from paused_workers import pausing_workers

BUSY_LOOP: Final = "while True: pass"
DEFAULT_TESTS: Final = (
    *("-m", "(kafka or spark) and not cluster and not go", "-q", "--tb=short"),
    *("-n", "logical", "--maxprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder"),
)
REPORTS: Final = Path("build/tests")


def main(arguments: Sequence[str]) -> int:
    """Run the tests as the arguments say, and print those that failed; returns the exit code, 1 if
    any did."""
    parser = argparse.ArgumentParser(
        description="Run tests many times, under load and in random order."
    )
    parser.add_argument("--runs", type=int, default=10, help="how many runs (default: 10)")
    parser.add_argument("--busy", type=int, default=2, help="busy loops beside them (default: 2)")
    parser.add_argument("--seed", type=int, default=1, help="of the first run (default: 1)")
    parser.add_argument(
        "--pause", type=float, default=0, help="seconds that workers are stopped (default: never)"
    )
    options, tests = parser.parse_known_args(arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    failed_with: dict[str, list[int]] = defaultdict(list)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(options.busy)]
    try:
        for seed in range(options.seed, options.seed + options.runs):
            for test in failures(seed, options.pause, tests or DEFAULT_TESTS):
                failed_with[test].append(seed)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"{options.runs} runs: {len(failed_with)} tests failed at least once")
    for test, seeds in sorted(failed_with.items(), key=lambda row: -len(row[1])):
        print(f"{len(seeds):3} {test} (seeds {', '.join(map(str, seeds))})")
    return 1 if failed_with else 0


def failures(seed: int, pause: float, tests: Sequence[str]) -> list[str]:
    """Run the tests once in the order of this seed, and stop the workers for about `pause` seconds
    again and again; returns the ids of the tests that failed."""
    file = REPORTS / f"repeated-{seed}.json"
    file.unlink(missing_ok=True)
    print(f"run with seed {seed}", flush=True)
    command = [
        *(sys.executable, "-m", "pytest", f"--shuffle={seed}", f"--failures-file={file}"),
        *(f"--junitxml={file.with_suffix('.xml')}", *tests),
    ]
    with subprocess.Popen(command) as run, ExitStack() as context:
        if pause:
            context.enter_context(pausing_workers(run.pid, pause, Random(seed)))
        run.wait()
    return list(json.loads(file.read_text())) if file.exists() else [f"run {seed} as a whole"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
