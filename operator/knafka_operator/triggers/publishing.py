"""Publishing: writes each Trigger's lag, number of drains and scaling decision into its status, and
unexpected errors of the operator into that of any object.

Not here: the texts (`dispatchers.conditions`), and the condition `Delivering`, which reconciling
writes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from knafka.core.errors import KnafkaError
from knafka_operator.decisions import status as statuses
from knafka_operator.dispatchers.conditions import (
    LAG_INTERVAL,
    delivering_condition,
    scaling_annotations,
)
from knafka_operator.engine.work_queue import WorkQueue
from knafka_operator.model.channels import is_entry
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.identity import Identity
from knafka_operator.records.state import States
from knafka_operator.scale.decide import ScalingStatus
from knafka_operator.triggers.kind import Triggers

log = logging.getLogger(__name__)


PUBLISH_PATIENCE: Final = 0.25
"""Seconds to wait for one status write before the next is started."""

TRIGGERS_AT_ONCE: Final = 20
"""Triggers whose status is compared before the event loop gets control: about a millisecond."""


@dataclass(eq=False)
class Publishing:
    """Writes the scaler's view into the status of delivered Triggers; belongs to one event loop."""

    cluster: Cluster
    states: States
    triggers: Triggers
    queue: WorkQueue
    now: Callable[[], str]
    """Returns the time, RFC 3339."""
    _publishing: set[str] = field(default_factory=set)
    """Namespaces where a status is being written."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """The writes of statuses under way."""

    async def publish_lags(self) -> None:
        """Write the scaler's view into the status of each Trigger whose status is outdated."""
        for number, identity in enumerate(list(self.triggers.watched), 1):
            if number % TRIGGERS_AT_ONCE == 0:
                await asyncio.sleep(0)
            # A slow write goes on as a task, and delays only its own namespace.
            if identity.namespace not in self._publishing and (
                annotations := self._take_stale_annotations(identity)
            ):
                writing = asyncio.create_task(self._publish(identity, annotations))
                self._tasks.add(writing)
                writing.add_done_callback(self._tasks.discard)
                await asyncio.wait({writing}, timeout=PUBLISH_PATIENCE)

    def _take_stale_annotations(self, identity: Identity) -> Mapping[str, str | None] | None:
        """Return the annotations about scaling to write to a Trigger's status, and note them as
        published. None: nothing is to be written, as the status is up to date, or the Trigger isn't
        scaled or has no status. Also None if the condition `Delivering` or the number of consumers
        is outdated: then the Trigger is enqueued, as reconciling writes both.
        """
        record = self.states.triggers.get(identity)
        scaling = self.triggers.scaling_status(identity)
        document = record.document if record is not None else None
        # A Subscription that is only an entry in its channel's spec has no status.
        if record is None or document is None or scaling is None or is_entry(document):
            return None
        now, state = asyncio.get_running_loop().time(), _urgent_state(scaling)
        previous_state, published_at = record.published
        # Numbers that change all the time, such as the lag, are published once in a while.
        is_recent = state == previous_state and now - published_at < LAG_INTERVAL
        status = document.get("status") or {}
        # A KafkaSource's number of replicas is a status field, for its scale subresource.
        are_replicas_current = status.get("consumers", scaling.replicas) == scaling.replicas
        # The condition needs no second look while the document is the same.
        if is_recent and are_replicas_current and record.checked is document:
            return None
        reported_reason = statuses.reason_of(status, statuses.DELIVERING)
        if delivering_condition(scaling).reason != reported_reason or not are_replicas_current:
            self.queue.enqueue((self.states.family.trigger, *identity))
            return None
        record.checked = document
        if is_recent:
            return None
        record.published = state, now
        stored, desired = status.get("annotations") or {}, scaling_annotations(scaling)
        is_stale = any(stored.get(key) != text for key, text in desired.items())
        return desired if is_stale else None

    async def _publish(self, identity: Identity, annotations: Mapping[str, str | None]) -> None:
        """Write annotations (None removes one) to a Trigger's status; after an error, which is
        logged, the next round tries again."""
        record = self.states.triggers.get(identity)
        if record is None or record.document is None:
            return  # the Trigger was deleted meanwhile
        self._publishing.add(identity.namespace)
        try:
            await self.cluster.write_status(record.document, {"annotations": annotations})
        except Exception as error:  # the next round tries again after any error
            record.published = None, -math.inf
            log.warning(
                "%s %s: %s",
                self.states.family.trigger,
                identity,
                error,
                exc_info=not isinstance(error, KnafkaError),
            )
        finally:
            self._publishing.discard(identity.namespace)

    async def write_failure(self, document: Document, error: Exception) -> None:
        """Write to an object's status that reconciling it ended in an unexpected error. Never
        raises an error: a failed write is logged."""
        identity = Identity.of(document)
        if is_entry(document):
            return  # an entry in its channel's spec has no status; the channel reports it
        try:
            stored = await self.cluster.get(document["apiVersion"], document["kind"], *identity)
            previous_conditions = ((stored or {}).get("status") or {}).get("conditions") or ()
            conditions = statuses.conditions_after_bug(previous_conditions, error, self.now())
            if stored is not None and conditions != previous_conditions:
                await self.cluster.write_status(stored, {"conditions": conditions})
        except Exception:
            log.exception("writing a failure of %s %s", document["kind"], "/".join(identity))

    async def close(self) -> None:
        """Cancel the writes under way, and wait for their end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _urgent_state(scaling: ScalingStatus) -> tuple[bool, ...]:
    """Return the facts about a Trigger's scaling that are published as soon as they change."""
    return (
        scaling.lag is None,
        scaling.replicas > 0,
        scaling.error is None,
        scaling.counts.loop is None,
        scaling.counts.congestion is not None,
        bool(scaling.beyond_end),
    )
