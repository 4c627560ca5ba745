"""ClusterReports: the reports of DeadLetterArchives in a cluster, for one viewer.

An archive is an object whose Jobs copy a Broker's dead letters into tables and report on them.
Archives and replays are read and created with the viewer's rights. The reports themselves are in
Kafka, written by the archives' Jobs: where another account reads Kafka, the viewer needs the right
`get` of the archive's subresource `report`. Topic and key are computed, never taken from a status.

    list        the archives that the viewer may list, with totals from their status
    json, page  the last record with the archive's key
    replays     the DeadLetterReplays of the archive; `create_replay` creates one
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.kafka_client import Connection
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
from knafka_operator.archives.model import MAX_ARCHIVE_NAME
from knafka_operator.model.cluster import Conflict, Document
from knafka_operator.model.sensors import KNAFKA

ARCHIVE_OBJECTS: Final = Objects(KNAFKA, "deadletterarchives")
"""DeadLetterArchives, as requests to the API server name them."""
REPLAY_OBJECTS: Final = Objects(KNAFKA, "deadletterreplays")
"""DeadLetterReplays, as requests to the API server name them."""
REPORT_SUBRESOURCE: Final = "report"
"""Subresource of archives that exists only as a right, to read reports."""
REPORT_GROUP_LABEL: Final = "knafka.dev/report-group"
"""Label of a DeadLetterReplay with the group of the report that it was created from."""
ARCHIVE_CRD_MISSING: Final = (
    "this cluster has no DeadLetterArchives: their CRD is not installed (docs/how-to/"
    "archive-dead-letters.md)"
)
"""The error for a cluster that doesn't have the kind."""
_RENDER_LOCK: Final = threading.Lock()
"""Held while a page is rendered, so that only one is: a large report takes a hundred MB."""


@dataclass(frozen=True, slots=True)
class ReportTopics:
    """Reads the last reports from Kafka. It opens a client for each call, as calls are rare."""

    connect: Callable[[Connection], LogAdmin] = KafkaAdmin
    """Opens a client that reads, by a librdkafka configuration."""

    async def read_last(
        self, kafka: dict[str, Any], broker: str, archive: ArchiveName
    ) -> bytes | None:
        """Return the last report of an archive of this Broker, as JSON; None if there is none.

        `kafka` is the librdkafka configuration. Raises `LogError`.
        """
        topic = names.reports_topic(archive.namespace, broker)
        key = names.report_key(*archive)
        admin = self.connect(kafka)
        try:
            # By key, since all archives of a Broker share a topic: the newest records may all be of
            # an archive that reports more often.
            record = await admin.last_with_key(topic, key)
            return None if record is None else record.value()
        except LogError as error:
            if not error.unknown_topic:
                raise
            return None
        finally:
            await admin.close()


class BrokerKafkaFinder(Protocol):
    """Finds the Kafka of a Broker, such as `ClusterKafka`."""

    async def find_for_broker(self, namespace: str, broker: str) -> dict[str, Any]:
        """Return the librdkafka configuration for a Broker's Kafka."""
        ...


@dataclass(frozen=True, slots=True)
class ConsoleScope:
    """Which part of a cluster a viewer is shown, and what the pages say about it."""

    cluster_name: str
    namespaces: Sequence[str] = ()
    """The only namespaces whose objects are listed; empty: all namespaces."""
    reads_kafka_with_own_account: bool = False
    """Whether the console reads Kafka with an account of its own, not the viewer's, so that the
    viewer needs rights to the subresources of objects."""
    trace_url: str = ""
    """URL of a trace, with `{trace}` for its id; empty: traces have no links."""
    unreached_hint: str = ""
    """What to do if Kafka doesn't answer; empty: the error has no hint."""


class ClusterReports:
    """The reports of a cluster's DeadLetterArchives, as `source.ArchiveReports`."""

    def __init__(
        self,
        api: KubernetesApi,
        kafka: BrokerKafkaFinder,
        scope: ConsoleScope,
        *,
        translate_refusals: Callable[[Awaitable[Any]], Awaitable[Any]],
        explain_unreached_kafka: Callable[[], AbstractContextManager[None]],
        topics: ReportTopics | None = None,
    ) -> None:
        """`api` sends requests with the viewer's token; `kafka` finds a Broker's Kafka.

        `translate_refusals` awaits a request, and raises `NotSignedIn` or `Forbidden` in place of
        the API server's refusals. Inside the context `explain_unreached_kafka`, an error of a Kafka
        that isn't reached also says what to do. `topics` reads reports (None: from Kafka itself).
        """
        self._api = api
        self._kafka = kafka
        self._scope = scope
        self._translate_refusals = translate_refusals
        self._explain_unreached_kafka = explain_unreached_kafka
        self._topics = topics or ReportTopics()

    async def list(self) -> Reports:
        """Return all archives that the viewer may list, by namespace and name; a namespace that is
        refused becomes a problem.

        Raises `Forbidden` if the only namespace is refused, and `NotFound` if the cluster has no
        DeadLetterArchives.
        """
        namespaces: Sequence[str | None] = self._scope.namespaces or (None,)  # None: all of them
        rows, problems = list[ReportRow](), list[str]()
        for namespace in namespaces:
            try:
                archives = await self._translate_refusals(
                    asyncio.to_thread(self._api.list, ARCHIVE_OBJECTS, namespace)
                )
            except Forbidden as error:
                if len(namespaces) == 1:
                    raise
                problems.append(str(error))
                continue
            if archives is None:
                raise NotFound(ARCHIVE_CRD_MISSING)
            rows += map(_report_row, archives)
        rows.sort(key=lambda row: (row.namespace, row.name))
        return Reports(archives=tuple(rows), problems=tuple(problems))

    async def json(self, archive: ArchiveName) -> bytes:
        """Return the last report of an archive, as JSON.

        Raises `NotSignedIn`, `Forbidden`, `LogError`, and `NotFound` if there is no such archive,
        or no report: its text says why, and what to do.
        """
        document = await self._translate_refusals(
            asyncio.to_thread(self._api.get, ARCHIVE_OBJECTS, archive.namespace, archive.name)
        )
        if document is None:
            raise NotFound(f"there is no DeadLetterArchive {archive}")
        if self._scope.reads_kafka_with_own_account and not await self._is_allowed(
            "get", archive, ARCHIVE_OBJECTS, REPORT_SUBRESOURCE
        ):
            raise Forbidden(f"you may not get deadletterarchives/report in {archive.namespace}")
        broker = str((document.get("spec") or {}).get("broker") or "default")
        kafka = await self._translate_refusals(
            self._kafka.find_for_broker(archive.namespace, broker)
        )
        with self._explain_unreached_kafka():
            report = await self._topics.read_last(kafka, broker, archive)
        if report is None:
            raise NotFound(_missing_report_reason(archive, document))
        return report

    async def page(self, archive: ArchiveName) -> ReportPage:
        """Return the last report of an archive, as a page.

        Raises `NotSignedIn`, `Forbidden`, `LogError`, and `NotFound` if there is no such archive or
        no report that can be read.
        """
        return await asyncio.to_thread(self._render, archive, await self.json(archive))

    def _render(self, archive: ArchiveName, text: bytes) -> ReportPage:
        """Render a report's JSON as a page; blocks. Raises `NotFound` if it can't be read."""
        # Imported here: only an opened report needs it.
        from knafka_jobs.report.report_document import Report
        from knafka_jobs.report.report_page import render_served

        with _RENDER_LOCK:
            try:
                report = documents.parse_json(Report, text.decode(errors="replace"))
            except InvalidDocument as error:
                raise NotFound(
                    f"the report of {archive} can't be read here: another version of Knafka has "
                    f"made it, or somebody else ({error!s:.300})"
                ) from error
            path = f"api/reports/{archive.namespace}/{archive.name}"
            served_page = render_served(report, self._scope.trace_url, path)
        return ReportPage(served_page.html, served_page.policy)

    async def replays(self, archive: ArchiveName) -> ArchiveReplays:
        """Return the replays of an archive, newest first, and whether the viewer may create one.

        `all` is empty if the viewer may not list replays, or if the cluster doesn't have the kind.
        Raises `NotSignedIn`.
        """
        may_create = await self._is_allowed("create", archive, REPLAY_OBJECTS)
        try:
            replay_documents = await self._translate_refusals(
                asyncio.to_thread(self._api.list, REPLAY_OBJECTS, archive.namespace)
            )
        except Forbidden:
            # A viewer may have the right to create replays but not to list them.
            return ArchiveReplays(may=may_create)
        if replay_documents is None:  # the cluster doesn't have the kind
            return ArchiveReplays(may=False)
        replays_of_archive = [
            _archive_replay(document)
            for document in replay_documents
            if _archive_name_of(document) == archive.name
        ]
        replays_of_archive.sort(key=lambda replay: replay.created, reverse=True)
        return ArchiveReplays(may=may_create, all=tuple(replays_of_archive))

    async def create_replay(self, archive: ArchiveName, creation: ReplayCreation) -> ArchiveReplay:
        """Create a DeadLetterReplay and return it. If an earlier call with the same
        `creation.request` has created one, return that.

        Raises `Forbidden`, and `NotFound` if the cluster has no DeadLetterReplays.
        """
        suffix = f"-{creation.request}"  # the same for each attempt, so the second one conflicts
        # The archive's name is cut, so that with the suffix it isn't too long.
        name = archive.name[: MAX_ARCHIVE_NAME - len(suffix)].rstrip(".-") + suffix
        body = {
            "apiVersion": KNAFKA,
            "kind": "DeadLetterReplay",
            "metadata": {
                "namespace": archive.namespace,
                "name": name,
                "labels": {REPORT_GROUP_LABEL: creation.group},
            },
            "spec": {"archive": archive.name, "select": documents.dump(creation.select)},
        }
        target = REPLAY_OBJECTS, archive.namespace
        try:
            document = await self._translate_refusals(
                asyncio.to_thread(self._api.create, *target, body)
            )
        except Conflict:  # the answer to the first request was lost
            document = await self._translate_refusals(
                asyncio.to_thread(self._api.get, *target, name)
            )
        if document is None:
            raise NotFound("this cluster has no DeadLetterReplays: their CRD is not installed")
        return _archive_replay(document)

    async def _is_allowed(
        self, verb: str, archive: ArchiveName, objects: Objects, subresource: str = ""
    ) -> bool:
        """Whether the viewer may do `verb` with these objects. For `ARCHIVE_OBJECTS` that means
        this archive, or its `subresource`; for another kind, all objects in the archive's
        namespace."""
        name = archive.name if objects is ARCHIVE_OBJECTS else ""
        review = asyncio.to_thread(
            self._api.is_allowed, verb, objects, archive.namespace, name, subresource
        )
        return bool(await self._translate_refusals(review))


def _report_row(document: Document) -> ReportRow:
    """Return the row of an archive from its object. The totals are those of the last report, as the
    archive's status has them."""
    metadata, status = document["metadata"], document.get("status") or {}
    report, waiting = status.get("report") or {}, status.get("waiting")

    def report_total(name: str) -> int | None:
        """Return a total of the last report; None if the status has none of this name."""
        total = report.get(name)
        return total if isinstance(total, int) else None

    return ReportRow(
        namespace=metadata["namespace"],
        name=metadata["name"],
        broker=str((document.get("spec") or {}).get("broker") or "default"),
        made=str(report.get("made") or ""),
        unresolved=report_total("unresolved"),
        groups=report_total("groups"),
        waiting=waiting if isinstance(waiting, int) else None,
        problem=str(report.get("notServed") or ""),
    )


def _missing_report_reason(archive: ArchiveName, document: Document) -> str:
    """Return why an archive has no report, and what to do. `document` is the archive's object."""
    report = (document.get("status") or {}).get("report") or {}
    if problem := report.get("notServed"):
        return f"the report of {archive} could not be put into Kafka: {problem:.400}"
    if (document.get("spec") or {}).get("report") is None:
        return f"{archive} makes no reports: set spec.report.schedule of the DeadLetterArchive"
    return (
        f"{archive} has no report yet: one is made on schedule, once there are dead letters. "
        f"To make one now: kubectl -n {archive.namespace} annotate --overwrite "
        f"deadletterarchive/{archive.name} knafka.dev/run=$(date +%s)"
    )


def _archive_name_of(document: Document) -> str:
    """Return the name of the archive that a DeadLetterReplay replays; empty if it names none."""
    return str((document.get("spec") or {}).get("archive") or "")


def _archive_replay(document: Document) -> ArchiveReplay:
    """Return the console's document of a DeadLetterReplay object."""
    metadata, status = document["metadata"], document.get("status") or {}
    select: Mapping[str, Any] = (document.get("spec") or {}).get("select") or {}
    counts = {
        field: status[field] for field in ("selected", "sent") if isinstance(status.get(field), int)
    }
    return ArchiveReplay(
        name=metadata["name"],
        group=str((metadata.get("labels") or {}).get(REPORT_GROUP_LABEL) or ""),
        created=str(metadata.get("creationTimestamp") or ""),
        ids=len(select.get("ids") or ()),
        phase=str(status.get("phase") or ""),
        message=str(status.get("message") or ""),
        **counts,
    )
