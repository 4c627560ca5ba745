"""Each Kafka that Brokers use: shared by those that reach it the same way, let go when unused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

import pytest
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog
from support.scaling import NoSensors

from knafka.core.contract import Egress, Kafka, Shard, Sink
from knafka.core.drain import DrainProgress, DrainRequest, Ended, ShardProgress
from knafka.core.errors import InvalidDocument, LogError
from knafka.ports.log import Lag, Positions
from knafka_operator.kafka import clusters as module
from knafka_operator.kafka.clusters import KafkaClusters
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.scaler import Scaler

SECRET = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "one"}
EGRESS = Egress(
    namespace="shop",
    broker="default",
    trigger="all",
    topic="orders",
    group="group",
    dead_letter_topic="dead",
    kafka=Kafka(bootstrap_servers="a:1"),
    subscriber=Sink(url="http://there"),
)


class Drains(NoSensors):
    """Ends each drain at once; keeps who was held."""

    def __init__(self) -> None:
        self.held: list[str] = []

    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        self.held.append(trigger_id)
        yield DrainProgress(ended=Ended.IDLE)

    def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        raise NotImplementedError


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


def _kafkas(log: MemoryLog, drains: Drains, seen: list[Mapping[str, Any]]) -> KafkaClusters:
    def connect(configuration: Mapping[str, Any]) -> MemoryAdmin:
        seen.append(configuration)
        return MemoryAdmin(log)

    return KafkaClusters(connect, drains)


@pytest.mark.looptime
async def test_brokers_that_reach_a_kafka_the_same_way_share_it(log: MemoryLog) -> None:
    seen: list[Mapping[str, Any]] = []
    kafkas = _kafkas(log, Drains(), seen)
    assert kafkas.ensure_cluster("a:1", None) is kafkas.ensure_cluster("a:1", None)
    assert kafkas.ensure_cluster("a:1", SECRET) is not kafkas.ensure_cluster("a:1", None)
    assert kafkas.ensure_cluster("a:1", {**SECRET, "password": "two"}) is not kafkas.ensure_cluster(
        "a:1", SECRET
    )
    assert [each.get("sasl.password") for each in seen] == [None, "one", "two"]
    await kafkas.close()


@pytest.mark.looptime
async def test_a_secret_that_cannot_work_is_told(log: MemoryLog) -> None:
    with pytest.raises(InvalidDocument):
        _kafkas(log, Drains(), []).ensure_cluster("a:1", {"protocol": "CARRIER_PIGEON"})


@pytest.mark.looptime
async def test_a_kafka_that_nobody_asks_for_is_let_go(log: MemoryLog) -> None:
    kafkas = _kafkas(log, Drains(), [])
    before = kafkas.ensure_cluster("old:1", None)
    for _ in range(4):
        await asyncio.sleep(module.UNUSED_TIMEOUT / 3)
        kafkas.ensure_cluster("new:1", None)
    assert kafkas.ensure_cluster("old:1", None) is not before
    await kafkas.close()


@pytest.mark.looptime
async def test_a_topic_that_grows_wakes_its_triggers_before_their_interval(log: MemoryLog) -> None:
    """performance: one look at all topics, so that an idle Trigger costs nothing by itself."""
    drains = Drains()
    kafkas = _kafkas(log, drains, [])
    side = kafkas.ensure_cluster("a:1", None)
    await side.topics.ensure_topic("orders", 1, 1, {})
    await side.topics.ensure_committed("group", "orders")
    side.watched.add("orders")
    await side.scaler.watch("shop/all", EGRESS, Autoscaling(polling_interval=1000.0))
    await asyncio.sleep(5)
    assert drains.held == []
    _append(log, "orders")
    await asyncio.sleep(2)
    assert drains.held[0] == "shop/all"
    await kafkas.close()


@pytest.mark.looptime
async def test_an_event_that_comes_before_the_first_look_at_a_topic_is_no_later_for_it(
    log: MemoryLog,
) -> None:
    """The first look has nothing to compare the ends with, and the scaler has looked before."""
    drains = Drains()
    kafkas = _kafkas(log, drains, [])
    side = kafkas.ensure_cluster("a:1", None)
    await side.topics.ensure_topic("orders", 1, 1, {})
    await side.topics.ensure_committed("group", "orders")
    await asyncio.sleep(
        1.1 * module.ENDS_CHECK_INTERVAL
    )  # the scaler runs, and a look is just over
    side.watched.add("orders")
    await side.scaler.watch("shop/all", EGRESS, Autoscaling(polling_interval=1000.0))
    await asyncio.sleep(module.ENDS_CHECK_INTERVAL / 2)
    assert side.scaler.statuses()["shop/all"].lag == 0
    assert drains.held == []
    _append(log, "orders")
    await asyncio.sleep(2)
    assert drains.held[0] == "shop/all"
    await kafkas.close()


class Sharing(Drains):
    """Holds each shard's request until it is stopped."""

    async def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        self.held.append(shard.group)
        yield ShardProgress(contract=0)
        await stop.wait()


class Questions(MemoryAdmin):
    """Counts questions for lags."""

    asked = 0

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        self.asked += 1
        return await super().lags(groups, topic)


SHARD = Shard(group="shard", kafka=EGRESS.kafka, contract_topic="contract")
SLOW = Autoscaling(polling_interval=1000.0)


@pytest.mark.looptime
async def test_a_topics_growth_wakes_a_shard_without_a_question_for_its_groups(
    log: MemoryLog,
) -> None:
    """Issue 15: waking costs the same however many Triggers share a dispatcher."""
    admin, drains = Questions(log), Sharing()
    kafkas = KafkaClusters(lambda _: admin, drains)
    side = kafkas.ensure_cluster("a:1", None)
    await admin.ensure_topic("orders", 3, 1, {})
    await admin.ensure_committed("group", "orders")
    side.watched.add("orders")
    await side.scaler.watch("shop/all", EGRESS, SLOW, SHARD)
    await asyncio.sleep(2)
    asked = admin.asked
    _append(log, "orders")
    _append(log, "orders")
    await asyncio.sleep(1.1 * module.ENDS_CHECK_INTERVAL)
    assert drains.held == ["shard"]
    assert admin.asked == asked
    assert side.scaler.statuses()["shop/all"].lag == 2
    await kafkas.close()


@pytest.mark.looptime
async def test_the_first_look_after_a_restart_starts_no_shard_for_which_nothing_waits(
    log: MemoryLog,
) -> None:
    admin, drains = Questions(log), Sharing()
    await admin.ensure_topic("orders", 3, 1, {})
    _append(log, "orders")
    await admin.ensure_committed("group", "orders")
    kafkas = KafkaClusters(lambda _: admin, drains)
    side = kafkas.ensure_cluster("a:1", None)
    side.watched.add("orders")
    await side.scaler.watch("shop/all", EGRESS, SLOW, SHARD)
    await asyncio.sleep(5)
    assert drains.held == []
    await kafkas.close()


@pytest.mark.looptime
async def test_a_partition_that_was_away_or_is_new_is_no_growth(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end was not known: whether anything waits is asked for."""
    admin, drains = Questions(log), Sharing()
    kafkas = KafkaClusters(lambda _: admin, drains)
    side = kafkas.ensure_cluster("a:1", None)
    await admin.ensure_topic("orders", 1, 1, {})
    await admin.ensure_committed("group", "orders")
    side.watched.add("orders")
    await side.scaler.watch("shop/all", EGRESS, SLOW, SHARD)
    ends: dict[str, Positions] = {}

    async def found(topics: Collection[str]) -> Mapping[str, Positions]:
        return dict(ends)

    monkeypatch.setattr(admin, "end_offsets_of_all", found)
    for ends["orders"] in ({0: 5, 1: 7}, {1: 7}, {0: 5, 1: 7}, {0: 5, 1: 7, 2: 9}, {0: 0, 1: 0}):
        asked = admin.asked
        await asyncio.sleep(1.1 * module.ENDS_CHECK_INTERVAL)
        assert (drains.held, admin.asked) == ([], asked + 1)
    await kafkas.close()


class Looks(MemoryAdmin):
    """Counts the looks at each topic's ends."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.counts: Counter[str] = Counter()

    async def end_offsets_of_all(self, topics: Collection[str]) -> Mapping[str, Positions]:
        self.counts.update(topics)
        return await super().end_offsets_of_all(topics)

    async def within(self, seconds: float) -> Counter[str]:
        self.counts.clear()
        await asyncio.sleep(seconds)
        return Counter(self.counts)


TWICE_A_SECOND = pytest.approx(20, abs=1)
"""Looks in ten seconds."""
IN_TURNS = pytest.approx(20 / module.RESTING_TURNS, abs=1)


@pytest.mark.looptime
async def test_topics_to_which_nothing_writes_are_looked_at_in_turns(log: MemoryLog) -> None:
    """Issue 14, 4: at 1,000 idle Triggers it was half of what they cost."""
    topics, resting = [f"topic-{number}" for number in range(40)], set[str]()
    admin, drains = Looks(log), Drains()
    kafkas = KafkaClusters(lambda _: admin, drains, resting=lambda kafka: resting)
    side = kafkas.ensure_cluster("a:1", None)
    for topic in topics:
        await admin.ensure_topic(topic, 1, 1, {})
    side.watched.update(topics)
    await asyncio.sleep(2 * module.REST_AFTER_SECONDS)
    assert all(
        each == TWICE_A_SECOND for each in (await admin.within(10)).values()
    )  # anything may write to them
    resting.update(topics[1:])
    counts = await admin.within(10)
    assert counts.pop(topics[0]) == TWICE_A_SECOND
    assert all(each == IN_TURNS for each in counts.values())
    assert len(counts) == len(topics) - 1

    _append(log, topics[1])
    await asyncio.sleep(module.RESTING_TURNS * module.ENDS_CHECK_INTERVAL)
    assert (await admin.within(10))[topics[1]] == TWICE_A_SECOND  # it has moved lately
    await asyncio.sleep(module.REST_AFTER_SECONDS)
    assert (await admin.within(10))[topics[1]] == IN_TURNS
    side.watched.clear()
    await asyncio.sleep(1)
    assert (side._ends, side._grown_at) == ({}, {})
    await kafkas.close()


@pytest.mark.looptime
async def test_a_topic_that_is_drained_does_not_rest(log: MemoryLog) -> None:
    """Its dispatchers' replies go there, however late they come."""

    class Held(Drains):
        async def hold(
            self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
        ) -> AsyncIterator[DrainProgress]:
            await stop.wait()
            yield DrainProgress(ended=Ended.STOPPED)

    admin = Looks(log)
    kafkas = KafkaClusters(lambda _: admin, Held(), resting=lambda kafka: {"orders"})
    side = kafkas.ensure_cluster("a:1", None)
    await admin.ensure_topic("orders", 1, 1, {})
    side.watched.add("orders")
    await side.scaler.watch("shop/all", EGRESS, Autoscaling(min_scale=1))
    await asyncio.sleep(2 * module.REST_AFTER_SECONDS)
    assert (await admin.within(10))["orders"] == TWICE_A_SECOND
    await side.scaler.watch("shop/all", EGRESS, Autoscaling(min_scale=0))
    await side.scaler.forget("shop/all")
    assert (await admin.within(10))["orders"] == IN_TURNS
    await kafkas.close()


@pytest.mark.looptime
async def test_an_event_in_a_topic_that_rests_wakes_its_triggers_within_two_seconds(
    log: MemoryLog,
) -> None:
    admin, drains = Looks(log), Drains()
    kafkas = KafkaClusters(lambda _: admin, drains, resting=lambda kafka: {"orders"})
    side = kafkas.ensure_cluster("a:1", None)
    await admin.ensure_topic("orders", 1, 1, {})
    await admin.ensure_committed("group", "orders")
    side.watched.add("orders")
    await side.scaler.watch("shop/all", EGRESS, Autoscaling(polling_interval=1000.0))
    await asyncio.sleep(2 * module.REST_AFTER_SECONDS)
    assert drains.held == []
    _append(log, "orders")
    await asyncio.sleep(module.RESTING_TURNS * module.ENDS_CHECK_INTERVAL + 0.3)
    assert drains.held[0] == "shop/all"
    await kafkas.close()


@pytest.mark.looptime
async def test_who_waits_for_a_kafka_is_told_once_when_it_answers_again(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a Broker stays not Ready for its back-off, up to five minutes, after an outage."""
    returned: list[bool] = []
    kafkas = KafkaClusters(
        lambda _: MemoryAdmin(log), Drains(), on_return=lambda: returned.append(True)
    )
    side = kafkas.ensure_cluster("a:1", None)
    await side.topics.ensure_topic("orders", 1, 1, {})
    side.watched.add("orders")
    await asyncio.sleep(2)
    assert returned == []

    async def away(topics: Collection[str]) -> Mapping[str, Mapping[int, int]]:
        raise LogError("no answer within 10 s")

    with monkeypatch.context() as patched:
        patched.setattr(side.topics, "end_offsets_of_all", away)
        await asyncio.sleep(60)
        assert returned == []
    await asyncio.sleep(2)
    assert returned == [True]
    await kafkas.close()


@pytest.mark.looptime
async def test_a_scaler_that_fails_is_told_and_started_again(
    log: MemoryLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would miss it until events wait."""
    runs = []

    async def run(self: Scaler) -> None:
        runs.append(self)
        raise RuntimeError("a bug")

    monkeypatch.setattr(Scaler, "run", run)
    kafkas = _kafkas(log, Drains(), [])
    kafkas.ensure_cluster("a:1", None)
    await asyncio.sleep(3)
    assert len(runs) > 1
    assert "a bug" in caplog.text
    await kafkas.close()


def _append(log: MemoryLog, topic: str) -> None:
    from support.memory.log import MemoryWriter

    MemoryWriter(log).append(topic, None, b"{}", [], lambda _: None)


@pytest.mark.looptime
async def test_a_look_that_takes_too_long_is_a_line_in_the_log_and_not_a_bug(
    log: MemoryLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafkas = _kafkas(log, Drains(), [])
    side = kafkas.ensure_cluster("a:1", None)
    side.watched.add("orders")

    async def hangs(topics: Collection[str]) -> Mapping[str, Positions]:
        await asyncio.sleep(1e6)
        return {}

    monkeypatch.setattr(side.topics, "end_offsets_of_all", hangs)
    await asyncio.sleep(2 * module.ENDS_CHECK_TIMEOUT)
    assert "did not answer within 10 s" in caplog.text
    assert "Traceback" not in caplog.text
    await kafkas.close()
