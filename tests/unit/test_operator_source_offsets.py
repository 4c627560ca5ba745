"""KafkaSources whose offsets Kafka has dropped: nothing is skipped."""

from __future__ import annotations

import pytest
from support.memory.admin import MemoryAdmin
from support.sources_world import GROUP, ID, SourcesWorld, sources_world
from support.waiting import until

from knafka_operator.triggers.started_topics import STARTED_TOPICS


def store(world: SourcesWorld, topic: str, count: int) -> None:
    for _ in range(count):
        world.inner.log.store(topic, None, b"any", None)


async def test_a_topic_that_is_made_anew_while_no_operator_runs_is_read_from_its_start() -> None:
    """Kafka drops a group's offsets with the topic. What was written since is an event."""
    async with sources_world() as world:
        store(world, "more", 2)
        world.declare(topics=["raw", "more"])
        await world.turn()
        assert world.committed()["more", 0] == 2
        await MemoryAdmin(world.inner.log).delete_topic("more")
        world.inner.log.create("more")
        store(world, "more", 5)
        await world.start()
        await world.turn()
        assert world.says("InitialOffsetsCommitted") == ("True", "")
        assert ("more", 0) not in world.committed(), "so it is read from its start"


def forget_started(world: SourcesWorld) -> None:
    """Have the status be of an earlier release, which recorded no started topics."""
    del world.stored()["status"]["annotations"][STARTED_TOPICS]


@pytest.mark.parametrize("is_old", [False, True])
async def test_offsets_that_a_pause_outlasts_are_not_replaced_by_the_end(is_old: bool) -> None:
    """Kafka drops the offsets of a group that nobody joins for a week. It is resumed while no
    operator runs, so that no memory of a delivery helps."""
    async with sources_world() as world:
        world.declare()
        await world.turn()
        world.declare(consumers=0)
        await world.turn()
        if is_old:
            forget_started(world)
            await world.start()
            await world.turn()
        world.inner.log.group(GROUP).committed.clear()
        store(world, "raw", 5)
        world.declare()
        await world.start()
        await world.turn()
        assert world.says("Ready") == ("True", "")
        assert world.committed() == {}


async def test_a_source_without_its_sink_at_an_upgrade_begins_at_the_start() -> None:
    async with sources_world() as world:
        world.declare()
        await world.turn()
        gone = {"apiVersion": "v1", "kind": "Service", "name": "gone", "namespace": "shop"}
        world.declare(sink={"ref": gone})
        await world.turn()
        forget_started(world)
        await world.start()
        await world.turn()
        world.inner.log.group(GROUP).committed.clear()
        store(world, "raw", 5)
        world.declare()
        await world.turn()
        assert world.says("Ready") == ("True", "")
        assert world.committed() == {}


async def test_a_topic_that_is_replaced_is_forgotten() -> None:
    async with sources_world() as world:
        world.inner.log.create("new")
        world.declare(topics=["raw", "more"])
        await world.turn()
        world.declare(topics=["raw", "new"])
        await world.turn()
        assert world.status()["annotations"][STARTED_TOPICS].endswith(" raw,new")


async def test_a_further_bootstrap_server_is_of_the_same_kafka() -> None:
    async with sources_world() as world:
        world.declare()
        await world.turn()
        world.declare(consumers=0)
        await world.turn()
        world.inner.log.group(GROUP).committed.clear()
        store(world, "raw", 5)
        world.declare(bootstrapServers=["theirs:9092", "theirs2:9092"])
        await world.turn()
        assert world.committed() == {}


async def test_a_topic_that_is_taken_out_and_added_again_begins_as_a_new_one() -> None:
    async with sources_world() as world:
        world.declare(topics=["raw", "more"])
        await world.turn()
        world.declare()
        await world.turn()
        assert world.status()["annotations"][STARTED_TOPICS].endswith(" raw")
        del world.inner.log.group(GROUP).committed["more", 0]
        store(world, "more", 5)
        world.declare(topics=["raw", "more"])
        await world.turn()
        assert world.committed()["more", 0] == 5


async def test_in_another_kafka_it_begins_as_a_new_one() -> None:
    async with sources_world() as world:
        world.declare()
        await world.turn()
        world.inner.log.group(GROUP).committed.clear()
        store(world, "raw", 5)
        world.declare(bootstrapServers=["elsewhere:9092"])
        await world.turn()
        assert sum(world.committed().values()) == 5


async def test_an_operator_that_takes_over_delivers_what_is_left_of_the_topics() -> None:
    """A topic that is gone is named, and is no reason to leave the other ones' events."""
    async with sources_world() as world:
        world.declare(topics=["raw", "more"])
        await world.turn()
        await MemoryAdmin(world.inner.log).delete_topic("more")
        await world.start()
        await world.turn()
        status, message = world.says("ConnectionEstablished")
        assert (status, "no topic more" in message) == ("False", True)
        store(world, "raw", 3)
        await until(lambda: world.inner.drains.held[ID] == 1)
        world.inner.log.create("more")
        await world.turn()
        assert world.says("Ready") == ("True", "")


async def test_a_topic_on_which_it_has_not_begun_is_waited_for() -> None:
    """Its start offsets can't be given before it is there: "latest" would skip events."""
    async with sources_world() as world:
        world.declare()
        await world.turn()
        world.declare(topics=["raw", "later"])
        await world.turn()
        assert world.says("ConnectionEstablished")[0] == "False"
        assert world.egress().topics == ("raw",)
