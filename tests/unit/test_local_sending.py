"""Sending: what an event becomes, and how long it is tried."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.loopback import LoopbackServer
from typer.testing import CliRunner

from knafka.core.errors import InvalidDocument
from knafka_cli.command_line import app
from knafka_cli.shared import sending
from knafka_cli.shared.event_input import BadInput, read_events, sample_event
from knafka_cli.shared.sending import SendResult, SendSummary, send
from knafka_client.sockets import free_port

OK = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
BUSY = b"HTTP/1.1 503 No\r\nretry-after: 1\r\ncontent-length: 4\r\n\r\nbusy"
BAD = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 3\r\n\r\nwhy"


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A Broker's URL that gives these answers in turn, then the last one; and the requests."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            answer = answers[min(len(requests), len(answers) - 1)]
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            requests.append(head + await reader.readexactly(length))
            writer.write(answer)

    async with LoopbackServer(serve) as server:
        yield f"http://127.0.0.1:{server.port}/default/shop", requests


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


async def sent(
    url: str, count: int = 1, retry: bool = True
) -> tuple[SendSummary, Sequence[SendResult]]:
    answers: list[SendResult] = []
    events = [sample_event({"id": "{n}"}, b"{n}", number) for number in range(1, count + 1)]
    return await send(events, url, answers.append, retry=retry, connections=2), answers


async def test_a_status_that_only_a_proxy_knows_is_shown() -> None:
    async with answering(b"HTTP/1.1 520 Odd\r\ncontent-length: 0\r\n\r\n") as (url, _):
        _, (answer,) = await sent(url)
    assert str(answer).startswith("520 ")


def test_an_event_has_all_that_it_needs_even_if_nothing_is_said() -> None:
    event = sample_event({}, None, 1)
    assert event.attributes.keys() == {"specversion", "id", "source", "type"}
    assert event.data is None
    assert sample_event({}, None, 1).attributes["id"] != event.attributes["id"]


def test_the_number_of_an_event_stands_where_it_is_asked_for() -> None:
    event = sample_event({"id": "a-{n}", "subject": "{n}"}, b'{"number": {n}}', 7)
    assert event.attributes["id"] == "a-7"
    assert event.attributes["subject"] == "7"
    assert event.data == b'{"number": 7}'


@pytest.mark.parametrize(
    ("data", "content_type"),
    [(b'{"a": 1}', "application/json"), (b"hello", "text/plain"), (b"", "text/plain")],
)
def test_the_content_type_is_guessed_unless_it_is_given(data: bytes, content_type: str) -> None:
    assert sample_event({}, data, 1).attributes["datacontenttype"] == content_type
    given = sample_event({"datacontenttype": "text/csv"}, data, 1)
    assert given.attributes["datacontenttype"] == "text/csv"


def test_an_event_that_breaks_the_rules_is_not_sent() -> None:
    """CE-H12."""
    with pytest.raises(BadInput, match="no attribute name"):
        sample_event({"Bad-Name": "x"}, None, 1)


def test_a_broken_line_is_named() -> None:
    good = b'{"specversion":"1.0","id":"1","source":"/","type":"t"}'
    events = read_events([good, b"", b"{"], "events.ndjson")
    assert next(events).attributes["id"] == "1"
    with pytest.raises(BadInput, match=r"events\.ndjson, line 3: "):
        next(events)


async def test_every_event_is_sent_and_counted() -> None:
    async with answering(OK) as (url, requests):
        summary, answers = await sent(url, count=5)
    assert summary.all_accepted
    assert str(summary).startswith("5 of 5 accepted in ")
    assert sorted(each.event.attributes["id"] for each in answers) == list("12345")
    assert {request.rpartition(b"\r\n\r\n")[2] for request in requests} == set(b"1 2 3 4 5".split())


@pytest.mark.conformance("KN-DP-09")
async def test_a_503_is_tried_again_when_it_said() -> None:
    """KN-DP-09: 503 with Retry-After."""
    async with answering(BUSY, OK) as (url, requests):
        began = time.monotonic()
        summary, (answer,) = await sent(url)
    assert time.monotonic() - began >= 1
    assert summary.all_accepted
    assert len(requests) == 2
    assert str(answer).endswith("after 2 attempts")


async def test_a_400_is_final_and_says_why() -> None:
    async with answering(BAD) as (url, requests):
        summary, (answer,) = await sent(url)
    assert not summary.all_accepted
    assert len(requests) == 1
    assert str(answer) == "400 Bad Request  dev.knafka.sample 1: why"
    assert "0 of 1 accepted, 1 × 400" in str(summary)


async def test_nobody_there_is_tried_again_unless_told_not_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "FIRST_SEND_BACKOFF", 0.01)
    monkeypatch.setattr(sending, "SEND_RETRIES", 2)
    async with answering(OK) as (url, _):
        pass
    for retry, attempts in ((True, 3), (False, 1)):
        summary, (answer,) = await sent(url, retry=retry)
        assert not summary.all_accepted
        assert (answer.status, answer.attempts) == (None, attempts)
        assert str(answer).startswith("not sent")


async def test_a_rate_is_kept() -> None:
    async with answering(OK) as (url, _):
        events = [sample_event({}, None, number) for number in range(5)]
        began = time.monotonic()
        await send(events, url, lambda _: None, rate=20)
    assert time.monotonic() - began >= 4 / 20


async def test_a_broken_event_in_the_middle_ends_it_with_its_name() -> None:
    async with answering(OK) as (url, _):
        with pytest.raises(BadInput, match="line 1"):
            await send(read_events([b"{"], "stdin"), url, lambda _: None)


@pytest.mark.parametrize("batch", [0, 3])
async def test_the_events_before_a_broken_one_are_sent_answered_and_counted(batch: int) -> None:
    """It cancelled requests in flight, whose events the Broker took without anybody seeing it."""
    answers: list[SendResult] = []
    summary = SendSummary()
    line = b'{"specversion":"1.0","id":"1","source":"/","type":"t"}'
    events = read_events([line] * 7 + [b"{", line], "stdin")
    async with answering(OK) as (url, requests):
        with pytest.raises(BadInput, match="line 8"):
            await send(events, url, answers.append, connections=4, batch=batch, summary=summary)
    assert sum(request.count(b"/default/shop") for request in requests) == (3 if batch else 7)
    assert len(answers) == summary.statuses[202] == 7


async def test_an_error_while_an_answer_is_shown_is_raised_as_it_is() -> None:
    """`knafka send | head -1` printed an ExceptionGroup."""

    def show(_: SendResult) -> None:
        raise BrokenPipeError

    async with answering(OK) as (url, _):
        with pytest.raises(BrokenPipeError):
            await send([sample_event({}, None, n) for n in range(9)], url, show)


def test_a_broken_line_of_a_file_is_named_after_the_summary_of_what_was_sent(
    tmp_path: Path,
) -> None:
    file = tmp_path / "events.ndjson"
    line = '{"specversion":"1.0","id":"1","source":"/","type":"t"}\n'
    file.write_text(line * 2 + "{\n")
    url = f"http://127.0.0.1:{free_port()}/"
    result = CliRunner().invoke(app, ["send", "--url", url, "--no-retry", "--file", str(file)])
    assert result.exit_code == 2
    assert result.stdout.splitlines()[-1].startswith("0 of 2 accepted, 2 × no answer in ")
    assert "events.ndjson, line 3: " in result.stderr


@pytest.mark.parametrize("url", ["/path", "bad://uri"])
async def test_a_url_that_nothing_can_be_sent_to_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidDocument):
        await sent(url)


async def test_a_batch_is_one_request_and_one_answer_for_each_of_its_events() -> None:
    """CE-H11"""
    answers: list[SendResult] = []
    events = [sample_event({"id": "{n}"}, b'{"n": {n}}', number) for number in range(1, 8)]
    async with answering(OK, BUSY, OK) as (url, requests):
        summary = await send(events, url, answers.append, connections=1, batch=3)
    assert [each.partition(b"\r\n\r\n")[2].count(b'"specversion"') for each in requests] == [
        3, 3, 3, 1
    ]  # fmt: skip
    assert all(b"content-type: application/cloudevents-batch+json" in each for each in requests)
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2])[2]["data"] == {"n": 3}
    assert [each.event.attributes["id"] for each in answers] == [str(n) for n in range(1, 8)]
    assert summary.all_accepted
    assert sum(summary.statuses.values()) == 7
