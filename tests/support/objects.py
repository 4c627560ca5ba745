"""The objects of a cluster, without a process for each request: kubectl costs 0.1 s of a core."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import kubernetes
from urllib3.exceptions import HTTPError

from knafka_client.declared.kubernetes_api import MERGE_PATCH, KubernetesApi
from knafka_operator.model.cluster import ClusterError

APPLY_PATCH: Final = "application/apply-patch+yaml"
ATTEMPTS: Final = 4
"""Of a request that the API server doesn't answer in 15 s: kubectl waits, too."""


class Kind(NamedTuple):
    """Where the objects of a kind are, below `path`."""

    path: str
    plural: str
    namespaced: bool


class Objects:
    """Objects of every kind that the cluster has; from any thread."""

    def __init__(self, kubeconfig: Path) -> None:
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(kubeconfig), client_configuration=configuration
        )
        configuration.proxy = None
        self._client = kubernetes.client.ApiClient(configuration)
        self._api = KubernetesApi(self._client)
        self._kinds: dict[str, Kind] = {}

    def close(self) -> None:
        self._client.close()  # type: ignore[no-untyped-call]

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any] | None:
        """The object, or None while there is none. LookupError: no such kind."""
        found: dict[str, Any] | None = self._read(f"{self._folder(kind, namespace)}/{name}")
        return found

    def list(self, kind: str, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """All of a kind in a namespace, or those with these labels (`a=b,c=d`)."""
        asked = f"?labelSelector={quote(labels)}" if labels else ""
        found: list[dict[str, Any]] = self._read(self._folder(kind, namespace) + asked)["items"]
        return found

    def create(self, kind: str, namespace: str, document: Mapping[str, Any]) -> None:
        """Of an API group; raises `ClusterError`, also if it is there."""
        _, _, plural = self._folder(kind, namespace).rpartition("/")
        # By its own version, which needn't be the one that the API server prefers.
        path = f"/apis/{document['apiVersion']}/namespaces/{namespace}/{plural}"
        self._api.ask(f"create {plural} {document['metadata']['name']}", "POST", path, document)

    def apply(self, document: Mapping[str, Any], namespace: str = "") -> None:
        """Do what `kubectl apply --server-side --force-conflicts` does: fields that were applied
        before and are no longer declared are removed. Raises `ClusterError`."""
        version, metadata = str(document["apiVersion"]), document["metadata"]
        group = version.rpartition("/")[0]
        kind = f"{document['kind']}.{group}" if group else str(document["kind"])
        folder = self._folder(kind, metadata.get("namespace") or namespace)
        root = f"/apis/{version}" if group else "/api/v1"
        path = root + folder.removeprefix(self._kinds[kind.lower()].path)
        options = "fieldManager=tests&force=true&fieldValidation=Strict"
        self._ask("PATCH", f"{path}/{metadata['name']}?{options}", document, APPLY_PATCH)

    def patch(self, kind: str, name: str, namespace: str, body: Mapping[str, Any]) -> None:
        """Merge `body` into an object that is there. Raises `ClusterError`."""
        self._ask("PATCH", f"{self._folder(kind, namespace)}/{name}", body, MERGE_PATCH)

    def delete(self, kind: str, namespace: str, name: str = "") -> None:
        """Delete an object, or all of the kind in the namespace, without waiting for their end;
        nothing happens if they aren't there, or there is no such kind."""
        with suppress(LookupError):
            path = self._folder(kind, namespace) + (f"/{name}" if name else "")
            self._ask("DELETE", f"{path}?propagationPolicy=Background", may_miss=True)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        *,
        may_miss: bool = False,
    ) -> None:
        """Send a request that may be repeated. Raises `ClusterError`."""
        for left in reversed(range(ATTEMPTS)):
            try:
                answer = self._api.ask(f"{method} {path}", method, path, body, content_type)
            except ClusterError as error:
                if not left or not isinstance(error.__cause__, HTTPError | OSError):
                    raise
            else:
                if answer is None and not may_miss:
                    raise ClusterError(f"can't {method} {path}: there is no such thing")
                return

    def _folder(self, kind: str, namespace: str) -> str:
        found = self._kinds.get(kind.lower())
        if found is None:
            # First, or of a definition that came since.
            self._kinds = dict(self._discover())
            found = self._kinds.get(kind.lower())
        if found is None:
            raise LookupError(f"the cluster has no kind {kind}")
        where = f"namespaces/{namespace or 'default'}/" if found.namespaced else ""
        return f"{found.path}/{where}{found.plural}"

    def _discover(self) -> Iterator[tuple[str, Kind]]:
        """By each name that kubectl knows it by; where two have one, Kubernetes' own is meant, and
        of a group's versions the one that it prefers."""
        groups = self._read("/apis")["groups"]
        groups.sort(key=lambda each: "." not in each["name"] or each["name"].endswith(".k8s.io"))
        versions = [
            (group["name"], version["groupVersion"])
            for group in groups
            for version in (*group["versions"], group["preferredVersion"])
        ]
        for group, version in [*versions, ("", "v1")]:
            path = f"/apis/{version}" if group else "/api/v1"
            for each in self._read(path)["resources"]:
                if "/" in each["name"]:
                    continue
                kind = Kind(path, each["name"], each["namespaced"])
                names = [each["name"], each["singularName"] or each["kind"].lower()]
                for name in (*names, *each.get("shortNames", ())):
                    yield name, kind
                    yield f"{name}.{group}", kind

    def _read(self, path: str) -> Any:
        found = self._api.ask(f"get {path}", "GET", path)
        return None if found is None else json.loads(found)
