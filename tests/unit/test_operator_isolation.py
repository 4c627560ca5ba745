"""What goes wrong with one object is told of it, tried again, and touches no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from support.controlled import controller_of
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryWriter
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.core import names
from knafka_operator.decisions import status
from knafka_operator.decisions.status import is_ready
from knafka_operator.dispatchers.conditions import LAG
from knafka_operator.engine.work_queue import back_off_seconds
from knafka_operator.kafka import clusters as kafka_clusters_module
from knafka_operator.model.cluster import ClusterError, NotAllowed
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EVENTING, GROUP_STATUS
from knafka_operator.wiring import PUBLISH_INTERVAL

pytestmark = pytest.mark.looptime


@asynccontextmanager
async def _two_triggers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OperatorWorld]:
    """With a Broker and two Triggers, all Ready; whoever goes through them begins with `first`."""
    async with running_operator(monkeypatch) as world:
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        for name in ("first", "second"):
            world.declare_trigger("shop", name)
            found = await world.reconcile_trigger("shop", name)
            assert condition(found, "Ready")["status"] == "True"
            world.operator.on_trigger(world.document("Trigger", "shop", name), gone=False)
        yield world


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> AbstractAsyncContextManager[OperatorWorld]:
    """Entered by the test itself, in whose time it lives."""
    return _two_triggers(monkeypatch)


def _keep(world: OperatorWorld, kind: str, name: str) -> asyncio.Task[None]:
    """Reconciled as the leader does, for ever."""
    queue = world.operator.queue
    queue.enqueue((kind, "shop", name))
    return asyncio.create_task(queue.run(controller_of(world).reconcile))


@pytest.mark.parametrize("kind", ["Broker", "Trigger"])
async def test_a_bug_in_a_reconciliation_is_a_condition_and_is_tried_again(
    entered: AbstractAsyncContextManager[OperatorWorld],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It ended the daemon, and no condition said so."""
    async with entered as world:
        name = "default" if kind == "Broker" else "first"
        reconciler: Any = world.operator.brokers if kind == "Broker" else world.operator.triggers
        reconcile, broken = reconciler.reconcile, True

        async def fails(document: Mapping[str, Any]) -> Any:
            if broken:
                raise KeyError("resources")
            return await reconcile(document)

        monkeypatch.setattr(reconciler, "reconcile", fails)
        daemon = _keep(world, kind, name)
        await asyncio.sleep(1)
        found = world.document(kind, "shop", name)["status"]
        ready = condition(found, "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "InternalError")
        assert "KeyError" in ready["message"]
        assert len(found["conditions"]) > 3  # what was found out before is still there
        assert "Traceback" in caplog.text
        broken = False
        await asyncio.sleep(3 * back_off_seconds(1))
        assert condition(world.document(kind, "shop", name)["status"], "Ready")["status"] == "True"
        assert not daemon.done()
        daemon.cancel()
        await asyncio.wait({daemon})


async def test_a_bug_whose_condition_cannot_be_written_is_tried_again_too(
    entered: AbstractAsyncContextManager[OperatorWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with entered as world:
        looks = 0

        async def fails(document: Mapping[str, Any]) -> Any:
            nonlocal looks
            looks += 1
            raise RuntimeError("a bug")

        monkeypatch.setattr(world.operator.triggers, "reconcile", fails)
        world.cluster.refuse("write_status", name="first")
        daemon = _keep(world, "Trigger", "first")
        await asyncio.sleep(2 * back_off_seconds(3))
        assert looks > 2
        assert not daemon.done()
        daemon.cancel()
        await asyncio.wait({daemon})


@pytest.mark.parametrize("before", [(), [{"type": "Ready"}], [1, "x", None], None], ids=repr)
def test_a_failure_is_told_whatever_stands_in_the_status(before: Any) -> None:
    found = status.conditions_after_bug(before, ValueError("x" * 5000), "2026-11-22T12:00:00Z")
    assert [each["type"] for each in found] == ["Ready"]
    assert len(found[0]["message"]) < 2000


async def test_a_refused_status_stops_no_later_one(
    entered: AbstractAsyncContextManager[OperatorWorld],
) -> None:
    """Issue 12, item 11: the lag of all that came after it was never told."""
    async with entered as world:
        world.cluster.refuse("write_status", name="first")
        await asyncio.sleep(30)
        for name, lag in (("first", "unknown"), ("second", "0")):
            assert world.document("Trigger", "shop", name)["status"]["annotations"][LAG] == lag


@pytest.mark.parametrize("stuck", ["not-ready", "unreadable", "not-ours"])
async def test_a_replay_that_cannot_begin_stops_no_later_one(
    entered: AbstractAsyncContextManager[OperatorWorld], stuck: str
) -> None:
    async with entered as world:
        match stuck:
            case "not-ready":
                world.cluster.unready.add("first-kn-replayer")
            case "unreadable":
                world.declare_trigger("shop", "first", unknown=1)
                document = world.document("Trigger", "shop", "first")
                world.operator.on_trigger(document, gone=False)
            case _:
                metadata = {"namespace": "shop", "name": "first-kn-replayer"}
                service = {"apiVersion": "serving.knative.dev/v1", "kind": "Service"}
                world.cluster.put({**service, "metadata": metadata})
        for name in ("first", "second"):
            await MemoryAdmin(world.log).ensure_topic(
                names.replay_topic("shop", "default", name), 1, 1, {}
            )
        await asyncio.sleep(15)
        assert "second-kn-replayer" in world.cluster.services()
        (side,) = world.operator._kafkas.all()
        assert "shop/second (replays)" in side.scaler.statuses()
        assert "shop/first (replays)" not in side.scaler.statuses()


async def test_a_status_gives_a_trigger_no_group_but_its_own(
    entered: AbstractAsyncContextManager[OperatorWorld],
) -> None:
    """Who may write the status of its Trigger neither gets nor deletes another's offsets."""
    async with entered as world:
        group = names.trigger_group("shop", "second")
        world.declare_trigger("shop", "first")
        world.cluster.objects[EVENTING, "Trigger", "shop", "first"]["status"] = {
            "annotations": {GROUP_STATUS: group}
        }
        thief = world.document("Trigger", "shop", "first")
        await world.restart()
        world.operator.on_trigger(thief, gone=False)
        await world.reconcile_broker("shop")
        for name in ("first", "second"):
            found = await world.reconcile_trigger("shop", name)
            assert found["annotations"][GROUP_STATUS] == names.trigger_group("shop", name)
        await world.operator.triggers.delete(thief)
        assert group in world.log.groups


async def test_what_runs_goes_on_for_as_long_as_its_config_map_is_missing(
    entered: AbstractAsyncContextManager[OperatorWorld],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After half an hour nothing was delivered any more, while it said Ready and Delivering."""
    monkeypatch.setattr(kafka_clusters_module, "UNUSED_TIMEOUT", 60.0)
    async with entered as world:
        world.configure("shop", "own", **{"bootstrap.servers": "own:9092"})
        config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "own"}
        world.declare_broker("shop", "mine", config=config)
        await world.reconcile_broker("shop", "mine")
        world.declare_trigger("shop", "all", "mine")
        await world.reconcile_trigger("shop", "all")
        await world.cluster.delete("v1", "ConfigMap", "shop", "own")
        for _ in range(8):
            await asyncio.sleep(kafka_clusters_module.UNUSED_TIMEOUT / 3)
            await world.reconcile_broker("shop")
            found = await world.reconcile_broker("shop", "mine")
            assert condition(found, "Ready")["reason"] == "ConfigMapNotFound"
            assert found["address"] is not None
        MemoryWriter(world.log).append(
            names.broker_topic("shop", "mine"), None, b"{}", [], lambda _: None
        )
        await asyncio.sleep(15)
        scaled = world.operator.triggers.scaling_status(Identity("shop", "all"))
        assert scaled is not None
        assert scaled.lag == 1
        world.declare_trigger("shop", "later", "mine")
        await world.reconcile_trigger("shop", "later")
        MemoryWriter(world.log).append(
            names.broker_topic("shop", "mine"), None, b"{}", [], lambda _: None
        )
        await asyncio.sleep(15)
        later = world.operator.triggers.scaling_status(Identity("shop", "later"))
        assert later is not None
        assert later.lag == 1


async def test_a_kafka_goes_with_the_last_that_used_it(
    entered: AbstractAsyncContextManager[OperatorWorld],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_clusters_module, "UNUSED_TIMEOUT", 60.0)
    async with entered as world:
        world.configure("shop", "own", **{"bootstrap.servers": "own:9092"})
        config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "own"}
        world.declare_broker("shop", "mine", config=config)
        await world.reconcile_broker("shop", "mine")
        assert len(world.operator._kafkas.all()) == 2
        document = world.document("Broker", "shop", "mine")
        await world.operator.delete_broker(document)
        await world.cluster.delete(EVENTING, "Broker", "shop", "mine")
        for _ in range(4):
            await asyncio.sleep(kafka_clusters_module.UNUSED_TIMEOUT / 2)
            await world.reconcile_broker("shop")
        assert len(world.operator._kafkas.all()) == 1


async def test_a_status_whose_write_hangs_delays_no_other_namespaces(
    entered: AbstractAsyncContextManager[OperatorWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 14, 5: an admission webhook that doesn't answer held everybody's for 15 s each."""
    async with entered as world:
        tenants = [f"tenant-{number}" for number in range(3)]
        for namespace in tenants:
            world.declare_broker(namespace)
            await world.reconcile_broker(namespace)
            for name in ("first", "second", "third"):
                world.declare_trigger(namespace, name)
                await world.reconcile_trigger(namespace, name)
                world.operator.on_trigger(world.document("Trigger", namespace, name), gone=False)
        write, at_once = world.cluster.write_status, dict[str, int]()

        async def hangs(document: Mapping[str, Any], status: Mapping[str, Any]) -> None:
            namespace = document["metadata"]["namespace"]
            if namespace in tenants[:2]:
                at_once[namespace] = at_once.get(namespace, 0) + 1
                await asyncio.sleep(15)
                at_once[namespace] -= 1
                raise ClusterError("the API server did not answer within 15 s")
            await write(document, status)

        monkeypatch.setattr(world.cluster, "write_status", hangs)
        loop = asyncio.get_running_loop()
        began = loop.time()

        def is_published() -> bool:
            assert max(at_once.values(), default=0) <= 1
            last = world.document("Trigger", tenants[2], "third")
            return bool(last["status"]["annotations"][LAG] == "0")

        await _until(is_published)
        assert loop.time() - began < PUBLISH_INTERVAL + 1


@pytest.mark.parametrize("status", [403, 409, 500])
async def test_refused_writes_of_one_namespace_delay_no_others_reconciliation(
    entered: AbstractAsyncContextManager[OperatorWorld], status: int
) -> None:
    """403: no right; 409: somebody was faster; 500: a webhook of that namespace fails."""
    async with entered as world:
        loop = asyncio.get_running_loop()
        error = (NotAllowed if status == 403 else ClusterError)(f"the API server says {status}")
        for number in range(100):
            world.declare_trigger("shop", f"refused-{number}")
            for verb in ("apply", "write_status"):
                world.cluster.refuse(verb, name=f"refused-{number}", error=error)
            world.cluster.refuse("apply", name=f"refused-{number}-kn-dispatcher", error=error)
            world.operator.queue.enqueue(("Trigger", "shop", f"refused-{number}"))
        world.declare_broker("other")
        world.declare_trigger("other", "fine")
        began = loop.time()
        running = asyncio.create_task(world.operator.queue.run(controller_of(world).reconcile))
        world.operator.on_broker(world.document("Broker", "other"), gone=False)
        world.operator.on_trigger(world.document("Trigger", "other", "fine"), gone=False)
        await _until(lambda: is_ready(world.document("Trigger", "other", "fine")))
        assert loop.time() - began < 1
        assert world.operator.queue.failing >= 50
        running.cancel()
        await asyncio.wait({running})


async def test_a_topic_whose_offsets_nobody_answers_for_wakes_no_other_later(
    entered: AbstractAsyncContextManager[OperatorWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition whose leader hangs: the question for its lag takes its whole timeout."""
    async with entered as world:
        world.declare_broker("other")
        await world.reconcile_broker("other")
        world.declare_trigger("other", "fine")
        await world.reconcile_trigger("other", "fine")
        (kafka,) = world.operator._kafkas.all()
        bad, fine = names.broker_topic("shop", "default"), names.broker_topic("other", "default")
        inner: Any = kafka.topics
        lags = inner._inner.lags

        async def hangs(groups: list[str], topic: str) -> Any:
            await asyncio.sleep(1e6 if topic == bad else 0)
            return await lags(groups, topic)

        monkeypatch.setattr(inner._inner, "lags", hangs)
        await asyncio.sleep(33)  # between two looks that come by themselves
        loop = asyncio.get_running_loop()
        began = loop.time()
        for topic in (bad, fine):
            MemoryWriter(world.log).append(topic, None, b"{}", [], lambda _: None)
        await _until(lambda: _lag(world, "other", "fine") == 1)
        assert loop.time() - began < 1


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0.05)


def _lag(world: OperatorWorld, namespace: str, name: str) -> int | None:
    scaled = world.operator.triggers.scaling_status(Identity(namespace, name))
    assert scaled is not None
    return scaled.lag
