"""An Egress that is served: its drains, one at a time, their counts, and its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from knafka.core.contract import Egress
from knafka.core.drain import outcomes
from knafka.dispatcher.connecting import Clients
from knafka.dispatcher.counts import DrainCounts
from knafka.dispatcher.drain import MAX_UNSETTLED_BYTES, Drain
from knafka.dispatcher.pace import Pace
from knafka.dispatcher.tracing import EgressTracing
from knafka.observability import Metric
from knafka.tracing.spans import Tracer


class Served:
    """One Egress in this process, for as long as it is served here, however it changes."""

    def __init__(self, egress: Egress, tracer: Tracer | None = None) -> None:
        self.egress = egress
        self._tracer = tracer
        self._drain: Drain | None = None
        self._before = DrainCounts()
        """What became of the events of the drains before that."""

    def new_drain(self, egress: Egress, clients: Clients) -> Drain:
        """The next one, by the Egress as it is now; the last one is over."""
        self._before = self.totals()
        self._drain = Drain(
            egress,
            clients.open_reader,
            clients.writer,
            clients.subscriber,
            time.time,
            clients.topics,
            clients.parser,
            clients.held_bytes or (lambda: MAX_UNSETTLED_BYTES),
            None if clients.attempts_a_turn is None else Pace(clients.attempts_a_turn),
            None if self._tracer is None else EgressTracing(self._tracer, egress),
        )
        return self._drain

    @property
    def drain(self) -> Drain | None:
        """The one that runs."""
        return None if self._drain is None or self._drain.is_over else self._drain

    def totals(self) -> DrainCounts:
        """What became of the events of all drains."""
        return self._before if self._drain is None else self._before + self._drain.counts


def metrics_of(served: Sequence[Served]) -> Iterator[Metric]:
    """KN-DP-15: what became of each Trigger's events, in this process."""
    totals = [(each, each.totals()) for each in served]

    def counted(
        samples: Callable[[DrainCounts], Iterator[tuple[dict[str, str], float]]],
    ) -> list[tuple[dict[str, str], float]]:
        return [
            (_labels(each) | more, count)
            for each, total in totals
            for more, count in samples(total)
        ]

    yield Metric(
        "knafka_dispatcher_events_total",
        "Events by what became of them",
        counted(lambda it: (({"outcome": name}, count) for name, count in outcomes(it.events))),
    )
    yield Metric(
        "knafka_dispatcher_congestion",
        "1 while the subscriber is away and only a few events probe it",
        [(_labels(each), int(_is_congested(each))) for each in served],
        kind="gauge",
    )
    yield Metric(
        "knafka_dispatcher_concurrency_limit",
        "Attempts that the subscriber may get at once",
        [(_labels(each), _limit(each)) for each in served],
        kind="gauge",
    )
    yield Metric(
        "knafka_delivery_failures_total",
        "Failed attempts, and records that can't be sent, by reason and status code",
        counted(
            lambda it: (
                ({"reason": what.partition(" ")[0], "code": what.partition(" ")[2]}, count)
                for what, count in sorted(it.failures.items())
            )
        ),
    )
    yield Metric(
        "knafka_filter_errors_total",
        "Evaluations of a CESQL filter that ended with an error, by its kind: no match",
        counted(lambda it: (({"kind": kind}, n) for kind, n in sorted(it.filter_errors.items()))),
    )


def _labels(served: Served) -> dict[str, str]:
    egress = served.egress
    return {"namespace": egress.namespace, "broker": egress.broker, "trigger": egress.trigger}


def _is_congested(served: Served) -> bool:
    drain = served.drain
    return drain is not None and drain.congestion.is_open


def _limit(served: Served) -> int:
    drain = served.drain
    return served.egress.max_in_flight if drain is None else drain.congestion.limit
