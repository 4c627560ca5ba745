"""Which object is reconciled when: at once, after a back-off, never later for another's sake."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from knafka.core.errors import KnafkaError
from knafka_operator.engine.work_queue import (
    BACK_OFF,
    GONE,
    JITTER,
    LONG_RECONCILE,
    MAX_BACK_OFF,
    PLACES,
    WorkQueue,
    back_off_seconds,
)
from knafka_operator.model.identity import Key

KEY: Key = ("Trigger", "shop", "orders")
OTHER: Key = ("Trigger", "other", "orders")

pytestmark = pytest.mark.looptime


class Reconciled:
    """When each object was; gives the verdicts it was told, then an hour."""

    def __init__(self, *verdicts: Any) -> None:
        self._verdicts = list(verdicts)
        self.times: dict[Key, list[float]] = {}

    async def __call__(self, key: Key) -> Any:
        self.times.setdefault(key, []).append(asyncio.get_running_loop().time())
        verdict = self._verdicts.pop(0) if self._verdicts else 3600.0
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def pauses(self, key: Key = KEY) -> list[float]:
        times = self.times[key]
        return [after - before for before, after in pairwise(times)]


@asynccontextmanager
async def running(
    reconcile: Callable[[Key], Awaitable[Any]], **options: Any
) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(**options)
    task = asyncio.create_task(queue.run(reconcile))
    yield queue
    task.cancel()
    await asyncio.wait({task})


async def test_it_is_reconciled_at_once_and_after_the_seconds_it_asks_for() -> None:
    reconciled = Reconciled(30.0)
    async with running(reconciled) as queue:
        queue.enqueue(KEY)
        await asyncio.sleep(100)
    assert reconciled.pauses() == [pytest.approx(30, abs=0.1)]


async def test_what_changed_is_reconciled_soon() -> None:
    reconciled = Reconciled()
    async with running(reconciled) as queue:
        queue.enqueue(KEY)
        await asyncio.sleep(10)
        queue.enqueue(KEY)
        await asyncio.sleep(1)
    assert len(reconciled.times[KEY]) == 2


async def test_a_burst_of_changes_is_one_reconciliation() -> None:
    reconciled = Reconciled()
    async with running(reconciled) as queue:
        for _ in range(100):
            queue.enqueue(KEY)
        await asyncio.sleep(1)
    assert len(reconciled.times[KEY]) == 1


async def test_a_change_during_a_reconciliation_is_not_missed() -> None:
    times = []

    async def reconcile(key: Key) -> float:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            queue.enqueue(key)
        await asyncio.sleep(0.01)
        return 3600.0

    async with running(reconcile) as queue:
        queue.enqueue(KEY)
        await asyncio.sleep(1)
    assert len(times) == 2


async def test_what_fails_is_tried_again_later_each_time_up_to_five_minutes() -> None:
    """Issue 14: what was not Ready was looked at every 3 s for ever."""
    reconciled = Reconciled(*[BACK_OFF] * 30)
    async with running(reconciled) as queue:
        queue.enqueue(KEY)
        await asyncio.sleep(3000)
        pauses = reconciled.pauses()
        expected = [back_off_seconds(number) for number in range(1, len(pauses) + 1)]
        assert pauses == [pytest.approx(each, rel=1.1 * JITTER) for each in expected]
        assert expected[:3] == [1.0, 2.0, 4.0]
        assert expected[-1] == MAX_BACK_OFF
        assert queue.failing == 1


@pytest.mark.parametrize("what", ["it changes", "it succeeds", "what stands in its way may go"])
async def test_its_failures_are_forgotten_when(what: str) -> None:
    verdicts: list[Any] = [BACK_OFF] * 6
    if what == "it succeeds":
        verdicts.append(20.0)
    reconciled = Reconciled(*verdicts, BACK_OFF)
    async with running(reconciled) as queue:
        queue.enqueue(KEY)
        await asyncio.sleep(50)
        assert len(reconciled.times[KEY]) == 6
        if what == "it changes":
            queue.enqueue(KEY)
        elif what != "it succeeds":
            queue.retry_failed()
        await asyncio.sleep(60)
    assert reconciled.pauses()[-1] == pytest.approx(1.0, rel=1.1 * JITTER)


@pytest.mark.parametrize("error", [KnafkaError("refused"), KeyError("a bug")], ids=repr)
async def test_an_error_is_that_objects_alone(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    reconciled = Reconciled(error)
    async with running(reconciled) as queue:
        queue.enqueue(KEY)
        await asyncio.sleep(0.1)
        queue.enqueue(OTHER)
        await asyncio.sleep(3)
    assert len(reconciled.times[KEY]) == 2
    assert len(reconciled.times[OTHER]) == 1
    assert ("Traceback" in caplog.text) == isinstance(error, KeyError)


async def test_what_is_gone_is_forgotten() -> None:
    reconciled = Reconciled(GONE)
    async with running(reconciled) as queue:
        queue.enqueue(KEY)
        await asyncio.sleep(1)
        assert len(queue) == 0


async def test_a_thousand_that_wait_for_a_kafka_keep_nobody_waiting_for_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Issue 14: one tenant's bad partitions delay nobody else by more than a second."""
    caplog.set_level(logging.ERROR)
    began: dict[str, float] = {}

    async def reconcile(key: Key) -> Any:
        if key[1] == "bad":
            await asyncio.sleep(15)  # as long as Kafka is waited for
            raise KnafkaError("Kafka did not answer")
        began[key[2]] = asyncio.get_running_loop().time()
        return 3600.0

    async with running(reconcile) as queue:
        for number in range(1000):
            queue.enqueue(("Trigger", "bad", f"t{number}"))
        for second in range(30):
            enqueued = asyncio.get_running_loop().time()
            queue.enqueue(("Trigger", "good", f"t{second}"))
            await asyncio.sleep(1)
            assert began[f"t{second}"] - enqueued < 1


async def test_no_more_are_reconciled_at_a_time_than_there_are_places() -> None:
    now = most = 0

    async def reconcile(key: Key) -> float:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(LONG_RECONCILE / 2)
        now -= 1
        return 3600.0

    async with running(reconcile) as queue:
        for number in range(5 * PLACES):
            queue.enqueue(("Trigger", "shop", f"t{number}"))
        await asyncio.sleep(10)
    assert most == PLACES


async def test_who_is_cancelled_cancels_what_it_was_doing() -> None:
    ended = []

    async def reconcile(key: Key) -> float:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(key)
        return 3600.0

    async with running(reconcile) as queue:
        queue.enqueue(KEY)
        await asyncio.sleep(1)
    assert ended == [KEY]
