"""Source handlers: the webhooks of KafkaSources, on kopf.

Registered only if sources are installed (operator/deploy/sources).

Not here: the checks (`sources.admission`).
"""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

import kopf

from knafka_operator.sources.admission import check_source, with_source_defaults
from knafka_operator.webhooks.handlers import WEBHOOK, check_admission, replace_document

KAFKA_SOURCES: Final = ("sources.knative.dev", "v1", "kafkasources")
"""API group, version and plural name, as kopf's decorators take them."""


def register(registry: kopf.OperatorRegistry) -> None:
    """Register the webhooks of KafkaSources in `registry`. Call it once for each registry."""
    webhook = {**WEBHOOK, "registry": registry}
    kopf.on.mutate(*KAFKA_SOURCES, id="default-source", **webhook)(set_kafka_source_defaults)
    kopf.on.validate(*KAFKA_SOURCES, id="check-source", **webhook)(check_kafka_source)


def set_kafka_source_defaults(patch: kopf.Patch, old: Any = None, **_: Any) -> None:
    """Fill in a KafkaSource's defaults: add to `patch` the function that replaces the object."""
    # kopf may call the function several times: with one UUID all calls have the same result.
    old_document, unique = old and dict(old), str(uuid4())
    patch.fns.append(
        lambda raw: replace_document(raw, with_source_defaults(raw, old_document, unique=unique))
    )


def check_kafka_source(body: kopf.Body, memo: kopf.Memo, old: Any = None, **_: Any) -> None:
    """Refuse an invalid KafkaSource, or a forbidden change. Raises `kopf.AdmissionError`."""
    check_admission(check_source, body, memo, old)
