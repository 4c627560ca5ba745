"""A Sensor's processor: what it does at the edges of a transaction and of time."""

from __future__ import annotations

import json
from typing import Final
from zlib import crc32

import pytest
from support.memory.transactions import Interruption
from support.memory_sensors import ACTION, BUS, CHANGELOG, GROUP, TRIGGER, WAIT, MemorySensor, Send

from knafka.core.documents import parse
from knafka.core.sensor.contract import SensorTrigger
from knafka.sensor.batch import MAX_BATCH_RECORDS

TOPICS: Final = (BUS, TRIGGER)


def test_what_did_not_come_fires_only_when_all_before_was_read_by_everybody() -> None:
    """The unwanted event lies unread where another process reads."""
    world = MemorySensor(2)
    for _ in range(2):  # both join, and share the partitions
        world.run(0)
        world.run(1)
    world.send(Send("a", "x", 0))
    for _ in range(4):
        world.run(0)
        world.run(1)
    world.send(Send("b", "x", 1))
    world.now += (WAIT + 60) * 1000
    reads_b = next(each for each in (0, 1) if world.unread(each))
    other = 1 - reads_b
    for _ in range(10):
        world.now += 1000
        world.run(other)
    assert world.actions() == {}
    world.rest()
    assert world.actions() == {"two: a0 b1": 1}


def test_what_is_due_fires_though_its_transaction_was_aborted_before() -> None:
    world = MemorySensor(1)
    world.send(Send("a", "x", 0))
    for _ in range(4):
        world.run(0)
    world.now += (WAIT + 60) * 1000
    world.opened(0)[1].interrupt(Interruption.ABORT)
    for _ in range(10):
        world.now += 1000
        world.run(0)
    assert world.actions() == {"late/x: a0": 1}


@pytest.mark.slow
def test_keys_that_are_due_at_once_are_shared_out_among_transactions() -> None:
    """One of them all would take longer than Kafka lets it; and nothing is asked between two."""
    world = MemorySensor(1)
    keys = 2 * MAX_BATCH_RECORDS + 500
    for number in range(keys):
        world.send(Send("a", f"o{number}", 0))
    while world.run(0):
        pass
    world.now += (WAIT + 60) * 1000
    processor, _ = world.opened(0)
    before = processor.counts.transactions
    # Far apart: a step on a busy machine takes longer than a clock may be set back.
    handled = [processor.step(world.now + minute * 60_000) for minute in range(4)]
    assert handled == [MAX_BATCH_RECORDS, MAX_BATCH_RECORDS, 0, 0], (
        "the last of them keep nobody awake"
    )
    assert processor.counts.transactions == before + 3
    assert world.actions() == {f"late/o{number}: a{number}": 1 for number in range(keys)}


@pytest.mark.slow
def test_what_comes_while_keys_are_due_is_decided_by_what_is_known_after_it() -> None:
    """An event whose sender held it back, and whose answer lies unread where another reads."""
    world = MemorySensor(2)
    for _ in range(2):  # both join, and share the partitions
        world.run(0)
        world.run(1)
    for number in range(3 * MAX_BATCH_RECORDS):
        world.send(Send("a", f"o{number}", 0))
    while world.run(0) + world.run(1):
        pass
    at = world.now
    world.now += (WAIT + 60) * 1000
    while not world.actions():  # the first of process 0's keys have fired, and not the last
        world.run(0)
        world.now += 1000
    assert world.actions().total() == MAX_BATCH_RECORDS

    processor, log = world.opened(0)
    mine = {topic: {each.number for each in log._next if each.topic == topic} for topic in TOPICS}
    order = next(
        name for name in map(str, range(100)) if crc32(b"late/%b" % name.encode()) % 2
        in mine[TRIGGER]
    )  # fmt: skip
    later, world.now = world.now, at
    for dependency, read_by_it in (("a", True), ("b", False)):
        while (crc32(str(len(world.sent)).encode()) % 2 in mine[BUS]) is not read_by_it:
            world.send(Send("c", "other", 0))
        world.send(Send(dependency, order, 0))
    world.now = later
    for _ in range(20):
        world.run(0)
        world.now += 1000
    assert any(key == f"late/{order}" for key in processor.held())
    world.rest()
    assert not any(each.startswith(f"late/{order}:") for each in world.actions())


def test_what_a_removed_trigger_held_is_removed_from_the_changelog() -> None:
    world = MemorySensor(1)
    world.send(Send("a", "x", 0))
    for _ in range(4):
        world.run(0)
    assert {key.partition("/")[2] for key in world.changelog()} == {"two", "three/x", "late/x"}
    world.end(0, expelled=False)
    world.without = ("three", "late")
    for _ in range(4):
        world.run(0)
    assert {key.partition("/")[2] for key in world.changelog()} == {"two"}


def test_what_many_keys_of_a_removed_trigger_held_goes_in_several_transactions() -> None:
    world = MemorySensor(1)
    for number in range(MAX_BATCH_RECORDS + 500):
        world.send(Send("a", f"o{number}", 0))
    while world.run(0):
        pass
    assert len(world.changelog()) > 2 * MAX_BATCH_RECORDS
    world.end(0, expelled=False)
    world.without = ("three", "late")
    sizes: list[int] = []
    while (handled := world.run(0)) or not sizes:
        sizes.append(handled)
    assert max(sizes) == MAX_BATCH_RECORDS
    assert len(world.changelog()) == 1, "what `two` holds"


@pytest.mark.conformance("BUS-S4")
def test_what_was_held_is_removed_from_the_changelog_when_it_has_fired() -> None:
    """BUS-S4: so a start costs what is held, however much has fired."""
    world = MemorySensor(1)
    for order in "xy":
        for dependency in "abc":
            world.send(Send(dependency, order, 0))
    world.rest()
    assert world.read(ACTION) != []
    assert world.read(TRIGGER) != []
    assert world.read(CHANGELOG) != []
    assert world.changelog() == {}


@pytest.mark.conformance("BUS-18", "BUS-S6")
def test_records_say_their_trigger_dependency_and_events() -> None:
    """BUS-18, BUS-S6: a key lies in one partition, the changelog's in that of the same number."""
    world = MemorySensor(3)
    for order in "wxyz":
        world.send(Send("a", order, 0))
    world.send(Send("b", "w", 0))
    for _ in range(8):
        world.run(0)
    places: dict[str, set[int]] = {}
    for record in world.read(TRIGGER):
        event = json.loads(record.value() or b"")
        headers = dict(record.headers() or ())
        assert headers["dependency"] == event["type"].encode()
        places.setdefault((record.key() or b"").decode(), set()).add(record.partition())
    assert places.keys() == {
        "two",
        *(f"{name}/{each}" for name in ("three", "late") for each in "wxyz"),
    }
    assert all(len(each) == 1 for each in places.values())
    for record in world.read(CHANGELOG):
        key = (record.key() or b"").decode().partition("/")[2]
        assert {record.partition()} == places[key]
    (action,) = world.read(ACTION)
    assert action.key() is None, "without a correlation nothing goes one after another"
    assert dict(action.headers() or ())["ce_sensortrigger"] == b"two"
    assert [each["type"] for each in json.loads(action.value() or b"")] == ["a", "b"]


@pytest.mark.conformance("BUS-23", "BUS-S9")
def test_a_transaction_has_as_many_records_as_are_there_up_to_its_limit() -> None:
    """BUS-23, BUS-S9."""
    world = MemorySensor(1)
    for _ in range(MAX_BATCH_RECORDS + 500):
        world.send(Send("c", "x", 0))
    processor, _ = world.opened(0)
    read = [processor.step(world.now) for _ in range(2)]
    assert read[0] == MAX_BATCH_RECORDS
    assert processor.counts.transactions == 2


@pytest.mark.conformance("BUS-S10")
def test_a_partition_that_goes_takes_what_was_held_with_it() -> None:
    """BUS-S10: what another process holds now would fire here, too (argo-events#2611)."""
    world = MemorySensor(1)
    world.send(Send("a", "x", 0))
    for _ in range(4):
        world.run(0)
    processor, _ = world.opened(0)
    assert processor.held() != {}
    other, _ = world.opened(1)
    for _ in range(4):  # both are members
        world.run(1)
        world.run(0)
    holding = [each for each in (processor, other) if each.held()]
    assert len(holding) == 1
    number = (processor, other).index(holding[0])
    world.end(number, expelled=True)
    world.run(1 - number)  # it gets the partition, and the one that lost it joins again
    world.run(number)
    world.run(1 - number)
    assert holding[0].held() == {}
    world.send(Send("b", "x", 0))
    world.rest()
    assert world.actions() == {"two: a0 b1": 1}


@pytest.mark.conformance("BUS-S11")
def test_what_is_no_event_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """BUS-S11: on the bus and on the trigger topic; it is logged, and the offset moves on."""
    world = MemorySensor(1)
    for topic in (BUS, TRIGGER):
        world.memory.store(topic, b"k", b"{", [], timestamp=world.now)
    world.send(Send("c", "x", 0))
    processor, _ = world.opened(0)
    for _ in range(4):
        world.run(0)
    assert world.actions() == {"one: c0": 1}
    assert processor.counts.undecodable == 2
    (said,) = (each.getMessage() for each in caplog.records if "is no event" in each.message)
    assert said.startswith("the record at 0 of "), "and seldom, however many there are"


@pytest.mark.conformance("BUS-S8")
def test_metadata_that_is_none_of_ours_changes_nothing() -> None:
    """BUS-S8: what is committed beside the trigger topic's offset isn't needed to go on."""
    world = MemorySensor(1)
    world.send(Send("a", "x", 0))
    for _ in range(4):
        world.run(0)
    world.end(0, expelled=False)
    committed = world.memory.group(GROUP).committed
    assert [json.loads(each.metadata) for each in committed.values() if each.metadata] != []
    for place, each in committed.items():
        committed[place] = each._replace(metadata='{"two": ')
    world.send(Send("b", "x", 0))
    world.rest()
    assert world.actions() == {"two: a0 b1": 1}
    metadata = {place[0]: json.loads(each.metadata) for place, each in committed.items()}
    assert metadata[BUS].keys() == {"@until"}, "only the trigger topic says what triggers need"


@pytest.mark.parametrize(
    ("order", "keys"),
    [(None, {None, b"each/x", b"7"}), ("key", {b"two", b"each/x", b"7"})],
)
def test_actions_have_the_events_key_or_the_correlation_or_go_many_at_once(
    order: str | None, keys: set[bytes | None]
) -> None:
    """`order: key` keeps those without either in order, too."""
    world = MemorySensor(1)
    declared = (
        {"name": "two", "conditions": "a && b"},
        {"name": "each", "conditions": "a && b", "correlation": "order"},
        {"name": "one", "conditions": "c"},
    )
    world.more = {
        "triggers": tuple(parse(SensorTrigger, {**each, "order": order}) for each in declared)
    }
    for dependency in "ab":
        world.send(Send(dependency, "x", 0))
    while len(world.sent) < 7:
        world.send(Send("b", "y", 0))
    world.send(Send("c", "x", 0))
    world.rest()
    assert {each.key() for each in world.read(ACTION)} == keys
