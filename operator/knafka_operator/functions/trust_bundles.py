"""Trust bundles: copies the installation's CA bundles to each namespace with a dispatcher, before
the dispatcher is created.

A changed bundle is copied again to all those namespaces; kubelet updates the pods' volumes, so
nothing is rolled. Belongs to one event loop; one instance serves Brokers and channels.

Not here: the content of a copy (`functions.trust_bundle_manifests`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from knafka_operator.decisions.status import NotReady
from knafka_operator.functions import trust_bundle_manifests
from knafka_operator.functions.services import TRUST_BUNDLE, mounts_trust_bundle
from knafka_operator.functions.trust_bundle_manifests import Bundle
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import Cluster, ClusterError, Document, NotAllowed, Rejected
from knafka_operator.model.resources import CORE

log = logging.getLogger(__name__)

BUNDLE_CHECK_INTERVAL: Final = 300.0
"""Seconds after which the bundles are read again without an event, as a watch may miss one."""
_MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by", "knafka-operator"
"""Key and value of a label that all copies have."""
_COMPONENT: Final = "operator/deploy/trust-bundles"
"""The manifests whose role allows to write copies, for messages."""


class TrustBundleCopies:
    """Keeps copies of the installation's trust bundles; does nothing without
    `Settings.trust_bundles`."""

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        """Nothing is read before the first call of `ensure_copy`."""
        self._source = settings.trust_bundles
        """The namespace of the installation's bundles; empty: nothing is copied."""
        self._cluster = cluster
        self._bundle: Bundle | None = None
        """The merged bundle as last read; None: not read yet."""
        self._names: frozenset[str] = frozenset()
        """Names of the ConfigMaps that are merged in `_bundle`."""
        self._copied: dict[str, str] = {}
        """By namespace: the PEM text of its copy."""
        self._changed = asyncio.Event()
        """Set when the bundles or a copy may have changed; wakes `run`."""
        self._lock = asyncio.Lock()
        """Held while copies are written, so that an older bundle never replaces a newer one."""

    def on_config_map(self, document: Document) -> None:
        """Handle a ConfigMap that has changed or was deleted: request an update of the copies if it
        is a bundle or a copy."""
        namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
        is_source = namespace == self._source and (
            name in self._names or trust_bundle_manifests.is_bundle(document)
        )
        if is_source or (name == TRUST_BUNDLE and namespace in self._copied):
            self._changed.set()

    def reread_soon(self) -> None:
        """Request that the bundles are read again, as a change may have been missed."""
        self._changed.set()

    async def ensure_copy(self, manifest: Mapping[str, Any]) -> None:
        """Create or update the copy in the namespace of a function's Service, `manifest`; does
        nothing if the function mounts none. Raises `NotReady` and `ClusterError`."""
        if not self._source or not mounts_trust_bundle(manifest):
            return
        async with self._lock:
            if self._bundle is None:
                await self._read()
            assert self._bundle is not None
            namespace = manifest["metadata"]["namespace"]
            if self._copied.get(namespace) != self._bundle.pem:
                await self._copy(namespace, self._bundle)

    async def refresh_copies(self) -> None:
        """Read the bundles and update every copy. A copy that can't be written is logged and
        forgotten. Raises `ClusterError`."""
        async with self._lock:
            await self._read()
            assert self._bundle is not None
            for namespace in list(self._copied):
                try:
                    await self._copy(namespace, self._bundle)
                except NotReady as error:
                    del self._copied[namespace]  # the next dispatcher's owner gets the error
                    log.warning("trust bundles: %s", error)

    async def run(self) -> None:
        """Update the copies until cancelled: whenever a bundle or a copy has changed, and every
        `BUNDLE_CHECK_INTERVAL` seconds. A `ClusterError` is logged, and the update is tried again
        after a second."""
        while True:
            try:
                async with asyncio.timeout(BUNDLE_CHECK_INTERVAL):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            if self._copied:
                try:
                    await self.refresh_copies()
                except ClusterError as error:
                    log.warning("trust bundles: %s", error)
                    self._changed.set()
                    await asyncio.sleep(1.0)

    async def _read(self) -> None:
        """Read the ConfigMaps with trusted certificates and merge them into `_bundle`. Logs their
        problems if these have changed since the last reading. Raises `ClusterError`."""
        labels = {trust_bundle_manifests.TRUST_BUNDLE_LABEL: "true"}
        config_maps = await self._cluster.list(CORE, "ConfigMap", labels, self._source)
        bundle = trust_bundle_manifests.merge_certificates(config_maps)
        if self._bundle is None or bundle.problems != self._bundle.problems:
            for name, problem in bundle.problems.items():
                log.warning("trust bundle %s/%s: %s", self._source, name, problem)
        self._bundle = bundle
        self._names = frozenset(config_map["metadata"]["name"] for config_map in config_maps)

    async def _copy(self, namespace: str, bundle: Bundle) -> None:
        """Write the copy of `bundle` in a namespace if it is outdated. Raises `NotReady` if the API
        server refuses it, or if Knafka didn't create the existing ConfigMap, and `ClusterError`."""
        desired_copy = trust_bundle_manifests.bundle_config_map(namespace, bundle)
        existing_copy = await self._cluster.get(CORE, "ConfigMap", namespace, TRUST_BUNDLE)
        if existing_copy is not None:
            label, managed_by = _MANAGED_BY_LABEL
            if (existing_copy["metadata"].get("labels") or {}).get(label) != managed_by:
                raise NotReady(
                    "TrustBundleNotOurs",
                    f"ConfigMap {namespace}/{TRUST_BUNDLE} was not made by Knafka, whose "
                    "dispatchers mount one of that name: delete or rename it",
                )
        if existing_copy is None or existing_copy.get("data") != desired_copy["data"]:
            try:
                await self._cluster.apply(desired_copy)
            except (Rejected, NotAllowed) as error:
                raise NotReady(
                    "TrustBundleNotCopied",
                    f"the trust bundles can't be copied to ConfigMap {namespace}/{TRUST_BUNDLE}: "
                    f"apply {_COMPONENT}, whose role allows it ({error})",
                ) from error
        self._copied[namespace] = bundle.pem
