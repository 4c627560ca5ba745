"""The quickstart's subscribers: ordinary functions that know nothing of Kafka or Knafka."""

import sys

import functions_framework
from cloudevents.http import CloudEvent


@functions_framework.cloud_event
def orders(event: CloudEvent) -> None:
    show(f"order {event['id']} of {event.get('subject')}: {event.data}")


@functions_framework.cloud_event
def large_orders(event: CloudEvent) -> None:
    show(f"a large order, {event['id']}: {event.get('amount')}")


@functions_framework.cloud_event
def payments(event: CloudEvent) -> None:
    """Fails, whatever comes: functions-framework answers 500, and the event is tried again."""
    show(f"payment {event['id']}: the bank does not answer")
    raise ConnectionError("the bank does not answer")


def show(line: str) -> None:
    # One write: these functions run in threads, and print writes text and line end apart.
    sys.stdout.write(f"{line}\n")
