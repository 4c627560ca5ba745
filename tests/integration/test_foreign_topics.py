"""A source's dispatcher process: two topics of any records, by one group, to a subscriber."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from support.functions import FunctionProcess
from support.kafka import Kafka, MakeTopic
from support.scripted import Arrival, ScriptedServer, raw
from support.trigger_world import Held, TriggerWorld, drained
from support.waiting import until

from knafka.core.contract import Conversion, Delivery, Order

SOURCE = "/apis/v1/namespaces/ns/kafkasources/source"
KEYS, PER_KEY = 8, 60
EVENT = b'{"specversion":"1.0","id":"whole","source":"/s","type":"t","data":[1]}'
STRUCTURED = ("content-type", b"application/cloudevents+json")


@dataclass
class SourceWorld:
    """Two topics of somebody's, of three partitions each, and a source that reads both."""

    kafka: Kafka
    make_topic: MakeTopic
    directory: Path

    def __post_init__(self) -> None:
        self.world = TriggerWorld(self.kafka, self.make_topic, self.directory, partitions=3)
        self.topics = self.world.topic, self.make_topic(3)
        self.group = self.world.topic
        # Idempotent: a new topic refuses some batches, which would go behind later ones.
        self.producer = Producer(
            {"bootstrap.servers": self.kafka.bootstrap_servers, "enable.idempotence": True}
        )

    def dispatcher(self, url: str, **more: Any) -> FunctionProcess:
        conversion = Conversion(source=SOURCE, extensions={"team": "a"})
        of = {
            "kind": "KafkaSource",
            "more_topics": self.topics[1:],
            "conversion": conversion,
        }
        return self.world.dispatcher(url, **(of | more))

    def produce(
        self,
        topic: str,
        key: str | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        self.producer.produce(topic, value=value, key=key, headers=list(headers))

    def fill(self, begin: int = 0) -> set[tuple[str, str, int]]:
        """Records numbered by key in each topic; gives what they are."""
        stored = set()
        for number in range(begin, begin + PER_KEY):
            for topic in self.topics:
                for key in map(str, range(KEYS)):
                    self.produce(topic, key, b"%d" % number)
                    stored.add((topic, key, number))
        assert self.producer.flush(30) == 0
        return stored


def plain_commits(world: SourceWorld) -> dict[tuple[str, int], int]:
    """What any client of Kafka finds committed."""
    consumer = Consumer(
        {"bootstrap.servers": world.kafka.bootstrap_servers, "group.id": world.group}
    )
    try:
        of = [TopicPartition(topic, number) for topic in world.topics for number in range(3)]
        found = consumer.committed(of, timeout=10)
    finally:
        consumer.close()
    return {(each.topic, each.partition): each.offset for each in found}


def ends(world: SourceWorld) -> dict[tuple[str, int], int]:
    consumer = Consumer({"bootstrap.servers": world.kafka.bootstrap_servers, "group.id": "nobody"})
    try:
        return {
            (topic, number): consumer.get_watermark_offsets(TopicPartition(topic, number), 10)[1]
            for topic in world.topics
            for number in range(3)
        }
    finally:
        consumer.close()


async def test_records_of_two_topics_arrive_in_order_by_key_and_none_is_lost_by_a_kill(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Each dispatcher is one member of the group for both topics; what it commits is what any
    client of Kafka commits."""
    world = SourceWorld(kafka, topic, tmp_path)
    stored = world.fill()
    got: dict[tuple[str, str], list[int]] = defaultdict(list)

    async def answer(arrival: Arrival) -> bytes:
        name = arrival.headers["ce-source"].removeprefix(f"{SOURCE}#")
        got[name, arrival.headers["ce-key"]].append(int(arrival.body))
        await asyncio.sleep(0.002)
        return raw(202)

    async with ScriptedServer(answer) as server:
        async with world.dispatcher(server.url) as function:
            held = Held(function)
            await until(lambda: sum(map(len, got.values())) > len(stored) / 3)
            await function.kill()
            await held.hang_up()
        stored |= world.fill(PER_KEY)
        async with world.dispatcher(server.url) as function:
            last = await drained(function)
    assert last.dead_lettered == 0
    arrived = {(*of, number) for of, numbers in got.items() for number in numbers}
    assert arrived == stored, "none is lost"
    for numbers in got.values():
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts), "in order by key; what a kill repeats is repeated"
    repeated = sum(map(len, got.values())) - len(stored)
    assert repeated <= 1000
    assert plain_commits(world) == ends(world)


async def test_what_is_read_is_delivered_as_events_whatever_it_is(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    world = SourceWorld(kafka, topic, tmp_path)
    one, two = world.topics
    binary = [(f"ce_{name}", b"x") for name in ("id", "source", "type")]
    world.produce(one, "k", b"plain", [("X-Trace", b"1")])
    world.produce(two, None, None)
    world.produce(two, "k", b"data", [("ce_specversion", b"1.0"), *binary])
    world.produce(one, "k", EVENT, [STRUCTURED])
    world.produce(one, "k", b"{broken", [STRUCTURED])
    assert world.producer.flush(10) == 0
    async with ScriptedServer() as server, world.dispatcher(server.url) as function:
        progress = await drained(function)
    assert (progress.delivered, progress.dead_lettered) == (5, 0)
    by_body = {each.body: each.headers for each in server.arrivals}
    plain = by_body[b"plain"]
    assert plain["ce-type"] == "dev.knative.kafka.event"
    assert plain["ce-source"] == f"{SOURCE}#{one}"
    assert plain["ce-subject"] == f"partition:{plain['ce-knativekafkapartition']}#0"
    assert (plain["ce-key"], plain["ce-partitionkey"]) == ("k", "k")
    assert plain["ce-kafkaheaderxtrace"] == "1"
    assert by_body[b""]["ce-source"] == f"{SOURCE}#{two}"
    assert by_body[b"data"]["ce-id"] == "x"
    assert by_body[b"[1]"]["ce-id"] == "whole"
    assert {each["ce-team"] for each in by_body.values() if "ce-id" in each} == {"a"}
    (broken,) = (json.loads(body) for body in by_body if b"data_base64" in body)
    assert broken["type"] == "dev.knative.kafka.event"
    assert base64.b64decode(broken["data_base64"]) == b"{broken"


async def test_what_fails_is_a_dead_letter_that_says_where_its_record_lies(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    world = SourceWorld(kafka, topic, tmp_path)
    _, two = world.topics
    world.produce(two, "k", b"plain")
    assert world.producer.flush(10) == 0

    async def refuse(arrival: Arrival) -> bytes:
        return raw(400)

    async with (
        ScriptedServer(refuse) as server,
        world.dispatcher(server.url, order=Order.PARTITION, delivery=Delivery()) as function,
    ):
        assert (await drained(function)).dead_lettered == 1
    (letter,) = (await world.world.letters()).values()
    assert letter["type"] == "dev.knative.kafka.event"
    assert letter["knafkatopic"] == two
    assert letter["knafkapartition"] in {"0", "1", "2"}
    assert letter["subject"] == f"partition:{letter['knafkapartition']}#0"
    assert letter["knafkabroker"] == "KafkaSource-broker"
