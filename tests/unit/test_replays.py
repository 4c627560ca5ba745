"""Replays: an event as it was, to the one Trigger that failed it, through its own dispatcher."""

from __future__ import annotations

import asyncio

import pytest

from knafka.core import names
from knafka.core.contract import CESQL, AttributesFilter, Delivery, Egress, Kafka, Order, Sink
from knafka.core.dead_letter import (
    EXTENSIONS,
    OMITTED,
    REPLAY,
    STORY,
    Failure,
    Origin,
    dead_letter_of,
    restored,
)
from knafka.core.delivery import Reason
from knafka.core.errors import LogError
from knafka_local.manifests import Identity
from knafka_local.plan import AUTOSCALING, PlannedTrigger
from knafka_local.replays import LOOK_INTERVAL, follow_replays, replaying
from knafka_operator.decide.desired import replay_egress
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.scaler import Scaler

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
    buried, value = dead_letter_of(
        [*event, ("ce_specversion", b"1.0"), ("ce_source", b"/s"), ("ce_type", b"t")],
        b"data",
        failure,
        origin,
    )
    seldom = {f"ce_{EXTENSIONS}", f"ce_{OMITTED}"}
    assert {name for name, _ in buried} >= STORY - seldom
    again = restored([*buried, (REPLAY, b"earlier/f")], "r/f")
    assert value == b"data"
    assert again == [
        *event,
        ("ce_specversion", b"1.0"),
        ("ce_source", b"/s"),
        ("ce_type", b"t"),
        (REPLAY, b"r/f"),
    ]


def test_a_replay_is_delivered_like_the_triggers_events_but_not_filtered() -> None:
    replay = replay_egress(EGRESS)
    assert (replay.topic, replay.group) == (REPLAYS, REPLAYS)
    assert replay.reply_topic == EGRESS.topic, "a reply goes to the Broker all the same"
    assert replay.filters == ()
    assert replay.filter == AttributesFilter()
    differs = {"topic", "group", "reply_topic", "filter", "filters"}
    assert replay.model_dump(exclude=differs) == EGRESS.model_dump(exclude=differs)


def planned(egress: Egress = EGRESS) -> PlannedTrigger:
    return PlannedTrigger(egress, AUTOSCALING, 1)


MAIL = Identity("Trigger", "shop", "mail")
BILL = Identity("Trigger", "shop", "bill")


def test_only_triggers_with_a_replay_topic_have_replays() -> None:
    triggers = {MAIL: planned(), BILL: planned(EGRESS.model_copy(update={"trigger": "bill"}))}
    assert replaying(triggers, {"broker-topic": 1, REPLAYS: 1}) == {
        "shop/mail (replays)": planned()
    }


class Kafkas:
    """A Kafka that has these topics, or is away."""

    def __init__(self, *topics: str) -> None:
        self.names: tuple[str, ...] | None = topics

    async def topics(self) -> dict[str, int]:
        if self.names is None:
            raise LogError("away")
        return dict.fromkeys(self.names, 1)


class Watched(Scaler):
    """A scaler that only notes whom it watches."""

    def __init__(self) -> None:
        self.now: dict[str, Egress] = {}

    async def watch(self, trigger_id: str, egress: Egress, autoscaling: Autoscaling) -> None:
        self.now[trigger_id] = egress

    async def forget(self, trigger_id: str) -> None:
        del self.now[trigger_id]


@pytest.mark.looptime
async def test_replays_are_followed_as_topics_and_triggers_come_and_go() -> None:
    kafka, scaler, triggers = Kafkas(), Watched(), {MAIL: planned()}
    following = asyncio.create_task(follow_replays(lambda: triggers, kafka, scaler))  # type: ignore[arg-type]
    try:
        await asyncio.sleep(LOOK_INTERVAL / 2)
        assert scaler.now == {}
        kafka.names = (REPLAYS,)
        await asyncio.sleep(LOOK_INTERVAL)
        assert scaler.now == {"shop/mail (replays)": replay_egress(EGRESS)}
        kafka.names = None
        await asyncio.sleep(LOOK_INTERVAL)
        assert len(scaler.now) == 1
        kafka.names = (REPLAYS,)
        changed = EGRESS.model_copy(update={"delivery": Delivery(retry=1)})
        triggers = {MAIL: planned(changed)}
        await asyncio.sleep(LOOK_INTERVAL)
        assert scaler.now == {"shop/mail (replays)": replay_egress(changed)}
        triggers = {}
        await asyncio.sleep(LOOK_INTERVAL)
        assert scaler.now == {}
    finally:
        following.cancel()
