"""Formats metrics as Prometheus text, and log records as text or JSON.

A hot path only adds to an attribute, a dict or a `Histogram`; names and labels are added when
metrics are requested. There is no shared registry: each function owns its counts.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from knafka.core.contract import Egress, Ingress

Labels = Mapping[str, str]
"""Values of a metric's labels by name."""

CONSUMED: Final = "eventing_kafka_consumed_msg_count"
CONSUMED_HELP: Final = "Consumed Message Count"
PRODUCED: Final = "eventing_kafka_produced_msg_count"
PRODUCED_HELP: Final = "Produced Message Count"
"""Names and help texts of two metrics of eventing-kafka's KafkaChannel, where they are gauges, too
(DSP-16, DSP-22)."""

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of `prometheus_text`."""

BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
"""Upper bounds of histograms, in seconds: from quick attempts to events that waited for a
subscriber."""

REPEAT_INTERVAL: Final = 10.0
"""Seconds between two log lines that differ in their numbers only."""

MAX_REMEMBERED_KINDS: Final = 100
"""Most kinds of log lines that a filter remembers; with more it forgets all of them, to bound its
memory."""

_NUMBERS = re.compile(r"\d+")
"""The numbers in a log line, in which lines of one kind may differ."""


class Histogram:
    """Counts durations (seconds) in buckets with the upper bounds `BUCKETS`."""

    __slots__ = ("_above", "_last", "_upto", "counts", "sum")

    def __init__(self) -> None:
        """Begin without observations."""
        self.counts = [0] * (len(BUCKETS) + 1)
        """Number of observations by bucket, which reaches from the previous bound to its own; the
        last bucket has no bound."""
        self.sum = 0.0
        """Sum of all observations, in seconds."""
        self._last = 0
        """Index of the last observation's bucket; the next observation mostly falls into it."""
        self._above = self._upto = 0.0
        """Bounds (seconds) of the last observation's bucket. At first they are equal, so that no
        observation lies between them."""

    def observe(self, seconds: float) -> None:
        """Count an observation in seconds."""
        # Only an observation outside the last one's bucket needs the slower search for its bucket.
        if not self._above < seconds <= self._upto:
            self._select_bucket(seconds)
        self.counts[self._last] += 1
        self.sum += seconds

    def _select_bucket(self, seconds: float) -> None:
        """Find the bucket of an observation (seconds), and make it the one to which `observe`
        adds."""
        bucket = self._last = bisect_left(BUCKETS, seconds)
        self._above = BUCKETS[bucket - 1] if bucket else -math.inf
        self._upto = BUCKETS[bucket] if bucket < len(BUCKETS) else math.inf

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def __add__(self, other: Histogram) -> Histogram:
        """Return the sum of both histograms. If one of them is empty, return the other object
        itself, not a copy."""
        # Most of a shard's Egresses are idle, and the histograms of all are added up each second.
        if not any(other.counts):
            return self
        if not any(self.counts):
            return other
        total = Histogram()
        total.counts = [
            own_count + other_count
            for own_count, other_count in zip(self.counts, other.counts, strict=True)
        ]
        total.sum = self.sum + other.sum
        return total

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield Prometheus's samples of the histogram: suffix, labels and value, with cumulative
        buckets."""
        below = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            below += count
            yield "_bucket", {"le": bound}, below
        yield "_count", {}, below
        yield "_sum", {}, self.sum


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric with its values."""

    name: str
    help: str
    """A text that explains the metric."""
    samples: Iterable[tuple[Labels, float | Histogram]]
    """A value for each set of labels: a `Histogram` if `kind` says so, else a number."""
    kind: Literal["counter", "gauge", "histogram"] = "counter"


def ingress_labels(ingress: Ingress) -> dict[str, str]:
    """Return the labels of metrics of one Broker, KafkaChannel or KafkaSink."""
    kind = ingress.kind.removeprefix("Kafka").lower()
    return {"namespace": ingress.namespace, kind: ingress.broker}


def egress_labels(egress: Egress) -> dict[str, str]:
    """Return the labels of metrics of one Trigger, Subscription or KafkaSource."""
    if egress.kind == "KafkaSource":
        return {"namespace": egress.namespace, "source": egress.trigger}
    if egress.kind == "Subscription":
        return {
            "namespace": egress.namespace,
            "channel": egress.broker,
            "subscription": egress.trigger,
        }
    return {"namespace": egress.namespace, "broker": egress.broker, "trigger": egress.trigger}


def failure_labels(failure: str) -> dict[str, str]:
    """Return the labels of a failure as `DrainCounts.failures` names it: a reason, and after a
    space the status code if there was one, such as `status 503`."""
    reason, _, code = failure.partition(" ")
    return {"reason": reason, "code": code}


def consumed_metric(samples: Iterable[tuple[str, str, Mapping[int, int]]]) -> Metric:
    """Return the metric of consumed records (DSP-16 to DSP-18). `samples`: for each consumer and
    topic, the consumer's name, the topic, and the number of records by partition."""
    labelled_samples = [
        ({"consumer": consumer, "partition": str(partition), "topic": topic}, count)
        for consumer, topic, counts in samples
        for partition, count in sorted(counts.items())
    ]
    return Metric(CONSUMED, CONSUMED_HELP, labelled_samples, "gauge")


def produced_metric(samples: Iterable[tuple[str, str, Mapping[int, int]]]) -> Metric:
    """Return the metric of produced records (DSP-22). `samples`: for each producer and topic, the
    producer's name, the topic, and the number of records by partition."""
    labelled_samples = [
        ({"partition": str(partition), "producer": producer, "topic": topic}, count)
        for producer, topic, counts in samples
        for partition, count in sorted(counts.items())
    ]
    return Metric(PRODUCED, PRODUCED_HELP, labelled_samples, "gauge")


def prometheus_text(metrics: Iterable[Metric]) -> bytes:
    """Return the metrics in Prometheus's text format (`CONTENT_TYPE`). This takes about 7 us for
    each sample: for thousands of samples, call it in a thread."""
    # Not imported at a cold start: it takes 40 ms, and most processes deliver before their metrics
    # are requested (docs/decisions/0021-prometheus-client.md).
    from prometheus_client.exposition import generate_latest
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector

    class Families(Collector):
        """The metrics in prometheus_client's form."""

        def collect(self) -> Iterator[Family]:
            """Yield each metric as a family of prometheus_client; a histogram adds a sample for
            each bucket, its count and its sum."""
            for metric in metrics:
                # prometheus_client names a counter's family without the suffix of its samples.
                name = (
                    metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
                )
                family = Family(name, metric.help, metric.kind)
                for labels, value in metric.samples:
                    if isinstance(value, Histogram):
                        for suffix, more_labels, count in value.samples():
                            family.add_sample(
                                metric.name + suffix, {**labels, **more_labels}, count
                            )
                    else:
                        family.add_sample(metric.name, dict(labels), value)
                yield family

    return generate_latest(Families())


class RateLimitedFilter(logging.Filter):
    """Passes one log line of each kind every `REPEAT_INTERVAL` seconds: while Kafka is away, the
    same line would be logged hundreds of times a second."""

    def __init__(self, *, by_wording: bool = False) -> None:
        """`by_wording` False: lines of one level are of the same kind if they differ only in
        numbers. True: lines of one level are of the same kind if their messages before formatting
        are equal; this is for messages whose values come from events and never repeat."""
        super().__init__()
        self._by_wording = by_wording
        self._logged_at: dict[tuple[int, str], float] = {}
        """When (Unix time) a line of each kind was last logged; a kind is a level and a wording."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether the record is logged, and remember it if so. `logging` calls this for each
        record."""
        wording = str(record.msg) if self._by_wording else _NUMBERS.sub("", record.getMessage())
        kind = record.levelno, wording
        if record.created - self._logged_at.get(kind, 0.0) < REPEAT_INTERVAL:
            return False
        if len(self._logged_at) > MAX_REMEMBERED_KINDS:
            self._logged_at.clear()
        self._logged_at[kind] = record.created
        return True


class JsonFormatter(logging.Formatter):
    """Formats log records as one JSON object per line. Records about an event may have the
    attributes `trace_id` and `span_id` (`extra` of the logging call), which are included."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        logged_at = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": logged_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("trace_id", "span_id"):
            if value := getattr(record, name, None):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(level: str, form: Literal["json", "text"] = "text") -> None:
    """Configure the whole process's logging: to stderr, one line in this form for each record of
    `level` or above."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        text = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(text))
    logging.basicConfig(handlers=[handler], level=level.upper())
