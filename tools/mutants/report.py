"""Verdicts of mutants, and a report of a sample as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from mutants.mutating import Mutant, shortened


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a mutant's tests."""

    outcome: str
    """`killed`, `timeout` (it hangs, or takes too long: killed, too), `survived`, `no tests`."""
    by: str = ""
    """The test that failed first, or the error that kept pytest from running any."""
    tests: int = 0
    """Number of tests that were run."""
    of: int = 0
    """Number of tests that run the mutant's lines."""
    seconds: float = 0.0

    @property
    def is_killed(self) -> bool:
        """Whether a test has noticed the mutant."""
        return self.outcome in ("killed", "timeout")


@dataclass(frozen=True, slots=True)
class Result:
    """A mutant with its verdict."""

    mutant: Mutant
    verdict: Verdict

    def __str__(self) -> str:
        verdict = self.verdict
        by = f" by {verdict.by}" if verdict.by else ""
        return f"{verdict.outcome}{by} ({verdict.tests} of {verdict.of} tests): {self.mutant}"


def page(results: Sequence[Result], sample: int, seed: int, seconds: float) -> str:
    """Return the report: a table by folder, the mutants that hung, and the survivors."""
    by_folder: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_folder[PurePosixPath(result.mutant.path).parent.as_posix()].append(result)
    lines = [
        f"{len(results)} of {sample} mutants (seed {seed}) in {seconds / 60:.0f} minutes.",
        "",
        "| folder | mutants | killed | by timeout | survived | no test runs the line |",
        "| --- | --: | --: | --: | --: | --: |",
        *(_row(folder, folder_results) for folder, folder_results in sorted(by_folder.items())),
        _row("all", results),
    ]
    hung = [result for result in results if result.verdict.outcome == "timeout"]
    if hung:
        lines += [
            "",
            "Killed by timeout only:",
            "",
            *(f"- {hung_result.mutant}" for hung_result in hung),
        ]
    survivors = [result for result in results if not result.verdict.is_killed]
    if survivors:
        lines += ["", "| survivor | kind | change | tests |", "| --- | --- | --- | --: |"]
        lines += [_survivor(result) for result in survivors]
    return "\n".join(lines) + "\n"


def _row(name: str, results: Sequence[Result]) -> str:
    """Return the row of a folder: the number of its mutants by outcome."""
    outcomes = [result.verdict.outcome for result in results]
    killed = sum(result.verdict.is_killed for result in results)
    share = f"{killed} ({killed / max(1, len(results)):.0%})"
    rest = (outcomes.count(outcome) for outcome in ("timeout", "survived", "no tests"))
    return f"| {name} | {len(results)} | {share} | {' | '.join(map(str, rest))} |"


def _survivor(result: Result) -> str:
    """Return the row of a mutant that survived: its place, kind and change, and the tests run."""
    mutant, verdict = result.mutant, result.verdict
    change = f"`{shortened(mutant.old)}` → `{shortened(mutant.new)}`".replace("|", "\\|")
    tests = f"{verdict.tests} of {verdict.of}"
    return f"| {mutant.path}:{mutant.line} | {mutant.kind} | {change} | {tests} |"
