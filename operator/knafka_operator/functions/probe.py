"""Probe: requests a Broker's address (KN-BRK-21) or a dispatcher until it answers.

Knative reports a Service Ready shortly before some ingresses route to it; an event in between would
be answered 404. Callers probe once per Revision, since a request starts a sleeping receiver.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import aiohttp

from knafka_operator.decisions.status import NotReady
from knafka_operator.scale.http_sessions import describe_request_error, open_checked_session

FUNCTION_PROBE_TIMEOUT: Final = 10.0
"""Seconds for one request, including a cold start."""


async def probe(url: str) -> None:
    """Request `url` once; returns if it answers with 200. Raises a transient `NotReady` after any
    other answer or none."""
    await _request("OPTIONS", url)


async def wake(url: str) -> None:
    """Start a pod of the dispatcher at `url`, so that a takeover of a delivery needn't wait for it;
    returns when the pod runs. Knative keeps it for a while. Raises a transient `NotReady`."""
    await _request("GET", f"{url}/health/readiness")


async def _request(method: str, url: str) -> None:
    """Send one request. Raises a transient `NotReady` unless the answer is 200 and arrives within
    `FUNCTION_PROBE_TIMEOUT` seconds."""
    try:
        async with (
            open_checked_session(aiohttp.ClientTimeout(total=FUNCTION_PROBE_TIMEOUT)) as session,
            session.request(method, url, allow_redirects=False) as response,
        ):
            status = response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        message = f"{url} doesn't answer: {describe_request_error(error)}"
        raise NotReady("ProbeFailed", message, transient=True) from None
    if status != HTTPStatus.OK:
        raise NotReady("ProbeFailed", f"{url} answered {status}", transient=True)
