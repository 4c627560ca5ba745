"""Acknowledgements on real tables, by delta-rs alone: kept, shown, and none of them lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.tables_without_spark import (
    NOW,
    failure,
    record,
    write_failures,
    write_records,
    write_sent,
)
from typer.testing import CliRunner

from knafka_cli.command_line import app
from knafka_jobs.acknowledgements import AcknowledgementAction
from knafka_jobs.failure_groups import MAX_SUMMARIES, OTHER_SUMMARIES, group_id
from knafka_jobs.failure_selection import FailureCondition
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.lookup.acknowledge import append_acknowledgements, read_acknowledgements
from knafka_jobs.lookup.groups import find_groups, list_groups, members_predicate
from knafka_jobs.schema import GROUP, SENT

KEY = ("shop", "main", "mail", "http://mail/", "status", 503)
NO_MONEY, NO_PAPER = (group_id(*KEY, summary) for summary in ("no money", "no paper"))
ACKNOWLEDGE = AcknowledgementAction.ACKNOWLEDGE


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Two groups of one Trigger, and one of another."""
    earlier, later = NOW - timedelta(days=1), NOW + timedelta(days=1)
    rows = [
        failure("one"),
        failure("two", offset=1, first_failed=earlier),
        failure("gone", offset=2, resolved=NOW),
        failure("late", offset=3, summary="no paper", first_failed=later, last_failed=later),
        failure("bill", offset=4, trigger="bill", code=None, reason="timeout", summary=None),
    ]
    write_failures(tmp_path, *rows)
    write_records(tmp_path, *map(record, rows))
    return tmp_path


def run(tables: Path, *words: str) -> tuple[int, list[str]]:
    """Exit code and lines of a command on these tables."""
    result = CliRunner().invoke(app, ["dead-letters", *words, f"--tables={tables}"])
    return result.exit_code, result.output.splitlines()


def test_groups_are_those_of_a_report_the_newest_first(tables: Path) -> None:
    found = list_groups(TableFiles(str(tables)), (), NOW)
    assert [(each.events, each.unresolved) for each in found] == [(1, 1), (1, 1), (3, 2)]
    assert found[0].id == NO_PAPER
    assert found[2].id == NO_MONEY
    assert found[1].id == group_id("shop", "main", "bill", "http://mail/", "timeout", None, "")


def test_the_last_hour_counts_each_failure_of_an_event(tmp_path: Path) -> None:
    """As a report does."""
    ago = [NOW - timedelta(minutes=minutes) for minutes in (0, 59, 61)]
    twice = failure("twice", history=[(at, "status", 503, 1) for at in ago])
    old = failure("old", offset=1, last_failed=ago[2])
    write_failures(tmp_path, twice, old, failure("bill", offset=2, trigger="bill", resolved=NOW))
    found = list_groups(TableFiles(str(tmp_path)), (), NOW)
    assert {each.trigger[2]: each.last_hour for each in found} == {"mail": 2, "bill": 1}
    (mail,) = list_groups(
        TableFiles(str(tmp_path)), [FailureCondition("trigger", "=", "mail")], NOW
    )
    assert mail.last_hour == 2


def test_events_that_a_replay_has_sent_do_not_wait(tables: Path) -> None:
    write_sent(tables, {**dict.fromkeys(SENT), "failure_id": "one", "sent": NOW})
    (group,) = find_groups(TableFiles(str(tables)), [NO_MONEY], NOW).values()
    assert (group.unresolved, group.waiting) == (2, 1)


def test_the_rarest_of_very_many_errors_are_one_group(tmp_path: Path) -> None:
    frequent = [
        failure(f"{n}-{m}", summary=f"error {n}") for n in range(MAX_SUMMARIES) for m in (0, 1)
    ]
    rare = [failure(f"rare-{n}", summary=f"rare {n}") for n in range(7)]
    write_failures(tmp_path, *frequent, *rare)
    files = TableFiles(str(tmp_path))
    others = group_id(*KEY, OTHER_SUMMARIES)
    found = {each.id: each for each in list_groups(files, (), NOW)}
    assert len(found) == MAX_SUMMARIES + 1
    assert found[others].events == 7
    fits = members_predicate(files, found[others], NOW)
    rows = files.query(f"SELECT id FROM failures WHERE {fits}", "failures")
    assert {row["id"] for row in rows} == {each["id"] for each in rare}


def test_an_acknowledged_group_comes_last_with_who_until_when_and_why(tables: Path) -> None:
    code, lines = run(tables, "list", "--groups", "shop/mail")
    assert (code, [line.split()[0] for line in lines[1:]]) == (0, [NO_PAPER, NO_MONEY])

    code, lines = run(
        tables, "acknowledge", NO_PAPER, "--note=out of paper", "--by=ann", "--until=3d"
    )
    assert code == 0, lines
    _, lines = run(tables, "list", "--groups", "shop/mail")
    assert [line.split()[0] for line in lines[1:]] == [NO_MONEY, NO_PAPER]
    assert "by ann until " in lines[2]
    assert lines[2].endswith(": out of paper")
    _, lines = run(tables, "list")
    assert lines[0].split()[-1] == "ACKNOWLEDGED"
    assert {line.split()[0]: line.split()[-1] for line in lines[1:]} == {
        "shop/mail": "1",
        "shop/bill": "0",
    }

    assert run(tables, "unacknowledge", NO_PAPER, "--by=bob")[0] == 0
    _, lines = run(tables, "list", "--groups", "shop/mail")
    assert [line.split()[0] for line in lines[1:]] == [NO_PAPER, NO_MONEY]
    assert "ACKNOWLEDGED" not in run(tables, "list")[1][0]


def test_what_nobody_knows_or_is_over_is_refused_and_nothing_is_kept(tables: Path) -> None:
    code, lines = run(tables, "acknowledge", NO_MONEY, "0123456789ab")
    assert code == 2
    assert "no group 0123456789ab: " in lines[0]
    for option in (
        "--until=2026-01-31",
        "--until=soon",
        f"--note={'x' * 1001}",
        f"--by={'x' * 201}",
        "--note=caf\udce9",  # Latin-1, as Python decodes arguments
        "--by=Ren\udce9",
    ):
        assert run(tables, "acknowledge", NO_MONEY, option)[0] == 2, option
    assert not (tables / "acknowledgements").exists()


def test_a_group_whose_failures_are_gone_can_be_unacknowledged(tables: Path) -> None:
    gone: dict[str, dict[str, Any]] = {"0123456789ab": {}}
    append_acknowledgements(TableFiles(str(tables)), gone, ACKNOWLEDGE, "ann", NOW)
    assert run(tables, "unacknowledge", "0123456789ab")[0] == 0
    assert read_acknowledgements(TableFiles(str(tables)), NOW) == {}


def test_of_many_who_write_at_once_nothing_is_lost(tables: Path) -> None:
    """Also while nobody has made the table yet."""
    group = {
        name: value for name, value in zip(GROUP, (*KEY, ""), strict=True) if name != "summary"
    }

    def write(number: int) -> None:
        groups = {f"{number:012x}": group}
        append_acknowledgements(TableFiles(str(tables)), groups, ACKNOWLEDGE, f"p{number}", NOW)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    found = read_acknowledgements(TableFiles(str(tables)), NOW)
    assert {each.by for each in found.values()} == {f"p{number}" for number in range(40)}
    rows = TableFiles(str(tables)).query("SELECT * FROM acknowledgements", "acknowledgements")
    assert len(rows) == 40


def test_a_clock_that_was_ahead_does_not_make_later_words_unheard(tables: Path) -> None:
    files, ahead = str(tables), NOW + timedelta(days=400)
    group: dict[str, dict[str, Any]] = {NO_MONEY: {}}
    append_acknowledgements(TableFiles(files), group, ACKNOWLEDGE, "ann", ahead)
    append_acknowledgements(
        TableFiles(files), group, AcknowledgementAction.UNACKNOWLEDGE, "bob", NOW
    )
    assert read_acknowledgements(TableFiles(files), NOW) == {}
