"""A Trigger's dead-letter topic: made when first needed, and what it can't take; on fake time."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import pytest
from support.drains import DEAD, TOPIC, Answer, NoTopics, Request, World, response, until
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryWriter

from knafka.core.contract import DEAD_LETTER_TOPIC_CONFIG, MAX_RECORD_BYTES, TopicSettings
from knafka.core.events.kafka_binding import Draft
from knafka.dispatcher.engine.sending.appending import DeadLetterTopic, append
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime

SETTINGS = TopicSettings(partitions=2, replication=3, config={**DEAD_LETTER_TOPIC_CONFIG, "x": "y"})


class Counting(MemoryAdmin):
    """A `TopicMaker` that counts and takes its time."""

    asked = 0

    async def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> bool:
        self.asked += 1
        await asyncio.sleep(1)
        return await super().ensure_topic(topic, partitions, replication, config)


def always(answer: Response) -> Answer:
    async def answered(request: Request) -> Response:
        return answer

    return answered


def counting(world: World) -> Counting:
    world.topics = counts = Counting(world.log)
    return counts


async def test_the_first_burial_makes_the_topic_as_the_contract_says() -> None:
    world = World(always(response(400)), dead_letter_settings=SETTINGS)
    counts = counting(world)
    for each in range(200):
        world.send(str(each), str(each))
    assert (await world.run()).dead_lettered == 200
    found = world.log.descriptions[DEAD]
    assert (found.partitions, found.replication, found.config) == (2, 3, SETTINGS.config)
    assert counts.asked == 1, "a hundred at once share one request"


async def test_nothing_is_made_for_a_trigger_that_buries_nothing() -> None:
    world = World()
    counts = counting(world)
    world.send("1")
    await world.run()
    assert (counts.asked, DEAD in world.log.topics) == (0, False)


async def test_a_topic_that_is_deleted_under_way_is_made_anew_by_the_next_burial() -> None:
    world = World(always(response(400)))
    drain = world.drain()
    world.send("1")
    running = world.begin(drain, idle=1000)
    await until(lambda: drain.counts.events.dead_lettered == 1)
    await MemoryAdmin(world.log).delete_topic(DEAD)
    world.send("2")
    await until(lambda: drain.counts.events.dead_lettered == 2)
    drain.stop()
    await running
    assert [each.attributes["id"] for each in world.events_of(DEAD)] == ["2"]
    assert world.log.descriptions[DEAD].config == DEAD_LETTER_TOPIC_CONFIG


async def test_where_no_topic_may_be_made_the_error_says_what_to_do() -> None:
    world = World()
    topic = DeadLetterTopic(DEAD, SETTINGS, MemoryWriter(world.log), NoTopics())
    error = await topic.append(Draft(None, [], b"x"))
    assert str(error) == (
        f"the topic {DEAD} does not exist, and it could not be made (Broker: Topic authorization "
        f"failed): make the topic {DEAD}, or allow the Kafka user of this Broker to create topics "
        "whose names begin with knafka-"
    )


@pytest.mark.conformance("KN-DLV-09")
async def test_where_no_topic_may_be_made_the_event_waits_for_one() -> None:
    """KN-DLV-09: the offset does not move."""
    world = World(always(response(400)))
    world.topics = NoTopics()
    world.send("1")
    drain = world.drain()
    running = world.begin(drain)
    await asyncio.sleep(60)
    assert (drain.progress().unsettled, world.committed.get(0, 0)) == (1, 0)
    world.log.create(DEAD)
    assert (await running).dead_lettered == 1, "one that somebody else made will do"
    assert world.subscriber.ids == ["1"]


async def test_of_a_dead_letter_too_large_for_its_topic_a_stub_is_kept() -> None:
    """It tells what it was, what became of it and where it lies; its data are left out."""
    world = World(always(response(400, b"no")))
    data = b"x" * (MAX_RECORD_BYTES - 200)
    world.send("1", "k", data, datacontenttype="text/plain")
    world.send("2", "k")
    progress = await world.run()
    assert (progress.dead_lettered, world.committed) == (2, {0: 2})
    stub, whole = world.events_of(DEAD)
    assert (stub.data, whole.data) == (None, b"data")
    assert stub.attributes["knafkaomitted"] == "data"
    assert "knafkaomitted" not in whole.attributes
    assert stub.attributes.items() >= {
        "id": "1", "source": "/s", "type": "t", "subject": "k", "datacontenttype": "text/plain",
        "knativeerrorcode": "400", "knativeerrordata": base64.b64encode(b"no").decode(),
        "knafkatopic": TOPIC, "knafkapartition": "0", "knafkaoffset": "0",
    }.items()  # fmt: skip
    assert world.records_of(DEAD)[0].key() == b"k"


async def test_of_attributes_too_large_for_the_topic_a_stub_keeps_those_that_fit() -> None:
    world = World(always(response(400)))
    world.send("1", "k" * 10_000, b"x", large="y" * (MAX_RECORD_BYTES - 20_000), small="z")
    assert (await world.run()).dead_lettered == 1
    (stub,) = world.events_of(DEAD)
    assert stub.attributes["knafkaomitted"] == "data,attributes"
    assert stub.attributes.items() >= {"id": "1", "source": "/s", "type": "t", "small": "z"}.items()
    assert not {"large", "subject"} & stub.attributes.keys()
    assert world.records_of(DEAD)[0].key() is None


async def test_a_stub_of_an_event_with_a_header_without_value_keeps_its_attributes() -> None:
    """Kafka allows such a header, and its client gives None."""
    world = World(always(response(400)))
    passed: list[Any] = [("empty", None)]
    world.send("1", "k", b"x" * (MAX_RECORD_BYTES - 200), passed)
    assert (await world.run()).dead_lettered == 1
    (stub,) = world.events_of(DEAD)
    assert stub.attributes.items() >= {"id": "1", "knativeerrorcode": "400"}.items()
    assert stub.attributes["knafkaomitted"] == "data"
    assert ("empty", b"") in (world.records_of(DEAD)[0].headers() or ())


async def test_an_undecodable_record_too_large_for_the_topic_leaves_a_stub_too() -> None:
    world = World()
    world.log.store(TOPIC, None, b"\xff" * (MAX_RECORD_BYTES - 50), [("no", b"event")])
    assert (await world.run()).dead_lettered == 1
    (stub,) = world.records_of(DEAD)
    headers = dict(stub.headers() or ())
    assert stub.value() is None
    assert (headers["no"], headers["ce_knafkaomitted"]) == (b"event", b"data")


@pytest.mark.conformance("KN-DLV-08")
async def test_a_failing_subscribers_kne_headers_become_attributes_of_the_dead_letter() -> None:
    """KN-DLV-08, as upstream; but the event's own attributes stay (KN-BRK-10)."""
    answer = response(
        400, b"no", kne_team="blue caf\xe9", kne_subject="mine", kne_bad_name="x",
        kne_knafkareason="none", kne_large="x" * 5000, kne_ctl="a\x01b",
    )  # fmt: skip
    world = World(always(answer))
    world.send("1", "k")
    await world.run()
    attributes = world.events_of(DEAD)[0].attributes
    assert attributes["team"] == "blue café"
    assert attributes["knafkaextensions"] == "team"
    assert (attributes["subject"], attributes["knafkareason"]) == ("k", "status")
    assert not {"large", "badname", "ctl"} & attributes.keys()


async def test_a_writer_that_is_closed_stores_no_dead_letter() -> None:
    log = MemoryLog()
    log.create(DEAD)
    writer = MemoryWriter(log)
    await writer.close(1)
    assert str(await append(writer, DEAD, Draft(None, [], b"x"))) == "the writer is closed"
