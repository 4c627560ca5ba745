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


async def test_an_error_is_told_where_no_event_waits(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        lags.errors["payments"] = LogError("it says why")
        await scaler.watch("mail", TWO_TOPICS, SCALING)
        await asyncio.sleep(60)
        assert drains.open == []
        status = scaler.status("mail")
        assert status is not None
        assert "it says why" in str(status.error)


async def test_a_topic_that_is_gone_delays_no_event_of_another(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.errors["payments"] = LogError("it says why", unknown_topic=True)
        lags.by_group["group-mail"] = 50
        await scaler.watch("mail", TWO_TOPICS, SCALING)
        await asyncio.sleep(60)
        assert len(drains.open) == 1
        status = scaler.status("mail")
        assert status is not None
        assert (status.lag, status.error) == (50, None)


async def test_events_of_one_source_say_nothing_of_another_on_the_same_topics(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Nothing is known of what the other has in the topic without a leader: not that it is 0."""
    async with running(lags, drains) as scaler:
        lags.errors["payments"] = LogError("no partition of payments has a leader")
        lags.by_group |= {"group-mail": 50, "group-other": 0}
        await scaler.watch("mail", TWO_TOPICS, SCALING)
        await scaler.watch("other", TWO_TOPICS.model_copy(update={"group": "group-other"}), SCALING)
        await asyncio.sleep(60)
        mail, other = scaler.status("mail"), scaler.status("other")
        assert mail is not None
        assert other is not None
        assert (mail.lag, mail.error) == (50, None)
        assert "no partition of payments has a leader" in str(other.error)


async def test_what_was_known_of_a_group_is_dropped_with_the_group(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 50
        await scaler.watch("mail", TWO_TOPICS, SCALING)
        await asyncio.sleep(60)
        lags.by_group["group-mail"] = None
        await asyncio.sleep(60)
        lags.by_group["group-mail"] = 20
        lags.errors["payments"] = LogError("no partition of payments has a leader")
        await asyncio.sleep(60)
        status = scaler.status("mail")
        assert status is not None
        assert status.lag == 20
