"""`knafka sensor next|skip|dead-letters`: whose Kafka is asked, and what is printed."""

from __future__ import annotations

from typing import Any

import pytest
from support.memory.records import MemoryRecord
from typer.testing import CliRunner

from knafka.core import names
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka.core.sensor import letters, records
from knafka.core.sensor.held import HeldEvent
from knafka_cli.command_line import app
from knafka_cli.sensors import sensor_positions, sensor_record_commands
from knafka_cli.sensors.sensor_positions import SensorPosition
from knafka_client.state.installation import Installation, RunningState, SensorPlace
from knafka_client.topics import dead_letters

PLACE = SensorPlace(
    namespace="shop",
    name="paid",
    bus="default",
    topic="bus",
    group="shop-paid",
    trigger_topic="trigger",
    dead_letter_topic="dead",
)
ABOUT = {"specversion": "1.0", "id": "o-1", "source": "/s", "type": "order"}


def standing(topic: str, record: MemoryRecord | None) -> SensorPosition:
    headers = None if record is None else record.headers() or []
    return SensorPosition(topic, 0, 7, "", 9, record, headers)


def on_bus(headers: list[tuple[str, bytes]], millis: int = 1_000_000) -> SensorPosition:
    return standing("bus", MemoryRecord("bus", 0, 8, None, b"data", headers, millis))


@pytest.fixture(autouse=True)
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    state = RunningState(pid=1, url="http://a", bootstrap_servers="k:1", sensors=(PLACE,))
    monkeypatch.setattr(Installation, "read_state", lambda _: state)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sensor", *arguments])
    return result.exit_code, result.output


def test_what_is_next_is_shown_with_its_place_size_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = HeldEvent("order", "/s o-1", 1, 0, b"{}")
    of_trigger = MemoryRecord(
        "trigger", 0, 7, b"ship/o-1", b"{}", records.headers_of(event, 4), 1_000_000
    )
    unreadable = SensorPosition("bus", 0, 7, "", 9, on_bus([]).record, None)
    found = [
        on_bus(to_record(Event(ABOUT, b"data")).headers),
        on_bus([("ce_id", b"\xff")], -62_135_600_400_000),
        unreadable,
        standing("trigger", of_trigger),
        standing("trigger", None),
    ]
    monkeypatch.setattr(sensor_positions, "unread_positions", lambda *_: found)
    code, output = run("next", "shop/paid")
    assert code == 0
    assert output.splitlines() == [
        "bus/0/8, 2 offsets before the end: 4 bytes of 1970-01-01T00:16:40.000Z: order o-1 from /s",
        "bus/0/8, 2 offsets before the end: 4 bytes of 0001-01-02T00:00:00.000Z, no event: the"
        " record header ce_id is not UTF-8",
        "bus/0/8, 2 offsets before the end: 4 bytes of 1970-01-01T00:16:40.000Z, no event: its"
        " headers can't be read",
        "trigger/0/7, 2 offsets before the end: 2 bytes of 1970-01-01T00:16:40.000Z for ship/o-1 as"
        " order, of generation 4 of the Sensor: o-1 from /s",
        "trigger/0/7, 2 offsets before the end: nothing to read",
    ]
    monkeypatch.setattr(sensor_positions, "unread_positions", lambda *_: [])
    assert run("next", "paid", "-n", "shop") == (0, "shop/paid has read everything\n")


def test_what_was_passed_over_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def skip(*of: Any) -> SensorPosition:
        asked.append(of)
        return on_bus(to_record(Event(ABOUT, b"data")).headers)

    monkeypatch.setattr(sensor_positions, "skip", skip)
    code, output = run("skip", "shop/paid", "bus/0/8")
    assert code == 0
    assert output.startswith("skipped bus/0/8, ")
    assert output.endswith("order o-1 from /s; it is in dead\n")
    ((connection, sensor, place),) = asked
    assert (connection["bootstrap.servers"], sensor, place) == ("k:1", PLACE, "bus/0/8")


@pytest.mark.parametrize("command", [["next"], ["skip", "bus/0/1"], ["dead-letters"]])
def test_a_sensor_that_does_not_run_is_refused(command: list[str]) -> None:
    name, *more = command
    code, output = run(name, "other", *more)
    assert code == 2
    assert "there is no Sensor default/other: there is shop/paid" in output


def test_its_dead_letters_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.memory_sensors import sensor

    from knafka.core.delivery import Reason

    held = [HeldEvent("a", f"/s {number}", number, number, b"x" * 10) for number in range(2)]
    failure = Reason.TOO_LARGE, "action takes no record of 20 bytes"
    made = letters.of_events(sensor(1), "two", held, 0, failure, 1_000.0)
    record = MemoryRecord("dead", 0, 0, made.key, made.value, made.headers, 1_000_000)

    async def read(admin: object, topic: str, limit: int) -> list[MemoryRecord]:
        return [record][: limit if topic == "dead" else 0]

    monkeypatch.setattr(dead_letters, "read_topic", read)
    code, output = run("dead-letters", "shop/paid")
    assert code == 0
    assert "record-too-large" in output
    assert "action takes no record of 20 bytes" in output


def test_of_a_cluster_only_names_that_can_be_its_own_are_taken_from_its_status() -> None:
    """Who may write a Sensor's status may not have somebody's group moved."""
    kept = {"group.id": "shop-paid", "knafka.dev/trigger-topic": "shop-default-paid-trigger"}
    document = {
        "metadata": {"namespace": "shop", "name": "paid"},
        "status": {"annotations": kept},
    }
    place = sensor_record_commands.sensor_place_of(document, "default", "paid")
    assert (place.group, place.trigger_topic) == ("shop-paid", "shop-default-paid-trigger")
    assert place.dead_letter_topic == names.dead_letter_topic("shop", "default", "Sensor-paid")
    kept["group.id"] = "knative-trigger-other-orders"
    with pytest.raises(Exception, match="2"):
        sensor_record_commands.sensor_place_of(document, "default", "paid")
