"""Dead letters as they are shown: what went wrong, fit for a terminal."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryWriter

from knafka.core.contract import Egress, Kafka, Sink
from knafka.core.dead_letter import REPLAY, REPLAY_TOPIC, Failure, Origin, dead_letter_of, stub_of
from knafka.core.delivery import Reason
from knafka.core.errors import LogError
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import Draft, RecordHeaders, to_record
from knafka.core.names import broker_dead_letter_topic, replay_topic
from knafka_client.topics.dead_letters import (
    LONGEST_PREVIEW,
    DeadLetterOverview,
    broker_dead_letter_egress,
    dead_letter_key,
    owner_name,
    parse_dead_letter,
    preview_text,
    read_dead_letters,
    read_overview,
)
from knafka_client.topics.replaying import (
    ReplayNotSent,
    choose_dead_letters,
    select_egresses,
    send_again,
)
from knafka_jobs.event_edits import EventEdits, edited_record

ORIGIN = Origin("default", "shop", "orders", "topic", 2, 42)
FAILURE = Failure("http://127.0.0.1:1/", Reason.STATUS, 3, 0.0, 1.5, 500, b"no\x1b[2J\nbank")
EVENT = Event({"specversion": "1.0", "id": "1", "source": "/shop", "type": "order"}, b'{"n": 1}')


@dataclass
class FakeRecord:
    recorded_headers: RecordHeaders | None
    recorded_value: bytes | None = None
    written: int = field(default=1_700_000_000_000)

    def topic(self) -> str:
        return "dead"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return self.recorded_value

    def headers(self) -> RecordHeaders | None:
        return self.recorded_headers

    def timestamp(self) -> tuple[int, int]:
        return 1, self.written


@pytest.mark.conformance("KN-DLV-08")
def test_a_dead_letter_tells_its_whole_story() -> None:
    """KN-DLV-08."""
    draft = to_record(EVENT)
    found = parse_dead_letter(
        FakeRecord(*dead_letter_of(draft.headers, draft.value, FAILURE, ORIGIN))
    )
    assert (found.type, found.id, found.source) == ("order", "1", "/shop")
    assert (found.reason, found.code, found.attempts) == ("status", "500", "3")
    assert (found.first_time, found.last_time) == (
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:01.500Z",
    )
    assert found.destination == "http://127.0.0.1:1/"
    assert found.position == "topic/2/42"
    assert found.data == '{"n": 1}'
    assert found.error == "no [2J bank"
    assert json.loads(found.json())["error"] == "no [2J bank"
    assert "status 500 after 3 attempts at http://127.0.0.1:1/" in found.text()


def test_an_event_is_named_in_full_and_shown_fit_for_a_terminal() -> None:
    """It is chosen by its id and source: a name that is cut off names another one, or none."""
    id_, source = "é\u200b" + "x" * 300, "/shop/" + "y" * 300
    draft = to_record(Event({**EVENT.attributes, "id": id_, "source": source}, b"{}"))
    failure = replace(FAILURE, destination="http://mail/" + "z" * 300)
    origin = replace(ORIGIN, topic="t" * 249)
    found = parse_dead_letter(
        FakeRecord(*dead_letter_of(draft.headers, draft.value, failure, origin))
    )
    assert (found.id, found.source, found.destination) == (id_, source, failure.destination)
    assert found.position == f"{'t' * 249}/2/42"
    read = json.loads(found.json())
    assert (read["id"], read["source"]) == (id_, source)
    assert found.json().isprintable()
    assert all(line.isprintable() for line in found.text().splitlines())
    assert "é x" in found.text()
    assert "x" * 300 not in found.text()


def test_what_is_no_event_at_all_is_shown_too() -> None:
    """CE-K8: an undecodable record becomes a dead letter as it is."""
    found = parse_dead_letter(FakeRecord(None, b"\xff\x00raw"))
    assert found.id == ""
    assert found.last_time == "2023-11-14T22:13:20.000Z"
    assert found.data.endswith("raw")


def test_nothing_that_is_shown_is_long_or_moves_the_cursor() -> None:
    assert preview_text("a\r\nb\x07") == "a  b"
    assert len(preview_text("x" * 10_000)) == LONGEST_PREVIEW


@pytest.mark.parametrize(
    ("of", "whose"),
    [
        (("shop", "main", "mail"), "shop/mail"),
        (("shop", "main", ""), "broker/shop/main"),
        (("shop", "KafkaChannel-main", ""), "channel/shop/main"),
        (("shop", "KafkaChannel-main", "mail"), "shop/mail"),
    ],
)
def test_whose_dead_letters_they_are_is_said_also_where_they_are_no_triggers(
    of: tuple[str, str, str], whose: str
) -> None:
    assert owner_name(*of) == whose


@pytest.mark.parametrize(
    ("kind", "own"), [("Trigger", "main"), ("Subscription", "KafkaChannel-main")]
)
async def test_those_of_a_broker_are_read_from_its_topic_and_know_no_trigger(
    kind: Literal["Trigger", "Subscription"], own: str
) -> None:
    log = MemoryLog()
    egress = EGRESS.model_copy(update={"kind": kind})
    topic = broker_dead_letter_topic("shop", own)
    log.create(topic)
    failure, origin = replace(FAILURE, reason=Reason.UNDECODABLE), replace(ORIGIN, trigger="")
    headers, value = dead_letter_of([("x", b"y")], b"raw", failure, origin)
    log.store(topic, None, value, headers)
    (found,) = await read_dead_letters(MemoryAdmin(log), broker_dead_letter_egress(egress), 10)
    assert (found.of_broker, found.reason, found.position) == (
        True, "undecodable-record", "topic/2/42",
    )  # fmt: skip
    assert dead_letter_key(broker_dead_letter_egress(egress)) == ("shop", own, "")


async def test_a_trigger_without_a_dead_letter_topic_has_no_dead_letters() -> None:
    """It is made for the first."""
    admin = MemoryAdmin(MemoryLog())
    assert await read_dead_letters(admin, EGRESS, 10) == []
    assert (await read_overview(admin, EGRESS)).count_text == "0"


EGRESS = Egress(
    namespace="shop", broker="main", trigger="mail", topic="t", group="g",
    dead_letter_topic="dead", kafka=Kafka(bootstrap_servers="k:1"),
    subscriber=Sink(url="http://mail/"),
)  # fmt: skip
REPLAYS = replay_topic("shop", "main", "mail")


def failed(
    memory: MemoryLog,
    id_: str,
    data: bytes = b"{}",
    at: int | None = None,
    origin: Origin = ORIGIN,
) -> None:
    """An event became a dead letter, `at` this time of its record, if not now."""
    memory.create("dead")
    draft = to_record(Event({**EVENT.attributes, "id": id_}, data))
    headers, value = dead_letter_of(draft.headers, draft.value, FAILURE, origin)
    memory.store("dead", draft.key, value, headers, timestamp=at)


async def replayed(memory: MemoryLog, *ids: str) -> list[str]:
    """What stood in the way of each, empty for those that were sent again."""
    admin, writer = MemoryAdmin(memory), MemoryWriter(memory)
    found = await choose_dead_letters(admin, [EGRESS], ids, {})
    await send_again(admin, writer, [each for each in found if not each.obstacle])
    return [each.obstacle for each in found]


async def test_what_the_tables_have_is_left_out_of_the_topic_and_both_add_up() -> None:
    memory = MemoryLog()
    admin = MemoryAdmin(memory)
    for id_ in ("1", "2", "3"):
        failed(memory, id_)
    described = await admin.describe_topic("dead")
    assert described is not None
    tabled = {(described.id, 0): 2}
    assert [each.id for each in await read_dead_letters(admin, EGRESS, 10, tabled)] == ["3"]
    assert len(await read_dead_letters(admin, EGRESS, 10, {("another topic", 0): 2})) == 3
    in_topic = await read_overview(admin, EGRESS, tabled)
    in_tables = DeadLetterOverview("shop/mail", 2, "1970", "1971", {"status 500": 1, "timeout": 1})
    both = in_topic + in_tables
    assert (both.count_text, both.oldest) == ("3", "1970")
    assert both.newest == "1971"
    assert both.reasons == {"status 500": 2, "timeout": 1}
    assert in_topic + DeadLetterOverview("shop/mail", 0, "", "", {}) == in_topic


async def test_what_was_sent_again_is_said_and_not_counted_until_it_fails_again() -> None:
    memory = MemoryLog()
    failed(memory, "1")
    failed(memory, "2")
    await replayed(memory, "1")
    found = await read_overview(MemoryAdmin(memory), EGRESS)
    assert (found.count, found.replayed, dict(found.reasons)) == (1, 1, {"status 500": 1})
    first, second = await read_dead_letters(MemoryAdmin(memory), EGRESS, 10)
    assert "sent again" in first.text()
    assert (bool(first.replayed), bool(second.replayed)) == (True, False)

    await asyncio.sleep(0.002)  # its records have whole milliseconds
    failed(memory, "1")
    found = await read_overview(MemoryAdmin(memory), EGRESS)
    assert (found.count, found.replayed) == (2, 1)


@pytest.mark.parametrize("later", [0, -150], ids=["same", "earlier"])
async def test_an_event_that_fails_again_is_told_whichever_clocks_its_records_times_are_of(
    later: int,
) -> None:
    """`later`: milliseconds after the replayed record, by another broker's clock."""
    memory = MemoryLog()
    failed(memory, "1", at=1_000)
    await replayed(memory, "1")
    (record,) = memory.topics[REPLAYS][0]
    failed(
        memory,
        "1",
        at=record.timestamp()[1] + later,
        origin=replace(ORIGIN, topic=REPLAYS, partition=0, offset=0),
    )
    first, again = await read_dead_letters(MemoryAdmin(memory), EGRESS, 10)
    assert (bool(first.replayed), again.replayed) == (True, "")
    assert await replayed(memory, "1") == [""], "it is sent once more"
    first, again = await read_dead_letters(MemoryAdmin(memory), EGRESS, 10)
    assert (bool(first.replayed), bool(again.replayed)) == (True, True)


async def test_an_event_is_sent_again_as_it_was_to_the_trigger_that_failed_it() -> None:
    memory = MemoryLog()
    memory.create("t", partitions=4)
    failed(memory, "1", b'{"n": 1}')
    assert await replayed(memory, "1") == [""]
    assert len(memory.topics[REPLAYS]) == 4, "as many partitions as the Broker's topic"
    assert memory.descriptions[REPLAYS].config == REPLAY_TOPIC
    ((record,),) = [each for each in memory.topics[REPLAYS] if each]
    was = to_record(Event({**EVENT.attributes, "id": "1"}, b'{"n": 1}'))
    (*headers, (name, marked)) = record.headers() or []
    assert headers == was.headers
    assert name == REPLAY
    assert marked.endswith(b"/0-0")
    assert (record.key(), record.value()) == (was.key, was.value)


@pytest.mark.parametrize("at", [0, -1], ids=["1970", "no time"])
async def test_a_dead_letter_of_no_time_that_was_not_sent_again_is_said_to_be_so(at: int) -> None:
    memory = MemoryLog()
    failed(memory, "1", at=at)
    (found,) = await read_dead_letters(MemoryAdmin(memory), EGRESS, 10)
    assert found.replayed == ""
    assert await replayed(memory, "1") == [""]
    (found,) = await read_dead_letters(MemoryAdmin(memory), EGRESS, 10)
    assert found.replayed


async def test_an_event_is_not_sent_twice_by_asking_twice() -> None:
    memory = MemoryLog()
    failed(memory, "1")
    await replayed(memory, "1")
    (obstacle,) = await replayed(memory, "1")
    assert "sent again already" in obstacle
    assert sum(map(len, memory.topics[REPLAYS])) == 1


@pytest.mark.parametrize("edits", [["/n=2"], []], ids=["data", "attribute"])
async def test_an_event_that_was_edited_and_sent_again_is_sent_again(edits: list[str]) -> None:
    memory = MemoryLog()
    failed(memory, "1", b'{"n": 1}')
    failed(memory, "2", b'{"n": 1}')
    dead_letter = memory.topics["dead"][0][0]
    edited = EventEdits.parse(["type=order.v2"], [], edits)
    headers, value = edited_record(edited, dead_letter.headers() or [], dead_letter.value())
    await replayed(memory, "2")
    memory.store(REPLAYS, dead_letter.key(), value, headers)
    first, second = await read_dead_letters(MemoryAdmin(memory), EGRESS, 10)
    assert first.replayed
    assert second.replayed
    (obstacle,) = await replayed(memory, "1")
    assert "sent again already" in obstacle

    # It fails again, edited, and is sent again as it is now.
    await asyncio.sleep(0.002)  # its records have whole milliseconds
    headers, value = dead_letter_of(headers, value, FAILURE, ORIGIN)
    memory.store("dead", None, value, headers)
    assert await replayed(memory, "1") == [""]
    assert all(each.replayed for each in await read_dead_letters(MemoryAdmin(memory), EGRESS, 10))


async def test_what_has_lost_its_data_or_never_was_an_event_is_left_out() -> None:
    memory = MemoryLog()
    memory.create("dead")
    letter_ = dead_letter_of(*to_record(EVENT)[1:], FAILURE, ORIGIN)
    stub = stub_of(Draft(None, *letter_))
    memory.store("dead", None, stub.value, stub.headers)
    assert await replayed(memory, "1") == ["too large to be kept: its data is gone"]
    undecodable = replace(FAILURE, reason=Reason.UNDECODABLE)
    memory.topics["dead"][0].clear()
    headers, value = dead_letter_of([("ce_id", b"1")], b"", undecodable, ORIGIN)
    memory.store("dead", None, value, headers)
    assert await replayed(memory, "1") == ["it isn't an event"]


async def test_only_what_was_asked_for_is_sent() -> None:
    memory = MemoryLog()
    failed(memory, "1")
    failed(memory, "2")
    admin = MemoryAdmin(memory)
    assert await choose_dead_letters(admin, [EGRESS], ["3"], {}) == []
    assert await choose_dead_letters(admin, [EGRESS], ["1"], {"type": "other"}) == []
    (found,) = await choose_dead_letters(admin, [EGRESS], ["1"], {"type": "order", "code": "500"})
    assert found.description == "mail: order 1 from /shop (status 500)"


def test_a_broker_is_not_the_channel_of_its_name() -> None:
    """An event that is replayed goes to the Trigger that failed it, and to no Subscription."""
    subscription = EGRESS.model_copy(update={"kind": "Subscription"})
    other = EGRESS.model_copy(update={"trigger": "print"})
    every = [EGRESS, subscription, other]
    assert select_egresses(every, "shop/main", None) == [EGRESS, other]
    assert select_egresses(every, "shop/main", "mail") == [EGRESS]
    assert select_egresses(every, "shop/KafkaChannel-main", None) == [subscription]
    assert select_egresses(every, None, "print") == [other]
    assert select_egresses(every, None, None) == every


async def test_events_whose_sources_begin_alike_are_two() -> None:
    memory, alike = MemoryLog(), "/shop/" + "s" * 300
    memory.create("dead")
    for source in (f"{alike}/1", f"{alike}/2"):
        draft = to_record(Event({**EVENT.attributes, "source": source}, b"{}"))
        headers, value = dead_letter_of(draft.headers, draft.value, FAILURE, ORIGIN)
        memory.store("dead", None, value, headers)
    admin = MemoryAdmin(memory)
    found = await choose_dead_letters(admin, [EGRESS], ["1"], {})
    assert [each.letter.source for each in found] == [f"{alike}/1", f"{alike}/2"]
    (one,) = await choose_dead_letters(admin, [EGRESS], ["1"], {"source": f"{alike}/2"})
    assert one.letter.source == f"{alike}/2"


async def test_a_letter_that_kafka_does_not_take_is_told() -> None:
    memory = MemoryLog()
    failed(memory, "1")
    memory.fail(LogError("no space"))
    with pytest.raises(ReplayNotSent, match=r"order 1 from /shop .* was not sent: no space"):
        await replayed(memory, "1")


def test_a_stub_says_what_is_missing() -> None:
    headers, value = dead_letter_of(*to_record(EVENT)[1:], FAILURE, ORIGIN)
    stub = stub_of(Draft(None, headers, value))
    assert (
        "  too large to be kept: data\n"
        in parse_dead_letter(FakeRecord(stub.headers)).text() + "\n"
    )
