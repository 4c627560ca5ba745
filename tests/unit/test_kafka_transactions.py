"""The clients behind a Sensor's transactions, without a Kafka."""

from __future__ import annotations

import pytest
from support.transactions import Holder

from knafka.clients.kafka.producers import kafka_transactions
from knafka.clients.kafka.producers.kafka_transactions import KafkaTransactions
from knafka.core.errors import LogError

CLIENTS = ["TransactionalProducer", "TransactionalMember", "BoundedReader"]
"""In the order in which they are opened."""


@pytest.mark.parametrize("failing", CLIENTS)
def test_a_client_that_cannot_be_opened_leaves_none_of_the_others_open(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Their threads and connections would stay, one more with each new try."""
    left_open: list[str] = []

    def scripted(name: str) -> type:
        class Client:
            def __init__(self, *arguments: object) -> None:
                if name == failing:
                    raise LogError("a broken certificate")
                left_open.append(name)

            def close(self) -> None:
                left_open.remove(name)

        return Client

    for name in CLIENTS:
        monkeypatch.setattr(kafka_transactions, name, scripted(name))
    with pytest.raises(LogError, match="a broken certificate"):
        KafkaTransactions({}, "group", ["topic"], Holder(), "id")
    assert left_open == []
