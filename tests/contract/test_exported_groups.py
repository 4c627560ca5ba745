"""All events of a group, a page at a time and in a file, by delta-rs alone."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import QueryBuilder
from hypothesis import given
from hypothesis import strategies as st
from support.tables_without_spark import NOW, failure, record, write_failures, write_records
from typer.testing import CliRunner

from knafka.core.events import json_format
from knafka_cli.command_line import app
from knafka_jobs.failure_groups import group_id
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.job_errors import JobError
from knafka_jobs.lookup.export import ExportFormat, event_line, export_failures

GROUP = group_id("shop", "main", "mail", "http://mail/", "status", 503, "no money")
PRETTY = b'{\r\n "total": 1e400,\n "text": "a\\nb"\n}'


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A group of seven, of which two can't be exported as events, and one of another."""
    day = timedelta(days=1)
    rows = [
        failure(f"e{number}", offset=number, last_failed=NOW + number * timedelta(seconds=1))
        for number in range(5)
    ]
    rows[1] |= {"resolved": NOW}
    rows[4] |= {"last_failed": NOW + day, "last_day": (NOW + day).date()}
    stub = failure("stub", offset=5, data_bytes=None)
    invalid = failure("no event", offset=6, id="")
    other = failure("other", offset=7, summary="no paper")
    records = [record(row, b'{"n":1}') for row in rows]
    records[0] = record(rows[0], PRETTY, ce_knafkaextensions="kneretry", ce_kneretry="1")
    records[2] = record(rows[2], b"\x00\xff", **{"content-type": "image/png"})
    records[3] = record(rows[3], None)
    write_failures(tmp_path / "tables", *rows, stub, invalid, other)
    write_records(tmp_path / "tables", *records, record(stub, None, ce_knafkaomitted="data"))
    write_records(tmp_path / "tables", record(invalid), record(other))
    return tmp_path / "tables"


def run(tables: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command on these tables."""
    result = CliRunner().invoke(app, ["dead-letters", *words, f"--tables={tables}"])
    return result.exit_code, result.stdout, result.stderr


def test_the_pages_of_a_group_have_each_event_once_the_newest_on_the_first(tables: Path) -> None:
    seen = []
    for page in range(1, 5):
        code, out, err = run(tables, "events", GROUP, "--limit=2", f"--page={page}", "--json")
        assert (code, err) == (0, f"page {page} of 4 (7 events)\n")
        seen += [json.loads(line)["id"] for line in reversed(out.splitlines())]
    assert seen == ["e4", "e3", "e2", "e1", "e0", "", "stub"]
    assert run(tables, "events", GROUP, "--page=5", "--limit=2")[1] == ""
    unresolved = run(tables, "events", GROUP, "--unresolved", "--json")
    assert "e1" not in [json.loads(line)["id"] for line in unresolved[1].splitlines()]
    assert unresolved[2] == "page 1 of 1 (6 events)\n"


def test_ndjson_has_the_original_events_one_in_each_line(tables: Path, tmp_path: Path) -> None:
    code, out, _ = run(tables, "export", GROUP, "-o", str(tmp_path / "failed.ndjson"))
    assert (code, out.splitlines()[0]) == (0, f"5 events written to {tmp_path}/failed.ndjson")
    assert out.splitlines()[1].startswith("2 left out: ")
    lines = (tmp_path / "failed.ndjson").read_bytes().splitlines()
    events = {event.attributes["id"]: event for event in map(json_format.read, lines)}
    assert events.keys() == {f"e{number}" for number in range(5)}
    assert events["e0"].data == PRETTY.replace(b"\r", b" ").replace(b"\n", b" ")
    assert events["e2"].data == b"\x00\xff"
    assert events["e3"].data is None
    assert set(events["e0"].attributes) == {
        *("specversion", "id", "source", "type", "datacontenttype")
    }, "nothing of the dead letter"


def test_parquet_has_a_row_for_each_failure_with_its_dead_letter(
    tables: Path, tmp_path: Path
) -> None:
    code, out, _ = run(tables, "export", GROUP, "-o", str(tmp_path / "failed.parquet"))
    assert (code, out) == (0, f"7 events written to {tmp_path}/failed.parquet\n")
    session = QueryBuilder()
    session.execute(
        f"CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{tmp_path}/failed.parquet'"
    ).read_all()
    query = "SELECT * FROM t ORDER BY failure_id"
    rows = session.execute(query).read_all().to_struct_array().to_pylist()
    assert [row["failure_id"] for row in rows] == [*(f"e{n}" for n in range(5)), "no event", "stub"]
    assert (rows[2]["data"], rows[2]["code"]) == (b"\x00\xff", 503)
    assert (rows[1]["resolved"], rows[0]["resolved"]) == (NOW, None)
    assert ("ce_kneretry", b"1") in [(each["key"], each["value"]) for each in rows[0]["headers"]]


@pytest.mark.parametrize(
    "name", ["failed [1].parquet", "what?*.parquet", "it's 100%20.parquet", f"{'x' * 240}.parquet"]
)
def test_the_file_may_have_any_name(tables: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a [b]"
    folder.mkdir()
    code, out, _ = run(tables, "export", GROUP, "-o", str(folder / name))
    assert (code, out) == (0, f"7 events written to {folder / name}\n")
    assert [each.name for each in folder.iterdir()] == [name]


def test_a_folder_is_no_file_to_write(tables: Path, tmp_path: Path) -> None:
    for file_format in ExportFormat:
        for folder in (tmp_path, Path("/"), Path()):
            with pytest.raises(JobError, match="can't be written"):
                export_failures(TableFiles(str(tables)), "true", folder, file_format)
    assert [each.name for each in tmp_path.iterdir()] == ["tables"]


def test_unresolved_events_can_be_exported_alone(tables: Path, tmp_path: Path) -> None:
    _, out, _ = run(tables, "export", GROUP, "-o", str(tmp_path / "a.parquet"), "--unresolved")
    assert out.startswith("6 events")


def test_what_cannot_be_written_or_is_no_group_is_said_and_the_old_file_stays(
    tables: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old.ndjson"
    old.write_text("old")
    code, _, err = run(tables, "export", "0123456789ab", "-o", str(old))
    assert (code, "no group 0123456789ab" in err) == (2, True)
    assert run(tables, "export", GROUP, "-o", str(old), "--format=csv")[0] == 2
    with pytest.raises(JobError, match="can't be written: No such file"):
        export_failures(TableFiles(str(tables)), "true", tmp_path / "no/f", ExportFormat.NDJSON)
    for leftover in (tables / "records").glob("**/*.parquet"):
        leftover.unlink()
    for file_format in ExportFormat:
        with pytest.raises(JobError, match="can't be read"):
            export_failures(TableFiles(str(tables)), "true", old, file_format)
    assert old.read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old.ndjson", "tables"]


@given(
    st.binary() | st.none(),
    st.text(min_size=1),
    st.sampled_from(("application/json", "text/plain")),
)
def test_whatever_an_event_holds_is_one_line_that_reads_as_that_event(
    data: bytes | None, subject: str, content_type: str
) -> None:
    headers = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t"}
    headers |= {"ce_subject": subject, "content-type": content_type}
    raw = [{"key": name, "value": text.encode(errors="replace")} for name, text in headers.items()]
    line = event_line({"reason": "status", "headers": raw, "data": data})
    if line is None:
        return  # CloudEvents forbid some characters
    assert line.endswith(b"\n")
    assert not {*b"\r\n"} & {*line[:-1]}
    read = json_format.read(line)
    assert read.attributes["subject"] == subject.encode(errors="replace").decode()
    if content_type == "text/plain":
        assert read.data == data
