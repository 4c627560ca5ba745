"""A dry run shows what a replay would edit, and what it would have to leave out; by delta-rs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tables_without_spark import failure, record, write_failures, write_records
from typer.testing import CliRunner

from knafka_cli.command_line import app


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Nine events, of which two have no JSON and another no data."""
    rows = [failure(f"e{number}", offset=number) for number in range(9)]
    records = [record(row, b'{"total": "1"}', ce_knativeerrorcode="503") for row in rows]
    records[2] = record(rows[2], b"no json")
    records[3] = record(rows[3], None)
    records[4] = record(rows[4], b"nor here")
    write_failures(tmp_path, *rows)
    write_records(tmp_path, *records)
    return tmp_path


def replay(tables: Path, *words: str) -> tuple[int, list[str]]:
    """Exit code and lines of a dry run on these tables."""
    command = ["dead-letters", "replay", "--dry-run", f"--tables={tables}", *words]
    result = CliRunner().invoke(app, command)
    return result.exit_code, result.output.splitlines()


def test_a_dry_run_shows_events_before_and_after_and_counts_what_cannot_be_edited(
    tables: Path,
) -> None:
    code, lines = replay(
        tables, "--set-data=/total=1", "--set-attribute=type=order.v2", "--remove-attribute=subject"
    )
    assert code == 0, lines
    shown = lines.index("order e0 from /shop")
    assert sorted(lines[shown + 1 : shown + 6]) == [
        '  + data: {"total": 1}',
        "  + knafkaedited: type,data",
        "  + type: order.v2",
        '  - data: {"total": "1"}',
        "  - type: order",
    ]
    assert sum(line.startswith("order e") for line in lines) == 5, "of nine"
    assert "3 can't be edited and would be left out: the data are not JSON" in lines
    assert "9 would be sent: 9 to shop/main/mail" in lines


def test_a_dry_run_of_one_event_edits_that_one_alone(tables: Path) -> None:
    code, lines = replay(tables, "--id=e3", "--set-data=/total=1")
    assert (code, lines[0]) == (0, "1 can't be edited and would be left out: the event has no data")


def test_a_dry_run_without_edits_reads_no_data_and_shows_none(tables: Path) -> None:
    for file in (tables / "records").glob("*.parquet"):
        file.unlink()
    assert replay(tables, "--id=e0")[0] == 0


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--set-attribute=id=2", "the attribute id can't be edited"),
        ("--set-attribute=type", "is not NAME=VALUE"),
        ("--remove-attribute=type", "is required"),
        ("--set-data=total=1", "no JSON Pointer"),
    ],
)
def test_an_edit_that_nobody_can_mean_is_refused(tables: Path, option: str, problem: str) -> None:
    code, lines = replay(tables, option)
    assert (code, problem in lines[0]) == (2, True)
