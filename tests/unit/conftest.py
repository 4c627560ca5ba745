"""Fixtures that more than one module of unit tests shares."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.receiving import Server
from support.scaling import FakeDrains, FakeLags

from knafka.clients import http_subscriber


@pytest.fixture
def idle_connections_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a connection which is closed was closed for the reason under test."""
    monkeypatch.setattr(http_subscriber, "IDLE_SECONDS", 1000.0)


@pytest.fixture
def lags() -> FakeLags:
    return FakeLags()


@pytest.fixture
def drains() -> FakeDrains:
    return FakeDrains()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A receiver, which must be left without connections."""
    server = Server()
    await server.start()
    yield server
    await server.stop()
