"""Source: the Protocol by which the console reads state and acts, for one viewer.

It refuses requests for which its viewer lacks the right. An archive (DeadLetterArchive) is a
cluster's object whose Jobs copy dead letters into tables and write reports about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from knafka.core.errors import KnafkaError
from knafka.core.events.event import Event
from knafka_console.model.document import (
    ArchiveReplay,
    ArchiveReplays,
    ConsoleState,
    EventName,
    Failures,
    FilterVerdict,
    ReplayCreation,
    ReplayResult,
    Reports,
    TriggerDetails,
    TriggerKind,
)


class NotFound(KnafkaError):
    """The requested object doesn't exist."""


class Forbidden(KnafkaError):
    """The viewer lacks the right for this."""


class NotSignedIn(KnafkaError):
    """The request has no token, or one that is no longer valid."""


class TriggerName(NamedTuple):
    """Namespace, name and kind of a Trigger or Subscription."""

    namespace: str
    name: str
    kind: TriggerKind = "Trigger"

    @property
    def id(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        """Return the name as the page shows it: `namespace/name` for a Trigger, with the kind
        before it for a Subscription."""
        return self.id if self.kind == "Trigger" else f"{self.kind} {self.id}"


class ArchiveName(NamedTuple):
    """Namespace and name of a DeadLetterArchive."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ReportPage(NamedTuple):
    """A report as an HTML page, with the value of its `Content-Security-Policy`."""

    html: str
    policy: str


class ArchiveReports(Protocol):
    """Reports of DeadLetterArchives; every method may raise `NotFound` and `Forbidden`."""

    async def list(self) -> Reports:
        """Return all archives that the viewer may list."""
        ...

    async def json(self, archive: ArchiveName) -> bytes:
        """Return the last report of an archive, as JSON."""
        ...

    async def page(self, archive: ArchiveName) -> ReportPage:
        """Return the last report of an archive, as a page."""
        ...

    async def replays(self, archive: ArchiveName) -> ArchiveReplays:
        """Return the DeadLetterReplays of an archive, and whether the viewer may create one."""
        ...

    async def create_replay(self, archive: ArchiveName, creation: ReplayCreation) -> ArchiveReplay:
        """Create a DeadLetterReplay of an archive, with the selection in `creation`, and return it.
        A second call with the same `creation.request` returns the same replay."""
        ...


class Source(Protocol):
    """Reads state and acts for one viewer; every method may raise `KnafkaError` with a sentence for
    the viewer."""

    @property
    def reports(self) -> ArchiveReports | None:
        """The reports of DeadLetterArchives; None if this place has no archives."""
        ...

    async def state(self) -> ConsoleState:
        """Return the state of everything. It is called every second while a page is open, and never
        otherwise."""
        ...

    async def details(self, trigger: TriggerName) -> TriggerDetails:
        """Return the details of a Trigger or Subscription. Raises `NotFound`."""
        ...

    async def failures(self, trigger: TriggerName) -> Failures:
        """Return the latest dead letters of a Trigger or Subscription. Raises `NotFound`."""
        ...

    async def verdicts(self, event: Event) -> Sequence[FilterVerdict]:
        """Return for each Trigger whether it would get an event; Subscriptions, which have no
        filters, are left out."""
        ...

    async def pause(self, trigger: TriggerName, *, paused: bool) -> str:
        """Pause a Trigger or Subscription, or resume it if `paused` is False; returns a sentence
        about what was done.

        Raises `NotFound` and `Forbidden`.
        """
        ...

    async def replay(
        self, trigger: TriggerName, events: Sequence[EventName], *, dry_run: bool
    ) -> ReplayResult:
        """Send the dead letters of these events again to a Trigger, and return which were sent.
        With `dry_run`, nothing is sent, and the result says which would be. Raises `NotFound` and
        `Forbidden`."""
        ...

    async def report(self) -> bytes | None:
        """Return the last report on all dead letters, as HTML; None if there is none."""
        ...
