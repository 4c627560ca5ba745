"""Renewal: the requests for a drain that a dispatcher sends to its own Service while no other
caller sends one (`lease` decides when)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from knafka.core import drain
from knafka.core.documents import dump
from knafka.core.drain import DrainRequest
from knafka.core.errors import DeliveryError, KnafkaError
from knafka.draining.lease import AnotherEgress
from knafka.ports.subscriber import Subscriber, Target

RENEWAL_GRACE: Final = 30.0
"""Seconds that a request may take beyond its budget, as a pod may have to start first."""


class RenewalFailed(KnafkaError):
    """Raised if the Service could not be reached, or did not answer with 200 and progress."""


class OwnService:
    """A `lease.Renewal` over HTTP: sends requests for a drain to the dispatcher's own Service."""

    def __init__(self, url: str, fields: Mapping[str, str | None], subscriber: Subscriber) -> None:
        """`url`: the Service's URL. `fields`: the values by field of `DrainRequest` that each
        request gets, so that it names what must be drained. `subscriber` sends the requests. Raises
        `InvalidDocument` for a URL that can't be used."""
        self._target = Target.parse(url.rstrip("/") + drain.PATH)
        self._fields = fields
        self._subscriber = subscriber

    async def __call__(self, request: DrainRequest) -> None:
        """Send one request for a drain and wait for its end. Raises `AnotherEgress` if the Service
        drains something else, and `RenewalFailed` for any other failure."""
        body = json.dumps(dump(request.model_copy(update=self._fields))).encode()
        head = b"content-type: application/json\r\n"
        if request.bearer:
            head += b"authorization: Bearer %s\r\n" % request.bearer.encode()
        try:
            response = await self._subscriber.post(
                self._target, head, body, request.budget + RENEWAL_GRACE
            )
        except DeliveryError as error:
            raise RenewalFailed(f"{self._target.url}: {error}") from error
        if response.status == 412:  # a `DrainingFunction` that drains something else answers this
            raise AnotherEgress(f"{self._target.url} drains something else")
        if response.status != 200:
            raise RenewalFailed(f"{self._target.url} answered {response.status}")
