"""The console of a cluster as a person meets it: `knafka console`, and the function's sign-in page
in a real Chromium. The API server is one of the tests; tests/cluster has a real one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.remote.webelement import WebElement
from support.api_server import ApiServer
from support.browser import every, look_as, one, script, wait
from support.console_cluster import PODS, console_cluster, put_archives, report_in
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog
from support.reports import sample_example, sample_group, sample_report

from knafka_client.declared.kubernetes_api import KubernetesApi
from knafka_client.sockets import HOST, listen, port_of
from knafka_console.function import ViewerSources
from knafka_console.model.source import ArchiveName
from knafka_console.settings import ConsoleSettings
from knafka_console.sources.metrics import ProxiedMetrics, SharedFigures
from knafka_console.sources.reports import ReportTopics
from knafka_console.web.server import ConsoleServer
from knafka_console.web.sign_in import SignIn
from knafka_operator.model.resources import EVENTING

TOKEN = "eyJhbGciOi.a-token.of_ada"


@pytest.mark.integration
def test_knafka_console_serves_a_clusters_flow_until_it_is_stopped(tmp_path: Path) -> None:
    with console_cluster() as (server, client):
        file = tmp_path / "config"
        file.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "dev",
                    "clusters": [{"name": "c", "cluster": {"server": client.configuration.host}}],
                    "users": [{"name": "u", "user": {"token": TOKEN}}],
                    "contexts": [{"name": "dev", "context": {"cluster": "c", "user": "u"}}],
                }
            )
        )  # fmt: skip
        server.users = {TOKEN: lambda _: True}
        command = [sys.executable, "-m", "knafka_cli", "console", "--kubeconfig", str(file)]
        running = subprocess.Popen(
            [*command, "--context", "dev"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            found = re.fullmatch(r"console of dev at (http://127\.0\.0\.1:\d+/)\n", line)
            assert found is not None, line
            assert server.asked == [], "nobody looks, so nothing is asked"
            with urllib.request.urlopen(f"{found[1]}api/state", timeout=30) as response:
                state = json.load(response)
            assert [each["name"] for each in state["triggers"]] == ["mail", "mail"]
            assert state["triggers"][0]["lag"] == 12
            running.send_signal(signal.SIGINT)
            assert running.wait(20) == 0
        finally:
            running.kill()
            running.wait()
            assert running.stdout is not None
            running.stdout.close()


@contextmanager
def function(client: object, topics: ReportTopics | None = None) -> Iterator[str]:
    """The function on a thread, reading the operator's metrics through the API server."""
    listener = listen()
    url = f"http://{HOST}:{port_of(listener)}/"
    loop = asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()

    async def run() -> None:
        figures = SharedFigures(ProxiedMetrics(KubernetesApi(client), "knafka"))  # type: ignore[arg-type]
        settings = ConsoleSettings("knafka", "dev", trace_url="https://traces.test/{trace}")
        viewers = ViewerSources(client, figures, settings, topics=topics)  # type: ignore[arg-type]
        sign_in = SignIn(viewers.source_for, plain_http=True)
        server = await ConsoleServer.start_signed_in(listener, sign_in)
        started.set()
        await stop.wait()
        await server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert started.wait(10)
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
        listener.close()


def sign_in(chromium: Chrome, token: str, namespaces: str = "") -> None:
    """As somebody without a mouse does."""
    wait(chromium, lambda: script(chromium, "document.documentElement.dataset.ready"))
    field = chromium.switch_to.active_element
    assert field.get_attribute("id") == "token", "the focus is where one types"
    field.clear()
    field.send_keys(token)
    field.send_keys(Keys.TAB)
    other = chromium.switch_to.active_element
    other.clear()
    other.send_keys(namespaces)
    other.send_keys(Keys.ENTER)


def open_row(chromium: Chrome, row: WebElement, buttons: Sequence[str]) -> None:
    """It has these of Pause and Resume, and says that dead letters need a right."""
    row.find_element("css selector", ".opener").send_keys(Keys.ENTER)
    wait(chromium, lambda: row.find_elements("css selector", ".conditions"))
    shown = [each.text for each in row.find_elements("css selector", ".pause")]
    assert [each for each in shown if each] == buttons
    wait(chromium, lambda: "deadletters in shop" in row.text)


def may(server: ApiServer) -> None:
    """Ada may look at the namespace `shop` and change its Subscriptions, not its Triggers."""
    server.users = {
        "function": lambda asked: asked["namespace"] == "knafka",
        TOKEN: lambda asked: (
            asked["namespace"] == "shop"
            and not asked.get("subresource")
            and (asked["verb"] != "patch" or asked["resource"] == "subscriptions")
        ),
    }


def test_somebody_signs_in_sees_what_the_token_may_see_and_signs_out(chromium: Chrome) -> None:
    with console_cluster() as (server, client):
        client.configuration.api_key = {"authorization": "Bearer function"}
        may(server)
        with function(client) as url:
            look_as(chromium, 390, 844, dark=True)
            chromium.get(url)
            assert script(chromium, "document.documentElement.scrollWidth") == 390
            sign_in(chromium, "nobody")
            wait(chromium, lambda: "accept this token" in one(chromium, "#refused").text)
            script(chromium, "document.getElementById('token').focus()")
            sign_in(chromium, TOKEN)
            wait(chromium, lambda: "name the namespaces" in one(chromium, "#refused").text)
            script(chromium, "document.getElementById('token').focus()")
            sign_in(chromium, TOKEN, "shop")
            wait(chromium, lambda: every(chromium, ".trigger"))
            assert chromium.current_url == url, "a token is in no address"
            assert TOKEN not in chromium.page_source
            assert TOKEN not in str(script(chromium, "document.cookie"))
            titles = [each.text for each in every(chromium, ".flow h2")]
            assert titles == ["shop/main", "shop/orders KafkaChannel"]
            mail, post = every(chromium, ".trigger")
            assert "12 waiting" in mail.text
            assert "3 waiting" in post.text

            open_row(chromium, mail, [])
            open_row(chromium, post, ["Pause"])
            post.find_element("css selector", ".pause").send_keys(Keys.ENTER)
            version = "messaging.knative.dev/v1"

            def paused() -> bool:
                stored = server.found(version, "Subscription", "shop", "mail")
                return stored is not None and "annotations" in stored["metadata"]

            wait(chromium, paused)
            stored = server.found(EVENTING, "Trigger", "shop", "mail")
            assert stored is not None
            assert "annotations" not in stored["metadata"]

            one(chromium, "#sign-out").send_keys(Keys.ENTER)
            wait(chromium, lambda: every(chromium, "#sign-in"))
            chromium.get("about:blank")
            chromium.get_log("browser")  # type: ignore[no-untyped-call]
        assert PODS in server.asked


def test_a_report_is_opened_by_a_link_and_a_button_sends_its_failures_again(
    chromium: Chrome, tmp_path: Path
) -> None:
    traced = sample_example(1, trace="0af7651916cd43dd8448eb211c80319c")
    group = sample_group(1, examples=(traced,), unresolved=3, summary="")
    memory, version = MemoryLog(), "knafka.dev/v1alpha1"
    report_in(memory, ArchiveName("shop", "kept"), sample_report(group, sample_group(2)))
    with console_cluster() as (server, client):
        client.configuration.api_key = {"authorization": "Bearer function"}
        put_archives(server)
        server.users = {"function": lambda _: True, TOKEN: lambda each: each["namespace"] == "shop"}
        with function(client, ReportTopics(lambda _: MemoryAdmin(memory))) as url:
            look_as(chromium, 390, 844, dark=True)
            chromium.get(url)
            sign_in(chromium, TOKEN, "shop")
            wait(chromium, lambda: every(chromium, ".trigger"))
            one(chromium, "#reports summary").send_keys(Keys.ENTER)
            wait(chromium, lambda: every(chromium, "#reports li"))
            assert "7 unresolved events in 2 failures" in one(chromium, "#reports").text
            link = one(chromium, "#reports a").get_attribute("href")

            chat = tmp_path / "chat.html"  # another site: its links carry no cookie of ours
            chat.write_text(f'<a href="{link}">Report</a>')
            chromium.get(chat.as_uri())
            one(chromium, "a").click()
            wait(chromium, lambda: every(chromium, ".opener"))
            assert chromium.current_url == f"{url}report?of=shop/kept"
            row = one(chromium, f'[id="{group.id}"] .opener')
            row.send_keys(Keys.ENTER)
            wait(chromium, lambda: one(chromium, ".send").is_displayed())
            assert script(chromium, "document.documentElement.scrollWidth") == 390
            trace = one(chromium, ".examples a").get_attribute("href")
            assert trace == f"https://traces.test/{traced.trace}"
            assert one(chromium, ".send").text == "Send 3 events again…"
            assert one(chromium, ".send-one").is_displayed()
            one(chromium, ".send").send_keys(Keys.ENTER)
            one(chromium, "#ask .copy").send_keys(Keys.ENTER)
            wait(chromium, lambda: every(chromium, ".replays li"))
            (path,) = [each for each in server.objects if "/deadletterreplays/" in each]
            made = server.objects[path]
            select = made["spec"]["select"]
            assert (made["spec"]["archive"], select["trigger"]) == ("kept", group.trigger)
            assert select["summary"] == "", "only failures without an error text"
            assert "Pending" in one(chromium, ".replays").text
            server.put(
                version, "DeadLetterReplay", "shop", made["metadata"]["name"],
                metadata=made["metadata"], spec=made["spec"],
                status={"phase": "Succeeded", "sent": 3},
            )  # fmt: skip
            wait(chromium, lambda: "Succeeded" in one(chromium, ".replays").text)
            assert "3 events sent" in one(chromium, ".replays").text
            assert TOKEN not in chromium.page_source
            chromium.delete_all_cookies()
            chromium.get("about:blank")
            assert [
                each
                for each in chromium.get_log("browser")  # type: ignore[no-untyped-call]
                if "401" not in each["message"]
            ] == []


def test_a_token_that_has_expired_leads_back_to_the_sign_in_page(chromium: Chrome) -> None:
    with console_cluster() as (server, client):
        may(server)
        with function(client) as url:
            look_as(chromium, 1280, 900, dark=False)
            chromium.get(url)
            sign_in(chromium, TOKEN, "shop")
            wait(chromium, lambda: every(chromium, ".trigger"))
            server.users = {}
            wait(chromium, lambda: every(chromium, "#sign-in"))
            assert "knafka-session" not in str(script(chromium, "document.cookie"))
            chromium.get("about:blank")
            chromium.get_log("browser")  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("dark", [False, True])
def test_the_sign_in_page_is_readable(chromium: Chrome, dark: bool) -> None:
    with console_cluster() as (_, client), function(client) as url:
        look_as(chromium, 1280, 900, dark=dark)
        chromium.get(url)
        wait(chromium, lambda: script(chromium, "document.documentElement.dataset.ready"))
        assert [each.text for each in every(chromium, "label")] != []
        for field in every(chromium, "input"):
            colours = script(
                chromium,
                "['color', 'backgroundColor'].map((each) => getComputedStyle(arguments[0])[each])",
                field,
            )
            assert isinstance(colours, list)
            assert colours[0] != colours[1]
        chromium.get("about:blank")
        chromium.get_log("browser")  # type: ignore[no-untyped-call]
