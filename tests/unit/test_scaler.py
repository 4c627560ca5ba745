"""The scaler: what it decides, and how it holds drains. The event loop's time is faked."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from knafka.clients.log import Lag, LogAdmin
from knafka.core.contract import Egress, Kafka, Sink
from knafka.core.drain import DrainProgress, DrainRequest, Ended
from knafka.core.errors import InvalidDocument, LogError
from knafka_operator.resources import AUTOSCALING
from knafka_operator.scaler import (
    BUDGET,
    GRACE,
    KEPT,
    LAG_TIMEOUT,
    Autoscaling,
    Lags,
    Scale,
    Scaler,
    decide,
)

SCALING = Autoscaling()


def a_log_admin_is_a_lags(admin: LogAdmin) -> Lags:
    """For mypy: the operator can't import the clients, so the seam is checked here."""
    return admin


@pytest.mark.parametrize(
    ("lag", "partitions", "autoscaling", "held", "scale"),
    [
        (0, 10, SCALING, 0, Scale(0, "no lag")),
        (0, 10, SCALING, 3, Scale(0, "no lag")),
        (1, 10, SCALING, 0, Scale(1, "lag 1, 100 per drain")),
        (100, 10, SCALING, 0, Scale(1, "lag 100, 100 per drain")),
        (101, 10, SCALING, 0, Scale(2, "lag 101, 100 per drain")),
        (2000, 10, SCALING, 0, Scale(10, "lag 2000, 100 per drain, partitions 10")),
        (9000, 99, SCALING, 0, Scale(50, "lag 9000, 100 per drain, max-scale 50")),
        (0, 10, Autoscaling(min_scale=2), 0, Scale(2, "no lag, min-scale 2")),
        (1, 10, Autoscaling(min_scale=2), 0, Scale(2, "lag 1, 100 per drain, min-scale 2")),
        (0, 1, Autoscaling(min_scale=2), 0, Scale(1, "no lag, min-scale 2")),
        (5, 0, SCALING, 0, Scale(0, "lag 5, 100 per drain, partitions 0")),
        (
            5,
            10,
            Autoscaling(activation_lag_threshold=5),
            0,
            Scale(0, "lag 5, activation-lag-threshold 5"),
        ),
        (6, 10, Autoscaling(activation_lag_threshold=5), 0, Scale(1, "lag 6, 100 per drain")),
        (5, 10, Autoscaling(activation_lag_threshold=5), 1, Scale(1, "lag 5, 100 per drain")),
    ],
)
def test_a_decision_comes_with_its_reason(
    lag: int, partitions: int, autoscaling: Autoscaling, held: int, scale: Scale
) -> None:
    """CHN-28: never more drains than partitions."""
    assert decide(lag, partitions, autoscaling, held) == scale


def annotated(**values: str) -> Mapping[str, str]:
    return {AUTOSCALING + key.replace("_", "-"): value for key, value in values.items()}


def test_annotations_go_over_the_defaults() -> None:
    """naming.md: autoscaling annotations."""
    defaults = Autoscaling(polling_interval=0.5)
    assert Autoscaling.from_annotations({}, defaults) == defaults
    given = annotated(
        min_scale="1",
        max_scale="5",
        lag_threshold="10",
        activation_lag_threshold="3",
        polling_interval="7",
        cooldown_period="0",
    )
    assert Autoscaling.from_annotations(given, defaults) == Autoscaling(1, 5, 10, 3, 7, 0)


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        ("min-scale", "-1", "-1: want a whole number from 0 to 2147483647"),
        ("max-scale", "0", "0: want a whole number from 1 to 2147483647"),
        ("lag-threshold", "0", "0: want a whole number from 1 to 2147483647"),
        ("polling-interval", "0", "0: want a whole number from 1 to 2147483647"),
        ("polling-interval", "10s", "10s: want a whole number from 1 to 2147483647"),
        ("cooldown-period", "", ": want a whole number from 0 to 2147483647"),
        ("min-scale", "51", "51: want at most max-scale, 50"),
        ("class", "hpa", "hpa: want keda.autoscaling.knative.dev or disabled"),
    ],
)
def test_garbage_in_an_annotation_is_refused(annotation: str, value: str, problem: str) -> None:
    with pytest.raises(InvalidDocument) as raised:
        Autoscaling.from_annotations({AUTOSCALING + annotation: value}, SCALING)
    assert raised.value.path == f"metadata.annotations.{AUTOSCALING}{annotation}"
    assert raised.value.problem == f"invalid value: {problem}"


def test_a_trigger_that_opts_out_of_scaling_has_one_drain_always() -> None:
    """As upstream: one replica unless something scales it."""
    fixed = Autoscaling.from_annotations({AUTOSCALING + "class": "disabled"}, SCALING)
    assert decide(0, 10, fixed, 0).replicas == decide(10**6, 10, fixed, 1).replicas == 1


def egress(trigger: str = "mail", topic: str = "orders", url: str = "http://mail/") -> Egress:
    return Egress(
        namespace="shop",
        broker="orders",
        trigger=trigger,
        topic=topic,
        group=f"group-{trigger}",
        dead_letter_topic="dead",
        kafka=Kafka(bootstrap_servers="kafka:9092"),
        subscriber=Sink(url=url),
    )


class FakeLags:
    """Ten partitions; the lag of each group is what the test says, zero if it says nothing."""

    def __init__(self) -> None:
        self.by_group: dict[str, int | None] = {}
        self.asked: list[tuple[float, Sequence[str], str]] = []
        self.errors: dict[str, Exception] = {}
        self.takes = 0.0
        self.silent: set[str] = set()
        """Topics about which no question is answered."""

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        self.asked.append((now(), groups, topic))
        lags = {group: self.by_group.get(group, 0) for group in groups}
        await asyncio.sleep(self.takes)
        if topic in self.silent:
            await asyncio.Event().wait()
        if topic in self.errors:
            raise self.errors[topic]
        return {
            group: Lag({0: lag} | dict.fromkeys(range(1, 10), 0))
            for group, lag in lags.items()
            if lag is not None
        }

    def times(self) -> list[float]:
        return [time for time, _, _ in self.asked]


@dataclass
class FakeDrain:
    trigger: str
    egress: Egress
    request: DrainRequest
    began: float
    lines: asyncio.Queue[DrainProgress | Exception | None] = field(default_factory=asyncio.Queue)
    over: float | None = None

    def tell(self, **counts: int) -> None:
        self.lines.put_nowait(DrainProgress.model_validate(counts))

    def end(self, ended: Ended, error: str | None = None, **counts: int) -> None:
        self.lines.put_nowait(
            DrainProgress.model_validate({"ended": ended, "error": error} | counts)
        )

    def break_off(self, error: Exception | None = None) -> None:
        self.lines.put_nowait(error)


class FakeDrains:
    """Each drain tells what the test has it tell; a cancelled one takes `clean_end` seconds."""

    def __init__(self) -> None:
        self.all: list[FakeDrain] = []
        self.clean_end = 0.0
        self.script: Ended | None = None
        """How every drain ends, at once; None: as the test says."""

    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest
    ) -> AsyncIterator[DrainProgress]:
        drain = FakeDrain(trigger_id, egress, request, now())
        self.all.append(drain)
        if self.script is not None:
            drain.end(self.script)
        try:
            while (line := await drain.lines.get()) is not None:
                if isinstance(line, Exception):
                    raise line
                yield line
                if line.ended is not None:
                    break
        except asyncio.CancelledError:
            await asyncio.sleep(self.clean_end)
            raise
        finally:
            drain.over = now()

    @property
    def open(self) -> list[FakeDrain]:
        return [drain for drain in self.all if drain.over is None]

    def times(self) -> list[float]:
        return [drain.began for drain in self.all]


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
def lags() -> FakeLags:
    return FakeLags()


@pytest.fixture
def drains() -> FakeDrains:
    return FakeDrains()


@asynccontextmanager
async def running(lags: FakeLags, drains: FakeDrains) -> AsyncIterator[Scaler]:
    scaler = Scaler(lags, drains)
    run = asyncio.create_task(scaler.run())
    try:
        yield scaler
    finally:
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run


def since(start: float, times: Sequence[float]) -> list[float]:
    return [round(time - start, 2) for time in times]


@pytest.mark.looptime
async def test_hundreds_of_idle_triggers_cost_one_question_per_topic_and_interval(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        for number in range(300):
            await scaler.watch(f"t{number}", egress(f"t{number}"), SCALING)
        await scaler.watch("other", egress("other", topic="other"), SCALING)
        await asyncio.sleep(35)
    assert [topic for _, _, topic in lags.asked] == ["orders", "other"] * 4
    assert {len(groups) for _, groups, _ in lags.asked} == {300, 1}
    assert drains.all == []


@pytest.mark.looptime
async def test_lag_opens_as_many_drains_as_it_takes(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 250
        await scaler.watch("mail", egress(), Autoscaling(cooldown_period=5))
        await asyncio.sleep(1)
        assert [drain.request for drain in drains.open] == [DrainRequest(idle=5, budget=BUDGET)] * 3
        assert {drain.trigger for drain in drains.open} == {"mail"}
        status = scaler.statuses()["mail"]
        assert (status.lag, status.replicas) == (250, 3)
        assert status.scale == Scale(3, "lag 250, 100 per drain")
        lags.by_group["group-mail"] = 450
        await asyncio.sleep(10)
        assert len(drains.open) == 5


@pytest.mark.looptime
async def test_a_drain_is_never_cut_to_scale_down(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 250
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        lags.by_group["group-mail"] = 0
        await asyncio.sleep(100)
        assert len(drains.open) == 3
        assert scaler.statuses()["mail"].scale == Scale(0, "no lag")
        drains.open[0].end(Ended.IDLE)
        await asyncio.sleep(100)
        assert (len(drains.open), len(drains.all)) == (2, 3)


@pytest.mark.looptime
async def test_a_drain_that_spent_its_budget_is_opened_again_while_it_is_wanted(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 150
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(5)
        drains.open[0].end(Ended.BUDGET)
        await asyncio.sleep(0.01)
        assert (len(drains.open), len(drains.all)) == (2, 3)
        lags.by_group["group-mail"] = 50
        await asyncio.sleep(10)
        drains.open[0].end(Ended.BUDGET)
        await asyncio.sleep(100)
        assert (len(drains.open), len(drains.all)) == (1, 3)
        assert scaler.statuses()["mail"].error is None


@pytest.mark.looptime
async def test_a_drain_that_fails_is_opened_again_after_longer_and_longer_pauses(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.script = Ended.FAILED
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        start = now()
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(40)
        assert since(start, drains.times()) == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5, 35.5]
        status = scaler.statuses()["mail"]
        assert (status.replicas, status.error) == (0, "the drain failed: it did not say why")
        drains.script = None
        await asyncio.sleep(10)
        drains.open[0].tell(delivered=1)
        await asyncio.sleep(1)
        assert scaler.statuses()["mail"].error is None


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("connection refused"), "the drain failed: connection refused"),
        (ValueError(), "the drain failed: ValueError"),
        (None, "the drain failed: it broke off"),
    ],
)
async def test_a_drain_that_breaks_has_failed(
    lags: FakeLags, drains: FakeDrains, error: Exception | None, told: str
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        drains.open[0].tell(delivered=2)
        drains.open[0].break_off(error)
        await asyncio.sleep(0.1)
        status = scaler.statuses()["mail"]
        assert (status.error, status.replicas, status.counts.delivered) == (told, 0, 2)
        await asyncio.sleep(0.5)
        assert len(drains.open) == 1


@pytest.mark.looptime
async def test_a_drain_that_fails_after_it_ran_for_long_waits_only_shortly(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        for _ in range(5):
            await asyncio.sleep(60)
            drains.open[0].end(Ended.FAILED, "Kafka went away")
            await asyncio.sleep(0.1)
            assert scaler.statuses()["mail"].error == "the drain failed: Kafka went away"
            await asyncio.sleep(0.5)
            assert len(drains.open) == 1


@pytest.mark.looptime
@pytest.mark.parametrize("ended", [Ended.IDLE, Ended.BUDGET, Ended.STOPPED])
async def test_drains_that_end_at_once_are_not_opened_in_a_hot_loop(
    lags: FakeLags, drains: FakeDrains, ended: Ended
) -> None:
    drains.script = ended
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), Autoscaling(min_scale=1))
        await asyncio.sleep(10)
    assert 1 < len(drains.all) <= 21


@pytest.mark.looptime
async def test_a_drain_that_stays_silent_past_its_budget_is_given_up(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """A node that vanished closes no connection."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        start = now()
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(BUDGET + GRACE + 1)
        assert since(start, drains.times()) == [0, BUDGET + GRACE + 0.5]
        assert scaler.statuses()["mail"].error == "the drain failed: TimeoutError"


@pytest.mark.looptime
async def test_a_woken_trigger_need_not_wait_for_the_polling_interval(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(4)
        lags.by_group["group-mail"] = 1
        scaler.wake("orders")
        await asyncio.sleep(0.01)
        assert len(drains.open) == 1
        scaler.wake("a topic of nobody's")


@pytest.mark.looptime
async def test_waking_all_the_time_asks_only_so_often(lags: FakeLags, drains: FakeDrains) -> None:
    """Each event at ingress may wake, and none may match."""
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        for _ in range(1000):
            await asyncio.sleep(0.01)
            scaler.wake("orders")
        assert 30 <= len(lags.asked) <= 42


@pytest.mark.looptime
async def test_a_topic_whose_triggers_all_drain_is_not_woken(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        for _ in range(10):
            scaler.wake("orders")
            await asyncio.sleep(0.5)
        assert len(lags.asked) == 1


@pytest.mark.looptime
async def test_waking_while_the_lags_are_asked_for_asks_again(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """The answer under way may be from before the event."""
    lags.takes = 2.0
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        lags.by_group["group-mail"] = 1
        scaler.wake("orders")
        await asyncio.sleep(4)
        assert len(drains.open) == 1


@pytest.mark.looptime
async def test_what_comes_while_a_drain_ends_is_looked_for_at_once(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Between the last read and the end nobody reads, and nothing wakes."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(2)
        drains.open[0].end(Ended.IDLE)
        await asyncio.sleep(0.1)
        assert len(drains.open) == 1


@pytest.mark.looptime
async def test_a_drain_that_ended_idle_is_not_opened_again_on_an_old_decision(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 150
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(2)
        lags.by_group["group-mail"] = 0
        for drain in drains.open:
            drain.end(Ended.IDLE)
        await asyncio.sleep(100)
        assert len(drains.all) == 2


@pytest.mark.looptime
async def test_lags_that_cant_be_had_change_nothing_but_the_status(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group |= {"group-mail": 1, "group-other": 1}
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        lags.errors["orders"] = LogError("Kafka is away")
        await scaler.watch("other", egress("other", topic="other"), SCALING)
        await asyncio.sleep(20)
        assert [drain.trigger for drain in drains.open] == ["mail", "other"]
        assert scaler.statuses()["mail"].error == "the lag is not known: Kafka is away"
        assert scaler.statuses()["mail"].lag == 1
        assert scaler.statuses()["other"].error is None
        del lags.errors["orders"]
        await asyncio.sleep(10)
        assert scaler.statuses()["mail"].error is None


@pytest.mark.looptime
async def test_a_group_without_offsets_is_told_and_opens_nothing(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """An unknown lag is no lag of any size."""
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = None
        await scaler.watch("mail", egress(), SCALING)
        assert scaler.statuses()["mail"].scale == Scale(0, "the lag is not known yet")
        await asyncio.sleep(20)
        status = scaler.statuses()["mail"]
        assert (status.lag, status.error) == (None, "the lag is not known: no group group-mail")
        assert drains.all == []


@pytest.mark.looptime
async def test_a_changed_trigger_ends_its_drains_before_it_opens_new_ones(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 150
        start = now()
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        for drain in drains.open:
            drain.tell(delivered=5, read=6, unsettled=1)
        await asyncio.sleep(1)
        await scaler.watch("mail", egress(url="http://new/"), SCALING)
        assert since(start, [drain.over or 0 for drain in drains.all]) == [5, 5]
        await asyncio.sleep(1)
        assert [drain.egress.subscriber.url for drain in drains.open] == ["http://new/"] * 2
        counts = scaler.statuses()["mail"].counts
        assert (counts.delivered, counts.read, counts.unsettled) == (10, 12, 0)


@pytest.mark.looptime
async def test_another_scaling_cuts_no_drain(lags: FakeLags, drains: FakeDrains) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 300
        await scaler.watch("mail", egress(), Autoscaling(lag_threshold=300))
        await asyncio.sleep(1)
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        assert (len(drains.open), len(drains.all)) == (3, 3)


@pytest.mark.looptime
async def test_a_trigger_that_moves_to_another_topic_is_looked_for_there(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        await scaler.watch("mail", egress(topic="elsewhere"), SCALING)
        await asyncio.sleep(15)
        assert [topic for _, _, topic in lags.asked] == ["orders", "elsewhere", "elsewhere"]


@pytest.mark.looptime
async def test_a_forgotten_trigger_has_ended_cleanly_and_is_gone(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        start = now()
        await scaler.forget("mail")
        assert now() - start == pytest.approx(3)
        assert drains.open == []
        assert scaler.statuses() == {}
        await asyncio.sleep(60)
        assert (len(drains.all), len(lags.asked)) == (1, 1)
        await scaler.forget("never seen")


@pytest.mark.looptime
async def test_a_trigger_forgotten_while_its_lag_is_asked_for_opens_nothing(
    lags: FakeLags, drains: FakeDrains
) -> None:
    lags.takes = 2.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        await scaler.forget("mail")
        await asyncio.sleep(5)
    assert drains.all == []


@pytest.mark.looptime
@pytest.mark.parametrize("steps", range(6))
async def test_a_trigger_may_go_at_any_step_of_a_look_and_the_others_are_scaled(
    lags: FakeLags, drains: FakeDrains, steps: int
) -> None:
    """Once the loop ended here, and with it every delivery that needed waking."""
    async with running(lags, drains) as scaler:
        await scaler.watch("gone", egress("gone", topic="short-lived"), SCALING)
        for _ in range(steps):
            await asyncio.sleep(0)
        await scaler.forget("gone")
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        assert [each.trigger for each in drains.open] == ["mail"]


@pytest.mark.looptime
async def test_a_topic_whose_lag_is_not_answered_holds_up_no_other(
    lags: FakeLags, drains: FakeDrains
) -> None:
    lags.silent.add("silent")
    async with running(lags, drains) as scaler:
        await scaler.watch("waiting", egress("waiting", topic="silent"), SCALING)
        await asyncio.sleep(1)
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        assert [each.trigger for each in drains.open] == ["mail"]
        assert [name for _, _, name in lags.asked] == ["silent", "orders"]
        await asyncio.sleep(LAG_TIMEOUT)
        assert "TimeoutError" in str(scaler.statuses()["waiting"].error)


@pytest.mark.looptime
async def test_a_trigger_that_comes_back_waits_for_its_old_drains(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.clean_end = 3.0
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 1
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        start = now()
        forgotten = asyncio.create_task(scaler.forget("mail"))
        await asyncio.sleep(1)
        await scaler.watch("mail", egress(), SCALING)
        await forgotten
        await asyncio.sleep(0.5)
        assert since(start, drains.times()) == [-1, 3]


@pytest.mark.looptime
async def test_the_end_of_the_scaler_is_the_clean_end_of_every_drain(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.clean_end = 3.0
    lags.by_group |= {"group-mail": 150, "group-other": 1}
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), SCALING)
        await scaler.watch("other", egress("other", topic="other"), SCALING)
        await asyncio.sleep(1)
        assert len(drains.open) == 3
        start = now()
    assert since(start, [drain.over or 0 for drain in drains.all]) == [3, 3, 3]


@pytest.mark.looptime
async def test_what_min_scale_wants_is_held_without_lag_and_does_not_end_idle(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), Autoscaling(min_scale=1, cooldown_period=5))
        await asyncio.sleep(1)
        assert [drain.request.idle for drain in drains.open] == [BUDGET]
        lags.by_group["group-mail"] = 150
        await asyncio.sleep(10)
        assert [drain.request.idle for drain in drains.open] == [BUDGET, 5]
        lags.by_group["group-mail"] = 0
        await asyncio.sleep(10)
        for drain in drains.open:
            drain.end(Ended.IDLE)
        await asyncio.sleep(0.1)
        assert [drain.request.idle for drain in drains.open] == [BUDGET]


@pytest.mark.looptime
async def test_a_triggers_counts_are_those_of_all_its_drains(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        lags.by_group["group-mail"] = 150
        await scaler.watch("mail", egress(), SCALING)
        await asyncio.sleep(1)
        first, second = drains.open
        first.tell(read=5, filtered=1, delivered=2, retried=9, replied=1, buried=1, unsettled=1)
        first.lines.put_nowait(DrainProgress(read=6, delivered=3, unsettled=2, partitions=(3, 1)))
        second.lines.put_nowait(DrainProgress(read=10, delivered=9, unsettled=1, partitions=(0,)))
        await asyncio.sleep(0.1)
        assert scaler.statuses()["mail"].counts == DrainProgress(
            read=16, delivered=12, unsettled=3, partitions=(0, 1, 3)
        )
        lags.by_group["group-mail"] = 0
        await asyncio.sleep(10)
        first.end(Ended.IDLE, read=6, delivered=6, unsettled=0)
        await asyncio.sleep(0.1)
        assert scaler.statuses()["mail"].counts == DrainProgress(
            read=16, delivered=15, unsettled=1, partitions=(0,)
        )


@pytest.mark.looptime
async def test_an_idle_group_is_joined_before_kafka_forgets_its_offsets(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Kafka drops the offsets of a group that stays empty for 7 days."""
    drains.script = Ended.IDLE
    slow = Autoscaling(polling_interval=600)
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), slow)
        await scaler.watch("bill", egress("bill"), slow)
        started = now()
        await asyncio.sleep(KEPT / 2 - 600)
        assert drains.all == [], "as long as an operator may take to be restarted"
        await asyncio.sleep(KEPT * 6)
    for trigger in ("mail", "bill"):
        times = [started, *(drain.began for drain in drains.all if drain.trigger == trigger)]
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert 6 <= len(pauses) <= 13
        assert all(KEPT / 2 <= pause <= KEPT + 601 for pause in pauses)


@pytest.mark.looptime
async def test_a_group_that_could_not_be_joined_is_joined_again_soon(
    lags: FakeLags, drains: FakeDrains
) -> None:
    drains.script = Ended.FAILED
    async with running(lags, drains) as scaler:
        await scaler.watch("mail", egress(), Autoscaling(polling_interval=600))
        await asyncio.sleep(KEPT + 700)
        assert len(drains.all) > 10
        assert scaler.statuses()["mail"].scale == Scale(1, "no lag, to keep its offsets")


@pytest.mark.looptime
async def test_what_is_watched_before_the_scaler_runs_is_scaled_once_it_does(
    lags: FakeLags, drains: FakeDrains
) -> None:
    scaler = Scaler(lags, drains)
    lags.by_group["group-mail"] = 1
    await scaler.watch("mail", egress(), SCALING)
    await asyncio.sleep(60)
    assert drains.all == []
    run = asyncio.create_task(scaler.run())
    await asyncio.sleep(0.1)
    assert len(drains.open) == 1
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run


@pytest.mark.looptime
async def test_an_expected_event_has_sleeping_triggers_drain_at_once(
    lags: FakeLags, drains: FakeDrains
) -> None:
    """Issue 4, item 2: waking receiver and dispatcher at once."""
    async with running(lags, drains) as scaler:
        for trigger in ("mail", "bill"):
            await scaler.watch(trigger, egress(trigger), SCALING)
        await asyncio.sleep(1)
        scaler.expect("orders", limit=2)
        scaler.expect("orders", limit=2)
        scaler.expect("a topic of nobody's", limit=2)
        await asyncio.sleep(0.1)
        assert [status.replicas for status in scaler.statuses().values()] == [1, 1]
        assert scaler.statuses()["mail"].scale == Scale(1, "an event is on its way")


@pytest.mark.looptime
async def test_many_triggers_are_left_asleep_until_the_event_is_there(
    lags: FakeLags, drains: FakeDrains
) -> None:
    async with running(lags, drains) as scaler:
        for trigger in ("mail", "bill", "stock"):
            await scaler.watch(trigger, egress(trigger), SCALING)
        await asyncio.sleep(1)
        scaler.expect("orders", limit=2)
        await asyncio.sleep(0.1)
        assert [status.replicas for status in scaler.statuses().values()] == [0, 0, 0]
