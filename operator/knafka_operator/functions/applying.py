"""Functions: applies the Knative Services of Brokers, Triggers and Sensors, and rolls few at a
time.

    request --no turn--> waiting --turn free: reconciled--> request --> rolling --Ready--> done
                                                                    rolling --too long--> stuck

A function rolls when applying its Service creates a new Revision, whose pods replace the running
ones; its turn is the permission to do so. Each reconciliation compares what runs with what is
desired, so a starting operator only has to find out which functions its predecessor was rolling:
those that aren't Ready.

Not here: the content of a Service (`functions.services`), and the rules of rolls
(`functions.rolls`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from knafka_operator.decisions import status
from knafka_operator.decisions.status import ConditionSet, NotReady
from knafka_operator.functions import receiver_services, services
from knafka_operator.functions import rolls as roll_rules
from knafka_operator.functions.rolls import ROLL_TIMEOUT
from knafka_operator.installation.function_pods import needed_features
from knafka_operator.model.cluster import Cluster, ClusterError, NotAllowed, Rejected
from knafka_operator.model.identity import Identity, Key
from knafka_operator.model.resources import CORE, SERVING, Resource

log = logging.getLogger(__name__)

ROLL_CHECK_INTERVAL: Final = 5.0
"""Seconds between two checks of rolling functions; mostly their owner's reconciliation ends the
roll earlier."""
APPLY_SECONDS: Final = 30.0
"""Seconds after the beginning of a turn in which the change is applied. Only a function that is
Ready later than that counts as rolled."""
FUNCTION_LABELS: Final = {"app.kubernetes.io/managed-by": "knafka-operator"}
"""Labels of all functions' Services."""


class _RollTurn(NamedTuple):
    """A function's turn to roll."""

    began: float
    """When it began, by the event loop's clock."""
    namespace: str
    """The namespace of the function's owner, where the function itself needn't be."""


class _Waiting(NamedTuple):
    """A function that waits for its turn."""

    key: Key
    """The key to enqueue at the turn."""
    namespace: str
    """The namespace of the function's owner."""


class Rolls:
    """Limits how many functions of the installation roll at a time; belongs to one event loop, and
    is shared by Brokers, channels and Sensors."""

    def __init__(self, at_most: int, enqueue: Callable[[Key], None]) -> None:
        """`at_most` is the number of functions that may roll at a time; `enqueue` makes an object's
        key due for reconciliation."""
        self.at_most = at_most
        self._enqueue = enqueue
        self._rolling: dict[Identity, _RollTurn] = {}
        """The turn of each rolling Service."""
        self._stuck: dict[Identity, str] = {}
        """Services whose roll took longer than `ROLL_TIMEOUT`, each with its owner's namespace,
        which gets no further turns."""
        self._inherited: set[Identity] = set()
        """Services that weren't Ready when this operator began. They have a turn, but never become
        stuck."""
        self._waiting: dict[Identity, _Waiting] = {}
        """The waiting Services, in the order of their turns."""
        self._loading = asyncio.Lock()
        """Held while `_load_unfinished` reads the Services."""
        self._is_loaded = False
        """Whether `_load_unfinished` has read the Services."""

    def __len__(self) -> int:
        """Return the number of functions that roll, are stuck or wait."""
        return len(self._rolling) + len(self._stuck) + len(self._waiting)

    async def request_turn(
        self, cluster: Cluster, service: Identity, namespace: str, key: Key
    ) -> bool:
        """Request a turn for a function whose owner is in `namespace`; returns whether the function
        may roll now. If not, it waits, and `key` is enqueued when a turn is free: the caller then
        requests the turn again.

        A caller that gets a turn calls `end_turn` later. Raises `ClusterError`.
        """
        await self._load_unfinished(cluster)
        waiting = _Waiting(key, namespace)
        if not self._may_roll(service, waiting):
            self._waiting[service] = waiting
            return False
        self._waiting.pop(service, None)
        if service not in self._stuck:
            turn = self._rolling.get(service)
            self._rolling[service] = _RollTurn(_now() if turn is None else turn.began, namespace)
            self._inherited.discard(service)
        return True

    def end_turn(self, service: Identity) -> None:
        """End the turn or the waiting of a function that is Ready, refused or gone. If it had a
        turn, waiting functions are enqueued, which then request the free turn."""
        self._waiting.pop(service, None)
        was_stuck = self._stuck.pop(service, None) is not None
        self._inherited.discard(service)
        if self._rolling.pop(service, None) is not None or was_stuck:
            self._enqueue_waiting()

    def is_waiting(self, service: Identity) -> bool:
        """Whether a function waits for its turn."""
        return service in self._waiting

    def add_condition(self, conditions: ConditionSet, *functions: Identity) -> None:
        """If a function of an object waits for its turn, add the condition `RolledOut`, which says
        why, to the object's `conditions`. `functions` are the object's Services; the condition is
        about the first one that waits."""
        for service in functions:
            if (waiting := self._waiting.get(service)) is not None:
                conditions.set(
                    roll_rules.roll_waits_condition(
                        service, waiting.namespace, self._stuck, self.at_most
                    )
                )
                return

    async def check_turns(self, cluster: Cluster) -> None:
        """End the turns of functions that are Ready, gone or too slow, forget waiting functions
        that are gone, and enqueue those that may take a free turn. Raises `ClusterError`."""
        for service in [*self._rolling, *self._stuck]:
            stored = await cluster.get(SERVING, "Service", *service)
            turn = self._rolling.get(service)
            # A stuck function has rolled for longer than any limit.
            elapsed = math.inf if turn is None else _now() - turn.began
            # A function is also Ready before the change is applied, hence the minimum time.
            if stored is None or (_is_rolled_out(stored) and elapsed >= APPLY_SECONDS):
                self.end_turn(service)
            elif turn is not None and elapsed >= ROLL_TIMEOUT:
                self._mark_stuck(service)
        for service in list(self._waiting)[: self.at_most]:  # only those that could roll next
            if await cluster.get(SERVING, "Service", *service) is None:
                self._waiting.pop(service, None)
        self._enqueue_waiting()  # an object that was enqueued may not have requested its turn

    def _mark_stuck(self, service: Identity) -> None:
        """End the turn of a function that has rolled for too long, mark the function as stuck, and
        enqueue the waiting functions of its owner's namespace, so that their conditions report the
        stuck one. If the function wasn't Ready when the operator started, only end its turn."""
        turn = self._rolling.pop(service)
        if service in self._inherited:
            self._inherited.discard(service)
            return
        log.warning("Knative Service %s is not Ready %g s after its roll", service, ROLL_TIMEOUT)
        self._stuck[service] = turn.namespace
        for waiting in self._waiting.values():
            if waiting.namespace == turn.namespace:
                self._enqueue(waiting.key)

    async def _load_unfinished(self, cluster: Cluster) -> None:
        """Give a turn to each Service that was rolling when the operator started; reads them at the
        first call only. Raises `ClusterError`."""
        async with self._loading:
            if self._is_loaded:
                return
            for service in await cluster.list(SERVING, "Service", FUNCTION_LABELS):
                # A new function needs no turn, and has no earlier Ready Revision.
                ready_revision = (service.get("status") or {}).get("latestReadyRevisionName")
                if ready_revision and not _is_rolled_out(service):
                    identity = Identity.of(service)
                    # Its owner's namespace counts only once it is stuck, and it never becomes that.
                    self._rolling[identity] = _RollTurn(_now(), identity.namespace)
                    self._inherited.add(identity)
            self._is_loaded = True

    def _enqueue_waiting(self) -> None:
        """Enqueue as many waiting functions as there are free turns, so that they request one."""
        free_turns = self.at_most - len(self._rolling)
        for service, waiting in list(self._waiting.items()):
            if free_turns <= 0:
                return
            if self._may_roll(service, waiting):
                free_turns -= 1
                self._enqueue(waiting.key)
                # Move it to the end, in case its object doesn't request the turn any more.
                self._waiting[service] = self._waiting.pop(service)

    def _may_roll(self, service: Identity, waiting: _Waiting) -> bool:
        """Whether a function that waits or requests a turn may roll now."""
        return roll_rules.may_roll(
            service, waiting.namespace, self._rolling, self._stuck, self.at_most
        )


def _is_rolled_out(service: Mapping[str, Any]) -> bool:
    """Whether a Knative Service is Ready with its newest Revision."""
    reported = service.get("status") or {}
    newest = reported.get("latestCreatedRevisionName")
    return status.is_ready(service) and newest == reported.get("latestReadyRevisionName")


def _now() -> float:
    """Return the event loop's time, in seconds."""
    return asyncio.get_running_loop().time()


async def apply_service(
    cluster: Cluster,
    manifest: Mapping[str, Any],
    owner: Resource | None = None,
    rolls: Rolls | None = None,
    key: Key | None = None,
) -> str:
    """Apply a function's Knative Service; returns the name of its newest Revision. Raises
    `NotReady` while that Revision isn't Ready, or if a Service of that name has another owner or is
    refused; raises `ClusterError`.

    `owner` None: the Service belongs to all KafkaChannels. `rolls` limits how many functions roll
    at a time; None: the Service is applied at once. A Service that must wait for its turn gets only
    its owner's edits now. At its turn `key` is enqueued (None: the owner's key; so `key` is
    required with `rolls` if there is no owner).
    """
    manifest = roll_rules.with_template_digest(manifest)
    service = Identity.of(manifest)
    existing = await cluster.get(SERVING, "Service", *service)
    if existing is not None:
        _check_owner(existing, service, owner)
    stored = None  # the Service in the cluster, once nothing is left to apply
    if (
        rolls is not None
        and existing is not None
        and not roll_rules.is_up_to_date(existing, manifest)  # so applying it would roll it
    ):
        if key is None:
            assert owner is not None
            key = owner.kind, owner.metadata.namespace, owner.metadata.name
        namespace = service.namespace if owner is None else owner.metadata.namespace
        if not await rolls.request_turn(cluster, service, namespace, key):
            # Until its turn the function keeps its image, and gets only its owner's edits.
            if roll_rules.is_edited(existing, manifest):
                manifest = roll_rules.with_running_image(existing, manifest)
            else:
                stored = existing
    if stored is None:
        stored = await _apply_manifest(cluster, manifest, rolls)
    await _check_rolled_out(cluster, stored)
    if rolls is not None and not rolls.is_waiting(service):
        rolls.end_turn(service)
    return str(stored["status"].get("latestReadyRevisionName"))


def _check_owner(existing: Mapping[str, Any], service: Identity, owner: Resource | None) -> None:
    """Check that an existing Service belongs to `owner` (None: to all KafkaChannels). Raises
    `NotReady`."""
    uid = receiver_services.CHANNELS_OWNER if owner is None else owner.metadata.uid
    if uid not in services.owner_uids(existing):
        required_owner = "all KafkaChannels" if owner is None else f"this {owner.kind}"
        raise NotReady(
            "ServiceNotOurs",
            f"Knative Service {service} exists and was not made for {required_owner}: delete or "
            "rename it",
        )


async def _check_rolled_out(cluster: Cluster, service: Mapping[str, Any]) -> None:
    """Check that a stored Service is Ready with its newest Revision. Raises `NotReady` with the
    reason, as a transient error unless the Service's condition `Ready` is False."""
    if _is_rolled_out(service):
        return
    conditions = (service.get("status") or {}).get("conditions") or ()
    has_failed = status.ready_condition(conditions).get("status") == "False"
    reason = await _explain_newest_revision(cluster, service) or status.why_not_ready(service)
    message = f"Knative Service {service['metadata']['name']}: {reason}"
    raise NotReady("FunctionNotReady", message, transient=not has_failed)


async def _apply_manifest(
    cluster: Cluster, manifest: Mapping[str, Any], rolls: Rolls | None
) -> Mapping[str, Any]:
    """Apply a Service; returns it as stored. Raises `NotReady` if the API server refuses it, after
    ending its turn in `rolls` (None: it has no turn), and `ClusterError`."""
    try:
        return await cluster.apply(manifest)
    except (Rejected, NotAllowed) as error:
        if rolls is not None:
            rolls.end_turn(Identity.of(manifest))  # a refused Service doesn't roll
        message = " - ".join(filter(None, (str(error), needed_features(str(error)))))
        raise NotReady("FunctionRejected", message) from error


async def _explain_newest_revision(cluster: Cluster, service: Mapping[str, Any]) -> str:
    """Return why a Service's newest Revision isn't Ready, such as `Unschedulable`, from the
    Revision's own conditions, which the Service doesn't repeat. Empty: they give no reason, or the
    Revision can't be read."""
    name = (service.get("status") or {}).get("latestCreatedRevisionName")
    if not name:
        return ""
    try:
        revision = await cluster.get(SERVING, "Revision", service["metadata"]["namespace"], name)
    except ClusterError:
        return ""  # the Revision's reason is only a detail
    reason = status.why_revision_is_not_ready(revision or {})
    return f"Revision {name}: {reason}" if reason else ""


async def delete_service(
    cluster: Cluster, name: str, owner: Resource, namespace: str | None = None
) -> None:
    """Delete a function's Service if it exists and belongs to `owner`. `namespace` is the
    Service's; None: the same as the owner's. Raises `ClusterError`."""
    namespace = namespace or owner.metadata.namespace
    existing = await cluster.get(SERVING, "Service", namespace, name)
    if existing is not None and services.is_owned(existing, owner):
        await cluster.delete(SERVING, "Service", namespace, name)


async def check_old_pods_gone(
    cluster: Cluster, namespace: str, service: str, revision: str | None
) -> None:
    """Check that a Knative Service has no running pod of another Revision than `revision`, the
    Ready one (None: no Revision is Ready, so every pod is old). Raises a transient `NotReady`.

    A dispatcher that drains without requests, for min-scale, goes on in an old pod for half a
    minute or more, as Knative keeps the pod for late requests. Raises `ClusterError`.
    """
    labels = {"serving.knative.dev/service": service}
    running_revisions = {
        pod["metadata"]["labels"].get("serving.knative.dev/revision", "")
        for pod in await cluster.list(CORE, "Pod", labels, namespace)
        if _runs_function(pod)
    }
    old_revisions = running_revisions - {revision}
    if old_revisions:
        message = f"pods of the previous Revision still deliver: {', '.join(sorted(old_revisions))}"
        raise NotReady("OldRevisionDelivers", message, transient=True)


def _runs_function(pod: Mapping[str, Any]) -> bool:
    """Whether a pod still runs its function; Knative's proxy in the same pod runs longer."""
    container_statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(
        "running" in container["state"]
        for container in container_statuses
        if container["name"] != "queue-proxy"
    )
