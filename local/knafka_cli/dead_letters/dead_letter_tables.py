"""Dead letters that were compacted, as the command line shows them: by the tables' files.

No Spark and no Java: `knafka_jobs.lookup` reads them, where the package `deltalake` is installed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from knafka.core.dead_letter import timestamp
from knafka_client.topics.dead_letters import Overview, StoredDeadLetter, letter, owner
from knafka_jobs.failure_selection import FailureCondition, TriggerName
from knafka_jobs.job_errors import NeedsSpark

if TYPE_CHECKING:
    from knafka_jobs.lookup.lookup_run import TableFiles

INSTALL_TABLES: Final = (
    "make jobs, or pip install 'knafka[tables]' (55 MB) where Knafka came from pip"
)


def open_tables(place: str, tell: Callable[[str], None]) -> TableFiles | None:
    """The tables, if there are any that can be read here; else `tell` gets the reason, if it is
    none that everybody knows. Raises `JobError`."""
    if "://" not in place and not Path(place, "failures").exists():
        return None
    try:
        from knafka_jobs.lookup.lookup_run import TableFiles
    except ImportError:
        tell(f"what was compacted is not looked at: {INSTALL_TABLES}")
        return None
    files = TableFiles(place)
    try:
        return files if files.has("failures") and files.has("records") else None
    except NeedsSpark as error:
        tell(f"{error}: the next knafka dead-letters compact brings it up to date")
        return None


def overviews(
    files: TableFiles, conditions: Sequence[FailureCondition]
) -> dict[TriggerName, Overview]:
    """The unresolved dead letters of each Trigger, counted from the tables. Raises `JobError`."""
    from knafka_jobs.lookup import lookup_run as lookup

    sent = lookup.on_their_way(files, conditions)
    by_trigger: dict[TriggerName, Overview] = {}
    for row in lookup.unresolved(files, conditions):
        how = f"{row.reason} {'' if row.code is None else row.code}".strip()
        times = (_text(row.oldest), _text(row.newest))
        one = Overview(owner(*row.trigger), row.number, *times, Counter({how: row.number}))
        by_trigger[row.trigger] = (
            by_trigger[row.trigger] + one if row.trigger in by_trigger else one
        )
    for trigger, count in sent.items():
        one = Overview(owner(*trigger), 0, "", "", Counter(), count)
        by_trigger[trigger] = by_trigger[trigger] + one if trigger in by_trigger else one
    return by_trigger


def latest(
    files: TableFiles, conditions: Sequence[FailureCondition], limit: int
) -> Sequence[StoredDeadLetter]:
    """The last `limit` that the tables have, the oldest first. Raises `JobError`."""
    from knafka_jobs.lookup import lookup_run as lookup

    rows = lookup.latest(files, conditions, limit)
    return [
        letter(record, None if replayed is None else round(replayed.timestamp() * 1000))
        for record, replayed in reversed(rows)
    ]


def _text(moment: datetime) -> str:
    return timestamp(moment.timestamp())
