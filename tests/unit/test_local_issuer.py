"""The issuer of `knafka up --require-auth`: its key, its tokens, and who believes them."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import jwt
import pytest
from support.receiving import Server
from support.replacing import replace_in
from typer.testing import CliRunner

from knafka import settings
from knafka.clients.kubernetes.api_server import CA, ask_with_credentials, own_audiences
from knafka.clients.kubernetes.api_server_keys import (
    ApiServerKeys,
    fetch_with_credentials,
    parse_keys,
)
from knafka.clients.kubernetes.api_server_tokens import ApiServerTokens
from knafka.core.contract import Ingress, Kafka, Policy
from knafka.core.filters.declared_filters import Exact
from knafka.core.tokens import sink_tokens
from knafka.receiver.authentication import TokenVerifier
from knafka_cli.command_line import app
from knafka_cli.running.up import sender_authorization
from knafka_cli.shared.event_input import sample_event
from knafka_cli.shared.sending import SendResult, send
from knafka_client.state.installation import Installation, RunningState
from knafka_local.tokens import issuer as issuing
from knafka_local.tokens import issuer_server
from knafka_local.tokens.accounts import ServiceAccount
from knafka_local.tokens.issuer import BadIssuer, Issuer, TokenProvider

AUDIENCE = "eventing.knative.dev/broker/ns/broker"
WEB = ServiceAccount("shop", "web")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of an issuer: to make a key takes a moment."""
    folder = tmp_path_factory.mktemp("data") / "issuer"
    Issuer.load_or_create(folder)
    return folder


@asynccontextmanager
async def following(folder: Path) -> AsyncIterator[ApiServerKeys]:
    """What a receiver knows of the issuer that is served."""
    async with issuer_server.serve_issuer(folder) as environment:
        url = settings.oidc_url(environment)
        assert url is not None
        keys = ApiServerKeys(fetch_with_credentials(url, settings.oidc_folder(environment)))
        task = asyncio.create_task(keys.follow())
        try:
            await keys.tried.wait()
            yield keys
        finally:
            task.cancel()
            await asyncio.wait({task})


async def test_a_receiver_believes_its_tokens_by_what_is_served_over_tls(folder: Path) -> None:
    async with following(folder) as keys:
        verifier = TokenVerifier(keys)
        token = Issuer.load(folder).token(WEB, [AUDIENCE, "another"], 60)
        assert verifier.verify(token.encode(), AUDIENCE) == "system:serviceaccount:shop:web"


async def test_what_is_sent_as_somebody_is_taken_by_a_receiver_that_asks(folder: Path) -> None:
    async with following(folder) as keys:
        orders = Policy(subjects=(WEB.subject,), filters=(Exact(exact={"type": "order"}),))
        server = Server(verifier=TokenVerifier(keys), audience=AUDIENCE, policies=(orders,))
        await server.start()
        url = f"http://127.0.0.1:{server.port}/ns/broker"
        answers: list[SendResult] = []
        sender = TokenProvider(Issuer.load(folder), WEB, AUDIENCE)
        for type_, header in (("order", sender.header), ("bill", sender.header), ("order", bytes)):
            event = sample_event({"type": type_}, b"{}", 1)
            await send([event], url, answers.append, authorization=header)
            await send([event], url, answers.append, authorization=header, batch=1)
        assert [each.status for each in answers] == [202, 202, 403, 403, 401, 401]
        assert len(server.values) == 2
        await server.stop()


async def test_tokens_survive_a_restart_as_the_key_is_kept(folder: Path) -> None:
    token = Issuer.load(folder).token(WEB, [AUDIENCE], 60).encode()
    for _ in range(2):
        async with following(folder) as keys:
            assert TokenVerifier(keys).verify(token, AUDIENCE) == WEB.subject


def test_nobody_else_reads_the_key(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / issuing.KEY_FILE).stat().st_mode) == 0o600


async def test_what_is_served_is_public_and_the_tls_key_stays_nowhere(folder: Path) -> None:
    async with issuer_server.serve_issuer(folder) as environment:
        url = settings.oidc_url(environment)
        assert url is not None
        fetch = fetch_with_credentials(url, folder)
        for path in ("/", "/signing.key", "/../signing.key", "/openid/v1/jwks/x"):
            with pytest.raises(OSError, match="404"):
                await asyncio.to_thread(fetch, path)
        assert b'"d"' not in await asyncio.to_thread(fetch, "/openid/v1/jwks")
        there = await asyncio.to_thread(lambda: {file.name for file in folder.iterdir()})
        assert there == {CA, "token", "tls.crt", issuing.KEY_FILE}


async def test_dispatchers_get_tokens_as_from_an_api_server_and_nobody_else_does(
    folder: Path,
) -> None:
    """Every account of the machine reaches loopback; the functions' folder is the user's."""
    async with following(folder) as keys, issuer_server.serve_issuer(folder) as environment:
        url = settings.oidc_url(environment)
        assert url is not None
        ask = ask_with_credentials(url, folder)
        tokens = ApiServerTokens(ask, partial(own_audiences, folder))
        issued = await tokens.issue(sink_tokens.Account("shop", "web"), AUDIENCE)
        assert 3500 < issued.life <= 3600
        subject = TokenVerifier(keys).verify(issued.value, AUDIENCE)
        assert subject == "system:serviceaccount:shop:web"
        (folder / "token").write_text("another")
        with pytest.raises(OSError, match="401"):
            await asyncio.to_thread(ask, "/api/v1/namespaces/shop/serviceaccounts/web/token", b"{}")


@pytest.mark.parametrize("text", ["", "-----BEGIN PRIVATE KEY-----\nAAAA", "x" * 10_000])
def test_a_key_that_cant_be_used_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / issuing.KEY_FILE).write_text(text)
    with pytest.raises(BadIssuer, match="delete it and start `knafka up --require-auth`"):
        Issuer.load_or_create(tmp_path)
    assert (tmp_path / issuing.KEY_FILE).read_text() == text, "nothing is lost"


def test_a_sender_shows_one_token_until_half_of_its_life_is_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    replace_in(monkeypatch, issuing, "time", time=lambda: now)
    sender = TokenProvider(Issuer.load(folder), WEB, AUDIENCE)
    first = sender.header()
    assert first.startswith(b"authorization: Bearer ")
    now += TokenProvider.LIFETIME / 2 - 1
    assert sender.header() == first
    now += 1
    assert sender.header() != first


# knafka token


def token(data: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["token", *arguments, "--data-dir", str(data)])
    return result.exit_code, result.output + (str(result.exception or ""))


def running(installation: Installation, *audiences: str | None) -> None:
    """Have it look as if these Brokers were served."""
    kafka = Kafka(bootstrap_servers="x:1")
    ingresses = tuple(
        Ingress(namespace="default", broker=f"b{number}", topic="t", kafka=kafka, audience=audience)
        for number, audience in enumerate(audiences)
    )
    url = "http://127.0.0.1:1"
    installation.write_state(
        RunningState(pid=1, url=url, bootstrap_servers="x:1", ingresses=ingresses)
    )


@pytest.mark.parametrize(
    ("audiences", "options"),
    [
        ([AUDIENCE], []),
        (["x", AUDIENCE], ["--broker", "b1"]),
        ([], ["--audience", AUDIENCE, "--audience", "x"]),
        ([AUDIENCE], ["--duration", "90s"]),
        ([AUDIENCE], ["--duration", "1.5h"]),
    ],
)
def test_a_token_is_printed_that_its_audience_believes(
    folder: Path, audiences: list[str], options: list[str]
) -> None:
    installation = Installation(folder.parent)
    with installation.hold_lock():
        running(installation, *audiences)
        code, output = token(folder.parent, "shop/web", *options)
    assert code == 0, output

    class Served:
        issuer, generation, keys = issuing.ISSUER, 1, parse_keys(Issuer.load(folder).jwks)
        find = keys.get

        def request_read(self, issued: float) -> bool:
            return False

    assert TokenVerifier(Served()).verify(output.strip().encode(), AUDIENCE) == WEB.subject


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ["web"],
            2,
            "Broker default/b0 requires no tokens: start it with `knafka up --require-auth`",
        ),
        (["Web"], 2, "is no service account: give [NAMESPACE/]NAME"),
        (["web", "--duration", "soon"], 2, "no duration: give one such as 90s"),
        (["web", "--duration", "0s"], 2, "no duration: give one such as 90s"),
        (["web", "--duration", f"{'9' * 400}d"], 2, "no duration: give one such as 90s"),
        (["web", "--broker", "b9"], 2, "there is no Broker b9: there is default/b0"),
        (["web", "--broker", "b0", "--audience", "x"], 2, "not both"),
        (["web", "--audience", ""], 2, "give the audience of a Broker"),
        (["web", "--audience", "x"], 1, "start one with `knafka up --require-auth`"),
    ],
)
def test_a_token_that_cant_be_had_says_what_to_do(
    tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    installation = Installation(tmp_path)
    with installation.hold_lock():
        running(installation, None)
        came_to, output = token(tmp_path, *arguments)
    assert came_to == code
    assert says in " ".join(output.replace("│", " ").split())


@pytest.mark.parametrize(("audience", "shows"), [(AUDIENCE, True), (None, False)])
def test_what_knafka_up_sends_itself_is_its_namespaces_default_accounts(
    folder: Path, audience: str | None, shows: bool
) -> None:
    """`knafka up --send FILE`: as a pod that names no service account."""
    kafka = Kafka(bootstrap_servers="x:1")
    ingress = Ingress(namespace="shop", broker="b", topic="t", kafka=kafka, audience=audience)
    url = "http://127.0.0.1:1"
    state = RunningState(pid=1, url=url, bootstrap_servers="x:1", ingresses=(ingress,))
    header = sender_authorization(state, folder.parent, f"{url}/shop/b")()
    assert header.startswith(b"authorization: Bearer ") is shows
    if shows:
        claims = jwt.decode(header.split()[2], options={"verify_signature": False})
        assert claims["sub"] == "system:serviceaccount:shop:default"
        assert claims["aud"] == [AUDIENCE]
