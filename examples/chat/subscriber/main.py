"""Tells a chat of a report on dead letters: an ordinary function that knows nothing of Knafka."""

import json
import os
import sys
import urllib.request
from typing import Any

import functions_framework
from cloudevents.http import CloudEvent

TIMEOUT = 10.0


@functions_framework.cloud_event
def chat(event: CloudEvent) -> None:
    """Raises what the chat answers: then the event is tried again."""
    text = sentence_of(event.data)
    if webhook := os.environ.get("CHAT_WEBHOOK"):
        body = json.dumps({"text": text}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(webhook, body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            pass
    # One write: these functions run in threads, and print writes text and line end apart.
    sys.stdout.write(f"{text}\n")


def sentence_of(report: dict[str, Any]) -> str:
    """What `{"text": ...}` says: Slack, Mattermost, Rocket.Chat and others take it."""
    totals, changes = report["totals"], report["changes"]
    where = f"{report['namespace']}/{report['broker']}"
    link = f": {report['url']}" if report.get("url") else ""
    if not totals["unresolved"]:
        return f"No event of {where} waits to be sent again{link}"
    most = ", ".join(f"{each['trigger']} {each['unresolved']}" for each in report["triggers"][:3])
    news = ", ".join(
        f"{changes[kind]} {said}"
        for kind, said in (("new", "new"), ("growing", "growing"), ("failedAgain", "failed again"))
        if changes.get(kind)
    )
    return (
        f"{totals['unresolved']} events of {where} could not be delivered ({most})"
        f"{'; failures: ' + news if news else ''}{link}"
    )
