"""Operation: decides the status of an observed DeadLetterReplay or DeadLetterPurge. Pure.

    Pending (its archive isn't fit) -> Queued -> Running -> Succeeded
                                         ^          |-----> Failed, after `MAX_ATTEMPTS`
                                         '- again --'

The operation's archive creates the Job, deletes it once the operation's status has its outcome, and
runs queued operations (`is_queued`) one by one (`archives.decide`). Repeating an attempt is safe: a
replay sends each event once for its replay id, which is the operation's UID; a purge deletes what
an earlier attempt has left; both exclude failures that are newer than the operation
(`manifests.operation_arguments`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.archives.model import ARCHIVE
from knafka_operator.archives.operation_model import Operation, Replay
from knafka_operator.archives.runs import (
    failure_message,
    job_outcome,
    object_name,
    parse_run_report,
    parse_timestamp,
    start_time,
    terminated_state,
    timestamp,
    why_not_started,
)
from knafka_operator.decisions.effects import Delete, Effect, ObjectName
from knafka_operator.decisions.observed import ObservedObject
from knafka_operator.decisions.status import (
    ARCHIVE_READY,
    BROKER_READY,
    JOB_SUCCEEDED,
    OPERATION_CONDITIONS,
    STORAGE_READY,
    TOPICS_READ,
    ConditionSet,
    NotReady,
    is_condition_true,
    why_not_ready,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.model.conditions import SUCCEEDED
from knafka_operator.model.resources import FINALIZER
from knafka_operator.model.sensors import KNAFKA

MAX_ATTEMPTS: Final = 4
"""Failed attempts after which an operation has failed for good."""
FIRST_RETRY: Final = 60.0
"""Seconds between the first failed attempt and the next; doubled each time: 60, 120, 240."""
RECHECK_SECONDS: Final = 30.0
"""Seconds until an unfinished operation is reconciled again, if nothing changes."""
FINISHED_RECHECK_SECONDS: Final = 86_400.0
"""Seconds until a finished operation is reconciled again."""

FINISHED: Final = ("Succeeded", "Failed")
"""Phases of operations that have ended."""
QUEUED: Final = "Queued"
"""Phase of operations, and of archives, that wait until a Job may be created."""

REPLAY_COUNTS: Final = {"would_send": "selected", "sent": "sent", "left_out": "leftOut"}
PURGE_COUNTS: Final = {"would_purge": "selected", "purged": "purged"}
"""The status field for each count in the report of a replay's or a purge's Job."""


@dataclass(frozen=True)
class ObservedOperation(ObservedObject):
    """An operation and everything read for its decision."""

    operation: Operation | InvalidDocument
    archive: Mapping[str, Any] | None = None
    """The stored archive; None: it doesn't exist, or wasn't read."""
    jobs: Sequence[Mapping[str, Any]] = ()
    """The operation's own Jobs."""
    pods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last pod of each of these Jobs, by the Job's name."""
    deletion_tried: bool = False
    """Whether the effect that deletes the operation has run, successfully or not."""

    @property
    def status(self) -> Mapping[str, Any]:
        """Return the stored status; empty if there is none."""
        return self.document.get("status") or {}

    def after(self, effect: Effect, result: Any) -> ObservedOperation:
        """Return a copy with `deletion_tried`: the deletion is an operation's only effect."""
        return replace(self, deletion_tried=True)

    def with_failure(self, effect: Effect, error: KnafkaError) -> ObservedOperation:
        """Return a copy with `deletion_tried`: the deletion has failed, and is tried again at the
        next reconciliation."""
        return replace(self, deletion_tried=True)


@dataclass(frozen=True, slots=True)
class OperationDecision:
    """An operation's new status, when to reconcile it again, and whether to delete it."""

    status: Mapping[str, Any]
    """The whole status; empty: it stays unchanged."""
    requeue_after: float
    """Seconds until the operation is reconciled again, if nothing changes."""
    effects: tuple[Effect, ...] = ()
    """The deletion of the operation; empty: it isn't deleted now."""


def decide(observed: ObservedOperation, now: datetime) -> OperationDecision:
    """Decide an operation's status, by the first of these that applies: it has finished, so only
    its deletion is decided; it is invalid; a Job runs or has succeeded; too many attempts have
    failed; its archive isn't ready. Else it is queued."""
    if is_finished(observed.status):
        ended = observed.status.get("completionTime") or timestamp(now)
        decision = _decision_after_end(observed, ended, now)
        # A deletion that was tried isn't repeated in this reconciliation.
        return replace(decision, effects=()) if observed.deletion_tried else decision
    steps = _OperationSteps(observed, now)
    status, conditions, operation = steps.status, steps.conditions, observed.operation
    if isinstance(operation, InvalidDocument):  # the spec can't change, so it stays invalid
        conditions.fail(JOB_SUCCEEDED, operation)
        return steps.decision("Failed", str(operation))
    # Before the check of the archive: a Job that was created already runs to its end, even if the
    # archive isn't ready any more. The call also counts a failed Job in `status`.
    if (decision_by_jobs := _decide_by_jobs(operation, steps)) is not None:
        return decision_by_jobs
    # The failure of a Job that was just counted, else the recorded one.
    failure = status.get("lastFailure") or observed.status.get("lastFailure") or {}
    if status["attempts"] >= MAX_ATTEMPTS:
        message = f"{status['attempts']} attempts failed, the last with: {failure.get('message')}"
        conditions.set_true(ARCHIVE_READY)
        conditions.fail(JOB_SUCCEEDED, NotReady("JobFailed", message))
        return steps.decision("Failed", message)
    with conditions.step(ARCHIVE_READY):
        _check_archive(operation, observed.archive)
    if not conditions.holds(ARCHIVE_READY):
        steps.set_waiting("ArchiveNotReady", "it begins once its archive is ready")
        return steps.decision("Pending", conditions.by_type()[ARCHIVE_READY].message)
    message = _queue_message(observed.archive, {**observed.status, **status})
    steps.set_waiting("Retrying" if failure else "Queued", message)
    return steps.decision(QUEUED, message)


class _OperationSteps:
    """One operation's conditions and status while its decision is made."""

    def __init__(self, observed: ObservedOperation, now: datetime) -> None:
        """Begin with undecided conditions, and with the stored number of failed attempts."""
        self.observed = observed
        self.now = now
        self.conditions = ConditionSet(OPERATION_CONDITIONS, SUCCEEDED)
        self.status: dict[str, Any] = {
            "observedGeneration": observed.document["metadata"].get("generation", 0),
            "attempts": observed.status.get("attempts", 0),
            "job": "",
        }
        if isinstance(observed.operation, Replay):
            self.status["replayID"] = observed.operation.metadata.uid

    def set_waiting(self, reason: str, message: str) -> None:
        """Set `JobSucceeded` to Unknown with this reason and message."""
        self.conditions.fail(JOB_SUCCEEDED, NotReady(reason, message, transient=True))

    def decision(self, phase: str, message: str = "") -> OperationDecision:
        """Return the decision for this phase, with the conditions and status set so far. If the
        phase is one of `FINISHED`, the status also gets the completion time."""
        observed, status, now_text = self.observed, self.status, timestamp(self.now)
        status.update(phase=phase, message=message)
        previous_conditions = observed.status.get("conditions") or ()
        status["conditions"] = self.conditions.merge_into(previous_conditions, now_text)
        if phase not in FINISHED:
            return OperationDecision(status, RECHECK_SECONDS)
        status["completionTime"] = now_text
        # Only the delay: the deletion waits until the operation's status has been written.
        requeue_after = _decision_after_end(observed, now_text, self.now).requeue_after
        return OperationDecision(status, requeue_after)


def _decide_by_jobs(operation: Operation, steps: _OperationSteps) -> OperationDecision | None:
    """Return the decision if a Job of the operation runs, or has succeeded since the last decision;
    None: there is no such Job. Side effect: a Job that has failed since the last decision is
    counted as an attempt in the status of `steps`."""
    observed, status, now = steps.observed, steps.status, timestamp(steps.now)
    for job in sorted(observed.jobs, key=lambda job: str(job["metadata"]["creationTimestamp"])):
        name, pod = object_name(job), observed.pods.get(object_name(job))
        status["startTime"] = observed.status.get("startTime") or start_time(job) or now
        steps.conditions.set_true(ARCHIVE_READY)
        if not (outcome := job_outcome(job)):
            status["job"] = name
            start_problem = why_not_started(pod) if pod is not None else ""
            message = f"Job {name} doesn't start: {start_problem:.500}" if start_problem else ""
            steps.set_waiting(
                "JobNotStarted" if message else "Running", message or f"Job {name} runs"
            )
            return steps.decision("Running", message)
        if has_outcome_of(name, observed.status):
            continue  # an earlier decision has recorded how the Job ended
        status["lastJob"] = name
        report = parse_run_report(terminated_state(pod).get("message") or "")
        if outcome == "Complete":
            steps.conditions.set_true(JOB_SUCCEEDED)
            status |= _counts_of_job(operation, report)
            return steps.decision("Succeeded")
        status["attempts"] += 1
        status["lastFailure"] = {"time": now, "message": failure_message(job, pod, report)}
        return None  # later Jobs, if any, are counted by the next decisions
    return None


def is_finished(status: Mapping[str, Any]) -> bool:
    """Whether an operation has succeeded or failed for good, by its status."""
    return status.get("phase") in FINISHED


def is_queued(document: Mapping[str, Any]) -> bool:
    """Whether an operation waits for its archive to create a Job, now or after `retry_at`: it has
    the finalizer, it isn't being deleted, and the status of its present generation is `QUEUED`."""
    metadata, status = document["metadata"], document.get("status") or {}
    return (
        status.get("phase") == QUEUED
        and status.get("observedGeneration") == metadata.get("generation", 0)
        and FINALIZER in (metadata.get("finalizers") or ())
        and "deletionTimestamp" not in metadata
    )


def retry_at(status: Mapping[str, Any]) -> datetime | None:
    """Return the time before which an operation with failed attempts isn't retried, by its status;
    None: no attempt has failed."""
    attempts, last_failure = status.get("attempts", 0), status.get("lastFailure") or {}
    if not attempts or not last_failure.get("time"):
        return None
    return parse_timestamp(last_failure["time"]) + timedelta(
        seconds=FIRST_RETRY * 2.0 ** (attempts - 1)
    )


def has_outcome_of(job: str, status: Mapping[str, Any]) -> bool:
    """Whether an operation's status records how this Job ended."""
    return bool(status.get("lastJob") == job)


def _check_archive(operation: Operation, archive: Mapping[str, Any] | None) -> None:
    """Check that the operation's archive exists (`archive` isn't None) and can run Jobs. Raises
    `NotReady`."""
    name = operation.spec.archive
    if archive is None or "deletionTimestamp" in archive["metadata"]:
        message = (
            f"{ARCHIVE} {name} does not exist in {operation.metadata.namespace}: make it, or "
            f"delete this {operation.kind} and make one that names another"
        )
        raise NotReady("ArchiveDoesNotExist", message, transient=True)
    status = archive.get("status") or {}
    # The conditions that every Job needs; the archive's own last Job may have failed.
    needed_types = (BROKER_READY, STORAGE_READY, TOPICS_READ)
    if not all(is_condition_true(status, condition_type) for condition_type in needed_types):
        message = f"{ARCHIVE} {name} is not ready: {why_not_ready(archive)}"
        raise NotReady("ArchiveNotReady", message, transient=True)


def _queue_message(archive: Mapping[str, Any] | None, status: Mapping[str, Any]) -> str:
    """Return a sentence for users that says why a queued operation doesn't run yet: its last
    attempt failed and the next one must wait; else what its archive does. `status` is the
    operation's stored status, updated with the new decision."""
    if (retry_time := retry_at(status)) is not None:
        failure = status["lastFailure"].get("message", "")
        attempt_text = f"attempt {status['attempts']} of {MAX_ATTEMPTS} failed: {failure}"
        return f"{attempt_text}; the next begins after {timestamp(retry_time)}"
    archive_status = (archive or {}).get("status") or {}
    if job := archive_status.get("job"):
        return f"Job {job} of its archive runs"
    if archive_status.get("phase") == QUEUED:
        return "the tables of its archive are in use"
    return "its turn comes next"


def _counts_of_job(operation: Operation, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status fields with the counts in `report`, the parsed termination message of a
    Job; counts that it lacks are left out."""
    fields = REPLAY_COUNTS if isinstance(operation, Replay) else PURGE_COUNTS
    counts = {name: report[key] for key, name in fields.items() if isinstance(report.get(key), int)}
    if isinstance(triggers := report.get("triggers"), Mapping):
        counts["triggers"] = dict(triggers)
    if isinstance(events := report.get("events"), list):
        counts["events"] = events
    return counts


def _decision_after_end(
    observed: ObservedOperation, ended: str, now: datetime
) -> OperationDecision:
    """Return the decision for an operation that ended at the time `ended` (RFC 3339): delete it if
    its time to live is over, else reconcile it again at that time (at the latest after
    `FINISHED_RECHECK_SECONDS`). The status stays unchanged."""
    operation, metadata = observed.operation, observed.document["metadata"]
    if isinstance(operation, InvalidDocument):
        return OperationDecision({}, FINISHED_RECHECK_SECONDS)
    time_to_live = operation.spec.ttl_seconds_after_finished
    if time_to_live is None:
        return OperationDecision({}, FINISHED_RECHECK_SECONDS)
    # Computed in seconds: with a long time to live, the time of the deletion would overflow
    # `datetime`.
    seconds_left = time_to_live - (now - parse_timestamp(ended)).total_seconds()
    operation_name = ObjectName(
        KNAFKA, observed.document["kind"], metadata["namespace"], metadata["name"]
    )
    deletion = Delete(Step.DELETE_OPERATION, (operation_name,))
    requeue_after = min(max(1.0, seconds_left), FINISHED_RECHECK_SECONDS)
    return OperationDecision({}, requeue_after, () if seconds_left > 0 else (deletion,))
