"""What the operator does for thousands of Brokers before it reconciles any."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock

from knafka_operator.dispatchers.startup import resume_deliveries
from knafka_operator.kafka.shards import CONTRACT_TOPIC_KEY
from knafka_operator.model.identity import Identity


class CountedIdentity(Identity):
    """An identity that counts how often one is compared with another."""

    compared = 0

    __hash__ = Identity.__hash__

    def __eq__(self, other: object) -> bool:
        CountedIdentity.compared += 1
        return super().__eq__(other)


async def test_resuming_many_brokers_with_shared_dispatchers_costs_no_square_of_them() -> None:
    status = {"status": {"annotations": {CONTRACT_TOPIC_KEY: "contract"}}}
    brokers: dict[Identity, dict[str, Any]] = {
        CountedIdentity("shop", f"b{number}"): status for number in range(300)
    }
    resuming, resume = AsyncMock(), AsyncMock()
    resuming.find_delivered_by_services.return_value = []
    resuming.find_delivered_with_shards.return_value = [({}, None)]
    await resume_deliveries(AsyncMock(), resuming, brokers, [], [], resume)
    assert resume.await_count == len(brokers)
    assert CountedIdentity.compared < 10 * len(brokers)
