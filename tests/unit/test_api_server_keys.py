"""The keys of senders' tokens, as the API server has them (issue 38)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from support.api_keys import serving_tls
from support.replacing import replace_in
from support.senders import EC_KEY, EC_KEY_ID, ISSUER, KEY_ID, KEYS, NOW, RSA_KEY, jwk, jwks

from knafka.clients.kubernetes import api_server_keys
from knafka.clients.kubernetes.api_server import MAX_RESPONSE_BYTES
from knafka.clients.kubernetes.api_server_keys import (
    DISCOVERY,
    FAILED_READ_INTERVAL,
    JWKS,
    KEY_READ_INTERVAL,
    MAX_KEYS,
    UNKNOWN_KEY_READ_INTERVAL,
    ApiServerKeys,
    KeysUnreadable,
    fetch_with_credentials,
    parse_keys,
)
from knafka.core.errors import InvalidDocument
from knafka.core.tokens.auth_tokens import LEEWAY

OLD = 0.0
"""When a token was issued, long before the keys were read."""


class ApiServer:
    def __init__(self) -> None:
        self.discovery = json.dumps({"issuer": ISSUER, "jwks_uri": "https://elsewhere/"}).encode()
        self.jwks = KEYS
        self.error: Exception | None = None
        self.asked: list[str] = []

    def fetch(self, path: str) -> bytes:
        self.asked.append(path)
        if self.error is not None:
            raise self.error
        return {DISCOVERY: self.discovery, JWKS: self.jwks}[path]


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    async def here(call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    replace_in(
        monkeypatch, api_server_keys, "asyncio", to_thread=here
    )  # looptime's clock knows no threads
    return ApiServer()


@asynccontextmanager
async def followed(server: ApiServer) -> AsyncIterator[ApiServerKeys]:
    """Not a fixture: those have another clock."""
    loop = asyncio.get_running_loop()
    keys = ApiServerKeys(server.fetch, loop.time, lambda: NOW + loop.time())
    following = asyncio.create_task(keys.follow())
    await keys.tried.wait()
    try:
        yield keys
    finally:
        following.cancel()
        await asyncio.wait({following})


@pytest.mark.looptime
async def test_issuer_and_keys_are_read_at_the_start(server: ApiServer) -> None:
    async with followed(server) as keys:
        assert keys.issuer == ISSUER
        assert server.asked == [DISCOVERY, JWKS], "whatever the document says of where they are"
        assert keys.find(KEY_ID) is not None
        assert keys.find("../" + KEY_ID) is None


@pytest.mark.looptime
async def test_an_unknown_key_has_them_read_at_most_once_in_a_while(server: ApiServer) -> None:
    async with followed(server) as keys:
        await asyncio.sleep(1)
        assert not keys.request_read(OLD), "they have just been"
        await asyncio.sleep(UNKNOWN_KEY_READ_INTERVAL)
        asked = len(server.asked)
        assert all(keys.request_read(OLD) for _ in range(1000))
        await asyncio.sleep(1)
        assert len(server.asked) == asked + 2
        assert not keys.request_read(OLD)


@pytest.mark.looptime
async def test_a_token_that_is_newer_than_the_keys_that_were_read_may_be_of_a_newer_key(
    server: ApiServer,
) -> None:
    """So it is to be sent again, and never refused: its key may be a second old."""
    loop = asyncio.get_running_loop()
    async with followed(server) as keys:
        await asyncio.sleep(1)
        read = NOW + loop.time() - 1
        assert keys.request_read(read + 1)
        assert keys.request_read(read - LEEWAY + 1), "by whosever clock"
        assert not keys.request_read(read - LEEWAY - 1)
        asked = len(server.asked)
        await asyncio.sleep(UNKNOWN_KEY_READ_INTERVAL / 2)
        assert len(server.asked) == asked, "whoever invents tokens causes no more"


@pytest.mark.looptime
async def test_a_key_that_is_rotated_is_found(server: ApiServer) -> None:
    async with followed(server) as keys:
        before = keys.generation
        await asyncio.sleep(KEY_READ_INTERVAL + 1)
        assert keys.generation == before, "nothing has changed"
        server.jwks = jwks(jwk(EC_KEY, "new"))
        await asyncio.sleep(KEY_READ_INTERVAL)
        assert keys.generation == before + 1
        assert keys.find("new") is not None
        assert keys.find(KEY_ID) is None


@pytest.mark.looptime
@pytest.mark.parametrize("broken", ["away", "no document", "no keys", "no issuer"])
async def test_while_the_api_server_is_away_what_was_read_is_used_on(
    server: ApiServer,
    broken: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_server_keys.log, "filters", [])  # it says each thing once a minute
    async with followed(server) as keys:
        caplog.set_level(logging.WARNING)
        match broken:
            case "away":
                server.error = OSError("away")
            case "no document":
                server.jwks = b"<html>"
            case "no keys":
                server.jwks = jwks()
            case _:
                server.discovery = b"{}"
        await asyncio.sleep(2 * KEY_READ_INTERVAL)
        assert keys.find(KEY_ID) is not None
        assert keys.issuer == ISSUER
        assert keys.request_read(OLD), "nobody can say that there is no such key"
        assert "the API server's keys for senders' tokens" in caplog.text


@pytest.mark.looptime
async def test_an_api_server_that_is_away_is_asked_again(server: ApiServer) -> None:
    server.error = OSError("away")
    keys = ApiServerKeys(server.fetch, asyncio.get_running_loop().time)
    following = asyncio.create_task(keys.follow())
    await keys.tried.wait()
    assert keys.issuer is None
    for _ in range(1000):
        keys.request_read(OLD)
        await asyncio.sleep(0.01)
    assert len(server.asked) <= 10 / FAILED_READ_INTERVAL + 2, "however often it is asked for"
    server.error = None
    await asyncio.sleep(2 * FAILED_READ_INTERVAL + 0.1)
    assert keys.issuer == ISSUER
    following.cancel()
    await asyncio.wait({following})


@pytest.mark.parametrize(
    "described",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "x", "alg": "HS256"},
        {**jwk(EC_KEY, "x"), "use": "enc"},
        {**jwk(RSA_KEY, "x"), "alg": "HS256"},
        {**jwk(RSA_KEY, "x"), "alg": "none"},
        {**jwk(RSA_KEY, "x"), "kid": 7},
        {**jwk(RSA_KEY, "x"), "n": "AQ"},
        {**jwk(RSA_KEY, "x"), "n": 5},
        {**jwk(EC_KEY, "x"), "crv": "P-999"},
        {**jwk(EC_KEY, "x"), "x": "AAAA"},
        jwk(rsa.generate_private_key(public_exponent=65537, key_size=1024), "x"),
        {"kty": "RSA", "kid": "x"},
        {},
    ],
)
def test_a_key_that_cant_be_used_is_left_out_and_no_other(described: dict[str, Any]) -> None:
    assert set(parse_keys(jwks(described, jwk(EC_KEY, EC_KEY_ID)))) == {EC_KEY_ID}


def test_an_algorithm_that_is_not_named_is_the_keys_usual_one() -> None:
    (key,) = parse_keys(jwks(jwk(EC_KEY, EC_KEY_ID))).values()
    assert set(key.algorithms) == {"ES256"}
    (key,) = parse_keys(jwks(jwk(RSA_KEY, KEY_ID))).values()
    assert set(key.algorithms) == {"RS256"}


def test_keys_are_bounded() -> None:
    many = [jwk(EC_KEY, str(number)) for number in range(MAX_KEYS + 50)]
    assert len(parse_keys(jwks(*many))) == MAX_KEYS


@pytest.mark.parametrize("document", [b"", b"[]", b'{"keys": 7}', b"[" * 100_000, b"\xff"])
def test_what_is_no_jwks_says_so(document: bytes) -> None:
    with pytest.raises(KeysUnreadable):
        parse_keys(document)


def test_keys_come_by_tls_only() -> None:
    with pytest.raises(InvalidDocument, match="want https"):
        fetch_with_credentials("http://kubernetes.default.svc", Path("/nowhere"))


async def test_the_api_server_is_asked_with_the_pods_token_and_ca(tmp_path: Path) -> None:
    async with serving_tls(tmp_path) as api:
        fetch = fetch_with_credentials(api.url, tmp_path)
        (tmp_path / "token").write_text("first\n")
        api.body = KEYS
        assert await asyncio.to_thread(fetch, JWKS) == KEYS
        (tmp_path / "token").write_text("second\n")
        await asyncio.to_thread(fetch, JWKS)
        assert api.tokens == ["Bearer first", "Bearer second"], "it is renewed while we run"
        api.body = b"x" * (MAX_RESPONSE_BYTES + 1)
        with pytest.raises(OSError, match="has more than"):
            await asyncio.to_thread(fetch, JWKS)
        api.status = 302
        with pytest.raises(OSError, match="302"):
            await asyncio.to_thread(fetch, JWKS)
        assert len(api.tokens) == 4, "nobody is redirected to"


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n400\r\n{",
        b"a proxy restarts\r\n\r\n",
    ],
    ids=["a cut chunk", "no HTTP"],
)
async def test_a_response_that_is_cut_or_no_http_is_an_error_of_the_connection(
    tmp_path: Path, raw: bytes
) -> None:
    """As such it is waited out, like all others: Python's library raises no `OSError` for it."""
    async with serving_tls(tmp_path) as api:
        (tmp_path / "token").write_text("secret")
        api.raw = raw
        with pytest.raises(OSError, match="no whole response"):
            await asyncio.to_thread(fetch_with_credentials(api.url, tmp_path), JWKS)


@pytest.mark.looptime
async def test_an_error_that_nobody_has_foreseen_ends_no_reading(server: ApiServer) -> None:
    async with followed(server) as keys:
        server.error = RuntimeError("unforeseen")
        await asyncio.sleep(KEY_READ_INTERVAL + 1)
        assert keys.find(KEY_ID) is not None, "the last keys stay in use"
        server.error, server.jwks = None, jwks(jwk(EC_KEY, "new"))
        await asyncio.sleep(2 * FAILED_READ_INTERVAL)
        assert keys.find("new") is not None


async def test_another_ca_is_not_believed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with serving_tls(tmp_path) as api, serving_tls(other):
        (other / "token").write_text("secret")
        with pytest.raises(OSError, match="CERTIFICATE"):
            await asyncio.to_thread(fetch_with_credentials(api.url, other), JWKS)
        assert api.tokens == []
