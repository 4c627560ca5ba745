"""An Egress that this process serves, with its successive drains and their counts; the metrics of
all Egresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

from knafka.core.contract import Egress
from knafka.core.drain import outcomes
from knafka.core.numbering import Numbering
from knafka.dispatcher.engine.at_most_once import AtMostOnceDrain
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.engine.counts import DrainCounts, ReportedCounts
from knafka.dispatcher.engine.drain import Drain
from knafka.dispatcher.engine.pending import AssignedPartition
from knafka.dispatcher.engine.tracing import EgressTracing
from knafka.observability import Histogram, Metric, consumed_metric, egress_labels, failure_labels
from knafka.tracing.spans import Tracer

EGRESS_STOP_TIMEOUT: Final = 4.0
"""Seconds that dead letters and replies under way may still take when the clients are closed."""


class ServedEgress:
    """One Egress that this process serves, through all its changes and drains."""

    def __init__(self, egress: Egress, tracer: Tracer | None = None) -> None:
        """Begin without a drain. `tracer` None: no spans are recorded."""
        self.egress = egress
        """The Egress as it is declared now."""
        self._tracer = tracer
        self._drain: Drain | None = None
        """The last drain, which may be over; None: there was none yet."""
        self._earlier_counts = DrainCounts()
        """The sum of the counts of all drains before `_drain`."""

    def new_drain(self, egress: Egress, clients: Clients) -> Drain:
        """Create the next drain, of `egress` as it is declared now. The previous drain must be
        over."""
        self._earlier_counts = self.totals()
        drain_class = AtMostOnceDrain if egress.at_most_once else Drain
        self._drain = drain_class(
            egress,
            clients,
            time.time,
            None if self._tracer is None else EgressTracing(self._tracer, egress),
        )
        return self._drain

    @property
    def drain(self) -> Drain | None:
        """The running drain; None: no drain is running."""
        return None if self._drain is None or self._drain.is_over else self._drain

    def totals(self) -> DrainCounts:
        """Return the counts of all drains so far, with the records that a shared reader has skipped
        until now (`Drain.catch_up`)."""
        if self._drain is None:
            return self._earlier_counts
        self._drain.catch_up()
        return self._earlier_counts + self._drain.counts

    def growth_since(self, reported: ReportedCounts) -> dict[str, Any]:
        """Return by how much the counts of all drains so far have grown since `reported`, which
        an earlier request has reported; the keys are fields of a `DrainProgress`."""
        if self._drain is None:
            return self._earlier_counts.growth_since(reported)
        self._drain.catch_up()
        return self._drain.counts.growth_since(reported, self._earlier_counts)


def egress_metrics(egresses: Sequence[ServedEgress], now: float) -> Iterator[Metric]:
    """Yield the metrics of the Egresses that this process serves (KN-DP-15); `now` is Unix time."""
    totals = [(served, served.totals()) for served in egresses]

    def label_samples(
        samples_of: Callable[[DrainCounts], Iterator[tuple[dict[str, str], float]]],
    ) -> list[tuple[dict[str, str], float]]:
        """Return the samples that `samples_of` yields from the counts of each Egress, each with the
        Egress's labels added."""
        return [
            (_egress_labels(served) | labels, count)
            for served, total in totals
            for labels, count in samples_of(total)
        ]

    yield Metric(
        "knafka_dispatcher_events_total",
        "Events by their outcome",
        label_samples(
            lambda counts: (({"outcome": name}, count) for name, count in outcomes(counts.events))
        ),
    )
    yield Metric(
        "knafka_dispatcher_congestion",
        "1 while the subscriber is away and only a few events probe it",
        [(_egress_labels(served), int(_is_congested(served))) for served in egresses],
        kind="gauge",
    )
    yield Metric(
        "knafka_dispatcher_concurrency_limit",
        "Attempts that the subscriber may get at once",
        [(_egress_labels(served), _concurrency_limit(served)) for served in egresses],
        kind="gauge",
    )
    yield Metric(
        "knafka_delivery_failures_total",
        "Failed attempts, and records that can't be sent, by reason and status code",
        label_samples(
            lambda counts: (
                (failure_labels(failure), count)
                for failure, count in sorted(counts.failures.items())
            )
        ),
    )
    yield Metric(
        "knafka_filter_errors_total",
        "CESQL filter evaluations that failed, by kind of error; such an event does not match",
        label_samples(
            lambda counts: (
                ({"kind": kind}, count) for kind, count in sorted(counts.filter_errors.items())
            )
        ),
    )
    for name, help_text, histogram_of in _HISTOGRAMS:
        yield Metric(
            name,
            help_text,
            # An empty histogram has 17 samples: a thousand idle Egresses would have 17,000.
            [
                (_egress_labels(served), histogram)
                for served, total in totals
                if (histogram := histogram_of(total)).count
            ],
            kind="histogram",
        )
    for name, help_text, count_of in _COUNTERS:
        yield Metric(
            name, help_text, [(_egress_labels(served), count_of(total)) for served, total in totals]
        )
    for name, help_text, value_of in _GAUGES:
        yield Metric(
            name,
            help_text,
            [
                (_egress_labels(served), value_of(_partitions_of_drain(served), now))
                for served in egresses
            ],
            "gauge",
        )
    positions = [
        (
            served.egress,
            {partition.number: partition.position for partition in _partitions_of_drain(served)},
        )
        for served in egresses
    ]
    yield consumed_metric(
        (egress.group, topic, topic_positions)
        for egress, by_number in positions
        for topic, topic_positions in Numbering(egress.topics).by_topic(by_number).items()
    )


_HISTOGRAMS: Final[Sequence[tuple[str, str, Callable[[DrainCounts], Histogram]]]] = (
    (
        "kn_eventing_dispatch_latency_seconds",
        "Duration of an attempt at the subscriber, successful or not",
        lambda total: total.attempts,
    ),
    (
        "kn_eventing_process_latency_seconds",
        "From a record's timestamp in Kafka until its event was delivered",
        lambda total: total.latency,
    ),
)
"""Name and help text of each histogram, and the function that finds it in an Egress's counts."""

_COUNTERS: Final[Sequence[tuple[str, str, Callable[[DrainCounts], int]]]] = (
    (
        "knafka_dispatcher_commits_total",
        "Requests to commit offsets while a drain goes on",
        lambda total: total.commits,
    ),
    (
        "knafka_dispatcher_rebalances_total",
        "Times that this process was given partitions",
        lambda total: total.rebalances,
    ),
)
"""Name and help text of each counter, and the function that finds it in an Egress's counts."""


def _oldest_event_age(partitions: Collection[AssignedPartition], now: float) -> float:
    """Return the age in seconds of the oldest unsettled event, at the Unix time `now`; 0: there is
    none."""
    # A partition's events are tracked in the order of their offsets: the first is the oldest.
    oldest_events = [
        next(iter(partition.tracker.unsettled.values()), None) for partition in partitions
    ]
    timestamps_ms = [event.record.timestamp()[1] for event in oldest_events if event is not None]
    return max(0.0, now - min(timestamps_ms) / 1000) if timestamps_ms else 0.0


_GAUGES: Final[
    Sequence[tuple[str, str, Callable[[Collection[AssignedPartition], float], float]]]
] = (
    (
        "kn_eventing_dispatch_in_flight_requests",
        "Attempts under way",
        lambda partitions, _: sum(partition.in_flight for partition in partitions),
    ),
    (
        "knafka_dispatcher_unsettled_events",
        "Events that were read and are not settled",
        lambda partitions, _: sum(len(partition.tracker.unsettled) for partition in partitions),
    ),
    (
        "knafka_dispatcher_backoff_events",
        "Events that wait for another attempt",
        lambda partitions, _: sum(len(partition.backoffs) for partition in partitions),
    ),
    (
        "knafka_dispatcher_paused_partitions",
        "Partitions whose reading is paused, as too many of their events are held",
        lambda partitions, _: sum(partition.paused for partition in partitions),
    ),
    (
        "knafka_dispatcher_oldest_event_age_seconds",
        "Age of the oldest event that was read and is not settled; 0: there is none",
        _oldest_event_age,
    ),
)
"""Name and help text of each gauge, and the function that computes it from the partitions of an
Egress's running drain and the Unix time; without a drain they are 0."""


def _partitions_of_drain(served: ServedEgress) -> Collection[AssignedPartition]:
    """Return the partitions of the Egress's running drain; empty without one."""
    return () if served.drain is None else served.drain.partitions.values()


def _egress_labels(served: ServedEgress) -> dict[str, str]:
    """Return the labels of the Egress's metrics, such as its Broker and Trigger."""
    return egress_labels(served.egress)


def _is_congested(served: ServedEgress) -> bool:
    """Whether the Egress's subscriber is away, so that only probes are sent."""
    drain = served.drain
    return drain is not None and drain.congestion.is_open


def _concurrency_limit(served: ServedEgress) -> int:
    """Return how many attempts the Egress's subscriber may get at once: by the running drain's
    congestion control or, without a running drain, as the Egress declares."""
    drain = served.drain
    return served.egress.max_in_flight if drain is None else drain.congestion.limit
