"""What is done with a cluster's dead letters: objects are made or annotated, and followed.

    replay, purge -> a DeadLetterReplay, a DeadLetterPurge -> its status, until it has ended
    compact, report -> the annotation `knafka.dev/run` of a DeadLetterArchive -> its next run

With the caller's rights. The operator's Jobs do the work, also when no command follows them.

Not here: options and what is printed (`archive_commands`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from knafka_client.declared.kubernetes_api import KubernetesApi, Objects
from knafka_client.declared.triggers import Unknown
from knafka_operator.decide.operation import is_finished
from knafka_operator.model.archives import RUN_ANNOTATION
from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.operations import PURGE, REPLAY
from knafka_operator.model.sensors import KNAFKA

ARCHIVE_OBJECTS: Final = Objects(KNAFKA, "deadletterarchives")
OPERATION_OBJECTS: Final = {
    REPLAY: Objects(KNAFKA, "deadletterreplays"),
    PURGE: Objects(KNAFKA, "deadletterpurges"),
}
DRY_RUN_KEPT_FOR: Final = 3_600
"""Seconds for which a dry run stays once it has ended: for nothing but to be read."""
OPERATION_POLL_INTERVAL: Final = 1.0
"""Seconds between two looks."""
NO_OPERATOR_AFTER: Final = 20.0
"""Seconds after which it is said that no operator has looked."""
CRD_MISSING: Final = (
    "this cluster has no {plural}: their CRD is not installed (docs/how-to/archive-dead-letters.md)"
)
IDLE: Final = ("Idle", "Failing")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class ArchiveOperations:
    """Of one namespace. Every method raises `ClusterError`."""

    api: KubernetesApi
    namespace: str
    tell: Tell
    """Is given each line of progress."""
    pause: float = OPERATION_POLL_INTERVAL

    def archive(self, name: str | None, broker: str | None = None) -> Document:
        """The archive of this name, else the only one of that Broker (`namespace/name`), or at all.

        Raises `Unknown`.
        """
        archives = self.api.list(ARCHIVE_OBJECTS, self.namespace)
        if archives is None:
            raise ClusterError(CRD_MISSING.format(plural=ARCHIVE_OBJECTS.plural))
        fits = [
            archive
            for archive in archives
            if name in (None, archive["metadata"]["name"])
            and broker in (None, f"{self.namespace}/{_broker_of(archive)}")
        ]
        if len(fits) == 1:
            return fits[0]
        known = ", ".join(f"{_name_of(archive)} of {_broker_of(archive)}" for archive in archives)
        asked = f" {name}" if name else f" of {broker}" if broker else ""
        problem = "which DeadLetterArchive (--archive)?"
        if not fits:
            problem = f"there is no DeadLetterArchive{asked} in {self.namespace}:"
        raise Unknown(f"{problem} there is {known or 'none'}")

    def make(self, kind: str, archive: Document, spec: Mapping[str, Any]) -> str:
        """Create an operation object, and return its name."""
        dry_run = {"ttlSecondsAfterFinished": DRY_RUN_KEPT_FOR} if spec.get("dryRun") else {}
        words = kind.removeprefix("DeadLetter").lower()
        name = f"{words}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        body = {
            "apiVersion": KNAFKA,
            "kind": kind,
            "metadata": {"namespace": self.namespace, "name": name},
            "spec": {"archive": _name_of(archive), **spec, **dry_run},
        }
        if self.api.create(OPERATION_OBJECTS[kind], self.namespace, body) is None:
            raise ClusterError(CRD_MISSING.format(plural=OPERATION_OBJECTS[kind].plural))
        self.tell(f"{kind} {self.namespace}/{name}")
        return name

    def follow(self, kind: str, name: str) -> Mapping[str, Any]:
        """An operation's status once it has ended."""
        return self._followed(OPERATION_OBJECTS[kind], name, is_finished)

    def ask_to_run(self, archive: Document) -> str:
        """Have an archive run now; what its status says once it has been done."""
        name, asked = _name_of(archive), f"{time.time():.3f}"
        if not self.api.annotate(ARCHIVE_OBJECTS, self.namespace, name, RUN_ANNOTATION, asked):
            raise ClusterError(f"DeadLetterArchive {self.namespace}/{name} is gone")
        return asked

    def follow_run(self, archive: Document, asked: str) -> Mapping[str, Any]:
        """An archive's status once it has run as it was asked."""

        def has_run(status: Mapping[str, Any]) -> bool:
            return status.get("requested") == asked and status.get("phase") in IDLE

        return self._followed(ARCHIVE_OBJECTS, _name_of(archive), has_run)

    def _followed(
        self, kind: Objects, name: str, has_ended: Callable[[Mapping[str, Any]], bool]
    ) -> Mapping[str, Any]:
        told, begun = "", time.monotonic()
        while True:
            document = self.api.get(kind, self.namespace, name)
            if document is None:
                raise ClusterError(f"{kind.plural} {self.namespace}/{name} was deleted meanwhile")
            status: Mapping[str, Any] = document.get("status") or {}
            if has_ended(status):
                return status
            line = ": ".join(filter(None, (status.get("phase", ""), status.get("message", ""))))
            if not line and time.monotonic() - begun > NO_OPERATOR_AFTER:
                line = (
                    "no operator has looked at it yet: is KNAFKA_JOBS_IMAGE set, and does it run?"
                )
            if line and line != told:
                told = line
                self.tell(line)
            time.sleep(self.pause)


def _name_of(document: Document) -> str:
    return str(document["metadata"]["name"])


def _broker_of(archive: Document) -> str:
    return str((archive.get("spec") or {}).get("broker") or "default")
