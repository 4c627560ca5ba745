"""A Trigger's dead-letter topic is its dispatcher's to make; the operator says its name, and how
large its records may be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.channel_world import ready, running_channels
from support.operator_world import OperatorWorld, running_operator

from knafka.core import names
from knafka.core.contract import TopicSettings
from knafka_operator.kafka.dead_letter_topics import FAILURE_ATTRIBUTES_BYTES
from knafka_operator.model.identity import Identity

pytestmark = pytest.mark.looptime

RAISED = 5_000_000
"""Bytes of the largest record of a topic whose `max.message.bytes` somebody has raised."""


def raise_limit(world: OperatorWorld, topic: str, limit: int = RAISED) -> None:
    """As somebody does with Kafka's own tools."""
    there = world.log.descriptions[topic]
    config = {**there.config, "max.message.bytes": str(limit)}
    world.log.descriptions[topic] = replace(there, config=config)


def largest_dead_letter(settings: TopicSettings) -> int:
    return int(settings.config["max.message.bytes"])


async def test_the_operator_names_a_dead_letter_topic_and_makes_none() -> None:
    """Most Triggers never need one: a thousand Triggers are no thousand topics."""
    async with running_operator() as world:
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        world.declare_trigger("shop", "orders")
        status = await world.reconcile_trigger("shop", "orders")
        topic = names.dead_letter_topic("shop", "default", "orders")
        assert topic not in world.log.topics
        assert status["annotations"]["knafka.dev/dead-letter-topic"] == topic


async def test_a_dead_letter_has_room_for_an_event_whose_topic_was_raised_in_kafka() -> None:
    """The receiver accepts what Kafka takes, whatever the Broker's ConfigMap says."""
    async with running_operator() as world:
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        world.declare_trigger("shop", "orders")
        await world.reconcile_trigger("shop", "orders")
        raise_limit(world, "knative-broker-shop-default")
        await world.reconcile_broker("shop")
        await world.reconcile_trigger("shop", "orders")
        assert world.entries()["/shop/default"].max_batch_bytes == RAISED
        watched = world.operator.states.triggers[Identity("shop", "orders")].watched
        assert watched is not None
        settings = watched.egress.dead_letter_settings
        assert largest_dead_letter(settings) == RAISED + FAILURE_ATTRIBUTES_BYTES


async def test_a_dead_letter_has_as_much_room_on_a_channel() -> None:
    async with running_channels() as world:
        await ready(world, "mail")
        raise_limit(world, "knative-messaging-kafka.shop.orders")
        await world.reconcile_channel("shop", "orders")
        await world.reconcile_subscription("shop", "mail")
        settings = world.egress_of("shop", "mail").dead_letter_settings
        assert largest_dead_letter(settings) == RAISED + FAILURE_ATTRIBUTES_BYTES


async def test_a_dead_letter_keeps_the_declared_room_where_the_topic_was_lowered() -> None:
    """Larger events may be in the topic still, and what delivers needs no new Revision."""
    async with running_operator() as world:
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        world.declare_trigger("shop", "orders")
        await world.reconcile_trigger("shop", "orders")
        record = world.operator.states.triggers[Identity("shop", "orders")]
        declared = record.watched
        raise_limit(world, "knative-broker-shop-default", 20_000)
        await world.reconcile_broker("shop")
        await world.reconcile_trigger("shop", "orders")
        assert record.watched == declared
