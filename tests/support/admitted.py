"""Documents as the API server hands them to the webhooks, and what is said of them."""

from __future__ import annotations

from typing import Any

from knafka.core.errors import InvalidDocument
from knafka_operator.brokers.admission import check_broker
from knafka_operator.model.resources import BROKER_CLASS
from knafka_operator.triggers.admission import check_trigger

EVENTING = "eventing.knative.dev/v1"
MAIL = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "mail"}}
DEAD = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "dead"}}
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "name": "kafka"}


def broker(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    given = {BROKER_CLASS: "kafka"} if annotations is None else annotations
    metadata = {"name": "orders", "namespace": "shop", "annotations": given}
    return {"apiVersion": EVENTING, "kind": "Broker", "metadata": metadata, "spec": spec}


def trigger(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "mail", "namespace": "shop", "annotations": annotations or {}}
    spec = {"broker": "orders", "subscriber": MAIL} | spec
    return {"apiVersion": EVENTING, "kind": "Trigger", "metadata": metadata, "spec": spec}


def without(document: dict[str, Any], *fields: str) -> dict[str, Any]:
    spec = {key: value for key, value in document["spec"].items() if key not in fields}
    return {**document, "spec": spec}


def refusal(new: dict[str, Any], old: dict[str, Any] | None = None) -> str:
    """What is said of it; empty if nothing is."""
    check = check_broker if new["kind"] == "Broker" else check_trigger
    try:
        check(new, old)
    except InvalidDocument as error:
        return str(error)
    return ""
