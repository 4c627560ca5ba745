"""What the planes tell each other about a drain, also while one is older than the other."""

from __future__ import annotations

import json
from dataclasses import fields

from knafka.core.documents import parse_json
from knafka.core.drain import COUNTED, Counts, DrainProgress


def test_progress_counts_what_counts_has() -> None:
    assert set(COUNTED) < set(DrainProgress.model_fields)
    numbers = Counts(*range(1, len(fields(Counts)) + 1))
    assert DrainProgress(**{name: getattr(numbers, name) for name in COUNTED}).counts == numbers


def test_counts_are_added_and_taken_away_field_by_field() -> None:
    more, few = Counts(9, 8, 7, 6, 5, 4), Counts(1, 2, 3, 4, 5, 4)
    assert more + few == Counts(10, 10, 10, 10, 10, 8)
    assert more - few == Counts(8, 6, 4, 2, 0, 0)


def test_why_they_failed_is_written_only_where_there_are_any() -> None:
    """An operator that is older knows no such field."""
    assert "deadLetters" not in json.loads(DrainProgress().model_dump_json(by_alias=True))
    line = DrainProgress(dead_letters={"status 503": 2}).model_dump_json(by_alias=True)
    assert parse_json(DrainProgress, line).dead_letters == {"status 503": 2}
