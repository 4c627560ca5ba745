"""The functions under other people's servers: functions-framework, func's contract, our image."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any, Final

import pytest
from support import functions, traffic
from support.func_source import Scaffolding
from support.kafka import Kafka, MakeTopic, fill
from support.sensors import SensorWorld
from support.waiting import until, until_found

from knafka import hosted, settings
from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import contract, documents
from knafka.core.addresses import LOCAL_ADDRESSES
from knafka.core.contract import Egress, Ingress, Sink
from knafka.core.drain import DrainProgress, DrainRequest, Ended
from knafka.core.errors import LogError

ROOT = Path(__file__).parents[2]
MAIN = ROOT / "functions" / "main.py"
EVENT = (
    b"POST /test/hosted HTTP/1.1\r\nhost: x\r\nconnection: close\r\nce-specversion: 1.0\r\n"
    b"ce-id: k-0\r\nce-source: /s\r\nce-type: t\r\nce-subject: k\r\ncontent-length: 4\r\n\r\ndata"
)
AT_ROOT = EVENT.replace(b"POST /test/hosted", b"POST /").replace(b"k-0", b"k-1")
"""As `func invoke -f cloudevent` sends one: it knows no path."""
FUNC: Final = "func's scaffolding"

pytestmark = pytest.mark.kafka


def ingress_on(kafka: Kafka, topic: str) -> Ingress:
    connection = contract.Kafka(bootstrap_servers=kafka.bootstrap_servers)
    return Ingress(namespace="test", broker="hosted", topic=topic, kafka=connection)


def egress_on(kafka: Kafka, topic: str, url: str) -> Egress:
    return Egress(
        namespace="test",
        broker="hosted",
        trigger="t",
        topic=topic,
        group=f"group-{topic}",
        dead_letter_topic="unused",
        kafka=contract.Kafka(bootstrap_servers=kafka.bootstrap_servers),
        subscriber=Sink(url=url),
    )


async def commit_at_the_end(kafka: Kafka, topic: str) -> None:
    """Of the group of `egress_on`; waits until every part of Kafka knows the new topic."""
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})

    async def is_committed() -> bool:
        with contextlib.suppress(LogError):
            await admin.ensure_committed(f"group-{topic}", topic)
            return True
        return False

    await until_found(is_committed)
    await admin.close()


@contextlib.asynccontextmanager
async def hosting(*command: str, **environment: str) -> AsyncIterator[functions.FunctionProcess]:
    """A server that binds PORT, or func's LISTEN_ADDRESS, by itself, seen as a function process."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    listen = {"PORT": str(port), "HOST": "127.0.0.1", "LISTEN_ADDRESS": f"127.0.0.1:{port}"}
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **listen, LOCAL_ADDRESSES: "allowed", **environment}
    )
    function = functions.FunctionProcess.of(process, port)
    try:
        yield function
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(15):
                await process.wait()


async def status_of(function: functions.FunctionProcess, request: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", function.port)
    writer.write(request)
    response = await reader.read()
    writer.close()
    return int(response.split(b" ")[1])


def command_of(how: str, target: str, request: pytest.FixtureRequest) -> tuple[str, ...]:
    if how == FUNC:
        scaffolding: Scaffolding = request.getfixturevalue("func_scaffolding")
        return scaffolding.command
    if how == "functions-framework":
        module = ("functions_framework", "--source", str(MAIN), "--target", target)
        return (sys.executable, "-m", *module)
    return (sys.executable, "-m", "knafka")


@pytest.mark.parametrize("how", ["functions-framework", "the image's command", FUNC])
async def test_two_events_go_through_both_functions(
    how: str, kafka: Kafka, topic: MakeTopic, request: pytest.FixtureRequest
) -> None:
    """FN-12, FN-13, FF-2, UX-1: the same code, started by name; the second event comes as
    `func invoke` sends it."""
    name = topic(partitions=2)
    await commit_at_the_end(kafka, name)
    async with contextlib.AsyncExitStack() as stack:
        subscriber = await stack.enter_async_context(traffic.CountingSubscriber())
        ingresses = json.dumps([documents.dump(ingress_on(kafka, name))])
        egress = json.dumps(documents.dump(egress_on(kafka, name, subscriber.url)))
        receiver = await stack.enter_async_context(
            hosting(
                *command_of(how, "receive", request),
                **{settings.INGRESSES: ingresses, "FUNCTION_TARGET": "receive"},
            )
        )
        dispatcher = await stack.enter_async_context(
            hosting(
                *command_of(how, "dispatch", request),
                **{settings.EGRESS: egress, "FUNCTION_TARGET": "dispatch"},
            )
        )
        await receiver.ready()
        await dispatcher.ready()
        assert await status_of(receiver, EVENT) == 202
        assert await status_of(receiver, AT_ROOT) == 202
        assert await status_of(receiver, EVENT.replace(b"ce-id: k-0\r\n", b"")) == 400
        asked = DrainRequest(idle=0.5, budget=30)
        progress = [line async for line in functions.drain(dispatcher, asked)]
        assert progress[-1].ended is Ended.IDLE
        assert progress[-1].delivered == 2
        assert subscriber.arrivals.by_key == {"k": [0, 1]}


async def test_sigterm_ends_a_drain_under_functions_framework(
    kafka: Kafka, topic: MakeTopic, request: pytest.FixtureRequest
) -> None:
    """UX-3: no framework tells a function that the process is to end."""
    name = topic(partitions=1)
    egress = json.dumps(documents.dump(egress_on(kafka, name, "http://127.0.0.1:9/")))
    command = command_of("functions-framework", "dispatch", request)
    async with hosting(*command, **{settings.EGRESS: egress}) as dispatcher:
        await dispatcher.ready()
        last = DrainProgress()
        async with asyncio.timeout(20):
            async for last in functions.drain(dispatcher, DrainRequest(idle=60, budget=60)):
                if last.partitions and dispatcher.process.returncode is None:
                    dispatcher.process.send_signal(signal.SIGTERM)
        assert last.ended is Ended.STOPPED


@pytest.mark.conformance("BUS-1")
async def test_a_sensor_under_func_fires_from_its_start(
    kafka: Kafka, topic: MakeTopic, func_scaffolding: Scaffolding
) -> None:
    """FN-13: nobody asks a function that func deployed to drain."""
    world = SensorWorld(kafka, topic)
    world.publish("a1", "b1")
    environment = {
        settings.SENSOR: json.dumps(documents.dump(world.sensor({"t1": "a && b"}))),
        settings.DRAIN_AT_START: "true",
        "FUNCTION_TARGET": "sense",
    }
    async with hosting(*func_scaffolding.command, **environment) as sensor:
        await sensor.ready()
        await until(lambda: world.actions() == ["t1: a1 b1"], within=30)


def test_an_unknown_target_is_refused_with_what_is_allowed() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "knafka"],
        env={**os.environ, "FUNCTION_TARGET": "recieve"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr.splitlines() == [
        "error: FUNCTION_TARGET: invalid value: 'recieve': want receive, dispatch, sense"
    ]


async def test_func_gets_an_instance_with_its_contract(kafka: Kafka, topic: MakeTopic) -> None:
    """FN-2: `new()`; start and stop are plain calls on the loop, alive and ready say why."""
    function = hosted.new()
    assert function.ready() == (False, "starting")
    contracts = json.dumps([documents.dump(ingress_on(kafka, topic()))])
    before = signal.getsignal(signal.SIGTERM)
    try:
        function.start({settings.INGRESSES: contracts})
        await until(lambda: bool(function.ready()[0]))
        assert function.alive() == (True, "alive")
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        attributes = {
            b"ce-specversion": b"1.0",
            b"ce-id": b"1",
            b"ce-source": b"/",
            b"ce-type": b"t",
        }
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/test/hosted",
            "headers": list(attributes.items()),
        }
        await function.handle(scope, receive, send)
        assert sent[0]["status"] == 202
        function.stop()
        await function.wait_until_stopped()
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_dispatcher_under_func_ends_its_attempts_and_leaves_its_group(
    kafka: Kafka, topic: MakeTopic, func_scaffolding: Scaffolding
) -> None:
    """UX-3: else the event would be sent again, and the next one waits for the session's end, 45 s.
    func's server has no open connection to wait for, and ends the loop once `stop` has returned."""
    name = topic(partitions=1)
    fill(kafka.bootstrap_servers, name, keys=1, per_key=1)
    begun, told = asyncio.Event(), asyncio.Event()

    async def behave(key: str, number: int) -> int:
        begun.set()
        await told.wait()
        await asyncio.sleep(0.5)  # as long as func's server would need to end
        return 200

    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    async with traffic.CountingSubscriber(behave) as subscriber:
        environment = {
            settings.EGRESS: json.dumps(documents.dump(egress_on(kafka, name, subscriber.url))),
            settings.DRAIN_AT_START: "true",
            "FUNCTION_TARGET": "dispatch",
        }
        async with hosting(*func_scaffolding.command, **environment) as dispatcher:
            async with asyncio.timeout(30):
                await begun.wait()
            asyncio.get_running_loop().call_later(0, told.set)
            assert await dispatcher.terminate() == 0
        assert subscriber.arrivals.by_key == {"0": [0]}
    assert (await admin.lags([f"group-{name}"], name))[f"group-{name}"].total == 0
    assert await admin.members(f"group-{name}") == []
    await admin.close()
