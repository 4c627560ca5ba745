"""Works on a cluster's dead letters: creates or annotates objects, and follows their status.

    replay, purge -> a DeadLetterReplay, a DeadLetterPurge -> its status, until it has ended
    compact, report -> the annotation `knafka.dev/run` of a DeadLetterArchive -> its next run

All requests have the rights of the kubeconfig's user. The operator's Jobs do the work, whether or
not a command follows them.

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
from knafka_client.declared.triggers import UnknownObject
from knafka_operator.archives.model import RUN_ANNOTATION
from knafka_operator.archives.operation_decide import is_finished
from knafka_operator.archives.operation_model import PURGE, REPLAY
from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.sensors import KNAFKA

ARCHIVE_OBJECTS: Final = Objects(KNAFKA, "deadletterarchives")
"""The API resource of DeadLetterArchives."""
OPERATION_OBJECTS: Final = {
    REPLAY: Objects(KNAFKA, "deadletterreplays"),
    PURGE: Objects(KNAFKA, "deadletterpurges"),
}
"""The API resources of operations on an archive, by kind."""
DRY_RUN_RETENTION: Final = 3_600
"""Seconds for which the object of a finished dry run is kept, so that its status can be read."""
OPERATION_POLL_INTERVAL: Final = 1.0
"""Seconds between two reads of a status."""
NO_OPERATOR_TIMEOUT: Final = 20.0
"""Seconds without any status after which the user is told that no operator has acted."""
CRD_MISSING: Final = (
    "this cluster has no {plural}: their CRD is not installed (docs/how-to/archive-dead-letters.md)"
)
"""Error message if the API server doesn't know the kind whose plural is `{plural}`."""
IDLE_PHASES: Final = ("Idle", "Failing")
"""Phases of an archive that runs nothing."""

ShowProgress = Callable[[str], None]
"""Called with one line of progress."""


@dataclass(frozen=True)
class ArchiveOperations:
    """Starts and follows operations on the DeadLetterArchives of one namespace. Every method may
    raise `ClusterError`."""

    api: KubernetesApi
    namespace: str
    """The namespace of the archives, and of the objects that are created."""
    show_progress: ShowProgress
    """Shows one line of progress to the user."""
    poll_interval: float = OPERATION_POLL_INTERVAL
    """Seconds between two reads of a status."""

    def find_archive(self, name: str | None, broker: str | None = None) -> Document:
        """Return the only archive that has this name and belongs to this Broker (`namespace/name`).
        With None as `name`, any name will do; with None as `broker`, any Broker.

        Raises `UnknownObject` if no archive, or more than one, fits.
        """
        archives = self.api.list(ARCHIVE_OBJECTS, self.namespace)
        if archives is None:
            raise ClusterError(CRD_MISSING.format(plural=ARCHIVE_OBJECTS.plural))
        matching = [
            archive
            for archive in archives
            if name in (None, archive["metadata"]["name"])
            and broker in (None, f"{self.namespace}/{_broker_of(archive)}")
        ]
        if len(matching) == 1:
            return matching[0]
        existing = ", ".join(
            f"{_name_of(archive)} of {_broker_of(archive)}" for archive in archives
        )
        if matching:
            problem = "which DeadLetterArchive (--archive)?"
        else:
            description = f" {name}" if name else f" of {broker}" if broker else ""
            problem = f"there is no DeadLetterArchive{description} in {self.namespace}:"
        raise UnknownObject(f"{problem} there is {existing or 'none'}")

    def create(self, kind: str, archive: Document, spec: Mapping[str, Any]) -> str:
        """Create a DeadLetterReplay or DeadLetterPurge (`kind`) for an archive, with the fields of
        `spec`; returns the created object's name, such as `replay-20260131-120000-3fa4`."""
        retention = {"ttlSecondsAfterFinished": DRY_RUN_RETENTION} if spec.get("dryRun") else {}
        verb = kind.removeprefix("DeadLetter").lower()
        name = f"{verb}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        body = {
            "apiVersion": KNAFKA,
            "kind": kind,
            "metadata": {"namespace": self.namespace, "name": name},
            "spec": {"archive": _name_of(archive), **spec, **retention},
        }
        if self.api.create(OPERATION_OBJECTS[kind], self.namespace, body) is None:
            raise ClusterError(CRD_MISSING.format(plural=OPERATION_OBJECTS[kind].plural))
        self.show_progress(f"{kind} {self.namespace}/{name}")
        return name

    def follow(self, kind: str, name: str) -> Mapping[str, Any]:
        """Wait until the operation of this kind and name has succeeded or failed, however long that
        takes; returns its status."""
        return self._poll_until(OPERATION_OBJECTS[kind], name, is_finished)

    def ask_to_run(self, archive: Document) -> str:
        """Make an archive run now, by an annotation; returns the request's id, by which
        `follow_run` recognizes that run."""
        name, request_id = _name_of(archive), f"{time.time():.3f}"
        if not self.api.annotate(ARCHIVE_OBJECTS, self.namespace, name, RUN_ANNOTATION, request_id):
            raise ClusterError(f"DeadLetterArchive {self.namespace}/{name} is gone")
        return request_id

    def follow_run(self, archive: Document, request_id: str) -> Mapping[str, Any]:
        """Wait until the archive's run for this request has succeeded or failed, however long that
        takes; returns the archive's status."""

        def has_ended(status: Mapping[str, Any]) -> bool:
            """Whether an archive with this status has ended its run for the request."""
            return status.get("requested") == request_id and status.get("phase") in IDLE_PHASES

        return self._poll_until(ARCHIVE_OBJECTS, _name_of(archive), has_ended)

    def _poll_until(
        self, objects: Objects, name: str, has_ended: Callable[[Mapping[str, Any]], bool]
    ) -> Mapping[str, Any]:
        """Read the status of the object `name` of the API resource `objects` every `poll_interval`
        seconds, until `has_ended` returns True for it; return that status.

        Shows each new phase and message as progress. If there is neither after
        `NO_OPERATOR_TIMEOUT`, tells the user that no operator has started the operation.
        """
        last_line, start = "", time.monotonic()
        while True:
            document = self.api.get(objects, self.namespace, name)
            if document is None:
                raise ClusterError(
                    f"{objects.plural} {self.namespace}/{name} was deleted meanwhile"
                )
            status: Mapping[str, Any] = document.get("status") or {}
            if has_ended(status):
                return status
            line = ": ".join(filter(None, (status.get("phase", ""), status.get("message", ""))))
            if not line and time.monotonic() - start > NO_OPERATOR_TIMEOUT:
                line = "no operator has started it: check that one runs, with KNAFKA_JOBS_IMAGE"
            if line and line != last_line:
                last_line = line
                self.show_progress(line)
            time.sleep(self.poll_interval)


def _name_of(document: Document) -> str:
    """Return an object's name."""
    return str(document["metadata"]["name"])


def _broker_of(archive: Document) -> str:
    """Return the name of an archive's Broker; `default` if its spec names none."""
    return str((archive.get("spec") or {}).get("broker") or "default")
