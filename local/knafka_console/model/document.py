"""The console's documents: what its page reads as JSON, wherever that is from.

Counts are sums since the start of whatever keeps them; the page makes rates of them.
Not here: making them, which is a source's; see `snapshot_document`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from knafka.core.documents import Model

TriggerKind: TypeAlias = Literal["Trigger", "Subscription"]
"""What gets events: of a Broker, and of a KafkaChannel."""


class Action(StrEnum):
    """What a viewer may do; the page shows no button for anything else."""

    PAUSE = "pause"
    """Also to resume."""
    REPLAY = "replay"


class Health(StrEnum):
    """How a Trigger is, in one word; the worst that applies."""

    NOT_READY = "not-ready"
    UNAVAILABLE = "unavailable"
    """Its circuit is open: a few events probe the subscriber, the others wait."""
    TROUBLED = "troubled"
    PAUSED = "paused"
    DELIVERING = "delivering"
    RESTING = "resting"
    """Scaled to zero."""


class ConsoleBroker(Model):
    """One Broker or KafkaChannel."""

    kind: Literal["Broker", "KafkaChannel"] = "Broker"
    namespace: str
    name: str
    url: str = ""
    accepted: int = 0
    """Events; in a cluster all that its topic ever got, replies among them."""
    rejected: int | None = 0
    """None: not known."""
    refused: str = ""
    """Why it isn't Ready; empty: it is."""


class ConsoleTrigger(Model):
    """One Trigger or Subscription: where it is in the flow, and how it does."""

    kind: TriggerKind = "Trigger"
    namespace: str
    name: str
    broker: str
    """Its Broker, or a Subscription's KafkaChannel; in the same namespace."""
    filters: str = ""
    """All on one line; a Subscription has none."""
    subscriber: str = ""
    health: Health
    why: str = ""
    """The words for its health: a condition's, or the scaler's last decision."""
    lag: int | None = None
    """Events; None: not known."""
    replicas: int = 0
    most_replicas: int = 0
    """0: not known."""
    read: int = 0
    filtered: int = 0
    delivered: int = 0
    retried: int = 0
    dead_lettered: int = 0


class ConsoleState(Model):
    """Everything that the page shows without being asked for more."""

    place: str
    """What this is a console of: a data folder, or a cluster."""
    kafka: str
    brokers: tuple[ConsoleBroker, ...] = ()
    """KafkaChannels among them."""
    triggers: tuple[ConsoleTrigger, ...] = ()
    """Subscriptions among them."""
    archives: bool = False
    """Whether DeadLetterArchives can be asked for here."""
    problems: tuple[str, ...] = ()


class ConsoleCondition(Model):
    """One condition, as `kubectl` shows it."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    severity: str = ""


class TriggerDetails(Model):
    """What is shown of one Trigger or Subscription when it is opened."""

    may: tuple[Action, ...] = ()
    """What the viewer may do to it."""

    filters: str
    """As they are written, in YAML; empty: it wants all events."""
    delivery: str
    """The same of `spec.delivery`; empty: as its Broker says."""
    order: str
    max_in_flight: str = ""
    reply: str = ""
    """Where a Subscription's replies go; empty: they are discarded, or go back to the Broker."""
    declared_in: str = ""
    conditions: tuple[ConsoleCondition, ...] = ()


class FilterVerdict(Model):
    """Whether a Trigger would get an event."""

    namespace: str
    name: str
    broker: str
    gets_it: bool
    why_not: tuple[str, ...] = ()
    """The clauses that refuse it."""


class ConsoleFailure(Model):
    """One dead letter."""

    id: str
    type: str
    source: str
    reason: str
    code: str
    attempts: str
    first_time: str
    last_time: str
    destination: str
    error: str
    data: str
    omitted: str
    position: str
    replayed: str = ""
    of_broker: bool = False
    """Whether it is its Broker's: of a record that holds no event, and so no Trigger's."""


class ReasonCount(Model):
    """How many dead letters nobody has sent again, by why they failed."""

    reason: str
    count: int


class Failures(Model):
    """A Trigger's last dead letters, the newest first."""

    last: tuple[ConsoleFailure, ...]
    reasons: tuple[ReasonCount, ...]
    """Of those in `last`, the most frequent first."""
    is_all: bool
    """Whether there are no older ones."""
    commands: Mapping[str, str]
    """For a terminal, by what they do."""
    report: str = ""
    """Where the last report on them is served, relative to the page; empty: there is none."""


class ReportRow(Model):
    """One DeadLetterArchive, and its last report as its status says it."""

    namespace: str
    name: str
    broker: str
    made: str = ""
    """When the report was made; empty: there is none."""
    unresolved: int | None = None
    groups: int | None = None
    waiting: int | None = None
    """Dead letters that aren't in its tables yet; None: not known."""
    problem: str = ""
    """Why the report is not served, though it was made."""


class Reports(Model):
    """All DeadLetterArchives that the viewer may list."""

    archives: tuple[ReportRow, ...]
    problems: tuple[str, ...] = ()


class ReplaySelect(Model):
    """Which failures; all that is given must fit. As a DeadLetterReplay has it."""

    trigger: str
    destination: str | None = None
    reason: str | None = None
    code: int | None = None
    summary: str | None = None
    source: str | None = None
    ids: tuple[str, ...] = ()


class ReplayCreation(Model):
    """What a button of a report asks for."""

    request: Annotated[str, Field(pattern=r"^[0-9a-f]{10}$")]
    """The same for the same question: asked twice over, it is one DeadLetterReplay."""
    group: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    select: ReplaySelect


class ArchiveReplay(Model):
    """A DeadLetterReplay, as far as it has come."""

    name: str
    group: str = ""
    """The group of a report that it was created for; empty: it was created elsewhere."""
    created: str = ""
    ids: int = 0
    """Events that it names by their ids; 0: all that fit."""
    phase: str = ""
    message: str = ""
    selected: int | None = None
    sent: int | None = None


class ArchiveReplays(Model):
    """The replays of one archive, the latest first."""

    may: bool
    """Whether the viewer may create one."""
    all: tuple[ArchiveReplay, ...] = ()


class EventName(Model):
    """Which event: an `id` is unique for its `source` only."""

    id: str
    source: str


class ReplayRequest(Model):
    """Which dead letters of a Trigger to send again."""

    kind: TriggerKind = "Trigger"
    namespace: str
    name: str
    events: tuple[EventName, ...]
    dry_run: bool = False


class ChosenEvent(Model):
    """What becomes of one dead letter that was asked for."""

    about: str
    obstacle: str = ""
    """Why it isn't sent; empty: it is."""


class ReplayResult(Model):
    """What a replay has done, or would do."""

    chosen: tuple[ChosenEvent, ...]
    replay: str = ""
    """Its id; empty: nothing was sent."""
