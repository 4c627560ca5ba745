"""Selections: the objects that the controller watches, and whether with content or only
metadata."""

from __future__ import annotations

from typing import Final

from knafka_operator.archives import operation_model as operations
from knafka_operator.archives.manifests import BATCH_VERSION, COORDINATION
from knafka_operator.archives.model import ARCHIVE_LABEL
from knafka_operator.functions import services
from knafka_operator.kube_api.cluster import WatchSelection
from knafka_operator.model.event_policies import POLICIES_VERSION, POLICY
from knafka_operator.model.resources import CORE, EVENTING, RBAC, SERVING
from knafka_operator.model.sensors import KNAFKA, SENSOR

# Kinds that the operator reconciles.
BROKERS: Final = WatchSelection(EVENTING, "Broker")
TRIGGERS: Final = WatchSelection(EVENTING, "Trigger")
SENSORS: Final = WatchSelection(KNAFKA, SENSOR)
OPERATIONS: Final = tuple(WatchSelection(KNAFKA, kind) for kind in operations.OPERATIONS)
JOBS: Final = WatchSelection(BATCH_VERSION, "Job", labels=ARCHIVE_LABEL)
"""Jobs of DeadLetterArchives and operations."""
FUNCTIONS: Final = WatchSelection(SERVING, "Service", labels=services.ROLE_LABEL)
"""Knative Services of functions."""
SUBSCRIBERS: Final = WatchSelection(
    SERVING, "Service", labels=f"!{services.ROLE_LABEL}", metadata_only=True
)
"""All other Knative Services, which may be subscribers."""
PODS: Final = WatchSelection(CORE, "Pod", labels=services.ROLE_LABEL, metadata_only=True)
"""Pods of functions. A starting receiver announces an event; reconciliations wait for ending
dispatchers of older Revisions."""
NAMESPACES: Final = WatchSelection(CORE, "Namespace", metadata_only=True)
"""Watched because Kubernetes deletes the pods of a deleted namespace first, and our objects half a
minute later."""
CONFIG_MAPS: Final = WatchSelection(CORE, "ConfigMap", metadata_only=True)
"""All ConfigMaps, as a Broker may name any."""
SECRETS: Final = WatchSelection(
    CORE,
    "Secret",
    fields=",".join(
        f"type!={secret_type}"
        for secret_type in (
            "helm.sh/release.v1",
            "kubernetes.io/service-account-token",
            "kubernetes.io/dockerconfigjson",
            "bootstrap.kubernetes.io/token",
        )
    ),
    metadata_only=True,
)
"""Secrets that may hold credentials for Kafka."""
DEFINITIONS: Final = WatchSelection(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", metadata_only=True
)
POLICIES: Final = WatchSelection(POLICIES_VERSION, POLICY)
"""Watched only if Knative Eventing, which defines them, is installed."""
UNWATCHED: Final = frozenset(
    {
        (COORDINATION, "Lease"),
        (CORE, "ServiceAccount"),
        (RBAC, "Role"),
        (RBAC, "RoleBinding"),
        (SERVING, "Revision"),
    }
)
"""Kinds (API version, kind) that reconciliations read and never watch: for archives, for Triggers
that send tokens, and for functions that aren't Ready (their Service changes with the Revision).
Leases change all the time, and the operator's role can't list any of these kinds."""
OTHER_SELECTIONS: Final = (
    FUNCTIONS,
    SUBSCRIBERS,
    PODS,
    NAMESPACES,
    CONFIG_MAPS,
    SECRETS,
    DEFINITIONS,
)
"""Selections that are always watched, besides those of the reconciled kinds."""
