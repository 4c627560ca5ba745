"""A Trigger's dead-letter topic is there, as it should be, for as long as the Trigger is."""

from __future__ import annotations

import pytest
from support.operator_world import running_operator

from knafka.core import names


@pytest.mark.looptime
async def test_a_deleted_dead_letter_topic_is_made_anew_and_keeps_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its dispatchers don't make it, and wait: Kafka's defaults would drop it after seven days."""
    async with running_operator(monkeypatch) as world:
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        world.declare_trigger("shop", "orders")
        await world.reconcile_trigger("shop", "orders")
        topic = names.dead_letter_topic("shop", "default", "orders")
        before = world.log.descriptions.pop(topic)
        del world.log.topics[topic]
        await world.reconcile_trigger("shop", "orders")
        after = world.log.descriptions[topic]
        assert after.id != before.id
        assert after.config["retention.ms"] == "-1"
