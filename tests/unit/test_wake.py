"""Waking a dispatcher: its readiness is asked, which has Knative start a pod."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from knafka_operator.decisions.status import NotReady
from knafka_operator.functions.probe import wake


class Dispatcher:
    """Answers, as long as it is there."""

    def __init__(self) -> None:
        self.status = 200
        self.asked: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        return web.Response(status=self.status)


@pytest.fixture
async def dispatcher() -> AsyncIterator[Dispatcher]:
    dispatcher, app = Dispatcher(), web.Application()
    app.router.add_route("*", "/{path:.*}", dispatcher.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    dispatcher.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield dispatcher
    await runner.cleanup()


async def test_a_dispatcher_is_awake_when_it_says_that_it_is_ready(dispatcher: Dispatcher) -> None:
    await wake(dispatcher.url)
    assert dispatcher.asked == ["GET /health/readiness"]


async def test_one_that_isnt_ready_takes_nothing_over_yet(dispatcher: Dispatcher) -> None:
    dispatcher.status = 503
    with pytest.raises(NotReady, match="answered 503") as raised:
        await wake(dispatcher.url)
    assert (raised.value.reason, raised.value.transient) == ("ProbeFailed", True)


async def test_one_that_cant_be_reached_takes_nothing_over_yet() -> None:
    with pytest.raises(NotReady, match="doesn't answer"):
        await wake("http://127.0.0.1:1")
