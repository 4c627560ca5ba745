"""The page of a report shows what is new first, and how fast each failure grows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.ui import Select
from support.browser import every, one, script, texts
from support.gate import only_chaos
from support.report_browser import Open, column, names
from support.reports import MADE, sample_group, sample_groups, sample_report

from knafka_jobs.report.report_document import Group, GroupAge, Report

PAGE = 50
COUNTS = pytest.mark.parametrize("count", [2, 300, pytest.param(5000, marks=only_chaos)])


def aged(group: Group, age: GroupAge) -> Group:
    """The group as it would be at that age."""
    hours = {GroupAge.LAST_HOUR: 0.5, GroupAge.LAST_DAY: 5, GroupAge.OLDER: 40}[age]
    return group.model_copy(update={"age": age, "first_seen": MADE - timedelta(hours=hours)})


def report_of(count: int) -> Report:
    """Every seventh group is a day old, and the last one an hour."""
    groups = sample_groups(count)
    ages = [GroupAge.OLDER if n % 7 else GroupAge.LAST_DAY for n in range(count)]
    ages[-1] = GroupAge.LAST_HOUR
    return sample_report(*map(aged, groups, ages))


def order(chromium: Chrome) -> str:
    return Select(one(chromium, "[name=order]")).first_selected_option.text


def shown_ids(chromium: Chrome) -> list[str]:
    return [str(each.get_attribute("id")) for each in every(chromium, ".group")]


@COUNTS
def test_what_is_new_comes_first_in_the_reports_own_order(open_page: Open, count: int) -> None:
    report = report_of(count)
    chromium = open_page(report)
    assert order(chromium) == "new first, then most unresolved"
    assert shown_ids(chromium) == [each.id for each in report.groups[:PAGE]]
    badges = texts(chromium, ".badge.age")
    assert badges[:2] == ["< 1 h old", "< 24 h old"][:count]
    assert len(badges) == sum(each.age is not GroupAge.OLDER for each in report.groups[:PAGE])
    assert script(chromium, "document.documentElement.scrollWidth") == 1280


@COUNTS
def test_the_rate_and_the_last_hour_stand_beside_the_trend(open_page: Open, count: int) -> None:
    report = report_of(count)
    fast = report.groups[-1].model_copy(update={"last_hour": 12_345, "rate": 1_234.5})
    slow = report.groups[0].model_copy(update={"last_hour": 0, "rate": 0.04})
    chromium = open_page(sample_report(slow, *report.groups[1:-1], fast))
    heads = texts(chromium, "#groups > thead th")
    assert heads[5:8] == ["Trend", "Per hour", "Last hour"]
    Select(one(chromium, "[name=order]")).select_by_value("hour")
    assert (column(chromium, 7)[0], column(chromium, 8)[0]) == ("1.2K", "12,345")
    one(chromium, ".opener").click()
    assert "1.2K failures an hour within the last day, 12,345 in the last hour" in (
        one(chromium, ".figures").text
    )
    Select(one(chromium, "[name=order]")).select_by_value("new")
    assert column(chromium, 7)[0] == "0.04"


def test_the_order_is_chosen_and_a_column_replaces_it(open_page: Open) -> None:
    groups = sample_groups(40)
    chromium = open_page(sample_report(*groups))
    Select(one(chromium, "[name=order]")).select_by_visible_text("most unresolved")
    unresolved = [int(each.replace(",", "")) for each in column(chromium, 4)]
    assert unresolved == sorted(unresolved, reverse=True)
    assert one(chromium, "[aria-sort]").text.startswith("Unresolved")
    one(chromium, "[data-sort=trigger]").click()
    assert order(chromium) == "by column"
    assert names(chromium) == sorted(names(chromium))
    one(chromium, "[data-sort=last]").click()
    assert order(chromium) == "failed last"
    one(chromium, "[data-sort=last]").click()
    assert order(chromium) == "by column", "the other way round"


def test_an_acknowledged_failure_is_last_however_new_it_is(open_page: Open) -> None:
    old = aged(sample_group(0), GroupAge.OLDER)
    new = aged(sample_group(1), GroupAge.LAST_HOUR)
    said = {"acknowledged": {"by": "ann", "at": MADE}}
    known = Group.model_validate({**new.model_dump(), **said})
    chromium = open_page(sample_report(old, known))
    assert shown_ids(chromium) == [old.id, known.id]
