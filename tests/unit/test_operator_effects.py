"""Effects are run by one function, whatever kind asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from knafka.core.errors import KnafkaError
from knafka_operator.decisions.effects import (
    Annotate,
    Apply,
    Create,
    Delete,
    DeleteGroup,
    Effect,
    ObjectName,
    Refusal,
)
from knafka_operator.decisions.observed import Needed, ObservedObject
from knafka_operator.decisions.status import NotReady
from knafka_operator.decisions.steps import Step
from knafka_operator.engine.effects import Effects
from knafka_operator.engine.kind import Reconciler
from knafka_operator.kube_api.memory_cluster import MemoryCluster
from knafka_operator.model.cluster import Document
from knafka_operator.model.resources import CORE

OWNER: Document = {
    "apiVersion": "knafka.dev/v1alpha1",
    "kind": "Sensor",
    "metadata": {"namespace": "shop", "name": "paid", "uid": "u1"},
}
REFUSAL = Refusal("this Sensor", "NotOurs", "Refused")


def config_map(uid: str | None = "u1", **labels: str) -> dict[str, Any]:
    owners = [] if uid is None else [{"uid": uid, "kind": "Sensor", "name": "paid"}]
    metadata = {"namespace": "shop", "name": "one", "labels": labels, "ownerReferences": owners}
    return {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": {}}


class Reconciles(Reconciler[ObservedObject, Any, None]):
    """One that only acts."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        nothing: Any = None
        self.effects = Effects(cluster, *[nothing] * 6)


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.put(dict(OWNER))
    return cluster


async def act(cluster: MemoryCluster, *effects: Effect) -> ObservedObject:
    return await Reconciles(cluster).run_effects(effects, ObservedObject(OWNER), None)


def why(seen: ObservedObject) -> str:
    (error,) = seen.failed.values()
    assert isinstance(error, NotReady)
    return f"{error.reason}: {error}"


async def test_an_object_that_somebody_else_made_is_not_applied(cluster: MemoryCluster) -> None:
    cluster.put({**config_map("u2"), "data": {"is": "theirs"}})
    seen = await act(cluster, Apply(Step.APPLY_TRIGGERS, (config_map(),), REFUSAL))
    assert why(seen).startswith("NotOurs: ConfigMap one exists and was not made for this Sensor")
    stored = await cluster.get(CORE, "ConfigMap", "shop", "one")
    assert stored is not None
    assert stored["data"] == {"is": "theirs"}


async def test_what_is_applied_for_all_is_applied_whosever_it_was(cluster: MemoryCluster) -> None:
    cluster.put(config_map("u2"))
    seen = await act(cluster, Apply(Step.PROJECT_SECRET, (config_map(),)))
    assert seen.failed == {}


@pytest.mark.parametrize(("label", "ours"), [("u1", True), ("u2", False)])
async def test_one_that_was_created_before_is_ours_by_its_label(
    cluster: MemoryCluster, label: str, ours: bool
) -> None:
    cluster.put(config_map(None, of=label))
    creating = Create(Step.CREATE_JOB, config_map(None, of="u1"), REFUSAL, "of")
    seen = await act(cluster, creating)
    assert (Step.CREATE_JOB not in seen.failed) is ours


async def test_one_that_is_deleted_between_two_requests_is_waited_for(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was reported as another's."""

    async def exists(manifest: Document) -> bool:
        return False  # nothing was created

    monkeypatch.setattr(cluster, "create", exists)
    creating = Create(Step.CREATE_JOB, config_map(None, of="u1"), REFUSAL, "of")
    assert why(await act(cluster, creating)) == "Waiting: ConfigMap one was deleted meanwhile"


@pytest.mark.parametrize(("uid", "left"), [("u1", False), ("u2", True)])
async def test_only_what_is_its_own_is_deleted(
    cluster: MemoryCluster, uid: str, left: bool
) -> None:
    cluster.put(config_map(uid))
    name = ObjectName(CORE, "ConfigMap", "shop", "one")
    seen = await act(
        cluster, Delete(Step.DELETE_FUNCTIONS, (name,), owned=True, annotations={"is": "gone"})
    )
    assert (await cluster.get(*name) is not None) is left
    assert seen.annotations == {"is": "gone"}


async def test_what_stands_in_the_status_already_is_not_written_again(
    cluster: MemoryCluster,
) -> None:
    promise = Annotate(Step.PROMISE_GROUP, {"group.id": "one"}, at_once=False)
    seen = await act(cluster, promise)
    stored = await cluster.get(OWNER["apiVersion"], "Sensor", "shop", "paid")
    assert stored is not None
    assert "status" not in stored
    assert seen.annotations == {"group.id": "one"}, "it goes with the rest of the status"


async def test_the_first_that_fails_ends_the_list(cluster: MemoryCluster) -> None:
    cluster.put(config_map("u2"))
    seen = await act(
        cluster,
        Apply(Step.APPLY_TRIGGERS, (config_map(),), REFUSAL),
        Annotate(Step.PROMISE_SENSOR, {"is": "written"}),
    )
    assert seen.failed.keys() == {Step.APPLY_TRIGGERS}
    assert seen.annotations == {}


async def test_an_effect_that_needs_kafka_is_a_bug_where_none_is_known(
    cluster: MemoryCluster,
) -> None:
    with pytest.raises(TypeError, match="without Kafka"):
        await act(cluster, DeleteGroup("group"))


def test_a_step_that_failed_says_nothing_of_another_one() -> None:
    """Both are annotations."""
    error = KnafkaError("refused")
    needed = Needed({Step.RECORD_TOPIC: error})
    with pytest.raises(NotReady):
        needed.run_first(Annotate(Step.PROMISE_SENSOR, {}))
    with pytest.raises(KnafkaError, match="refused"):
        needed.run_first(Annotate(Step.RECORD_TOPIC, {}))
    assert [each.step for each in needed.effects] == [Step.PROMISE_SENSOR]
