"""What becomes of topics and groups when files change, and over restarts of the local mode."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.local_world import broker, running_locally, trigger
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog

from knafka.core import names
from knafka_local.cluster.kept_names import KeptNames

pytestmark = pytest.mark.looptime

TOPIC = "knative-broker-default-shop"


async def test_what_leaves_the_files_goes_with_its_topic_and_its_group() -> None:
    async with running_locally() as world:
        await world.apply(broker(), trigger())
        egress = world.egress()
        assert egress is not None
        assert egress.group in world.log.groups
        await world.apply(broker())
        assert egress.group not in world.log.groups
        assert world.egress() is None
        assert TOPIC in world.log.topics
        await world.apply()
        assert TOPIC not in world.log.topics
        assert list(world.receiver.ingresses) == []
        assert world.snapshot().brokers == ()


async def test_a_second_start_recognises_its_topics_and_groups(tmp_path: Path) -> None:
    """KN-BRK-19: and events that came meanwhile are delivered."""
    log, file = MemoryLog(), tmp_path / "names.json"
    async with running_locally(log, KeptNames(file, "cluster")) as world:
        await world.apply(broker(), trigger())
        egress = world.egress()
        assert egress is not None
    committed = dict(log.group(egress.group).committed)
    log.store(TOPIC, b"key", b"value", [])
    async with running_locally(log, KeptNames(file, "cluster")) as world:
        await world.apply(broker(), trigger())
        assert world.reason("Broker", "shop") == world.reason("Trigger", "orders") == ""
        assert world.egress() == egress
        assert log.group(egress.group).committed == committed, "the event that waits still does"


async def test_what_is_in_no_file_at_a_start_keeps_its_data(tmp_path: Path) -> None:
    log, file = MemoryLog(), tmp_path / "names.json"
    for declared in ((broker(),), (broker("other"),), (broker(),)):
        async with running_locally(log, KeptNames(file, "cluster")) as world:
            await world.apply(*declared)
            assert TOPIC in log.topics
            assert world.snapshot().brokers[0].refused == ""


async def test_a_topic_of_its_name_that_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    """As with another Kafka, whose names are kept apart."""
    log, file = MemoryLog(), tmp_path / "names.json"
    async with running_locally(log, KeptNames(file, "cluster")) as world:
        await world.apply(broker())
    async with running_locally(log, KeptNames(file, "another")) as world:
        await world.apply(broker())
        assert world.reason("Broker", "shop").startswith("TopicNotOurs: ")


async def test_data_from_before_names_were_kept_is_taken_over() -> None:
    log = MemoryLog()
    log.create(TOPIC, 2)
    group = names.trigger_group("default", "orders")
    await MemoryAdmin(log).ensure_committed(group, TOPIC)
    log.store(TOPIC, b"key", b"value", [])
    committed = dict(log.group(group).committed)
    async with running_locally(log, adopt=True) as world:
        await world.apply(broker(), trigger())
        assert world.reason("Broker", "shop") == world.reason("Trigger", "orders") == ""
        assert log.group(group).committed == committed, "the event that waits still does"


@pytest.mark.parametrize("text", ["[]", "null", '{"c": []}', '{"c": {"Broker default/x": 3}}', "{"])
def test_a_file_that_holds_anything_else_is_not_taken_for_kept_names(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "names.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"."):
        KeptNames(file, "c")
