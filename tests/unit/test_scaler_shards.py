"""The scaler and Triggers that share a dispatcher: one request for all. Time is faked."""

from __future__ import annotations

import asyncio

import pytest
from support.lookups import LookUps
from support.scaling import (
    SLOW,
    FakeDrains,
    FakeLags,
    a_shard,
    counts,
    egress,
    now,
    running,
    share,
    since,
)

from knafka.core.drain import DrainProgress, DrainRequest, Ended
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale import scaled_groups
from knafka_operator.scale.decide import Scale
from knafka_operator.scale.scaled_groups import MAX_SECONDS_WITHOUT_DRAIN
from knafka_operator.scale.scaler import BUDGET

pytestmark = pytest.mark.looptime


async def test_lag_of_several_triggers_opens_one_request_for_their_shard(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group |= {"group-mail": 250, "group-bill": 1}
        await share(scaler, "mail", "bill", "stock")
        await asyncio.sleep(25)
        assert [each.shard for each in drains.of_shards] == ["shard-0"]
        assert drains.all == []
        statuses = scaler.statuses()
        assert {each.replicas for each in statuses.values()} == {1}
        assert {each.shard for each in statuses.values()} == {"shard-0"}
        assert [each.scale for each in statuses.values()] == [
            Scale(1, "250 events waiting, in a shared dispatcher"),
            Scale(1, "1 event waiting, in a shared dispatcher"),
            Scale(0, "nothing waits"),
        ]


async def test_a_shard_is_idle_when_the_most_patient_of_its_triggers_is(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail", autoscaling=Autoscaling(cooldown_period=5))
        await share(scaler, "bill", autoscaling=Autoscaling(cooldown_period=90))
        await asyncio.sleep(1)
        assert [each.request for each in drains.of_shards] == [DrainRequest(idle=90, budget=BUDGET)]


async def test_what_one_triggers_min_scale_wants_keeps_the_shard_for_all(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await share(scaler, "mail")
        await share(scaler, "bill", autoscaling=Autoscaling(min_scale=3))
        await asyncio.sleep(1)
        assert [each.request.idle for each in drains.of_shards] == [BUDGET]
        assert scaler.statuses()["bill"].scale == Scale(
            1, "nothing waits, at least 3 (min-scale), in a shared dispatcher"
        )
        drains.open_shards[0].end(Ended.IDLE)
        await asyncio.sleep(1)
        assert len(drains.open_shards) == 1


async def test_less_lag_than_the_activation_threshold_wakes_no_shard_but_goes_on_in_an_open_one(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 5
        await share(scaler, "mail", autoscaling=Autoscaling(activation_lag_threshold=5))
        await asyncio.sleep(1)
        assert drains.of_shards == []
        assert (
            scaler.statuses()["mail"].scale.reason
            == "5 events waiting; it starts when more than 5 wait"
        )
        lags.by_group["group-bill"] = 1
        await share(scaler, "bill")
        await asyncio.sleep(15)
        assert len(drains.open_shards) == 1
        assert scaler.statuses()["mail"].scale.reason == "5 events waiting, in a shared dispatcher"


async def test_a_shard_goes_on_while_one_of_its_triggers_has_lag(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group |= {"group-mail": 1, "group-bill": 1}
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
        lags.by_group["group-bill"] = 0
        await asyncio.sleep(15)
        drains.open_shards[0].end(Ended.BUDGET)
        await asyncio.sleep(0.01)
        assert len(drains.open_shards) == 1
        lags.by_group["group-mail"] = 0
        await asyncio.sleep(BUDGET)
        assert [each.told_to_stop for each in drains.of_shards] == [False, True]
        assert drains.open_shards == []


async def test_a_shard_that_ended_idle_is_not_opened_again_on_an_old_decision(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail", "bill", autoscaling=SLOW)
        await asyncio.sleep(1)
        lags.by_group["group-mail"] = 0
        drains.open_shards[0].end(Ended.IDLE)
        await asyncio.sleep(100)
        assert len(drains.of_shards) == 1


async def test_what_comes_while_a_shard_ends_is_looked_for_at_once(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail", "bill", autoscaling=SLOW)
        await asyncio.sleep(1)
        lags.by_group |= {"group-mail": 0, "group-bill": 1}
        drains.open_shards[0].end(Ended.IDLE)
        await asyncio.sleep(0.1)
        assert len(drains.open_shards) == 1


async def test_counts_of_each_trigger_are_summed_over_the_shards_requests(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
        first = drains.open_shards[0]
        first.tell(
            mail=DrainProgress(read=3, delivered=2, unsettled=1, partitions=(1, 2)),
            bill=DrainProgress(read=3, filtered=3, partitions=(1, 2)),
        )
        first.tell(mail=DrainProgress(read=5, delivered=5, partitions=(2,), congestion="slow"))
        await asyncio.sleep(0.1)
        assert counts(scaler, "mail") == DrainProgress(
            read=5, delivered=5, partitions=(2,), congestion="slow"
        )
        assert counts(scaler, "bill") == DrainProgress(read=3, filtered=3, partitions=(1, 2))
        first.end(
            Ended.BUDGET,
            None,
            mail=DrainProgress(read=6, delivered=6, partitions=(2,)),
            bill=DrainProgress(read=3),
        )
        await asyncio.sleep(0.6)
        assert counts(scaler, "mail") == DrainProgress(read=6, delivered=6), "nothing is told yet"
        drains.open_shards[0].tell(mail=DrainProgress(read=8, delivered=7, unsettled=1))
        await asyncio.sleep(0.1)
        assert counts(scaler, "mail") == DrainProgress(read=14, delivered=13, unsettled=1)


async def test_dead_letters_of_each_trigger_are_summed_by_reason_over_the_shards_requests(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail")
        await asyncio.sleep(1)
        first = drains.open_shards[0]
        first.tell(mail=DrainProgress(dead_lettered=1, dead_letters={"timeout": 1}))
        first.tell(
            mail=DrainProgress(dead_lettered=3, dead_letters={"timeout": 1, "status 503": 2})
        )
        await asyncio.sleep(0.1)
        assert counts(scaler, "mail").dead_letters == {"timeout": 1, "status 503": 2}
        first.end(Ended.BUDGET, None)
        await asyncio.sleep(0.6)
        again = DrainProgress(dead_lettered=1, dead_letters={"timeout": 1})
        drains.open_shards[0].tell(mail=again)
        await asyncio.sleep(0.1)
        assert counts(scaler, "mail").dead_letters == {"timeout": 2, "status 503": 2}


async def test_a_drain_that_failed_in_a_shard_is_its_own_triggers_error(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
        shard = drains.open_shards[0]
        shard.tell(mail=DrainProgress(delivered=1, error="no such topic"), bill=DrainProgress())
        await asyncio.sleep(0.1)
        assert scaler.statuses()["mail"].error == "the drain failed: no such topic"
        assert scaler.statuses()["bill"].error is None
        shard.tell(mail=DrainProgress(delivered=1))
        await asyncio.sleep(0.1)
        assert scaler.statuses()["mail"].error == "the drain failed: no such topic"
        shard.tell(mail=DrainProgress(delivered=2))
        await asyncio.sleep(0.1)
        assert scaler.statuses()["mail"].error is None


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("connection refused"), "the drain failed: connection refused"),
        (None, "the drain failed: it broke off"),
    ],
)
async def test_a_shard_that_fails_is_everybodys_error_until_it_delivers(
    lags: FakeLags, drains: FakeDrains, error: Exception | None, told: str
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        start = now()
        await share(scaler, "mail", "bill")
        for pause in (0.6, 1.1):
            await asyncio.sleep(0.1)
            drains.open_shards[0].break_off(error)
            await asyncio.sleep(pause)
        assert since(start, [each.began for each in drains.of_shards]) == [0, 0.6, 1.8]
        drains.open_shards[0].tell(mail=DrainProgress(), bill=DrainProgress())
        await asyncio.sleep(0.1)
        assert {each.error for each in scaler.statuses().values()} == {told}
        drains.open_shards[0].tell(bill=DrainProgress(delivered=1))
        await asyncio.sleep(0.1)
        assert {each.error for each in scaler.statuses().values()} == {None}


async def test_an_idle_shards_groups_are_kept_by_one_request_for_all(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Kafka drops the offsets of a group that stays empty for 7 days."""
    triggers = [f"t{number}" for number in range(20)]
    drains.shard_script = {each: DrainProgress() for each in triggers}
    async with running(lags, drains) as scaler:
        await share(scaler, *triggers, autoscaling=Autoscaling(polling_interval=600))
        await asyncio.sleep(MAX_SECONDS_WITHOUT_DRAIN / 2 - 1)
        assert drains.of_shards == []
        await asyncio.sleep(MAX_SECONDS_WITHOUT_DRAIN * 6)
        assert 6 <= len(drains.of_shards) <= 13


async def test_a_group_that_its_shard_could_not_join_is_joined_again_soon(
    lags: FakeLags, drains: FakeDrains, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Requests end at once here, two a second: half a day of them takes a minute of CPU.
    monkeypatch.setattr(scaled_groups, "MAX_SECONDS_WITHOUT_DRAIN", 1000.0)
    drains.shard_script = {"mail": DrainProgress(error="no such group"), "bill": DrainProgress()}
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", "bill", autoscaling=Autoscaling(polling_interval=600))
        await asyncio.sleep(1000 + 700)
        assert len(drains.of_shards) > 10
        mail, bill = scaler.statuses().values()
        assert mail.error == "the drain failed: no such group"
        assert mail.scale.reason.endswith("one to keep its offsets, in a shared dispatcher")
        assert (bill.error, bill.scale.reason) == (None, "nothing waits")


async def test_an_expected_event_wakes_a_shard_as_one(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        await share(scaler, *(f"t{number}" for number in range(200)), autoscaling=SLOW)
        await scaler.watch("mail", egress(), SLOW)
        await asyncio.sleep(1)
        scaler.prewarm("orders", limit=1)
        await asyncio.sleep(0.1)
        assert (drains.open, drains.open_shards) == ([], [])
        scaler.prewarm("orders", limit=2)
        scaler.prewarm("orders", limit=2)
        await asyncio.sleep(0.1)
        assert (len(drains.open), len(drains.open_shards)) == (1, 1)
        status = scaler.statuses()["t7"]
        assert status.scale == Scale(1, "an event is on its way, in a shared dispatcher")


async def test_only_a_shard_without_a_request_is_woken(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", "bill", autoscaling=SLOW)
        await asyncio.sleep(1)
        assert scaler.topics_with_drains() == set()
        lags.by_group["group-bill"] = 1
        scaler.wake("orders")
        await asyncio.sleep(1)
        assert len(drains.open_shards) == 1
        assert scaler.topics_with_drains() == {"orders"}
        for _ in range(10):
            scaler.wake("orders")
            await asyncio.sleep(0.5)
        assert len(lags.asked) == 2


async def test_the_end_of_the_scaler_ends_no_shard(lags: FakeLags, drains: FakeDrains) -> None:
    lags.by_group["group-mail"] = 1
    async with running(lags, drains) as scaler:
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
    assert [each.told_to_stop for each in drains.of_shards] == [False]
    assert drains.open_shards == []


async def test_a_thousand_shared_triggers_cost_four_units(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        for number in range(1000):
            trigger = f"t{number}"
            shard = a_shard(f"shard-{number % 4}")
            await scaler.watch(trigger, egress(trigger), SLOW, shard)
        await asyncio.sleep(1)
        asked = len(lags.asked)
        lags.by_group["group-t7"] = 1
        scaler.wake("orders")
        await asyncio.sleep(1)
        assert [each.shard for each in drains.of_shards] == ["shard-3"]
        assert len(lags.asked) == asked + 1, "one question for all"
        assert sum(each.replicas for each in scaler.statuses().values()) == 250


async def test_a_line_with_one_egress_is_no_look_at_the_others(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-t7"] = 1
        triggers = [f"t{number}" for number in range(250)]
        await share(scaler, *triggers, autoscaling=SLOW)
        await asyncio.sleep(1)
        request = drains.open_shards[0]
        request.tell(7, **{each: DrainProgress() for each in triggers})
        await asyncio.sleep(1)
        shard = scaler._shards["shard-0"]
        before = {name: value for name, value in vars(shard).items() if isinstance(value, dict)}
        for name, value in before.items():
            setattr(shard, name, LookUps(value))
        request.tell(8, t7=DrainProgress(delivered=3))
        await asyncio.sleep(1)
        assert await scaler.wait_until_applied("shard-0", 8, timeout=0)
        status = scaler.status("t7")
        assert status is not None
        assert (status.counts.delivered, status.error) == (3, None)
        for name, value in before.items():
            setattr(shard, name, dict(value))


async def test_what_a_shard_tells_to_be_settled_waits_no_more_and_is_not_asked_for(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Its neighbours may keep the shard's request open, for as long as they retry."""
    async with running(lags, drains) as scaler:
        lags.by_group |= {"group-mail": 2, "group-bill": 1}
        await share(scaler, "mail", "bill")
        await asyncio.sleep(1)
        asked = len(lags.asked)
        drains.open_shards[0].tell(
            mail=DrainProgress(read=2, delivered=1, unsettled=1),
            bill=DrainProgress(read=1, unsettled=1),
        )
        await asyncio.sleep(1)
        assert [scaler.statuses()[each].lag for each in ("mail", "bill")] == [2, 1]
        drains.open_shards[0].tell(mail=DrainProgress(read=2, delivered=1, filtered=1))
        await asyncio.sleep(1)
        assert [scaler.statuses()[each].lag for each in ("mail", "bill")] == [0, 1]
        assert scaler.statuses()["mail"].scale == Scale(0, "nothing waits")
        assert len(lags.asked) == asked


async def test_what_was_settled_but_not_committed_when_it_was_asked_for_is_asked_for_once_more(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """A dispatcher tells at once what it has settled, and commits it up to five seconds
    later."""
    quick = Autoscaling(polling_interval=1)
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await share(scaler, "mail", autoscaling=quick)
        await asyncio.sleep(1.5)
        drains.open_shards[0].tell(mail=DrainProgress(read=1, delivered=1))
        await asyncio.sleep(0.1)
        assert scaler.statuses()["mail"].lag == 0
        await share(scaler, "mail", autoscaling=quick)  # a change of it has it asked for
        await asyncio.sleep(1)
        assert scaler.statuses()["mail"].lag == 1
        lags.by_group["group-mail"], asked = 0, len(lags.asked)
        await asyncio.sleep(scaled_groups.COMMIT_SECONDS + 1)
        assert scaler.statuses()["mail"].lag == 0
        await asyncio.sleep(30)
        assert len(lags.asked) == asked + 1


async def test_what_goes_on_waiting_in_a_shard_at_rest_is_asked_for_once_more_and_no_oftener(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """The end of a transaction is an offset that nobody ever reads."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 3
        await share(scaler, "mail", autoscaling=Autoscaling(polling_interval=1))
        await asyncio.sleep(1.5)
        drains.open_shards[0].tell(mail=DrainProgress(read=2, delivered=2))
        asked = len(lags.asked)
        lags.by_group["group-mail"] = 1
        await asyncio.sleep(30)
        assert scaler.statuses()["mail"].lag == 1
        assert len(lags.asked) == asked + 1
