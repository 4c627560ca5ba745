"""Services: builds functions' Knative Services from contract entries. Pure.

    Trigger, Egress  -> a dispatcher's Service, and one for its replays
    Broker, Shard    -> the Service of a dispatcher that many Triggers share
    any function     -> `knative_service`: the common part of all functions' Services

The environment has an Egress as JSON, so that a change creates a new Revision; of a contract in a
topic it has only the topic's name. A Secret is mounted as files. The owner is in the same
namespace, so that Kubernetes deletes the Service with it.

Not here: receivers (`receiver_services`), applying Services (`functions.applying`), and how many
drains are held (`scale.scaler`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from knafka.core import documents, names
from knafka.core.addresses import LOCAL_ADDRESSES
from knafka.core.contract import Delivery, Egress, Shard
from knafka.core.tokens.caller_tokens import CALLERS, SCRAPERS, verifiers_of
from knafka.settings import (
    API_FOLDER,
    LEAVING,
    LOG_FORMAT,
    OIDC_URL,
    PROFILING,
    SERVICE_URL,
    TLS,
    TRUST_BUNDLES,
)
from knafka_operator.installation.settings import Settings
from knafka_operator.installation.tracing import Owner
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.family import Family, family_of
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import SERVING, Broker, Resource, Trigger

Manifest = dict[str, Any]

SECRET_PATH: Final = "/var/run/secrets/knafka/kafka"
"""Folder where the Secret for Kafka is mounted."""

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

EGRESS_VARIABLE: Final = "KNAFKA_EGRESS"
"""Environment variable with a dispatcher's contract, as JSON."""
SHARD_VARIABLE: Final = "KNAFKA_SHARD"
"""Environment variable that tells a shared dispatcher its shard, as JSON."""
RECEIVER_VARIABLE: Final = "KNAFKA_RECEIVER"
"""Environment variable that tells a receiver its Kafka and contract topic, as JSON."""
SHARD_PODS: Final = 2
"""Most pods of a shard: the old and the new one during a roll. Only one drains, as only one request
is held."""

TIMEOUT_SECONDS: Final = 70
"""The `timeoutSeconds` of a function's Service, and so its pods' grace period. When a namespace is
deleted, Kubernetes checks for remaining pods, checks again after half of their longest grace
period, and deletes other objects only when there are none. A pod's end takes 31 to 33 s
(`STOP_SECONDS`), and with 70 s the second check comes after 36 s (with 110 s after 56 s, with 600 s
after five minutes). A drain's first request stays 45 s below this, as a pod's start may take that
long (`holds.FIRST_BUDGET`)."""
MAX_TIMEOUT_SECONDS: Final = 600
"""Knative's default maximum."""

STOP_SECONDS: Final = 40
"""Seconds of the grace period before the function gets SIGTERM: Knative stops it 30 s after the
last request, which may arrive while not all proxies know of the pod's end. The function can use the
rest."""
GRACE_PERIOD: Final = TIMEOUT_SECONDS - STOP_SECONDS

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
_TRUST_VOLUME: Final[Mapping[str, Any]] = {
    # Optional, so that a starting pod needn't wait for the ConfigMap, which may be added to the
    # volume later.
    "configMap": {"name": TRUST_BUNDLE, "optional": True},
}

LIVENESS_PROBE: Final[Mapping[str, Any]] = {
    "httpGet": {"path": "/health/liveness"},
    # Long timeouts: on a busy node a pod may answer only after 10 s, and a restart would make the
    # node busier still.
    "periodSeconds": 20,
    "timeoutSeconds": 20,
    "failureThreshold": 6,
}

KNATIVE_AUTOSCALING: Final = "autoscaling.knative.dev/"
MAX_SCALE: Final = "autoscaling.knative.dev/max-scale"
MIN_SCALE: Final = "autoscaling.knative.dev/min-scale"


def dispatcher_name(family: Family, trigger: Identity) -> str:
    """Return the name of the Knative Service of a Trigger's own dispatcher."""
    return names.child(family.function_name_prefix(trigger), f"-kn{family.infix}-dispatcher")


def replayer_name(family: Family, trigger: Identity) -> str:
    """Return the name of the Knative Service of a Trigger's replayer."""
    return names.child(family.function_name_prefix(trigger), f"-kn{family.infix}-replayer")


def shard_name(family: Family, broker: Identity, number: int) -> str:
    """Return the name of the Knative Service of a Broker's shared dispatcher."""
    return names.child(family.function_name_prefix(broker), f"-kn{family.infix}-shard-{number}")


def function_namespace(family: Family, owner: Identity, settings: Settings) -> str:
    """Return the namespace of an object's functions (CHN-22)."""
    return settings.namespace if family.centralized else owner.namespace


def shard_number(service: Mapping[str, Any]) -> int | None:
    """Return the shard number in the labels of a Service; None: it is no shard's."""
    text = (service["metadata"].get("labels") or {}).get(SHARD_NUMBER_LABEL, "")
    return int(text) if text.isdecimal() else None


def dispatcher_service(
    trigger: Trigger,
    egress: Egress,
    autoscaling: Autoscaling,
    partitions: int,
    secret: tuple[str, str] | None,
    settings: Settings,
    *,
    replays: bool = False,
    account: str | None = None,
) -> Manifest:
    """Return the manifest of the Knative Service of a Trigger's dispatcher, or with `replays` of
    its replayer, with one pod for each drain.

    `account` is the service account that it runs as, to get tokens; None: it needs none. With
    min-scale, Knative keeps that many pods, which drain from their start without a request; a
    replayer has none.
    """
    max_pods = max(1, min(autoscaling.max_scale, partitions))
    min_pods = 0 if replays else min(autoscaling.min_scale, max_pods)
    family, identity = family_of(trigger.kind), identity_of(trigger)
    name = replayer_name(family, identity) if replays else dispatcher_name(family, identity)
    timeout = dispatcher_timeout(egress)
    environment = {
        "FUNCTION_TARGET": "dispatch",
        EGRESS_VARIABLE: compact_json(documents.dump(egress)),
        # The URL at which the dispatcher requests its own next drain if work is left and the
        # operator sends no request.
        SERVICE_URL: service_url(name, function_namespace(family, identity, settings), settings),
        "KNAFKA_GRACE_PERIOD": str(timeout - STOP_SECONDS),
    }
    if min_pods:
        environment["KNAFKA_DRAIN_AT_START"] = "true"
    return knative_service(
        name,
        owned_metadata(trigger, family, settings),
        labels={
            ROLE_LABEL: REPLAYER_ROLE if replays else DISPATCHER_ROLE,
            BROKER_LABEL: family.label_value(Identity(egress.namespace, egress.broker)),
            TRIGGER_LABEL: family.label_value(identity),
        },
        annotations=one_pod_per_drain(min_pods, max_pods, settings),
        declared={"pods": [min_pods, max_pods]},
        environment=environment,
        secret=secret,
        credentials=family.credentials_volume_of(trigger),
        resources=settings.pods.dispatcher_resources,
        settings=settings,
        tracing=settings.tracing.of(owner_key(trigger)),
        concurrency=1,
        timeout=timeout,
        sends=True,
        oidc=account is not None,
        account=account,
    )


def dispatcher_timeout(egress: Egress) -> int:
    """Return the `timeoutSeconds` of a dispatcher's Service, which is also its pods' grace period.

    A declared delivery timeout gets enough time to finish an attempt. With the default timeout, an
    attempt that takes longer than the usual grace period is repeated elsewhere; with at-most-once
    semantics nothing is repeated, so every attempt gets its time.
    """
    attempt = egress.delivery.timeout
    if attempt == Delivery().timeout and not egress.at_most_once:
        return TIMEOUT_SECONDS
    needed = math.ceil(attempt + LEAVING) + STOP_SECONDS
    return min(max(TIMEOUT_SECONDS, needed), MAX_TIMEOUT_SECONDS)


def shard_service(
    broker: Broker,
    shard: Shard,
    number: int,
    secret: tuple[str, str] | None,
    settings: Settings,
    *,
    account: str | None = None,
) -> Manifest:
    """Return the manifest of the Knative Service of a Broker's shared dispatcher `number`;
    `account` as in `dispatcher_service`."""
    family, identity = family_of(broker.kind), identity_of(broker)
    name = shard_name(family, identity, number)
    return knative_service(
        name,
        owned_metadata(broker, family, settings),
        labels={
            ROLE_LABEL: SHARD_ROLE,
            BROKER_LABEL: family.label_value(identity),
            SHARD_NUMBER_LABEL: str(number),
        },
        annotations=one_pod_per_drain(0, SHARD_PODS, settings),
        declared={} if account is None else OIDC_DIGEST_INPUT,
        environment={
            "FUNCTION_TARGET": "dispatch",
            SHARD_VARIABLE: compact_json(documents.dump(shard)),
            SERVICE_URL: service_url(
                name, function_namespace(family, identity, settings), settings
            ),
            "KNAFKA_GRACE_PERIOD": str(GRACE_PERIOD),
        },
        secret=secret,
        resources=settings.pods.shard_resources,
        settings=settings,
        tracing=settings.tracing.of(owner_key(broker)),
        concurrency=1,
        sends=True,
        oidc=account is not None,
        account=account,
    )


def one_pod_per_drain(min_pods: int, max_pods: int, settings: Settings) -> Mapping[str, str]:
    """Return Knative's autoscaling annotations for exactly one pod per drain, with no delay at
    scale-down."""
    scaling = {
        "metric": "concurrency",
        "target": "1",
        "target-utilization-percentage": "100",
        "target-burst-capacity": "-1",  # the activator knows which pod is free
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


def is_owned(service: Mapping[str, Any], owner: Resource) -> bool:
    """Whether an object belongs to `owner`, by UID; objects of others must never be changed."""
    return owner.metadata.uid in owner_uids(service)


def owner_uids(service: Mapping[str, Any]) -> Sequence[str]:
    """Return the UIDs of a Service's owners, from owner references and `OWNER_LABEL`."""
    metadata = service.get("metadata") or {}
    uids = [each.get("uid", "") for each in metadata.get("ownerReferences") or ()]
    label = (metadata.get("labels") or {}).get(OWNER_LABEL)
    return uids if label is None else [*uids, label]


def identity_of(resource: Resource) -> Identity:
    """Return namespace and name of a parsed object."""
    return Identity(resource.metadata.namespace, resource.metadata.name)


def owner_key(owner: Resource) -> Owner:
    """Return kind, namespace and name of a parsed object."""
    return owner.kind, *identity_of(owner)


def owned_metadata(owner: Resource, family: Family, settings: Settings) -> Manifest:
    """Return the metadata of an object created for `owner`: namespace, and owner reference or
    `OWNER_LABEL`."""
    namespace = function_namespace(family, identity_of(owner), settings)
    if family.centralized:
        return {"namespace": namespace, "labels": {OWNER_LABEL: owner.metadata.uid}}
    return {"namespace": namespace, "labels": {}, "ownerReferences": [owner_reference(owner)]}


def knative_service(
    name: str,
    ownership: Manifest,
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    declared: Mapping[str, Any],
    environment: Mapping[str, str],
    secret: tuple[str, str] | None,
    resources: Mapping[str, Any],
    settings: Settings,
    tracing: Mapping[str, str],
    concurrency: int = 0,
    timeout: int = TIMEOUT_SECONDS,
    oidc: bool = False,
    sends: bool = False,
    tls: str | None = None,
    account: str | None = None,
    credentials: Mapping[str, Any] | None = None,
) -> Manifest:
    """Return the manifest of a function's Knative Service. `declared` is the owner's declaration
    beside contract and Secret, for the digest; `credentials` is a volume to mount instead of the
    Secret; `oidc`: whether the function requests tokens or their keys from the API server; `sends`:
    whether it sends events to destinations, and so needs the trust bundle; `tls`: the Secret with
    which it terminates TLS itself; `account` is its service account, None: the namespace's default.
    """
    environment = {**environment, "KNAFKA_LOG_LEVEL": settings.log_level, LOG_FORMAT: "json"}
    if settings.profiling:
        # Only then, as a further variable creates a new Revision of every function.
        environment[PROFILING] = "enabled"
    if settings.local_addresses:
        environment[LOCAL_ADDRESSES] = "allowed"
    if callers := settings.tokens.verifiers(service_url(name, ownership["namespace"], settings)):
        environment[CALLERS] = callers
    if settings.metrics_tokens:
        environment[SCRAPERS] = verifiers_of(settings.metrics_tokens)
    if oidc:
        environment[OIDC_URL] = API_SERVER
    mounts: list[tuple[str, str, Mapping[str, Any]]] = []
    """Name, folder and source of each volume."""
    if secret is not None:
        secret_volume: Manifest = {"secret": {"secretName": secret[0]}}
        mounts.append(("kafka", SECRET_PATH, credentials or secret_volume))
    if oidc:
        mounts.append(("api", API_FOLDER, _API_CREDENTIALS))
    if sends and settings.trust_bundles:
        environment[TRUST_BUNDLES] = TRUST_PATH
        mounts.append(("trust", TRUST_PATH, _TRUST_VOLUME))
    if tls is not None:
        environment[TLS] = TLS_PATH
        # Optional: until the Secret exists, only plain requests are answered.
        mounts.append(("tls", TLS_PATH, {"secret": {"secretName": tls, "optional": True}}))
    environment |= tracing
    container: Manifest = {
        "name": "function",
        "image": settings.image,
        "env": env_variables(environment),
        "readinessProbe": {"httpGet": {"path": "/health/readiness"}, "successThreshold": 1},
        "livenessProbe": LIVENESS_PROBE,
        "resources": dict(resources),
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
        "containerConcurrency": concurrency,
        "timeoutSeconds": timeout,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    template_annotations = {**FULL_DUPLEX, **annotations}
    if account is not None:
        pod["serviceAccountName"] = account
    if secret is not None:
        template_annotations[SECRET_VERSION] = secret[1]
    if mounts:
        container["volumeMounts"] = [
            {"name": volume_name, "mountPath": folder, "readOnly": True}
            for volume_name, folder, _ in mounts
        ]
        pod["volumes"] = [{"name": volume_name, **source} for volume_name, _, source in mounts]
    return {
        "apiVersion": SERVING,
        "kind": "Service",
        "metadata": {
            **ownership,
            "name": name,
            "annotations": {DECLARED_DIGEST: _digest([secret, declared])},
            "labels": {
                **with_common_labels(labels),
                **ownership["labels"],
                "networking.knative.dev/visibility": "cluster-local",
            },
        },
        "spec": {
            "template": {
                "metadata": {
                    "labels": with_common_labels(labels),
                    "annotations": template_annotations,
                },
                "spec": pod,
            }
        },
    }


def mounts_trust_bundle(service: Mapping[str, Any]) -> bool:
    """Whether a function's pods mount the trust bundle of their namespace."""
    volumes = service["spec"]["template"]["spec"].get("volumes") or ()
    return any(volume.get("configMap") == _TRUST_VOLUME["configMap"] for volume in volumes)


def with_common_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels `labels` with those that all of Knafka's objects have."""
    return {
        "app.kubernetes.io/name": "knafka",
        "app.kubernetes.io/component": labels.get(ROLE_LABEL, "config"),
        "app.kubernetes.io/managed-by": "knafka-operator",
        **labels,
    }


def compact_json(document: object) -> str:
    """Return a document as one line of JSON without `$`, for an environment variable."""
    text = json.dumps(document, separators=(",", ":"))
    # Without `$` the value needs no escaping by `escape_dollars`, and is readable in the manifest.
    return text.replace("$", r"\u0024")


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def escape_dollars(text: str) -> str:
    """Escape `$` in a container's arguments and variables, so that the process gets `text`
    unchanged. Kubernetes replaces `$(NAME)` by the value of a variable: without the escape, users
    whose texts become arguments could read the container's credentials.
    """
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
