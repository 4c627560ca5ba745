"""What every `Cluster` promises, as tests: a class in a test module brings the one `tested`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from knafka_operator.model.cluster import Cluster, Conflict, Document
from knafka_operator.model.resources import CORE


class ClusterContract:
    """ConfigMaps, Secrets and Brokers in one namespace, under names that nobody else has."""

    @pytest.fixture
    def namespace(self) -> str:
        return "default"

    @pytest.fixture
    def name(self) -> str:
        return f"contract-{uuid.uuid4().hex[:8]}"

    async def test_what_there_is_not_is_none(
        self, tested: Cluster, namespace: str, name: str
    ) -> None:
        assert await tested.get(CORE, "ConfigMap", namespace, name) is None
        assert await tested.get("misspelt/v1", "ConfigMap", namespace, name) is None
        assert await tested.get(CORE, "Misspelt", namespace, name) is None

    async def test_an_object_is_created_once(
        self, tested: Cluster, namespace: str, name: str
    ) -> None:
        manifest = _config_map(namespace, name, {"a": "1"})
        assert await tested.create(manifest)
        assert not await tested.create(_config_map(namespace, name, {"a": "2"}))
        assert (await _get(tested, manifest))["data"] == {"a": "1"}
        await tested.delete(CORE, "ConfigMap", namespace, name)

    async def test_what_is_applied_is_stored_and_has_a_uid_and_a_version(
        self, tested: Cluster, namespace: str, name: str
    ) -> None:
        manifest = _config_map(namespace, name, {"a": "1"})
        stored = await tested.apply(manifest)
        assert stored["data"] == {"a": "1"}
        assert stored["metadata"]["uid"]
        assert stored["metadata"]["resourceVersion"]
        found = await _get(tested, manifest)
        assert found["metadata"]["uid"] == stored["metadata"]["uid"]
        await tested.delete(CORE, "ConfigMap", namespace, name)

    async def test_applying_the_same_again_changes_nothing(
        self, tested: Cluster, namespace: str, name: str
    ) -> None:
        manifest = _config_map(namespace, name, {"a": "1"})
        before = await tested.apply(manifest)
        again = await tested.apply(manifest)
        assert again["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        changed = await tested.apply(_config_map(namespace, name, {"a": "2"}))
        assert changed["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
        assert changed["metadata"]["uid"] == before["metadata"]["uid"]
        await tested.delete(CORE, "ConfigMap", namespace, name)

    async def test_an_apply_takes_back_what_it_no_longer_names_and_nothing_else(
        self, tested: Cluster, namespace: str, name: str
    ) -> None:
        """Server-side apply: a field belongs to who applied it."""
        assert await tested.create(_config_map(namespace, name, {"theirs": "1", "both": "1"}))
        await tested.apply(_config_map(namespace, name, {"ours": "1", "both": "2"}))
        stored = await tested.apply(_config_map(namespace, name, {"both": "3"}))
        assert stored["data"]["both"] == "3"
        assert "ours" not in stored["data"]
        await tested.delete(CORE, "ConfigMap", namespace, name)

    async def test_an_apply_to_a_version_that_has_changed_is_a_conflict(
        self, tested: Cluster, namespace: str, name: str
    ) -> None:
        stored = await tested.apply(_config_map(namespace, name, {"a": "1"}))
        version = stored["metadata"]["resourceVersion"]

        def at_version(value: str) -> dict[str, Any]:
            manifest = _config_map(namespace, name, {"a": value})
            return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}

        await tested.apply(at_version("2"))
        with pytest.raises(Conflict):
            await tested.apply(at_version("3"))
        assert (await _get(tested, stored))["data"] == {"a": "2"}
        await tested.delete(CORE, "ConfigMap", namespace, name)

    async def test_a_list_has_the_objects_with_these_labels(
        self, tested: Cluster, namespace: str, name: str
    ) -> None:
        for suffix, value in (("a", name), ("b", name), ("c", f"{name}-other")):
            labels = {"contract": value, "suffix": suffix}
            await tested.apply(_config_map(namespace, f"{name}-{suffix}", {}, labels))
        found = await tested.list(CORE, "ConfigMap", {"contract": name})
        assert {each["metadata"]["name"] for each in found} == {f"{name}-a", f"{name}-b"}
        one = await tested.list(CORE, "ConfigMap", {"contract": name, "suffix": "b"})
        assert [each["metadata"]["name"] for each in one] == [f"{name}-b"]
        for suffix in "abc":
            await tested.delete(CORE, "ConfigMap", namespace, f"{name}-{suffix}")

    async def test_deleting_what_there_is_not_is_no_error(
        self, tested: Cluster, namespace: str, name: str
    ) -> None:
        await tested.apply(_config_map(namespace, name, {}))
        await tested.delete(CORE, "ConfigMap", namespace, name)
        await tested.delete(CORE, "ConfigMap", namespace, name)
        await tested.delete("misspelt/v1", "ConfigMap", namespace, name)
        assert await tested.get(CORE, "ConfigMap", namespace, name) is None

    async def test_a_status_is_merged_and_null_takes_a_key_away(
        self, tested: Cluster, namespace: str, name: str
    ) -> None:
        # A class that is nobody's: no operator reconciles it.
        broker = _broker(namespace, name)
        await tested.apply(broker)
        await tested.write_status(broker, {"annotations": {"a": "1", "b": "1"}})
        await tested.write_status(broker, {"annotations": {"a": None, "c": "1"}})
        found = await _get(tested, broker)
        assert found["status"]["annotations"] == {"b": "1", "c": "1"}
        assert found["metadata"]["generation"] == 1
        await tested.delete(broker["apiVersion"], "Broker", namespace, name)

    async def test_the_status_of_what_is_gone_is_written_nowhere(
        self, tested: Cluster, namespace: str, name: str
    ) -> None:
        broker = _broker(namespace, name)
        await tested.write_status(broker, {"annotations": {"a": "1"}})
        assert await tested.get(broker["apiVersion"], "Broker", namespace, name) is None

    async def test_an_apply_leaves_the_status_alone_and_counts_changes_of_the_spec(
        self, tested: Cluster, namespace: str, name: str
    ) -> None:
        broker = _broker(namespace, name)
        await tested.apply(broker)
        await tested.write_status(broker, {"annotations": {"a": "1"}})
        stored = await tested.apply({**broker, "spec": {"delivery": {"retry": 2}}})
        assert stored["status"]["annotations"] == {"a": "1"}
        assert stored["metadata"]["generation"] == 2
        await tested.delete(broker["apiVersion"], "Broker", namespace, name)


def _config_map(
    namespace: str, name: str, data: Mapping[str, str], labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, **({"labels": labels} if labels else {})}
    return {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def _broker(namespace: str, name: str) -> dict[str, Any]:
    annotations = {"eventing.knative.dev/broker.class": "Contract"}
    metadata = {"namespace": namespace, "name": name, "annotations": annotations}
    return {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Broker",
        "metadata": metadata,
        "spec": {"delivery": {"retry": 1}},
    }


async def _get(tested: Cluster, of: Document) -> Document:
    metadata = of["metadata"]
    found = await tested.get(of["apiVersion"], of["kind"], metadata["namespace"], metadata["name"])
    assert found is not None
    return found
