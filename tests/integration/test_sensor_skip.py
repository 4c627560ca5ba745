"""`knafka sensor next` and `skip` on real Kafka: the record that stands in a Sensor's way."""

from __future__ import annotations

import base64
import time
from typing import cast

import pytest
from support.kafka import Kafka, MakeTopic
from support.sensors import SensorWorld, process

from knafka.ports.log import Record
from knafka.sensor.handlers import NewerSensor
from knafka_cli.sensors.sensor_positions import SKIPPED_TEXT, CannotSkip, skip, unread_positions
from knafka_client.state.installation import SensorPlace

pytestmark = pytest.mark.kafka


def test_a_record_that_stands_in_the_way_is_shown_and_becomes_a_dead_letter(
    kafka: Kafka, topic: MakeTopic
) -> None:
    """One of a generation that no process has, in the trigger topic: each ends at it."""
    world = SensorWorld(kafka, topic)
    connection = {"bootstrap.servers": kafka.bootstrap_servers}
    sensor = world.sensor({"t": "a && b"}, generation=3)
    of_sensor = {name: getattr(sensor, name) for name in SensorPlace.model_fields}
    place = SensorPlace(**of_sensor)
    later = world.processor(sensor)
    world.publish("a1")
    while not later.step(round(time.time() * 1000)):
        pass
    # It has routed the event. The next step would reduce it, so none comes while Kafka ends the
    # transaction.
    while not world.end(world.trigger_topic):
        pass
    assert [each.place for each in unread_positions(connection, place)] == [
        f"{world.trigger_topic}/0/0"
    ]
    with pytest.raises(CannotSkip, match=r"knafka\.dev/paused"):
        skip(connection, place, f"{world.trigger_topic}/0/0")
    assert not world.there(world.dead_letter_topic), "nothing was written"
    later.close(10)

    earlier = world.processor(world.sensor({"t": "a && b"}, generation=1))
    with pytest.raises(NewerSensor):
        process([earlier], lambda: False)
    earlier.close(10)
    (standing,) = unread_positions(connection, place)
    assert "for t as a, of generation 3 of the Sensor: a1 from /s" in standing.text(place)
    with pytest.raises(CannotSkip, match="is not the next record"):
        skip(connection, place, f"{world.trigger_topic}/0/7")
    skip(connection, place, standing.place)

    (letter,) = world.read(world.dead_letter_topic)
    about = dict(cast(Record, letter).headers() or ())
    assert (about["ce_id"], about["ce_knafkatrigger"]) == (b"a1", b"Sensor-sensor")
    assert base64.b64decode(about["ce_knativeerrordata"]).decode() == SKIPPED_TEXT
    again = world.processor(world.sensor({"t": "a && b"}, generation=1))
    try:
        world.publish("a2", "b2")
        process([again], lambda: world.actions() != [])
        assert world.actions() == ["t: a2 b2"]
        assert unread_positions(connection, place) == []
    finally:
        again.close(10)
