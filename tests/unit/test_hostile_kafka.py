"""A Kafka of others costs the operator no more than it needs to be asked (issue 29)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer
from support.hostile_kafka import hostile_kafka
from support.operator_world import condition, running_operator

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.consumers import kafka_whole_topic
from knafka.clients.kafka.consumers.kafka_whole_topic import ODD_RECORD_BYTES, read_last_records
from knafka.clients.kafka.kafka_client import REQUEST_CONSUMER_SETTINGS, open_client
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.errors import InvalidDocument, LogError
from knafka_operator.decisions.status import NotReady
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.clusters import MAX_ANSWER, KafkaClusters
from knafka_operator.kafka.servers import check_servers

MEGABYTE = 1024
"""In kilobytes, as the kernel tells them."""
ENVIRONMENT = {"KNAFKA_NAMESPACE": "knafka", "KNAFKA_IMAGE": "registry/functions"}

PROGRAM = """
import asyncio, os, resource, sys
from typing import Any, cast
from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.errors import LogError
from knafka_operator.kafka.clusters import KafkaClusters

def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

async def main():
    before = peak()
    kafkas = KafkaClusters(lambda of: KafkaAdmin(of, request_timeout=20), cast(Any, None))
    kafka = kafkas.ensure_cluster(sys.argv[1], None)
    for _ in range(2):
        try:
            await kafka.topics.topics()
        except LogError:
            pass
    print(peak() - before, flush=True)
    os._exit(0)

asyncio.run(main())
"""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(90)
def test_an_answer_of_66_megabytes_is_not_taken() -> None:
    """Two of them took 1.3 GB: the operator was killed, and its other replica after it."""
    with hostile_kafka(66_000_000) as kafka:
        asked = [sys.executable, "-c", PROGRAM, kafka.bootstrap_servers]
        ended = subprocess.run(asked, timeout=80, check=True, capture_output=True, text=True)
        assert kafka.answers >= 1
    assert int(ended.stdout) < 50 * MEGABYTE


async def test_every_client_of_the_operator_takes_the_bound() -> None:
    """librdkafka refuses a consumer that may fetch more than it may receive."""
    bound = {"bootstrap.servers": "127.0.0.1:1", "receive.message.max.bytes": MAX_ANSWER}
    KafkaAdmin(bound)
    writer = KafkaWriter(bound)
    await writer.close(0.1)
    with pytest.raises(LogError, match=r"receive\.message\.max\.bytes"):
        open_client(Consumer, {**bound, "group.id": "knafka"})
    open_client(Consumer, {**bound, **REQUEST_CONSUMER_SETTINGS, "group.id": "knafka"}).close()


class Filled:
    """A consumer of a topic that somebody has filled."""

    def __init__(self, headers: Any) -> None:
        self.polled = 0
        self._headers = headers

    def list_topics(self, topic: str, timeout: float) -> Any:
        described = SimpleNamespace(error=None, partitions={0: None})
        return SimpleNamespace(topics={topic: described})

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        return 0, 1_000_000

    def assign(self, partitions: Any) -> None: ...

    def close(self) -> None: ...

    def poll(self, timeout: float) -> Any:
        self.polled += 1
        return self

    def error(self) -> None: ...

    def key(self) -> bytes:
        return b"group"

    def value(self) -> bytes | None:
        return None

    def headers(self) -> Any:
        return self._headers()


def _odd() -> None:
    raise SystemError("a name that isn't UTF-8")


@pytest.mark.parametrize(
    "headers", [lambda: [("a", b"x" * 1_000_000)], _odd], ids=["large headers", "odd headers"]
)
def test_a_contracts_topic_that_somebody_filled_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, headers: Any
) -> None:
    """The same kind: the topic of a Broker whose Kafka is its owner's."""
    filled = Filled(headers)
    monkeypatch.setattr(kafka_whole_topic, "open_client", lambda *_: filled)
    with pytest.raises(LogError, match="topic contract has more than 20000000 bytes"):
        read_last_records({}, "contract", 1_000_000, timeout=1.0, max_bytes=20 * ODD_RECORD_BYTES)
    assert filled.polled <= 21


@pytest.mark.parametrize(
    "servers",
    [
        *("my-kafka.kafka.svc:9092", "MY-kafka.kafka.svc:9092 , b-1.msk.example:9098,"),
        "SASL_SSL://b-1.msk.example:9098",
    ],
)
def test_servers_that_are_allowed_are_connected_to(servers: str) -> None:
    check_servers(servers, ("*.kafka.svc:9092", "b-?.msk.example:*"))
    check_servers(servers, ("*",))


@pytest.mark.parametrize(
    "servers",
    [
        *("kafka.evil.example:9092", "my-kafka.kafka.svc:9092,evil:9092", "my-kafka.kafka.svc"),
        *("my-kafka.kafka.svc:9093", "evil:1/my-kafka.kafka.svc:9092", "PLAINTEXT://evil:9092"),
    ],
)
def test_servers_that_are_not_allowed_are_not_connected_to(servers: str) -> None:
    seen: list[Mapping[str, Any]] = []
    kafkas = KafkaClusters(seen.append, None, allowed=("*.kafka.svc:9092",))  # type: ignore[arg-type]
    with pytest.raises(NotReady, match="is not among those that this installation allows") as it:
        kafkas.ensure_cluster(servers, None)
    assert it.value.reason == "ServersNotAllowed"
    assert seen == []


@pytest.mark.looptime
async def test_a_broker_whose_servers_are_not_allowed_says_so() -> None:
    async with running_operator() as world:
        await world.restart(allowed_servers=("*.kafka.svc:9092",))
        world.configure("shop", "mine", **{"bootstrap.servers": "evil:9092"})
        config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "mine"}
        world.declare_broker("shop", config=config)
        found = condition(await world.reconcile_broker("shop"), "ConfigParsed")
        assert (found["status"], found["reason"]) == ("False", "ServersNotAllowed")
        assert found["message"].startswith("bootstrap.servers: evil:9092 is not among")


def test_the_servers_that_are_allowed_are_a_setting() -> None:
    def allowed(**given: str) -> tuple[str, ...]:
        return Settings.from_environment({**ENVIRONMENT, **given}).allowed_servers

    assert allowed() == ("*",)
    assert allowed(KNAFKA_ALLOWED_SERVERS="A.b:9092, *.c:*") == ("a.b:9092", "*.c:*")
    for text in ("", "kafka", "kafka:port", "http://kafka:9092", "a b:1"):
        with pytest.raises(InvalidDocument, match="KNAFKA_ALLOWED_SERVERS"):
            allowed(KNAFKA_ALLOWED_SERVERS=text)
