"""Events: posts Kubernetes Events, which `kubectl describe` shows below an object. Errors are only
logged.

Not here: when to post an Event (`controller`).
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final, Literal
from uuid import uuid4

from knafka_operator.model.cluster import Cluster, ClusterError, Document
from knafka_operator.model.resources import CORE

log = logging.getLogger(__name__)

COMPONENT: Final = "knafka-operator"
"""The program that an Event names as its reporter."""
MAX_EVENT_MESSAGE: Final = 1000
"""Most characters of a message; the API server accepts 1,024."""
MAX_WAITING: Final = 100
"""Most Events being posted at a time; further ones are dropped."""


class Events:
    """Posts core/v1 Events; belongs to one event loop."""

    def __init__(self, cluster: Cluster, identity: str) -> None:
        """`identity` is the name of this replica, which its Events report."""
        self._cluster = cluster
        self._identity = identity
        self._posting: set[asyncio.Task[None]] = set()
        """A task for each Event that is being posted."""

    def post(
        self, subject: Document, type_: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Post an Event about the object `subject` in the background; never raises. `reason` is one
        word in CamelCase. The Event is dropped if `MAX_WAITING` others are being posted."""
        if len(self._posting) < MAX_WAITING:
            task = asyncio.create_task(self._post(_event_manifest(subject, type_, reason, message)))
            self._posting.add(task)
            task.add_done_callback(self._posting.discard)

    async def close(self) -> None:
        """Drop the Events that aren't posted yet, and wait for their tasks to end."""
        for task in self._posting:
            task.cancel()
        if self._posting:
            await asyncio.wait(self._posting)

    async def _post(self, event: dict[str, object]) -> None:
        """Add the reporter to an Event and create it; a `ClusterError` is only logged."""
        # The API server accepts 128 characters.
        event |= {"reportingComponent": COMPONENT, "reportingInstance": self._identity[:128]}
        try:
            await self._cluster.create(event)
        except ClusterError as error:
            log.info("an Event is not posted: %s", error)


def _event_manifest(subject: Document, type_: str, reason: str, message: str) -> dict[str, object]:
    """Return the manifest of a new Event about `subject`; `message` is cut to `MAX_EVENT_MESSAGE`
    characters."""
    metadata = subject["metadata"]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": CORE,
        "kind": "Event",
        "metadata": {"namespace": metadata["namespace"], "name": f"knafka-{uuid4().hex}"},
        "involvedObject": {
            "apiVersion": subject["apiVersion"],
            "kind": subject["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
        },
        "type": type_,
        "reason": reason,
        "message": message[:MAX_EVENT_MESSAGE],
        "source": {"component": COMPONENT},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "action": reason,
    }
