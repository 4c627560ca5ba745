"""The reducer of a Sensor's triggers, one rule at a time (BUS-S3 to BUS-S5)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support.sensors import event, played

from knafka.core.errors import InvalidDocument
from knafka.core.sensor import absence
from knafka.core.sensor.conditions import parse
from knafka.core.sensor.held import Firing, Held
from knafka.core.sensor.resets import Reset
from knafka.core.sensor.rules import Rule, RuleStep, due_time, expire, expiry_time, step


def rule(condition: str, within: int | None = None, *resets: Reset) -> Rule:
    return Rule("t", parse(condition), within, resets)


def names(firing: Firing) -> str:
    return " ".join(each.identity for each in firing.events)


def fired(of: Rule, events: str) -> list[str]:
    return [names(each) for each in played(of, events).firings]


def test_a_condition_fires_once_with_the_events_that_made_it_true() -> None:
    assert fired(rule("a && b"), "a1@1 b1@2") == ["a1 b1"]


@pytest.mark.conformance("BUS-S3")
def test_the_latest_event_of_each_dependency_counts() -> None:
    """BUS-S3: a1 to a9 are dropped, and a10 is used with b1."""
    assert fired(rule("a && b"), " ".join(f"a{n}@{n}" for n in range(1, 11)) + " b1@11") == [
        "a10 b1"
    ]


@pytest.mark.conformance("BUS-S4")
def test_what_is_held_is_cleared_after_firing() -> None:
    """BUS-S4."""
    assert fired(rule("a && b"), "a1@1 b1@2 b2@3 b3@4 a2@5") == ["a1 b1", "b3 a2"]


@pytest.mark.conformance("BUS-S3")
def test_the_same_event_twice_counts_once() -> None:
    assert fired(rule("2 of a"), "a1@1 a1@2") == []
    assert fired(rule("2 of a"), "a1@1 a1@2 a2@3") == ["a1 a2"]


def test_of_several_events_the_latest_are_counted() -> None:
    assert fired(rule("3 of a && b"), "a1@1 a2@2 a3@3 a4@4 a5@5 b1@6") == ["a3 a4 a5 b1"]


def test_everything_that_is_held_goes_with_the_firing() -> None:
    assert fired(rule("a && b || c"), "a1@1 c1@2 b1@3") == ["a1 c1"]


def test_events_further_apart_than_the_window_dont_fire() -> None:
    of = rule("a && b", 10)
    assert fired(of, "a1@1 b1@12") == []
    assert fired(of, "a1@1 b1@11") == ["a1 b1"]
    assert fired(of, "a1@1 b1@12 a2@22") == ["b1 a2"]


def test_an_event_that_was_late_counts_by_its_own_time() -> None:
    of = rule("a && b", 10)
    assert fired(of, "a1@20 b1@5 b2@10") == ["b2 a1"]


def test_so_many_within_a_time_fire() -> None:
    of = rule("3 of a", 60)
    assert fired(of, "a1@0 a2@50 a3@100 a4@105 a5@200") == ["a2 a3 a4"]


def test_what_can_fire_no_more_is_held_no_longer_than_its_window() -> None:
    of = rule("a && b", 10)
    held = played(of, "a1@1").held
    assert expiry_time(of, held) == 12
    assert expire(of, held, 11) == RuleStep(held)
    assert expire(of, held, 12) == RuleStep(())


def test_what_has_no_window_is_held_for_ever() -> None:
    of = rule("a && b")
    held = played(of, "a1@1").held
    assert expiry_time(of, held) is None
    assert expire(of, held, 2**60) == RuleStep(held)


# What doesn't come

ABSENT = rule("a && !b", 10)


@pytest.mark.parametrize(
    ("events", "until", "firings"),
    [
        ("a1@1", 12, ["a1"]),
        ("a1@1", 11, []),
        ("a1@1 b1@5", 30, []),
        ("a1@1 b1@11", 30, []),
        ("a1@1 b1@12", 30, ["a1"]),
        ("b1@5 a1@1", 30, []),
        ("b1@1 a1@1", 30, []),
        ("b1@0 a1@1", 30, ["a1"]),
        ("a1@1 a2@5", 30, ["a1"]),
        ("a1@1 a2@12", 30, ["a1", "a2"]),
        ("a1@1 a2@12", 20, ["a1"]),
        ("a1@1 b1@5 a2@6", 30, ["a2"]),
        ("a1@1 b1@20 a2@25", 36, ["a1", "a2"]),
        # An unwanted event of another partition of the bus is read after what followed it.
        ("a1@1 a2@6 b1@5", 30, ["a2"]),
        ("a1@1 a2@3 a3@6 b1@5", 30, ["a3"]),
        ("a1@1 a2@5 b1@5", 30, []),
        ("a1@1 a2@6 b2@8 b1@5", 30, []),
    ],
)
def test_what_isnt_followed_by_an_unwanted_event_fires_after_that_time(
    events: str, until: int, firings: list[str]
) -> None:
    after = expire(ABSENT, played(ABSENT, events).held, until)
    assert [names(each) for each in after.firings] == firings


def test_it_is_known_when_the_next_one_fires_that_waits_for_no_event() -> None:
    held = played(ABSENT, "a1@1 a2@5").held
    assert due_time(ABSENT, held) == 12
    assert due_time(ABSENT, played(ABSENT, "a1@1 b1@2").held) is None
    assert due_time(ABSENT, ()) is None
    assert due_time(rule("a && b", 10), played(rule("a && b", 10), "a1@1").held) is None


def test_an_unwanted_event_is_held_only_until_all_before_it_was_read() -> None:
    held = played(ABSENT, "b1@5").held
    assert expiry_time(ABSENT, held) == 6
    assert expire(ABSENT, held, 6).held == ()


def test_of_many_ignored_events_the_latest_are_held_until_their_round_is_over() -> None:
    held = played(ABSENT, "a1@1 " + " ".join(f"a{n + 2}@2" for n in range(100))).held
    assert len(held) == 1 + absence.MAX_IGNORED
    late = expire(ABSENT, played(ABSENT, "a1@1 " + "a2@6 " * 40 + "b1@5").held, 30)
    assert [names(each) for each in late.firings] == ["a2"]
    assert expire(ABSENT, held, 12).held == ()


def test_in_a_backlog_a_wait_that_is_over_is_neither_reset_nor_replaced() -> None:
    every_minute = rule("a && !b", 10_000, Reset("* * * * *"))
    late = expire(every_minute, played(every_minute, "a1@45000 a2@70000").held, 100_000)
    assert [names(each) for each in late.firings] == ["a1", "a2"]
    waits = expire(every_minute, played(every_minute, "a1@55000 a2@70000").held, 100_000)
    assert [names(each) for each in waits.firings] == ["a2"]
    again = expire(ABSENT, played(ABSENT, "a1@1 a1@30").held, 100)
    assert [names(each) for each in again.firings] == ["a1", "a1"]


def test_many_unwanted_events_are_held_as_few() -> None:
    held = played(ABSENT, " ".join(f"b{n}@{n}" for n in range(100))).held
    assert len(held) <= 2 * 100 / 10 + 1


def test_a_condition_with_something_unwanted_wants_a_time() -> None:
    with pytest.raises(ValueError, match="wants a time within which it is decided"):
        rule("a && !b")


# Resets


def ms(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


def held_since(of: Rule, *moments: int) -> tuple[Held, list[str]]:
    """Events a, b, a, b, ... at these times."""
    held: Held = ()
    firings: list[str] = []
    for number, at in enumerate(moments):
        after = step(of, held, event("ab"[number % 2], f"e{number}", at, number))
        held = after.held
        firings += [names(each) for each in after.firings]
    return held, firings


@pytest.mark.conformance("BUS-4", "BUS-S5")
def test_an_event_from_before_the_last_reset_doesnt_count() -> None:
    """BUS-S5, and the default time zone is UTC."""
    of = rule("a && b", None, Reset("59 23 * * *"))
    before, at, after = ms(2026, 11, 1, 23, 58), ms(2026, 11, 1, 23, 59), ms(2026, 11, 2, 0, 10)
    assert held_since(of, before, after)[1] == []
    assert held_since(of, at, after)[1] == []
    assert held_since(of, at + 1, after)[1] == ["e0 e1"]
    assert held_since(of, before, before + 1)[1] == ["e0 e1"]


@pytest.mark.conformance("BUS-S5")
def test_what_was_reset_is_held_no_longer() -> None:
    """Else each order that is never paid would be held for ever."""
    of = rule("a && b", None, Reset("59 23 * * *"))
    before, at, after = ms(2026, 11, 1, 23, 58), ms(2026, 11, 1, 23, 59), ms(2026, 11, 2, 0, 10)
    held = (event("a", "a1", before, 0), event("a", "a2", at, 1), event("a", "a3", after, 2))
    assert expiry_time(of, held) == at
    assert expire(of, held, at - 1) == RuleStep(held)
    assert expire(of, held, at) == RuleStep(held[2:])
    assert expiry_time(of, held[1:]) == at
    assert expiry_time(of, held[2:]) == ms(2026, 11, 2, 23, 59)
    windowed = rule("a && b", 1000, Reset("59 23 * * *"))
    assert expiry_time(windowed, held) == before + 1001
    assert expiry_time(windowed, held[2:]) == after + 1001


@pytest.mark.conformance("BUS-S5")
def test_an_event_that_comes_late_is_dropped_when_a_reset_was_passed() -> None:
    """BUS-S5: not newer than the last reset."""
    of = rule("a && b", None, Reset("59 23 * * *"))
    held, firings = held_since(of, ms(2026, 11, 2, 0, 10), ms(2026, 11, 1, 23, 58))
    assert firings == []
    assert [each.identity for each in held] == ["e0"]


@pytest.mark.conformance("BUS-S5")
def test_a_reset_is_at_its_time_zones_hour_summer_and_winter() -> None:
    """BUS-S5: the example of its documentation."""
    reset = Reset("59 23 * * *", "America/Los_Angeles")
    assert reset.last(ms(2026, 7, 2, 12)) == ms(2026, 7, 2, 6, 59)
    assert reset.last(ms(2026, 12, 2, 12)) == ms(2026, 12, 2, 7, 59)
    assert reset.last(ms(2026, 12, 2, 7, 59)) == ms(2026, 12, 2, 7, 59)
    assert reset.last(ms(2026, 12, 2, 7, 59) - 1) == ms(2026, 12, 1, 7, 59)


@pytest.mark.conformance("BUS-S5")
@pytest.mark.parametrize(
    ("cron", "zone", "resets"),
    [
        pytest.param(
            "30 1 * * *",
            "America/New_York",
            [ms(2024, 11, 2, 5, 30), ms(2024, 11, 3, 5, 30), ms(2024, 11, 4, 6, 30)],
            id="an hour twice",
        ),
        pytest.param(
            "30 2 * * *",
            "Europe/Berlin",
            [ms(2024, 3, 30, 1, 30), ms(2024, 3, 31, 1), ms(2024, 4, 1, 0, 30)],
            id="an hour left out",
        ),
        pytest.param(
            "45 1 * * *",
            "Australia/Lord_Howe",
            [ms(2024, 4, 5, 14, 45), ms(2024, 4, 6, 14, 45), ms(2024, 4, 7, 15, 15)],
            id="half an hour twice",
        ),
    ],
)
def test_every_moment_of_a_day_with_a_clock_change_has_the_same_resets(
    cron: str, zone: str, resets: list[int]
) -> None:
    """Also the moments of the hour that the clock repeats."""
    last_before, last, following = resets
    for moment in range(last_before, following, 5 * 60_000):
        reset, passed = Reset(cron, zone), moment >= last
        assert reset.last(moment) == (last if passed else last_before), moment
        assert reset.next(moment + 1) == (following if passed else last), moment


def test_the_last_of_several_resets_counts() -> None:
    of = rule("a && b", None, Reset("0 0 * * *"), Reset("0 12 * * *"))
    assert held_since(of, ms(2026, 11, 1, 11), ms(2026, 11, 1, 13))[1] == []
    assert held_since(of, ms(2026, 11, 1, 13), ms(2026, 11, 1, 14))[1] == ["e0 e1"]


def test_an_event_of_the_very_moment_of_a_reset_is_not_newer_than_it() -> None:
    of = rule("a && b", 10, Reset("0 0 * * *"))
    assert held_since(of, ms(2026, 11, 1, 0))[0] == ()


@pytest.mark.conformance("BUS-S5")
@pytest.mark.parametrize(
    ("cron", "same"),
    [
        pytest.param(cron, same, id=cron)
        for cron, same in {
            "0 0 ? * *": "0 0 * * *",
            "0 0 * * ?": "0 0 * * *",
            "0 0 1 * ?": "0 0 1 * *",
            "0 0 ? * 1": "0 0 * * 1",
            "0 0 ? * MON-FRI": "0 0 * * MON-FRI",
            "? ? ? ? ?": "* * * * *",
            "?/20 * * * *": "*/20 * * * *",
            "0 0 ?,? * *": "0 0 * * *",
            "0\t0  ? * *": "0 0 * * *",
        }.items()
    ],
)
def test_a_question_mark_is_a_star_as_to_argos_parser(cron: str, same: str) -> None:
    """BUS-S5: robfig/cron takes either in every field."""
    at = ms(2026, 11, 10, 7)
    assert Reset(cron).last(at) == Reset(same).last(at)
    assert Reset(cron).next(at) == Reset(same).next(at) is not None


@pytest.mark.parametrize(
    ("cron", "timezone", "field", "problem"),
    [
        ("61 * * * *", "UTC", "cron", "invalid cron expression '61 * * * *': bad minute"),
        ("* * * *", "UTC", "cron", "want five fields, as 59 23 * * *"),
        ("0 59 23 * * *", "UTC", "cron", "want five fields"),
        ("59 23 * * *", "Mars/Olympus", "timezone", "unknown time zone 'Mars/Olympus'"),
        ("59 23 * * *", "../etc/passwd", "timezone", "unknown time zone"),
        ("59 23 * * *", "", "timezone", "unknown time zone"),
        ("0 0 ?? * *", "UTC", "cron", "invalid cron expression '0 0 ?? * *': bad day-of-month"),
        ("0 0 1? * *", "UTC", "cron", "bad day-of-month"),
        ("0 0 ?-5 * *", "UTC", "cron", "bad day-of-month"),
    ],
)
def test_what_is_no_reset_is_refused_by_its_field(
    cron: str, timezone: str, field: str, problem: str
) -> None:
    with pytest.raises(InvalidDocument) as refused:
        Reset(cron, timezone)
    assert refused.value.path == field
    assert problem in str(refused.value)
