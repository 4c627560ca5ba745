"""How often a Trigger's lag is written into its status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.operator_world import OperatorWorld, running_operator

from knafka.core.drain import DrainProgress
from knafka_operator.model.identity import Identity
from knafka_operator.scale.decide import Scale, ScalingStatus
from knafka_operator.wiring import PUBLISH_INTERVAL

pytestmark = pytest.mark.looptime

WHO = ("shop", "orders")


@asynccontextmanager
async def _ready(monkeypatch: pytest.MonkeyPatch, scaled: dict[str, Any]) -> AsyncIterator[Any]:
    """A Trigger whose scaling is what `scaled` says; what is written into its status."""
    async with running_operator(monkeypatch) as world:
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        world.declare_trigger(*WHO)
        await world.reconcile_trigger(*WHO)
        world.operator.on_trigger(world.document("Trigger", *WHO), gone=False)
        written: list[dict[str, str]] = []
        write = world.cluster.write_status

        async def written_status(document: Any, status: Any) -> None:
            written.append(status["annotations"])
            await write(document, status)
            world.operator.on_trigger(world.document("Trigger", *WHO), gone=False)

        monkeypatch.setattr(world.cluster, "write_status", written_status)

        def status(trigger_id: object) -> ScalingStatus:
            given = {"lag": 0, "replicas": 0, "error": None, **scaled}
            counts = DrainProgress()
            return ScalingStatus(scale=Scale(0, "so"), counts=counts, **given)

        monkeypatch.setattr(world.operator.triggers, "scaling_status", status)
        yield world, written


async def test_a_lag_that_moves_is_written_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 14: every 5 s into etcd."""
    scaled: dict[str, Any] = {}
    async with _ready(monkeypatch, scaled) as (_, written):
        for second in range(600):
            scaled["lag"] = second
            await asyncio.sleep(1)
        assert 9 <= len(written) <= 11


async def test_a_lag_that_stays_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _ready(monkeypatch, {"lag": 7}) as (_, written):
        await asyncio.sleep(600)
        assert [each["knafka.dev/lag"] for each in written] == ["7"]


async def test_that_it_drains_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scaled: dict[str, Any] = {}
    async with _ready(monkeypatch, scaled) as (_, written):
        await asyncio.sleep(70)
        for replicas in (1, 2, 0):
            scaled["replicas"] = replicas
            await asyncio.sleep(1.1 * PUBLISH_INTERVAL)
        assert [each["knafka.dev/replicas"] for each in written] == ["0", "1", "0"]


async def test_nothing_is_kept_of_a_trigger_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _ready(monkeypatch, {}) as (world, _):
        await asyncio.sleep(10)
        assert isinstance(world, OperatorWorld)
        world.operator.on_trigger(world.document("Trigger", *WHO), gone=True)
        await world.operator.triggers.stop_delivery(Identity(*WHO))
        assert world.operator.states.triggers == {}


async def test_a_trigger_that_is_deleted_before_its_lag_is_written_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _ready(monkeypatch, {}) as (world, written):
        world.operator.states.drop_trigger(Identity(*WHO))
        await world.operator.publishing._publish(Identity(*WHO), {"knafka.dev/lag": "1"})
        assert written == []
