"""A Trigger's dead-letter topic is its dispatcher's to make; its status says what it is called."""

from __future__ import annotations

import pytest
from support.operator_world import running_operator

from knafka.core import names


@pytest.mark.looptime
async def test_the_operator_names_a_dead_letter_topic_and_makes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most Triggers never need one: a thousand Triggers are no thousand topics."""
    async with running_operator(monkeypatch) as world:
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        world.declare_trigger("shop", "orders")
        status = await world.reconcile_trigger("shop", "orders")
        topic = names.dead_letter_topic("shop", "default", "orders")
        assert topic not in world.log.topics
        assert status["annotations"]["knafka.dev/dead-letter-topic"] == topic
