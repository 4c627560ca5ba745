"""What the controller does with DeadLetterArchives: as with Sensors, and it hears of their Jobs.

Not here: what reconciling does (`reconcile.archives`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from knafka_operator.model.archives import ARCHIVE, OF_ARCHIVE
from knafka_operator.model.cluster import Document
from knafka_operator.model.operations import OF_OPERATION
from knafka_operator.operator import Operator
from knafka_operator.reconcile.archives import Archives
from knafka_operator.reconcile.work_queue import BACK_OFF, Verdict
from knafka_operator.runtime.cache import CachedCluster
from knafka_operator.runtime.events import Events
from knafka_operator.runtime.sensors import After, Api, Reconciled, SensorController


class ArchiveController(SensorController):
    """One term of a leader; without an image for the jobs it does nothing."""

    LEFT: ClassVar = "its Job, its Lease or its group in Kafka may be there still"

    def __init__(
        self, operator: Operator, cluster: CachedCluster, api: Api, after: After, events: Events
    ) -> None:
        super().__init__(operator, cluster, api, self._looked_at_again, events)
        self._publish = after
        self.archives = (
            Archives(operator.settings, operator.cluster, operator.states, operator.brokers.is_ours)
            if operator.settings.jobs_image
            else None
        )

    @property
    def _objects(self) -> Reconciled | None:
        return self.archives

    def heard_jobs(self, changed: Sequence[Document], gone: Sequence[Document]) -> None:
        """Jobs as they are now, and those that went: whose they are is looked at."""
        assert self.archives is not None
        for each in (*changed, *gone):
            labels = each["metadata"].get("labels") or {}
            if (archive := self.archives.on_job(labels.get(OF_ARCHIVE, ""))) is not None:
                self._operator.queue.enqueue((ARCHIVE, *archive))
            if (key := self.archives.operations.on_job(labels.get(OF_OPERATION, ""))) is not None:
                self._operator.queue.enqueue(key)

    def _looked_at_again(
        self, document: Document, now: Mapping[str, Any]
    ) -> float | Literal[Verdict.BACK_OFF]:
        """Also one that isn't Ready: what waits for it grows."""
        assert self.archives is not None
        if self._publish(document, now) is BACK_OFF and now.get("phase") not in _AT_WORK:
            return BACK_OFF
        return self.archives.again(document)


_AT_WORK = ("Queued", "Running", "Ending", "Failing")
