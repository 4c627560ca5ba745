"""Announces a report to its Broker by an event, so that a Trigger can notify people.

    dev.knafka.deadletters.reported    from .../deadletterarchives/ARCHIVE, about the Broker

The event's id is the report's: if it is announced again, it is the same event. The event has totals
and names of Triggers only. Data of failed events are in the report, which needs a right to read.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import Counter
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote

from knafka.core.events.json_format import MEDIA_TYPE
from knafka_jobs.job_errors import JobError
from knafka_jobs.report.report_document import Report

REPORTED_EVENT_TYPE: Final = "dev.knafka.deadletters.reported"
"""Type of the event that announces a report."""
MAX_NAMED_TRIGGERS: Final = 10
"""Largest number of Triggers that the event names: those with the most unresolved events."""
ANNOUNCE_ATTEMPTS: Final = 4
"""Largest number of attempts to send the event."""
ANSWER_TIMEOUT: Final = 15.0
"""Seconds for the answer to one attempt: a Broker's receiver may have to start."""
FIRST_RETRY_PAUSE: Final = 2.0
"""Seconds before the second attempt, doubled before each further attempt."""


def announcement_event(report: Report, archive: str, console: str) -> dict[str, Any]:
    """Return the structured CloudEvent that announces an archive's report, as a JSON object.

    `archive` is the name of the DeadLetterArchive. `console` is the URL of the console that serves
    the report; if it is empty, the event has no URL of the report.
    """
    unresolved: Counter[str] = Counter()
    for group in report.groups:
        if group.trigger:  # empty: an undecodable record, which has no Trigger
            unresolved[group.trigger] += group.unresolved
    data: dict[str, Any] = {
        "namespace": report.namespace,
        "archive": archive,
        "broker": report.broker,
        "report": report.id,
        "made": report.made.isoformat(),
        "totals": report.totals.model_dump(mode="json", by_alias=True),
        "changes": report.changes.model_dump(mode="json", by_alias=True),
        "triggers": [
            {"trigger": name, "unresolved": count}
            for name, count in unresolved.most_common(MAX_NAMED_TRIGGERS)
            if count
        ],
    }
    if console:
        data["url"] = report_url(console, report.namespace or "", archive)
    return {
        "specversion": "1.0",
        "id": report.id,
        "type": REPORTED_EVENT_TYPE,
        "source": f"/apis/v1/namespaces/{report.namespace}/deadletterarchives/{archive}",
        "subject": report.broker,
        "time": report.made.isoformat(),
        "datacontenttype": "application/json",
        "data": data,
    }


def report_url(console: str, namespace: str, archive: str) -> str:
    """Return the URL under which a console serves an archive's report."""
    return f"{console.rstrip('/')}/report?of={quote(f'{namespace}/{archive}')}"


def send_event(broker: str, event: dict[str, Any]) -> None:
    """Send a CloudEvent to a Broker, whose URL is `broker`. Blocks for at most `ANNOUNCE_ATTEMPTS`
    attempts: several, as the Broker's receiver may have to start.

    Raises `JobError` if the Broker doesn't take the event.
    """
    body = json.dumps(event).encode()
    problem = ""  # why the last attempt failed
    for attempt in range(ANNOUNCE_ATTEMPTS):
        if attempt:
            time.sleep(FIRST_RETRY_PAUSE * 2 ** (attempt - 1))
        request = urllib.request.Request(
            broker, body, {"content-type": f"{MEDIA_TYPE}; charset=utf-8"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT):
                return
        except urllib.error.HTTPError as error:
            with error:
                problem = f"status {error.code}"
                # Another attempt doesn't help, except against a Broker that is being created
                # (404), has too much to do (429) or fails (5xx).
                if error.code < 500 and error.code not in (404, 429):
                    break
        except (OSError, ValueError, HTTPException) as error:
            problem = str(error)
    raise JobError(f"{broker} did not take the event: {problem}")
