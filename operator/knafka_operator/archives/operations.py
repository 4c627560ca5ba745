"""Operations: writes the status of DeadLetterReplays and DeadLetterPurges, and chooses which runs
next.

    observe (its archive, its Job) -> decide (`archives.operation_decide`) -> write the status

Their archive creates and deletes their Jobs (`archives.kind`), and asks `find_next_operation` whose
turn it is. Memory holds only the candidates: each one is read from the cluster before it is chosen.

Not here: watching for changes (`engine.controller`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from knafka.core.errors import InvalidDocument
from knafka_operator.archives import operation_decide as deciding
from knafka_operator.archives.manifests import BATCH_VERSION, JOB_NAME
from knafka_operator.archives.model import ARCHIVE
from knafka_operator.archives.operation_decide import ObservedOperation, OperationDecision
from knafka_operator.archives.operation_model import (
    OPERATION_ANNOTATION,
    OPERATION_LABEL,
    OPERATIONS,
    Operation,
    parse_operation,
)
from knafka_operator.archives.runs import job_outcome, object_name, operation_uid, run_number
from knafka_operator.decisions.status import NotReady
from knafka_operator.engine.effects import Effects
from knafka_operator.engine.kind import EventNews, Kind, Reconciler, key_of
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.identity import Identity, Key
from knafka_operator.model.resources import CORE
from knafka_operator.model.sensors import KNAFKA


class _Turn(NamedTuple):
    """An operation's place in the order in which an archive runs its operations. Creation times are
    whole seconds; of two operations of the same second, a replay comes before a purge, as purged
    events can't be replayed."""

    created_at: str
    kind_index: int
    """Index of the operation's kind in `OPERATIONS`."""
    uid: str


@dataclass(eq=False, slots=True)
class _OperationRecord:
    """What the operator keeps in memory about an operation that hasn't ended."""

    key: Key
    """The operation's kind, namespace and name."""
    archive: Identity
    """The archive that the operation names."""
    turn: _Turn
    is_known_jobless: bool = False
    """Whether the operation had no Job when Jobs were last read, and no Job of it has changed
    since."""


@dataclass(frozen=True, slots=True)
class JobVerdicts:
    """Names of operations' Jobs that need attention from their archive."""

    unrecorded: frozenset[str]
    """Jobs whose outcome the operation's status doesn't have yet, so that they must stay."""
    unwanted: frozenset[str]
    """Jobs whose operation is gone or being deleted."""


@dataclass(eq=False)
class Operations(Reconciler[ObservedOperation, OperationDecision, _OperationRecord | None], Kind):
    """Reconciles all DeadLetterReplays and DeadLetterPurges; a change of one also wakes its
    archive."""

    api_version = KNAFKA
    left_behind = "its Job may still exist"
    """For users: what may still exist if a deletion was given up."""

    cluster: Cluster
    effects: Effects
    now: Callable[[], datetime]
    """Returns the time in UTC."""
    _records: dict[str, _OperationRecord] = field(default_factory=dict)
    """The record of each operation that has not finished, by its UID."""
    _requeue_delays: dict[str, float] = field(default_factory=dict)
    """Seconds until each operation is reconciled again, by the last decision; by UID."""

    # Changes of objects.

    def on_change(self, document: Document, *, gone: bool) -> Collection[Key]:
        """Record that an operation has changed or, with `gone`, was deleted. Returns the keys of
        the objects to reconcile: its archive, and the operation unless only its status has
        changed."""
        keys, archive = super().on_change(document, gone=gone), archive_of(document)
        return [*keys, (ARCHIVE, *archive)] if archive.name else keys

    def remember(self, document: Document) -> object:
        """Keep a record of an operation until it has finished; returns the record, None if the
        operation has finished."""
        metadata = document["metadata"]
        uid = metadata.get("uid", "")
        if deciding.is_finished(document.get("status") or {}):
            self._records.pop(uid, None)
        elif uid not in self._records:
            created_at, kind = str(metadata.get("creationTimestamp", "")), document["kind"]
            turn = _Turn(created_at, OPERATIONS.index(kind), uid)
            self._records[uid] = _OperationRecord(key_of(document), archive_of(document), turn)
        return self._records.get(uid)

    async def forget(self, document: Document) -> None:
        """Drop what the operator has in memory about a deleted operation."""
        uid = document["metadata"].get("uid", "")
        self._records.pop(uid, None)
        self._requeue_delays.pop(uid, None)

    def on_job(self, uid: str) -> Key | None:
        """Record that a Job of the operation with this UID has changed; returns the operation's
        key, None if it isn't known."""
        if (record := self._records.get(uid)) is None:
            return None
        record.is_known_jobless = False
        return record.key

    def has_ended(self, status: Mapping[str, Any]) -> bool:
        """Whether this status says that the operation has finished, so that it needs no
        finalizer."""
        return deciding.is_finished(status)

    def event_to_post(self, document: Document, new_status: Mapping[str, Any]) -> EventNews | None:
        """Return the Event for an operation that has just finished; None for any other change."""
        if self.has_ended(document.get("status") or {}) or not self.has_ended(new_status):
            return None
        if new_status["phase"] == "Succeeded":
            return EventNews("Normal", "Succeeded", f"{document['kind']} is done")
        return EventNews("Warning", "Failed", new_status["message"])

    def requeue_after(self, document: Document, new_status: Mapping[str, Any]) -> float | None:
        """Return the seconds until the operation is reconciled again, as last decided; never None.
        `deciding.RECHECK_SECONDS` if nothing was decided yet."""
        return self._requeue_delays.get(
            document["metadata"].get("uid", ""), deciding.RECHECK_SECONDS
        )

    # For the operations' archive.

    async def find_next_operation(self, archive: Identity) -> tuple[Operation | None, float]:
        """Return the archive's oldest queued operation that may run now (None: there is none), and
        the seconds until one whose last attempt has failed may be retried (infinite: there is
        none). Raises `ClusterError`."""
        seconds_until_retry = math.inf
        candidates = [record for record in self._records.values() if record.archive == archive]
        for record in sorted(candidates, key=lambda record: record.turn):
            document = await self.cluster.get(KNAFKA, *record.key)
            if document is None or document["metadata"].get("uid") != record.turn.uid:
                continue  # the operation was deleted
            if not deciding.is_queued(document):
                continue
            retry_time = deciding.retry_at(document["status"])
            if retry_time is not None and retry_time > (now := self.now()):
                seconds_left = (retry_time - now).total_seconds()
                seconds_until_retry = min(seconds_until_retry, seconds_left)
                continue
            operation = _parse_or_error(document)
            if not isinstance(operation, InvalidDocument):
                return operation, seconds_until_retry
        return None, seconds_until_retry

    async def find_job_verdicts(self, jobs: Sequence[Document]) -> JobVerdicts:
        """Return which of an archive's `jobs` need attention: those whose operation hasn't recorded
        their outcome yet, and those whose operation is gone or being deleted. Jobs of the archive
        itself are in neither set. Raises `ClusterError`."""
        unrecorded, unwanted = set[str](), set[str]()
        for job in jobs:
            if not (uid := operation_uid(job)):
                continue  # the archive's own Job
            metadata = job["metadata"]
            kind_and_name = (metadata.get("annotations") or {}).get(OPERATION_ANNOTATION, "")
            kind, _, name = kind_and_name.partition("/")
            document = None
            if kind in OPERATIONS and name:
                document = await self.cluster.get(KNAFKA, kind, metadata["namespace"], name)
            operation = document or {}
            operation_metadata = operation.get("metadata") or {}
            # Another UID, or none: the operation is gone, even if a new one has its name.
            if operation_metadata.get("uid") != uid or "deletionTimestamp" in operation_metadata:
                unwanted.add(object_name(job))
            elif not deciding.has_outcome_of(object_name(job), operation.get("status") or {}):
                unrecorded.add(object_name(job))
        return JobVerdicts(frozenset(unrecorded), frozenset(unwanted))

    # Reconciling.

    def ensure_record(self, document: Document) -> _OperationRecord | None:
        """Return the operation's record, created if needed; None: the operation has finished."""
        self.remember(document)
        return self._records.get(document["metadata"].get("uid", ""))

    async def observe(
        self, document: Document, record: _OperationRecord | None
    ) -> ObservedOperation:
        """Read the operation's archive, Jobs and pods, unless the operation has finished (`record`
        None). Raises `ClusterError`."""
        observed = ObservedOperation(document, _parse_or_error(document))
        return observed if record is None else await self._observe_unfinished(observed, record)

    def decide(
        self, observed: ObservedOperation, record: _OperationRecord | None
    ) -> OperationDecision:
        """Decide what to do from `observed`, and record when to reconcile again."""
        decision = deciding.decide(observed, self.now())
        self._requeue_delays[observed.document["metadata"].get("uid", "")] = decision.requeue_after
        return decision

    def status_of(
        self,
        observed: ObservedOperation,
        decision: OperationDecision,
        record: _OperationRecord | None,
    ) -> Mapping[str, Any]:
        """Return the stored status, updated with the last decision's. If the operation has finished
        by this status, also drop its record."""
        status = {**observed.status, **decision.status}
        self.remember({**observed.document, "status": status})
        return status

    async def delete(self, document: Document) -> None:
        """Delete an operation's running Job. The archive deletes an ended Job, after recording it.

        Raises `NotReady` while a Job of the operation still exists, and `ClusterError`.
        """
        jobs = await self._list_jobs(document)
        for job in jobs:
            if "deletionTimestamp" not in job["metadata"] and not job_outcome(job):
                await self.cluster.delete(BATCH_VERSION, "Job", *Identity.of(job))
        if jobs and (remaining_jobs := await self._list_jobs(document)):
            message = f"Job {object_name(remaining_jobs[0])} is being ended"
            raise NotReady("Waiting", message, transient=True)

    async def _observe_unfinished(
        self, observed: ObservedOperation, record: _OperationRecord
    ) -> ObservedOperation:
        """Return `observed` with the operation's archive, its Jobs and their pods. Jobs aren't read
        if the operation is known to have none. Raises `ClusterError`."""
        if not isinstance(observed.operation, InvalidDocument):
            archive = await self.cluster.get(KNAFKA, ARCHIVE, *record.archive)
            observed = replace(observed, archive=archive)
        if record.is_known_jobless:
            return observed
        jobs = await self._list_jobs(observed.document)
        record.is_known_jobless = not jobs
        return replace(observed, jobs=jobs, pods=await read_last_pods(self.cluster, jobs))

    async def _list_jobs(self, document: Document) -> list[Document]:
        """Return the operation's stored Jobs. Raises `ClusterError`."""
        metadata = document["metadata"]
        return await list_jobs(
            self.cluster, OPERATION_LABEL, metadata.get("uid", ""), metadata["namespace"]
        )


def archive_of(document: Document) -> Identity:
    """Return the archive that an operation names, even if the operation is invalid; its name is
    empty if the operation names none."""
    name = (document.get("spec") or {}).get("archive")
    return Identity(document["metadata"]["namespace"], name if isinstance(name, str) else "")


def _parse_or_error(document: Document) -> Operation | InvalidDocument:
    """Return the parsed operation; the error if it is invalid."""
    try:
        return parse_operation(document)
    except InvalidDocument as error:
        return error


async def list_jobs(cluster: Cluster, label: str, uid: str, namespace: str) -> list[Document]:
    """Return the Jobs whose label has this UID, in the order of their runs. Raises
    `ClusterError`."""
    jobs = await cluster.list(BATCH_VERSION, "Job", {label: uid}, namespace)
    return sorted(jobs, key=run_number)


async def read_last_pods(cluster: Cluster, jobs: Sequence[Document]) -> dict[str, Document]:
    """Return the newest pod of each of these Jobs, by the Job's name; Jobs without a pod are left
    out. Raises `ClusterError`."""
    pods = {}
    for job in jobs:
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        if job_pods := await cluster.list(CORE, "Pod", {JOB_NAME: name}, namespace):
            pods[name] = max(job_pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    return pods
