"""API server: implements `Cluster` on the official client, with lists and watches.

The client's calls block, so they run in threads. Documents are plain decoded JSON: converting them
to the client's own objects and back takes far longer than the request.

Not here: keeping objects in memory (`cache`), and following changes (`watches`).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import kubernetes
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import (
    BadRequestError,
    ConflictError,
    DynamicApiError,
    ForbiddenError,
    NotFoundError,
    ResourceNotFoundError,
    UnprocessibleEntityError,
)
from urllib3.exceptions import HTTPError

from knafka_operator.kube_api.json_answers import decode_json
from knafka_operator.kube_api.rest_mapper import RestMapper
from knafka_operator.model.cluster import ClusterError, Conflict, Document, NotAllowed, Rejected

MANAGER: Final = "knafka-operator"
"""The field manager of applied objects."""
API_REQUEST_TIMEOUT: Final = 15.0
"""Seconds for one request."""
API_THREADS: Final = 32
"""Most concurrent requests: twice as many as the work queue has places."""
MAX_REQUESTS_PER_NAMESPACE: Final = 8
"""Most concurrent requests for one namespace; an admission webhook there may delay all of them."""
CONNECTIONS: Final = 64
"""Most open connections: one for each thread and each watch."""
PAGE_SIZE: Final = 250
"""Objects per page of a list that precedes a watch; decoding a page blocks the event loop for some
10 ms."""
API_CONNECT_TIMEOUT: Final = 5.0
"""Seconds to connect for a watch."""

_METADATA_FORM: Final = ";g=meta.k8s.io;v=v1,application/json"
"""End of an Accept header that requests only metadata of objects."""

_LEGAL_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?").fullmatch
_LEGAL_OBJECT_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:]{0,252}").fullmatch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WatchSelection:
    """Which objects are watched, in all namespaces. The API server selects them."""

    api_version: str
    kind: str
    labels: str = ""
    """A label selector of one term: `key`, `!key` or `key=value`; empty: none."""
    fields: str = ""
    """A field selector; empty: none."""
    metadata_only: bool = False
    """Whether only metadata is watched, without spec, data and status."""

    @property
    def is_everything(self) -> bool:
        """Whether the selection includes all objects of its kind."""
        return not (self.labels or self.fields)

    def matches(self, document: Document) -> bool:
        """Whether an object matches the label selector; field selectors aren't checked."""
        labels = document["metadata"].get("labels") or {}
        key, has_value, value = self.labels.partition("=")
        if not key:
            return True
        if key.startswith("!"):
            return key[1:] not in labels
        return labels.get(key) == value if has_value else key in labels

    def __str__(self) -> str:
        """Return apiVersion, kind and selectors, for messages."""
        return " ".join(filter(None, (self.api_version, self.kind, self.labels, self.fields)))


class ApiCluster:
    """`Cluster` on the official client."""

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        self.kinds = RestMapper(client)
        """Finds the REST path of each kind."""
        self._threads = ThreadPoolExecutor(API_THREADS, thread_name_prefix="kubernetes-api")
        self._request_limits: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Limits concurrent requests, by namespace; a limit exists only while requests use it."""

    @classmethod
    def from_environment(cls) -> ApiCluster:
        """Connect with the pod's service account, or outside a cluster with KUBECONFIG; raises
        `ClusterError`."""
        try:
            if "KUBERNETES_SERVICE_HOST" in os.environ:
                kubernetes.config.load_incluster_config()  # type: ignore[no-untyped-call]
            else:
                kubernetes.config.load_kube_config()  # type: ignore[no-untyped-call]
        except kubernetes.config.ConfigException as error:
            raise ClusterError(f"no cluster: {error}: set KUBECONFIG, or run in a pod") from error
        configuration = kubernetes.client.Configuration.get_default_copy()
        configuration.connection_pool_maxsize = CONNECTIONS
        return cls(kubernetes.client.ApiClient(configuration))

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        """Read an object from the API server; None if the object or its kind doesn't exist. Raises
        `ClusterError`."""

        def ask() -> Document | None:
            """Send the request and return the object; None: it or its kind doesn't exist."""
            if not _is_legal_name(namespace, name):
                return None
            try:
                return _decoded_answer(
                    self._client_of_kind(api_version, kind).get(
                        name=name,
                        namespace=namespace,
                        serialize=False,
                        _request_timeout=API_REQUEST_TIMEOUT,
                    )
                )
            except (NotFoundError, ResourceNotFoundError):
                return None

        return await self._run_in_thread(namespace, f"get {kind} {namespace}/{name}", ask)

    async def list(
        self,
        api_version: str,
        kind: str,
        labels: Mapping[str, str] | None = None,
        namespace: str | None = None,
    ) -> list[Document]:
        """List the objects of a kind from the API server: those with all `labels`, in one
        namespace or in all (None). Raises `ClusterError`."""
        selector = ",".join(f"{key}={value}" for key, value in (labels or {}).items())

        def ask() -> list[Document]:
            """Send the request and return the listed objects."""
            answer = self._client_of_kind(api_version, kind).get(
                namespace=namespace,
                label_selector=selector,
                serialize=False,
                _request_timeout=API_REQUEST_TIMEOUT,
            )
            items: list[Document] = _decoded_answer(answer)["items"]
            return items

        return await self._run_in_thread("", f"list {kind}", ask)

    async def create(self, manifest: Document) -> bool:
        """Create an object; returns False if it exists already. Raises `ClusterError`."""
        metadata = manifest["metadata"]

        def ask() -> bool:
            """Send the request and return whether the object was created."""
            try:
                self._client_of_kind(manifest["apiVersion"], manifest["kind"]).create(
                    body=manifest,
                    namespace=metadata.get("namespace"),
                    field_manager=MANAGER,
                    _request_timeout=API_REQUEST_TIMEOUT,
                )
            except ConflictError:
                return False
            return True

        action = f"create {manifest['kind']} {metadata['name']}"
        return await self._run_in_thread(metadata.get("namespace", ""), action, ask)

    async def apply(self, manifest: Document) -> Document:
        """Create or update an object by server-side apply, overriding other field managers, and
        return it. Raises `ClusterError`."""
        metadata = manifest["metadata"]

        def ask() -> Document:
            """Send the request and return the stored object."""
            return _decoded_answer(
                self._client_of_kind(manifest["apiVersion"], manifest["kind"]).server_side_apply(
                    body=manifest,
                    name=metadata["name"],
                    namespace=metadata.get("namespace"),
                    field_manager=MANAGER,
                    force_conflicts=True,
                    serialize=False,
                    _request_timeout=API_REQUEST_TIMEOUT,
                )
            )

        action = f"apply {manifest['kind']} {metadata['name']}"
        return await self._run_in_thread(metadata.get("namespace", ""), action, ask)

    async def write_status(self, document: Document, status: Document) -> None:
        """Merge `status` into the object's stored status, if it exists. Raises `ClusterError`."""
        await self.patch_status(document, status)

    async def patch_status(self, document: Document, status: Document) -> Document | None:
        """Merge `status` into the object's stored status. Returns the stored object; None: it is
        gone. Raises `ClusterError`."""

        def ask() -> Document | None:
            """Send the request and return the stored object; None: it is gone."""
            kind = self._client_of_kind(document["apiVersion"], document["kind"])
            return self._patch(kind.status, document, {"status": status})

        namespace = document["metadata"]["namespace"]
        return await self._run_in_thread(
            namespace, f"write the status of {_object_name(document)}", ask
        )

    async def patch_metadata(self, document: Document, metadata: Document) -> Document | None:
        """Merge `metadata` into the metadata of the object that was read as `document`. Returns the
        stored object; None: it is gone. Raises `Conflict` if it has changed, and `ClusterError`."""
        version = {"resourceVersion": document["metadata"].get("resourceVersion")}

        def ask() -> Document | None:
            """Send the request and return the stored object; None: it is gone."""
            kind = self._client_of_kind(document["apiVersion"], document["kind"])
            return self._patch(kind, document, {"metadata": {**version, **metadata}})

        namespace = document["metadata"]["namespace"]
        return await self._run_in_thread(
            namespace, f"write the metadata of {_object_name(document)}", ask
        )

    async def merge_cluster_scoped(self, manifest: Document) -> None:
        """Create a cluster-scoped object, or merge the fields of `manifest` into the existing one.
        A list replaces the stored list, even if somebody else wrote it. Raises `ClusterError`."""

        def ask() -> None:
            """Patch the object, or create it if it doesn't exist."""
            kind = self._client_of_kind(manifest["apiVersion"], manifest["kind"])
            try:
                kind.patch(
                    body=manifest,
                    name=manifest["metadata"]["name"],
                    content_type="application/merge-patch+json",
                    field_manager=MANAGER,
                    _request_timeout=API_REQUEST_TIMEOUT,
                )
            except NotFoundError:
                kind.create(
                    body=manifest, field_manager=MANAGER, _request_timeout=API_REQUEST_TIMEOUT
                )

        await self._run_in_thread(
            "", f"write {manifest['kind']} {manifest['metadata']['name']}", ask
        )

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        """Delete an object, if it exists; a Job stays until its pods have ended. Raises
        `ClusterError`."""

        def ask() -> None:
            """Send the request; a missing object or kind counts as deleted."""
            try:
                self._client_of_kind(api_version, kind).delete(
                    name=name,
                    namespace=namespace,
                    # Without this, a Job's pods would go on after the Job is deleted.
                    propagation_policy="Foreground" if kind == "Job" else None,
                    _request_timeout=API_REQUEST_TIMEOUT,
                )
            except (NotFoundError, ResourceNotFoundError):
                return

        await self._run_in_thread(namespace, f"delete {kind} {namespace}/{name}", ask)

    def list_page(self, selection: WatchSelection, after: str | None) -> Document:
        """Return one page of a list, `PAGE_SIZE` objects; blocks. `after` is the `continue` token
        of the previous page, None for the first. Raises the client's errors."""
        return _decoded_answer(
            self._client_of_kind(selection.api_version, selection.kind).get(
                serialize=False,
                limit=PAGE_SIZE,
                _continue=after,
                _request_timeout=API_REQUEST_TIMEOUT,
                **_selection_options(selection, "PartialObjectMetadataList"),
            )
        )

    def open_watch(
        self, selection: WatchSelection, version: str, seconds: int, silence: float
    ) -> Any:
        """Open a watch that starts after the resourceVersion `version`; blocks. Returns a `urllib3`
        response with a line of JSON for each event, which the API server ends after `seconds`; a
        read fails after `silence` seconds without a byte. Raises the client's errors."""
        return self._client_of_kind(selection.api_version, selection.kind).get(
            serialize=False,
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=seconds,
            _request_timeout=(API_CONNECT_TIMEOUT, silence),
            **_selection_options(selection, "PartialObjectMetadata"),
        )

    def close(self) -> None:
        """Stop the threads, and cancel waiting requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _patch(self, resource_api: Any, document: Document, body: Document) -> Document | None:
        """Send a JSON merge patch and return the stored object; None if it doesn't exist."""
        metadata = document["metadata"]
        try:
            return _decoded_answer(
                resource_api.patch(
                    body=body,
                    name=metadata["name"],
                    namespace=metadata["namespace"],
                    content_type="application/merge-patch+json",
                    field_manager=MANAGER,
                    serialize=False,
                    _request_timeout=API_REQUEST_TIMEOUT,
                )
            )
        except NotFoundError:
            return None

    def _client_of_kind(self, api_version: str, kind: str) -> Any:
        """Return the client's API for a kind. Raises `ResourceNotFoundError` if the API server has
        none."""
        resource_api = self.kinds.find(api_version, kind, API_REQUEST_TIMEOUT)
        if resource_api is None:
            raise ResourceNotFoundError(f"there is no kind {kind:.100} in {api_version:.300}")
        return resource_api

    async def _run_in_thread(self, namespace: str, action: str, call: Callable[[], T]) -> T:
        """Run a blocking request in a thread, within the limit of concurrent requests for its
        namespace (empty: for lists and cluster-scoped objects). Raises `NotAllowed`, `Rejected`,
        `Conflict` or another `ClusterError`, which names the request by `action`."""
        request_limit = self._request_limits.setdefault(
            namespace, asyncio.Semaphore(MAX_REQUESTS_PER_NAMESPACE)
        )
        try:
            async with request_limit:
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except ForbiddenError as error:
            raise NotAllowed(f"can't {action}: {_server_message(error)}") from error
        except (BadRequestError, UnprocessibleEntityError) as error:
            raise Rejected(f"can't {action}: {_server_message(error)}") from error
        except ConflictError as error:
            raise Conflict(f"can't {action}: {_server_message(error)}") from error
        except DynamicApiError as error:
            raise ClusterError(f"can't {action}: {_server_message(error)}") from error
        except (ApiException, HTTPError, OSError, ValueError, ResourceNotFoundError) as error:
            raise ClusterError(f"can't {action}: {error}") from error


def _selection_options(selection: WatchSelection, answer_kind: str) -> dict[str, Any]:
    """Return the options of a list or watch request for a selection. `answer_kind` is the kind that
    the API server answers with if only metadata is selected."""
    return {
        "label_selector": selection.labels or None,
        "field_selector": selection.fields or None,
        "header_params": {"Accept": f"application/json;as={answer_kind}{_METADATA_FORM}"}
        if selection.metadata_only
        else {},
    }


def _decoded_answer(answer: Any) -> Document:
    """Return the decoded JSON of a response."""
    document: Document = decode_json(answer.data)
    return document


def _object_name(document: Document) -> str:
    """Return kind, namespace and name of an object, for messages."""
    metadata = document["metadata"]
    return f"{document['kind']} {metadata['namespace']}/{metadata['name']}"


def _is_legal_name(namespace: str, name: str) -> bool:
    """Whether Kubernetes allows namespace and name; others could change the request's path."""
    return _LEGAL_NAMESPACE(namespace) is not None and _LEGAL_OBJECT_NAME(name) is not None


def _server_message(error: DynamicApiError) -> str:
    """Return the message in the API server's answer; if it has none, the error with its headers."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, TypeError, KeyError):
        return str(error)
