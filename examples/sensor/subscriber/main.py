"""Who gets what the Sensor fires: ordinary functions, which know nothing of Sensors."""

import sys

import functions_framework
from cloudevents.http import CloudEvent


@functions_framework.cloud_event
def shipping(event: CloudEvent) -> None:
    show(f"order {event['subject']} is paid: {held(event)}")


@functions_framework.cloud_event
def mail(event: CloudEvent) -> None:
    show(f"order {event['subject']} isn't paid: {held(event)}")


def held(event: CloudEvent) -> str:
    """The ids of the events that have fired."""
    return " ".join(each["id"] for each in event.data)


def show(line: str) -> None:
    # One write: these functions run in threads, and print writes text and line end apart.
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
