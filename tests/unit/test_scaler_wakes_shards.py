"""What wakes and watches a shard without a question for each of its groups. Time is faked."""

from __future__ import annotations

import asyncio

import pytest
from support.scaling import SCALING, SLOW, FakeDrains, FakeLags, a_shard, egress, running, share

from knafka.core.drain import DrainProgress, Ended, Settled
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.decide import Scale

pytestmark = pytest.mark.looptime

PATIENT = Autoscaling(activation_lag_threshold=5, polling_interval=1000)


async def test_a_shard_at_zero_is_woken_by_its_topics_growth_before_any_lag_is_known(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Issue 15: with 1,000 groups the question takes seconds of CPU."""
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
        asked = len(lags.asked)
        scaler.wake("orders", grown=3)
        await asyncio.sleep(5)
        assert [each.shard for each in drains.of_shards] == ["shard-0"]
        assert len(lags.asked) == asked
        status = scaler.statuses()["bill"]
        assert (status.lag, status.replicas) == (3, 1)
        assert status.scale == Scale(1, "3 events waiting, in a shared dispatcher")


async def test_every_shard_of_the_topic_is_woken_and_none_of_another_one(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        for number in range(6):
            shard = a_shard(f"shard-{number % 2}")
            await scaler.watch(f"t{number}", egress(f"t{number}"), SLOW, shard)
        await scaler.watch("other", egress("other", topic="other"), SLOW, a_shard("shard-9"))
        await asyncio.sleep(1)
        scaler.wake("orders", grown=1)
        scaler.wake("orders", grown=1)
        await asyncio.sleep(1)
        assert sorted(each.shard for each in drains.of_shards) == ["shard-0", "shard-1"]


async def test_what_is_not_known_to_be_new_is_asked_for_first(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """The first look after a restart: everything has moved, and mostly nothing waits."""
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", autoscaling=SLOW)
        await asyncio.sleep(1)
        scaler.wake("orders")
        await asyncio.sleep(1)
        assert (len(lags.asked), drains.of_shards) == (2, [])


async def test_growth_wakes_a_shard_whose_triggers_all_wait_for_more_only_when_there_is(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", "bill", autoscaling=PATIENT)
        await asyncio.sleep(1)
        lags.by_group |= {"group-mail": 5}
        scaler.wake("orders", grown=5)
        await asyncio.sleep(1)
        assert (len(lags.asked), drains.of_shards) == (2, [])
        lags.by_group |= {"group-mail": 6}
        scaler.wake("orders", grown=1)
        await asyncio.sleep(1)
        assert (len(lags.asked), len(drains.open_shards)) == (3, 1)


async def test_one_trigger_that_takes_any_event_wakes_its_shard_for_all(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", autoscaling=PATIENT)
        await share(scaler, "bill", autoscaling=SLOW)
        await asyncio.sleep(1)
        scaler.wake("orders", grown=1)
        await asyncio.sleep(1)
        assert (len(lags.asked), len(drains.open_shards)) == (1, 1)


async def test_growth_has_own_triggers_beside_a_shard_looked_at_as_ever(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", autoscaling=SLOW)
        await scaler.watch("bill", egress("bill"), SLOW)
        await asyncio.sleep(1)
        lags.by_group |= {"group-mail": 1, "group-bill": 1}
        scaler.wake("orders", grown=1)
        await asyncio.sleep(1)
        assert (len(drains.open_shards), len(drains.open)) == (1, 1)
        assert [groups for _, groups, _ in lags.asked[1:]] == [["group-bill"]]


async def test_growth_wakes_nothing_for_a_trigger_that_is_paused(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", autoscaling=Autoscaling(paused=True, polling_interval=1000))
        await asyncio.sleep(1)
        scaler.wake("orders", grown=1)
        await asyncio.sleep(1)
        assert (len(lags.asked), drains.of_shards) == (1, [])


async def test_what_grows_while_a_shard_is_being_stopped_is_looked_for_when_it_is_over(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail", autoscaling=SLOW)
        await asyncio.sleep(1)
        paused = Autoscaling(paused=True, polling_interval=1000)
        pausing = asyncio.create_task(scaler.watch("mail", egress(), paused, a_shard()))
        await asyncio.sleep(1)
        await share(scaler, "bill", autoscaling=SLOW)
        lags.by_group["group-bill"] = 1
        scaler.wake("orders", grown=1)
        await asyncio.sleep(1)
        assert len(drains.of_shards) == 1
        await pausing
        await asyncio.sleep(1)
        assert len(drains.open_shards) == 1


async def test_a_woken_shards_groups_are_not_asked_for_while_it_drains_but_now_and_then(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Issue 15: at every polling interval it was a quarter of a core with 1,000 Triggers."""
    triggers = [f"t{number}" for number in range(200)]
    async with running(lags, drains) as scaler:
        await share(scaler, *triggers)
        await asyncio.sleep(11)
        before = len(lags.asked)
        scaler.wake("orders", grown=1)
        await asyncio.sleep(40)
        assert len(lags.asked) == before
        await asyncio.sleep(500)
        asked = [len(groups) for _, groups, _ in lags.asked[before:]]
        assert 6 * 200 <= sum(asked) <= 12 * 200
        assert max(asked) < 120, "not all at one time"
        assert scaler.statuses()["t7"].lag == 0


async def test_what_has_much_to_do_in_a_shard_is_asked_for_at_every_interval(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Else a burst that is worked off in seconds would look like one that goes on for a minute."""
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", "bill")
        lags.by_group["group-mail"] = SCALING.lag_threshold + 1
        await asyncio.sleep(1)
        scaler.wake("orders", grown=1)
        for lag in (5000, 500):
            lags.by_group["group-mail"] = lag
            await asyncio.sleep(10)
            assert scaler.statuses()["mail"].lag == lag
        assert {len(groups) for _, groups, _ in lags.asked[2:]} == {1}


async def test_what_joins_an_open_shard_or_changes_there_is_asked_for_alone(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", "bill", autoscaling=SLOW)
        await asyncio.sleep(1)
        scaler.wake("orders", grown=1)
        await asyncio.sleep(1)
        await share(scaler, "stock", autoscaling=SLOW)
        await asyncio.sleep(1)
        await share(scaler, "mail", autoscaling=SLOW)
        await asyncio.sleep(1)
        assert [groups for _, groups, _ in lags.asked[1:]] == [["group-stock"], ["group-mail"]]


async def test_the_groups_of_a_shard_that_fails_are_asked_for_at_every_interval(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Another process may have delivered what it was woken for."""
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
        scaler.wake("orders", grown=1)
        await asyncio.sleep(1)
        asked = len(lags.asked)
        drains.open_shards[0].break_off(OSError("connection refused"))
        await asyncio.sleep(10)
        assert len(lags.asked) == asked + 1


async def test_growth_is_not_lag_of_a_neighbour_with_another_topic(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", autoscaling=SLOW)
        await scaler.watch("bill", egress("bill", topic="bills"), SLOW, a_shard())
        await asyncio.sleep(1)
        scaler.wake("orders", grown=2)
        await asyncio.sleep(1)
        assert {name: each.lag for name, each in scaler.statuses().items()} == {
            "mail": 2,
            "bill": 0,
        }


async def test_a_group_whose_drain_fails_in_its_shard_is_asked_for(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
        scaler.wake("orders", grown=1)
        await asyncio.sleep(1)
        drains.open_shards[0].tell(mail=DrainProgress(error="no such topic"), bill=DrainProgress())
        await asyncio.sleep(10)
        assert [groups for _, groups, _ in lags.asked[1:]] == [["group-mail"]]


COMMITTED = Settled(topic="orders", offsets={0: 7, 1: 3}, without=("group-late",))


async def test_what_an_idle_shard_has_committed_is_known_before_its_lags_are_asked_for(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Issue 15: else each of 1,000 groups is asked for each event."""
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", "bill", "late", "broken", autoscaling=SLOW)
        await scaler.watch("other", egress("other", topic="other"), SLOW, a_shard())
        await asyncio.sleep(1)
        scaler.wake("orders", grown=1)
        await asyncio.sleep(20)
        # One that joined after the dispatcher's last look at its contract is not in the line.
        await share(scaler, "joined", autoscaling=SLOW)
        await asyncio.sleep(20)
        request = drains.open_shards[0]
        request.settled = COMMITTED
        told = dict.fromkeys(("mail", "bill", "late", "other", "gone"), DrainProgress())
        asked = len(lags.asked)
        request.end(Ended.IDLE, None, **told, broken=DrainProgress(error="no such topic"))
        await asyncio.sleep(1)
        assert lags.noted == [(["group-mail", "group-bill"], "orders", {0: 7, 1: 3}, 40.0)]
        groups = {group for _, asked, topic in lags.asked[asked:] for group in asked}
        assert len(groups) == 6, "Kafka's ends decide, so what is new wakes it again"
        assert scaler.statuses()["mail"].lag == 0


@pytest.mark.parametrize("ended", [Ended.STOPPED, Ended.FAILED, Ended.BUDGET])
async def test_only_the_end_of_a_shard_that_was_idle_says_what_is_committed(
    lags: FakeLags, drains: FakeDrains, ended: Ended
) -> None:
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", autoscaling=SLOW)
        await asyncio.sleep(1)
        scaler.wake("orders", grown=1)
        await asyncio.sleep(1)
        drains.open_shards[0].settled = COMMITTED
        drains.open_shards[0].end(ended, None, mail=DrainProgress())
        await asyncio.sleep(20)
        assert lags.noted == []


async def test_commits_are_as_old_as_the_first_of_a_drains_requests(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Its groups may have been set back since then, not since the last request."""
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", autoscaling=SLOW)
        for seconds in (30, 10):
            await asyncio.sleep(1)
            scaler.wake("orders", grown=1)
            await asyncio.sleep(seconds)
            drains.open_shards[0].end(Ended.BUDGET, None, mail=DrainProgress())
            await asyncio.sleep(5)
            drains.open_shards[0].settled = COMMITTED
            drains.open_shards[0].end(Ended.IDLE, None, mail=DrainProgress())
            await asyncio.sleep(1)
        assert [since for _, _, _, since in lags.noted] == [35.0, 15.0]
