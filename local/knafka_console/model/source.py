"""Source: where the console gets what it shows, and who does what somebody asks of it.

One belongs to one viewer: what they may not see or do, it refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from knafka.core.errors import KnafkaError
from knafka.core.event import Event
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
    """There is no such object."""


class Forbidden(KnafkaError):
    """The viewer may not do this."""


class NotSignedIn(KnafkaError):
    """Nobody knows who asks: without a token, or with one that isn't valid any more."""


class TriggerName(NamedTuple):
    """Which Trigger or Subscription."""

    namespace: str
    name: str
    kind: TriggerKind = "Trigger"

    @property
    def id(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        """As the page writes it: of a Trigger only the name."""
        return self.id if self.kind == "Trigger" else f"{self.kind} {self.id}"


class ArchiveName(NamedTuple):
    """Which DeadLetterArchive."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ReportPage(NamedTuple):
    """A report as a page, with the value of its `Content-Security-Policy`."""

    html: str
    policy: str


class ArchiveReports(Protocol):
    """Reports of DeadLetterArchives; everything may raise `NotFound` and `Forbidden`."""

    async def list(self) -> Reports:
        """Every archive that the viewer may list."""
        ...

    async def json(self, archive: ArchiveName) -> bytes:
        """Its last report."""
        ...

    async def page(self, archive: ArchiveName) -> ReportPage: ...

    async def replays(self, archive: ArchiveName) -> ArchiveReplays:
        """What is sent again of its failures, and whether the viewer may do so."""
        ...

    async def replay(self, archive: ArchiveName, asked: ReplayCreation) -> ArchiveReplay:
        """Send some of its failures again."""
        ...


class Source(Protocol):
    """What one viewer sees and does. Every method may raise `KnafkaError` with a sentence for the
    viewer."""

    @property
    def reports(self) -> ArchiveReports | None:
        """The reports of DeadLetterArchives; None: this place has no archives."""
        ...

    async def state(self) -> ConsoleState:
        """How everything stands: asked every second while a page is open, and never else."""
        ...

    async def details(self, trigger: TriggerName) -> TriggerDetails:
        """Raises `NotFound`."""
        ...

    async def failures(self, trigger: TriggerName) -> Failures:
        """Its last dead letters. Raises `NotFound`."""
        ...

    async def verdicts(self, event: Event) -> Sequence[FilterVerdict]:
        """Which Triggers would get an event."""
        ...

    async def pause(self, trigger: TriggerName, *, paused: bool) -> str:
        """Pause or resume a Trigger; returns a sentence about what was done. Raises `NotFound` and
        `Forbidden`."""
        ...

    async def replay(
        self, trigger: TriggerName, events: Sequence[EventName], *, dry_run: bool
    ) -> ReplayResult:
        """Send its dead letters of these events again. Raises `NotFound` and `Forbidden`."""
        ...

    async def report(self) -> bytes | None:
        """The last report on all dead letters, as HTML; None: there is none."""
        ...
