"""Trust bundles: whom a dispatcher believes, and how a changed bundle reaches it (issue 38)."""

from __future__ import annotations

import json
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from support.raw_server import answering, serving
from support.scaling import SHARD, egress
from support.web_certificates import WebAuthority, write

from knafka.clients.http import trust_bundles
from knafka.clients.http.trust_bundles import TlsContext, TrustBundles
from knafka.core import documents
from knafka.core.errors import DeliveryError, InvalidDocument
from knafka.dispatcher import function
from knafka.settings import EGRESS
from knafka.settings import SHARD as SHARD_VARIABLE
from knafka.settings import trust_bundles as folder_of

OK = answering(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
CLOSING = answering(
    b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
)


@pytest.fixture
def authority() -> WebAuthority:
    return WebAuthority("one")


@pytest.fixture(autouse=True)
def looking_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust_bundles, "FOLDER_CHECK_INTERVAL", 0.0)


async def test_a_destination_of_a_bundles_authority_is_believed(
    tmp_path: Path, authority: WebAuthority
) -> None:
    write(tmp_path / "trust", {"bundle.pem": authority.certificate})
    server = authority.server_context(tmp_path / "server")
    bundles = TrustBundles(tmp_path / "trust")
    async with serving(OK, tls=server, bundles=bundles) as (_, post):
        assert (await post()).status == 202


async def test_a_bundle_that_comes_later_needs_no_other_process(
    tmp_path: Path, authority: WebAuthority
) -> None:
    """The attempt before it fails, and is the delivery spec's to repeat."""
    server = authority.server_context(tmp_path / "server")
    bundles = TrustBundles(tmp_path / "trust")
    async with serving(OK, tls=server, bundles=bundles) as (_, post):
        with pytest.raises(DeliveryError, match="certificate verify failed") as caught:
            await post()
        assert caught.value.reason == "refused"
        write(tmp_path / "trust", {"bundle.pem": authority.certificate})
        assert (await post()).status == 202


async def test_an_authority_that_was_taken_out_is_not_believed_any_more(
    tmp_path: Path, authority: WebAuthority
) -> None:
    write(tmp_path / "trust", {"bundle.pem": authority.certificate})
    server = authority.server_context(tmp_path / "server")
    bundles = TrustBundles(tmp_path / "trust")
    async with serving(CLOSING, OK, tls=server, bundles=bundles) as (_, post):
        await post()
        write(tmp_path / "trust", {"bundle.pem": WebAuthority("other").certificate})
        with pytest.raises(DeliveryError, match="certificate verify failed"):
            await post()


async def test_a_destinations_own_authorities_are_believed_beside_a_bundles(
    tmp_path: Path, authority: WebAuthority
) -> None:
    write(tmp_path / "trust", {"bundle.pem": WebAuthority("other").certificate})
    server = authority.server_context(tmp_path / "server")
    bundles = TrustBundles(tmp_path / "trust")
    own = authority.certificate
    async with serving(OK, tls=server, bundles=bundles, ca_certs=own) as (_, post):
        assert (await post()).status == 202


def test_a_file_without_certificates_takes_the_others_nothing(
    tmp_path: Path, authority: WebAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {"a.pem": "nothing", "b.pem": authority.certificate.rstrip("\n")})
    with caplog.at_level(logging.WARNING):
        assert TrustBundles(tmp_path).read() == authority.certificate
    assert "a.pem holds no certificates" in caplog.text


def test_a_link_to_a_file_that_is_gone_takes_the_others_nothing(
    tmp_path: Path, authority: WebAuthority
) -> None:
    """kubelet removes a file's link only after it has replaced the folder behind all links."""
    other = WebAuthority("other").certificate
    write(tmp_path, {"a.pem": authority.certificate, "b.pem": other})
    bundles = TrustBundles(tmp_path)
    assert bundles.read() == authority.certificate + other
    (tmp_path / "b.pem").resolve().unlink()
    assert (tmp_path / "b.pem").is_symlink()
    assert bundles.read() == authority.certificate
    (tmp_path / "b.pem").unlink()
    assert bundles.read() == authority.certificate


def test_a_folder_that_is_gone_has_no_authorities(tmp_path: Path, authority: WebAuthority) -> None:
    folder = tmp_path / "trust"
    write(folder, {"a.pem": authority.certificate})
    bundles = TrustBundles(folder)
    assert bundles.read() == authority.certificate
    folder.rename(tmp_path / "elsewhere")
    assert bundles.read() == ""


def test_a_folder_is_looked_at_once_a_second_whoever_connects(
    tmp_path: Path, authority: WebAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust_bundles, "FOLDER_CHECK_INTERVAL", 1.0)
    now = 100.0
    bundles = TrustBundles(tmp_path, lambda: now)
    assert bundles.read() == ""
    write(tmp_path, {"bundle.pem": authority.certificate})
    assert bundles.read() == ""
    now = 101.0
    assert bundles.read() == authority.certificate


def test_a_context_is_made_once_for_one_state_of_the_bundles(
    tmp_path: Path, authority: WebAuthority
) -> None:
    """It takes milliseconds to read the system's authorities."""
    made = []

    def make() -> ssl.SSLContext:
        made.append(1)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    context = TlsContext(make, None, TrustBundles(tmp_path))
    assert context.current() is context.current()
    write(tmp_path, {"bundle.pem": authority.certificate})
    assert context.current() is context.current()
    assert len(made) == 2


@pytest.mark.parametrize("shared", [False, True])
async def test_a_dispatcher_trusts_the_bundles_in_its_folder(
    tmp_path: Path, authority: WebAuthority, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    write(tmp_path, {"bundle.pem": authority.certificate})
    given: list[TrustBundles] = []

    def connect(_: object, bundles: TrustBundles, **others: object) -> Any:
        given.append(bundles)
        raise InvalidDocument("", "enough")

    monkeypatch.setattr(function, "connect_shard" if shared else "connect", connect)
    contract = documents.dump(SHARD if shared else egress("orders"))
    name = SHARD_VARIABLE if shared else EGRESS
    with pytest.raises(InvalidDocument, match="enough"):
        await function.Dispatcher().start(
            {name: json.dumps(contract), "KNAFKA_TRUST_BUNDLES": str(tmp_path)}
        )
    assert given[0].read() == authority.certificate


def test_a_dispatcher_without_the_setting_has_no_bundles() -> None:
    assert folder_of({}) is None
    assert folder_of({"KNAFKA_TRUST_BUNDLES": "/trust"}) == Path("/trust")
