"""The report's documents: its JSON, and the page as text (in a browser: tests/e2e)."""

import argparse
import base64
import gzip
import hashlib
import json
import re
import shlex
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.reports import (
    MADE,
    sample_example,
    sample_group,
    sample_groups,
    sample_replay,
    sample_report,
)

from knafka.core.delivery import Reason
from knafka_jobs import pod
from knafka_jobs.failure_groups import OTHER_SUMMARIES, group_id
from knafka_jobs.report import report_document, report_page
from knafka_jobs.report.report_document import (
    ERROR_CHARACTERS,
    PREVIEW_CHARACTERS,
    ChangeKind,
    Report,
    bucket_seconds,
    error_text,
    preview,
    replay_command,
    with_replay_command,
)
from knafka_jobs.topic_offsets import BrokerName

ROOT = Path(__file__).parents[2]
FILES = Path(report_page.__file__).parent / "page_files"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'{{ 7 * 7 }}"


def packed(text: str) -> dict[str, object]:
    found = re.search(r'id="data">([A-Za-z0-9+/=]*)</script>', text)
    assert found is not None
    document: dict[str, object] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return document


def test_the_documented_schema_is_the_models() -> None:
    """After a change: python -m knafka_jobs.report.report_document > docs/report-schema.json."""
    assert (ROOT / "docs/report-schema.json").read_text() == report_document.schema_text()


def test_every_field_of_the_schema_is_documented_or_plainly_named() -> None:
    schema = report_document.json_schema()
    for name in ("Change", "Example", "Group", "Totals", "ReplayRun"):
        assert schema["$defs"][name]["description"]
    assert "since the Unix epoch" in json.dumps(schema["$defs"]["Bucket"])


def test_a_report_survives_its_json() -> None:
    made = sample_report(*sample_groups(20), replays=(sample_replay(),))
    assert Report.model_validate_json(made.model_dump_json(by_alias=True)) == made


def test_a_report_of_another_version_is_refused() -> None:
    document = sample_report().model_dump(mode="json", by_alias=True) | {"version": 3}
    with pytest.raises(ValidationError):
        Report.model_validate(document)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, None),
        (b"", ""),
        ("grün\n".encode(), "grün\n"),
        (b"\xff\x00\x10", "hex: ff 00 10"),
        (b"grun\xc3", "hex: 67 72 75 6e c3"),
    ],
)
def test_data_are_previewed_as_text_or_else_in_hexadecimal(
    data: bytes | None, shown: str | None
) -> None:
    """CE-K3: no data and empty data are shown apart."""
    assert preview(data) == shown


def test_text_that_is_cut_within_a_character_stays_text() -> None:
    assert preview(b"a" + "ä".encode() * 2000) == "a" + "ä" * (PREVIEW_CHARACTERS - 2) + "…"


@given(st.binary(max_size=4000))
def test_a_preview_is_bounded_whatever_the_data(data: bytes) -> None:
    shown = preview(data * 2)
    assert shown is not None
    assert len(shown) <= PREVIEW_CHARACTERS


@given(st.binary(max_size=768))
def test_error_data_are_decoded_within_their_bound(body: bytes) -> None:
    shown = error_text(base64.b64encode(body).decode())
    assert len(shown or "") <= ERROR_CHARACTERS
    if body.isascii() and body:
        assert shown == body.decode()


def test_error_data_that_are_no_base64_are_shown_as_they_stand() -> None:
    assert error_text("not base64!") == "not base64!"
    assert error_text("äöü") == "äöü"
    assert error_text(None) is None


def test_the_replay_commands_of_a_report_say_where_its_tables_are() -> None:
    report = sample_report(*sample_groups(3))
    begins = "knafka dead-letters replay --data-dir '/a b' --tables s3a://bucket/x"
    told = with_replay_command(report, begins).groups
    for before, after in zip(report.groups, told, strict=True):
        assert shlex.split(after.replay_command)[3:7] == [
            *("--data-dir", "/a b", "--tables", "s3a://bucket/x")
        ]
        assert shlex.split(after.replay_command)[7:] == shlex.split(before.replay_command)[3:]


def test_the_replay_commands_of_an_archives_report_name_the_archive() -> None:
    arguments = argparse.Namespace(broker=BrokerName("shop", "main"), archive="main")
    assert pod.replay_command(arguments) == (
        'knafka dead-letters replay --context "$(kubectl config current-context)" '
        "--namespace shop --archive main"
    )


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_replay_command_is_quoted_for_the_shell(broker: str, trigger: str) -> None:
    words = shlex.split(replay_command("ns", broker, trigger, trigger, "status", 503, broker))
    assert words[3:] == [
        "--broker", f"ns/{broker}", "--trigger", trigger, "--destination", trigger,
        "--reason", "status", "--code", "503", "--summary", broker,
    ]  # fmt: skip
    assert "--summary" not in replay_command(
        "ns", broker, trigger, "", "status", 503, OTHER_SUMMARIES
    )


def test_what_holds_no_event_is_no_triggers_and_has_no_command_that_replays_it() -> None:
    assert replay_command("ns", "main", "", "", "undecodable-record", None, "no event") == ""


def test_groups_that_differ_in_any_part_have_different_ids() -> None:
    statuses = (None, 0, 500, 503)
    ids = {group_id("a-b", "c", "t", "http://s/", "status", status, "") for status in statuses}
    ids |= {group_id("a", "b-c", "t", "http://s/", "status", None, "")}
    assert len(ids) == 5


@given(st.timedeltas(timedelta(seconds=1), timedelta(days=1000)))
def test_a_report_spans_a_readable_number_of_buckets(span: timedelta) -> None:
    length = bucket_seconds(MADE - span, MADE)
    assert span.total_seconds() / length <= 150
    assert length == 1 or span.total_seconds() / length >= 8


def test_the_chart_library_is_the_one_that_was_looked_at() -> None:
    """docs/decisions/0008."""
    folder = FILES / "uplot"
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        pinned, name = line.split()
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == pinned
    assert len(list(folder.iterdir())) == 4


def test_the_page_says_that_nothing_failed_without_a_script() -> None:
    text = report_page.render_file(sample_report())
    assert "Nothing has failed" in text
    assert "<script" not in text
    assert len(text) < 20_000


def test_the_page_loads_nothing() -> None:
    text = report_page.render_file(sample_report(*sample_groups(30), replays=(sample_replay(),)))
    assert re.findall(r"<link|<iframe|<img|\bsrc=|@import|url\(", text) == []
    assert "fetch(" not in text
    assert "default-src &#39;none&#39;" in text


def test_no_other_script_or_style_than_its_own_may_run() -> None:
    text = report_page.render_file(sample_report(sample_group()))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "unsafe" not in policy[1]
    inside = re.findall(r'<(?:style|script|script type="module")>(.*?)</', text, re.DOTALL)
    assert len(inside) == 3
    for each in inside:
        digest = base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy[1]


def test_what_events_carry_cannot_leave_the_data() -> None:
    example = sample_example(id=HOSTILE, error=HOSTILE, data_preview=HOSTILE, source=HOSTILE)
    group = sample_group(trigger=HOSTILE, subscriber=HOSTILE, examples=(example,))
    text = report_page.render_file(sample_report(group))
    assert "alert(1)" not in text
    held = Report.model_validate(packed(text)["report"])
    assert held.groups[0].examples[0].id == HOSTILE


def test_what_people_typed_is_escaped() -> None:
    replay = sample_replay().model_copy(update={"by": HOSTILE, "selection": HOSTILE, "id": HOSTILE})
    made = sample_report(sample_group(), replays=(replay,))
    text = report_page.render_file(
        made.model_copy(update={"namespace": HOSTILE, "broker": HOSTILE})
    )
    assert "<script>alert" not in text
    assert "<img" not in text


def test_the_same_report_makes_the_same_page() -> None:
    made = sample_report(*sample_groups(5))
    assert report_page.render_file(made) == report_page.render_file(made)


@pytest.mark.integration
@pytest.mark.slow
def test_a_page_of_5000_failures_stays_small_enough_to_send() -> None:
    assert len(report_page.render_file(sample_report(*sample_groups(5000)))) < 2_000_000


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0 seconds"), (119, "119 seconds"), (7200, "2 hours"), (2e5, "2 days")],
)
def test_ages_are_told_in_one_unit(seconds: float, told: str) -> None:
    assert report_page._age_text(MADE - timedelta(seconds=seconds), MADE) == told


def test_the_styles_know_every_reason_and_change() -> None:
    style = (FILES / "page.css").read_text()
    for index, _ in enumerate(Reason):
        assert style.count(f"--reason-{index}:") == 2, "light and dark"
        assert f".reason-{index} {{" in style
    table = (FILES / "table.js").read_text()
    for kind in ChangeKind:
        assert re.search(rf'^  "?{kind.value}"?: ', table, re.MULTILINE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("ink", "ground", "least"),
    [
        ("text", "surface", 7.0),
        ("text", "ground", 7.0),
        ("muted", "surface", 4.5),
        ("muted", "ground", 4.5),
        ("accent", "surface", 4.5),
        ("accent", "ground", 4.5),
        ("surface", "accent", 4.5),
        ("bad", "surface", 4.5),
        ("good", "surface", 4.5),
        ("good", "ground", 4.5),
        ("field", "surface", 3.0),
        *[
            (kind, f"{kind}-ground", 4.5)
            for kind in ("new", "growing", "again", "resolved", "steady")
        ],
        *[("heat-text", f"heat-{shade}", 4.5) for shade in (1, 2, 3)],
        *[("heat-text-strong", f"heat-{shade}", 4.5) for shade in (4, 5)],
        *[(f"reason-{index}", "surface", 3.0) for index in range(len(Reason))],
    ],
)
def test_colours_have_contrast(scheme: str, ink: str, ground: str, least: float) -> None:
    """WCAG 2.2 AA: 4.5 for text, 3 for what a picture needs."""
    light, dark = (
        dict(re.findall(r"--([\w-]+): #([0-9a-f]+)", block))
        for block in (FILES / "page.css").read_text().split("prefers-color-scheme: dark")
    )
    colours = light if scheme == "light" else light | dark
    high, low = sorted((_luminance(colours[ink]), _luminance(colours[ground])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= least


def _luminance(colour: str) -> float:
    digits = colour if len(colour) == 6 else "".join(each * 2 for each in colour)
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
