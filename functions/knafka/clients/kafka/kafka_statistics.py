"""librdkafka's statistics as metrics: Kafka's response times and throttling, and queued records.

    a client --at each interval--> its report, as text --metrics are requested--> parsed -> metrics

The thread that polls a client stores its reports as text. A report is parsed only when metrics are
formatted, in another thread. The clients of a process are combined, so that there is at most one
series for each of Kafka's nodes.

Not here: counts of events (`observability`).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from knafka.clients.kafka.kafka_client import Connection
from knafka.observability import Labels, Metric

STALE_INTERVALS: Final = 2.5
"""Number of intervals without a report after which a client counts as closed."""
PERCENTILES: Final = ("p50", "p99")
"""Percentiles of librdkafka's histograms that become metrics."""

_REPORT_SETTINGS: Final = frozenset({"statistics.interval.ms", "stats_cb"})
"""Names of the settings that make a client report."""
_TOPICS_FIELD: Final = '"topics":'
"""Text at which a report's topics begin. All other fields that are used come before it, and no
topic's name contains it."""
_MATCH_PRODUCER_REPORT: Final = re.compile(r'\{[^{}]*?"type":\s*"producer"').match
"""Matches the beginning of a producer's report, whose first fields include `type`; returns None for
a consumer's."""
_FIND_QUEUE_LENGTHS: Final = re.compile(r'"fetchq_(cnt|size)":\s*(\d+)').findall
"""Returns the lengths of the partitions' fetch queues as pairs: (`cnt`, number of records) and
(`size`, bytes), both as text."""

Sample: TypeAlias = tuple[Labels, float]
"""A sample of a metric: its labels and its value."""


def without_statistics(connection: Connection) -> Connection:
    """Return the connection without the settings of `ClientStatistics.connection`, for a client
    that must not report."""
    return {name: value for name, value in connection.items() if name not in _REPORT_SETTINGS}


class ClientStatistics:
    """Collects the reports of all clients that are opened with `connection`; thread-safe."""

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`interval`: seconds between two reports of a client; 0: clients don't report. `clock`
        returns seconds of any monotonic clock."""
        self._interval = interval
        self._clock = clock
        self._reports: dict[str, tuple[float, str]] = {}
        """The time and text of each client's last report, by the client's name."""
        self._lock = threading.Lock()

    @property
    def connection(self) -> Connection:
        """Configuration that makes a client report its statistics to this object; empty if the
        interval is 0, so that clients don't report."""
        if not self._interval:
            return {}
        return {
            "statistics.interval.ms": round(self._interval * 1000),
            "stats_cb": self.keep,
        }

    def keep(self, report: str) -> None:
        """Store a client's report. This is librdkafka's `stats_cb`, called on the polling thread,
        so it parses almost nothing."""
        # The first field is the client's name, which is unique in this process.
        name = report[: report.find(",")]
        if _MATCH_PRODUCER_REPORT(report):
            # A producer's report has an unused kilobyte for each of maybe thousands of partitions.
            report = report[: report.find(_TOPICS_FIELD)]
        with self._lock:
            self._reports[name] = self._clock(), report
            self._drop_stale_reports()

    def _drop_stale_reports(self) -> None:
        """Forget the reports of clients that have stopped reporting. The caller holds `_lock`."""
        fresh_since = self._clock() - STALE_INTERVALS * self._interval
        stale_names = [
            name for name, (received_at, _) in self._reports.items() if received_at < fresh_since
        ]
        for name in stale_names:
            del self._reports[name]

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the clients' last reports. The reports are parsed, and the samples
        computed, only when a metric's samples are iterated over."""
        with self._lock:
            self._drop_stale_reports()
            reports = _Reports([report for _, report in self._reports.values()])
        for name, help_text, compute_samples in _GAUGES:
            yield Metric(name, help_text, _Samples(reports, compute_samples), "gauge")


@dataclass(slots=True)
class _CombinedReports:
    """The reports of all clients of one kind (producers or consumers), combined: the longest time
    of any client, and the sum of all queues."""

    rtt: dict[tuple[str, str], float] = field(default_factory=dict)
    """Round-trip times in seconds, by node and percentile."""
    throttle: dict[str, float] = field(default_factory=dict)
    """Throttling in seconds, by node."""
    queued: float = 0
    """Number of queued records."""
    queued_bytes: float = 0


class _Reports:
    """The reports of some clients, parsed once, at their first use."""

    def __init__(self, texts: Sequence[str]) -> None:
        """`texts`: the reports, as librdkafka's JSON; a producer's report ends before its topics
        (`ClientStatistics.keep`)."""
        self._texts = texts
        self._combined: dict[str, _CombinedReports] | None = None
        """The result of `combined`; None: the reports aren't parsed yet."""

    @property
    def combined(self) -> Mapping[str, _CombinedReports]:
        """The combined reports, by kind of client: producer or consumer."""
        if self._combined is None:
            self._combined = {}
            for text in self._texts:
                # Parsing all of a report on a thousand partitions takes 6 to 17 ms, in which no
                # other thread runs; parsing it without its topics takes one or two.
                head, _, topics = text.partition(_TOPICS_FIELD)
                # `head` breaks off within the object, behind a comma: close the object there.
                report = json.loads(head.rstrip(" ,") + "}")
                _add_report(
                    self._combined.setdefault(report["type"], _CombinedReports()), report, topics
                )
        return self._combined


class _Samples:
    """An iterable of one metric's samples, which are computed at each iteration."""

    def __init__(
        self,
        reports: _Reports,
        compute_samples: Callable[[Mapping[str, _CombinedReports]], Iterator[Sample]],
    ) -> None:
        """`compute_samples` yields the metric's samples from the combined reports of each kind of
        client."""
        self._reports = reports
        self._compute_samples = compute_samples

    def __iter__(self) -> Iterator[Sample]:
        """Compute the samples; the first iteration parses the reports."""
        return self._compute_samples(self._reports.combined)


def _add_report(combined: _CombinedReports, report: Mapping[str, Any], topics: str) -> None:
    """Add a client's report to `combined`, the combined reports of its kind. `report`: the parsed
    report without its topics; `topics`: their unparsed text. librdkafka's times are in us (`rtt`)
    and ms (`throttle`)."""
    for broker in report["brokers"].values():
        # Bootstrap addresses and the group's coordinator are connections to the same nodes.
        if broker["nodeid"] < 0 or broker["source"] not in ("learned", "configured"):
            continue
        node, rtt, throttle = broker["nodename"], broker["rtt"], broker["throttle"]
        if rtt["cnt"]:
            for percentile in PERCENTILES:
                longest_rtt = max(combined.rtt.get((node, percentile), 0.0), rtt[percentile] / 1e6)
                combined.rtt[node, percentile] = longest_rtt
        combined.throttle[node] = max(combined.throttle.get(node, 0.0), throttle["max"] / 1e3)
    if report["type"] == "producer":
        combined.queued += report["msg_cnt"]
        combined.queued_bytes += report["msg_size"]
        return
    for unit, number in _FIND_QUEUE_LENGTHS(topics):
        if unit == "cnt":
            combined.queued += int(number)
        else:
            combined.queued_bytes += int(number)


def _rtt_samples(combined_by_client: Mapping[str, _CombinedReports]) -> Iterator[Sample]:
    """Yield the samples of round-trip times, in seconds, of each kind of client."""
    for client, combined in sorted(combined_by_client.items()):
        for (node, percentile), seconds in sorted(combined.rtt.items()):
            number = percentile.removeprefix("p")
            yield {"client": client, "node": node, "percentile": number}, seconds


def _throttle_samples(combined_by_client: Mapping[str, _CombinedReports]) -> Iterator[Sample]:
    """Yield the samples of throttling, in seconds, of each kind of client."""
    for client, combined in sorted(combined_by_client.items()):
        for node, seconds in sorted(combined.throttle.items()):
            yield {"client": client, "node": node}, seconds


def _queued_samples(combined_by_client: Mapping[str, _CombinedReports]) -> Iterator[Sample]:
    """Yield the number of queued records of each kind of client."""
    for client, combined in sorted(combined_by_client.items()):
        yield {"client": client}, combined.queued


def _queued_bytes_samples(combined_by_client: Mapping[str, _CombinedReports]) -> Iterator[Sample]:
    """Yield the bytes of queued records of each kind of client."""
    for client, combined in sorted(combined_by_client.items()):
        yield {"client": client}, combined.queued_bytes


# Name and help of each metric, and the function that computes its samples.
_GAUGES: Final[
    Sequence[tuple[str, str, Callable[[Mapping[str, _CombinedReports]], Iterator[Sample]]]]
] = (
    (
        "knafka_kafka_rtt_seconds",
        "Time to the answer of a node of Kafka in the last interval, of the slowest client",
        _rtt_samples,
    ),
    (
        "knafka_kafka_throttle_seconds",
        "Longest time for which a node of Kafka throttled a client in the last interval",
        _throttle_samples,
    ),
    (
        "knafka_kafka_queue_records",
        "Records in the producers' queues and in the consumers' fetch queues",
        _queued_samples,
    ),
    (
        "knafka_kafka_queue_bytes",
        "Bytes in the producers' queues and in the consumers' fetch queues",
        _queued_bytes_samples,
    ),
)
