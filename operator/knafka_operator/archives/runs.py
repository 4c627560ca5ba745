"""Archive runs: reads from a DeadLetterArchive's Job how it ended, or why it doesn't start. Pure.

A Job is the archive's own run, or an operation's (`archives.operation_model`) on its tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from knafka_operator.archives.model import RUN_ANNOTATION
from knafka_operator.archives.operation_model import OPERATION_ANNOTATION, OPERATION_LABEL


def parse_run_report(text: str) -> Mapping[str, Any]:
    """Parse `text`, the termination message of a Job's container, which is the JSON report of a
    run. Any other text counts as the end of a log, for which the result is `{"error": LAST LINE}`;
    for an empty text it is `{}`."""
    try:
        report = json.loads(text)
    except ValueError:
        report = None
    if isinstance(report, Mapping):
        return report
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return {"error": lines[-1][:1000]} if lines else {}


def job_outcome(job: Mapping[str, Any]) -> str:
    """Return how a Job ended, `Complete` or `Failed`; empty while it or its pods run."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    true_types = (
        condition["type"] for condition in conditions if condition.get("status") == "True"
    )
    return next((type_ for type_ in true_types if type_ in ("Complete", "Failed")), "")


def run_number(job: Mapping[str, Any]) -> int:
    """Return the run number of a Job; 0: its name has none."""
    return run_number_in(object_name(job))


def run_number_in(name: str) -> int:
    """Return the run number at the end of a Job's name; 0: it has none."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def object_name(job: Mapping[str, Any]) -> str:
    """Return the name of a Job or any other object of the cluster."""
    return str(job["metadata"]["name"])


def operation_uid(job: Mapping[str, Any]) -> str:
    """Return the UID of the operation that a Job runs; empty: the Job is the archive's own."""
    return str((job["metadata"].get("labels") or {}).get(OPERATION_LABEL, ""))


def is_recorded(job: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether `status`, that of a Job's archive, already records how the Job ended."""
    last_run = status.get("lastOperation" if operation_uid(job) else "lastRun") or {}
    return bool(last_run.get("job") == object_name(job))


def run_status_patch(
    job: Mapping[str, Any],
    outcome: str,
    pod: Mapping[str, Any] | None,
    previous_status: Mapping[str, Any],
    generation: int,
    now: datetime,
) -> Mapping[str, Any]:
    """Return the patch of an archive's status that records a finished Job with this `outcome`,
    `Complete` or `Failed`.

    `pod` is the Job's last pod, whose termination message has the run's report; None: it is gone.
    `previous_status` is the archive's status until now, and `generation` its metadata's generation.
    A Job of the archive itself goes to `lastRun`, counts failures and may have made a report; one
    of an operation goes to `lastOperation`.
    """
    job_report = parse_run_report(terminated_state(pod).get("message") or "")
    succeeded, started = outcome == "Complete", start_time(job) or timestamp(now)
    run = {
        "job": object_name(job),
        "outcome": "Succeeded" if succeeded else "Failed",
        "started": started,
        "finished": timestamp(now),
        **{key: job_report[key] for key in ("records", "missed", "purged") if key in job_report},
    }
    annotations = job["metadata"].get("annotations") or {}
    patch: dict[str, Any] = {"run": max(previous_status.get("run", 0), run_number(job))}
    if succeeded:  # also for an operation's Job, which compacts dead letters before its own task
        patch |= _compaction_patch(job_report, previous_status, started)
    if operation_uid(job):  # the operation's own status counts its failures
        run["of"] = annotations.get(OPERATION_ANNOTATION, "")
        patch["lastOperation"] = _replacing_patch(previous_status.get("lastOperation"), run)
        return patch
    run["generation"] = generation
    if run_annotation := annotations.get(RUN_ANNOTATION):
        patch["requested"] = run_annotation
    if not succeeded:
        run["message"] = failure_message(job, pod, job_report)
        patch["failures"] = previous_status.get("failures", 0) + 1
    elif isinstance(report := job_report.get("report"), Mapping):
        simple_values = {
            key: value for key, value in report.items() if isinstance(value, int | str)
        }
        patch["report"] = _replacing_patch(
            previous_status.get("report"), {"made": started, **simple_values}
        )
    patch["lastRun"] = _replacing_patch(previous_status.get("lastRun"), run)
    return patch


def _compaction_patch(
    job_report: Mapping[str, Any], previous_status: Mapping[str, Any], started: str
) -> Mapping[str, Any]:
    """Return the patch of an archive's status after a run that has compacted all dead letters that
    waited when it `started` (RFC 3339)."""
    records = job_report.get("records", 0)
    new_records = records if isinstance(records, int) else 0
    return {
        "archived": previous_status.get("archived", 0) + new_records,
        # Dead letters that wait now have arrived during the run.
        "waitingSince": started,
        "firstRun": previous_status.get("firstRun") or started,
        "failures": 0,
    }


def _replacing_patch(
    previous: Mapping[str, Any] | None, replacement: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a merge patch that replaces the whole object `previous` (None: there is none) by
    `replacement`. It sets all other keys to null, as a merge patch keeps keys that it doesn't
    name."""
    return {**dict.fromkeys(previous or ()), **replacement}


def start_time(job: Mapping[str, Any]) -> str:
    """Return when a Job started, else when it was created (RFC 3339); empty: neither is known."""
    status = job.get("status") or {}
    return str(status.get("startTime") or job["metadata"].get("creationTimestamp") or "")


def terminated_state(pod: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the `terminated` state of a pod's container; empty if the container hasn't ended, or
    there is no pod (None)."""
    statuses: Sequence[Any] = ((pod or {}).get("status") or {}).get("containerStatuses") or ()
    # A Job's pod has one container.
    state = (statuses[0].get("state") or {}) if statuses else {}
    terminated: Mapping[str, Any] = state.get("terminated") or {}
    return terminated


def failure_message(
    job: Mapping[str, Any], pod: Mapping[str, Any] | None, report: Mapping[str, Any]
) -> str:
    """Return why a Job failed: from its run's `report`, else from the state of its `pod` (None: the
    pod is gone), else from the Job's own conditions."""
    if error := report.get("error"):
        return str(error)[:1000]
    reason = terminated_state(pod).get("reason")
    if reason not in (None, "Error", "Completed"):
        return f"its container ended: {reason}"
    conditions = (job.get("status") or {}).get("conditions") or ()
    failed: Mapping[str, Any] = next(
        (condition for condition in conditions if condition.get("type") == "Failed"), {}
    )
    return " ".join(filter(None, (failed.get("reason"), failed.get("message")))) or "it failed"


def why_not_started(pod: Mapping[str, Any]) -> str:
    """Return why a pod doesn't start: reason and message of its waiting container, else of its
    failed scheduling. Empty: it has started, or no problem is reported."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return " ".join(filter(None, (waiting["reason"], waiting.get("message"))))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return " ".join(filter(None, (condition.get("reason"), condition.get("message"))))
    return ""


def timestamp(moment: datetime) -> str:
    """Return a time, which must be in UTC, as RFC 3339 in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """Return the time in an RFC 3339 text, such as `2026-01-31T12:00:00Z`."""
    return datetime.fromisoformat(text)
