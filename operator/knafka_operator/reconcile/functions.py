"""Functions: Knative Services that belong to a Broker or Trigger, applied and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knafka_operator.decide import rolls as deciding
from knafka_operator.decide import services, status
from knafka_operator.decide.status import NotReady
from knafka_operator.model.cluster import Cluster, ClusterError, NotAllowed, Rejected
from knafka_operator.model.function_pods import needed_features
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, SERVING, Resource
from knafka_operator.reconcile.rolls import Rolls
from knafka_operator.reconcile.work_queue import Key


async def apply_service(
    cluster: Cluster,
    manifest: Mapping[str, Any],
    owner: Resource | None = None,
    rolls: Rolls | None = None,
    key: Key | None = None,
) -> str:
    """Have a function's Knative Service as it should be, and Ready: gives its Revision.

    One that waits for its turn to roll stays as it is, but for what its owner has edited; without
    `rolls` it waits for none. `key` is reconciled when it has a turn: its owner, if none is given.
    Raises `NotReady`; an object of that name which isn't its `owner`'s is left alone. None: it
    belongs to all KafkaChannels.
    """
    manifest = deciding.with_template_digest(manifest)
    metadata = manifest["metadata"]
    there = await cluster.get(SERVING, "Service", metadata["namespace"], metadata["name"])
    uid = services.CHANNELS_OWNER if owner is None else owner.metadata.uid
    if there is not None and uid not in services.owners(there):
        of = "all KafkaChannels" if owner is None else f"this {owner.kind}"
        raise NotReady(
            "ServiceNotOurs",
            f"Knative Service {metadata['namespace']}/{metadata['name']} exists and was not made "
            f"for {of}: delete or rename it",
        )
    service, stored = Identity.of(manifest), None
    if rolls is not None and there is not None and not deciding.is_rolled(there, manifest):
        if key is None:
            assert owner is not None
            key = owner.kind, owner.metadata.namespace, owner.metadata.name
        if not await rolls.ask(cluster, service, key):
            if deciding.is_edited(there, manifest):
                manifest = deciding.with_running_image(there, manifest)
            else:
                stored = there
    if stored is None:
        stored = await _applied(cluster, manifest, rolls)
    reported = stored.get("status") or {}
    revision = reported.get("latestReadyRevisionName")
    if not status.is_ready(stored) or revision != reported.get("latestCreatedRevisionName"):
        failed = status.summary(reported.get("conditions") or ()).get("status") == "False"
        why = await _why_newest_is_not_ready(cluster, stored) or status.why_not_ready(stored)
        raise NotReady(
            "FunctionNotReady",
            f"Knative Service {metadata['name']}: {why}",
            transient=not failed,
        )
    if rolls is not None and not rolls.waits(service):
        rolls.over(service)
    return str(revision)


async def _applied(
    cluster: Cluster, manifest: Mapping[str, Any], rolls: Rolls | None
) -> Mapping[str, Any]:
    """The Service as it is stored then; raises `NotReady` where that is refused."""
    try:
        return await cluster.apply(manifest)
    except (Rejected, NotAllowed) as error:
        if rolls is not None:
            rolls.over(Identity.of(manifest))  # nothing does
        told = " - ".join(filter(None, (str(error), needed_features(str(error)))))
        raise NotReady("FunctionRejected", told) from error


async def _why_newest_is_not_ready(cluster: Cluster, service: Mapping[str, Any]) -> str:
    """What a Service's newest Revision itself says, which the Service repeats only in part, such as
    `Unschedulable`; empty if it says nothing."""
    name = (service.get("status") or {}).get("latestCreatedRevisionName")
    if not name:
        return ""
    try:
        revision = await cluster.get(SERVING, "Revision", service["metadata"]["namespace"], name)
    except ClusterError:
        return ""  # it only says more
    why = status.why_revision_is_not_ready(revision or {})
    return f"Revision {name}: {why}" if why else ""


async def delete_service(
    cluster: Cluster, name: str, owner: Resource, namespace: str | None = None
) -> None:
    """Delete this function of `owner`'s; one that is somebody else's is left alone.

    None: it is in the namespace of its owner.
    """
    namespace = namespace or owner.metadata.namespace
    there = await cluster.get(SERVING, "Service", namespace, name)
    if there is not None and services.is_owned(there, owner):
        await cluster.delete(SERVING, "Service", namespace, name)


async def until_replaced(
    cluster: Cluster, namespace: str, service: str, revision: str | None
) -> None:
    """Raise `NotReady` while pods of an older Revision, which drain unasked, run.

    A pod that is asked to end runs on for half a minute and more: Knative waits for requests that
    are late.
    """
    labels = {"serving.knative.dev/service": service}
    older = {
        each["metadata"]["labels"].get("serving.knative.dev/revision", "")
        for each in await cluster.list(CORE, "Pod", labels, namespace)
        if _runs(each)
    } - {revision}
    if older:
        message = f"pods of the Revision before it still deliver: {', '.join(sorted(older))}"
        raise NotReady("OldRevisionDelivers", message, transient=True)


def _runs(pod: Mapping[str, Any]) -> bool:
    """Whether the function in it does; Knative's proxy beside it stays longer."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any("running" in each["state"] for each in statuses if each["name"] != "queue-proxy")
