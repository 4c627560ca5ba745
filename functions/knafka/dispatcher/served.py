"""An Egress that is served: its lease, the request that asks for its drain, and its metrics."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence

from knafka.core import drain as contract
from knafka.core.contract import Egress
from knafka.core.documents import digest
from knafka.core.drain import DrainProgress, DrainRequest, Ended, outcomes
from knafka.dispatcher.connecting import Clients
from knafka.dispatcher.counts import DrainCounts
from knafka.dispatcher.drain import Drain
from knafka.dispatcher.lease import Lease
from knafka.dispatcher.renewal import OwnService
from knafka.observability import Metric
from knafka.serving import Send


class Served:
    """One Egress in this process; `service_url` as in `settings.Drains`. Raises `InvalidDocument`
    for one that can't be used."""

    def __init__(self, egress: Egress, clients: Clients, service_url: str | None) -> None:
        self.egress = egress
        self.digest = digest(egress)
        self.clients = clients
        renewal = None
        if service_url is not None:
            renewal = OwnService(service_url, self.digest, clients.subscriber)
        self.lease = Lease(self._new_drain, renewal)

    def _new_drain(self) -> Drain:
        clients, egress = self.clients, self.egress
        if clients.max_in_flight is not None:
            egress = egress.model_copy(update={"max_in_flight": clients.max_in_flight})
        return Drain(
            egress,
            clients.open_reader,
            clients.writer,
            clients.subscriber,
            time.time,
            clients.topics,
            clients.parser,
            clients.held_bytes,
        )

    async def stream(self, request: DrainRequest, caller: asyncio.Task[bool], send: Send) -> None:
        """Tell the drain's progress until it ends, the budget is spent, or the caller goes."""
        lease, loop = self.lease, asyncio.get_running_loop()
        running = await lease.attach(request)
        drain = lease.drain
        assert drain is not None
        over_at = loop.time() + request.budget
        await start(send, 200, b"application/x-ndjson")
        while not running.done() and (left := over_at - loop.time()) > 0:
            await _line(send, lease.progress(drain.progress()))
            waiting = {running} if caller.done() else {running, caller}
            timeout = min(left, contract.PROGRESS_INTERVAL)
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if caller.done() and not caller.result():
                return
            if caller.done():
                drain.stop()
                over_at = math.inf
        last = await _end_of(running, drain) if running.done() else drain.progress(Ended.BUDGET)
        await _line(send, lease.progress(last))
        await send({"type": "http.response.body", "body": b""})


def metrics_of(served: Sequence[Served]) -> Iterator[Metric]:
    """KN-DP-15: what became of each Trigger's events, in this process."""
    totals = {each.digest: each.lease.totals() for each in served}

    def counted(
        samples: Callable[[DrainCounts], Iterator[tuple[dict[str, str], float]]],
    ) -> list[tuple[dict[str, str], float]]:
        return [
            (_labels(each) | more, count)
            for each in served
            for more, count in samples(totals[each.digest])
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
    drain = served.lease.drain
    return drain is not None and drain.congestion.is_open


def _limit(served: Served) -> int:
    drain = served.lease.drain
    return served.egress.max_in_flight if drain is None else drain.congestion.limit


async def _end_of(running: asyncio.Task[DrainProgress], drain: Drain) -> DrainProgress:
    try:
        return running.result()
    except Exception as error:
        return drain.progress(Ended.FAILED, f"{type(error).__name__}: {error}")


async def start(send: Send, status: int, content_type: bytes) -> None:
    headers = [(b"content-type", content_type)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def answer(send: Send, status: int, body: bytes) -> None:
    """A whole response."""
    await start(send, status, b"text/plain; charset=utf-8")
    await send({"type": "http.response.body", "body": body})


async def _line(send: Send, progress: DrainProgress) -> None:
    line = progress.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
    await send({"type": "http.response.body", "body": line, "more_body": True})
