"""What the controller does with DeadLetterReplays and DeadLetterPurges: as with Sensors, and their
archives are looked at whenever one of them changes.

Not here: what reconciling does (`reconcile.operations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from knafka_operator.decide import operation as deciding
from knafka_operator.model.archives import ARCHIVE
from knafka_operator.model.cluster import Document
from knafka_operator.operator import Operator
from knafka_operator.reconcile.operations import Operations, archive_of
from knafka_operator.reconcile.work_queue import Verdict
from knafka_operator.runtime.archives import ArchiveController
from knafka_operator.runtime.cache import CachedCluster
from knafka_operator.runtime.events import Events
from knafka_operator.runtime.sensors import Api, Reconciled, SensorController


class OperationController(SensorController):
    """One term of a leader; without archives it does nothing."""

    LEFT: ClassVar = "its Job may be there still"

    def __init__(
        self,
        operator: Operator,
        cluster: CachedCluster,
        api: Api,
        events: Events,
        archives: ArchiveController,
    ) -> None:
        super().__init__(operator, cluster, api, self._looked_at_again, events)
        self._archives = archives

    @property
    def _objects(self) -> Reconciled | None:
        return self._operations

    @property
    def _operations(self) -> Operations | None:
        archives = self._archives.archives
        return None if archives is None else archives.operations

    def _has_ended(self, status: Mapping[str, Any]) -> bool:
        return deciding.is_finished(status)

    def heard(self, changed: Sequence[Document], gone: Sequence[Document]) -> None:
        super().heard(changed, gone)
        for each in (*changed, *gone):
            archive = archive_of(each)
            if archive.name:
                self._operator.queue.enqueue((ARCHIVE, *archive))

    def _looked_at_again(
        self, document: Document, now: Mapping[str, Any]
    ) -> float | Literal[Verdict.BACK_OFF]:
        assert self._operations is not None
        before = document.get("status") or {}
        if deciding.is_finished(now) and not deciding.is_finished(before):
            if now["phase"] == "Succeeded":
                self._events.post(document, "Normal", "Succeeded", f"{document['kind']} is done")
            else:
                self._events.post(document, "Warning", "Failed", now["message"])
        return self._operations.again(document)
