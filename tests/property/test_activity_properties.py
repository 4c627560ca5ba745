"""Whether a Trigger is busy or quiet, for every course of its lag and its deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from knafka_operator.dispatchers.activity import (
    BUSY_LAG,
    BUSY_RATE,
    BUSY_SECONDS,
    QUIET_RATE,
    QUIET_SECONDS,
    Activity,
    ActivityState,
    Sample,
    judge_activity,
)

THRESHOLD = 100
MUCH = BUSY_LAG * THRESHOLD + 1
INTERVAL = 10.0

PHASES = st.lists(
    st.tuples(
        st.integers(1, 90),  # samples
        st.sampled_from([0.0, 5.0, 50.0, 500.0, 5000.0]),  # deliveries a second
        st.sampled_from([None, 0, MUCH - 1, MUCH]),  # lag
        st.booleans(),  # whether the counts begin anew
    ),
    min_size=1,
    max_size=8,
)


def course(phases: Sequence[tuple[int, float, int | None, bool]]) -> list[Sample]:
    """One sample each interval."""
    samples: list[Sample] = []
    for number, rate, lag, anew in phases:
        before = samples[-1].delivered if samples and not anew else 0
        grown = accumulate([int(rate * INTERVAL)] * number, initial=before)
        for delivered in list(grown)[1:]:
            samples.append(Sample(len(samples) * INTERVAL, delivered, lag))
    return samples


def changes(samples: Sequence[Sample], begin: Activity = Activity.QUIET) -> list[ActivityState]:
    """All that it was, one judgement for each sample."""
    judged = [ActivityState(begin, samples[0].time)]
    for number in range(1, len(samples) + 1):
        now = judge_activity(judged[-1], samples[max(0, number - 62) : number], THRESHOLD)
        if now != judged[-1]:
            judged.append(now)
    return judged


@given(PHASES)
@example([(10, 5000.0, 0, False), (60, 0.0, 0, False), (10, 5000.0, 0, False)])
def test_two_changes_are_never_nearer_than_the_second_takes_to_be_seen(
    phases: list[tuple[int, float, int | None, bool]],
) -> None:
    for earlier, later in pairwise(changes(course(phases))):
        assert earlier.activity is not later.activity
        seen_for = BUSY_SECONDS if later.activity is Activity.BUSY else QUIET_SECONDS
        assert later.since - earlier.since >= seen_for


@given(PHASES)
def test_what_is_never_busy_or_never_quiet_changes_once_at_most(
    phases: list[tuple[int, float, int | None, bool]],
) -> None:
    calm = [each for each in phases if each[1] < BUSY_RATE and each[2] != MUCH]
    if calm:
        assert len(changes(course(calm))) == 1
    lively = [each for each in phases if each[1] > QUIET_RATE]
    if lively:
        assert len(changes(course(lively), Activity.BUSY)) == 1


@given(PHASES, st.sampled_from([(0.0, MUCH), (5000.0, 0), (5000.0, None), (5000.0, MUCH)]))
def test_whatever_was_before_much_work_makes_it_busy_in_time(
    phases: list[tuple[int, float, int | None, bool]], much: tuple[float, int | None]
) -> None:
    rate, lag = much
    of_work = int(BUSY_SECONDS / INTERVAL) + 1
    samples = course([*phases, (of_work, rate, lag, False)])
    last = changes(samples)[-1]
    assert last.activity is Activity.BUSY or samples[-1].time - last.since < BUSY_SECONDS


@given(PHASES)
def test_whatever_was_before_it_is_quiet_after_ten_minutes_of_little(
    phases: list[tuple[int, float, int | None, bool]],
) -> None:
    of_rest = int(QUIET_SECONDS / INTERVAL) + 1
    samples = course([*phases, (of_rest, 5.0, 0, False)])
    last = changes(samples)[-1]
    assert last.activity is Activity.QUIET or samples[-1].time - last.since < QUIET_SECONDS


@pytest.mark.parametrize(
    ("rate", "lag", "becomes"),
    [
        (BUSY_RATE, MUCH - 1, []),
        (BUSY_RATE + 1, 0, [(Activity.BUSY, BUSY_SECONDS)]),
        (BUSY_RATE + 1, None, [(Activity.BUSY, BUSY_SECONDS)]),
        (0, MUCH, [(Activity.BUSY, BUSY_SECONDS)]),
        (0, None, []),
    ],
)
def test_a_quiet_trigger_becomes_busy_after_half_a_minute_of_work(
    rate: float, lag: int | None, becomes: list[tuple[Activity, float]]
) -> None:
    judged = changes(course([(100, rate, lag, False)]))[1:]
    assert [(each.activity, each.since) for each in judged] == becomes


@pytest.mark.parametrize(
    ("rate", "lag", "becomes"),
    [
        (QUIET_RATE - 1, MUCH - 1, [(Activity.QUIET, QUIET_SECONDS)]),
        (QUIET_RATE, 0, []),
        (0, MUCH, []),
        (0, None, []),
    ],
)
def test_a_busy_trigger_becomes_quiet_after_ten_minutes_of_little(
    rate: float, lag: int | None, becomes: list[tuple[Activity, float]]
) -> None:
    judged = changes(course([(100, rate, lag, False)]), Activity.BUSY)[1:]
    assert [(each.activity, each.since) for each in judged] == becomes


def test_a_burst_that_is_worked_off_at_once_moves_nothing() -> None:
    burst = [(60, 5.0, 0, False), (2, 900.0, MUCH, False), (60, 5.0, 0, False)]
    assert len(changes(course(burst))) == 1


def test_nothing_is_known_without_samples() -> None:
    before = ActivityState(Activity.QUIET, 0.0)
    assert judge_activity(before, [], THRESHOLD) is before
