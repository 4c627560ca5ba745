"""Probe: whether a Broker's address answers (KN-BRK-21), or a dispatcher does.

Knative calls a Service Ready a moment before some ingresses route to it; an event in between would
be answered 404. Who asks does it once for each Revision, since asking wakes a receiver that sleeps.
"""

from __future__ import annotations

from typing import Final

import aiohttp

from knafka_operator.decisions.status import NotReady
from knafka_operator.scale.http_sessions import checked_session, shown_error

PROBE_TIMEOUT: Final = 10.0
"""Seconds, a cold start included."""


async def probe(url: str) -> None:
    """Returns when `url` has answered; raises `NotReady`."""
    await _request("OPTIONS", url)


async def wake(url: str) -> None:
    """Returns when a pod of the dispatcher at `url` runs; raises `NotReady`.

    What takes over need not start first, and Knative keeps the pod for a while.
    """
    await _request("GET", f"{url}/health/readiness")


async def _request(method: str, url: str) -> None:
    try:
        async with (
            checked_session(aiohttp.ClientTimeout(total=PROBE_TIMEOUT)) as session,
            session.request(method, url, allow_redirects=False) as response,
        ):
            status = response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        message = f"{url} doesn't answer: {shown_error(error)}"
        raise NotReady("ProbeFailed", message, transient=True) from None
    if status != 200:
        raise NotReady("ProbeFailed", f"{url} answered {status}", transient=True)
