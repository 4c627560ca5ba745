"""Cancels a replay, without Spark: appends a row to a table that the sending process reads every
few seconds."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.job_errors import JobError
from knafka_jobs.lookup.lookup_plan import sql_literal
from knafka_jobs.schema import CANCELLATIONS

CANCELLATIONS_TABLE: Final = "cancellations"
"""Name of the table of cancellations; `schema.CANCELLATIONS` has its columns."""


def cancel_replay(files: TableFiles, replay_id: str, by: str, now: datetime) -> None:
    """Ask a replay to end, without waiting for its end. `by` is the name of the person who asks,
    and `now` the time of the request. Raises `JobError` if there is no such replay, or if it has
    finished."""
    if not files.has_table("replays"):
        raise JobError("there is no replay: the tables have none")
    sql = f"SELECT events, finished FROM replays WHERE replay_id = {sql_literal(replay_id)}"
    rows = files.query(sql, "replays")
    if not rows:
        unfinished = "SELECT replay_id FROM replays WHERE finished IS NULL ORDER BY started DESC"
        unfinished_ids = ", ".join(row["replay_id"] for row in files.query(unfinished, "replays"))
        raise JobError(f"there is no replay {replay_id}: unfinished are {unfinished_ids or 'none'}")
    if rows[0]["finished"] is not None:
        raise JobError(f"the replay {replay_id} is finished and sent {rows[0]['events']} events")
    row = {"replay_id": replay_id, "at": now, "by": by}
    files.append(CANCELLATIONS_TABLE, CANCELLATIONS, [[row[name] for name in CANCELLATIONS]])
