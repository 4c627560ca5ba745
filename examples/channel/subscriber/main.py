"""The example's subscribers: ordinary functions that know nothing of Kafka or Knafka."""

import sys

import functions_framework
from cloudevents.http import CloudEvent, from_http, to_binary
from flask import Request
from flask.typing import ResponseReturnValue


@functions_framework.cloud_event
def audit(event: CloudEvent) -> None:
    show(f"{event['type']} {event['id']} of {event.get('subject')}")


@functions_framework.http
def receipts(request: Request) -> ResponseReturnValue:
    """Answers an order with a receipt, which is an event and goes to the reply address."""
    order = from_http(dict(request.headers), request.get_data())
    subject = order.get("subject") or "nobody"
    receipt = CloudEvent(
        {
            "type": "com.example.receipt",
            "source": "/receipts",
            "id": f"receipt-of-{order['id']}",
            "subject": subject,
            "datacontenttype": "application/json",
        },
        {"order": order["id"], "paid": order.data},
    )
    show(f"order {order['id']} of {subject}")
    headers, body = to_binary(receipt)
    return body, 200, headers


@functions_framework.cloud_event
def mail(event: CloudEvent) -> None:
    show(f"{event['id']} to {event.get('subject')}")


def show(line: str) -> None:
    # One write: these functions run in threads, and print writes text and line end apart.
    sys.stdout.write(f"{line}\n")
