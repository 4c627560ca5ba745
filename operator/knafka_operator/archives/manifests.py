"""Archive manifests: builds a run's Job, the account of its executors, and its Lease. Pure.

A run belongs to the archive itself, or to an operation on its tables (a replay or a purge).

The pod downloads nothing at its start: Java, Spark and all jars are in its image. Its arguments
declare the task, its environment variables how Spark runs (`knafka_jobs.pod`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from knafka.core import names
from knafka.core.names import NAME_TEMPLATES
from knafka_operator.archives.model import ARCHIVE_LABEL, RUN_ANNOTATION, DeadLetterArchive, Storage
from knafka_operator.archives.operation_model import (
    OPERATION_ANNOTATION,
    OPERATION_LABEL,
    Operation,
    Replay,
)
from knafka_operator.decisions.effects import Manifest
from knafka_operator.functions import services
from knafka_operator.installation.settings import Settings
from knafka_operator.model.resources import CORE, RBAC

BATCH_VERSION: Final = "batch/v1"
"""The apiVersion of Jobs."""
COORDINATION: Final = "coordination.k8s.io/v1"
"""The apiVersion of Leases."""
ARCHIVE_ROLE: Final = "archive"
"""Value of the role label of Jobs, pods, accounts and Leases of archives."""
DRIVER_ROLE: Final = "knafka-dead-letter-driver"
"""The ClusterRole that operator/deploy/dead-letters has for Jobs with executors."""
ROOT_ANNOTATION: Final = "knafka.dev/archive-root"
"""Annotation of a Lease: the storage whose tables it protects, as `storage_root` identifies it."""
JOB_NAME: Final = "batch.kubernetes.io/job-name"
"""Label that Kubernetes puts on a Job's pods."""
FINISHED_JOB_TTL: Final = 86_400
"""Seconds after which Kubernetes deletes a finished Job that no operator has deleted."""
USER: Final = 65_532
"""Id of the user in the image, and of its group."""
DEFAULT_REGION: Final = "us-east-1"
"""Region for which requests to a store other than AWS's are signed, if none is declared."""
MOUNT: Final = "/archive"
"""Where a pod mounts the claim with the tables."""
STORE_KEY_NAMES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Keys of a store's Secret; the last one is optional."""
_SECURITY: Final[Mapping[str, Any]] = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
_match_safe_address = re.compile(r"https?://[A-Za-z0-9.:-]+(?:/[A-Za-z0-9._~-]*)*").fullmatch
"""Matches a Broker's address that may be passed to a Job as an argument. The address comes from a
status that others may write, too, and Kubernetes replaces `$(NAME)` in an argument by the value of
an environment variable, such as an S3 key."""
_INSTALLATION_POD_FIELDS: Final = ("imagePullSecrets", "nodeSelector", "tolerations", "affinity")
"""Fields of KNAFKA_POD that Jobs' pods have, too."""


def job_name(archive: str, run: int) -> str:
    """Return the name of an archive's Job for a run number; no two archives share one."""
    return names.child(archive, f"-{run}")


def account_name(archive: str) -> str:
    """Return the name of the ServiceAccount of an archive's Jobs with executors."""
    return names.child(archive, "-dead-letter-driver")


def storage_root(namespace: str, storage: Storage) -> str:
    """Return an identifier of the storage of an archive's tables, unique in its cluster: a URL, or
    `claim://NAMESPACE/CLAIM/PATH`."""
    if storage.url is not None:
        return storage.url
    assert storage.claim is not None
    return f"claim://{namespace}/{storage.claim.name}/{storage.claim.path}"


def tables_location(storage: Storage) -> str:
    """Return the URL or folder of the tables, as the Job's pods open it."""
    if storage.url is not None:
        return storage.url
    assert storage.claim is not None
    return f"{MOUNT}/{storage.claim.path}"


def job_manifest(
    archive: DeadLetterArchive,
    run: int,
    group: str,
    bootstrap_servers: str,
    secret: tuple[str, str] | None,
    settings: Settings,
    *,
    report: bool = False,
    address: str = "",
    operation: Operation | None = None,
) -> Manifest:
    """Return the Job of run number `run`, for `operation` or, if that is None, for the archive
    itself. The Job reads dead letters as consumer group `group`; `secret` is the name and version
    of Kafka's Secret (None: Kafka needs none).

    `report`: whether a Job of the archive itself also writes a report. It announces the report at
    `address`, the Broker's URL (empty: nowhere).
    """
    spec, metadata = archive.spec, archive.metadata
    options = _common_options(archive, group, bootstrap_servers, secret)
    labels = _job_labels(archive)
    if operation is None:
        arguments: Sequence[str] = [
            *_archive_arguments(archive, options),
            *(_report_options(archive, address, settings) if report else ()),
        ]
        # The value of the archive's annotation that requested this run, to record that it is done.
        annotations = {RUN_ANNOTATION: metadata.annotations.get(RUN_ANNOTATION, "")}
    else:
        arguments = operation_arguments(operation, options)
        labels = {**labels, OPERATION_LABEL: operation.metadata.uid}
        annotations = {OPERATION_ANNOTATION: f"{operation.kind}/{operation.metadata.name}"}
    return {
        "apiVersion": BATCH_VERSION,
        "kind": "Job",
        "metadata": {
            "namespace": metadata.namespace,
            "name": job_name(metadata.name, run),
            "labels": labels,
            "annotations": annotations,
            # Deleting an operation deletes its Job; deleting an archive deletes all
            # (`Archives.delete`).
            "ownerReferences": [services.owner_reference(operation or archive)],
        },
        "spec": {
            # The operator retries a failed run, after a while.
            "backoffLimit": 0,
            "activeDeadlineSeconds": max(1, round(spec.timeout)),
            "ttlSecondsAfterFinished": FINISHED_JOB_TTL,
            # A pod that is evicted with its node has not failed; its successor starts only after
            # its end.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    }
                ]
            },
            "template": {
                "metadata": {"labels": labels},
                "spec": _pod_spec(archive, arguments, secret, settings),
            },
        },
    }


def _common_options(
    archive: DeadLetterArchive, group: str, bootstrap_servers: str, secret: tuple[str, str] | None
) -> Mapping[str, str]:
    """Return the command-line options that every run's Job gets, by name (without dashes).
    `secret` is the name and version of Kafka's Secret; None: Kafka needs none."""
    spec = archive.spec
    options = {
        "tables": tables_location(spec.storage),
        "broker": f"{archive.metadata.namespace}/{spec.broker}",
        "bootstrap-servers": bootstrap_servers,
        "group": group,
        "keep-hours": f"{spec.compaction.keep / 3600:g}",
    }
    return options if secret is None else {**options, "secret": services.SECRET_PATH}


def _archive_arguments(archive: DeadLetterArchive, options: Mapping[str, str]) -> Sequence[str]:
    """Return the arguments of `knafka_jobs.pod` for the archive's own run, which compacts dead
    letters: the common `options`, and the archive's retention in hours."""
    spec, retention_options = archive.spec, dict[str, str]()
    for name in ("resolved", "unresolved"):
        if (retention := getattr(spec.retention, name)) is not None:
            retention_options[f"{name}-hours"] = f"{retention / 3600:g}"
    return ["archive", *_option_arguments({**options, **retention_options})]


def _report_options(archive: DeadLetterArchive, address: str, settings: Settings) -> Sequence[str]:
    """Return the arguments that make a run also write a report: the days that it covers, and where
    it is announced and shown. `address` is the Broker's URL; if it is empty or could be unsafe as
    an argument, the report isn't announced."""
    options = {"archive": archive.metadata.name, "trace-url": settings.trace_url}
    if (report := archive.spec.report) is not None:
        options["days"] = str(report.days)
        if report.announce and _match_safe_address(address):
            options |= {"announce": address, "console-url": settings.console_url}
    return ["--report", *_option_arguments({key: value for key, value in options.items() if value})]


def operation_arguments(operation: Operation, options: Mapping[str, str]) -> Sequence[str]:
    """Return the arguments of `knafka_jobs.pod` for a replay or a purge: the common `options`, and
    the operation's own. Each retry gets the same arguments: the selection's `until` excludes
    failures that are newer than the operation."""
    spec, metadata = operation.spec, operation.metadata
    selection = spec.select.model_dump(mode="json", exclude_defaults=True)
    # The API server cuts a creation time to whole seconds.
    created = datetime.fromisoformat(metadata.creation_timestamp) + timedelta(seconds=1)
    latest_until = created.isoformat()
    # Compared as texts: both are ISO 8601 in UTC, so their order is that of the times.
    selection["until"] = min(selection.get("until", latest_until), latest_until)
    operation_options = {"select": services.compact_json(selection)}
    flags = ["--dry-run"] if spec.dry_run else []
    if isinstance(operation, Replay):
        operation_options |= {"replay-id": metadata.uid, "by": operation.id}
        if operation.spec.rate is not None:
            operation_options["rate"] = f"{operation.spec.rate:g}"
        return ["replay", *_option_arguments({**options, **operation_options}), *flags]
    if operation.spec.unresolved:
        flags.append("--unresolved")
    return ["purge", *_option_arguments({**options, **operation_options}), *flags]


def _option_arguments(options: Mapping[str, str]) -> Sequence[str]:
    """Return options as arguments of a process, `--NAME=VALUE`."""
    return [f"--{name}={value}" for name, value in options.items()]


def _pod_spec(
    archive: DeadLetterArchive,
    arguments: Sequence[str],
    secret: tuple[str, str] | None,
    settings: Settings,
) -> Manifest:
    """Return the pod spec of a Job that runs `knafka_jobs.pod` with these arguments. `secret` is
    the name and version of Kafka's Secret; None: Kafka needs none."""
    spec = archive.spec
    volumes, mounts = _volumes_and_mounts(spec.storage)
    if secret is not None:
        secret_name, _ = secret
        volumes.append({"name": "kafka", "secret": {"secretName": secret_name}})
        mounts.append({"name": "kafka", "mountPath": services.SECRET_PATH, "readOnly": True})
    memory_limit = {"containerName": "archive", "resource": "limits.memory", "divisor": "1Mi"}
    container: Manifest = {
        "name": "archive",
        "image": settings.jobs_image,
        "args": [services.escape_dollars(argument) for argument in arguments],
        "env": [
            _pod_field_variable("KNAFKA_POD_NAME", "metadata.name"),
            _pod_field_variable("KNAFKA_POD_NAMESPACE", "metadata.namespace"),
            _pod_field_variable("KNAFKA_POD_IP", "status.podIP"),
            {"name": "KNAFKA_MEMORY", "valueFrom": {"resourceFieldRef": memory_limit}},
            *_spark_environment(archive, settings),
            *_store_credentials(spec.storage),
        ],
        "resources": _container_resources(archive),
        "securityContext": dict(_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    pod: dict[str, Any] = {
        **_installation_pod_fields(settings),
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        # Only a run with executors needs a token: it creates pods.
        "automountServiceAccountToken": spec.executors > 0,
        "securityContext": {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"},
        "containers": [container],
        "volumes": volumes,
    }
    if spec.executors:
        pod["serviceAccountName"] = account_name(archive.metadata.name)
    return pod


def _spark_environment(archive: DeadLetterArchive, settings: Settings) -> list[Manifest]:
    """Return the environment variables that configure Spark and its executors, without
    credentials."""
    spec = archive.spec
    spark_settings = s3_settings(spec.storage.endpoint, spec.storage.region)
    variables = {"KNAFKA_EXECUTORS": str(spec.executors)}
    if templates := settings.naming.custom_templates:
        variables[NAME_TEMPLATES] = "\n".join(templates)
    if spark_settings:
        variables["KNAFKA_SPARK"] = services.compact_json(spark_settings)
    if spec.executors:
        variables["KNAFKA_EXECUTOR_IMAGE"] = settings.jobs_image
        variables["KNAFKA_EXECUTOR_CPU"] = str(spec.resources.requests.get("cpu", "1"))
        pod_template = executor_template(archive, settings)
        variables["KNAFKA_EXECUTOR_TEMPLATE"] = services.compact_json(pod_template)
    return [*services.env_variables(variables)]


def s3_settings(endpoint: str, region: str) -> dict[str, str]:
    """Return Spark's settings for S3; empty if AWS's defaults apply.

    `endpoint` is the URL of another store than AWS's, whose buckets are addressed by path instead
    of by host name (empty: AWS). An empty `region` is found by AWS itself; for another store it
    means `DEFAULT_REGION`.
    """
    s3_options = {"endpoint": endpoint, "path.style.access": "true"} if endpoint else {}
    # Requests must be signed for some region; other stores usually accept AWS's first one.
    if region or endpoint:
        s3_options["endpoint.region"] = region or DEFAULT_REGION
    return {f"spark.hadoop.fs.s3a.{key}": value for key, value in s3_options.items()}


def executor_template(archive: DeadLetterArchive, settings: Settings) -> Manifest:
    """Return the pod template of Spark's executors; Spark adds image, memory and CPU, and what it
    needs itself."""
    volumes, mounts = _volumes_and_mounts(archive.spec.storage)
    return {
        "apiVersion": CORE,
        "kind": "Pod",
        "metadata": {"labels": _job_labels(archive)},
        "spec": {
            **_installation_pod_fields(settings),
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"},
            "containers": [
                {
                    "name": "executor",
                    "env": _store_credentials(archive.spec.storage),
                    "securityContext": dict(_SECURITY),
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


def account_manifests(archive: DeadLetterArchive) -> tuple[Manifest, ...]:
    """Return the ServiceAccount of Jobs with executors, and the RoleBinding by which Spark may
    manage pods in the archive's namespace."""
    namespace, name = archive.metadata.namespace, account_name(archive.metadata.name)
    metadata = {
        "namespace": namespace,
        "name": name,
        "labels": _job_labels(archive),
        "ownerReferences": [services.owner_reference(archive)],
    }
    return (
        {
            "apiVersion": CORE,
            "kind": "ServiceAccount",
            "metadata": metadata,
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": RBAC,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {
                "apiGroup": RBAC.partition("/")[0],
                "kind": "ClusterRole",
                "name": DRIVER_ROLE,
            },
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    )


def lease_manifest(root: str, holder: str, now: datetime, settings: Settings) -> Manifest:
    """Return the Lease, in the operator's namespace, that lets the archive `holder` (in the form
    `NAMESPACE/NAME/UID`) run Jobs on the tables at `root`. The Lease's name depends on the
    archive's namespace, so that no archive can block another namespace's by naming their bucket.
    """
    archive_namespace = holder.partition("/")[0]
    return {
        "apiVersion": COORDINATION,
        "kind": "Lease",
        "metadata": {
            "namespace": settings.namespace,
            "name": names.archive_lease(archive_namespace, root),
            "labels": services.with_common_labels({services.ROLE_LABEL: ARCHIVE_ROLE}),
            "annotations": {ROOT_ANNOTATION: root},
        },
        "spec": {
            "holderIdentity": holder,
            "acquireTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def _job_labels(archive: DeadLetterArchive) -> Mapping[str, str]:
    """Return the labels of an archive's Jobs, pods and account; the operator finds Jobs by them."""
    labels = {
        services.ROLE_LABEL: ARCHIVE_ROLE,
        ARCHIVE_LABEL: archive.metadata.uid,
        # Without a suffix: the name itself, or what `child` makes of one too long or with dots.
        "knafka.dev/archive-name": names.child(archive.metadata.name, ""),
    }
    return services.with_common_labels(labels)


def _installation_pod_fields(settings: Settings) -> Mapping[str, Any]:
    """Return the fields of KNAFKA_POD that Jobs' pods have, too."""
    pod_fields = settings.pods.spec.items()
    return {name: value for name, value in pod_fields if name in _INSTALLATION_POD_FIELDS}


def _volumes_and_mounts(storage: Storage) -> tuple[list[Manifest], list[Manifest]]:
    """Return volumes and their mounts, for Spark's temporary files and for the tables."""
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": "/tmp"}]
    if storage.claim is not None:
        claim = {"claimName": storage.claim.name}
        volumes.append({"name": "archive", "persistentVolumeClaim": claim})
        mounts.append({"name": "archive", "mountPath": MOUNT})
    return volumes, mounts


def _container_resources(archive: DeadLetterArchive) -> Manifest:
    """Return the container's resources. If no memory is requested, request its limit, as Spark does
    for executors: the Java heap takes all of it."""
    declared = archive.spec.resources
    memory = {"memory": declared.limits["memory"]}
    return {"requests": {**memory, **declared.requests}, "limits": dict(declared.limits)}


def _store_credentials(storage: Storage) -> list[Manifest]:
    """Return the environment variables with the object store's keys; an empty list if the storage
    names no Secret. Only the keys `STORE_KEY_NAMES` are read from the Secret, so that it can't set
    other variables."""
    if storage.credentials is None:
        return []
    secret = storage.credentials.name
    return [
        {
            "name": key,
            "valueFrom": {
                "secretKeyRef": {"name": secret, "key": key, "optional": key == STORE_KEY_NAMES[-1]}
            },
        }
        for key in STORE_KEY_NAMES
    ]


def _pod_field_variable(name: str, field: str) -> Manifest:
    """Return an environment variable whose value is a field of its pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}
