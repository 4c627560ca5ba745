"""What everything that gives tokens of service accounts promises: the API server and memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.memory.account_tokens import MemoryTokens
from support.token_requests import giving_tokens, tokens_of

from knafka.core.tokens.sink_tokens import EXPIRATION, Account
from knafka.ports.account_tokens import AccountTokens, TokenUnavailable

MAIL = Account("shop", "mailoidc-eventing.knative.dev-trigger")
BILLS = Account("shop", "billsoidc-eventing.knative.dev-trigger")


@pytest.fixture(params=["API server", "memory"])
async def tokens(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AccountTokens]:
    if request.param == "memory":
        yield MemoryTokens(MAIL, BILLS)
        return
    async with giving_tokens(tmp_path, MAIL, BILLS) as api:
        yield tokens_of(api, tmp_path)


async def test_a_token_is_of_one_account_for_one_audience(tokens: AccountTokens) -> None:
    mail = await tokens.issue(MAIL, "orders")
    assert mail.value.startswith(b"shop.mailoidc-eventing.knative.dev-trigger.orders")
    assert mail.life == EXPIRATION
    assert mail.is_usable
    bills = await tokens.issue(BILLS, "orders")
    assert bills.value.startswith(b"shop.billsoidc")
    assert (await tokens.issue(MAIL, "a/b")).value.startswith(b"shop.mailoidc")


async def test_each_request_brings_another_one(tokens: AccountTokens) -> None:
    assert (await tokens.issue(MAIL, "orders")).value != (await tokens.issue(MAIL, "orders")).value


async def test_an_account_that_is_not_there_has_none(tokens: AccountTokens) -> None:
    with pytest.raises(TokenUnavailable, match="404: there is no such service account"):
        await tokens.issue(Account("shop", "absent"), "orders")
