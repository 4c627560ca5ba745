"""A function under a foreign server: what its probes and its log are told (FN-2, UX-3)."""

from __future__ import annotations

import signal
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from support.waiting import until

from knafka import hosted as hosted_module
from knafka.core.errors import InvalidDocument
from knafka.dispatcher.function import Dispatcher
from knafka.hosted import Hosted


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


async def test_one_that_can_not_start_says_why_to_its_probe_and_in_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kubernetes shows only the status of a probe's answer, and func ends no process for it."""
    hosted = Hosted(Dispatcher())
    assert hosted.ready() == (False, "starting")
    hosted.start({"KNAFKA_EGRESS": '{"namespace": "default"}'})
    await until(lambda: hosted.ready()[1] != "starting")
    ready, why = hosted.ready()
    assert not ready
    assert why.startswith("KNAFKA_EGRESS: ")
    assert hosted.alive()[0], "a restart would not help"
    said = [each.message for each in caplog.records if each.name == hosted_module.log.name]
    assert said == [f"error: {why}"]

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        pytest.fail("the server answers by itself")

    with pytest.raises(InvalidDocument, match="KNAFKA_EGRESS: "):
        await hosted.handle({}, receive, send)
