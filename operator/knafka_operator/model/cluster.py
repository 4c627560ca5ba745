"""Cluster: the part of the Kubernetes API that reconciling needs, as one Protocol.

Implementations: `kube_api.cluster` (the API server), `kube_api.cache` in front of it, and other
stores (tests, the local mode). Documents are plain dictionaries, as decoded JSON; neither the
caller nor the store changes one after passing it.

Not here: decisions, and retries: a failed reconciliation is repeated as a whole.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from knafka.core.errors import KnafkaError

Document: TypeAlias = Mapping[str, Any]
"""A Kubernetes object as decoded JSON."""


def status_annotations(document: Document) -> Mapping[str, str]:
    """Return `status.annotations` of an object; empty if there are none."""
    return (document.get("status") or {}).get("annotations") or {}


class ClusterError(KnafkaError):
    """A request failed: the API server refused it, or did not answer."""


class Rejected(ClusterError):
    """The object is invalid by its schema, or was refused by a webhook such as Knative's."""


class Conflict(ClusterError):
    """The object has changed since the version in the request."""


class NotAllowed(ClusterError):
    """The operator's roles don't allow the request; retrying is useless until somebody grants
    it."""


class Cluster(Protocol):
    """Reads and writes Kubernetes objects. Every method raises `ClusterError`."""

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        """Return an object; None: the object, or its kind, doesn't exist."""
        ...

    async def list(
        self,
        api_version: str,
        kind: str,
        labels: Mapping[str, str] | None = None,
        namespace: str | None = None,
    ) -> list[Document]:
        """Return all objects of a kind with these labels (None: any), in one namespace or in all
        (None)."""
        ...

    async def create(self, manifest: Document) -> bool:
        """Create an object; returns False if one of its name exists already."""
        ...

    async def apply(self, manifest: Document) -> Document:
        """Apply a manifest (server-side apply, with one field manager); returns the stored object.

        Raises `Conflict` if the manifest has a `resourceVersion`, and the stored object another.
        """
        ...

    async def write_status(self, document: Document, status: Document) -> None:
        """Merge `status` into the stored status of an object; does nothing if the object is
        gone."""
        ...

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        """Delete an object; does nothing if it doesn't exist."""
        ...


def decode_secret(secret: Document) -> Mapping[str, str]:
    """Return a Secret's data, decoded from base64 to text without surrounding white space; bytes
    that are not UTF-8 become replacement characters. Raises `ValueError` for invalid base64."""
    return {
        key: base64.b64decode(value).decode("utf-8", "replace").strip()
        for key, value in (secret.get("data") or {}).items()
    }
