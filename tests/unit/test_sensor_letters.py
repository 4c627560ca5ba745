"""Dead letters of a Sensor: what they say, and how large they become."""

from __future__ import annotations

import base64
import json

from support.memory_sensors import TRIGGER, sensor

from knafka.core.delivery import Reason
from knafka.core.errors import InvalidEvent
from knafka.core.events import json_format
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import Draft, read
from knafka.core.sensor import letters
from knafka.core.sensor.held import HeldEvent

ABOUT = {"specversion": "1.0", "id": "o-1", "source": "/s", "type": "order"}
BUG = Reason.INTERNAL_ERROR, "KeyError: 'x'"


def test_a_record_of_the_trigger_topic_becomes_the_event_that_it_holds() -> None:
    document = json_format.write(Event(ABOUT, b"data"))
    draft = Draft(b"two", letters.structured_headers(document), document)
    letter = letters.of_record(sensor(1), (TRIGGER, 0, 7), draft, BUG, 1_000.0, "two")
    event = read(letter.headers, letter.value).event
    assert (event.attributes["id"], event.data, letter.key) == ("o-1", b"data", b"two")
    assert event.attributes["sensortrigger"] == "two"
    assert event.attributes["knativeerrordest"] == "sensor:sensor.shop"
    assert event.attributes["knafkalasttime"] == "1970-01-01T00:16:40.000Z"


def test_what_is_no_event_is_kept_as_it_is_whatever_it_was_given_up_for() -> None:
    assert letters.structured_headers(None) == []
    letter = letters.of_record(
        sensor(1),
        (TRIGGER, 0, 7),
        Draft(None, letters.structured_headers(b"{"), b"{"),
        BUG,
        1_000.0,
    )
    about = dict(letter.headers)
    assert (letter.value, about["ce_knafkareason"]) == (b"{", b"undecodable-record")
    assert base64.b64decode(about["ce_knativeerrordata"]) == b"KeyError: 'x'"


def test_the_names_of_a_thousand_events_are_bounded_and_their_number_is_told() -> None:
    held = [
        HeldEvent("a", f"/{'s' * 5_000} {number}", number, number, b"x" * 100)
        for number in range(1_000)
    ]
    letter = letters.of_events(sensor(1), "three/o-1", held, 3, BUG, 1_000.0)
    document = json.loads(letter.value or b"")
    assert len(letter.value or b"") <= letters.MAX_NAMED_BYTES + 200
    assert (document["count"], document["bytes"]) == (1_000, 100_000)
    assert [each["id"] for each in document["events"][:2]] == ["0", "1"]
    assert 20 < len(document["events"]) < 100
    about = read(letter.headers, letter.value).attributes
    assert (about["subject"], about["type"]) == ("o-1", letters.FAILED)
    assert about["id"] == "shop.sensor.three.3.999"


def test_why_something_is_given_up_is_said_by_what_it_raised() -> None:
    found = [
        letters.failure_of(each)
        for each in (letters.TooLarge("t"), InvalidEvent("no event"), ValueError("v"))
    ]
    assert found == [
        (Reason.TOO_LARGE, "t"),
        (Reason.UNDECODABLE, "no event"),
        (Reason.INTERNAL_ERROR, "ValueError: v"),
    ]
