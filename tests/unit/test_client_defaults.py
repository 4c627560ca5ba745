"""What reaches librdkafka: our own settings, and over some of them what is set."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from knafka.clients.kafka.consumers import kafka_group_consumer
from knafka.clients.kafka.consumers.kafka_committed_topics import CommittedTopics
from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.consumers.kafka_membership import Membership
from knafka.clients.kafka.producers import kafka_producer
from knafka.clients.kafka.producers.kafka_producer import ReplaceableProducer
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.numbering import Numbering


class Client:
    """Takes everything, as a producer and as a consumer."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self.configuration = configuration

    def __len__(self) -> int:
        return 0

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """Clients in the order in which they are opened."""
    clients: list[Client] = []

    def open_client(_: object, configuration: dict[str, Any]) -> Client:
        clients.append(Client(configuration))
        return clients[-1]

    monkeypatch.setattr(kafka_producer, "open_client", open_client)
    monkeypatch.setattr(kafka_group_consumer, "open_client", open_client)
    return clients


async def test_a_consumer_fetches_as_it_is_set(opened: list[Client]) -> None:
    given = {"bootstrap.servers": "k:1", "fetch.wait.max.ms": "100", "client.rack": "a"}
    owner: Any = object()
    Membership(given, "g", Numbering(["t"]), owner, GroupProtocol.CONSUMER, CommittedTopics(None))
    (found,) = opened
    assert found.configuration.items() >= given.items()
    assert found.configuration["fetch.message.max.bytes"] == 256 * 1024, "what isn't set is ours"
    assert found.configuration["enable.auto.commit"] is False


async def test_a_producer_compresses_as_it_is_set(opened: list[Client]) -> None:
    given = {"bootstrap.servers": "k:1", "compression.codec": "zstd", "batch.size": "4096"}
    ReplaceableProducer(given, 0, lambda _: None)
    (found,) = opened
    assert found.configuration.items() >= given.items()
    assert found.configuration["acks"] == "all"


@pytest.mark.parametrize(("given", "linger"), [({}, 1), ({"linger.ms": "5"}, 5)])
async def test_only_records_that_are_gathered_linger_for_as_long_as_is_set(
    opened: list[Client], given: dict[str, str], linger: int
) -> None:
    """While few are under way, none waits for company that doesn't come (0014)."""
    writer = KafkaWriter(given)
    for _ in range(25):
        writer.append("t", None, b"x", [], lambda _: None)
    await asyncio.sleep(0)
    assert [each.configuration["linger.ms"] for each in opened] == [0, linger]
    await writer.close(0)
