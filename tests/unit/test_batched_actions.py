"""A Sensor's action as CloudEvents in batched mode: what its subscriber and its sink are sent."""

from __future__ import annotations

import json

import pytest
from support.drains import SINK, TRACEPARENT, World, response, unless_sink

from knafka.core.contract import Delivery

pytestmark = pytest.mark.looptime

EVENTS = b'[{"specversion":"1.0","id":"a1","source":"/s","type":"a"}]'


async def test_a_batch_is_the_actions_events_and_a_dead_letter_is_the_action() -> None:
    world = World(
        unless_sink(response(400), response()),
        sink=True,
        batch=True,
        delivery=Delivery(format="binary"),
    )
    passed = [("traceparent", TRACEPARENT.encode())]
    world.send("x", "k", EVENTS, passed, datacontenttype="application/json")
    await world.run()
    batch, dead_letter = (each.request for each in world.subscriber.posts)
    assert batch.header(b"content-type") == b"application/cloudevents-batch+json"
    assert b"ce-" not in batch.head
    assert batch.header(b"traceparent") == TRACEPARENT.encode()
    assert json.loads(batch.body)[0]["id"] == "a1"
    assert dead_letter.target.url == SINK
    assert dead_letter.header(b"ce-id") == b"x"
    assert dead_letter.body == EVENTS
