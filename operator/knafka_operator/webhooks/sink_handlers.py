"""Sink handlers: the webhooks of KafkaSinks, on kopf.

Registered only if sinks are installed (operator/deploy/sinks).

Not here: the checks (`sinks.admission`).
"""

from __future__ import annotations

from typing import Any, Final

import kopf

from knafka_operator.sinks.admission import check_sink, with_sink_defaults
from knafka_operator.webhooks.handlers import WEBHOOK, check_admission, replace_document

KAFKA_SINKS: Final = ("eventing.knative.dev", "v1alpha1", "kafkasinks")
"""API group, version and plural name, as kopf's decorators take them."""


def register(registry: kopf.OperatorRegistry) -> None:
    """Register the webhooks of KafkaSinks in `registry`. Call it once for each registry."""
    webhook = {**WEBHOOK, "registry": registry}
    kopf.on.mutate(*KAFKA_SINKS, id="default-sink", **webhook)(set_kafka_sink_defaults)
    kopf.on.validate(*KAFKA_SINKS, id="check-sink", **webhook)(check_kafka_sink)


def set_kafka_sink_defaults(patch: kopf.Patch, **_: Any) -> None:
    """Fill in a KafkaSink's defaults: add to `patch` the function that replaces the object."""
    patch.fns.append(lambda raw: replace_document(raw, with_sink_defaults(raw)))


def check_kafka_sink(body: kopf.Body, memo: kopf.Memo, old: Any = None, **_: Any) -> None:
    """Refuse an invalid KafkaSink, or a forbidden change. Raises `kopf.AdmissionError`."""
    check_admission(check_sink, body, memo, old)
