"""Runs purges: deletes failures and their events from the tables for good.

A purge that was killed can be repeated: it deletes the failures that are left.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from knafka_jobs.command_options import FailureSelection
from knafka_jobs.forget import delete_failures
from knafka_jobs.io.delta import Tables
from knafka_jobs.replay.replay_plan import select_failures


def purge(
    tables: Tables, selection: FailureSelection, unresolved: bool, fold: Callable[[], None]
) -> int:
    """Delete the selected failures and their records for good; returns the number of failures.

    `unresolved`: whether unresolved failures are deleted, too, and not only resolved ones. `fold`
    adds to the table `failures` all records that are not folded into it yet: they would be lost.
    Afterwards no file below the tables' root has the deleted failures, nor any other rows that were
    deleted earlier. Raises `JobError`.
    """

    def choose(failures: DataFrame) -> DataFrame:
        """Return the failures to delete."""
        return _select_purgeable(failures, selection, unresolved)

    with tables.locked():
        return delete_failures(tables, choose, fold)


def purgeable(tables: Tables, selection: FailureSelection, unresolved: bool) -> DataFrame:
    """Return the failures that a purge would delete; `unresolved`: whether it deletes unresolved
    ones, too. Column: `failure_id`."""
    failures = tables.read("failures")
    return _select_purgeable(failures, selection, unresolved).select("failure_id")


def _select_purgeable(
    failures: DataFrame, selection: FailureSelection, unresolved: bool
) -> DataFrame:
    """Return the selected failures that a purge may delete: all of them with `unresolved`, else
    only the resolved ones."""
    selected = failures.transform(select_failures, selection)
    return selected if unresolved else selected.where("resolved IS NOT NULL")
