"""The console's server: what it answers, and whom it refuses (local/knafka_console/web)."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import aiohttp
import pytest
from support.console import MemorySource, letter, row, subscription, trigger
from support.waiting import until
from typer.testing import CliRunner

from knafka_cli.command_line import app
from knafka_cli.running import up
from knafka_client.sockets import HOST, PortTaken, free_port, listen, port_of
from knafka_console import opening
from knafka_console.model.document import Action
from knafka_console.web import server
from knafka_console.web.page import console_page
from knafka_console.web.server import CHANGE_HEADER, ConsoleServer, refusal_reason
from knafka_local.supervisor import Supervisor, UpOptions
from knafka_local.view import View

MARKED = {CHANGE_HEADER: "1"}
EVENT = '{"specversion":"1.0","id":"1","source":"/shop","type":"order"}'


@pytest.fixture
def source() -> MemorySource:
    return MemorySource([trigger("mail", filters=[{"exact": {"type": "order"}}])], [row("mail")])


@asynccontextmanager
async def client(source: MemorySource) -> AsyncIterator[aiohttp.ClientSession]:
    """Somebody on this machine who asks the source's server."""
    with listen() as listener:
        host = f"{HOST}:{port_of(listener)}"
        console = await ConsoleServer.start(listener, [host], lambda _: source)
        try:
            async with aiohttp.ClientSession(f"http://{host}") as session:
                yield session
        finally:
            await console.close()


async def error(response: aiohttp.ClientResponse) -> tuple[int, str]:
    return response.status, (await response.json())["error"]


async def test_the_page_holds_all_that_it_needs_and_may_load_nothing_else(
    source: MemorySource,
) -> None:
    async with client(source) as session, session.get("/") as response:
        text = await response.text()
        policy = response.headers["Content-Security-Policy"]
    assert response.content_type == "text/html"
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", text.partition("<script")[0])
    assert "/*s" not in text, "style and script are in"


@pytest.mark.slow
def test_the_server_and_its_page_know_nothing_of_where_the_data_is_from() -> None:
    """Another source, such as a cluster's, needs nothing of `knafka up`."""
    probe = "import sys, knafka_console.web.server; print(*sys.modules)"
    command = [sys.executable, "-c", probe]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = ran.stdout.split()
    ours = {module for module in loaded if module.startswith("knafka_")}
    assert ours == {
        "knafka_console",
        "knafka_console.model",
        "knafka_console.web",
        *(f"knafka_console.model.{module}" for module in ("document", "source")),
        *(f"knafka_console.web.{module}" for module in ("bodies", "page", "server", "sign_in")),
    }
    assert not {"watchfiles", "typer", "confluent_kafka", "kopf"} & set(loaded)


def test_the_page_is_small_enough_to_be_read() -> None:
    assert len(console_page().html.encode()) < 60_000


async def test_the_state_is_answered_once_it_differs_from_what_the_page_has(
    source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STATE_POLL_INTERVAL", 0.01)
    async with client(source) as session:
        async with session.get("/api/state") as response:
            first, tag = await response.json(), response.headers["ETag"]
        assert first["triggers"][0]["deadLettered"] == 0
        known = {"If-None-Match": tag}
        async with session.get("/api/state", headers=known) as response:
            assert response.status == 304, "nobody waits who hasn't asked to"
        waiting = asyncio.create_task(session.get("/api/state?wait=20", headers=known))
        asked = source.asked
        await until(lambda: source.asked >= asked + 3)
        assert not waiting.done()
        source.set("mail", delivered=3)
        async with await waiting as response:
            assert (await response.json())["triggers"][0]["delivered"] == 3
            assert response.headers["ETag"] != tag


async def test_nothing_is_asked_while_no_page_is_open(
    source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle console costs nothing, also after its last page was closed."""
    monkeypatch.setattr(server, "STATE_POLL_INTERVAL", 0.01)
    async with client(source) as session:
        assert source.asked == 0
        async with session.get("/api/state") as response:
            known = {"If-None-Match": response.headers["ETag"]}
        waiting = asyncio.create_task(session.get("/api/state?wait=20", headers=known))
        await until(lambda: source.asked >= 3)
        waiting.cancel()
        seen = -1

        async def at_rest() -> bool:
            nonlocal seen
            before, seen = seen, source.asked
            await asyncio.sleep(0.2)  # twenty looks, if there were any
            return before == seen

        async with asyncio.timeout(server.LONGEST_STATE_WAIT / 4):
            while not await at_rest():
                pass


async def test_a_page_that_waits_is_answered_when_the_server_ends(source: MemorySource) -> None:
    """It keeps nobody from stopping `knafka up`."""
    with listen() as listener:
        host = f"{HOST}:{port_of(listener)}"
        console = await ConsoleServer.start(listener, [host], lambda _: source)
        async with aiohttp.ClientSession(f"http://{host}") as session:
            async with session.get("/api/state") as response:
                known = {"If-None-Match": response.headers["ETag"]}
            waiting = asyncio.create_task(session.get("/api/state?wait=20", headers=known))
            await until(lambda: source.asked >= 2)
            async with asyncio.timeout(server.LONGEST_STATE_WAIT / 4):
                await console.close()
                async with await waiting as response:
                    assert response.status == 304


async def test_who_would_get_an_event_is_answered_with_the_clause(source: MemorySource) -> None:
    async with client(source) as session:
        async with session.post("/api/who", data=EVENT, headers=MARKED) as response:
            assert [each["getsIt"] for each in (await response.json())["verdicts"]] == [True]
        other = EVENT.replace("order", "refund")
        async with session.post("/api/who", data=other, headers=MARKED) as response:
            (verdict,) = (await response.json())["verdicts"]
        assert not verdict["getsIt"]
        assert "exact.type" in verdict["whyNot"][0]
        async with session.post("/api/who", data="{}", headers=MARKED) as response:
            status, why = await error(response)
        assert status == 400
        assert why


async def test_a_trigger_is_paused_and_goes_on(source: MemorySource) -> None:
    async with client(source) as session:
        for action, paused in (("pause", True), ("resume", False)):
            path = f"/api/triggers/default/mail/{action}"
            async with session.post(path, headers=MARKED) as response:
                assert "default/mail" in (await response.json())["done"]
            assert source.rows[0].paused is paused


async def test_a_subscription_is_asked_for_and_changed_by_its_own_address() -> None:
    source = MemorySource(
        [trigger("mail"), subscription("mail")],
        [row("mail"), replace(row("mail", broker="orders"), kind="Subscription")],
    )
    path = "/api/subscriptions/default/mail"
    asked = {"namespace": "default", "name": "mail", "events": [{"id": "1", "source": "/shop"}]}
    async with client(source) as session:
        async with session.get(path) as response:
            assert (await response.json())["order"] == "ordered"
        async with session.post(f"{path}/pause", headers=MARKED) as response:
            assert "Subscription default/mail" in (await response.json())["done"]
        assert [each.paused for each in source.rows] == [False, True]
        of = {**asked, "kind": "Subscription"}
        async with session.post("/api/replay", json=of, headers=MARKED) as response:
            assert response.status == 200
        assert source.replayed[0][0] == "Subscription default/mail"
        async with session.get("/api/brokers/default/shop") as response:
            assert response.status == 404
        of = {**asked, "kind": "Broker"}
        async with session.post("/api/replay", json=of, headers=MARKED) as response:
            assert response.status == 400


async def test_dead_letters_are_shown_and_sent_again(source: MemorySource) -> None:
    source.letters = [letter(1)]
    asked = {"namespace": "default", "name": "mail", "events": [{"id": "1", "source": "/shop"}]}
    async with client(source) as session:
        async with session.get("/api/triggers/default/mail/failures") as response:
            found = await response.json()
        assert found["last"][0]["id"] == "order-1"
        async with session.post("/api/replay", json=asked, headers=MARKED) as response:
            assert (await response.json())["replay"] == "replay-1"
        assert source.replayed[0][0] == "default/mail"
        async with session.post("/api/replay", json={"name": "mail"}, headers=MARKED) as response:
            assert (await error(response))[0] == 400


@pytest.mark.parametrize("charset", ["utf-8", "utf-32", "nonesuch"])
async def test_a_body_that_is_no_text_is_a_bad_request(source: MemorySource, charset: str) -> None:
    headers = {**MARKED, "content-type": f"application/json; charset={charset}"}
    async with (
        client(source) as session,
        session.post("/api/replay", data=b'{"\xff"', headers=headers) as response,
    ):
        assert (await error(response))[0] == 400


async def test_what_is_not_there_and_what_is_not_allowed_say_so(source: MemorySource) -> None:
    """Under the viewer's own rights: what the source forbids is forbidden."""
    source.may = [Action.REPLAY]
    async with client(source) as session:
        async with session.get("/api/triggers/default/nobody") as response:
            assert await error(response) == (404, "there is no Trigger default/nobody")
        async with session.post("/api/triggers/default/mail/pause", headers=MARKED) as response:
            assert await error(response) == (403, "you may not change Triggers")
        async with session.get("/api/triggers/default/mail") as response:
            assert (await response.json())["may"] == ["replay"]
        async with session.get("/elsewhere") as response:
            assert response.status == 404
        async with session.get("/api/state?wait=soon") as response:
            assert (await error(response))[0] == 400


async def test_a_report_is_served_apart_from_the_consoles_origin(source: MemorySource) -> None:
    async with client(source) as session:
        async with session.get("/report") as response:
            assert response.status == 404
            assert "there is no report yet: knafka dead-letters report" in await response.text()
        async with session.get("/api/reports") as response:
            assert (await error(response))[0] == 404, "archives are a cluster's"
        source.page = b"<p>report"
        async with session.get("/report") as response:
            assert await response.read() == b"<p>report"
            policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox")
    assert "same-origin" not in policy


OWN = {"Host": "127.0.0.1:8090"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "allowed"),
    [
        ("GET", "/", {}, True),
        ("GET", "/", {"Host": "evil.test:8090"}, False),
        ("GET", "/", {"Host": ""}, False),
        ("GET", "/", {"Sec-Fetch-Site": "cross-site"}, True),
        ("GET", "/api/state", {"Sec-Fetch-Site": "same-origin"}, True),
        ("GET", "/api/state", {"Sec-Fetch-Site": "cross-site"}, False),
        ("GET", "/api/state", {"Sec-Fetch-Site": "same-site"}, False),
        ("GET", "/api/state", {"Origin": "http://evil.test"}, False),
        ("GET", "/api/state", {"Origin": "null"}, False),
        ("GET", "/api/state", {"Origin": "http://[::1"}, False),  # no URL
        ("POST", "/api/who", {}, False),
        ("POST", "/api/who", MARKED, True),
        ("POST", "/api/who", {**MARKED, "Origin": "http://127.0.0.1:8090"}, True),
        ("POST", "/api/who", {**MARKED, "Origin": "http://127.0.0.1:9999"}, False),
        ("POST", "/api/who", {**MARKED, "Origin": "http://evil.test"}, False),
        ("POST", "/api/who", {**MARKED, "Sec-Fetch-Site": "cross-site"}, False),
        ("POST", "/api/who", {**MARKED, "Host": "evil.test"}, False),
    ],
)
def test_another_sites_page_gets_nothing_from_a_server_on_loopback(
    method: str, path: str, headers: dict[str, str], allowed: bool
) -> None:
    """DNS rebinding (a foreign Host) and requests across sites are refused."""
    why = refusal_reason(["127.0.0.1:8090", "localhost:8090"], method, path, {**OWN, **headers})
    assert (why == "") is allowed, why


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {**MARKED, "Host": "evil.test"}},
        {"headers": {**MARKED, "Origin": "http://evil.test"}},
        {},
    ],
)
async def test_what_is_refused_changes_nothing(
    source: MemorySource, options: dict[str, Any]
) -> None:
    async with client(source) as session:
        path = "/api/triggers/default/mail/pause"
        async with session.post(path, **options) as response:
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers
        async with session.options(path, headers={"Origin": "http://evil.test"}) as response:
            assert response.status == 403, "no preflight is agreed to"
    assert not source.rows[0].paused


def test_the_console_takes_the_next_port_unless_one_was_asked_for() -> None:
    with opening.open_listener(None) as first, opening.open_listener(None) as second:
        assert isinstance(first, socket.socket)
        assert isinstance(second, socket.socket)
        assert opening.CONSOLE_PORT <= port_of(first) < port_of(second)
        with (
            pytest.raises(PortTaken, match="--console-port"),
            opening.open_listener(port_of(first)),
        ):
            pass
        with opening.open_listener(None, enabled=False) as none:
            assert none is None


async def test_the_console_leaves_the_ports_free_that_knafka_up_needs_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`knafka up --port 8090` always failed: its own console had taken the port."""
    first = free_port()
    monkeypatch.setattr(opening, "CONSOLE_PORT", first)
    console_ports: list[int] = []

    async def start(_: Supervisor, __: object, listener: socket.socket, *___: object) -> None:
        console_ports.append(port_of(listener))

    monkeypatch.setattr(up, "_start_and_run", start)
    for channels_port in (None, first + 1):
        options = UpOptions(
            (), tmp_path, port=first, kafka_port=first + 2, channels_port=channels_port
        )
        await up.run_until_stopped(options, create_autospec(View))
    assert len(console_ports) == 2
    assert all(port > first + 2 for port in console_ports)


def test_a_port_that_was_asked_for_and_is_taken_ends_knafka_up_before_it_begins(
    tmp_path: Path,
) -> None:
    (tmp_path / "empty.yaml").write_text("")
    with listen() as taken:
        command = ["up", "-f", tmp_path / "empty.yaml", "--data-dir", tmp_path / "data"]
        words = [*command, "--console-port", port_of(taken)]
        result = CliRunner().invoke(app, [str(each) for each in words])
    assert result.exit_code == 1
    assert isinstance(result.exception, PortTaken)
    assert not (tmp_path / "data").exists()
