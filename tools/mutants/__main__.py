"""Mutation testing: makes one small change at a time to the pure code, and checks that a test
fails.

    make mutants ARGS="--seed 7 --sample 300 --seconds 3600 --module functions/knafka/core"

For each mutant only the tests that run its line are run, first those that run few other lines. A
mutant that survives the quick ones gets all of them after the rest of the sample. Results are in
build/mutants/: results.json, and report.md with the survivors.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from mutants import covering
from mutants.mutating import Mutant, mutants_of
from mutants.report import Result, Verdict, page
from mutants.running import Runner, Tree

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "mutants"
MODULES: Final = (
    "functions/knafka/core",
    "functions/knafka/clients/http/",
    "functions/knafka/dispatcher",
    *(f"operator/{name.replace('.', '/')}" for name in covering.OPERATOR),
    "spark_jobs/knafka_jobs/compact/ingest_batches.py",
    "spark_jobs/knafka_jobs/compact/compact_plan.py",
    "spark_jobs/knafka_jobs/compact/record_rows.py",
)
"""The files to mutate, by the beginning of their path."""
FIRST_SECONDS: Final = 10.0
"""Seconds of tests that a mutant gets at first, by what each test took when lines were counted."""
GRACE: Final = 10.0
"""Seconds added to the time that a mutant's tests may take before it counts as hanging."""
SLOWER: Final = 3.0
"""How many times their usual duration the tests and pytest's start may take: the machine may be
busy."""
SPARK_START: Final = 60.0
"""Seconds that a Spark session takes to start, at most."""
SMALLEST: Final = "tests/unit/test_turn_limit.py"
"""A file with few tests, by which pytest's start is timed."""
SLOWEST_START: Final = 120.0


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; exits with 2 if it is wrong."""
    parser = argparse.ArgumentParser(
        "make mutants", description="Mutation testing of what is pure: docs/design/tests.md."
    )
    parser.add_argument("--seed", type=int, default=1, help="chooses the sample (1)")
    parser.add_argument("--sample", type=int, default=300, help="how many mutants (300)")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="stop after so long, the map not counted (3600)"
    )
    parser.add_argument("--module", action="append", help="only files whose path begins so")
    parser.add_argument("--resume", action="store_true", help="keep what the last results know")
    parser.add_argument("--again", action="store_true", help="only the last results' survivors")
    parser.add_argument(
        "--tests", action="append", default=[], help="a file whose tests every mutant is shown, too"
    )
    parser.add_argument(
        "--keep-map", action="store_true", help="use the map of lines to tests though files changed"
    )
    return parser.parse_args()


def main() -> None:
    """Examine a sample of mutants, and write and print the report; at Ctrl-C or SIGTERM, with what
    is known by then."""
    options = parse_arguments()
    os.environ.pop("CI", None)  # without CI, a test whose programs are missing is skipped
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = repository_files()
    tree = Tree(ROOT, FOLDER / "tree", files)
    coverage = current_coverage(tree, files, options.keep_map)
    tree.warm_up()
    began = time.monotonic()
    if options.again:
        sample = last_survivors(files)
    else:
        sample = sample_of(files, options.module or MODULES, options.seed, options.sample)
    say(f"{len(sample)} mutants; Ctrl-C ends with what is known")
    examination = Examination(tree, coverage, options.tests, began + options.seconds)
    if options.resume:
        examination.results = [result for result in last_results() if result.mutant in sample]
    # As Ctrl-C does; a background job gets no SIGINT.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        examination.run(sample)
    except KeyboardInterrupt:
        pass
    results = examination.results
    write_results(FOLDER / "results.json", results)
    text = page(results, len(sample), options.seed, time.monotonic() - began)
    (FOLDER / "report.md").write_text(text, encoding="utf-8")
    print(text)


def say(text: str) -> None:
    """Print a line of progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def repository_files() -> Collection[str]:
    """Return the files that git tracks or would add, as paths from the root."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).is_file()}


def current_coverage(tree: Tree, files: Collection[str], is_kept: bool) -> covering.Coverage:
    """Return the map of lines to tests; it is collected anew if a file has changed, unless
    `is_kept`."""
    stamp, kept = covering.stamp(ROOT, (name for name in files if name.endswith(".py"))), ""
    if (FOLDER / "stamp").exists():
        kept = (FOLDER / "stamp").read_text()
    if kept != stamp and not (is_kept and kept):
        say("running the pure tests once, to know which lines each of them runs (ten minutes)")
        covering.collect(tree.folder, FOLDER, tree.environment)
        (FOLDER / "stamp").write_text(stamp)
    return covering.read(FOLDER, tree.folder)


def sample_of(
    files: Collection[str], modules: Sequence[str], seed: int, count: int
) -> list[Mutant]:
    """Choose `count` mutants of the modules: the same for the same seed and sources; a larger
    sample begins with a smaller one."""
    sources = {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in sorted(files)
        if name.endswith(".py") and name.startswith(tuple(modules))
    }
    mutants = [mutant for name, source in sources.items() for mutant in mutants_of(name, source)]
    say(f"{len(mutants)} mutants in {len(sources)} files")
    random.Random(seed).shuffle(mutants)
    sample: list[Mutant] = []
    for mutant in mutants:
        if len(sample) == count:
            break
        if mutant.compiles(sources[mutant.path]):
            sample.append(mutant)
    return sample


def last_results() -> list[Result]:
    """Return the results of the last run."""
    results = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    return [Result(Mutant(**result["mutant"]), Verdict(**result["verdict"])) for result in results]


def last_survivors(files: Collection[str]) -> list[Mutant]:
    """Return the survivors of the last results, as far as their code still exists."""
    survivors: list[Mutant] = []
    for result in last_results():
        last = result.mutant
        if result.verdict.is_killed or last.path not in files:
            continue
        same = [
            mutant
            for mutant in mutants_of(last.path, (ROOT / last.path).read_text(encoding="utf-8"))
            if (mutant.kind, mutant.old, mutant.new) == (last.kind, last.old, last.new)
        ]
        if same:
            survivors.append(min(same, key=lambda mutant: abs(mutant.line - last.line)))
    return survivors


class Examination:
    """Runs tests against mutants until a deadline (of the monotonic clock)."""

    def __init__(
        self, tree: Tree, coverage: covering.Coverage, files: Sequence[str], deadline: float
    ) -> None:
        """Start the runner, and time pytest's start. `files`: test files that every mutant gets,
        too."""
        self.results: list[Result] = []
        self._tree = tree
        self._coverage = coverage
        self._files = files
        self._deadline = deadline
        self._runner = Runner(tree, FOLDER / "pytest.log")
        began = time.monotonic()
        self._runner.run([], [SMALLEST], SLOWEST_START)
        self._start = time.monotonic() - began

    def run(self, sample: Sequence[Mutant]) -> None:
        """Examine all mutants with quick tests, then the survivors with all their tests, until the
        deadline."""
        examined = {result.mutant for result in self.results}
        for mutant in sample:
            if mutant in examined:
                continue
            if time.monotonic() > self._deadline:
                return
            self.results.append(Result(mutant, self._verdict(mutant, FIRST_SECONDS)))
            say(f"{len(self.results)} of {len(sample)}: {self.results[-1]}")
            write_results(FOLDER / "results.json", self.results)
        for place, result in enumerate(self.results):
            if time.monotonic() > self._deadline:
                return
            if result.verdict.tests < result.verdict.of and not result.verdict.is_killed:
                remaining = self._deadline - time.monotonic()
                verdict = self._verdict(result.mutant, remaining)
                self.results[place] = replace(result, verdict=verdict)
                say(f"with more tests: {self.results[place]}")

    def _verdict(self, mutant: Mutant, seconds: float) -> Verdict:
        """Run the mutant's tests that fit into so many seconds, and return the verdict."""
        lines = range(mutant.line, mutant.last_line + 1)
        tests = self._coverage.tests_for(mutant.path, lines)
        quick = self._coverage.quick(tests, seconds)
        if not quick and not self._files:
            return Verdict("no tests")
        usual = sum(self._coverage.seconds[test] for test in quick)
        if any(test.startswith(covering.SPARK) for test in quick):
            usual += SPARK_START
        with self._tree.holding(mutant):
            began = time.monotonic()
            verdict = self._runner.run(quick, self._files, GRACE + SLOWER * (self._start + usual))
        took = round(time.monotonic() - began, 1)
        return replace(verdict, tests=len(quick), of=len(tests), seconds=took)


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write the results as JSON, which `last_results` reads."""
    path.write_text(json.dumps([asdict(result) for result in results], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
