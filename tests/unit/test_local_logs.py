"""Logs: each by the name that a person has for it, the last lines of it, and what comes then."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from knafka_cli.command_line import app
from knafka_cli.running.logs import Logs, is_log_of
from knafka_client.state.installation import Installation, log_name


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    """The logs of a quickstart that has run."""
    found = Installation(tmp_path)
    found.logs.mkdir()
    found.kafka.mkdir()
    (found.kafka / "kafka.log").write_text("started\n")
    for name in ("receiver", "dispatcher-default.orders", "service-default.orders"):
        (found.logs / f"{name}.log").write_text("".join(f"{name} {n}\n" for n in range(30)))
    (found.logs / "service-default.large-orders.log").write_text("large\n")
    (found.logs / "receiver.log.old").write_text("old\n")
    return found


@pytest.mark.parametrize(
    ("name", "wanted", "is_it"),
    [
        ("receiver", "receiver", True),
        ("dispatcher-default.orders", "orders", True),
        ("service-default.orders", "default/orders", True),
        ("service-default.large-orders", "orders", False),
        ("service-shop.orders", "orders", False),
        ("service-shop.orders", "shop/orders", True),
        ("dispatcher-default.orders", "dispatcher-default.orders", True),
        ("dispatcher-shop.orders.old", "shop/orders.old", True),
        ("dispatcher-shop.orders.old", "shop/orders", False),
    ],
)
def test_a_name_means_the_logs_that_are_about_it(name: str, wanted: str, is_it: bool) -> None:
    assert is_log_of(name, wanted) is is_it


def test_no_two_objects_share_a_log_and_each_is_found_by_its_name() -> None:
    objects = [
        ("a", "b-c"),
        ("a-b", "c"),
        ("a", "b-c.old"),
        ("a", "b-c.log"),
        ("n" * 63, "t" * 253),
    ]
    objects += [("n" * 63, "t" * 252 + "u"), ("n" * 62, "t" * 253)]
    logs = {log_name("subscription", *each): "/".join(each) for each in objects}
    assert len(logs) == len(objects)
    assert max(map(len, logs)) == 255 - len(".log.old"), "a rotated log has a name, too"
    for log, owner in logs.items():
        assert [name for name in logs if is_log_of(name, owner)] == [log]


def test_the_logs_of_a_name_are_shown_together_and_every_one_says_whose_it_is(
    installation: Installation,
) -> None:
    words = ["logs", "orders", "-n", "2", "--data-dir", str(installation.data)]
    result = CliRunner().invoke(app, words)
    assert result.output.splitlines() == [
        "dispatcher-default.orders | dispatcher-default.orders 28",
        "dispatcher-default.orders | dispatcher-default.orders 29",
        "service-default.orders | service-default.orders 28",
        "service-default.orders | service-default.orders 29",
    ]


def test_a_single_log_is_shown_as_it_is(installation: Installation) -> None:
    result = CliRunner().invoke(app, ["logs", "kafka", "--data-dir", str(installation.data)])
    assert (result.exit_code, result.output) == (0, "started\n")


def test_a_log_that_is_not_there_names_those_that_are(installation: Installation) -> None:
    result = CliRunner().invoke(app, ["logs", "nobody", "--data-dir", str(installation.data)])
    assert result.exit_code == 2
    assert "service-default.large-orders" in result.output
    assert "old" not in result.output


def write(file: Path, mode: str, text: str) -> None:
    with file.open(mode) as open_file:
        open_file.write(text)


def test_what_is_written_later_is_followed_through_new_files_and_those_begun_anew(
    installation: Installation,
) -> None:
    log = installation.logs / "receiver.log"
    writes = iter(
        [
            (log, "a", "ne\n"),
            (installation.logs / "service-default.receiver.log", "a", "new\n"),
            (log, "w", "begun anew\n"),
        ]
    )

    def pause(_: float) -> None:
        write(*next(writes))

    found = Logs(installation, pause)
    assert found.last_lines("receiver", 1) == ["receiver 29"]
    write(log, "a", "more\nhalf a li")
    assert list(islice(found.follow("receiver"), 4)) == [
        ("receiver", "more"),
        ("receiver", "half a line"),
        ("service-default.receiver", "new"),
        ("receiver", "begun anew"),
    ]
