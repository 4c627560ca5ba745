"""What every `Cluster` promises: the one in memory, and the real client on an API server.

`support.cluster_contract` has the tests; tests/cluster/test_cluster_api.py runs them on Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from support.api_server import api_server
from support.cluster_contract import ClusterContract

from knafka_operator.kube_api.cluster import ApiCluster
from knafka_operator.kube_api.memory_cluster import MemoryCluster, WatchEvent
from knafka_operator.model.cluster import Cluster, ClusterError, NotAllowed
from knafka_operator.model.resources import CORE, EVENTING


class TestMemory(ClusterContract):
    @pytest.fixture
    def tested(self) -> Cluster:
        return MemoryCluster()


class TestApi(ClusterContract):
    @pytest.fixture
    def tested(self) -> Iterator[Cluster]:
        with api_server() as (_, client):
            with closing(ApiCluster(client)) as cluster:
                yield cluster


async def test_what_our_roles_do_not_allow_is_told_from_other_failures() -> None:
    with api_server() as (server, client):
        server.refused[server.path(EVENTING, "Trigger", "shop", "orders")] = 403
        with pytest.raises(NotAllowed, match="refused"), closing(ApiCluster(client)) as cluster:
            await cluster.get(EVENTING, "Trigger", "shop", "orders")


BROKER = {
    "apiVersion": EVENTING,
    "kind": "Broker",
    "metadata": {"namespace": "shop", "name": "default"},
    "spec": {},
}
WHO = (EVENTING, "Broker", "shop", "default")


async def test_a_watch_tells_what_is_there_and_then_every_change() -> None:
    cluster = MemoryCluster()
    cluster.put(BROKER)
    watch = cluster.watch(EVENTING, "Broker")
    events: list[WatchEvent] = [await anext(watch)]
    await cluster.write_status(BROKER, {"observedGeneration": 1})
    await cluster.write_status(BROKER, {"observedGeneration": 1})  # changes nothing
    cluster.put({**BROKER, "spec": {"delivery": {"retry": 1}}})
    await cluster.delete(*WHO)
    events += [await anext(watch) for _ in range(3)]
    assert [each.type for each in events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    versions = [int(each.document["metadata"]["resourceVersion"]) for each in events]
    assert versions == sorted(versions)
    assert len(set(versions[:3])) == 3
    assert [each.document["metadata"]["generation"] for each in events] == [1, 1, 2, 2]
    assert events[-1].document["status"] == {"observedGeneration": 1}


async def test_a_watch_by_labels_tells_of_no_other_object() -> None:
    cluster = MemoryCluster()
    watch = cluster.watch(CORE, "Secret", {"for": "kafka"})
    for name, labels in (("other", {}), ("ours", {"for": "kafka"})):
        metadata = {"namespace": "shop", "name": name, "labels": labels}
        cluster.put({"apiVersion": CORE, "kind": "Secret", "metadata": metadata})
    assert (await anext(watch)).document["metadata"]["name"] == "ours"


async def test_an_object_with_finalizers_goes_when_the_last_is_taken_off() -> None:
    cluster = MemoryCluster()
    cluster.put(BROKER)
    cluster.set_finalizers(*WHO, "knafka.dev/finalizer")
    await cluster.delete(*WHO)
    found = await cluster.get(*WHO)
    assert found is not None
    assert "deletionTimestamp" in found["metadata"]
    cluster.set_finalizers(*WHO)
    assert await cluster.get(*WHO) is None


async def test_what_an_object_owned_goes_with_it() -> None:
    cluster = MemoryCluster()
    uid = cluster.put(BROKER)["metadata"]["uid"]
    for name, owner in (("owned", uid), ("other", "another")):
        metadata = {"namespace": "shop", "name": name, "ownerReferences": [{"uid": owner}]}
        cluster.put({"apiVersion": CORE, "kind": "Secret", "metadata": metadata})
    await cluster.delete(*WHO)
    assert [each["metadata"]["name"] for each in await cluster.list(CORE, "Secret")] == ["other"]


async def test_a_write_of_what_somebody_has_changed_meanwhile_is_a_conflict() -> None:
    cluster = MemoryCluster()
    read = cluster.put(BROKER)
    cluster.put({**BROKER, "spec": {"delivery": {"retry": 1}}})
    with pytest.raises(ClusterError, match="conflict"):
        cluster.put(read)


async def test_requests_are_refused_on_demand() -> None:
    cluster = MemoryCluster()
    cluster.put(BROKER)
    cluster.refuse("get", "Broker", "default", error=NotAllowed("no role"))
    cluster.refuse("write_status")
    with pytest.raises(NotAllowed):
        await cluster.get(*WHO)
    with pytest.raises(ClusterError, match="write_status"):
        await cluster.write_status(BROKER, {})
    assert await cluster.get(EVENTING, "Broker", "shop", "other") is None
    cluster.permit()
    assert await cluster.get(*WHO) is not None
