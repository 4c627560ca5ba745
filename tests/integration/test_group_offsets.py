"""Offsets of groups that have no members, on a real Kafka."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._group import ConsumerGroupDescription
from support.kafka import Kafka, MakeTopic
from support.logs import Owner

from knafka.clients.kafka.admin import kafka_offsets
from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.admin.kafka_groups import DETACHING_SUFFIX
from knafka.clients.kafka.admin.kafka_offsets import KafkaOffsets
from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.core.errors import LogError
from knafka.core.progress import MAX_METADATA
from knafka.ports.log import OffsetAndMetadata
from knafka.ports.shared_log import Commit, GroupHasMembers

pytestmark = pytest.mark.kafka


@pytest.fixture
async def offsets(kafka: Kafka) -> AsyncIterator[KafkaOffsets]:
    offsets = KafkaOffsets({"bootstrap.servers": kafka.bootstrap_servers})
    yield offsets
    await offsets.close()


async def known(offsets: KafkaOffsets, group: str, topic: str) -> None:
    """Wait until the broker knows the topic, which was made a moment ago."""
    async with asyncio.timeout(30):
        while True:
            try:
                await offsets.commit(group, topic, {0: Commit(0)})
            except LogError as error:
                if not error.unknown_topic:
                    raise
            else:
                return


async def test_a_commit_keeps_its_metadata_and_its_leader_epoch(
    offsets: KafkaOffsets, topic: MakeTopic
) -> None:
    name, group = topic(partitions=3), uuid.uuid4().hex
    assert await offsets.committed(group, name, {0, 1, 2}) == {}
    await known(offsets, group, name)
    commits = {0: Commit(5, "x" * MAX_METADATA, 0), 2: Commit(7)}
    await offsets.commit(group, name, commits)
    assert await offsets.committed(group, name, {0, 1, 2}) == commits
    await offsets.commit(group, name, {2: Commit(8, "ü", 0)})
    assert await offsets.committed(group, name, {0, 2}) == {**commits, 2: Commit(8, "ü", 0)}


async def test_what_kafka_refuses_is_raised(offsets: KafkaOffsets, topic: MakeTopic) -> None:
    name, group = topic(), uuid.uuid4().hex
    await known(offsets, group, name)
    with pytest.raises(LogError, match="metadata"):
        await offsets.commit(group, name, {0: Commit(1, "x" * 5000)})
    with pytest.raises(LogError, match="Unknown topic"):
        await offsets.commit(group, f"{name}-not-there", {0: Commit(1)})


@pytest.mark.parametrize("protocol", list(GroupProtocol))
async def test_a_group_with_members_is_theirs(
    kafka: Kafka, offsets: KafkaOffsets, topic: MakeTopic, protocol: GroupProtocol
) -> None:
    name, group = topic(), uuid.uuid4().hex
    connection = {"bootstrap.servers": kafka.bootstrap_servers}
    owner = Owner()
    await known(offsets, group, name)
    reader = KafkaReader(connection, group, name, owner, protocol)
    while not owner.owned:
        await reader.read(1, 0.2)
    with pytest.raises(GroupHasMembers):
        await offsets.commit(group, name, {0: Commit(9)})
    with pytest.raises(GroupHasMembers):
        await offsets.committed(group, name, {0})
    await reader.close(10)
    assert await offsets.committed(group, name, {0}) == {0: Commit(0)}
    await offsets.commit(group, name, {0: Commit(9)})


async def test_a_coordinator_that_is_another_one_is_asked_by_another_client(
    offsets: KafkaOffsets, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, group = topic(), uuid.uuid4().hex
    await known(offsets, group, name)
    monkeypatch.setattr(kafka_offsets, "REOPEN_INTERVAL", 0.0)
    first = offsets._calls.admin
    commit_once = offsets._commit_once

    async def asked(group: str, wanted: list[TopicPartition]) -> KafkaError | None:
        if offsets._calls.admin is first:
            return KafkaError(KafkaError.NOT_COORDINATOR)
        return await commit_once(group, wanted)

    monkeypatch.setattr(offsets, "_commit_once", asked)
    await offsets.commit(group, name, {0: Commit(3)})
    assert await offsets.committed(group, name, {0}) == {0: Commit(3)}


async def described(kafka: Kafka, group: str) -> ConsumerGroupDescription:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    asked = admin.describe_consumer_groups([group])[group]
    return await asyncio.wrap_future(asked)


async def leave_behind(kafka: Kafka, group: str, topic: str) -> None:
    """A group of the classic protocol, which has no members any more, at offset 5."""
    connection = {"bootstrap.servers": kafka.bootstrap_servers}
    owner = Owner()
    reader = KafkaReader(connection, group, topic, owner, GroupProtocol.CLASSIC)
    async with asyncio.timeout(60):
        while not owner.owned:
            await reader.read(1, 0.1)
    reader.commit({0: OffsetAndMetadata(5, "as it was")})
    await reader.close(10)


async def test_a_group_that_classic_members_left_is_made_one_that_is_kept_by_its_commits(
    kafka: Kafka, offsets: KafkaOffsets, topic: MakeTopic
) -> None:
    """Of one that classic members have left, Kafka forgets them a week later, whatever is
    committed as nobody's meanwhile."""
    name, group = topic(), uuid.uuid4().hex
    await leave_behind(kafka, group, name)
    assert not (await described(kafka, group)).is_simple_consumer_group
    assert (await offsets.committed(group, name, {0}))[0].offset_and_metadata == (5, "as it was")
    assert (await described(kafka, group)).is_simple_consumer_group
    assert (await described(kafka, group + DETACHING_SUFFIX)).state is ConsumerGroupState.DEAD


@pytest.mark.parametrize("died_after", ["copy", "deletion"])
async def test_offsets_survive_whoever_dies_while_they_are_detached(
    kafka: Kafka, offsets: KafkaOffsets, topic: MakeTopic, died_after: str
) -> None:
    name, group = topic(), uuid.uuid4().hex
    await leave_behind(kafka, group, name)
    await offsets.commit(group + DETACHING_SUFFIX, name, {0: Commit(4)})
    if died_after == "deletion":
        admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
        await admin.delete_group(group)
        await admin.close()
    kept = 4 if died_after == "deletion" else 5
    assert (await offsets.committed(group, name, {0}))[0].offset == kept
    assert (await described(kafka, group + DETACHING_SUFFIX)).state is ConsumerGroupState.DEAD
