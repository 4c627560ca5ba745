"""`knafka dead-letters forward`: the events of a group are posted to another destination."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.tables_without_spark import NOW, failure, record, write_failures, write_records
from typer.testing import CliRunner, Result

from knafka_cli.command_line import app
from knafka_client.sockets import free_port
from knafka_jobs.failure_groups import group_id

GROUP = group_id("shop", "main", "mail", "http://mail/", "status", 503, "no money")


class Destination:
    """A server that notes what is posted, and refuses the ids in `refuses`."""

    def __init__(self) -> None:
        self.posted: list[tuple[dict[str, str], bytes]] = []
        self.refuses: set[str] = set()
        destination = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                destination.posted.append((headers, body))
                self.send_response(400 if headers["ce-id"] in destination.refuses else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/else"

    @property
    def ids(self) -> list[str]:
        return [headers["ce-id"] for headers, _ in self.posted]


@pytest.fixture
def destination() -> Iterator[Destination]:
    found = Destination()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A group with a resolved event and a stub, whose files have the newest event first."""
    rows = [failure(f"e{n}", offset=n, origin_topic="t", origin_offset=n) for n in range(4)]
    rows[1] |= {"resolved": NOW}
    stub = failure("stub", offset=5, data_bytes=None)
    other = failure("other", offset=6, summary="no paper")
    write_failures(tmp_path, *reversed(rows), stub, other)
    letters = [record(row, b'{"n":1}', ce_knativeerrorcode="503") for row in reversed(rows)]
    write_records(tmp_path, *letters, record(stub, None, ce_knafkaomitted="data"), record(other))
    return tmp_path


def forward(tables: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["dead-letters", "forward", GROUP, f"--tables={tables}", *words])


def test_unresolved_events_are_posted_as_they_were_in_their_order(
    tables: Path, destination: Destination
) -> None:
    result = forward(tables, "--to", destination.url)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"3 events accepted by {destination.url}",
        "1 left out: no events, or their data were too large to be kept",
    ]
    assert destination.ids == ["e0", "e2", "e3"]
    headers, body = destination.posted[0]
    assert body == b'{"n":1}'
    assert {name for name in headers if name.startswith("ce-")} == {
        *("ce-specversion", "ce-id", "ce-source", "ce-type")
    }, "nothing of the dead letter"
    assert "authorization" not in headers


def test_resolved_events_are_posted_only_if_all_are(tables: Path, destination: Destination) -> None:
    assert forward(tables, "--to", destination.url, "--all").exit_code == 0
    assert destination.ids == ["e0", "e1", "e2", "e3"]


def test_a_dry_run_posts_nothing(tables: Path, destination: Destination) -> None:
    result = forward(tables, "--to", destination.url, "--dry-run")
    assert result.stdout == f"4 events would be posted to {destination.url}\n"
    assert destination.posted == []


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("mail", "is no URL"),
        ("http://user:secret@mail/", "credentials"),
        ("http://mail:99999/", "can't be read"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_where_nothing_can_be_posted_is_refused_also_by_a_dry_run(
    tables: Path, to: str, why: str, more: list[str]
) -> None:
    result = forward(tables, "--to", to, *more)
    assert result.exit_code == 2, result.output
    assert why in result.output
    assert "would be posted" not in result.output


def test_a_refused_event_is_named_and_the_others_are_posted(
    tables: Path, destination: Destination
) -> None:
    destination.refuses = {"e2"}
    result = forward(tables, "--to", destination.url)
    assert result.exit_code == 1
    assert result.stdout.startswith("400 Bad Request  order e2")
    assert "\n2 events accepted by" in result.stdout
    assert "\n1 not accepted\n" in result.stdout
    assert destination.ids == ["e0", "e2", "e3"]


def test_what_is_no_group_is_said(tables: Path) -> None:
    unknown = CliRunner().invoke(
        app,
        [
            *("dead-letters", "forward", "0123456789ab", f"--tables={tables}"),
            *("--to", f"http://127.0.0.1:{free_port()}"),
        ],
    )
    assert unknown.exit_code == 2
    assert "no group 0123456789ab" in unknown.output
