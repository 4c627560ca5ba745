"""Figures of a cluster: what the operator's metrics say of Triggers and topics. Pure.

    knafka_trigger_lag, knafka_trigger_replicas, knafka_trigger_events_total    of each Trigger
    eventing_kafka_produced_msg_count                                           of each topic

Not here: fetching them (`metrics`), and what they mean (docs/reference/metrics.md).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from knafka.core.errors import KnafkaError
from knafka.observability import PRODUCED
from knafka_console.model.document import TriggerKind

LAG_METRIC: Final = "knafka_trigger_lag"
REPLICAS_METRIC: Final = "knafka_trigger_replicas"
EVENTS_METRIC: Final = "knafka_trigger_events_total"
LEADER_METRIC: Final = "knafka_operator_leader"
_WANTED: Final = (LAG_METRIC, REPLICAS_METRIC, EVENTS_METRIC, LEADER_METRIC, PRODUCED)


class NotFigures(KnafkaError):
    """The text isn't an operator's metrics."""


class TriggerKey(NamedTuple):
    """Which Trigger or Subscription."""

    kind: TriggerKind
    namespace: str
    name: str


@dataclass(slots=True)
class TriggerFigures:
    """The figures of one Trigger or Subscription."""

    lag: int | None = None
    replicas: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of all Triggers and topics at one moment."""

    triggers: Mapping[TriggerKey, TriggerFigures] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)
    """Topic to how many records were ever written to it, where somebody reads it."""


def read(texts: Iterable[str]) -> Figures:
    """Of the metrics of each replica of the operator: those of the one that acts, which another
    may have been until a moment ago. Raises `NotFigures`."""
    triggers: dict[TriggerKey, TriggerFigures] = defaultdict(TriggerFigures)
    written: Counter[str] = Counter()
    for text in texts:
        samples = _samples(text)
        if not any(name == LEADER_METRIC and value == 1 for name, _, value in samples):
            continue
        for name, labels, value in samples:
            if name == PRODUCED:
                written[labels["topic"]] += int(value)
            elif (key := _key(labels)) is None:
                continue
            elif name == LAG_METRIC:
                triggers[key].lag = int(value)
            elif name == REPLICAS_METRIC:
                triggers[key].replicas = int(value)
            elif name == EVENTS_METRIC:
                triggers[key].outcomes[labels["outcome"]] = int(value)
    return Figures(dict(triggers), written)


def _samples(text: str) -> list[tuple[str, Mapping[str, str], float]]:
    # Thousands of others needn't be parsed.
    lines = [line for line in text.splitlines() if line.startswith(_WANTED)]
    try:
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families("\n".join(lines) + "\n")
            for sample in family.samples
        ]
    except (ValueError, KeyError, IndexError) as error:
        raise NotFigures(f"the operator's metrics can't be read: {error}") from error


def _key(labels: Mapping[str, str]) -> TriggerKey | None:
    namespace = labels.get("namespace", "")
    if "trigger" in labels:
        return TriggerKey("Trigger", namespace, labels["trigger"])
    if "subscription" in labels:
        return TriggerKey("Subscription", namespace, labels["subscription"])
    return None
