"""The load tests as they are run: locust without its page, a real receiver, Kafka, dispatcher."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.functions import receiver
from support.kafka import Kafka, MakeTopic
from support.trigger_world import Held, TriggerWorld

from knafka.core import contract
from knafka.core.contract import Delivery, Ingress

LOADTESTS = Path(__file__).parents[2] / "loadtests"

EVENTS = 100

pytestmark = pytest.mark.kafka


@asynccontextmanager
async def counting_subscriber(*options: str) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, LOADTESTS / "subscriber.py", "--port", "0", *options,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        yield line.decode().split()[-1]
    finally:
        process.kill()
        await process.wait()


async def locust(host: str, subscriber: str, *options: str) -> tuple[int, str]:
    """Run locust until it has had some events accepted; returns its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "locust", "-f", LOADTESTS / "locustfile.py", "--headless",
        "--host", host, "--subscriber", subscriber, "-u", "5", "-r", "5", "-t", "60s",
        "--events", str(EVENTS), "--stop-timeout", "5", "--each", "20", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode is not None
    return process.returncode, output.decode()


def summary_in(output: str) -> dict[str, int]:
    """`accepted 12, received 12: lost 0, ...` as numbers."""
    line = next(line for line in output.splitlines() if line.startswith("accepted "))
    words = line.replace(",", "").replace(":", "").split()
    return {name: int(count) for name, count in zip(words[::2], words[1::2], strict=True)}


async def test_what_locust_sends_arrives_once_and_in_order_though_the_subscriber_fails_at_times(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """BRK-12: retries of the dispatcher and both content modes, with per-key order."""
    world = TriggerWorld(kafka, topic, tmp_path, partitions=4)
    ingress = Ingress(
        namespace="load", broker="test", topic=world.topic,
        kafka=contract.Kafka(bootstrap_servers=kafka.bootstrap_servers),
    )  # fmt: skip
    delivery = Delivery(retry=5, backoff_delay=0.05)
    async with (
        counting_subscriber("--fail-every", "10") as subscriber,
        receiver([ingress], tmp_path / "receiver.log") as inlet,
        world.dispatcher(subscriber, delivery=delivery) as outlet,
    ):
        await inlet.ready()
        drain = Held(outlet)
        code, output = await locust(f"{inlet.url}{ingress.path}", subscriber)
        await drain.hang_up()
    counts = summary_in(output)
    assert counts["accepted"] >= EVENTS
    assert (counts["lost"], counts["reordered"]) == (0, 0)
    assert code == 0, output


async def test_locust_fails_when_accepted_events_do_not_arrive(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Nobody drains, so everything that the Broker took is missing."""
    ingress = Ingress(
        namespace="load", broker="test", topic=topic(),
        kafka=contract.Kafka(bootstrap_servers=kafka.bootstrap_servers),
    )  # fmt: skip
    async with (
        counting_subscriber() as subscriber,
        receiver([ingress], tmp_path / "receiver.log") as inlet,
    ):
        await inlet.ready()
        url = f"{inlet.url}{ingress.path}"
        code, output = await locust(url, subscriber, "--settle", "0.5")
    counts = summary_in(output)
    assert counts["lost"] == counts["accepted"] >= EVENTS, output
    assert code == 1


async def test_a_structured_event_is_counted_like_a_binary_one() -> None:
    event = {"specversion": "1.0", "id": "a-0", "source": "/s", "type": "t", "subject": "a"}
    async with counting_subscriber() as subscriber:
        host, _, port = subscriber.removeprefix("http://").rstrip("/").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in ("0", "2", "1", "1"):
            body = json.dumps({**event, "sequence": number}).encode()
            writer.write(
                b"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/cloudevents+json\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            assert b" 204 " in await reader.readuntil(b"\r\n\r\n")
        accepted = json.dumps({"a": 4}).encode()
        writer.write(
            b"POST /_accepted HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
            % (len(accepted), accepted)
        )
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /_summary HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        summary = json.loads(await reader.readexactly(length))
        writer.close()
    assert summary == {
        "accepted": 4, "received": 4, "lost": 1, "duplicates": 1, "reordered": 1, "unnumbered": 0,
    }  # fmt: skip
