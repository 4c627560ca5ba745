"""Lists replays with their progress, from the tables' files, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime

from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.report.assemble import replay_run
from knafka_jobs.report.datafusion_engine import DataFusionEngine
from knafka_jobs.report.report_document import ReplayRun
from knafka_jobs.report.report_plan import replay_counts


def list_replays(files: TableFiles, limit: int, now: datetime) -> Sequence[ReplayRun]:
    """Return the `limit` latest replays of these tables, the newest first, each with its state and
    progress at `now`.

    Raises `JobError`.
    """
    # No limit: the query reads no failures, however many there are.
    engine = DataFusionEngine(files.root, files.store, max_bytes=sys.maxsize)
    return [replay_run(row, now) for row in engine.query(replay_counts(limit))]
