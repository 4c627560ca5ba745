"""Asking the API server for a service account's token (TokenRequest, issue 38)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from support.token_requests import OWN_AUDIENCE, TokenApi, giving_tokens, token_for, tokens_of

from knafka.clients.kubernetes.api_server_tokens import ApiServerTokens
from knafka.core.tokens.sink_tokens import EXPIRATION, Account
from knafka.ports.account_tokens import TokenUnavailable

MAIL = Account("shop", "mail")


@dataclass
class World:
    api: TokenApi
    tokens: ApiServerTokens

    async def refusal(self, account: Account = MAIL) -> str:
        with pytest.raises(TokenUnavailable) as raised:
            await self.tokens.issue(account, "orders")
        assert raised.value.__cause__ is None
        return str(raised.value)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with giving_tokens(tmp_path, MAIL) as api:
        yield World(api, tokens_of(api, tmp_path))


async def test_one_account_and_one_audience_are_asked_for(world: World) -> None:
    await world.tokens.issue(MAIL, "eventing.knative.dev/broker/shop/default")
    ((method, path, document),) = world.api.requests
    assert (method, path) == ("POST", "/api/v1/namespaces/shop/serviceaccounts/mail/token")
    assert document == {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": ["eventing.knative.dev/broker/shop/default"],
            "expirationSeconds": EXPIRATION,
        },
    }


async def test_its_life_is_what_the_api_server_says_whatever_our_clock_says(world: World) -> None:
    world.api.expiration, world.api.clock = 600.0, timedelta(days=-400)
    assert (await world.tokens.issue(MAIL, "orders")).life == 600.0


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "it answered 403: this pod's service account may not create serviceaccounts/token"),
        (500, "the API server: it answered 500"),
        (302, "the API server: it answered 302"),
        (429, "the API server: it answered 429"),
    ],
)
async def test_what_stands_in_the_way_is_said(world: World, status: int, said: str) -> None:
    world.api.status = status
    assert said in await world.refusal()
    assert len(world.api.requests) == 1, "nobody is redirected to"


async def test_the_pods_own_token_is_shown(world: World) -> None:
    world.api.own = token_for("another")
    assert "401: this pod's own token isn't taken" in await world.refusal()


async def test_an_api_server_that_is_away_is_said(world: World, tmp_path: Path) -> None:
    away = tokens_of(TokenApi(url="https://localhost:1"), tmp_path)
    with pytest.raises(TokenUnavailable, match="refused"):
        await away.issue(MAIL, "orders")


async def test_nobody_is_shown_a_token_with_which_to_ask_the_api_server(
    world: World, tmp_path: Path
) -> None:
    """Who is sent to says for which audience."""
    for audiences in ((OWN_AUDIENCE,), ("another", OWN_AUDIENCE)):
        world.api.own = token_for(*audiences)
        (tmp_path / "token").write_text(world.api.own)
        with pytest.raises(TokenUnavailable, match="the API server's own audience"):
            await world.tokens.issue(MAIL, OWN_AUDIENCE)
    assert world.api.requests == []
    await world.tokens.issue(MAIL, "orders")


@pytest.mark.parametrize("own", ["", "x", "a.b.c", "a.e30.c", "a.NQ.c", "a.eyJhdWQiOiA1fQ.c"])
async def test_where_the_pods_own_token_names_no_audience_none_is_asked_for(
    world: World, tmp_path: Path, own: str
) -> None:
    (tmp_path / "token").write_text(own)
    assert "this pod's own token names no audience" in await world.refusal()
    assert world.api.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"OK",
        b"{}",
        b"[" * 100_000,
        b'{"status": {"token": 5}}',
        b'{"status": {"token": "never shown"}}',
        json.dumps({"status": {"token": "never-shown\r\nce-id: forged"}}).encode(),
        json.dumps({"status": {"token": "never" * 10_000}}).encode(),
        json.dumps({"status": {"token": "x"}, "spec": {"expirationSeconds": 0}}).encode(),
    ],
    ids=lambda body: body[:50].decode(),
)
async def test_what_is_no_token_is_not_taken_for_one_and_not_shown(
    world: World, body: bytes
) -> None:
    world.api.body = body
    said = await world.refusal()
    assert said.startswith("the API server answered with")
    assert "never" not in said


@pytest.mark.parametrize(
    "account",
    [
        Account("../../..", "mail"),
        Account("shop", "../../secrets/x"),
        Account("shop", "mail/token?"),
        Account("shop", ""),
        Account("", "mail"),
        Account("shop", "mail%2f"),
    ],
    ids=str,
)
async def test_a_name_leads_to_no_other_path(world: World, account: Account) -> None:
    assert await world.refusal(account) == "its name is no service account's"
    assert world.api.requests == []
