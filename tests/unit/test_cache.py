"""What is asked of the API server, and what isn't because a watch knows it."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from support.api_server import merged

from knafka_operator.kube_api.cache import APPLIED, CachedCluster
from knafka_operator.kube_api.cluster import WatchSelection
from knafka_operator.kube_api.differences import changes_nothing, contains
from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.resources import CORE, EVENTING, SERVING

BROKERS = WatchSelection(EVENTING, "Broker")
CONFIG_MAPS = WatchSelection(CORE, "ConfigMap", metadata_only=True)
FUNCTIONS = WatchSelection(SERVING, "Service", labels="role")
OTHERS = WatchSelection(SERVING, "Service", labels="!role", metadata_only=True)
SECRETS = WatchSelection(CORE, "Secret", metadata_only=True)
CONFIG = CORE, "ConfigMap", "shop", "config"
KEY = "Broker", "shop", "default"


class Api:
    """Objects in memory; counts what it is asked."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str, str], dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        self.refuses_deletions = False
        self._version = 0

    def put(self, document: Mapping[str, Any]) -> dict[str, Any]:
        metadata = document["metadata"]
        key = document["apiVersion"], document["kind"], metadata["namespace"], metadata["name"]
        self._version += 1
        stored = copy.deepcopy({**self.objects.get(key, {}), **document})
        stored["metadata"] |= {"uid": "u", "resourceVersion": str(self._version)}
        self.objects[key] = stored
        return copy.deepcopy(stored)

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        self.calls["get"] += 1
        return copy.deepcopy(self.objects.get((api_version, kind, namespace, name)))

    async def list(
        self,
        api_version: str,
        kind: str,
        labels: Mapping[str, str] | None = None,
        namespace: str | None = None,
    ) -> list[Document]:
        return []

    async def create(self, manifest: Document) -> bool:
        return True

    async def apply(self, manifest: Document) -> Document:
        self.calls["apply"] += 1
        return self.put(manifest)

    async def write_status(self, document: Document, status: Document) -> None:
        raise AssertionError("patch_status tells more")

    async def patch_status(self, document: Document, status: Document) -> Document | None:
        self.calls["status"] += 1
        metadata = document["metadata"]
        key = document["apiVersion"], document["kind"], metadata["namespace"], metadata["name"]
        return self.put(merged(self.objects[key], {"status": status}))

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        if self.refuses_deletions:
            raise ClusterError("500 Internal Server Error")
        self.objects.pop((api_version, kind, namespace, name), None)


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def cluster(api: Api) -> CachedCluster:
    """Everything is watched, and there is nothing."""
    cluster = CachedCluster(api)
    for each in (BROKERS, CONFIG_MAPS, FUNCTIONS, OTHERS, SECRETS):
        cluster.on_objects(each, (), ())
        cluster.set_synced(each, True)
    return cluster


def _document(api_version: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": name, **more.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def _metadata(document: Document) -> Document:
    return {key: document[key] for key in ("apiVersion", "kind", "metadata")}


async def test_what_is_watched_whole_costs_no_request(api: Api, cluster: CachedCluster) -> None:
    broker = api.put(_document(EVENTING, "Broker", "default", spec={"a": 1}))
    assert await cluster.get(EVENTING, "Broker", "shop", "default") is None
    cluster.on_objects(BROKERS, (broker,), ())
    assert await cluster.get(EVENTING, "Broker", "shop", "default") == broker
    cluster.on_objects(BROKERS, (), (broker,))
    assert await cluster.get(EVENTING, "Broker", "shop", "default") is None
    assert api.calls["get"] == 0


async def test_what_metadata_is_watched_of_is_asked_for_once_a_version(
    api: Api, cluster: CachedCluster
) -> None:
    for text in ("one", "two"):
        stored = api.put(_document(CORE, "ConfigMap", "config", data={"a": text}))
        cluster.on_objects(CONFIG_MAPS, (_metadata(stored),), ())
        with cluster.tracking(KEY):
            for _ in range(3):
                found = await cluster.get(*CONFIG)
                assert found is not None
                assert found["data"] == {"a": text}
    assert api.calls["get"] == 2


async def test_while_a_watch_is_broken_everything_is_asked_for(
    api: Api, cluster: CachedCluster
) -> None:
    broker = api.put(_document(EVENTING, "Broker", "default"))
    cluster.on_objects(BROKERS, (broker,), ())
    cluster.set_synced(BROKERS, False)
    for _ in range(2):
        assert await cluster.get(EVENTING, "Broker", "shop", "default") is not None
        assert await cluster.get(EVENTING, "Broker", "shop", "another") is None
    assert api.calls["get"] == 4


async def test_what_a_filter_leaves_out_is_asked_for(api: Api, cluster: CachedCluster) -> None:
    api.put(_document(SERVING, "Service", "theirs"))
    assert await cluster.get(SERVING, "Service", "shop", "theirs") is not None


@pytest.fixture
def told(cluster: CachedCluster) -> list[Any]:
    """The keys of objects whose reconciliation read something that has changed."""
    keys: list[Any] = []
    cluster.changed = keys.append
    return keys


async def test_who_on_unwatched_read_something_is_told_when_it_changes(
    api: Api, cluster: CachedCluster, told: list[Any]
) -> None:
    """Issue 14: a ConfigMap or Secret that changed was seen after five to six minutes."""
    with cluster.tracking(KEY):
        assert await cluster.get(*CONFIG) is None
    stored = api.put(_document(CORE, "ConfigMap", "config"))
    cluster.on_objects(CONFIG_MAPS, (_metadata(stored),), ())
    assert told == [KEY]
    cluster.on_objects(CONFIG_MAPS, (_metadata(stored),), ())
    other = api.put(_document(CORE, "ConfigMap", "other"))
    cluster.on_objects(CONFIG_MAPS, (_metadata(other),), ())
    assert told == [KEY]
    cluster.on_objects(CONFIG_MAPS, (), (_metadata(stored),))
    assert told == [KEY, KEY]
    with cluster.tracking(KEY):
        await cluster.get(CORE, "ConfigMap", "shop", "other")
    cluster.on_objects(CONFIG_MAPS, (_metadata(stored),), ())
    assert told == [KEY, KEY]


async def test_who_failed_halfway_is_still_told_of_what_it_on_unwatched_read_before(
    api: Api, cluster: CachedCluster, told: list[Any]
) -> None:
    with cluster.tracking(KEY):
        await cluster.get(*CONFIG)
    with pytest.raises(RuntimeError), cluster.tracking(KEY):
        raise RuntimeError("before it was looked at")
    cluster.on_objects(CONFIG_MAPS, (api.put(_document(CORE, "ConfigMap", "config")),), ())
    assert told == [KEY]


async def test_a_change_between_a_first_read_and_the_end_of_the_reconciliation_is_told(
    api: Api, cluster: CachedCluster, told: list[Any]
) -> None:
    """Else the reader would work with what it has read until its back-off or resync."""
    with cluster.tracking(KEY):
        assert await cluster.get(*CONFIG) is None
        cluster.on_objects(CONFIG_MAPS, (api.put(_document(CORE, "ConfigMap", "config")),), ())
        assert told == [KEY]


async def test_a_change_while_the_api_server_still_answers_a_first_read_is_told(
    api: Api, cluster: CachedCluster, monkeypatch: pytest.MonkeyPatch, told: list[Any]
) -> None:
    old = api.put(_document(CORE, "ConfigMap", "config", data={"a": "old"}))
    cluster.on_objects(CONFIG_MAPS, (_metadata(old),), ())

    async def answer_late(*_: str) -> Document:
        new = api.put(_document(CORE, "ConfigMap", "config", data={"a": "new"}))
        cluster.on_objects(CONFIG_MAPS, (_metadata(new),), ())
        return old

    monkeypatch.setattr(api, "get", answer_late)
    with cluster.tracking(KEY):
        assert await cluster.get(*CONFIG) == old
    assert told == [KEY]


async def test_what_the_last_reconciliation_read_is_told_of_until_the_next_one_has_ended(
    api: Api, cluster: CachedCluster, told: list[Any]
) -> None:
    with cluster.tracking(KEY):
        await cluster.get(*CONFIG)
    with cluster.tracking(KEY):
        cluster.on_objects(CONFIG_MAPS, (api.put(_document(CORE, "ConfigMap", "config")),), ())
        assert told == [KEY]
    cluster.on_objects(CONFIG_MAPS, (api.put(_document(CORE, "ConfigMap", "config")),), ())
    assert told == [KEY], "it isn't read any more"
    assert not cluster._references
    assert not cluster._referrers


async def test_what_an_aborted_reconciliation_has_read_is_dropped_after_the_next_one(
    api: Api, cluster: CachedCluster
) -> None:
    async def reconcile() -> None:
        with cluster.tracking(KEY):
            await cluster.get(*CONFIG)
            raise RuntimeError("after it was looked at")

    with pytest.raises(RuntimeError):
        await reconcile()
    assert set(cluster._referrers) == {CONFIG}
    with cluster.tracking(KEY):
        await cluster.get(CORE, "ConfigMap", "shop", "other")
    assert set(cluster._referrers) == {(CORE, "ConfigMap", "shop", "other")}


async def test_a_read_after_the_end_of_its_reconciliation_is_not_kept(
    api: Api, cluster: CachedCluster
) -> None:
    """Of an object that is forgotten, nothing would drop it."""
    ended = asyncio.Event()

    async def read_late() -> None:
        await ended.wait()
        await cluster.get(*CONFIG)

    with cluster.tracking(KEY):
        late = asyncio.create_task(read_late())
    cluster.forget(KEY)
    ended.set()
    await late
    assert not cluster._references
    assert not cluster._referrers


async def test_nothing_is_kept_of_what_nobody_looks_at_any_more(
    api: Api, cluster: CachedCluster
) -> None:
    stored = api.put(_document(CORE, "Secret", "config", data={"password": "eA=="}))
    cluster.on_objects(SECRETS, (_metadata(stored),), ())
    with cluster.tracking(KEY):
        await cluster.get(CORE, "Secret", "shop", "config")
    cluster.forget(KEY)
    assert "password" not in str(vars(cluster))
    assert not cluster._references
    assert not cluster._referrers
    assert "password" not in str([each.documents for each in cluster._watched[CORE, "Secret"]])


async def test_a_kind_that_nobody_watches_is_told_of(api: Api, cluster: CachedCluster) -> None:
    kinds: list[tuple[str, str]] = []
    cluster.on_unwatched_read = lambda api_version, kind: kinds.append((api_version, kind))
    await cluster.get("sinks.example/v1", "Sink", "shop", "a")
    with cluster.tracking(KEY):
        await cluster.get("sinks.example/v1", "Sink", "shop", "a")
        await cluster.get(*CONFIG)
    assert kinds == [("sinks.example/v1", "Sink")]


def _service(**spec: Any) -> dict[str, Any]:
    return _document(SERVING, "Service", "mail", metadata={"labels": {"role": "a"}}, spec=spec)


async def test_only_what_differs_is_applied(api: Api, cluster: CachedCluster) -> None:
    """Issue 14: every look applied its Service."""
    for _ in range(3):
        stored = await cluster.apply(_service(image="one"))
    assert api.calls["apply"] == 1
    assert stored["spec"] == {"image": "one"}
    await cluster.apply(_service(image="two"))
    await cluster.apply(_service())  # what isn't wanted any more goes
    assert api.calls["apply"] == 3


async def test_what_somebody_changed_by_hand_is_applied_again(
    api: Api, cluster: CachedCluster
) -> None:
    stored = await cluster.apply(_service(image="one", env=[{"name": "A"}]))
    changed = api.put({**stored, "spec": {"image": "theirs", "env": [{"name": "A"}]}})
    cluster.on_objects(FUNCTIONS, (changed,), ())
    await cluster.apply(_service(image="one", env=[{"name": "A"}]))
    assert api.calls["apply"] == 2


async def test_what_others_filled_in_is_no_difference(api: Api, cluster: CachedCluster) -> None:
    """Knative's webhook and Kubernetes fill in what isn't declared."""
    stored = await cluster.apply(_service(env=[{"name": "A"}]))
    spec = {"env": [{"name": "A", "value": ""}], "timeoutSeconds": 300}
    cluster.on_objects(FUNCTIONS, (api.put({**stored, "spec": spec}),), ())
    await cluster.apply(_service(env=[{"name": "A"}]))
    assert api.calls["apply"] == 1


async def test_what_is_deleted_is_applied_anew_though_no_watch_has_told(
    api: Api, cluster: CachedCluster
) -> None:
    await cluster.apply(_service())
    await cluster.delete(SERVING, "Service", "shop", "mail")
    assert await cluster.get(SERVING, "Service", "shop", "mail") is None
    await cluster.apply(_service())
    assert api.calls["apply"] == 2


async def test_what_could_not_be_deleted_is_still_there(api: Api, cluster: CachedCluster) -> None:
    broker = api.put(_document(EVENTING, "Broker", "default"))
    cluster.on_objects(BROKERS, (broker,), ())
    api.refuses_deletions = True
    with pytest.raises(ClusterError):
        await cluster.delete(EVENTING, "Broker", "shop", "default")
    assert await cluster.get(EVENTING, "Broker", "shop", "default") == broker


async def test_a_secret_has_no_digest(api: Api, cluster: CachedCluster) -> None:
    stored = await cluster.apply(_document(CORE, "Secret", "projected", data={"password": "eA=="}))
    assert APPLIED not in (stored["metadata"].get("annotations") or {})


async def test_only_a_status_that_differs_is_written_and_read_back_at_once(
    api: Api, cluster: CachedCluster
) -> None:
    broker = api.put(_document(EVENTING, "Broker", "default"))
    cluster.on_objects(BROKERS, (broker,), ())
    for _ in range(3):
        await cluster.write_status(broker, {"annotations": {"topic": "a"}, "address": None})
    assert api.calls["status"] == 1
    found = await cluster.get(EVENTING, "Broker", "shop", "default")
    assert found is not None
    assert found["status"]["annotations"] == {"topic": "a"}
    # The watch tells of older versions later: names that are kept there are not forgotten.
    cluster.on_objects(BROKERS, (broker,), ())
    assert await cluster.get(EVENTING, "Broker", "shop", "default") == found


async def test_an_answer_brings_nothing_back_that_is_gone_by_now(
    api: Api, cluster: CachedCluster
) -> None:
    """The watch may be faster than the answer to a write."""
    broker = api.put(_document(EVENTING, "Broker", "default"))
    cluster.on_objects(BROKERS, (broker,), ())
    cluster.on_objects(BROKERS, (), (broker,))
    cluster.store_answer(broker)
    assert await cluster.get(EVENTING, "Broker", "shop", "default") is None


async def test_an_answer_about_a_deleted_object_does_not_replace_the_one_created_after_it(
    api: Api, cluster: CachedCluster
) -> None:
    """Else the old one would be reconciled for as long as the new one isn't changed."""
    broker = api.put(_document(EVENTING, "Broker", "default"))
    cluster.on_objects(BROKERS, (broker,), ())
    cluster.on_objects(BROKERS, (), (broker,))
    metadata = {**broker["metadata"], "uid": "another", "resourceVersion": "1000"}
    created = {**broker, "metadata": metadata}
    cluster.on_objects(BROKERS, (created,), ())
    cluster.store_answer(broker)
    assert await cluster.get(EVENTING, "Broker", "shop", "default") == created


def _recreated(broker: Document, version: int) -> Document:
    """The object that was created under the name of a deleted one."""
    metadata = {**broker["metadata"], "uid": f"u{version}", "resourceVersion": str(version)}
    return {**broker, "metadata": metadata}


async def test_an_answer_about_an_object_deleted_twice_brings_neither_back(
    api: Api, cluster: CachedCluster
) -> None:
    """The answer is about the first; only the deletion of the second is remembered."""
    first = api.put(_document(EVENTING, "Broker", "default"))
    second = _recreated(first, 1000)
    for broker in (first, second):
        cluster.on_objects(BROKERS, (broker,), ())
        cluster.on_objects(BROKERS, (), (broker,))
    cluster.store_answer(first)
    assert await cluster.get(EVENTING, "Broker", "shop", "default") is None


async def test_a_late_deletion_does_not_hide_the_object_that_an_answer_showed_recreated(
    api: Api, cluster: CachedCluster
) -> None:
    """The answer to a write may be faster than the watch, which still tells of the deletion."""
    broker = api.put(_document(EVENTING, "Broker", "default"))
    cluster.on_objects(BROKERS, (broker,), ())
    created = _recreated(broker, 1000)
    cluster.store_answer(created)
    cluster.on_objects(BROKERS, (), (broker,))
    assert await cluster.get(EVENTING, "Broker", "shop", "default") == created


async def test_a_deletion_does_not_hide_the_object_that_was_created_before_its_answer_came(
    api: Api, cluster: CachedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch may be faster than the answer; else the new one isn't seen until it changes."""
    broker = api.put(_document(EVENTING, "Broker", "default"))
    cluster.on_objects(BROKERS, (broker,), ())
    created = _recreated(broker, 1000)

    async def answer_late(*_: str) -> None:
        cluster.on_objects(BROKERS, (), (broker,))
        cluster.on_objects(BROKERS, (created,), ())

    monkeypatch.setattr(api, "delete", answer_late)
    await cluster.delete(EVENTING, "Broker", "shop", "default")
    assert await cluster.get(EVENTING, "Broker", "shop", "default") == created


async def test_an_object_with_a_finalizer_is_still_read_though_its_watch_was_faster_than_the_answer(
    api: Api, cluster: CachedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watch has nothing more to report until the finalizer is removed."""
    broker = api.put(_document(EVENTING, "Broker", "default"))
    cluster.on_objects(BROKERS, (broker,), ())

    async def answer_late(*_: str) -> None:
        metadata = {**broker["metadata"], "deletionTimestamp": "now", "finalizers": ["a"]}
        cluster.on_objects(BROKERS, (api.put({**broker, "metadata": metadata}),), ())

    monkeypatch.setattr(api, "delete", answer_late)
    await cluster.delete(EVENTING, "Broker", "shop", "default")
    found = await cluster.get(EVENTING, "Broker", "shop", "default")
    assert found is not None
    assert "deletionTimestamp" in found["metadata"]


async def test_a_reconciliation_is_not_repeated_for_what_it_has_written(
    api: Api, cluster: CachedCluster, told: list[Any]
) -> None:
    with cluster.tracking(KEY):
        await cluster.get(SERVING, "Service", "shop", "mail")
        stored = await cluster.apply(_service())
    cluster.on_objects(FUNCTIONS, (stored,), ())
    assert told == []


async def test_others_who_read_an_object_learn_of_a_write_whose_answer_came_first(
    api: Api, cluster: CachedCluster, told: list[Any]
) -> None:
    """The watch then has no news of it: they would wait for the end of their back-off."""
    broker = api.put(_document(EVENTING, "Broker", "default"))
    cluster.on_objects(BROKERS, (broker,), ())
    reader = "Trigger", "shop", "mail"
    for key in (KEY, reader):
        with cluster.tracking(key):
            await cluster.get(EVENTING, "Broker", "shop", "default")
    with cluster.tracking(KEY):
        await cluster.get(EVENTING, "Broker", "shop", "default")
        await cluster.write_status(broker, {"address": {"url": "http://new/"}})
    stored = await cluster.get(EVENTING, "Broker", "shop", "default")
    assert stored is not None
    cluster.on_objects(BROKERS, (stored,), ())
    assert told == [reader]


@pytest.mark.parametrize(
    ("there", "wanted", "answer"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": {}}, {"a": {"b": 1}}, False),
        ({"a": "x"}, {"a": {"b": 1}}, False),
        ({"a": "1"}, {"a": 1}, False),
    ],
)
def test_what_is_contained(there: Any, wanted: Any, answer: bool) -> None:
    assert contains(there, wanted) == answer


@pytest.mark.parametrize(
    ("there", "patch", "answer"),
    [
        ({}, {}, True),
        ({}, {"a": None}, True),
        ({"a": 1}, {"a": None}, False),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, True),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, False),
        ({}, {"a": {}}, False),
        ({"a": [1]}, {"a": [1, 2]}, False),
    ],
)
def test_what_a_merge_patch_changes(there: Any, patch: Any, answer: bool) -> None:
    assert changes_nothing(there, patch) == answer
