"""The Kubernetes API by the real client: what one object misspells disturbs no other one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import kubernetes
import pytest
from support.api_server import DEEP, ApiServer, api_server

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_operator.decisions.resolving import Unresolved, resolve
from knafka_operator.kube_api import rest_mapper
from knafka_operator.kube_api.cluster import API_THREADS, MAX_REQUESTS_PER_NAMESPACE, ApiCluster
from knafka_operator.kube_api.rest_mapper import RestMapper
from knafka_operator.model.cluster import ClusterError, Rejected
from knafka_operator.model.resources import (
    CORE,
    EVENTING,
    SERVING,
    AddressReference,
    Destination,
    TriggerSpec,
)

Served = tuple[ApiServer, kubernetes.client.ApiClient]


@pytest.fixture
def served() -> Iterator[Served]:
    with api_server() as served:
        served[0].put(SERVING, "Service", "shop", "mail", status={"address": {"url": "http://m/"}})
        served[0].put(CORE, "Service", "shop", "mail")
        served[0].put(CORE, "Secret", "other", "credentials", data={"password": "c2VjcmV0"})
        yield served


@pytest.fixture
def cluster(served: Served) -> Iterator[ApiCluster]:
    with closing(ApiCluster(served[1])) as cluster:
        yield cluster


async def test_an_object_deeper_than_python_decodes_is_listed_beside_the_others(
    served: Served, cluster: ApiCluster
) -> None:
    """A list of all Triggers is the first thing that a leader asks for."""
    server, _ = served
    server.put(EVENTING, "Trigger", "shop", "deep", spec={"filters": [DEEP]})
    server.put(EVENTING, "Trigger", "shop", "good", spec={"broker": "a"})
    deep, good = await cluster.list(EVENTING, "Trigger")
    assert (deep["metadata"]["name"], good["spec"]) == ("deep", {"broker": "a"})
    found = await cluster.get(EVENTING, "Trigger", "shop", "deep")
    assert found is not None
    assert found["metadata"] == deep["metadata"]
    with pytest.raises(InvalidDocument, match="filters nested too deep: want at most 16"):
        parse(TriggerSpec, {"broker": "a", "subscriber": {"uri": "http://a/"}, **deep["spec"]})


async def test_misspelt_kinds_disturb_nobody_elses_look_ups(
    served: Served, cluster: ApiCluster
) -> None:
    """Issue 12, item 11: 51 of 10,318 innocent look-ups failed with a KeyError."""
    looking = True

    async def misspelt(number: int) -> None:
        while looking:
            assert await cluster.get(SERVING, f"Servise{number}", "shop", "mail") is None

    async def innocent() -> int:
        found = [await cluster.get(SERVING, "Service", "shop", "mail") for _ in range(100)]
        return sum(each is not None for each in found)

    tasks = [asyncio.create_task(misspelt(number)) for number in range(4)]
    assert sum(await asyncio.gather(*(innocent() for _ in range(4)))) == 400
    looking = False
    await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        (SERVING, "*"),
        ("*", "Service"),
        ("a/b/c", "Service"),
        ("a/", "Service"),
        ("/v1", "Service"),
        ("", "Service"),
        (SERVING, ""),
        (SERVING, "Ser vice"),
        (SERVING, "services/mail"),
        (SERVING, "ServiceList"),
        (CORE, "ServiceList"),
        ("apps/v1", "Deployment"),
        (SERVING, "S" * 100_000),
        ("v" * 100_000, "Service"),
        ("../api/v1", "Service"),
        ("v1/namespaces/other/secrets/credentials", "Service"),
        ("v1?x=y", "Service"),
        ("v1\n", "Service"),
        ("v1", "Service\n"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_reference_to_a_kind_that_there_cannot_be_is_not_found(
    cluster: ApiCluster, api_version: str, kind: str
) -> None:
    """It ended the daemon of the Trigger that named it."""
    assert await cluster.get(api_version, kind, "shop", "mail") is None
    if not api_version or not kind:
        return  # which is refused before
    named = Destination(ref=AddressReference(api_version=api_version, kind=kind, name="mail"))
    with pytest.raises(Unresolved, match="does not exist") as unresolved:
        await resolve(named, "shop", cluster.get, "cluster.local")
    assert unresolved.value.reason == "NotFound"
    assert len(str(unresolved.value)) < 1000


@pytest.mark.parametrize(
    "name",
    ["../../other/secrets/credentials", "..", ".", "credentials/../credentials", "a%2Fb", ""],
)
async def test_a_name_never_leads_to_an_object_elsewhere(
    served: Served, cluster: ApiCluster, name: str
) -> None:
    """The client puts names into the path as they are; one had another namespace's Secret read."""
    assert await cluster.get(CORE, "Secret", "shop", name) is None
    assert await cluster.get(CORE, "Secret", f"shop/{name}", "x") is None
    assert not [path for path in served[0].asked if "credentials" in path]


async def test_a_kind_that_comes_later_is_found_within_seconds(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = served
    now = 0.0
    found = RestMapper(client, lambda: now)
    assert found.find("apps/v1", "Deployment", 1) is None
    assert found.find(SERVING, "Domain", 1) is None
    server.kinds["apps/v1"] = {"Deployment": "deployments"}
    server.kinds[SERVING]["Domain"] = "domains"
    asked = len(server.asked)
    assert found.find("apps/v1", "Deployment", 1) is None
    assert found.find(SERVING, "Domain", 1) is None
    assert len(server.asked) == asked
    now = rest_mapper.MISSING_KIND_TTL
    assert found.find("apps/v1", "Deployment", 1).name == "deployments"
    assert found.find(SERVING, "Domain", 1).name == "domains"


async def test_a_kind_that_never_comes_is_asked_for_more_and_more_seldom(served: Served) -> None:
    """Issue 14: one typo was asked for every 15 s for ever."""
    server, client = served
    now = 0.0
    found = RestMapper(client, lambda: now)
    for _ in range(3600):
        now += 1
        assert found.find("typo/v1", "Service", 1) is None
    assert len(server.asked) <= 20


async def test_a_kind_whose_definition_has_come_is_found_at_once(served: Served) -> None:
    server, client = served
    found = RestMapper(client, lambda: 0.0)
    assert found.find("apps/v1", "Deployment", 1) is None
    server.kinds["apps/v1"] = {"Deployment": "deployments"}
    found.forget("apps")
    assert found.find("apps/v1", "Deployment", 1).name == "deployments"
    assert found.is_known("apps/v1", "Deployment")
    assert not found.is_known("apps/v1", "StatefulSet")


async def test_what_is_known_is_asked_for_once_whatever_is_misspelt(served: Served) -> None:
    server, client = served
    now = 0.0
    found = RestMapper(client, lambda: now)
    for number in range(50):
        assert found.find(SERVING, "Service", 1).name == "services"
        assert found.find(SERVING, f"Servise{number}", 1) is None
    assert len(server.asked) == 1
    for number in range(50):
        now += 1
        assert found.find(f"misspelt{number}/v1", "Service", 1) is None
    assert len(found._listed) < 40


async def test_a_refused_discovery_is_one_askers_error(served: Served, cluster: ApiCluster) -> None:
    """An aggregated API that is away answers 503."""
    server, _ = served
    server.refused["/apis/metrics.k8s.io/v1"] = 503
    with pytest.raises(ClusterError):
        await cluster.get("metrics.k8s.io/v1", "PodMetrics", "shop", "mail")
    assert await cluster.get(SERVING, "Service", "shop", "mail") is not None


def test_no_lock_is_held_while_the_api_server_is_asked(served: Served) -> None:
    _, client = served
    found = RestMapper(client)
    asked, go_on = threading.Event(), threading.Event()
    list_ = found._list_kinds

    def slow(group: str | None, version: str, timeout: float) -> dict[str, object]:
        if group == "slow":
            asked.set()
            assert go_on.wait(10)
        return list_(group, version, timeout)

    found._list_kinds = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=found.find, args=("slow/v1", "Any", 1))
    thread.start()
    assert asked.wait(10)
    assert found.find(SERVING, "Service", 1).name == "services"
    go_on.set()
    thread.join()


async def test_objects_are_applied_told_of_and_deleted(served: Served, cluster: ApiCluster) -> None:
    server, _ = served
    metadata = {"namespace": "shop", "name": "default"}
    broker = {"apiVersion": EVENTING, "kind": "Broker", "metadata": metadata}
    assert (await cluster.apply(broker))["metadata"].items() >= metadata.items()
    await cluster.write_status(broker, {"annotations": {}})
    path = server.path(EVENTING, "Broker", "shop", "default")
    assert server.asked[-1] == f"{path}/status"
    await cluster.delete(EVENTING, "Broker", "shop", "default")
    await cluster.delete(EVENTING, "Broker", "shop", "default")
    assert await cluster.get(EVENTING, "Broker", "shop", "default") is None


async def test_without_knative_serving_an_apply_is_a_cluster_error(
    served: Served, cluster: ApiCluster
) -> None:
    """Which is retried; it ended the daemon."""
    del served[0].kinds[SERVING]
    service = {"apiVersion": SERVING, "kind": "Service", "metadata": {"name": "x"}}
    with pytest.raises(ClusterError, match="no kind Service"):
        await cluster.apply(service)


@pytest.mark.parametrize("status", [400, 422], ids=["by a webhook", "by the schema"])
async def test_an_object_that_is_refused_as_it_is_is_told_from_a_server_that_is_away(
    served: Served, cluster: ApiCluster, status: int
) -> None:
    server, _ = served
    path = server.path(SERVING, "Service", "shop", "mail")
    manifest = {
        "apiVersion": SERVING,
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": "mail"},
    }
    server.refused[path] = status
    with pytest.raises(Rejected, match="can't apply Service mail"):
        await cluster.apply(manifest)
    server.refused[path] = 503
    with pytest.raises(ClusterError) as away:
        await cluster.apply(manifest)
    assert not isinstance(away.value, Rejected)


async def test_a_namespace_whose_requests_hang_leaves_threads_for_the_others(
    served: Served, cluster: ApiCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 14, 5: an admission webhook that doesn't answer for one tenant."""
    find, answers, asked = cluster._client_of_kind, threading.Event(), list[str]()

    class Hanging:
        def get(self, *, namespace: str, **more: Any) -> Any:
            asked.append(namespace)
            if namespace == "stuck":
                answers.wait()
            return find(CORE, "Secret").get(namespace=namespace, **more)

    monkeypatch.setattr(cluster, "_client_of_kind", lambda *_: Hanging())
    stuck = [
        asyncio.create_task(cluster.get(CORE, "Secret", "stuck", "credentials"))
        for _ in range(2 * API_THREADS)
    ]
    try:
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
            assert await cluster.get(CORE, "Secret", "other", "credentials") is not None
        assert asked.count("stuck") <= MAX_REQUESTS_PER_NAMESPACE
    finally:
        answers.set()
    assert await asyncio.gather(*stuck) == [None] * len(stuck)
    assert len(cluster._request_limits) <= 1  # nothing is kept of namespaces


async def test_a_job_is_there_until_its_pods_have_ended(served: Served) -> None:
    """By itself Kubernetes would delete the Job, and leave its pods to run on."""
    asked: list[str] = []

    class Client(kubernetes.client.ApiClient):
        def call_api(self, *arguments: Any, **named: Any) -> Any:
            asked.append(f"{arguments} {named}")
            return super().call_api(*arguments, **named)

    client = Client(served[1].configuration)
    served[0].kinds["batch/v1"] = {"Job": "jobs"}
    with closing(ApiCluster(client)) as cluster:
        await cluster.delete("batch/v1", "Job", "shop", "kept-1")
        await cluster.delete(EVENTING, "Broker", "shop", "default")
    job, broker = (each for each in asked if "'delete'" in each.lower())
    assert "propagationPolicy=Foreground" in job
    assert "propagationPolicy" not in broker
