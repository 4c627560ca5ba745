"""Acknowledgements: the latest word on a group counts, in whatever order rows are read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from knafka_jobs.acknowledgements import current_acknowledgements

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def _moments() -> st.SearchStrategy[datetime]:
    return st.integers(-5, 5).map(lambda hours: NOW + timedelta(hours=hours))


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "group_id": st.sampled_from("abc"),
            "action": st.sampled_from(("acknowledge", "unacknowledge")),
            "at": _moments(),
            "by": st.sampled_from(("ann", "bob")),
            "until": st.none() | _moments(),
            "note": st.none() | st.just("mended"),
        }
    ),
    max_size=12,
)


@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_in_which_rows_are_read_changes_nothing(
    rows: list[dict[str, Any]], chance: Any
) -> None:
    shuffled = rows.copy()
    chance.shuffle(shuffled)
    assert current_acknowledgements(shuffled, NOW) == current_acknowledgements(rows, NOW)


@given(ROWS, st.sampled_from("abc"), st.none() | _moments())
def test_the_last_word_on_a_group_counts(
    rows: list[dict[str, Any]], group: str, until: datetime | None
) -> None:
    said = {"group_id": group, "by": "eve", "note": None, "at": NOW + timedelta(days=1)}
    before = current_acknowledgements(rows, NOW)
    then = current_acknowledgements([*rows, {**said, "action": "acknowledge", "until": until}], NOW)
    assert (group in then) == (until is None or until > NOW)
    assert {each for each in then if each != group} == {each for each in before if each != group}
    then = current_acknowledgements(
        [*rows, {**said, "action": "unacknowledge", "until": None}], NOW
    )
    assert group not in then


@given(ROWS)
def test_an_acknowledgement_holds_until_its_end_and_not_longer(rows: list[dict[str, Any]]) -> None:
    for moment in (NOW, NOW + timedelta(hours=3), NOW + timedelta(days=9)):
        for each in current_acknowledgements(rows, moment).values():
            assert each.until is None or each.until > moment
