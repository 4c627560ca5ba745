"""Registration: registers the operator's webhooks at the API server, by the newest running version.

    replica    serves -> registers all webhooks that it declares -> again every
               `REGISTER_INTERVAL`, unless a replica of a later version runs

kopf's own registration isn't used: an ending replica would overwrite its successor's webhooks with
its own, and so remove those of a component that was just switched on.

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

REGISTER_INTERVAL: Final = 10.0
"""Seconds between two registrations. Most change nothing; they undo changes by others, such as an
older operator that registers by kopf."""

REGISTRATION: Final = "admissionregistration.k8s.io/v1"
"""apiVersion of the configuration objects."""
CONFIGURATION_KINDS: Final[Mapping[str, str]] = {
    "mutating": "MutatingWebhookConfiguration",
    "validating": "ValidatingWebhookConfiguration",
}
"""Kind of the configuration object, by kopf's word for a handler's purpose."""
OPERATOR_LABELS: Final = {
    "app.kubernetes.io/name": "knafka",
    "app.kubernetes.io/component": "operator",
}
"""Labels of all replicas' pods."""
TEMPLATE_HASH_LABEL: Final = "pod-template-hash"
"""Label of pods whose value Kubernetes sets to a different value for each version of a
Deployment."""
WEBHOOK_TIMEOUT: Final = 30
"""Seconds for a webhook's answer: the most that Kubernetes allows."""


def declared_webhooks(
    registry: kopf.OperatorRegistry, name: str, namespace: str, authority: str
) -> Mapping[str, Sequence[Document]]:
    """Return the webhooks of all kopf handlers in `registry`, by kind of their configuration
    object, in the form that such an object has them.

    The webhooks' names end in `name`. The API server calls the operator's Service in `namespace`;
    `authority` is the PEM of the CA that signed the server's certificate.
    """
    webhooks_by_kind: dict[str, list[Document]] = {
        kind: [] for kind in CONFIGURATION_KINDS.values()
    }
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
        webhooks_by_kind[CONFIGURATION_KINDS[handler.reason.value]].append(
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
                "timeoutSeconds": WEBHOOK_TIMEOUT,
                "admissionReviewVersions": ["v1"],
            }
        )
    return webhooks_by_kind


def is_newest(uid: str, pods: Iterable[Document]) -> bool:
    """Whether the pod with this UID runs the newest version of the operator; `pods` are all pods of
    the operator.

    A version is as old as its oldest pod that isn't ending, so that a replaced pod doesn't make an
    old version look new. Ending pods don't count: False if the pod with this UID is ending. True if
    no pod has this UID, as outside a cluster.
    """
    started_at: dict[str, datetime] = {}
    own_version = None
    for pod in pods:
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        version = (metadata.get("labels") or {}).get(TEMPLATE_HASH_LABEL, "")
        is_ending = "deletionTimestamp" in metadata or phase in ("Succeeded", "Failed")
        if metadata.get("uid") == uid:
            if is_ending:
                return False  # an ending replica registers nothing
            own_version = version
        elif is_ending:
            continue
        created = datetime.fromisoformat(metadata["creationTimestamp"])
        # The earliest creation of the version's pods.
        started_at[version] = min(created, started_at.get(version, created))
    return own_version is None or started_at[own_version] == max(started_at.values())


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
        """`name` is the configurations' name, `uid` the UID of our pod in `namespace`; `webhooks`
        has the webhooks by kind of their configuration (`declared_webhooks`)."""
        self._cluster = cluster
        self._namespace = namespace
        self._uid = uid
        self._name = name
        self._webhooks = webhooks

    async def register(self) -> None:
        """Write the webhook configurations at the API server if this replica runs the newest
        version of the operator; else do nothing. Raises `ClusterError`."""
        pods = await self._cluster.list(CORE, "Pod", OPERATOR_LABELS, self._namespace)
        if is_newest(self._uid, pods):
            for kind, webhooks in self._webhooks.items():
                manifest = {
                    "apiVersion": REGISTRATION,
                    "kind": kind,
                    "metadata": {"name": self._name},
                    "webhooks": list(webhooks),
                }
                await self._cluster.merge_cluster_scoped(manifest)
