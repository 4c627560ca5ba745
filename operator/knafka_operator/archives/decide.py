"""Archive: decides the status and the effects of an observed DeadLetterArchive. Pure.

    dead letters wait, a report is due     } -> a Lease for its tables -> one Job -> its outcome
    an operation on the tables is queued   }

A Job's name contains its run number, and the status counts the runs: if an operator dies between
two effects, the next one does not create a Job twice. Jobs commit their position for the archive's
own consumer group; its lag is the number of waiting dead letters. `decide` returns few effects at a
time, and is called again with their results.

An operation (`operation_decide`) has its own status, which must have the outcome before its Job is
deleted. The archive and its operations take turns at Jobs; the oldest operation comes first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar
from zoneinfo import ZoneInfo

from cronsim import CronSim

from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.archives import manifests
from knafka_operator.archives.model import ARCHIVE_LABEL, RUN_ANNOTATION, DeadLetterArchive
from knafka_operator.archives.operation_model import Operation
from knafka_operator.archives.runs import (
    is_recorded,
    job_outcome,
    object_name,
    parse_timestamp,
    run_number,
    run_number_in,
    run_status_patch,
    timestamp,
    why_not_started,
)
from knafka_operator.decisions.effects import (
    Apply,
    Create,
    Delete,
    Effect,
    ObjectName,
    Refusal,
    WriteStatus,
)
from knafka_operator.decisions.observed import ObservedObject
from knafka_operator.decisions.status import (
    BROKER_READY,
    STORAGE_READY,
    TOPICS_READ,
    ConditionSet,
    NotReady,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.dispatchers.conditions import check_broker
from knafka_operator.installation.settings import Settings
from knafka_operator.model.conditions import SUCCEEDED
from knafka_operator.model.family import BROKERS
from knafka_operator.records.delivery import BrokerState

ARCHIVE_CONDITIONS: Final = (BROKER_READY, STORAGE_READY, TOPICS_READ, SUCCEEDED)
"""Types of an archive's conditions, causes before consequences."""
RECHECK_SECONDS: Final = 30.0
"""Seconds until an archive is reconciled again if nothing changes."""
JOB_RECHECK_SECONDS: Final = 10.0
"""Seconds until the next reconciliation while its Job runs or another archive has the tables."""
FIRST_RETRY: Final = 60.0
MAX_RETRY: Final = 21_600.0
"""Seconds between a failed Job and the next: `FIRST_RETRY`, doubled each time up to `MAX_RETRY`."""

ACCOUNT_REFUSAL: Final = Refusal("this archive", "AccountNotOurs", "JobRejected")
JOB_REFUSAL: Final = Refusal("this archive", "JobNotOurs", "JobRejected")
"""The errors if the account of Jobs, or a Job, can't be created."""

K = TypeVar("K")  # the client of a Broker's Kafka, which no decision uses


@dataclass(frozen=True)
class ObservedArchive(ObservedObject, Generic[K]):
    """An archive and what its decision needs; an error stands for a value that couldn't be read."""

    archive: DeadLetterArchive | InvalidDocument
    status: Mapping[str, Any]
    """The current status, including what effects have written."""
    broker: BrokerState[K] | None = None
    """The state of the archive's Broker; None: the Broker has no topic yet."""
    stored_broker: Mapping[str, Any] | None = None
    """The Broker's stored document, read only if `broker` is None; None: it doesn't exist."""
    is_broker_ours: bool = True
    """Whether Knafka serves the Broker; True if it doesn't exist."""
    storage_problem: KnafkaError | None = None
    """The problem with the storage; None: there is none."""
    group: str = ""
    """The consumer group with which the archive's Jobs read dead letters."""
    waiting: int | KnafkaError | None = None
    """The number of waiting dead letters, or the error of reading it; None: not known yet."""
    jobs: tuple[Mapping[str, Any], ...] = ()
    """The archive's Jobs and those of its operations, in the order of their runs."""
    next_operation: Operation | None = None
    """The oldest queued operation that may run now."""
    next_operation_in: float = math.inf
    """Seconds until another queued operation may run; infinite: there is none."""
    unrecorded: frozenset[str] = frozenset()
    """Names of Jobs whose operation's status does not have their outcome yet."""
    unwanted: frozenset[str] = frozenset()
    """Names of Jobs whose operation was deleted."""
    pods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last pod of each of these Jobs, by the Job's name."""
    lease: Mapping[str, Any] | None = None
    """The stored Lease of the tables; None: it is free."""
    holder_is_gone: bool = False
    """Whether the archive that holds the Lease was deleted, and has no Job any more."""
    address: str = ""
    """The Broker's URL; empty: it has none."""
    account_applied: bool = False
    """Whether this reconciliation has applied the executors' ServiceAccount and RoleBinding."""

    @property
    def failure(self) -> KnafkaError | None:
        """Return the error of the failed effect, after which no other runs; None: none failed."""
        return next(iter(self.failed.values()), None)

    def after(self, effect: Effect, result: Any) -> ObservedArchive[K]:
        """Return a copy that includes an effect's result."""
        observed = super().after(effect, result)
        match effect:
            case WriteStatus(patch=status_patch):
                return replace(observed, status={**observed.status, **status_patch})
            case Apply(Step.APPLY_ACCOUNT):
                return replace(observed, account_applied=True)
        return observed


@dataclass(frozen=True, slots=True)
class ArchiveDecision:
    """The effects to run next, an archive's conditions and status, and when to look again."""

    effects: tuple[Effect, ...]
    conditions: ConditionSet
    status: Mapping[str, Any]
    """The status without its conditions."""
    requeue_after: float
    """Seconds until the archive is reconciled again, if nothing changes."""


class _ArchiveSteps(Generic[K]):
    """One archive's conditions and status while its decision is made."""

    def __init__(self, observed: ObservedArchive[K]) -> None:
        """Begin with undecided conditions, and with the stored counts of runs and failures."""
        self.observed = observed
        self.conditions = ConditionSet(ARCHIVE_CONDITIONS)
        self.generation: int = observed.document["metadata"].get("generation", 0)
        self.status: dict[str, Any] = {
            "observedGeneration": self.generation,
            "run": max([observed.status.get("run", 0), *map(run_number, observed.jobs)]),
            "failures": observed.status.get("failures", 0),
        }

    @property
    def idle_phase(self) -> str:
        """The phase of an archive that neither has nor needs a Job."""
        return "Failing" if self.status["failures"] else "Idle"

    def decision(
        self, *effects: Effect, phase: str, requeue_after: float = RECHECK_SECONDS
    ) -> ArchiveDecision:
        """Return the decision to run these effects and reconcile again in `requeue_after` seconds;
        put `phase` and the running Job into the status. After a failed effect, none is run."""
        jobs = self.observed.jobs
        running = next((object_name(job) for job in jobs if not job_outcome(job)), "")
        self.status.update(phase=phase, job=running)
        effects_to_run = () if self.observed.failure is not None else effects
        return ArchiveDecision(effects_to_run, self.conditions, self.status, requeue_after)

    def queued_decision(self, *effects: Effect) -> ArchiveDecision:
        """Return the decision for an archive that needs a Job, but must run these effects first, or
        wait if there are none."""
        return self.decision(*effects, phase="Queued", requeue_after=JOB_RECHECK_SECONDS)


def decide(observed: ObservedArchive[K], settings: Settings, now: datetime) -> ArchiveDecision:
    """Return an archive's conditions and status, the effects to run next (in the order of
    `ARCHIVE_ORDER`), and when to reconcile it again."""
    steps = _ArchiveSteps(observed)
    _set_conditions(steps, now)
    if observed.jobs:  # also if a condition has failed
        return _decide_about_job(observed.jobs[0], steps, now)
    own_holder = lease_holder(observed.document)
    own_lease = observed.lease
    if own_lease is not None and own_lease["spec"].get("holderIdentity") != own_holder:
        own_lease = None  # another archive holds it
    release_effects = () if own_lease is None else (_lease_deletion(own_lease, settings),)
    archive = observed.archive
    if isinstance(archive, InvalidDocument) or not steps.conditions.holds(
        BROKER_READY, STORAGE_READY, TOPICS_READ
    ):
        return steps.decision(*release_effects, phase=steps.idle_phase)
    status = {**observed.status, **steps.status}
    is_run_due, includes_report, recheck_seconds = _find_due_run(archive, status, now)
    operation = observed.next_operation
    if is_run_due and not _is_last_run_own(observed.status):
        operation = None  # the last Job was an operation's: now it is the archive's turn
    if not is_run_due and operation is None:
        delay = min(recheck_seconds, observed.next_operation_in)
        return steps.decision(*release_effects, phase=steps.idle_phase, requeue_after=delay)

    storage_root = manifests.storage_root(archive.metadata.namespace, archive.spec.storage)
    lease = manifests.lease_manifest(storage_root, own_holder, now, settings)
    if observed.lease is None:
        return steps.queued_decision(Create(Step.TAKE_LEASE, lease))
    if own_lease is None:
        if not observed.holder_is_gone:
            return steps.queued_decision()  # wait for the other archive
        # With its version, the API server refuses the Lease if another archive was quicker.
        version = observed.lease["metadata"].get("resourceVersion")
        lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": version}}
        return steps.queued_decision(Apply(Step.REPLACE_LEASE, (lease,)))
    if archive.spec.executors and not observed.account_applied:
        account = manifests.account_manifests(archive)
        return steps.queued_decision(Apply(Step.APPLY_ACCOUNT, account, ACCOUNT_REFUSAL))
    creation = _job_creation(archive, operation, includes_report, steps, settings)
    return steps.queued_decision(creation)


def _set_conditions(steps: _ArchiveSteps[K], now: datetime) -> None:
    """Decide all conditions, and put the number of waiting dead letters into the status."""
    observed, conditions, archive = steps.observed, steps.conditions, steps.observed.archive
    if isinstance(archive, InvalidDocument):
        conditions.fail(STORAGE_READY, archive)
    else:
        with conditions.step(BROKER_READY):
            if not observed.is_broker_ours:
                message = f'Broker "{archive.spec.broker}" is another implementation\'s'
                raise NotReady("BrokerNotOurs", message)
            if observed.broker is None:  # raises; a Broker with a topic needn't be Ready
                check_broker(BROKERS, archive.spec.broker, None, None, observed.stored_broker)
        with conditions.step(STORAGE_READY):
            if observed.storage_problem is not None:
                raise observed.storage_problem
        with conditions.step(TOPICS_READ):
            if isinstance(observed.waiting, KnafkaError):
                raise observed.waiting
            if observed.waiting is None:
                raise NotReady("Waiting", "dead letters aren't counted yet", transient=True)
            steps.status |= _waiting_status(observed.waiting, observed.status, now)
    _set_succeeded_condition(conditions, observed)


def _decide_about_job(
    job: Mapping[str, Any], steps: _ArchiveSteps[K], now: datetime
) -> ArchiveDecision:
    """Return the decision about an existing Job. Once it has ended, record its outcome, then delete
    it when its operation (if any) has the outcome, too. Delete a running Job only if its operation
    was deleted."""
    observed, name, outcome = steps.observed, object_name(job), job_outcome(job)
    if outcome and not is_recorded(job, observed.status):
        status_patch = run_status_patch(
            job, outcome, observed.pods.get(name), observed.status, steps.generation, now
        )
        record = WriteStatus(Step.RECORD_RUN, status_patch)
        return steps.decision(record, phase="Ending", requeue_after=JOB_RECHECK_SECONDS)
    if outcome:
        phase, may_delete = "Ending", name not in observed.unrecorded
    else:
        phase, may_delete = "Running", name in observed.unwanted
    is_being_deleted = "deletionTimestamp" in job["metadata"]
    effects = (_job_deletion(job),) if may_delete and not is_being_deleted else ()
    return steps.decision(*effects, phase=phase, requeue_after=JOB_RECHECK_SECONDS)


def _job_creation(
    archive: DeadLetterArchive,
    operation: Operation | None,
    includes_report: bool,
    steps: _ArchiveSteps[K],
    settings: Settings,
) -> Create:
    """Return the effect that starts the next Job: of `operation` or, if that is None, the archive's
    own, which writes a report if `includes_report`."""
    observed = steps.observed
    assert observed.broker is not None  # else `BrokerReady` wouldn't be True
    job = manifests.job_manifest(
        archive,
        steps.status["run"] + 1,
        observed.group,
        observed.broker.defaults.kafka.bootstrap_servers,
        observed.broker.secret,
        settings,
        report=includes_report,
        address=observed.address,
        operation=operation,
    )
    return Create(Step.CREATE_JOB, job, JOB_REFUSAL, label=ARCHIVE_LABEL)


def _job_deletion(job: Mapping[str, Any]) -> Delete:
    """Return the effect that deletes a Job."""
    namespace = job["metadata"]["namespace"]
    name = ObjectName(manifests.BATCH_VERSION, "Job", namespace, object_name(job))
    return Delete(Step.DELETE_JOB, (name,))


def _lease_deletion(lease: Mapping[str, Any], settings: Settings) -> Delete:
    """Return the effect that deletes the Lease, so that another archive can take it."""
    location = manifests.COORDINATION, "Lease", settings.namespace
    return Delete(Step.RELEASE_LEASE, (ObjectName(*location, lease["metadata"]["name"]),))


def _waiting_status(
    waiting: int, previous_status: Mapping[str, Any], now: datetime
) -> Mapping[str, Any]:
    """Return the status fields: how many dead letters wait, and since when (empty if none)."""
    since = (previous_status.get("waitingSince") or timestamp(now)) if waiting else ""
    return {"waiting": waiting, "waitingSince": since}


def _find_due_run(
    archive: DeadLetterArchive, status: Mapping[str, Any], now: datetime
) -> tuple[bool, bool, float]:
    """Return three values: whether a run of the archive itself is due by its `status`, whether the
    run includes a report, and the seconds after which to look again if no run is due."""
    rules, seconds = archive.spec.compaction, RECHECK_SECONDS
    waiting = status.get("waiting", 0)
    are_enough = waiting >= rules.number
    are_old_enough = False
    if waiting:
        since = parse_timestamp(status["waitingSince"])
        seconds_left = rules.age - (now - since).total_seconds()
        are_old_enough, seconds = seconds_left <= 0, min(seconds, max(1.0, seconds_left))
    run_annotation = archive.metadata.annotations.get(RUN_ANNOTATION, "")
    is_requested = bool(run_annotation) and run_annotation != status.get("requested", "")
    # Without any dead letters a report would be empty.
    may_report = archive.spec.report is not None and bool(status.get("archived") or waiting)
    is_report_due = may_report and _next_report_time(archive, status) <= now
    retry_time = _next_retry_time(archive, status)
    if retry_time is not None and now < retry_time and not is_requested:
        return False, False, min(RECHECK_SECONDS, max(1.0, (retry_time - now).total_seconds()))
    is_due = are_enough or are_old_enough or is_report_due or is_requested
    return is_due, may_report and (is_report_due or is_requested), seconds


def _is_last_run_own(status: Mapping[str, Any]) -> bool:
    """Whether the last Job was the archive's own; False: an operation's, or there is none."""
    own_job = (status.get("lastRun") or {}).get("job", "")
    operation_job = (status.get("lastOperation") or {}).get("job", "")
    return run_number_in(own_job) > run_number_in(operation_job)


def _next_report_time(archive: DeadLetterArchive, status: Mapping[str, Any]) -> datetime:
    """Return when the next report is due by schedule, counted from the last report, else the first
    run, else the first waiting dead letter; the latest `datetime` if none is due any more."""
    assert archive.spec.report is not None
    last_made = (status.get("report") or {}).get("made")
    since = last_made or status.get("firstRun") or status["waitingSince"]
    zone = ZoneInfo(archive.spec.report.time_zone)
    moments = CronSim(archive.spec.report.schedule, parse_timestamp(since).astimezone(zone))
    return next(moments, datetime.max.replace(tzinfo=zone))


def _next_retry_time(archive: DeadLetterArchive, status: Mapping[str, Any]) -> datetime | None:
    """Return when the archive's next Job may run after failures. None: at once, as the last one
    hasn't failed, or the archive was changed since."""
    last, failures = status.get("lastRun") or {}, status.get("failures", 0)
    if not failures or last.get("generation") != archive.metadata.generation:
        return None
    return parse_timestamp(last["finished"]) + timedelta(seconds=retry_after(failures))


def retry_after(failures: int) -> float:
    """Return the seconds until the next Job after `failures` (1 or more) in a row."""
    return float(min(FIRST_RETRY * 2.0 ** min(failures - 1, 16), MAX_RETRY))  # 16: no overflow


def lease_holder(document: Mapping[str, Any]) -> str:
    """Return the identity of the archive `document` as a Lease's holder: `NAMESPACE/NAME/UID`."""
    metadata = document["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}/{metadata.get('uid', '')}"


def _set_succeeded_condition(conditions: ConditionSet, observed: ObservedArchive[K]) -> None:
    """Decide `SUCCEEDED`: False after a failed effect, for a pod that doesn't start, and after
    failed Jobs of the archive itself."""
    last = observed.status.get("lastRun") or {}
    with conditions.step(SUCCEEDED):
        if observed.failure is not None:
            raise observed.failure
        for job in observed.jobs:
            pod = observed.pods.get(object_name(job))
            if not job_outcome(job) and pod is not None and (problem := why_not_started(pod)):
                message = f"Job {object_name(job)} doesn't start: {problem:.500}"
                raise NotReady("JobNotStarted", message)
        if observed.status.get("failures", 0):
            times = observed.status["failures"]
            message = f"Job {last.get('job')} failed ({times} in a row): {last.get('message', '')}"
            raise NotReady("JobFailed", message)
