"""Observability: counters in plain integers, shown as Prometheus text.

A hot path adds to an attribute or a dict, nothing else; names and labels are put together when
somebody asks. There is no registry that everything shares: each function owns its counts.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from knafka.core.contract import Egress, Ingress

Labels = Mapping[str, str]

CONSUMED: Final = "eventing_kafka_consumed_msg_count"
CONSUMED_HELP: Final = "Consumed Message Count"
PRODUCED: Final = "eventing_kafka_produced_msg_count"
PRODUCED_HELP: Final = "Produced Message Count"
"""Names that came with eventing-kafka's KafkaChannel; theirs, so gauges (DSP-16, DSP-22)."""

REPEAT_INTERVAL: Final = 10.0
"""Seconds between two log lines that differ in their numbers only."""

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family and its samples."""

    name: str
    help: str
    samples: Iterable[tuple[Labels, float]]
    kind: Literal["counter", "gauge"] = "counter"


def ingress_labels(ingress: Ingress) -> dict[str, str]:
    """The labels of what is known of one Broker or KafkaChannel."""
    what = "channel" if ingress.kind == "KafkaChannel" else "broker"
    return {"namespace": ingress.namespace, what: ingress.broker}


def egress_labels(egress: Egress) -> dict[str, str]:
    """The labels of what is known of one Trigger or Subscription."""
    if egress.kind == "Subscription":
        return {
            "namespace": egress.namespace,
            "channel": egress.broker,
            "subscription": egress.trigger,
        }
    return {"namespace": egress.namespace, "broker": egress.broker, "trigger": egress.trigger}


def consumed(samples: Iterable[tuple[str, str, Mapping[int, int]]]) -> Metric:
    """DSP-16 to DSP-18, of each consumer and topic: records by partition."""
    found = [
        ({"consumer": consumer, "partition": str(partition), "topic": topic}, count)
        for consumer, topic, counts in samples
        for partition, count in sorted(counts.items())
    ]
    return Metric(CONSUMED, CONSUMED_HELP, found, "gauge")


def produced(samples: Iterable[tuple[str, str, Mapping[int, int]]]) -> Metric:
    """DSP-22, of each producer and topic: records by partition."""
    found = [
        ({"partition": str(partition), "producer": producer, "topic": topic}, count)
        for producer, topic, counts in samples
        for partition, count in sorted(counts.items())
    ]
    return Metric(PRODUCED, PRODUCED_HELP, found, "gauge")


def prometheus_text(metrics: Iterable[Metric]) -> bytes:
    """The text exposition format, version 0.0.4."""
    lines: list[str] = []
    for metric in metrics:
        explained = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {metric.name} {explained}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels, value in metric.samples:
            inner = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{metric.name}{{{inner}}} {value}")
    return ("\n".join(lines) + "\n").encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class RateLimitedFilter(logging.Filter):
    """Lets one line of a kind through every `REPEAT_INTERVAL` seconds: while Kafka is away, the
    same line would come hundreds of times a second.

    Of a kind are lines that differ in their numbers only; `by_wording`, also those that differ in
    what is filled in: what comes with events is never the same twice.
    """

    def __init__(self, *, by_wording: bool = False) -> None:
        super().__init__()
        self._by_wording = by_wording
        self._said: dict[tuple[int, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        said = str(record.msg) if self._by_wording else _NUMBERS.sub("", record.getMessage())
        kind = record.levelno, said
        if record.created - self._said.get(kind, 0.0) < REPEAT_INTERVAL:
            return False
        if len(self._said) > 100:
            self._said.clear()
        self._said[kind] = record.created
        return True


def log_to_stderr(level: str) -> None:
    """One line per log record, on stderr, for the whole process."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
