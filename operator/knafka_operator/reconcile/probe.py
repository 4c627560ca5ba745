"""Probe: whether a Broker's address answers (KN-BRK-21).

Knative calls a Service Ready a moment before some ingresses route to it; an event in between would
be answered 404. Who asks does it once for each Revision, since asking wakes a receiver that sleeps.
"""

from __future__ import annotations

from typing import Final

import aiohttp

from knafka_operator.decide.status import NotReady

TIMEOUT: Final = 10.0
"""Seconds, a cold start included."""


async def probe(url: str) -> None:
    """Returns when `url` has answered; raises `NotReady`."""
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.options(url) as response,
        ):
            status = response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        why = str(error) or type(error).__name__
        raise NotReady("ProbeFailed", f"{url} doesn't answer: {why}", transient=True) from None
    if status != 200:
        raise NotReady("ProbeFailed", f"{url} answered {status}", transient=True)
