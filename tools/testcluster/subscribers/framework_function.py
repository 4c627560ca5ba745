"""A CloudEvent function for functions-framework that prints each event it gets and keeps nothing.

functions-framework --target count --signature-type cloudevent --source framework_function.py
"""

from __future__ import annotations

import itertools
import json

import functions_framework
from cloudevents.http.event import CloudEvent

_COUNT = itertools.count(1)


@functions_framework.cloud_event
def count(event: CloudEvent) -> None:
    """Print the event as a line of JSON, which tests find in the pod's log."""
    line = {"count": next(_COUNT), "id": event["id"], "type": event["type"], "data": event.data}
    print(json.dumps(line, default=repr), flush=True)
