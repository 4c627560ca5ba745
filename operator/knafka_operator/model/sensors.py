"""Sensors as declared, as far as Knafka reads them: Argo's vocabulary, on a Broker or a
KafkaChannel (BUS-S1).

Unknown fields are refused, as in `resources`; parse with `knafka.core.documents.parse`. The
delivery settings of a Sensor's trigger become those of its Knative Trigger (`delivery_of`), so this
module refuses settings that a Knative Trigger can't have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from knafka.core.contract import RateLimit
from knafka.core.documents import problem
from knafka.core.filters.filter_limits import (
    MAX_FILTER_CHARACTERS,
    beyond_limits,
    characters_of,
    too_long,
)
from knafka.core.sensor.contract import Conditions, Grace, SensorTrigger
from knafka_operator.model.family import BROKERS, CHANNELS, Family
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    KNAFKA_PREFIX,
    Declared,
    DeliverySpec,
    Destination,
    NonEmpty,
    Resource,
)

KNAFKA: Final = "knafka.dev/v1alpha1"
"""The apiVersion of Knafka's own kinds."""
SENSOR: Final = "Sensor"
SENSOR_NAME_KEY: Final = f"{KNAFKA_PREFIX}sensor"
"""Annotation of a Trigger or Subscription that delivers a Sensor's actions: the Sensor's name. Also
a label of objects created for a Sensor."""

_SECONDS_BY_GO_UNIT: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_GO_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
"""Matches one number with its unit."""

TRIGGER: Final = "trigger"
CHANGELOG: Final = "changelog"
ACTION: Final = "action"
"""The uses of a Sensor's topics, keys of `TOPICS`."""
TOPICS: Final[Mapping[str, tuple[str, str]]] = {
    TRIGGER: ("knafka.dev/trigger-topic", "knafka.dev/trigger-topic-id"),
    CHANGELOG: ("knafka.dev/changelog-topic", "knafka.dev/changelog-topic-id"),
    ACTION: ("knafka.dev/action-topic", "knafka.dev/action-topic-id"),
}
"""By use of a topic: the keys of `status.annotations` with the topic's name and id."""


def parse_go_duration(text: str) -> float | None:
    """Return the seconds of a duration in Go's form, such as `1m30s`; None if the text isn't
    one."""
    parts = _GO_DURATION_PART.findall(text)
    # `findall` skips text that doesn't match, so the parts must make up the whole text.
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _SECONDS_BY_GO_UNIT[unit] for number, unit in parts)


def _check_go_duration(text: str) -> str:
    """Return `text` unchanged. Raises a validation error unless it is a duration in Go's form."""
    if parse_go_duration(text) is None:
        raise problem(f"invalid value: {text:.80}: want one as 10s or 1m30s")
    return text


GoDuration: TypeAlias = Annotated[str, AfterValidator(_check_go_duration)]
"""The text of a duration in Go's form."""


class RetryStrategy(Declared):
    """A trigger's retries, with Argo's field names (BUS-S13)."""

    steps: Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)] = 1
    """Number of attempts, including the first."""
    duration: GoDuration = "1s"
    """The wait before the second attempt, in Go's form."""
    factor: Literal[1, 2] = 1
    """2: each wait is twice the previous one; 1: each is longer by the first wait, unlike Argo's
    equal waits, which a Trigger's delivery can't express."""
    jitter: Literal[0] = 0
    """Only 0: waits are never random."""


class DeadLetterTrigger(Declared):
    """The destination of events that could not be delivered (BUS-S13)."""

    subscriber: Destination
    at_least_once: Literal[True] = True
    """Argo's field; only true is allowed."""


class TriggerOfSensor(SensorTrigger, Declared):
    """One trigger of a Sensor: its condition, and the destination of its firings."""

    subscriber: Destination
    reply: Destination | None = None
    """Destination of replies, only on a KafkaChannel; None: replies are discarded. On a Broker
    replies go to the Broker."""
    delivery: DeliverySpec = DeliverySpec()
    """Delivery options, as in a Trigger (KN-DLV)."""
    payload: Literal["event", "batch"] = "event"
    """`event`: one event with the events as its data; `batch`: the events in batched mode."""
    retry_strategy: RetryStrategy | None = None
    """Retries in Argo's form; None: as `delivery` says."""
    rate_limit: RateLimit | None = None
    """Most delivery attempts per unit of time; None: no limit."""
    dlq_trigger: DeadLetterTrigger | None = None
    """Dead letter sink in Argo's form; None: as `delivery` says."""

    @model_validator(mode="after")
    def _check_delivery_options(self) -> Self:
        """Check that retries and dead letter sink are each declared once: in `delivery`, or by
        Argo's `retryStrategy` and `dlqTrigger`; and that a trigger with `dlqTrigger` has
        `atLeastOnce: true`. Raises a validation error."""
        declared_options = self.delivery.model_fields_set
        if self.retry_strategy and declared_options & {"retry", "backoff_policy", "backoff_delay"}:
            raise problem("say it once: beside it delivery has retries, too", "retryStrategy")
        if self.dlq_trigger and "dead_letter_sink" in declared_options:
            raise problem("say it once: beside it delivery has a deadLetterSink", "dlqTrigger")
        if self.dlq_trigger and not self.at_least_once:
            raise problem("wants atLeastOnce: true of its trigger", "dlqTrigger")
        return self


def delivery_of(trigger: TriggerOfSensor, declared: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `spec.delivery` of the Knative Trigger that delivers what a Sensor's `trigger`
    fires. `declared` is the same trigger as stored in the Sensor: its `delivery` is copied, and
    Argo's `retryStrategy` and `dlqTrigger` are translated into the copy."""
    delivery = dict(declared.get("delivery") or {})
    if (retries := trigger.retry_strategy) is not None:
        duration = parse_go_duration(retries.duration)
        assert duration is not None  # the model has checked it
        # To the nanosecond, and never in exponent notation, which ISO 8601 doesn't have.
        seconds = f"{duration:.9f}".rstrip("0").rstrip(".")
        delivery["retry"] = retries.steps - 1
        delivery["backoffDelay"] = f"PT{seconds}S"
        delivery["backoffPolicy"] = "exponential" if retries.factor == 2 else "linear"
    if trigger.dlq_trigger is not None:
        delivery["deadLetterSink"] = declared["dlqTrigger"]["subscriber"]
    return delivery


class SensorSpec(Conditions, Declared):
    """The spec of a Sensor: the bus that it reads, conditions, and the triggers that they fire."""

    broker: NonEmpty = "default"
    """The bus: a Broker of the Sensor's namespace."""
    channel: NonEmpty | None = None
    """The bus in place of a Broker: a KafkaChannel of the Sensor's namespace."""
    grace: Grace | None = None
    """Seconds by which an event's time may be earlier than that of an event that was read before
    it; None: the default."""
    triggers: tuple[TriggerOfSensor, ...]

    @model_validator(mode="before")
    @classmethod
    def _refuse_large_filters(cls, document: object) -> object:
        """Return the document unchanged. Raises a validation error if its filters, conditions and
        correlations together are too large to be parsed."""
        dependencies = _mappings_in(document, "dependencies")
        triggers = _mappings_in(document, "triggers")
        filters = [
            declared_filter
            for dependency in dependencies
            for declared_filter in _mappings_in(dependency, "filters")
        ]
        if (excess := beyond_limits(filters)) is not None:
            raise problem(f"of all dependencies: {excess}", "dependencies")
        expressions = [
            filters,
            [dependency.get("filter") for dependency in dependencies],
            [(trigger.get("conditions"), trigger.get("correlation")) for trigger in triggers],
        ]
        if characters_of(expressions, MAX_FILTER_CHARACTERS + 1) > MAX_FILTER_CHARACTERS:
            raise problem(too_long("filters, conditions and correlations"), "triggers")
        return document

    @model_validator(mode="after")
    def _check_one_bus(self) -> Self:
        """Check that the Sensor names a Broker or a channel, not both, and that only a channel's
        triggers have a reply. Raises a validation error."""
        if self.channel is not None and "broker" in self.model_fields_set:
            raise problem("expected exactly one, got both", "broker", "channel")
        replying_triggers = [
            number for number, trigger in enumerate(self.triggers) if trigger.reply is not None
        ]
        if self.channel is None and replying_triggers:
            message = "must not set the field(s): on a Broker replies go to the Broker"
            raise problem(message, *(f"triggers[{number}].reply" for number in replying_triggers))
        return self


def _mappings_in(document: object, name: str) -> list[Mapping[str, Any]]:
    """Return the mappings in the list under the key `name` of a document; other elements are left
    out. Empty if the document is no mapping, or has no list there."""
    declared = document.get(name) if isinstance(document, Mapping) else None
    entries = declared if isinstance(declared, list | tuple) else ()
    return [entry for entry in entries if isinstance(entry, Mapping)]


class Sensor(Resource):
    """A Sensor as declared."""

    spec: SensorSpec

    @property
    def bus(self) -> Bus:
        """Return the bus, the Broker or KafkaChannel that the Sensor reads."""
        namespace, spec = self.metadata.namespace, self.spec
        if spec.channel is not None:
            return Bus(CHANNELS, Identity(namespace, spec.channel))
        return Bus(BROKERS, Identity(namespace, spec.broker))


class Bus(NamedTuple):
    """The Broker or KafkaChannel whose topic a Sensor reads."""

    family: Family
    identity: Identity

    def __str__(self) -> str:
        """Return kind and name, for messages."""
        return f'{self.family.broker} "{self.identity.name}"'


def bus_of(sensor: Mapping[str, Any]) -> Bus:
    """Return the bus (Broker or KafkaChannel) that a stored Sensor names, by default the Broker
    `default`. The document needn't be valid."""
    spec, namespace = sensor.get("spec") or {}, sensor["metadata"]["namespace"]
    if channel := spec.get("channel"):
        return Bus(CHANNELS, Identity(namespace, str(channel)))
    return Bus(BROKERS, Identity(namespace, str(spec.get("broker") or "default")))
