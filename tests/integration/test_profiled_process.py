"""A function's process with profiling, and without (DSP-14)."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.functions import FunctionProcess, dispatcher, receiver
from support.receiver_requests import ingress

from knafka.core.contract import Egress, Kafka, Sink
from knafka.settings import PROFILING

NO_KAFKA = "127.0.0.1:1"
"""A function whose Kafka is away starts, and is all that is needed here."""
EGRESS = Egress(
    namespace="ns",
    broker="b",
    trigger="t",
    topic="events",
    group="g",
    dead_letter_topic="d",
    kafka=Kafka(bootstrap_servers=NO_KAFKA),
    subscriber=Sink(url="http://127.0.0.1:1/"),
)


def listening(process: FunctionProcess) -> set[int]:
    """The ports on which it listens."""
    assert process.process.pid is not None
    found = psutil.Process(process.process.pid).net_connections("tcp")
    return {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}


def ask(port: int, path: str) -> None:
    with suppress(OSError, http.client.HTTPException):
        get(port, path)


@pytest.fixture(params=["receiver", "dispatcher"])
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], FunctionProcess]:
    log = tmp_path / "log"
    if request.param == "receiver":
        return lambda: receiver([ingress(NO_KAFKA)], log)
    return lambda: dispatcher(EGRESS, log)


def get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    return body


@pytest.mark.conformance("DSP-14")
async def test_profiles_of_a_function_are_at_the_port_that_it_says(
    started: Callable[[], FunctionProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROFILING, "enabled")
    async with started() as process:
        await process.ready()
        said = re.search(r"http://127\.0\.0\.1:(\d+)/debug/pprof/", process.log)
        assert said is not None, process.log
        port = int(said[1])
        assert listening(process) == {process.port, port}
        text = (await asyncio.to_thread(get, port, "/debug/pprof/threads?debug=1")).decode()
        assert "thread MainThread" in text
        assert "task " in text
        profile = await asyncio.to_thread(get, port, "/debug/pprof/profile?seconds=0.5")
        assert b"nanoseconds" in gzip.decompress(profile)
        # What goes on beside it doesn't keep the process from ending.
        asking = asyncio.create_task(asyncio.to_thread(ask, port, "/debug/pprof/profile"))
        await process.terminate()
        await asking


async def test_without_it_a_function_listens_on_its_own_port_only(
    started: Callable[[], FunctionProcess],
) -> None:
    async with started() as process:
        await process.ready()
        assert listening(process) == {process.port}
