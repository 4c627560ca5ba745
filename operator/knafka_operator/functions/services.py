"""Services: builds the Knative Service of any function, from its `FunctionService`. Pure.

A Secret is mounted as files. The owner is in the same namespace, so that Kubernetes deletes the
Service with it.

Not here: receivers (`receiver_services`), dispatchers (`dispatcher_services`), and applying
Services (`functions.applying`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from knafka.core.addresses import LOCAL_ADDRESSES
from knafka.core.tokens.caller_tokens import CALLERS, SCRAPERS, verifiers_of
from knafka.settings import API_FOLDER, LOG_FORMAT, OIDC_URL, PROFILING, TLS, TRUST_BUNDLES
from knafka_operator.installation.settings import Settings
from knafka_operator.installation.tracing import Owner
from knafka_operator.model.family import Family
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import SERVING, Resource

Manifest = dict[str, Any]

SECRET_PATH: Final = "/var/run/secrets/knafka/kafka"
"""Folder where the Secret for Kafka is mounted."""

# Labels of functions' objects, and the values of `ROLE_LABEL`.
ROLE_LABEL: Final = "knafka.dev/role"
BROKER_LABEL: Final = "knafka.dev/broker"
TRIGGER_LABEL: Final = "knafka.dev/trigger"
RECEIVER_ROLE: Final = "receiver"
DISPATCHER_ROLE: Final = "dispatcher"
REPLAYER_ROLE: Final = "replayer"
SHARD_ROLE: Final = "shard"
SHARD_NUMBER_LABEL: Final = "knafka.dev/shard"
OWNER_LABEL: Final = "knafka.dev/owner-uid"
"""Label with the UID of an owner in another namespace, which owner references can't name."""

DECLARED_DIGEST: Final = "knafka.dev/declared"
"""Annotation of a Service: the digest of its owner's declaration beside the contract (`rolls`)."""

SECRET_VERSION: Final = "knafka.dev/secret-version"
"""Annotation of a template: the Secret's version. A changed Secret creates a new Revision, since
processes read it when they start."""

FULL_DUPLEX: Final[Mapping[str, str]] = {"features.knative.dev/http-full-duplex": "Enabled"}
"""Annotation that allows functions to answer before they have read the whole request; without it,
Knative's proxy sometimes truncates such answers."""

RECEIVER_VARIABLE: Final = "KNAFKA_RECEIVER"
"""Environment variable with a receiver's Kafka and contract topic, as JSON."""
TIMEOUT_SECONDS: Final = 70
"""The `timeoutSeconds` of a function's Service, and so its pods' grace period. When a namespace is
deleted, Kubernetes checks for remaining pods, checks again after half of their longest grace
period, and deletes other objects only when there are none. A pod's end takes 31 to 33 s,
30 of them Knative's own wait, and with 70 s the second check comes after 36 s (with 110 s after
56 s, with 600 s after five minutes). A drain's first request stays 45 s below this, as a pod's
start may take that long (`holds.FIRST_BUDGET`)."""
MAX_TIMEOUT_SECONDS: Final = 600
"""The largest `timeoutSeconds` that Knative allows by default."""

STOP_SECONDS: Final = 40
"""Seconds of the grace period before the function gets SIGTERM: Knative stops it 30 s after the
last request, which may arrive while not all proxies know of the pod's end. The function can use the
rest."""
GRACE_PERIOD: Final = TIMEOUT_SECONDS - STOP_SECONDS
"""Seconds that a function has from SIGTERM to its end."""

API_SERVER: Final = "https://kubernetes.default.svc"
"""The API server's URL in pods, with a host name that its certificate contains."""
_API_CREDENTIALS: Final[Mapping[str, Any]] = {
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {
                "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
        ]
    },
}
"""A volume with the pod's own token. A receiver's token is of its namespace's default account:
every account may read the issuer's keys (Kubernetes' role system:service-account-issuer-discovery),
and we give this one no other rights. A dispatcher's token is of an account that may request tokens
of its Triggers' accounts (`service_accounts`)."""
OIDC_DIGEST_INPUT: Final[Mapping[str, str]] = {"oidc": "enabled"}
"""Part of the declared digest, so that all receivers and shards roll at once when OIDC is switched
on: without the keys a receiver can't accept events with tokens, and without an account a shard
can't send tokens."""

TRUST_BUNDLE: Final = "knafka-trust-bundle"
"""Name of the ConfigMap with trusted certificates that dispatchers mount."""
TRUST_PATH: Final = "/var/run/secrets/knafka/trust"
TLS_PATH: Final = "/var/run/secrets/knafka/tls"
"""Folders where that ConfigMap, and the Secret of a function's TLS certificate, are mounted."""
_TRUST_VOLUME: Final[Mapping[str, Any]] = {
    # Optional, so that a starting pod needn't wait for the ConfigMap, which may be added to the
    # volume later.
    "configMap": {"name": TRUST_BUNDLE, "optional": True},
}

LIVENESS_PROBE: Final[Mapping[str, Any]] = {
    "httpGet": {"path": "/health/liveness"},
    # Long timeouts: pods on a busy node may need 10 s to answer, and restarts add to its load.
    "periodSeconds": 20,
    "timeoutSeconds": 20,
    "failureThreshold": 6,
}

KNATIVE_AUTOSCALING: Final = "autoscaling.knative.dev/"
MAX_SCALE: Final = "autoscaling.knative.dev/max-scale"
MIN_SCALE: Final = "autoscaling.knative.dev/min-scale"


def function_namespace(family: Family, owner: Identity, settings: Settings) -> str:
    """Return the namespace in which the functions of `owner`, an object of this family, run
    (CHN-22)."""
    return settings.namespace if family.centralized else owner.namespace


def one_pod_per_drain_annotations(
    min_pods: int, max_pods: int, settings: Settings
) -> Mapping[str, str]:
    """Return Knative's autoscaling annotations by which each drain (a pod's lease to deliver, kept
    going by one open request) has a pod of its own, with `min_pods` to `max_pods` pods in all.
    Knative removes pods that aren't needed any more after 10 s, in place of its default minute.
    """
    scaling = {
        "metric": "concurrency",
        "target": "1",
        "target-utilization-percentage": "100",
        "target-burst-capacity": "-1",  # all requests pass the activator: it knows the free pods
        "window": "10s",
        "scale-to-zero-pod-retention-period": "0s",
        "min-scale": str(min_pods),
        "max-scale": str(max_pods),
        "initial-scale": str(settings.initial_scale),
    }
    return {KNATIVE_AUTOSCALING + key: value for key, value in scaling.items()}


def service_url(name: str, namespace: str, settings: Settings) -> str:
    """Return the cluster-internal URL of a function."""
    return f"http://{service_host(name, namespace, settings)}"


def service_host(name: str, namespace: str, settings: Settings) -> str:
    """Return the full cluster-internal host name of a Service."""
    return f"{name}.{namespace}.svc.{settings.cluster_domain}"


def owner_reference(owner: Resource) -> Manifest:
    """Return the owner reference by which Kubernetes deletes an object with its owner."""
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_owned(stored: Mapping[str, Any], owner: Resource) -> bool:
    """Whether a stored object belongs to `owner`, by UID; others' objects must not be changed."""
    return owner.metadata.uid in owner_uids(stored)


def owner_uids(stored: Mapping[str, Any]) -> Sequence[str]:
    """Return the UIDs of a stored object's owners, from owner references and `OWNER_LABEL`."""
    metadata = stored.get("metadata") or {}
    uids = [owner.get("uid", "") for owner in metadata.get("ownerReferences") or ()]
    label = (metadata.get("labels") or {}).get(OWNER_LABEL)
    return uids if label is None else [*uids, label]


def identity_of(resource: Resource) -> Identity:
    """Return namespace and name of a parsed object."""
    return Identity(resource.metadata.namespace, resource.metadata.name)


def owner_key(owner: Resource) -> Owner:
    """Return kind, namespace and name of an object that owns functions."""
    return owner.kind, *identity_of(owner)


def owned_metadata(owner: Resource, family: Family, settings: Settings) -> Manifest:
    """Return the metadata of an object created for `owner`, without a name: its namespace, `labels`
    (maybe empty), and the owner, in an owner reference or the label `OWNER_LABEL`."""
    namespace = function_namespace(family, identity_of(owner), settings)
    if family.centralized:
        return {"namespace": namespace, "labels": {OWNER_LABEL: owner.metadata.uid}}
    return {"namespace": namespace, "labels": {}, "ownerReferences": [owner_reference(owner)]}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionService:
    """The parts of a function's Knative Service that differ between functions."""

    name: str
    ownership: Mapping[str, Any]
    """The metadata with its namespace and owner (`owned_metadata`)."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    """Annotations of its pods, such as Knative's autoscaling."""
    declared: Mapping[str, Any]
    """What the function's owner declares besides contract and Secret; part of the digest."""
    environment: Mapping[str, str]
    """Names and values of its own environment variables, such as its contract."""
    secret: tuple[str, str] | None
    """Name and version of the mounted Secret for Kafka; None: Kafka needs none."""
    credentials: Mapping[str, Any] | None = None
    """A volume to mount in place of the Secret; None: the Secret itself is mounted."""
    resources: Mapping[str, Any]
    """Requests and limits of its container."""
    tracing: Mapping[str, str]
    """Environment variables with the tracing of its owner."""
    concurrency: int = 0
    """Most requests that a pod gets at a time; 0: any number."""
    timeout: int = TIMEOUT_SECONDS
    """Seconds for a request, and the pod's grace period."""
    account: str | None = None
    """The service account that its pods run as; None: the namespace's default."""
    oidc: bool = False
    """Whether the function requests tokens, or the keys of tokens, from the API server."""
    sends: bool = False
    """Whether the function sends events to destinations, and so needs the trust bundle."""
    tls: str | None = None
    """Name of the Secret with which the function terminates TLS; None: it serves plain HTTP."""


class _Volume(NamedTuple):
    """A volume of a function's pods, mounted read-only."""

    name: str
    folder: str
    source: Mapping[str, Any]
    """The volume as in a pod's spec, without its name."""


def knative_service(function: FunctionService, settings: Settings) -> Manifest:
    """Return the manifest of a function's Knative Service."""
    volumes = _function_volumes(function, settings)
    container: Manifest = {
        "name": "function",
        "image": settings.image,
        "env": env_variables(_function_environment(function, settings)),
        "readinessProbe": {"httpGet": {"path": "/health/readiness"}, "successThreshold": 1},
        "livenessProbe": LIVENESS_PROBE,
        "resources": dict(function.resources),
        "securityContext": {
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    pod: Manifest = {
        **settings.pods.spec,
        "containerConcurrency": function.concurrency,
        "timeoutSeconds": function.timeout,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    template_annotations = {**FULL_DUPLEX, **function.annotations}
    if function.account is not None:
        pod["serviceAccountName"] = function.account
    if function.secret is not None:
        _, secret_version = function.secret
        template_annotations[SECRET_VERSION] = secret_version
    if volumes:
        container["volumeMounts"] = [
            {"name": volume.name, "mountPath": volume.folder, "readOnly": True}
            for volume in volumes
        ]
        pod["volumes"] = [{"name": volume.name, **volume.source} for volume in volumes]
    labels = with_common_labels(function.labels)
    return {
        "apiVersion": SERVING,
        "kind": "Service",
        "metadata": {
            **function.ownership,
            "name": function.name,
            "annotations": {DECLARED_DIGEST: _digest([function.secret, function.declared])},
            "labels": {
                **labels,
                **function.ownership["labels"],
                "networking.knative.dev/visibility": "cluster-local",
            },
        },
        "spec": {
            "template": {
                "metadata": {"labels": labels, "annotations": template_annotations},
                "spec": pod,
            }
        },
    }


def _function_environment(function: FunctionService, settings: Settings) -> Mapping[str, str]:
    """Return a function's environment: its own variables, and those that the settings add."""
    url = service_url(function.name, function.ownership["namespace"], settings)
    environment = {
        **function.environment,
        "KNAFKA_LOG_LEVEL": settings.log_level,
        LOG_FORMAT: "json",
    }
    if settings.profiling:
        # Not set to "disabled" otherwise: one more variable would roll every function.
        environment[PROFILING] = "enabled"
    if settings.local_addresses:
        environment[LOCAL_ADDRESSES] = "allowed"
    if callers := settings.tokens.verifiers(url):
        environment[CALLERS] = callers
    if settings.metrics_tokens:
        environment[SCRAPERS] = verifiers_of(settings.metrics_tokens)
    if function.oidc:
        environment[OIDC_URL] = API_SERVER
    if function.sends and settings.trust_bundles:
        environment[TRUST_BUNDLES] = TRUST_PATH
    if function.tls is not None:
        environment[TLS] = TLS_PATH
    return {**environment, **function.tracing}


def _function_volumes(function: FunctionService, settings: Settings) -> list[_Volume]:
    """Return the volumes of a function's pods."""
    volumes: list[_Volume] = []
    if function.secret is not None:
        secret_name, _ = function.secret
        source = function.credentials or {"secret": {"secretName": secret_name}}
        volumes.append(_Volume("kafka", SECRET_PATH, source))
    if function.oidc:
        volumes.append(_Volume("api", API_FOLDER, _API_CREDENTIALS))
    if function.sends and settings.trust_bundles:
        volumes.append(_Volume("trust", TRUST_PATH, _TRUST_VOLUME))
    if function.tls is not None:
        # Optional: until the Secret exists, only plain requests are answered.
        tls_source = {"secret": {"secretName": function.tls, "optional": True}}
        volumes.append(_Volume("tls", TLS_PATH, tls_source))
    return volumes


def mounts_trust_bundle(service: Mapping[str, Any]) -> bool:
    """Whether a function's pods mount the trust bundle of their namespace."""
    volumes = service["spec"]["template"]["spec"].get("volumes") or ()
    return any(volume.get("configMap") == _TRUST_VOLUME["configMap"] for volume in volumes)


def with_common_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return `labels` together with the labels that all of Knafka's objects have."""
    return {
        "app.kubernetes.io/name": "knafka",
        "app.kubernetes.io/component": labels.get(ROLE_LABEL, "config"),
        "app.kubernetes.io/managed-by": "knafka-operator",
        **labels,
    }


def compact_json(document: object) -> str:
    """Return a document as one line of JSON that contains no `$`, for an environment variable."""
    text = json.dumps(document, separators=(",", ":"))
    # Without `$` the value needs no escaping by `escape_dollars`, and is readable in the manifest.
    return text.replace("$", r"\u0024")


def _digest(value: object) -> str:
    """Return 16 hexadecimal digits that identify a value, from its JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def escape_dollars(text: str) -> str:
    """Escape `$` in a container's arguments and variables, so that the process gets `text`
    unchanged. Kubernetes replaces `$(NAME)` by the value of a variable: without the escape, users
    whose texts become arguments could read the container's credentials."""
    return text.replace("$", "$$")


def env_variables(environment: Mapping[str, str]) -> list[Manifest]:
    """Return a container's `env` list with these values, escaped by `escape_dollars`."""
    return [{"name": name, "value": escape_dollars(value)} for name, value in environment.items()]


def environment_of(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables in a container's `env` list, unescaped: the reverse of `env_variables`.
    A variable without a `value`, such as one from a Secret, is empty."""
    variables = container.get("env") or ()
    return {
        variable["name"]: variable.get("value", "").replace("$$", "$") for variable in variables
    }
