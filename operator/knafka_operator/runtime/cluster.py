"""Cluster: the Kubernetes API, as little of it as the operator needs, behind one Protocol.

What is told to us comes through kopf; this is what we ask and do. Documents are plain dictionaries.
Refused here: deciding anything, and retrying: who reconciles comes back anyway.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import kubernetes
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import (
    ConflictError,
    DynamicApiError,
    ForbiddenError,
    NotFoundError,
    ResourceNotFoundError,
)
from urllib3.exceptions import HTTPError

from knafka.core.errors import KnafkaError
from knafka_operator.model.resources import CORE
from knafka_operator.runtime.kinds import Kinds

Document = Mapping[str, Any]

MANAGER: Final = "knafka-operator"
"""Field manager of what we apply."""
REQUEST_TIMEOUT: Final = 15.0
"""Seconds for one request."""

_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?").fullmatch
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:]{0,252}").fullmatch

T = TypeVar("T")


class ClusterError(KnafkaError):
    """The API server refused, or did not answer."""


class NotAllowed(ClusterError):
    """Our roles don't allow it: trying again changes nothing until somebody grants it."""


class Cluster(Protocol):
    """Every method raises `ClusterError`."""

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        """None: there is no such object, or no such kind."""
        ...

    async def list(
        self, api_version: str, kind: str, labels: Mapping[str, str] | None = None
    ) -> list[Document]:
        """All objects of a kind with these labels, in all namespaces."""
        ...

    async def create(self, manifest: Document) -> bool:
        """Whether there was no such object before."""
        ...

    async def apply(self, manifest: Document) -> Document:
        """Make it so (server-side apply, ours alone); gives it as it is stored."""
        ...

    async def write_status(self, document: Document, status: Document) -> None:
        """Merge `status` into the object's; nothing happens if the object is gone."""
        ...

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None: ...


class ApiCluster:
    """`Cluster` on the official client, whose calls block and so run in threads."""

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        self._kinds = Kinds(client)

    @classmethod
    def from_environment(cls) -> ApiCluster:
        """From the pod's service account, else from KUBECONFIG; raises `ClusterError`."""
        try:
            if "KUBERNETES_SERVICE_HOST" in os.environ:
                kubernetes.config.load_incluster_config()  # type: ignore[no-untyped-call]
            else:
                kubernetes.config.load_kube_config()  # type: ignore[no-untyped-call]
        except kubernetes.config.ConfigException as error:
            raise ClusterError(f"no cluster: {error}: set KUBECONFIG, or run in a pod") from error
        return cls(kubernetes.client.ApiClient())

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        def ask() -> Document | None:
            if not _may_be(namespace, name):
                return None
            try:
                found = self._kind(api_version, kind).get(
                    name=name, namespace=namespace, _request_timeout=REQUEST_TIMEOUT
                )
            except (NotFoundError, ResourceNotFoundError):
                return None
            document: Document = found.to_dict()
            return document

        return await self._blocking(f"get {kind} {namespace}/{name}", ask)

    async def list(
        self, api_version: str, kind: str, labels: Mapping[str, str] | None = None
    ) -> list[Document]:
        selector = ",".join(f"{key}={value}" for key, value in (labels or {}).items())

        def ask() -> list[Document]:
            # As it comes: turning each into the client's own objects and back takes far longer.
            answer = self._kind(api_version, kind).get(
                label_selector=selector, serialize=False, _request_timeout=REQUEST_TIMEOUT
            )
            found: list[Document] = json.loads(answer.data)["items"]
            return found

        return await self._blocking(f"list {kind}", ask)

    async def create(self, manifest: Document) -> bool:
        metadata = manifest["metadata"]

        def ask() -> bool:
            try:
                self._kind(manifest["apiVersion"], manifest["kind"]).create(
                    body=manifest,
                    namespace=metadata.get("namespace"),
                    field_manager=MANAGER,
                    _request_timeout=REQUEST_TIMEOUT,
                )
            except ConflictError:
                return False
            return True

        return await self._blocking(f"create {manifest['kind']} {metadata['name']}", ask)

    async def apply(self, manifest: Document) -> Document:
        metadata = manifest["metadata"]

        def ask() -> Document:
            stored: Document = (
                self._kind(manifest["apiVersion"], manifest["kind"])
                .server_side_apply(
                    body=manifest,
                    name=metadata["name"],
                    namespace=metadata.get("namespace"),
                    field_manager=MANAGER,
                    force_conflicts=True,
                    _request_timeout=REQUEST_TIMEOUT,
                )
                .to_dict()
            )
            return stored

        what = f"apply {manifest['kind']} {metadata['name']}"
        return await self._blocking(what, ask)

    async def write_status(self, document: Document, status: Document) -> None:
        metadata = document["metadata"]

        def ask() -> None:
            try:
                self._kind(document["apiVersion"], document["kind"]).status.patch(
                    body={"status": status},
                    name=metadata["name"],
                    namespace=metadata["namespace"],
                    content_type="application/merge-patch+json",
                    field_manager=MANAGER,
                    _request_timeout=REQUEST_TIMEOUT,
                )
            except NotFoundError:
                return

        what = f"write the status of {document['kind']} {metadata['namespace']}/{metadata['name']}"
        await self._blocking(what, ask)

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        def ask() -> None:
            try:
                self._kind(api_version, kind).delete(
                    name=name, namespace=namespace, _request_timeout=REQUEST_TIMEOUT
                )
            except (NotFoundError, ResourceNotFoundError):
                return

        await self._blocking(f"delete {kind} {namespace}/{name}", ask)

    def _kind(self, api_version: str, kind: str) -> Any:
        found = self._kinds.find(api_version, kind, REQUEST_TIMEOUT)
        if found is None:
            raise ResourceNotFoundError(f"there is no kind {kind:.100} in {api_version:.300}")
        return found

    async def _blocking(self, what: str, call: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(call)
        except ForbiddenError as error:
            raise NotAllowed(f"can't {what}: {_told(error)}") from error
        except DynamicApiError as error:
            raise ClusterError(f"can't {what}: {_told(error)}") from error
        except (ApiException, HTTPError, OSError, ValueError, ResourceNotFoundError) as error:
            raise ClusterError(f"can't {what}: {error}") from error


async def read_secret(cluster: Cluster, namespace: str, name: str) -> Document | None:
    """A Secret's document; its data is base64."""
    return await cluster.get(CORE, "Secret", namespace, name)


def decoded(secret: Document) -> Mapping[str, str]:
    """A Secret's values as text; what other tools keep there as binary is of no use to us."""
    return {
        key: base64.b64decode(value).decode("utf-8", "replace").strip()
        for key, value in (secret.get("data") or {}).items()
    }


def _may_be(namespace: str, name: str) -> bool:
    """Whether an object may have this name: the client puts both into a path as they are."""
    return _NAMESPACE(namespace) is not None and _NAME(name) is not None


def _told(error: DynamicApiError) -> str:
    """What the API server says, without the headers around it."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, TypeError, KeyError):
        return str(error)
