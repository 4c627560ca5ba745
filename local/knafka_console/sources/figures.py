"""Figures of a cluster: lag, replicas and counts from the operator's metrics. Pure.

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
"""Number of a Trigger's events that wait."""
REPLICAS_METRIC: Final = "knafka_trigger_replicas"
"""Number of a Trigger's dispatchers that run."""
EVENTS_METRIC: Final = "knafka_trigger_events_total"
"""Number of a Trigger's events, by the label `outcome`."""
LEADER_METRIC: Final = "knafka_operator_leader"
"""1 in the metrics of the operator's leader."""
_METRIC_NAMES: Final = (LAG_METRIC, REPLICAS_METRIC, EVENTS_METRIC, LEADER_METRIC, PRODUCED)
"""Names of the metrics that are read."""


class InvalidMetrics(KnafkaError):
    """The text isn't an operator's metrics."""


class TriggerKey(NamedTuple):
    """Kind, namespace and name of a Trigger or Subscription."""

    kind: TriggerKind
    namespace: str
    name: str


@dataclass(slots=True)
class TriggerFigures:
    """The figures of one Trigger or Subscription."""

    lag: int | None = None
    """Number of events that wait; None if not known."""
    replicas: int = 0
    """Number of dispatchers that run."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Number of events by outcome: `read`, `filtered`, `delivered`, `retried`, `dead_lettered`."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of all Triggers, Subscriptions and topics at one moment."""

    triggers: Mapping[TriggerKey, TriggerFigures] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)
    """Number of records that were ever written to a topic, for topics that a Trigger reads."""


def parse_figures(texts: Iterable[str]) -> Figures:
    """Return the figures in the metrics of the operator's leader; empty if no replica leads.

    `texts` are the metrics of each replica of the operator, as Prometheus text. While the leader
    changes, two replicas may say that they lead; then both are read. Raises `InvalidMetrics`.
    """
    triggers: dict[TriggerKey, TriggerFigures] = defaultdict(TriggerFigures)
    written: Counter[str] = Counter()
    for text in texts:
        samples = _parse_samples(text)
        is_leader = any(name == LEADER_METRIC and value == 1 for name, _, value in samples)
        if not is_leader:
            continue
        for name, labels, value in samples:
            if name == PRODUCED:
                written[_label(name, labels, "topic")] += int(value)
            elif (key := _trigger_key(labels)) is None:
                continue
            elif name == LAG_METRIC:
                triggers[key].lag = int(value)
            elif name == REPLICAS_METRIC:
                triggers[key].replicas = int(value)
            elif name == EVENTS_METRIC:
                triggers[key].outcomes[_label(name, labels, "outcome")] = int(value)
    return Figures(dict(triggers), written)


def _label(metric: str, labels: Mapping[str, str], label: str) -> str:
    """Return the value of a sample's label. Raises `InvalidMetrics` if it has no such label."""
    if label not in labels:
        raise InvalidMetrics(f"the operator's metric {metric} has no label {label}")
    return labels[label]


def _parse_samples(text: str) -> list[tuple[str, Mapping[str, str], float]]:
    """Return name, labels and value of each sample of a metric in `_METRIC_NAMES`. Raises
    `InvalidMetrics` if the text can't be parsed."""
    # Skip the thousands of lines of other metrics before parsing.
    lines = [line for line in text.splitlines() if line.startswith(_METRIC_NAMES)]
    try:
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families("\n".join(lines) + "\n")
            for sample in family.samples
        ]
    except (ValueError, KeyError, IndexError) as error:
        raise InvalidMetrics(f"the operator's metrics can't be read: {error}") from error


def _trigger_key(labels: Mapping[str, str]) -> TriggerKey | None:
    """Return the Trigger or Subscription that a sample is about; None if it is about neither."""
    namespace = labels.get("namespace", "")
    if "trigger" in labels:
        return TriggerKey("Trigger", namespace, labels["trigger"])
    if "subscription" in labels:
        return TriggerKey("Subscription", namespace, labels["subscription"])
    return None
