"""What disturbs a burst that a shard of two Egresses delivers: as test_disturbances has it for own.

Kills under load by the shard's own `World`, failing and hanging neighbours and Triggers that come
and go are in tests/integration/test_shared_dispatcher.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from support.shard_bursts import IN_FLIGHT, LATE, TAKES, ShardBurst, shard_burst

from knafka_local.kafka_server import KafkaServer

BURST = int(os.environ.get("KNAFKA_BURST", "10000")) // 2
"""For each of the two."""
AWAY = [float(each) for each in os.environ.get("KNAFKA_AWAY", "5").split(",")]
"""Seconds without Kafka."""

Disturb = Callable[[ShardBurst], Awaitable[None]]


async def stop_kafka(seconds: float, burst: ShardBurst) -> None:
    await burst.dispatch(2)
    await burst.reach(0.3)
    await burst.kafka.stop()
    await asyncio.sleep(seconds)
    await burst.kafka.start()


@pytest.mark.kafka
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", AWAY)
async def test_a_shard_whose_kafka_stops_and_comes_back_loses_nothing(
    seconds: float, own_kafka: KafkaServer, tmp_path: Path
) -> None:
    async with shard_burst(own_kafka, BURST, tmp_path) as burst:
        await stop_kafka(seconds, burst)
        await burst.reach(1.0)
        await asyncio.sleep(LATE)
        for each in burst.receiving:
            print(f"\n{seconds}: {burst.count} events, {each.twice} twice, longest pause {each.longest_pause:.2f} s, deaths {burst.deaths}")
