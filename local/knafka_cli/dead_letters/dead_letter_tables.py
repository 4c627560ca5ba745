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
from knafka_client.topics.dead_letters import DeadLetter, Overview, letter, owner
from knafka_jobs.errors import NeedsSpark
from knafka_jobs.selecting import Condition, TriggerName

if TYPE_CHECKING:
    from knafka_jobs.lookup.run import TableFiles

HOW_TO: Final = "make jobs, or pip install 'knafka[tables]' (55 MB) where Knafka came from pip"


def open_tables(place: str, tell: Callable[[str], None]) -> TableFiles | None:
    """The tables, if there are any that can be read here; else `tell` gets the reason, if it is
    none that everybody knows. Raises `JobError`."""
    if "://" not in place and not Path(place, "failures").exists():
        return None
    try:
        from knafka_jobs.lookup.run import TableFiles
    except ImportError:
        tell(f"what was compacted is not looked at: {HOW_TO}")
        return None
    files = TableFiles(place)
    try:
        return files if files.has("failures") and files.has("records") else None
    except NeedsSpark as error:
        tell(f"{error}: the next knafka dead-letters compact brings it up to date")
        return None


def overviews(files: TableFiles, conditions: Sequence[Condition]) -> dict[TriggerName, Overview]:
    """What each Trigger has in the tables that is unresolved. Raises `JobError`."""
    from knafka_jobs.lookup import run as lookup

    sent = lookup.on_their_way(files, conditions)
    found: dict[TriggerName, Overview] = {}
    for each in lookup.unresolved(files, conditions):
        how = f"{each.reason} {'' if each.code is None else each.code}".strip()
        times = (_text(each.oldest), _text(each.newest))
        one = Overview(owner(*each.trigger), each.number, *times, Counter({how: each.number}))
        found[each.trigger] = found[each.trigger] + one if each.trigger in found else one
    for trigger, count in sent.items():
        one = Overview(owner(*trigger), 0, "", "", Counter(), count)
        found[trigger] = found[trigger] + one if trigger in found else one
    return found


def latest(files: TableFiles, conditions: Sequence[Condition], limit: int) -> Sequence[DeadLetter]:
    """The last `limit` that the tables have, the oldest first. Raises `JobError`."""
    from knafka_jobs.lookup import run as lookup

    found = lookup.latest(files, conditions, limit)
    return [
        letter(record, None if at is None else round(at.timestamp() * 1000))
        for record, at in reversed(found)
    ]


def _text(moment: datetime) -> str:
    return timestamp(moment.timestamp())
