"""Metrics are open, or closed by choice (issue 38): then whoever asks shows a token."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from support.dispatchers import Running
from support.drains import World, accept
from support.operator_world import SETTINGS, OperatorWorld, running_operator
from support.waiting import until

from knafka.core.errors import InvalidDocument
from knafka.core.tokens.caller_tokens import (
    CALLERS,
    METRICS_TOKENS,
    SCRAPERS,
    Callers,
    parse_metrics_tokens,
    verifier_of,
)
from knafka.observability import CONTENT_TYPE
from knafka.receiver.answers import Answer
from knafka.receiver.ingest import METRICS_PATH, IngestHandler
from knafka.receiver.observing import ReceiverObservers
from knafka_client.sockets import free_port
from knafka_console.function import metrics_reader
from knafka_console.settings import ConsoleSettings
from knafka_console.sources.metrics import DirectMetrics, MetricsUnavailable
from knafka_operator.functions import services
from knafka_operator.installation.settings import Settings
from knafka_operator.model.resources import SERVING
from knafka_operator.runtime.metrics import MetricsServer

OLD, NEW = "old-old-old-old-old", "new-new-new-new-new"
BOTH = f"{verifier_of(NEW)},{verifier_of(OLD)}"
KNOWN = [pytest.param(OLD, 200, id="old"), pytest.param(NEW, 200, id="new")]
REFUSED = [pytest.param(each, 401, id=each) for each in ("", "letmein", verifier_of(NEW))]


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {token}".encode())] if token else []


@pytest.mark.parametrize(("token", "status"), KNOWN + REFUSED)
async def test_a_receiver_tells_who_has_one_of_the_tokens(token: str, status: int) -> None:
    handler = IngestHandler((), (), observers=ReceiverObservers(scrapers=Callers.parse(BOTH)))
    answered: list[Answer] = []
    handler.handle(b"GET", METRICS_PATH, bearer(token), b"", answered.append)
    await until(lambda: bool(answered))
    assert answered[0].status == status
    assert ((b"www-authenticate", b"Bearer") in answered[0].headers) is (status == 401)
    handler.handle(b"GET", b"/healthz", [], b"", answered.append)
    assert answered[1].status == 200, "probes have no token"


@pytest.mark.looptime
@pytest.mark.parametrize(("token", "status"), KNOWN + REFUSED)
async def test_a_dispatcher_tells_who_has_one_of_them(token: str, status: int) -> None:
    running = Running(World(accept))
    await running.start(**{SCRAPERS: BOTH, CALLERS: verifier_of("its-operators-token")})
    running.headers = bearer(token)
    assert (await running.answer("GET", "/metrics")).status == status
    running.headers = ()
    assert (await running.answer("GET", "/healthz")).status == 200
    await running.dispatcher.stop()


@pytest.mark.parametrize(("token", "status"), KNOWN + REFUSED)
async def test_an_operator_tells_who_has_one_of_them(token: str, status: int) -> None:
    port = free_port()
    async with running_operator() as world:
        server = await MetricsServer.start(
            world.operator, lambda: True, lambda: True, [port], Callers.of((NEW, OLD))
        )
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            url = f"http://127.0.0.1:{port}"
            async with aiohttp.ClientSession(headers=headers) as session:
                async with session.get(f"{url}/metrics") as answer:
                    assert answer.status == status
                    is_metrics = answer.headers["content-type"] == CONTENT_TYPE
                    assert is_metrics is (status == 200)
                async with session.get(f"{url}/healthz") as answer:
                    assert answer.status == 200
        finally:
            await server.close()


async def test_functions_know_the_tokens_by_digests_only() -> None:
    async with running_operator() as world:
        await world.restart(metrics_tokens=(NEW, OLD))
        assert _environment(await _declared(world))[SCRAPERS] == BOTH
        await world.restart()
        assert SCRAPERS not in _environment(await _declared(world))


async def _declared(world: OperatorWorld) -> Any:
    world.declare_broker("shop")
    await world.reconcile_broker("shop")
    service = world.cluster.objects[SERVING, "Service", "shop", "default-kn-receiver"]
    return service["spec"]["template"]["spec"]["containers"][0]


def _environment(container: Any) -> dict[str, str]:
    return services.environment_of(container)


def test_the_console_shows_the_first_of_them() -> None:
    environment = {"KNAFKA_NAMESPACE": "knafka", METRICS_TOKENS: f"{NEW}, {OLD}"}
    settings = ConsoleSettings.from_environment(environment)
    assert settings.metrics_token == NEW
    assert NEW not in repr(settings)
    with pytest.raises(MetricsUnavailable) as caught:
        DirectMetrics("127.0.0.1", 1, token=NEW).read()
    assert NEW not in str(caught.value)


async def test_the_console_of_a_cluster_reads_the_operators_closed_metrics() -> None:
    port = free_port()
    environment = {"KNAFKA_NAMESPACE": "knafka", "KNAFKA_CONSOLE_METRICS": "127.0.0.1"}
    async with running_operator() as world:
        server = await MetricsServer.start(
            world.operator, lambda: True, lambda: True, [port], Callers.of((NEW, OLD))
        )
        try:
            for tokens, is_read in ((f"{NEW},{OLD}", True), ("", False)):
                settings = ConsoleSettings.from_environment({**environment, METRICS_TOKENS: tokens})
                reading = asyncio.to_thread(metrics_reader(settings, port).read)
                if is_read:
                    assert len(await reading) == 1
                else:
                    with pytest.raises(MetricsUnavailable, match="status 401"):
                        await reading
        finally:
            await server.close()


def test_a_token_that_is_none_is_refused_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    environment = {"KNAFKA_NAMESPACE": "knafka", "KNAFKA_IMAGE": "i", METRICS_TOKENS: "letmein"}
    with pytest.raises(InvalidDocument, match="openssl rand -hex 32") as caught:
        Settings.from_environment(environment)
    assert caught.value.path == METRICS_TOKENS
    assert "letmein" not in str(caught.value) + caplog.text
    assert parse_metrics_tokens("") == (), "none: everybody is told"
    assert NEW not in repr(replace(SETTINGS, metrics_tokens=(NEW,)))
