"""Progress bounds: limits how much of a dispatcher's progress is kept in memory.

A line is kept until the next one of its group; reasons for dead letters are kept as long as the
operator runs, each as a metric's label. No genuine dispatcher exceeds these bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from knafka.core.drain import DrainProgress

MAX_REASONS: Final = 100
"""Most reasons for dead letters of one Trigger; further ones are counted as `OTHER_REASONS`."""
OTHER_REASONS: Final = "other"
"""The common reason for dead letters whose own reasons aren't kept."""
MAX_TEXT_LENGTH: Final = 2_000
"""Most characters of an error, a reason or a congestion."""
MAX_PARTITIONS: Final = 2_000
"""Most partition numbers of one line; they are only shown and counted."""


def bound_progress(progress: DrainProgress) -> DrainProgress:
    """Return a copy of the progress with its partitions, texts and reasons cut to the bounds."""
    bounded: dict[str, Any] = {
        "dead_letters": bound_reasons(progress.dead_letters),
        "partitions": progress.partitions[:MAX_PARTITIONS],
        "congestion": truncate_text(progress.congestion),
        "error": truncate_text(progress.error),
    }
    return progress.model_copy(update=bounded)


def bound_reasons(counts_by_reason: Mapping[str, int]) -> dict[str, int]:
    """Return the counts by reason; reasons beyond the first `MAX_REASONS`, and those longer than
    `MAX_TEXT_LENGTH`, are counted together as `OTHER_REASONS`."""
    bounded: Counter[str] = Counter()
    for reason, count in counts_by_reason.items():
        has_room = reason in bounded or len(bounded) < MAX_REASONS
        is_kept = has_room and len(reason) <= MAX_TEXT_LENGTH
        bounded[reason if is_kept else OTHER_REASONS] += count
    return dict(bounded)


def truncate_text(text: str | None) -> str | None:
    """Return the text cut to `MAX_TEXT_LENGTH` characters, of which the last is then an ellipsis.
    None stays None."""
    if text is None or len(text) <= MAX_TEXT_LENGTH:
        return text
    return f"{text[: MAX_TEXT_LENGTH - 1]}…"
