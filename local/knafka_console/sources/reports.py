"""ClusterReports: the reports that DeadLetterArchives' Jobs have put into Kafka, for one viewer.

Which archives there are and what becomes of a replay is asked as the viewer. What a report holds is
in Kafka: where another account reads that, the viewer needs a right to it, `get` of the archive's
subresource `report`. Nothing of a status says where it is: topic and key are computed.

    list        what the viewer may list; totals by each archive's status
    json, page  the last record of the archive's key
    replays     DeadLetterReplays of the archive; `replay` creates one, if the viewer may
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_client import Connection
from knafka.core import documents, names
from knafka.core.errors import InvalidDocument, LogError
from knafka.ports.log import LogAdmin
from knafka_client.declared.kubernetes_api import KubernetesApi, Objects
from knafka_console.model.document import (
    ArchiveReplay,
    ArchiveReplays,
    ReplayCreation,
    ReportRow,
    Reports,
)
from knafka_console.model.source import ArchiveName, Forbidden, NotFound, ReportPage
from knafka_operator.model.archives import MAX_ARCHIVE_NAME
from knafka_operator.model.cluster import Conflict, Document
from knafka_operator.model.sensors import KNAFKA

ARCHIVE_OBJECTS: Final = Objects(KNAFKA, "deadletterarchives")
REPLAY_OBJECTS: Final = Objects(KNAFKA, "deadletterreplays")
REPORT_SUBRESOURCE: Final = "report"
"""Subresource of archives: there is nothing behind it but the right."""
OF_GROUP: Final = "knafka.dev/report-group"
"""Label of a DeadLetterReplay: the group of a report for which its creator asked."""
WINDOWS: Final = (1, 16, 256)
"""Records that are looked at, from the end: all archives of a Broker have one topic."""
ARCHIVE_CRD_MISSING: Final = (
    "this cluster has no DeadLetterArchives: their CRD is not installed (docs/how-to/"
    "archive-dead-letters.md)"
)
_RENDERING: Final = threading.Lock()
"""One page at a time for all viewers: a large one takes a hundred MB for a second."""


@dataclass(frozen=True, slots=True)
class ReportTopics:
    """The last reports in Kafka; a client is opened for each call."""

    connect: Callable[[Connection], LogAdmin] = KafkaAdmin

    async def last(self, kafka: dict[str, Any], broker: str, archive: ArchiveName) -> bytes | None:
        """The last report of an archive of that Broker, as JSON; None: there is none.

        Raises `LogError`.
        """
        topic = names.reports_topic(archive.namespace, broker)
        key = names.report_key(*archive)
        admin = self.connect(kafka)
        try:
            for window in WINDOWS:
                records = await admin.read_all(topic, window)
                for record in reversed(records):
                    if record.key() == key:
                        return record.value()
                if len(records) < window:
                    return None
        except LogError as error:
            if not error.unknown_topic:
                raise
        finally:
            await admin.close()
        return None


class FindsBrokersKafka(Protocol):
    """Finds the Kafka of a Broker; a `ClusterKafka` does."""

    async def of_broker(self, namespace: str, broker: str) -> dict[str, Any]: ...


class ClusterReports:
    """`source.ArchiveReports` of a cluster."""

    def __init__(
        self,
        api: KubernetesApi,
        kafka: FindsBrokersKafka,
        namespaces: Sequence[str],
        *,
        allowed: Callable[[Awaitable[Any]], Awaitable[Any]],
        reaching: Callable[[], AbstractContextManager[None]],
        reviews_kafka: bool,
        traces: str = "",
        topics: ReportTopics | None = None,
    ) -> None:
        """`allowed` and `reaching` turn what an API server and Kafka say into what the viewer can
        do about it; `traces` is the address of a trace."""
        self._api = api
        self._kafka = kafka
        self._namespaces = namespaces
        self._allowed = allowed
        self._reaching = reaching
        self._reviews_kafka = reviews_kafka
        self._traces = traces
        self._topics = topics or ReportTopics()

    async def list(self) -> Reports:
        """The DeadLetterArchives of all namespaces that the viewer may list. Raises `Forbidden` if
        there is no such namespace."""
        places: Sequence[str | None] = self._namespaces or (None,)
        rows, problems = list[ReportRow](), list[str]()
        for place in places:
            try:
                archives = await self._allowed(
                    asyncio.to_thread(self._api.list, ARCHIVE_OBJECTS, place)
                )
            except Forbidden as error:
                if len(places) == 1:
                    raise
                problems.append(str(error))
                continue
            if archives is None:
                raise NotFound(ARCHIVE_CRD_MISSING)
            rows += map(_row, archives)
        rows.sort(key=lambda row: (row.namespace, row.name))
        return Reports(archives=tuple(rows), problems=tuple(problems))

    async def json(self, archive: ArchiveName) -> bytes:
        """Raises `NotFound`, with what to do, while there is none."""
        document = await self._allowed(
            asyncio.to_thread(self._api.get, ARCHIVE_OBJECTS, archive.namespace, archive.name)
        )
        if document is None:
            raise NotFound(f"there is no DeadLetterArchive {archive}")
        if self._reviews_kafka and not await self._may(
            "get", archive, ARCHIVE_OBJECTS, REPORT_SUBRESOURCE
        ):
            raise Forbidden(f"you may not get deadletterarchives/report in {archive.namespace}")
        broker = str((document.get("spec") or {}).get("broker") or "default")
        kafka = await self._allowed(self._kafka.of_broker(archive.namespace, broker))
        with self._reaching():
            report = await self._topics.last(kafka, broker, archive)
        if report is None:
            raise NotFound(_why_none(archive, document))
        return report

    async def page(self, archive: ArchiveName) -> ReportPage:
        """The same for a person."""
        return await asyncio.to_thread(self._render, archive, await self.json(archive))

    def _render(self, archive: ArchiveName, text: bytes) -> ReportPage:
        # Only now: nobody needs it who doesn't open a report.
        from knafka_jobs.report.report_document import Report
        from knafka_jobs.report.report_page import render_served

        with _RENDERING:
            try:
                report = documents.parse_json(Report, text.decode(errors="replace"))
            except InvalidDocument as error:
                raise NotFound(
                    f"the report of {archive} can't be read here: another version of Knafka has "
                    f"made it, or somebody else ({error!s:.300})"
                ) from error
            path = f"api/reports/{archive.namespace}/{archive.name}"
            made = render_served(report, self._traces, path)
        return ReportPage(made.html, made.policy)

    async def replays(self, archive: ArchiveName) -> ArchiveReplays:
        """Those that there are, the latest first, and whether the viewer may create one."""
        may = await self._may("create", archive, REPLAY_OBJECTS)
        with contextlib.suppress(Forbidden):  # who may create one needn't see others'
            documents = await self._allowed(
                asyncio.to_thread(self._api.list, REPLAY_OBJECTS, archive.namespace)
            )
            if documents is None:
                return ArchiveReplays(may=False)
            mine = [
                _replay(document) for document in documents if _archive_of(document) == archive.name
            ]
            mine.sort(key=lambda replay: replay.created, reverse=True)
            return ArchiveReplays(may=may, all=tuple(mine))
        return ArchiveReplays(may=may)

    async def replay(self, archive: ArchiveName, asked: ReplayCreation) -> ArchiveReplay:
        """Create a DeadLetterReplay, once for each `asked.request`. Raises `Forbidden`."""
        name = f"{archive.name[: MAX_ARCHIVE_NAME - 11].rstrip('.-')}-{asked.request}"
        body = {
            "apiVersion": KNAFKA,
            "kind": "DeadLetterReplay",
            "metadata": {
                "namespace": archive.namespace,
                "name": name,
                "labels": {OF_GROUP: asked.group},
            },
            "spec": {"archive": archive.name, "select": documents.dump(asked.select)},
        }
        target = REPLAY_OBJECTS, archive.namespace
        try:
            made = await self._allowed(asyncio.to_thread(self._api.create, *target, body))
        except Conflict:  # the answer to the first request was lost
            made = await self._allowed(asyncio.to_thread(self._api.get, *target, name))
        if made is None:
            raise NotFound("this cluster has no DeadLetterReplays: their CRD is not installed")
        return _replay(made)

    async def _may(
        self, verb: str, archive: ArchiveName, objects: Objects, subresource: str = ""
    ) -> bool:
        name = archive.name if objects is ARCHIVE_OBJECTS else ""
        may = asyncio.to_thread(self._api.may, verb, objects, archive.namespace, name, subresource)
        return bool(await self._allowed(may))


def _row(document: Document) -> ReportRow:
    metadata, status = document["metadata"], document.get("status") or {}
    report = status.get("report") or {}

    def number(name: str) -> int | None:
        value = report.get(name)
        return value if isinstance(value, int) else None

    return ReportRow(
        namespace=metadata["namespace"],
        name=metadata["name"],
        broker=str((document.get("spec") or {}).get("broker") or "default"),
        made=str(report.get("made") or ""),
        unresolved=number("unresolved"),
        groups=number("groups"),
        waiting=status.get("waiting") if isinstance(status.get("waiting"), int) else None,
        problem=str(report.get("notServed") or ""),
    )


def _why_none(archive: ArchiveName, document: Document) -> str:
    """What keeps a report from being served, and what to do."""
    report = (document.get("status") or {}).get("report") or {}
    if problem := report.get("notServed"):
        return f"the report of {archive} could not be put into Kafka: {problem:.400}"
    if (document.get("spec") or {}).get("report") is None:
        return f"{archive} makes no reports: set spec.report.schedule of the DeadLetterArchive"
    return (
        f"{archive} has no report yet: it is made by its schedule, once there was a dead letter; "
        f"now, by: kubectl -n {archive.namespace} annotate --overwrite "
        f"deadletterarchive/{archive.name} knafka.dev/run=$(date +%s)"
    )


def _archive_of(document: Document) -> str:
    return str((document.get("spec") or {}).get("archive") or "")


def _replay(document: Document) -> ArchiveReplay:
    metadata, status = document["metadata"], document.get("status") or {}
    select: Mapping[str, Any] = (document.get("spec") or {}).get("select") or {}
    counts = {
        field: status[field] for field in ("selected", "sent") if isinstance(status.get(field), int)
    }
    return ArchiveReplay(
        name=metadata["name"],
        group=str((metadata.get("labels") or {}).get(OF_GROUP) or ""),
        created=str(metadata.get("creationTimestamp") or ""),
        ids=len(select.get("ids") or ()),
        phase=str(status.get("phase") or ""),
        message=str(status.get("message") or ""),
        **counts,
    )
