"""What disturbs a burst that a shard of two Egresses delivers: as test_disturbances has it for own.

Kills of the only process, moves, failing and hanging neighbours, and Triggers that come and go
are in tests/integration/test_shared_dispatcher.py. A cut runs in the gate; `make chaos` has the
bursts of 40,000 (`KNAFKA_BURST`), Kafka away for longer (`KNAFKA_AWAY`, seconds), and what the gate
shows elsewhere: scaling (test_shared_dispatcher, partitions that move) and a Kafka that is killed
(test_disturbances; a Kafka that is away, here).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.gate import only_chaos
from support.kafka import Kafka
from support.shard_bursts import IN_FLIGHT, LATE, TAKES, ShardBurst, shard_burst

from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

BURST = int(os.environ.get("KNAFKA_BURST", "4000")) // 2
"""Events, which both Egresses get."""
AWAY = [float(each) for each in os.environ.get("KNAFKA_AWAY", "5").split(",")]
A_SECOND = IN_FLIGHT / TAKES
"""What a process can deliver of an Egress in one: as much is repeated after a kill."""

Disturb = Callable[[ShardBurst], Awaitable[None]]


async def scale_up(burst: ShardBurst) -> None:
    await burst.dispatch()
    await burst.reach(0.1)
    await burst.dispatch()


async def edit(burst: ShardBurst) -> None:
    await burst.dispatch(2)
    await burst.reach(0.3)
    await burst.edit(0)


async def terminate_one(burst: ShardBurst) -> None:
    first, _ = await burst.dispatch(2)
    await burst.reach(0.3)
    await first.terminate()


async def kill_one(burst: ShardBurst) -> None:
    first, _ = await burst.dispatch(2)
    await burst.reach(0.3)
    await first.kill()


@pytest.mark.parametrize(
    ("disturb", "twice"),
    [
        pytest.param(scale_up, 0, id="scaled from 1 to 2", marks=only_chaos),
        pytest.param(edit, 0, id="one of the two edited"),
        pytest.param(terminate_one, 0, id="SIGTERM of one process"),
        pytest.param(kill_one, A_SECOND, id="kill -9 of one process"),
    ],
)
async def test_a_shards_burst_that_is_disturbed_loses_nothing_and_repeats_little(
    disturb: Disturb, twice: float, kafka: Kafka, tmp_path: Path
) -> None:
    async with shard_burst(kafka, BURST, tmp_path) as burst:
        await disturb(burst)
        await _arrives_once(burst, twice, disturb.__name__)


@pytest.mark.parametrize("seconds", AWAY)
async def test_a_shard_whose_kafka_stops_and_comes_back_goes_on_without_a_repetition(
    seconds: float, own_kafka: KafkaServer, tmp_path: Path
) -> None:
    """Its commits are admin requests: librdkafka's issue 4605 is a process that aborts in one."""
    async with shard_burst(own_kafka, BURST, tmp_path) as burst:
        await burst.dispatch(2)
        await burst.reach(0.3)
        await own_kafka.stop()
        await asyncio.sleep(seconds)
        await own_kafka.start()
        await _arrives_once(burst, 0, f"{seconds:g} s without Kafka")


@only_chaos
async def test_a_shard_whose_kafka_is_killed_and_comes_back_repeats_little(
    own_kafka: KafkaServer, tmp_path: Path
) -> None:
    async with shard_burst(own_kafka, BURST, tmp_path) as burst:
        await burst.dispatch(2)
        await burst.reach(0.3)
        assert own_kafka.pid is not None
        os.kill(own_kafka.pid, signal.SIGKILL)
        await own_kafka.wait()
        await own_kafka.start()
        await _arrives_once(burst, 2 * A_SECOND, "Kafka killed")


async def _arrives_once(burst: ShardBurst, twice: float, what: str) -> None:
    """All of it at both subscribers, in order within a key, and no more than `twice` again."""
    await burst.reach(1.0)
    await asyncio.sleep(LATE)
    for each in burst.receiving:
        rate = burst.count / (each.times[-1] - each.times[0])
        print(
            f"\n{what}: {burst.count} events, {each.twice} twice, longest pause "
            f"{each.longest_pause:.2f} s, {rate:.0f} a second, ended: {burst.deaths}"
        )
    for each in burst.receiving:
        assert each.distinct == burst.count
        assert each.twice <= twice
        assert each.is_in_order
    assert not burst.deaths
