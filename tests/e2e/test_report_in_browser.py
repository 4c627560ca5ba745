"""The report's page as a person meets it: in a real Chromium without a head.

`KNAFKA_DOCS_IMAGES=1` renews the pictures in docs/images.
"""

from __future__ import annotations

import itertools
import re
from datetime import timedelta
from pathlib import Path

import pytest
from selenium.common import TimeoutException
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.support.ui import Select
from support.browser import every, one, picture, script, texts, wait
from support.report_browser import Open, column, names
from support.reports import (
    MADE,
    sample_example,
    sample_group,
    sample_groups,
    sample_replay,
    sample_report,
)

from knafka.core.delivery import Reason
from knafka_jobs.report.report_document import (
    Acknowledged,
    Change,
    ChangeKind,
    Past,
    Report,
    bucket_seconds,
)
from knafka_jobs.report.report_page import render_file

HOSTILE = "</script><script>pwned=1</script><img src=x onerror='pwned=1'><svg onload=pwned=1>\"'"


def search(chromium: Chrome, text: str, found: str) -> None:
    field = one(chromium, "[name=search]")
    field.clear()
    field.send_keys(text)
    wait(chromium, lambda: one(chromium, "#found").text.startswith(found))


def timeline_buckets(report: Report) -> float:
    return (report.until - report.since).total_seconds() / report.bucket_seconds


def test_a_report_without_failures_says_so(open_page: Open) -> None:
    chromium = open_page(sample_report())
    assert one(chromium, "h2").text == "Nothing has failed"


def test_a_single_failure_is_shown_with_its_charts(open_page: Open) -> None:
    chromium = open_page(sample_report(sample_group()))
    assert names(chromium) == ["orders-to-warehouse"]
    assert one(chromium, "#found").text.startswith("1 failure with")
    assert every(chromium, "#timeline canvas")
    assert len(every(chromium, ".heat")) == 1
    assert not one(chromium, "#pages").is_displayed()


def test_the_list_sorts_by_every_column(open_page: Open) -> None:
    chromium = open_page(sample_report(*sample_groups(40)))
    one(chromium, "[data-sort=unresolved]").click()
    unresolved = [int(each.replace(",", "")) for each in column(chromium, 4)]
    assert unresolved == sorted(unresolved, reverse=True)
    assert one(chromium, "[aria-sort]").text.startswith("Unresolved")

    one(chromium, "[data-sort=trigger]").click()
    assert names(chromium) == sorted(names(chromium))
    assert one(chromium, "[aria-sort]").get_attribute("aria-sort") == "ascending"
    one(chromium, "[data-sort=trigger]").send_keys(Keys.SPACE)
    assert names(chromium) == sorted(names(chromium), reverse=True)

    one(chromium, "[data-sort=retries]").click()
    retries = [int(each.replace(",", "")) for each in column(chromium, 9)]
    assert retries == sorted(retries, reverse=True)
    for each in ("reason", "change", "unresolved", "failures", "rate", "hour", "first", "last"):
        one(chromium, f"[data-sort={each}]").click()
        assert len(names(chromium)) == 40


def test_the_search_finds_what_only_an_example_says(open_page: Open) -> None:
    needle = sample_example(id="the-needle", error="disk quota exceeded")
    groups = [*sample_groups(30), sample_group(30, examples=(needle,))]
    chromium = open_page(sample_report(*groups))
    search(chromium, "quota DISK", "1 failure of 31")
    assert names(chromium) == [groups[-1].trigger]
    search(chromium, "no such thing", "No failure matches")
    assert names(chromium) == []
    one(chromium, "#filters .plain").click()
    assert one(chromium, "#found").text.startswith("31 failures")


def test_filters_narrow_the_list_and_the_timeline(open_page: Open) -> None:
    groups = sample_groups(40)
    chromium = open_page(sample_report(*groups))
    Select(one(chromium, "[name=reason]")).select_by_value(Reason.TIMEOUT.value)
    wanted = [group for group in groups if group.reason is Reason.TIMEOUT]
    assert sorted(names(chromium)) == sorted(group.trigger for group in wanted)
    assert [each.rsplit(" ", 1)[0] for each in texts(chromium, ".legend > *")] == ["timeout"]

    one(chromium, "[name=unresolved]").click()
    assert len(names(chromium)) == sum(group.unresolved > 0 for group in wanted)
    one(chromium, "#filters .plain").click()

    one(chromium, ".chip.growing").click()
    growing = [group for group in groups if group.change.kind is ChangeKind.GROWING]
    assert sorted(names(chromium)) == sorted(group.trigger for group in growing)
    assert one(chromium, ".chip.growing").get_attribute("aria-pressed") == "true"


def test_a_cell_of_the_heat_map_leads_to_its_failures(open_page: Open) -> None:
    chromium = open_page(sample_report(*sample_groups(40)))
    cell = every(chromium, ".heat")[3]
    told = re.fullmatch(r"(\S+), (.+): ([\d,]+) events?\. Show them", cell.accessible_name)
    assert told is not None
    cell.click()
    assert set(names(chromium)) == {told[1]}
    assert all(text.startswith(told[2]) for text in column(chromium, 2))


def test_a_row_opens_to_its_examples_and_its_replay_command(open_page: Open) -> None:
    group = sample_group(1)
    chromium = open_page(sample_report(group, sample_group(2)))
    opener = one(chromium, f'[id="{group.id}"] .opener')
    assert opener.get_attribute("aria-expanded") == "false"
    opener.send_keys(Keys.ENTER)
    opener = one(chromium, f'[id="{group.id}"] .opener')
    assert opener.get_attribute("aria-expanded") == "true"
    assert chromium.switch_to.active_element == opener, "the keyboard stays where it was"
    assert one(chromium, ".command code").text == group.replay_command
    assert texts(chromium, ".examples .id") == [example.id for example in group.examples]
    assert str(group.examples[0].data_preview) in one(chromium, ".examples").text
    opener.send_keys(Keys.ENTER)
    assert every(chromium, ".details") == []


def test_acknowledged_failures_come_last_and_can_be_hidden(open_page: Open) -> None:
    said = Acknowledged(by="ann", at=MADE, until=MADE + timedelta(days=3), note="on <b>Monday</b>")
    groups = sample_groups(40)
    known = groups[0].model_copy(update={"acknowledged": said})
    chromium = open_page(sample_report(known, *groups[1:]))
    for column_name in ("trigger", "unresolved", "last"):
        one(chromium, f"[data-sort={column_name}]").click()
        assert names(chromium)[-1] == known.trigger, column_name
    assert texts(chromium, ".badge.acknowledged") == ["acknowledged"]

    every(chromium, ".group .opener")[-1].click()
    facts = one(chromium, ".figures").text
    assert "by ann 2026-03-04 09:30, until 2026-03-07 09:30: on <b>Monday</b>" in facts
    search(chromium, "ann monday", "1 failure of 40")
    one(chromium, "#filters .plain").click()
    one(chromium, "[name=unacknowledged]").click()
    assert len(names(chromium)) == 39
    assert not every(chromium, f'[id="{known.id}"]')


def test_a_resolved_failure_offers_no_replay(open_page: Open) -> None:
    group = sample_group(unresolved=0, change=Change(kind=ChangeKind.RESOLVED, resolved=4))
    chromium = open_page(sample_report(group), f"#{group.id}")
    assert every(chromium, ".command") == []
    assert "nothing to replay" in one(chromium, ".resolved-note").text
    assert "4 resolved" in one(chromium, ".figures").text


def test_the_copy_button_copies_the_whole_command(open_page: Open) -> None:
    group = sample_group(1)
    chromium = open_page(sample_report(group), f"#{group.id}")
    one(chromium, ".copy").click()
    wait(chromium, lambda: one(chromium, ".copy").text == "Copied")
    field = one(chromium, "[name=search]")
    field.send_keys(Keys.CONTROL, "v")
    wait(chromium, lambda: field.get_attribute("value") == group.replay_command)


def test_a_link_opens_its_failure_on_whatever_page_it_is(open_page: Open) -> None:
    report = sample_report(*sample_groups(300))
    last, other = report.groups[-1], report.groups[120]
    chromium = open_page(report, f"#{last.id}")
    assert one(chromium, f'[id="{last.id}"] .opener').get_attribute("aria-expanded") == "true"
    assert "Page 6 of 6" in one(chromium, "#pages").text
    link = one(chromium, ".details a")
    assert str(link.get_attribute("href")).endswith(f"#{last.id}")

    Select(one(chromium, "[name=reason]")).select_by_value(last.reason.value)
    script(chromium, "location.hash = arguments[0]", other.id)
    wait(chromium, lambda: every(chromium, f'[id="details-{other.id}"] .details'))


@pytest.mark.integration
def test_of_5000_failures_only_a_page_is_drawn(open_page: Open) -> None:
    report = sample_report(*sample_groups(5000))
    chromium = open_page(report)
    assert one(chromium, "#found").text.startswith("5,000 failures")
    assert len(names(chromium)) == 50, "a page of them"
    one(chromium, "#pages button:last-child").click()
    assert "Page 2 of 100" in one(chromium, "#pages").text
    assert one(chromium, "#found").text.endswith("51 to 100 on this page")
    search(
        chromium, f"{report.groups[3000].trigger} {report.groups[3000].id}", "1 failure of 5,000"
    )
    one(chromium, "#filters .plain").click()
    one(chromium, "[data-sort=trigger]").click()
    wait(chromium, lambda: one(chromium, "#found").text.startswith("5,000 failures"))
    assert len(names(chromium)) == 50, "only a page is drawn"


def test_the_timeline_is_told_by_a_table_and_by_a_tip_too(open_page: Open) -> None:
    group = sample_group(3)
    report = sample_report(group)
    chromium = open_page(report)
    one(chromium, "#timeline-table summary").click()
    wait(chromium, lambda: every(chromium, "#timeline-table tbody tr"))
    told = [int(each) for each in texts(chromium, "#timeline-table tbody td")]
    assert told == [bucket.failures for bucket in group.buckets]
    assert str(sum(told)) in str(one(chromium, ".uplot").get_attribute("aria-label"))

    first = group.buckets[0]
    start = first.start.strftime("%Y-%m-%d %H:%M")
    bars = one(chromium, "#timeline .u-over")
    share = (first.start - report.since).total_seconds() / report.bucket_seconds + 0.5
    left = bars.rect["width"] * (share / timeline_buckets(report) - 0.5)
    ActionChains(chromium).move_to_element_with_offset(bars, round(left), 0).perform()
    wait(chromium, lambda: one(chromium, "#tip").is_displayed())
    assert one(chromium, "#tip").text.startswith(start)
    assert one(chromium, "#tip b").text == str(first.failures)


DRAWN = """
drawn = [];
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
  drawn.push(text);
  return fillText.call(this, text, ...where);
};
"""


def test_no_two_ticks_of_the_time_axis_have_the_same_label(open_page: Open) -> None:
    command = "Page.addScriptToEvaluateOnNewDocument"
    chromium = open_page(sample_report())
    added = chromium.execute_cdp_cmd(command, {"source": DRAWN})
    try:
        for span in (1, 50, 540, 25_200, 2 * 86_400, 30 * 86_400, 800 * 86_400):
            since = MADE - timedelta(seconds=span)
            about = {"since": since, "bucket_seconds": bucket_seconds(since, MADE)}
            open_page(sample_report(sample_group()).model_copy(update=about))
            wait(chromium, lambda: script(chromium, "drawn.length"))
            drawn = script(chromium, "drawn.filter((each) => /[ :]/.test(each))")
            assert isinstance(drawn, list)
            assert all(tick != other for tick, other in itertools.pairwise(drawn))
            if span < 86_400 or span > 30 * 86_400:  # else hours of several days
                assert len(set(drawn)) == len(drawn) > 1, span
    finally:
        chromium.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_the_head_of_the_list_is_whole_on_a_phone(open_page: Open) -> None:
    chromium = open_page(sample_report(*sample_groups(3)), width=320)
    for each in every(chromium, "[data-sort]"):
        if each.is_displayed():
            assert each.rect["x"] >= 0
            assert each.rect["x"] + each.rect["width"] <= 320, each.text


def test_a_failure_tells_what_the_last_reports_said_of_it(open_page: Open) -> None:
    days = [MADE - timedelta(days=each) for each in (3, 2, 1)]
    past = tuple(Past(made=day, failures=n + 1, unresolved=n) for n, day in enumerate(days))
    group = sample_group(1, history=past, first_reported=days[0], failures=7, unresolved=2)
    chromium = open_page(sample_report(group, sample_group(2)), f"#{group.id}")
    chart = one(chromium, ".past")
    assert chart.accessible_name.startswith("4 reports: 1 failures and 0 unresolved")
    assert chart.accessible_name.endswith("7 and 2 now")
    one(chromium, ".history summary").send_keys(Keys.ENTER)
    told = [each.split()[-2:] for each in texts(chromium, ".history tbody tr")]
    assert told == [["7", "2"], ["3", "2"], ["2", "1"], ["1", "0"]]
    one(chromium, f'[id="{sample_group(2).id}"] .opener').send_keys(Keys.ENTER)
    assert "No report had it before" in one(chromium, f'[id="details-{sample_group(2).id}"]').text


def test_an_example_leads_to_its_trace(chromium: Chrome, tmp_path: Path) -> None:
    traced = sample_example(1, trace="0af7651916cd43dd8448eb211c80319c")
    group = sample_group(1, examples=(traced, sample_example(2)))
    path = tmp_path / "report.html"
    path.write_text(render_file(sample_report(group), "https://traces.test/of/{trace}?full"))
    chromium.get(f"{path.as_uri()}#{group.id}")
    wait(chromium, lambda: every(chromium, ".examples"))
    (link,) = every(chromium, ".examples a")
    assert link.get_attribute("href") == f"https://traces.test/of/{traced.trace}?full"


def test_what_events_carry_is_shown_as_text_and_never_run(open_page: Open) -> None:
    example = sample_example(
        id=HOSTILE, source=HOSTILE, type=HOSTILE, error=HOSTILE, data_preview=HOSTILE,
        data_content_type=HOSTILE, topic=HOSTILE,
    )  # fmt: skip
    group = sample_group(
        1, trigger=HOSTILE, namespace=HOSTILE, broker=HOSTILE, subscriber=f"javascript:{HOSTILE}",
        replay_command=HOSTILE, examples=(example,),
    )  # fmt: skip
    replay = sample_replay().model_copy(update={"by": HOSTILE, "selection": HOSTILE})
    report = sample_report(group, sample_group(2), replays=(replay,))
    chromium = open_page(report.model_copy(update={"namespace": HOSTILE}), f"#{group.id}")
    search(chromium, "<script>pwned", "1 failure")
    (mine,) = [each for each in every(chromium, ".heat") if "pwned" in each.accessible_name]
    mine.click()
    assert script(chromium, "typeof pwned") == "undefined"
    assert every(chromium, "img") == []
    assert every(chromium, "[onload], [onerror], a[href^=javascript]") == []
    assert one(chromium, ".examples .id").text == HOSTILE


def test_characters_that_hide_or_turn_text_are_written_out(open_page: Open) -> None:
    example = sample_example(id="\u202egnp.exe\u200b\x07", error="e\u0301 👩‍👩‍👧 שלום 漢字")
    group = sample_group(1, examples=(example,))
    chromium = open_page(sample_report(group), f"#{group.id}")
    assert one(chromium, ".examples .id").text == "‹U+202E›gnp.exe‹U+200B›‹U+0007›"
    assert one(chromium, ".examples pre").text == example.error


def test_a_browser_that_cannot_read_the_data_says_so(open_page: Open) -> None:
    lacking = {"source": "if (location.protocol == 'file:') delete globalThis.DecompressionStream"}
    chromium = open_page(sample_report())
    command = "Page.addScriptToEvaluateOnNewDocument"
    added = chromium.execute_cdp_cmd(command, lacking)
    try:
        with pytest.raises(TimeoutException):
            open_page(sample_report(sample_group()), within=0.3)
    finally:
        chromium.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    assert "A browser of 2023 or later" in one(chromium, "#trouble").text
    complaints = chromium.get_log("browser")  # type: ignore[no-untyped-call]
    assert "DecompressionStream is not defined" in complaints[0]["message"]


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_window(open_page: Open, width: int) -> None:
    group = sample_group(1, trigger="t" * 63, subscriber="http://" + "s" * 200)
    chromium = open_page(sample_report(group, *sample_groups(30)), f"#{group.id}", width)
    assert script(chromium, "document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(
    ("name", "width", "height", "dark"),
    [("light", 1280, 1060, False), ("dark", 1280, 1060, True), ("phone", 390, 844, True)],
)
def test_the_page_is_made_for_light_dark_and_phones(
    open_page: Open, name: str, width: int, height: int, dark: bool
) -> None:
    groups = sample_groups(24)
    report = sample_report(*groups, replays=(sample_replay(),))
    chromium = open_page(report, width=width, height=height, dark=dark)
    ground = script(chromium, "getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(15, 18, 22)" if dark else "rgb(244, 245, 247)")
    assert picture(chromium, f"report-{name}.png").startswith(b"\x89PNG")
    one(chromium, ".opener").click()
    one(chromium, ".opener").location_once_scrolled_into_view  # noqa: B018
    assert one(chromium, ".details").is_displayed()
    if name == "light":
        picture(chromium, "report-details.png")
