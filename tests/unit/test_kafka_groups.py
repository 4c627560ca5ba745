"""Where groups stand: asked of Kafka only where that may have changed (issue 4, scaler)."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import pytest
from confluent_kafka import TopicPartition
from support.lookups import only_look_ups
from support.replacing import replace_in

from knafka.clients.kafka.admin import kafka_groups
from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.admin.kafka_groups import MAX_CACHE_SECONDS, KafkaGroups, cache_seconds
from knafka.clients.kafka.admin.kafka_lags import ENDS_CACHE_SECONDS, _CachedEnds
from knafka.clients.kafka.admin.kafka_topic_requests import DescribedTopic
from knafka.clients.kafka.consumers.kafka_replaced_topics import UNKNOWN_TOPIC_ID
from knafka.clients.kafka.kafka_requests import AdminCalls
from knafka.core.commit_metadata import mark, short_id
from knafka.core.errors import LogError
from knafka.ports.log import Commits, OffsetAndMetadata, Positions

GROUPS = [f"group-{number}" for number in range(300)]
PARTITIONS = [TopicPartition("topic", 0), TopicPartition("topic", 1)]
ENDS = {0: 10, 1: 0}
OLD_ID = "U/MGQ+ZUTR2_-xyzABCDEF"


def set_time(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    """Have the groups' clock, and no other, say `now`."""
    replace_in(monkeypatch, kafka_groups, "time", monotonic=lambda: now)


class Asked(KafkaGroups):
    """Every group has committed `offset` of partition 0, and nothing of the empty one."""

    def __init__(self) -> None:
        connection = {"bootstrap.servers": "127.0.0.1:1"}
        super().__init__(connection, AdminCalls(connection, 1.0))
        self.asked: list[str] = []
        self.offset = 10
        self.broken: set[str] = set()

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition], topic_id: str = ""
    ) -> Commits:
        self.asked.append(group)
        if group in self.broken:
            raise LogError("away")
        return {0: OffsetAndMetadata(self.offset)}

    async def look(self, ends: Positions = ENDS, topic_id: str = "id") -> list[str]:
        """Whom it asked for this look."""
        before = len(self.asked)
        found = await self.commits_of_groups(GROUPS, topic_id, PARTITIONS, ends)
        assert found == {group: {0: OffsetAndMetadata(self.offset)} for group in GROUPS}
        return sorted(self.asked[before:])


async def test_groups_at_the_end_of_a_topic_that_has_not_grown_are_not_asked_again() -> None:
    groups = Asked()
    assert await groups.look() == sorted(GROUPS)
    assert await groups.look() == []


async def test_all_are_asked_when_the_topic_has_grown() -> None:
    groups = Asked()
    await groups.look()
    assert await groups.look({0: 11, 1: 0}) == sorted(GROUPS)
    assert await groups.look({0: 10, 1: 1}) == sorted(GROUPS)
    assert await groups.look({0: 10, 1: 0, 2: 1}) == sorted(GROUPS)


async def test_whoever_is_behind_is_asked_each_time() -> None:
    groups = Asked()
    groups.offset = 9
    assert await groups.look() == sorted(GROUPS)
    assert await groups.look() == sorted(GROUPS)


async def test_a_topic_that_was_made_again_is_another_one() -> None:
    groups = Asked()
    await groups.look()
    assert await groups.look(topic_id="another") == sorted(GROUPS)


async def test_one_whose_offsets_we_change_is_asked_again() -> None:
    groups = Asked()
    await groups.look()
    groups.forget(GROUPS[7])
    assert await groups.look() == [GROUPS[7]]


async def test_nobody_is_believed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may set a group back by hand; then it isn't all of them that are asked at once."""
    groups = Asked()
    await groups.look()
    for group in GROUPS:  # the first were asked when they were few
        groups.forget(group)
        await groups.look()
    now = time.monotonic()
    set_time(monkeypatch, now + cache_seconds(len(GROUPS)) * 0.6)
    asked = await groups.look()
    assert 0 < len(asked) < len(GROUPS) / 2
    set_time(monkeypatch, now + cache_seconds(len(GROUPS)) * 2)
    assert await groups.look() == sorted(GROUPS)


def test_few_groups_are_asked_often_and_many_cost_no_more() -> None:
    """A group that is set back by hand is noticed within this time, and its lag's interval."""
    assert cache_seconds(1) == 15
    assert cache_seconds(300) == 450
    assert cache_seconds(1000) == 1500
    assert cache_seconds(5000) == MAX_CACHE_SECONDS == 1800


async def test_what_is_known_of_other_groups_is_not_looked_at() -> None:
    groups = Asked()
    await groups.look()
    only_look_ups(groups)
    groups.forget(GROUPS[7])
    assert await groups.look() == [GROUPS[7]]


async def test_nothing_is_kept_of_groups_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Asked()
    await groups.look()
    now = time.monotonic()
    set_time(monkeypatch, now + MAX_CACHE_SECONDS * 1.01)
    await groups.commits_of_groups([], "id", PARTITIONS, ENDS)
    assert groups._cached == {}


class Marked(KafkaGroups):
    """The group has committed in partition 0, with the mark of a topic."""

    async def committed_partitions(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> Sequence[TopicPartition]:
        return [TopicPartition("topic", 0, 7, mark("", short_id(OLD_ID)))]


@pytest.mark.parametrize(
    ("topic_id", "offsets"),
    [(OLD_ID, [7]), (OLD_ID[::-1], []), ("", [7]), (UNKNOWN_TOPIC_ID, [7])],
)
async def test_commits_of_another_topic_do_not_count_once_the_id_is_known(
    topic_id: str, offsets: list[int]
) -> None:
    connection = {"bootstrap.servers": "127.0.0.1:1"}
    groups = Marked(connection, AdminCalls(connection, 1.0))
    commits = await groups.committed("group", PARTITIONS, topic_id)
    assert [commit.offset for commit in commits.values()] == offsets


async def test_the_first_error_ends_the_look() -> None:
    groups = Asked()
    groups.broken = set(GROUPS[20:])
    with pytest.raises(LogError, match="away"):
        await groups.look()
    assert len(groups.asked) < 50
    groups.broken = set()
    await groups.look()


async def test_lags_are_told_without_a_question_where_nothing_has_come_since_the_last_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An idle Trigger costs no request: its topic's ends are read with everybody's anyway."""
    admin, groups = KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}), Asked()
    lag_reader = admin._lags
    admin._groups = lag_reader._groups = groups
    await groups.look()
    asked: list[str] = []

    async def existing(topic: str) -> None:
        asked.append(topic)
        raise LogError("asked")

    monkeypatch.setattr(lag_reader._requests, "describe_existing", existing)

    async def is_asked(ends: Positions, topic_id: str = "id", ago: float = 0.0) -> bool:
        lag_reader._cached_ends = {"topic": _CachedEnds(time.monotonic() - ago, topic_id, ends)}
        before = len(groups.asked)
        try:
            lags = await admin.lags(GROUPS, "topic")
        except LogError:
            return True
        assert lags.keys() == set(GROUPS)
        assert {each.total for each in lags.values()} == {0}
        return len(groups.asked) > before

    assert not await is_asked(ENDS)
    admin.forget_group(GROUPS[7])
    assert await is_asked(ENDS)
    assert asked == []  # of a group at the ends nothing else has to be known
    assert groups.asked[-1] == GROUPS[7]
    assert await is_asked({0: 11, 1: 0})
    assert await is_asked(ENDS, topic_id="made anew")
    assert await is_asked(ENDS, ago=1.1 * ENDS_CACHE_SECONDS)
    await admin.close()


async def test_ends_are_remembered_of_topics_that_another_look_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Topics that rest are looked at in turns; one that can't be read now is not what it was."""
    admin = KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"})
    lag_reader = admin._lags
    partitions = {name: [TopicPartition(name, 0), TopicPartition(name, 1)] for name in ("a", "b")}
    unread: set[TopicPartition] = set()

    async def described(
        topics: Collection[str], *, allow_failures: bool
    ) -> dict[str, DescribedTopic]:
        return {each: DescribedTopic(each, partitions[each], 1) for each in topics}

    async def listed(
        wanted: list[TopicPartition], *, allow_failures: bool
    ) -> dict[TopicPartition, int]:
        return {each: 7 for each in wanted if each not in unread}

    monkeypatch.setattr(lag_reader._requests, "describe", described)
    monkeypatch.setattr(lag_reader._requests, "offsets_of_partitions", listed)
    await admin.end_offsets_of_all({"a", "b"})
    await admin.end_offsets_of_all({"b"})
    assert lag_reader._cached_ends.keys() == {"a", "b"}
    unread.add(partitions["b"][1])
    assert await admin.end_offsets_of_all({"b"}) == {"b": {0: 7}}
    assert lag_reader._cached_ends.keys() == {"a"}
    await admin.close()


async def test_groups_that_are_told_to_be_at_the_end_of_their_topic_are_not_asked() -> None:
    """Issue 15: a shard tells what it has committed for 1,000 groups."""
    groups = Asked()
    groups.note_commits(GROUPS[1:], "id", {0: 10, 1: 0}, seconds=60)
    await groups.commits_of_groups(GROUPS, "id", PARTITIONS, ENDS)
    assert groups.asked == GROUPS[:1]
    assert groups.have_committed(GROUPS[1:], "id", ENDS)


@pytest.mark.parametrize("told", [{0: 9, 1: 0}, {0: 10}, {0: 11, 1: 0}, {}])
async def test_what_is_told_of_other_offsets_than_all_ends_spares_no_question(
    told: Positions,
) -> None:
    groups = Asked()
    groups.note_commits(GROUPS, "id", told, seconds=60)
    assert await groups.look() == sorted(GROUPS)


async def test_what_is_told_of_a_topic_that_was_made_again_spares_no_question() -> None:
    groups = Asked()
    groups.note_commits(GROUPS, "another", ENDS, seconds=60)
    assert await groups.look() == sorted(GROUPS)


async def test_a_group_that_may_have_been_set_back_during_a_drain_is_asked_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = Asked()
    await groups.look()
    groups.forget(GROUPS[7])
    began = time.monotonic()
    set_time(monkeypatch, began + 50)
    groups.note_commits(GROUPS, "id", ENDS, seconds=60)
    groups.asked.clear()
    await groups.commits_of_groups(GROUPS, "id", PARTITIONS, ENDS)
    assert groups.asked == [GROUPS[7]]
    groups.note_commits(GROUPS, "id", {0: 10, 1: 1}, seconds=40)
    assert groups.have_committed(GROUPS, "id", {0: 10, 1: 1}), (
        "what was set back before it has begun there"
    )


async def test_what_was_told_is_asked_again_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Asked()
    groups.note_commits(GROUPS, "id", ENDS, seconds=60)
    set_time(monkeypatch, time.monotonic() + cache_seconds(len(GROUPS)) + 1)
    assert await groups.look() == sorted(GROUPS)
