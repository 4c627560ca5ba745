"""Archive runs: how a Job of a DeadLetterArchive has ended, or why it doesn't start. Pure.

A Job is the archive's own run, or an operation's (`model.operations`) on its tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from knafka_operator.model.archives import RUN
from knafka_operator.model.operations import OF_OPERATION, OPERATION


def message_of(text: str) -> Mapping[str, Any]:
    """A termination message: what a run has done, or `error` with what it left instead."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, Mapping):
        return found
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return {"error": lines[-1][:1000]} if lines else {}


def outcome(job: Mapping[str, Any]) -> str:
    """Complete or Failed; empty: it runs, or its pods do."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    found = (each["type"] for each in conditions if each.get("status") == "True")
    return next((each for each in found if each in ("Complete", "Failed")), "")


def run_of(job: Mapping[str, Any]) -> int:
    return number_in(name_of(job))


def number_in(name: str) -> int:
    """The number of a Job's run, which ends its name; 0: it has none."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def name_of(job: Mapping[str, Any]) -> str:
    return str(job["metadata"]["name"])


def operation_uid(job: Mapping[str, Any]) -> str:
    """Of the operation that a Job is for; empty: it is the archive's own."""
    return str((job["metadata"].get("labels") or {}).get(OF_OPERATION, ""))


def is_recorded(job: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether the archive's status has how this Job ended."""
    last = status.get("lastOperation" if operation_uid(job) else "lastRun") or {}
    return bool(last.get("job") == name_of(job))


def recorded(
    job: Mapping[str, Any],
    ended: str,
    pod: Mapping[str, Any] | None,
    before: Mapping[str, Any],
    generation: int,
    now: datetime,
) -> Mapping[str, Any]:
    """What is written of a run that has ended: all of it in one write.

    `before` is the archive's status, `generation` that of what it is declared as.
    """
    found = message_of(terminated(pod).get("message") or "")
    succeeded = ended == "Complete"
    run = {
        "job": name_of(job),
        "outcome": "Succeeded" if succeeded else "Failed",
        "started": started(job) or written(now),
        "finished": written(now),
        **{each: found[each] for each in ("records", "missed", "purged") if each in found},
    }
    annotations = job["metadata"].get("annotations") or {}
    patch: dict[str, Any] = {"run": max(before.get("run", 0), run_of(job))}
    if succeeded:
        records = found.get("records", 0)
        patch |= {
            "archived": before.get("archived", 0) + (records if isinstance(records, int) else 0),
            # What waits came while it ran.
            "waitingSince": run["started"],
            "firstRun": before.get("firstRun") or run["started"],
        }
    if operation_uid(job):  # whose failures are its own
        if succeeded:
            patch["failures"] = 0  # it has compacted
        of = {**run, "of": annotations.get(OPERATION, "")}
        return {**patch, "lastOperation": _in_place_of(before.get("lastOperation"), of)}
    run["generation"] = generation
    if asked := annotations.get(RUN):
        patch["requested"] = asked
    if not succeeded:
        run["message"] = why(job, pod, found)
        last = _in_place_of(before.get("lastRun"), run)
        return {**patch, "lastRun": last, "failures": before.get("failures", 0) + 1}
    patch["failures"] = 0
    if isinstance(report := found.get("report"), Mapping):
        plain = {key: value for key, value in report.items() if isinstance(value, int | str)}
        patch["report"] = _in_place_of(before.get("report"), {"made": run["started"], **plain})
    return {**patch, "lastRun": _in_place_of(before.get("lastRun"), run)}


def _in_place_of(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> Mapping[str, Any]:
    """What has `now` stand in a status, into which it is merged, and nothing else of `before`."""
    return {**dict.fromkeys(before or ()), **now}


def started(job: Mapping[str, Any]) -> str:
    """When a Job was; empty: that isn't known."""
    reported = job.get("status") or {}
    return str(reported.get("startTime") or job["metadata"].get("creationTimestamp") or "")


def terminated(pod: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """How the container of a pod ended."""
    statuses: Sequence[Any] = ((pod or {}).get("status") or {}).get("containerStatuses") or ()
    found: Mapping[str, Any] = (
        next((each.get("state") or {} for each in statuses), {}).get("terminated") or {}
    )
    return found


def why(job: Mapping[str, Any], pod: Mapping[str, Any] | None, found: Mapping[str, Any]) -> str:
    if error := found.get("error"):
        return str(error)[:1000]
    reason = terminated(pod).get("reason")
    if reason not in (None, "Error", "Completed"):
        return f"its container ended: {reason}"
    conditions = (job.get("status") or {}).get("conditions") or ()
    failed: Mapping[str, Any] = next(
        (each for each in conditions if each.get("type") == "Failed"), {}
    )
    return " ".join(filter(None, (failed.get("reason"), failed.get("message")))) or "it failed"


def waits_for(pod: Mapping[str, Any]) -> str:
    """Why a pod doesn't start; empty: it has, or nothing is wrong yet."""
    status = pod.get("status") or {}
    for each in status.get("containerStatuses") or ():
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return " ".join(filter(None, (waiting["reason"], waiting.get("message"))))
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return " ".join(filter(None, (each.get("reason"), each.get("message"))))
    return ""


def written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
