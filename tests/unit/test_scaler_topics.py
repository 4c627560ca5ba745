"""A KafkaSource that reads several topics, of which one has no leader."""

from __future__ import annotations

import asyncio

import pytest
from support.scaling import SCALING, FakeDrains, FakeLags, egress, running

from knafka.core.errors import LogError

pytestmark = pytest.mark.looptime

TWO_TOPICS = egress().model_copy(update={"more_topics": ("payments",)})


@pytest.mark.parametrize("away", TWO_TOPICS.topics)
async def test_a_topic_without_a_leader_delays_no_event_of_another(
    lags: FakeLags, drains: FakeDrains, away: str
) -> None:
    async with running(lags, drains) as scaler:
        lags.errors[away] = LogError(f"no partition of {away} has a leader")
        lags.by_group["group-mail"] = 50
        await scaler.watch("mail", TWO_TOPICS, SCALING)
        await asyncio.sleep(60)
        assert len(drains.open) == 1
        status = scaler.status("mail")
        assert status is not None
        assert (status.lag, status.error) == (50, None)


async def test_what_is_known_of_a_topic_that_lost_its_leader_still_counts(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """What was settled of it doesn't become less."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 50
        await scaler.watch("mail", TWO_TOPICS, SCALING)
        await asyncio.sleep(60)
        lags.errors["payments"] = LogError("no partition of payments has a leader")
        lags.by_group["group-mail"] = 20
        await asyncio.sleep(60)
        status = scaler.status("mail")
        assert status is not None
        assert status.lag == 20 + 50


@pytest.mark.parametrize("lag", [0, 50])
async def test_an_error_is_told_where_no_event_waits_or_a_topic_is_missing(
    lags: FakeLags, drains: FakeDrains, lag: int
) -> None:
    async with running(lags, drains) as scaler:
        lags.errors["payments"] = LogError("it says why", unknown_topic=bool(lag))
        lags.by_group["group-mail"] = lag
        await scaler.watch("mail", TWO_TOPICS, SCALING)
        await asyncio.sleep(60)
        assert drains.open == []
        status = scaler.status("mail")
        assert status is not None
        assert "it says why" in str(status.error)
