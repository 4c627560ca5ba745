"""Registration: which webhooks the API server asks, as the newest version of the operator declares.

    replica    serves -> registers all that it declares -> again every `REGISTER_EVERY`
               unless replicas of a version that came later run: those know what there is now

kopf would write what a replica declares once more as that ends, over what its successor declares:
a component that was switched on had its webhooks until the last replica without it had gone.

Not here: serving them (`server`), and what they answer (`handlers`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import kopf

from knafka_operator.kube_api.cluster import ApiCluster
from knafka_operator.model.cluster import Document
from knafka_operator.model.resources import CORE
from knafka_operator.webhooks.server import SERVICE

REGISTER_EVERY: Final = 10.0
"""Seconds between two writes, which mostly change nothing: whatever else wrote there, such as a
version that still has kopf register them, is mended by then."""

REGISTRATION: Final = "admissionregistration.k8s.io/v1"
KINDS: Final[Mapping[str, str]] = {
    "mutating": "MutatingWebhookConfiguration",
    "validating": "ValidatingWebhookConfiguration",
}
"""Kind of the configuration object, by kopf's word for a handler's purpose."""
OPERATOR: Final = {
    "app.kubernetes.io/name": "knafka",
    "app.kubernetes.io/component": "operator",
}
"""Labels of all replicas' pods."""
VERSION: Final = "pod-template-hash"
"""Label that Kubernetes puts on pods: another value for each version of a Deployment."""
TIMEOUT: Final = 30
"""Seconds for an answer: the most that Kubernetes allows."""


def declared_webhooks(
    registry: kopf.OperatorRegistry, name: str, namespace: str, authority: str
) -> Mapping[str, Sequence[Document]]:
    """The webhooks of all kopf handlers, by kind of their configuration object.

    `name` is the suffix of their names; `authority` is the PEM of the CA of the server's
    certificate.
    """
    found: dict[str, list[Document]] = {kind: [] for kind in KINDS.values()}
    for handler in registry._webhooks.get_all_handlers():
        selector = handler.selector
        assert handler.reason is not None
        assert selector is not None
        rule = {
            "apiGroups": [selector.group],
            "apiVersions": [selector.version],
            "resources": [selector.any_name],
            "operations": list(handler.operations or ()),
            "scope": "*",
        }
        service = {"name": SERVICE, "namespace": namespace, "port": 443, "path": f"/{handler.id}"}
        found[KINDS[handler.reason.value]].append(
            {
                "name": f"{handler.id}.{name}",
                "sideEffects": "None",
                "failurePolicy": "Ignore" if handler.ignore_failures else "Fail",
                "matchPolicy": "Equivalent",
                "rules": [rule],
                "clientConfig": {
                    "service": service,
                    "caBundle": base64.b64encode(authority.encode()).decode(),
                },
                "timeoutSeconds": TIMEOUT,
                "admissionReviewVersions": ["v1"],
            }
        )
    return found


def is_newest(uid: str, pods: Iterable[Document]) -> bool:
    """Whether the pod with this UID runs the newest version of the operator.

    A version came when the first of its pods that still run did: one of an older version may be
    made anew later. One that ends is of none. Outside of a cluster, where no pod is ours, there is
    no other.
    """
    began: dict[str, datetime] = {}
    mine = None
    for pod in pods:
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        version = (metadata.get("labels") or {}).get(VERSION, "")
        ends = "deletionTimestamp" in metadata or phase in ("Succeeded", "Failed")
        if metadata.get("uid") == uid:
            if ends:
                return False  # whoever removes Knafka removes what is registered
            mine = version
        elif ends:
            continue
        created = datetime.fromisoformat(metadata["creationTimestamp"])
        began[version] = min(created, began.get(version, created))
    return mine is None or began[mine] == max(began.values())


class Registration:
    """Registers the webhooks of one replica at the API server."""

    def __init__(
        self,
        cluster: ApiCluster,
        namespace: str,
        uid: str,
        name: str,
        webhooks: Mapping[str, Sequence[Document]],
    ) -> None:
        """`name` is the configurations' name, `uid` is the UID of our pod."""
        self._cluster = cluster
        self._namespace = namespace
        self._uid = uid
        self._name = name
        self._webhooks = webhooks

    async def register(self) -> None:
        """Write the configurations, if this replica has the newest version; raises
        `ClusterError`."""
        pods = await self._cluster.list(CORE, "Pod", OPERATOR, self._namespace)
        if is_newest(self._uid, pods):
            for kind, webhooks in self._webhooks.items():
                manifest = {
                    "apiVersion": REGISTRATION,
                    "kind": kind,
                    "metadata": {"name": self._name},
                    "webhooks": list(webhooks),
                }
                await self._cluster.merge_cluster_scoped(manifest)
