"""Requests to drain over HTTP, for a Trigger's own dispatcher and for a shard."""

from __future__ import annotations

import asyncio
import json
import socket
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import aiohttp
import pytest
from support.loopback import HOST, LoopbackServer
from support.replacing import replace_in
from support.scaling import SHARD, egress

from knafka.core import documents
from knafka.core.drain import STOP, DrainProgress, DrainRequest, Ended, ShardProgress
from knafka.core.errors import InvalidDocument
from knafka_operator.decisions.status import NotReady
from knafka_operator.functions.probe import probe
from knafka_operator.scale import answers
from knafka_operator.scale.answers import LinePace
from knafka_operator.scale.drains import DrainRefused, HttpDrains
from knafka_operator.scale.holds import Hold, error_text
from knafka_operator.scale.progress_bounds import (
    MAX_PARTITIONS,
    MAX_REASONS,
    MAX_TEXT_LENGTH,
    OTHER_REASONS,
)
from knafka_operator.scale.scaled_groups import sum_progress
from knafka_operator.scale.scaled_shard import MAX_NON_MEMBERS, ScaledShard

REQUEST = DrainRequest(idle=5, budget=60)
KINDS = ["own", "shard"]


class Dispatcher:
    """Answers each request with the lines that a test has it tell."""

    def __init__(self) -> None:
        self.status = "200 OK"
        self.heads: list[bytes] = []
        self.told: asyncio.Queue[bytes] = asyncio.Queue()
        """Lines of the request's body; an empty one is its end."""
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.hung_up = asyncio.Event()

    def tell(self, **line: Any) -> None:
        self.lines.put_nowait(json.dumps(line).encode() + b"\n")

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(f"HTTP/1.1 {self.status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        reading = asyncio.create_task(self._read(reader))
        try:
            while (line := await self.lines.get()) is not None:
                writer.write(b"%x\r\n%s\r\n" % (len(line), line))
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            reading.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while size := int(await reader.readline(), 16):
                self.told.put_nowait((await reader.readexactly(size + 2))[:-2])
            self.told.put_nowait(b"")
        except (ValueError, asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
            self.lines.put_nowait(None)


class Asking:
    """One kind of request to that dispatcher."""

    def __init__(self, kind: str, dispatcher: Dispatcher, port: int) -> None:
        self.is_shard = kind == "shard"
        url = f"http://{HOST}:{port}/"
        self.drains = HttpDrains({SHARD.group if self.is_shard else "shop/mail": url}, 5000)
        self.stop = asyncio.Event()
        self._dispatcher = dispatcher

    def tell(self, **line: Any) -> None:
        """Have the dispatcher tell this, as it is told by its kind."""
        self._dispatcher.tell(**(line | {"contract": 7} if self.is_shard else line))

    def __call__(self) -> AsyncGenerator[DrainProgress | ShardProgress, None]:
        held: AsyncIterator[DrainProgress | ShardProgress]
        if self.is_shard:
            held = self.drains.hold_shard(SHARD, REQUEST, self.stop)
        else:
            held = self.drains.hold("shop/mail", egress(), REQUEST, self.stop)
        return cast("AsyncGenerator[DrainProgress | ShardProgress, None]", held)


@pytest.fixture
async def dispatcher() -> Dispatcher:
    return Dispatcher()


@pytest.fixture(params=KINDS)
async def asking(request: pytest.FixtureRequest, dispatcher: Dispatcher) -> AsyncIterator[Asking]:
    async with LoopbackServer(dispatcher.handle) as server:
        asking = Asking(request.param, dispatcher, server.port)
        yield asking
        await asking.drains.close()


async def test_a_request_says_whom_it_is_for(asking: Asking, dispatcher: Dispatcher) -> None:
    """A dispatcher that has another Egress, or another shard, refuses."""
    asking.tell()
    held = asking()
    await anext(held)
    assert dispatcher.heads[0].startswith(b"POST /drain HTTP/1.1\r\n")
    asked = documents.parse_json(DrainRequest, (await dispatcher.told.get()).decode())
    if asking.is_shard:
        assert asked == REQUEST.model_copy(update={"shard": "shard-0"})
    else:
        assert asked == REQUEST.model_copy(update={"egress": documents.digest(egress())})
    asking.tell(ended="budget")
    dispatcher.lines.put_nowait(None)
    assert [line.ended async for line in held] == [Ended.BUDGET]


async def test_a_drain_that_is_to_end_is_told_so_and_says_that_it_has(
    asking: Asking, dispatcher: Dispatcher
) -> None:
    asking.tell()
    held = asking()
    assert (await anext(held)).ended is None
    await dispatcher.told.get()
    last = asyncio.create_task(anext(held))
    asking.stop.set()
    assert await dispatcher.told.get() == STOP
    assert not last.done()
    asking.tell(ended="stopped")
    assert (await last).ended is Ended.STOPPED
    dispatcher.lines.put_nowait(None)
    assert [line async for line in held] == []
    assert not dispatcher.hung_up.is_set()


async def test_leaving_hangs_up_and_ends_no_drain(asking: Asking, dispatcher: Dispatcher) -> None:
    """The lease goes on: what merely ends, such as the operator, ends no drain."""
    asking.tell()
    async with aclosing(asking()) as held:
        await anext(held)
        await dispatcher.told.get()
    await dispatcher.hung_up.wait()
    assert dispatcher.told.empty()


@pytest.mark.parametrize("status", ["409 Conflict", "412 Precondition Failed"])
async def test_of_one_that_refuses_the_status_is_told_and_not_the_body(
    asking: Asking, dispatcher: Dispatcher, status: str
) -> None:
    """It comes to stand in a Trigger's status, whoever answers at that name."""
    dispatcher.status = status
    dispatcher.lines.put_nowait(b"this dispatcher has another shard\n")
    dispatcher.lines.put_nowait(None)
    with pytest.raises(DrainRefused, match=f"answered {status[:3]}") as caught:
        await anext(asking())
    assert "another shard" not in str(caught.value)


async def test_a_redirection_is_not_followed(asking: Asking, dispatcher: Dispatcher) -> None:
    """Else whoever has the Service has the operator ask anybody."""
    dispatcher.status = f"302 Found\r\nLocation: http://{HOST}:1/latest/meta-data"
    dispatcher.lines.put_nowait(None)
    with pytest.raises(DrainRefused, match="answered 302"):
        await anext(asking())


@pytest.mark.parametrize("host", ["localhost", "drains.test"])
async def test_a_name_that_leads_to_the_operators_own_pod_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """As a Service of the type ExternalName does, which its namespace's owner may make."""

    async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]

    if host != "localhost":
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    drains = HttpDrains({"mail": f"http://{host}:1"})
    try:
        with pytest.raises(aiohttp.ClientConnectorError, match="not allowed here"):
            await anext(drains.hold("mail", egress("mail"), REQUEST, asyncio.Event()))
        with pytest.raises(NotReady, match="not allowed here"):
            await probe(f"http://{host}:1/shop/default")
    finally:
        await drains.close()


async def test_what_answers_a_probe_in_another_protocol_is_not_shown() -> None:
    """aiohttp quotes the line that it doesn't understand."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"-ERR the password is swordfish\r\n\r\n")
        await writer.drain()

    async with LoopbackServer(handle) as server:
        drains = HttpDrains({"mail": f"http://{HOST}:{server.port}"})
        try:
            with pytest.raises(aiohttp.ClientError) as caught:
                await anext(drains.hold("mail", egress("mail"), REQUEST, asyncio.Event()))
            assert "swordfish" not in error_text(caught.value)
            with pytest.raises(NotReady) as not_ready:
                await probe(f"http://{HOST}:{server.port}/shop/default")
            assert "swordfish" not in str(not_ready.value)
        finally:
            await drains.close()


async def test_what_is_no_progress_is_an_error(asking: Asking, dispatcher: Dispatcher) -> None:
    asking.tell(unsettled="none", egresses="none")
    with pytest.raises(InvalidDocument):
        await anext(asking())


@pytest.mark.parametrize("asking", ["shard"], indirect=True)
async def test_a_shards_lines_tell_of_each_egress(asking: Asking, dispatcher: Dispatcher) -> None:
    dispatcher.tell(contract=7, egresses={"a": {"read": 2, "delivered": 2, "partitions": [1]}})
    dispatcher.tell(
        contract=8, egresses={"b": {"error": "no such topic"}}, ended="failed", error="x"
    )
    dispatcher.lines.put_nowait(None)
    assert [line async for line in asking()] == [
        ShardProgress(
            contract=7, egresses={"a": DrainProgress(read=2, delivered=2, partitions=(1,))}
        ),
        ShardProgress(
            contract=8,
            egresses={"b": DrainProgress(error="no such topic")},
            ended=Ended.FAILED,
            error="x",
        ),
    ]


@pytest.mark.parametrize("asking", ["shard"], indirect=True)
async def test_a_line_may_have_thousands_of_egresses(
    asking: Asking, dispatcher: Dispatcher
) -> None:
    """A shard's first and last line have all; aiohttp's own limit is 128 KiB."""
    everybody = {
        f"group-{number:_>200}": {"read": number, "congestion": "10 attempts failed" * 5}
        for number in range(5000)
    }
    dispatcher.tell(contract=7, egresses=everybody)
    line = await anext(asking())
    assert isinstance(line, ShardProgress)
    assert len(line.egresses) == 5000


@pytest.mark.parametrize("asking", ["own"], indirect=True)
async def test_a_line_that_is_no_dispatchers_ends_the_request_with_a_reason(
    asking: Asking, dispatcher: Dispatcher
) -> None:
    """Issue 29: endless lines of 7.6 MB took nine tenths of the operator's event loop."""
    asking.tell(error="x" * 7_600_000)
    with pytest.raises(DrainRefused, match="answered with a line of more than 65536 bytes"):
        await anext(asking())
    dispatcher.lines.put_nowait(None)


@pytest.mark.parametrize("asking", ["shard"], indirect=True)
async def test_a_shards_lines_are_as_long_as_its_triggers_need(
    asking: Asking, dispatcher: Dispatcher
) -> None:
    asking.drains = HttpDrains(asking.drains._urls, 10)
    asking.tell(egresses={f"group-{number}": {"error": "x" * 1000} for number in range(1000)})
    with pytest.raises(DrainRefused, match="more than 106496 bytes"):
        await anext(asking())
    dispatcher.lines.put_nowait(None)
    await asking.drains.close()


async def test_lines_that_come_faster_than_a_dispatcher_writes_them_are_left_to_wait(
    asking: Asking, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    replace_in(monkeypatch, answers, "asyncio", sleep=sleep)
    for _ in range(200):
        asking.tell()
    asking.tell(ended="budget")
    dispatcher.lines.put_nowait(None)
    assert len([line async for line in asking()]) == 201
    assert 100 <= len(pauses) <= 121, "80 at once, then four a second"
    before = len(pauses)
    asking.tell(ended="budget")
    dispatcher.lines.put_nowait(None)
    assert [line.ended async for line in asking()] == [Ended.BUDGET]
    assert len(pauses) == before + 1, "whoever begins anew is heard no faster"
    assert pauses[-1] > 20


def test_a_unit_is_heard_as_often_as_its_dispatchers_speak() -> None:
    """A line a second of each, as long as they are usually: nobody waits."""
    pace = LinePace(4.0, 16_384.0)
    pace.open_responses = 50
    assert not any(pace.count_line(1_000, second) for second in range(600) for _ in range(50))
    pace.open_responses = 1
    assert pace.count_line(65_536, 600) == 0
    assert [pace.count_line(65_536, 600) for _ in range(7)][-1] > 10


@pytest.mark.parametrize("asking", ["own"], indirect=True)
async def test_nothing_is_decompressed_and_no_redirect_is_followed(
    asking: Asking, dispatcher: Dispatcher
) -> None:
    """A megabyte of zeros is a kilobyte on the way, and an address of others is asked by us."""
    dispatcher.status = "200 OK\r\nContent-Encoding: deflate"
    dispatcher.lines.put_nowait(zlib.compress(b"{}\n" * 1_000_000))
    dispatcher.lines.put_nowait(None)
    with pytest.raises(InvalidDocument):
        await anext(asking())
    dispatcher.status = "307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/elsewhere"
    dispatcher.lines.put_nowait(None)
    with pytest.raises(DrainRefused, match="answered 307"):
        await anext(asking())


@pytest.mark.parametrize("asking", ["shard"], indirect=True)
async def test_no_more_is_kept_of_a_long_line_than_a_dispatcher_would_say(
    asking: Asking, dispatcher: Dispatcher
) -> None:
    letters = {f"reason {number}": 1 for number in range(20_000)}
    progress = {"deadLetters": letters, "error": "x" * 50_000, "partitions": list(range(20_000))}
    asking.tell(egresses={"a": progress})
    line = await anext(asking())
    assert isinstance(line, ShardProgress)
    kept = line.egresses["a"]
    assert len(kept.dead_letters) == MAX_REASONS + 1
    assert kept.dead_letters[OTHER_REASONS] == 20_000 - MAX_REASONS
    assert kept.error is not None
    assert (len(kept.error), len(kept.partitions)) == (MAX_TEXT_LENGTH, MAX_PARTITIONS)
    dispatcher.lines.put_nowait(None)


def test_reasons_for_dead_letters_that_differ_with_each_line_are_counted_together() -> None:
    """Each is a metric's label, for as long as the operator runs."""
    total = DrainProgress()
    for number in range(1000):
        total = sum_progress([total, DrainProgress(dead_letters={f"reason {number}": 2})], [])
    assert len(total.dead_letters) == MAX_REASONS + 1
    assert sum(total.dead_letters.values()) == 2000


def test_a_shard_that_names_groups_of_nobody_keeps_few_of_them() -> None:
    shard = ScaledShard(SHARD)
    for number in range(10_000):
        line = ShardProgress(contract=1, egresses={f"group-{number}": DrainProgress()})
        shard.on_line(cast(Hold, None), line)
    assert len(shard._last_progress) == MAX_NON_MEMBERS
