"""Selections: what the controller follows, and what it reads of any object."""

from __future__ import annotations

from typing import Final

from knafka_operator.archives import operation_model as operations
from knafka_operator.archives.manifests import BATCH, COORDINATION
from knafka_operator.archives.model import ARCHIVE_LABEL
from knafka_operator.functions import services
from knafka_operator.kube_api.cluster import WatchSelection
from knafka_operator.model.event_policies import POLICIES_VERSION, POLICY
from knafka_operator.model.resources import CORE, EVENTING, RBAC, SERVING
from knafka_operator.model.sensors import KNAFKA, SENSOR

BROKERS: Final = WatchSelection(EVENTING, "Broker")
TRIGGERS: Final = WatchSelection(EVENTING, "Trigger")
SENSORS: Final = WatchSelection(KNAFKA, SENSOR)
OPERATIONS: Final = tuple(WatchSelection(KNAFKA, each) for each in operations.OPERATIONS)
JOBS: Final = WatchSelection(BATCH, "Job", labels=ARCHIVE_LABEL)
"""Of DeadLetterArchives and operations."""
FUNCTIONS: Final = WatchSelection(SERVING, "Service", labels=services.ROLE_LABEL)
"""Our own Knative Services."""
SUBSCRIBERS: Final = WatchSelection(
    SERVING, "Service", labels=f"!{services.ROLE_LABEL}", metadata_only=True
)
"""Everybody else's."""
PODS: Final = WatchSelection(CORE, "Pod", labels=services.ROLE_LABEL, metadata_only=True)
"""Of our functions. A receiver that starts means that an event is on its way; a dispatcher of an
older Revision that ends is waited for."""
NAMESPACES: Final = WatchSelection(CORE, "Namespace", metadata_only=True)
"""Of one that is deleted, Kubernetes deletes the pods first and our objects half a minute later."""
CONFIG_MAPS: Final = WatchSelection(CORE, "ConfigMap", metadata_only=True)
SECRETS: Final = WatchSelection(
    CORE,
    "Secret",
    fields=",".join(
        f"type!={each}"
        for each in (
            "helm.sh/release.v1",
            "kubernetes.io/service-account-token",
            "kubernetes.io/dockerconfigjson",
            "bootstrap.kubernetes.io/token",
        )
    ),
    metadata_only=True,
)
"""Those that may hold credentials for Kafka."""
DEFINITIONS: Final = WatchSelection(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", metadata_only=True
)
POLICIES: Final = WatchSelection(POLICIES_VERSION, POLICY)
"""Where Knative Eventing is, which has them."""
UNWATCHED: Final = frozenset(
    {
        (COORDINATION, "Lease"),
        (CORE, "ServiceAccount"),
        (RBAC, "Role"),
        (RBAC, "RoleBinding"),
        (SERVING, "Revision"),
    }
)
"""apiVersion and kind of what is asked for and nobody has to hear of, by an archive, for a Trigger
that shows tokens, or for a function that isn't Ready, whose Service changes with its Revision. All
of a cluster's Leases change all the time, and our role lists none of these."""
BESIDE: Final = (FUNCTIONS, SUBSCRIBERS, PODS, NAMESPACES, CONFIG_MAPS, SECRETS, DEFINITIONS)
"""What is followed beside the kinds that are reconciled."""
