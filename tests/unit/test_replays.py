"""Replays: an event as it was, to the one Trigger that failed it, through its own dispatcher."""

from __future__ import annotations

import pytest

from knafka.core import names
from knafka.core.contract import Delivery, Egress, Kafka, Order, Sink
from knafka.core.dead_letter import (
    ATTEMPT_LOG,
    EXTENSIONS,
    FAILURE_HEADERS,
    OMITTED,
    REPLAY,
    REPLY_ATTEMPTS,
    Failure,
    Origin,
    dead_letter_of,
    headers_for_replay,
)
from knafka.core.delivery import Reason
from knafka.core.events.hops import HOPS
from knafka.core.filters.declared_filters import CESQL, AttributesFilter
from knafka_operator.kafka.egresses import replay_egress

EGRESS = Egress(
    namespace="shop",
    broker="main",
    trigger="mail",
    topic="broker-topic",
    group="group",
    dead_letter_topic="dead",
    kafka=Kafka(bootstrap_servers="a:1"),
    subscriber=Sink(url="http://mail/"),
    filter=AttributesFilter(attributes={"type": "t"}),
    filters=(CESQL(cesql="type = 't'"),),
    delivery=Delivery(retry=7),
    order=Order.PARTITION,
)
REPLAYS = names.replay_topic("shop", "main", "mail")


def test_what_is_sent_again_is_the_event_as_it_was() -> None:
    """Also after a replay that failed again; its key and value were never touched."""
    event = [("ce_id", b"1"), ("content-type", b"text/plain"), ("traceparent", b"00-1")]
    failure = Failure("http://mail/", Reason.STATUS, 3, 1.0, 2.0, status=503, body=b"no")
    origin = Origin("shop", "main", "mail", "broker-topic", 1, 2)
    letter, value = dead_letter_of(
        [*event, ("ce_specversion", b"1.0"), ("ce_source", b"/s"), ("ce_type", b"t")],
        b"data",
        failure,
        origin,
    )
    seldom = {f"ce_{each}" for each in (EXTENSIONS, OMITTED, ATTEMPT_LOG, HOPS, REPLY_ATTEMPTS)}
    assert {name for name, _ in letter} >= FAILURE_HEADERS - seldom
    again = headers_for_replay([*letter, (REPLAY, b"earlier/f")], "r/f")
    assert value == b"data"
    assert again == [
        *event,
        ("ce_specversion", b"1.0"),
        ("ce_source", b"/s"),
        ("ce_type", b"t"),
        (REPLAY, b"r/f"),
    ]


@pytest.mark.parametrize("raw", [b"\xff\xfe", None, b",,", b"\xff,mine"])
def test_an_event_is_sent_again_whatever_its_dead_letter_says_of_extensions(
    raw: bytes | None,
) -> None:
    """Whoever may write to the topic may have written anything: it ended every broad replay."""
    letter = [("ce_id", b"1"), ("ce_mine", b"x"), (f"ce_{EXTENSIONS}", raw)]
    kept = [("ce_id", b"1")] if raw == b"\xff,mine" else letter[:2]
    assert headers_for_replay(letter, "r/f") == [*kept, (REPLAY, b"r/f")]  # type: ignore[arg-type]


def test_a_replay_is_delivered_like_the_triggers_events_but_not_filtered() -> None:
    replay = replay_egress(EGRESS)
    assert (replay.topic, replay.group) == (REPLAYS, REPLAYS)
    assert replay.reply_topic == EGRESS.topic, "a reply goes to the Broker all the same"
    assert replay.filters == ()
    assert replay.filter == AttributesFilter()
    assert not replay.shares_topic
    differs = {"topic", "group", "reply_topic", "filter", "filters", "shares_topic"}
    assert replay.model_dump(exclude=differs) == EGRESS.model_dump(exclude=differs)
