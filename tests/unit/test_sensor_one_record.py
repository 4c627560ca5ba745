"""One record stops no Sensor: whatever it raises it is dead-lettered, and the others go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest
from support.memory_sensors import ACTION, BUS, CHANGELOG, DEAD, TRIGGER, MemorySensor, Send

from knafka.core.documents import parse
from knafka.core.events import json_format
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import RecordHeaders
from knafka.core.sensor import rules
from knafka.core.sensor.contract import SensorTrigger
from knafka.core.sensor.held import Held, HeldEvent
from knafka.core.sensor.rules import Rule, RuleStep
from knafka.ports.transactions import RecordTooLarge
from knafka.sensor import giving_up, processor

YEAR_0: Final = -62_135_600_400_000
IMPOSSIBLE: Final = (YEAR_0, 1_764_096_000_000_000, 1_764_096_000_000_000_000, 2**63 - 1, -1)
"""Milliseconds: the year 0, and what is micro- or nanoseconds."""
LARGE: Final = b"x" * 5_000


@pytest.fixture(autouse=True)
def every_line_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are left out here would be left out in other tests."""
    for each in (processor, giving_up):
        monkeypatch.setattr(each.log, "filters", [])


@pytest.fixture(autouse=True)
def no_time_passes_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine under load takes a millisecond for one, which an event's time would show."""
    monkeypatch.setattr(processor, "time", SimpleNamespace(monotonic=lambda: 0.0))


def settle(world: MemorySensor, process: int = 0) -> None:
    """Until nothing comes any more; what waits for time goes on waiting."""
    world.settle(process)


@pytest.mark.parametrize("at", IMPOSSIBLE)
def test_an_event_of_an_impossible_time_fires_at_the_time_at_which_it_is_read(at: int) -> None:
    world = MemorySensor(1)
    world.send(Send("c", "x", 0), at=at)
    world.send(Send("a", "x", 0), at=at)
    world.send(Send("b", "x", 0))
    settle(world)
    fired = {frozenset(each.split()) for each in world.actions()}
    assert fired == {
        frozenset(each)
        for each in (("one:", "c0"), ("two:", "a1", "b2"), ("three/x:", "c0", "a1", "b2"))
    }
    times = {dict(each.headers() or ())["ce_time"][:19] for each in world.read(ACTION)}
    assert times == {b"1970-01-01T00:16:40"}
    assert world.letters() == []


@pytest.mark.parametrize("at", IMPOSSIBLE)
def test_an_event_that_is_held_with_an_impossible_time_fires(at: int) -> None:
    """As earlier releases have written it into the changelog, and into the trigger topic."""
    world = MemorySensor(1)
    document = json_format.write(
        Event({"specversion": "1.0", "id": "held", "source": "/s", "type": "a"}, None)
    )
    headers: RecordHeaders = [
        ("dependency", b"a"), ("identity", b"/s held"), ("at", b"%d" % at), ("generation", b"1"),
    ]  # fmt: skip
    world.memory.store(CHANGELOG, b"0/two", document, headers, partition=0)
    world.memory.store(TRIGGER, b"late/x", document, headers, partition=0)
    world.send(Send("b", "x", 0))
    settle(world)
    (fired,) = world.actions()
    assert sorted(fired.split()) == ["b0", "held", "two:"]
    (waiting,) = {each.trigger for each in world.opened(0)[0].holding().triggers} - {"three"}
    assert waiting == "late"


def test_one_fast_clock_silences_nobody() -> None:
    """What the bus took in fifty minutes, by its sender, is taken now: pairs go on to fire."""
    world = MemorySensor(1, by_sender=True)
    within = parse(SensorTrigger, {"name": "two", "conditions": "a && b", "within": "PT1M"})
    world.more = {"triggers": (within,)}
    world.send(Send("a", "x", 0), at=world.now + 50 * 60 * 1000)
    settle(world)
    for _ in range(3):
        world.send(Send("b", "x", 1))
        world.send(Send("a", "x", 1))
        settle(world)
    assert world.actions() == {"two: a0 b1": 1, "two: a2 b3": 1, "two: a4 b5": 1}


def test_on_a_topic_with_the_logs_own_time_that_time_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clocks of Kafka and of our processes differ a little."""
    # What is ahead is clamped to when it was read: reading takes no time here.
    monkeypatch.setattr(processor, "time", SimpleNamespace(monotonic=lambda: 0.0))
    world = MemorySensor(1)
    world.send(Send("c", "x", 0), at=world.now + 5_000)
    world.send(Send("c", "x", 0), at=world.now + 3_600_000)
    settle(world)
    times = [dict(each.headers() or ())["ce_time"] for each in world.read(ACTION)]
    assert times == [b"1970-01-01T00:16:45.000Z", b"1970-01-01T00:16:40.030Z"]


def test_whatever_an_event_raises_it_is_dead_lettered_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = MemorySensor(1)
    write = json_format.write

    def breaking(event: Event) -> bytes:
        if event.attributes["id"] == "c1":
            raise KeyError("subject")
        return write(event)

    monkeypatch.setattr(json_format, "write", breaking)
    for _ in range(3):
        world.send(Send("c", "x", 0))
    settle(world)
    fired = {name for name in world.actions() if name.startswith("one")}
    assert fired == {"one: c0", "one: c2"}
    (letter,) = world.letters()
    assert (letter.reason, letter.about["id"]) == ("internal-error", "c1")
    assert letter.told == "KeyError: 'subject'"
    place = [letter.about[f"knafka{each}"] for each in ("topic", "partition", "offset")]
    assert place == [BUS, "0", "1"]
    whose = [letter.about[f"knafka{each}"] for each in ("namespace", "broker", "trigger")]
    assert whose == ["shop", "default", "Sensor-sensor"]
    assert world.opened(0)[0].counts.dead_letters == {"internal-error": 1}
    assert "dead-lettered because of a bug" in caplog.text


@pytest.mark.conformance("BUS-S11")
def test_what_is_no_event_is_dead_lettered() -> None:
    world = MemorySensor(1)
    for topic in (BUS, TRIGGER):
        world.memory.store(topic, None, b"{", [("ce_id", b"\xff")], timestamp=world.now)
    world.send(Send("c", "x", 0))
    settle(world)
    assert world.actions() == {"one: c0": 1}
    letters = world.letters()
    assert [each.reason for each in letters] == ["undecodable-record"] * 2
    assert [each.value for each in letters] == [b"{"] * 2
    assert {each.about["knafkatopic"] for each in letters} == {BUS, TRIGGER}


def test_what_only_one_trigger_raises_keeps_the_event_from_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = MemorySensor(1)
    step = rules.step

    def breaking(rule: Rule, held: Held, event: HeldEvent) -> RuleStep:
        if rule.name == "two" and event.identity == "/s a0":
            raise ZeroDivisionError("a bug")
        return step(rule, held, event)

    monkeypatch.setattr(rules, "step", breaking)
    for dependency in "abcab":
        world.send(Send(dependency, "x", 0))
    settle(world)
    assert world.actions()["three/x: a0 b1 c2"] == 1
    assert world.actions()["two: b1 a3"] == 1
    (letter,) = world.letters()
    assert (letter.reason, letter.about["id"], letter.about["knafkatopic"]) == (
        "internal-error", "a0", TRIGGER,
    )  # fmt: skip


def test_events_that_are_held_and_raise_are_named_and_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else every later event of their key would be given up for them."""
    world = MemorySensor(1)
    world.send(Send("a", "x", 0))
    settle(world)
    step = rules.step

    def breaking(rule: Rule, held: Held, event: HeldEvent) -> RuleStep:
        if rule.name == "two" and any(each.identity == "/s a0" for each in held):
            raise ZeroDivisionError("a bug")
        return step(rule, held, event)

    monkeypatch.setattr(rules, "step", breaking)
    world.send(Send("b", "x", 0))
    world.send(Send("a", "x", 0))
    settle(world)
    assert world.actions() == {"two: b1 a2": 1}
    (letter,) = world.letters()
    assert letter.named == ["a0"]
    assert (letter.reason, letter.about["sensortrigger"]) == ("internal-error", "two")


@pytest.mark.parametrize("broken", ["expire", "expiry_time", "due_time"])
def test_what_time_raises_ends_no_sensor(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = MemorySensor(1)
    world.send(Send("a", "x", 0))
    settle(world)

    def breaking(rule: Rule, *_: Any) -> None:
        raise OverflowError("date value out of range")

    monkeypatch.setattr(rules, broken, breaking)
    world.send(Send("c", "x", 0))
    world.send(Send("b", "y", 0))
    world.rest()
    assert world.actions() == {"one: c1": 1, "two: a0 b2": 1}


class Unreadable:
    """As confluent-kafka raises it for a header's name that isn't UTF-8, but once only."""

    def __init__(self, record: Any) -> None:
        self._record, self._asked = record, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def headers(self) -> RecordHeaders:
        self._asked += 1
        assert self._asked == 1, "a second call gives a list that crashes the process"
        raise SystemError("<built-in method headers> returned a result with an exception set")


@pytest.mark.parametrize("topic", [BUS, TRIGGER, CHANGELOG])
def test_headers_that_cannot_be_read_end_no_sensor(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the changelog each process that gets the partition would have ended for it."""
    world = MemorySensor(1)
    world.memory.store(topic, b"0/two", b"foreign", [("x", b"y")], timestamp=world.now)
    read, read_all = world.opened(0)[1].read, world.opened(0)[1].read_all

    def foreign(records: Any) -> list[Any]:
        return [Unreadable(each) if each.value() == b"foreign" else each for each in records]

    log = world.opened(0)[1]
    monkeypatch.setattr(log, "read", lambda *of: foreign(read(*of)))
    monkeypatch.setattr(log, "read_all", lambda *of: map(foreign, read_all(*of)))
    world.send(Send("c", "x", 0))
    world.send(Send("a", "x", 0))
    world.send(Send("b", "x", 0))
    settle(world)
    assert world.actions()["two: a1 b2"] == 1
    assert [each.reason for each in world.letters()] == ["undecodable-record"] * (
        topic != CHANGELOG
    )


# Too large


@pytest.mark.conformance("KN-DLV-09")
def test_a_firing_that_is_too_large_is_a_dead_letter_that_names_its_events() -> None:
    world = MemorySensor(1)
    world.limit(ACTION, 8_000)
    world.send(Send("a", "x", 0), data=LARGE)
    world.send(Send("b", "x", 0), data=LARGE)
    world.send(Send("c", "x", 0))
    settle(world)
    for dependency in "ab":
        world.send(Send(dependency, "y", 0))
    settle(world)
    assert set(world.actions()) == {"one: c2", "two: a3 b4"}, "it goes on, and holds them no more"
    letters = world.letters()
    assert [each.reason for each in letters] == ["record-too-large"] * 2
    assert {each.about["sensortrigger"]: each.named for each in letters} == {
        "two": ["a0", "b1"],
        "three": ["a0", "b1", "c2"],
    }
    assert all("raise max.message.bytes" in each.told for each in letters)
    assert world.opened(0)[0].counts.dead_letters == {"record-too-large": 2}
    assert not [key for key in world.changelog() if "late" not in key and "/y" not in key]


def test_events_too_large_for_the_trigger_topic_are_dead_letters_and_the_others_go_on() -> None:
    """All of a batch cost one transaction that is aborted, not one each."""
    world = MemorySensor(1)
    world.limit(TRIGGER, 3_000)
    for number in range(40):
        world.send(Send("a", f"o{number}", 0), data=LARGE if number % 2 else None)
    world.send(Send("b", "o38", 0))
    settle(world)
    assert world.actions() == {"two: a38 b40": 1}
    letters = world.letters()
    assert [each.reason for each in letters] == ["record-too-large"] * 60
    assert {each.about["id"] for each in letters} == {f"a{each}" for each in range(1, 40, 2)}
    assert {each.about["sensortrigger"] for each in letters} == {"two", "three", "late"}
    assert {each.value for each in letters} == {LARGE}, "a dead letter has its event"
    assert world.opened(0)[0].counts.aborted <= 3


def test_an_event_too_large_for_the_changelog_is_a_dead_letter() -> None:
    world = MemorySensor(1)
    world.limit(CHANGELOG, 3_000)
    world.send(Send("a", "x", 0), data=LARGE)
    settle(world)
    world.send(Send("a", "x", 1))
    world.send(Send("b", "x", 0))
    settle(world)
    assert world.actions() == {"two: a1 b2": 1}
    assert {each.reason for each in world.letters()} == {"record-too-large"}
    assert {each.about["id"] for each in world.letters()} == {"a0"}


def test_a_dead_letter_that_is_too_large_is_stored_without_its_data() -> None:
    world = MemorySensor(1)
    world.memory.create(DEAD, 1)
    for topic in (TRIGGER, DEAD):
        world.limit(topic, 3_000)
    world.send(Send("a", "x", 0), data=LARGE)
    settle(world)
    assert {(each.about["id"], each.about["knafkaomitted"]) for each in world.letters()} == {
        ("a0", "data")
    }


def test_a_foreign_record_whose_headers_have_no_values_is_dead_lettered_however_large() -> None:
    """Kafka allows for that; it is no event, and too large for the dead-letter topic as well."""
    world = MemorySensor(1)
    world.memory.create(DEAD, 1)
    world.limit(DEAD, 3_000)
    headers: Any = [("ce_id", None), ("x", None)]
    world.memory.store(BUS, b"k", LARGE, headers, timestamp=world.now)
    world.send(Send("c", "x", 0))
    settle(world)
    assert world.actions()["one: c0"] == 1
    (letter,) = world.letters()
    assert (letter.reason, letter.about["knafkaomitted"]) == ("undecodable-record", "data")


def test_what_even_the_dead_letter_topic_does_not_take_moves_no_offset() -> None:
    """KN-DLV-09: the drain ends with an error, and goes on where it was once it is taken."""
    world = MemorySensor(1)
    world.memory.create(DEAD, 1)
    world.limit(TRIGGER, 3_000)
    world.limit(DEAD, 10)
    world.send(Send("a", "x", 0), data=LARGE)
    sensor, _ = world.opened(0)

    def drain() -> None:
        for after in range(10):
            sensor.step(world.now + 100 * after)

    with pytest.raises(RecordTooLarge, match=f"too large for {DEAD}"):
        drain()
    world.end(0, expelled=False)
    world.limit(DEAD, 1_000_000)
    settle(world)
    assert {each.about["id"] for each in world.letters()} == {"a0"}


def test_where_records_are_compressed_only_what_was_refused_is_left_out() -> None:
    """A record that is larger than another may be smaller in its topic."""
    world = MemorySensor(1)
    world.limit(ACTION, 4_000)
    sensor, _ = world.opened(0)
    sensor._is_compressed = True
    world.send(Send("c", "x", 0), data=LARGE)
    world.send(Send("c", "y", 0))
    settle(world)
    assert [each for each in world.actions() if each.startswith("one")] == ["one: c1"]
    (letter,) = world.letters()
    assert (letter.reason, letter.about["id"]) == ("record-too-large", "c0")


# What is held


def test_beyond_a_maximum_of_keys_the_oldest_are_let_go_of() -> None:
    world = MemorySensor(1)
    world.without = ("two", "late")
    world.more = {"max_held_keys": 3}
    for number in range(6):
        world.send(Send("a", f"o{number}", 1))
    settle(world)
    sensor, _ = world.opened(0)
    assert set(sensor.held()) == {f"three/o{number}" for number in (3, 4, 5)}
    assert len(world.changelog()) == 3
    assert [each.named for each in world.letters()] == [["a0"], ["a1"], ["a2"]]
    assert {each.reason for each in world.letters()} == {"state-full"}
    assert [each.about["subject"] for each in world.letters()] == ["o0", "o1", "o2"]
    assert sensor.counts.let_go == {"three": 3}


def test_beyond_a_maximum_of_bytes_the_oldest_are_let_go_of() -> None:
    world = MemorySensor(1)
    world.without = ("two", "late")
    world.more = {"max_held_bytes": 20_000}
    for number in range(6):
        world.send(Send("a", f"o{number}", 1), data=LARGE)
    settle(world)
    sensor, _ = world.opened(0)
    assert sensor.held_bytes <= 20_000
    assert set(sensor.held()) <= {f"three/o{number}" for number in range(2, 6)}
    assert "three/o5" in sensor.held()


def test_what_is_held_is_counted_through_firings_restarts_and_aborts() -> None:
    world = MemorySensor(1)
    for order in "xyz":
        world.send(Send("a", order, 0), data=LARGE)
    settle(world)
    held = world.opened(0)[0]
    assert held.held_bytes == sum(
        len(each.document) for events in held.held().values() for each in events
    )
    world.end(0, expelled=False)
    settle(world)
    again = world.opened(0)[0]
    assert (again.held_bytes, again.held_keys) == (held.held_bytes, held.held_keys)
    for dependency in "bc":
        for order in "xyz":
            world.send(Send(dependency, order, 0))
    world.rest()
    ended = [world.opened(number)[0] for number in range(3)]
    left = [each for process in ended for held in process.held().values() for each in held]
    assert sum(each.held_bytes for each in ended) == sum(len(each.document) for each in left)
    assert [each.identity for each in left] == ["/s b5"]
