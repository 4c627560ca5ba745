"""Sensors in the local mode: reconciled on what files declare, as on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.api_server import ApiServer, api_server, kubeconfig
from support.local_world import LocalWorld, broker, channel, running_locally
from support.memory.log import MemoryLog
from support.waiting import until
from typer.testing import CliRunner

from knafka_cli.command_line import app
from knafka_client.state import snapshot_file
from knafka_client.state.installation import Installation
from knafka_client.state.snapshot import Snapshot, TriggerRow
from knafka_local.cluster.kept_names import SENSOR_ANNOTATIONS, KeptNames
from knafka_operator.model.sensors import KNAFKA, SENSOR
from knafka_operator.model.sensors import TOPICS as TOPICS_OF_SENSORS
from knafka_operator.sensors import decide as deciding

pytestmark = pytest.mark.looptime

BUS = "knative-broker-default-shop"
TOPICS = [f"default-shop-paid-{what}" for what in ("trigger", "changelog", "action")]


def sensor(*triggers: str) -> dict[str, Any]:
    return {
        "apiVersion": KNAFKA,
        "kind": SENSOR,
        "metadata": {"name": "paid"},
        "spec": {
            "broker": "shop",
            "dependencies": [{"name": "a"}, {"name": "b"}],
            "triggers": [
                {"name": each, "subscriber": {"uri": "http://127.0.0.1:1/"}} for each in triggers
            ],
        },
    }


async def is_ready(world: LocalWorld) -> None:
    await until(lambda: world.reason(SENSOR, "paid") == "", within=60)


async def test_a_sensor_runs_and_its_triggers_deliver_what_has_fired() -> None:
    async with running_locally() as world:
        await world.apply(broker(), sensor("ship"))
        await is_ready(world)
        assert {BUS, *TOPICS} <= world.log.topics.keys()
        egress = world.egress("paid-ship")
        assert egress is not None
        assert (egress.topic, egress.reply_topic) == (TOPICS[2], BUS)
        await until(lambda: world.snapshot().sensors[0].lag == 0)
        (row,) = world.snapshot().sensors
        assert (row.kind, row.name, row.broker) == ("Sensor", "default/paid", "shop")
        assert row.most_replicas == len(world.log.topics[BUS])


async def test_a_trigger_that_leaves_a_sensor_goes_and_the_sensor_with_its_file() -> None:
    async with running_locally() as world:
        await world.apply(broker(), sensor("ship", "send"))
        await is_ready(world)
        await world.apply(broker(), sensor("send"))
        await until(
            lambda: world.cluster.find_reconciled("Trigger", "default", "paid-ship") is None
        )
        assert world.egress("paid-send") is not None
        await world.apply(broker())
        assert world.cluster.find_reconciled(SENSOR, "default", "paid") is None
        assert world.cluster.find_reconciled("Trigger", "default", "paid-send") is None
        assert not world.log.topics.keys() & set(TOPICS)
        assert BUS in world.log.topics


async def test_another_start_goes_on_with_what_a_sensor_has() -> None:
    """Its topics are its own, and no action is delivered again."""
    log, names = MemoryLog(), KeptNames()
    async with running_locally(log, names) as world:
        await world.apply(broker(), sensor("ship"))
        await is_ready(world)
        before, egress = dict(log.descriptions), world.egress("paid-ship")
    assert egress is not None
    committed = log.group(egress.group).committed
    for place, each in committed.items():
        committed[place] = each._replace(offset=7)
    async with running_locally(log, names) as world:
        await world.apply(broker(), sensor("ship"))
        await is_ready(world)
        assert world.egress("paid-ship") == egress
    assert {each: log.descriptions[each].id for each in TOPICS} == {
        each: before[each].id for each in TOPICS
    }
    assert {each.offset for each in log.group(egress.group).committed.values()} == {7}


async def test_another_start_has_no_earlier_generation_of_an_edited_sensor() -> None:
    """Else it would refuse the records that its processes have left in the trigger topic."""
    log, names = MemoryLog(), KeptNames()
    generations = []
    for declared in (["ship"], ["ship", "send"]), (["ship"],), (["send"],):
        async with running_locally(log, names) as world:
            for triggers in declared:
                await world.apply(broker(), sensor(*triggers))
                await is_ready(world)
                stored = world.cluster.find_reconciled(SENSOR, "default", "paid")
                assert stored is not None
                generations.append(stored["metadata"]["generation"])
    assert generations == sorted(set(generations))


def on_channel(*triggers: str) -> dict[str, Any]:
    """The same Sensor on the KafkaChannel `orders`, whose triggers send replies elsewhere."""
    found = sensor(*triggers)
    del found["spec"]["broker"]
    found["spec"]["channel"] = "orders"
    for each in found["spec"]["triggers"]:
        each["reply"] = {"uri": "http://127.0.0.1:2/"}
    return found


CHANNEL_TOPICS = [
    f"default-KafkaChannel-orders-paid-{what}" for what in ("trigger", "changelog", "action")
]


async def test_a_sensor_on_a_channel_runs_and_goes_on_with_another_start() -> None:
    """Its Subscription keeps the UID that is in its group's name: no action is delivered again."""
    log, names = MemoryLog(), KeptNames()
    async with running_locally(log, names) as world:
        await world.apply(channel(), on_channel("ship"))
        await is_ready(world)
        egress = world.egress("paid-ship")
        assert egress is not None
        assert egress.topic == CHANNEL_TOPICS[2]
        assert egress.reply is not None
        assert egress.reply.url == "http://127.0.0.1:2/"
        (row,) = world.snapshot().sensors
        assert (row.name, row.broker) == ("default/paid", "orders")
        assert row.most_replicas == len(log.topics[CHANNEL_TOPICS[0]])
    committed = log.group(egress.group).committed
    for place, each in committed.items():
        committed[place] = each._replace(offset=7)
    async with running_locally(log, names) as world:
        await world.apply(channel(), on_channel("ship"))
        await is_ready(world)
        assert world.egress("paid-ship") == egress
        assert {each.offset for each in log.group(egress.group).committed.values()} == {7}
        await world.apply(channel())
        assert not log.topics.keys() & set(CHANNEL_TOPICS)
        assert world.cluster.find_reconciled("Subscription", "default", "paid-ship") is None
        assert log.group(egress.group).committed == {}
        assert [each for each in world.cluster.of("Service") if "paid" in str(each)] == []


async def test_a_sensor_that_moves_to_another_bus_is_another_one() -> None:
    """A file may say what an API server would refuse: what it had on the Broker goes."""
    async with running_locally() as world:
        await world.apply(broker(), channel(), sensor("ship"))
        await is_ready(world)
        await world.apply(broker(), channel(), on_channel("ship"))
        await is_ready(world)
        assert not world.log.topics.keys() & set(TOPICS)
        assert world.log.topics.keys() >= set(CHANNEL_TOPICS)
        assert world.cluster.find_reconciled("Trigger", "default", "paid-ship") is None
        assert world.egress("paid-ship") is not None


def test_what_a_sensors_status_names_is_kept() -> None:
    found = {key for both in TOPICS_OF_SENSORS.values() for key in both}
    assert {*found, deciding.BUS} == set(SENSOR_ANNOTATIONS)


@pytest.fixture
def api() -> Iterator[tuple[ApiServer, str]]:
    """An API server that has Sensors, and where it is."""
    with api_server() as (server, client):
        server.kinds[KNAFKA] = {SENSOR: "sensors"}
        yield server, client.configuration.host


def test_on_a_cluster_its_status_says_what_a_sensor_waits_for(
    api: tuple[ApiServer, str], tmp_path: Path
) -> None:
    server, url = api
    oldest = {"key": "7", "has": ["a"], "waitsFor": ["b"], "since": "2026-11-23T09:00:00Z"}
    since = {"since": oldest["since"]}
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "annotations": {"knafka.dev/lag": "3"},
        "waiting": [{"trigger": "ship", "keys": 2, **since, "oldest": [oldest]}],
    }
    server.put(KNAFKA, SENSOR, "shop", "paid", spec=sensor("ship")["spec"], status=status)
    file = str(kubeconfig(tmp_path, url))
    asked = ["sensor", "status", "--kubeconfig", file, "--context", "dev"]
    result = CliRunner().invoke(app, asked)
    assert result.output.splitlines() == [
        "shop/paid: 3 events unread",
        "  ship/7 has a, waits for b since 2026-11-23T09:00:00Z",
        "  ship holds 1 more keys",
    ]
    assert result.exit_code == 0
    status["conditions"] = [{"type": "Ready", "status": "False", "reason": "R", "message": "m"}]
    server.put(KNAFKA, SENSOR, "shop", "paid", spec=sensor("ship")["spec"], status=status)
    result = CliRunner().invoke(app, ["sensor", "status", "shop/paid", "--kubeconfig", file])
    assert (result.exit_code, result.output.splitlines()[0]) == (1, "shop/paid: R: m")
    assert CliRunner().invoke(app, [*asked, "other"]).exit_code == 2


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], ["default/paid", "shop/paid", "shop/sent"]),
        (["-n", "shop"], ["shop/paid", "shop/sent"]),
        (["paid"], ["default/paid"]),
        (["paid", "-n", "shop"], ["shop/paid"]),
        (["shop/paid"], ["shop/paid"]),
        (["sent"], []),
    ],
)
def test_a_sensor_of_knafka_up_is_found_in_its_namespace(
    tmp_path: Path, options: list[str], shown: list[str]
) -> None:
    rows = tuple(map(TriggerRow, ("default/paid", "shop/paid", "shop/sent")))
    installation = Installation(tmp_path)
    with installation.hold_lock():
        snapshot_file.write_snapshot(installation, Snapshot("up", sensors=rows))
        asked = ["sensor", "status", *options, "--data-dir", str(tmp_path)]
        result = CliRunner().invoke(app, asked)
    assert result.exit_code == (0 if shown else 2)
    if shown:
        assert [line.partition(":")[0] for line in result.output.splitlines()] == shown


def test_a_cluster_without_sensors_is_said(tmp_path: Path) -> None:
    with api_server() as (_, client):
        file = str(kubeconfig(tmp_path, client.configuration.host))
        result = CliRunner().invoke(app, ["sensor", "status", "--kubeconfig", file])
    assert result.exit_code == 2
    assert "no Sensors" in result.output
