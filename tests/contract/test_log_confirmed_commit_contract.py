"""What every reader does whose commits can be waited for: in memory and on real Kafka."""

from __future__ import annotations

import pytest
from support.logs import Log, Owner, each_protocol, read, values

from knafka.core.errors import LogError
from knafka.ports.log import ConfirmingReader, OffsetAndMetadata

pytestmark = each_protocol


async def test_a_commit_that_is_waited_for_is_there_when_it_returns(log: Log, group: str) -> None:
    """BUS-S7: and no earlier one comes after it."""
    topic = await log.topic()
    for number in range(5):
        await log.append(topic, b"%d" % number)
    reader, owner = log.reader(group, topic), Owner()
    assert isinstance(reader, ConfirmingReader)
    await read(reader, 5)
    reader.commit({0: OffsetAndMetadata(1)})
    await reader.commit_now({0: OffsetAndMetadata(4, "text")})
    assert (await log.admin.lags([group], topic))[group].total == 1
    await log.close_reader(reader)
    assert values(await read(log.reader(group, topic, owner), 1)) == [b"4"]
    assert owner.committed == {0: OffsetAndMetadata(4, "text")}


async def test_a_commit_that_is_waited_for_fails_for_a_partition_of_somebody_else(
    log: Log, group: str
) -> None:
    topic = await log.topic(partitions=2)
    await log.append(topic, b"1")
    reader = log.reader(group, topic)
    assert isinstance(reader, ConfirmingReader)
    await read(reader, 1)
    with pytest.raises(LogError):
        await reader.commit_now({0: OffsetAndMetadata(1), 7: OffsetAndMetadata(1)})
    await log.close_reader(reader)
    assert (await log.admin.lags([group], topic))[group].total == 1
