"""The console's documents: the JSON that its page reads, from whichever source.

Counts are totals since the process that counts has started; the page computes rates.
Not here: making documents, which sources do (`snapshot_document`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from knafka.core.documents import Model

TriggerKind: TypeAlias = Literal["Trigger", "Subscription"]
"""The kind of object that events are delivered for: a Broker's or a KafkaChannel's."""


class Action(StrEnum):
    """An action on a Trigger. The page shows a button only for the actions that the viewer may
    do."""

    PAUSE = "pause"
    """Pause or resume the Trigger."""
    REPLAY = "replay"
    """Send dead letters again."""


class Health(StrEnum):
    """The state of a Trigger in one word: the worst that applies."""

    NOT_READY = "not-ready"
    """The condition `Ready` isn't True."""
    UNAVAILABLE = "unavailable"
    """The circuit is open: a few events probe the subscriber, the others wait."""
    TROUBLED = "troubled"
    """Deliveries have another warning than an open circuit."""
    PAUSED = "paused"
    """It is declared paused: its events wait."""
    DELIVERING = "delivering"
    """At least one dispatcher runs."""
    RESTING = "resting"
    """Scaled to zero: no dispatcher runs."""


class ConsoleBroker(Model):
    """One Broker or KafkaChannel."""

    kind: Literal["Broker", "KafkaChannel"] = "Broker"
    namespace: str
    name: str
    url: str = ""
    """Where it takes events; empty while it isn't Ready."""
    accepted: int = 0
    """Number of accepted events; in a cluster, of all records of its topic, replies included."""
    rejected: int | None = 0
    """Number of refused requests; None if not known."""
    refused: str = ""
    """Why it isn't Ready; empty if it is."""


class ConsoleTrigger(Model):
    """One Trigger or Subscription: its place in the flow of events, and its health.

    `read` to `dead_lettered` are numbers of events.
    """

    kind: TriggerKind = "Trigger"
    namespace: str
    name: str
    broker: str
    """Name of the Trigger's Broker, or the Subscription's KafkaChannel, in the same namespace."""
    filters: str = ""
    """All filters on one line; a Subscription has none."""
    subscriber: str = ""
    """Where its events go, as text; empty if it can't be read."""
    health: Health
    why: str = ""
    """Text about its health: a condition's message, or the scaler's last decision."""
    lag: int | None = None
    """Number of events that wait; None if not known."""
    replicas: int = 0
    """Number of dispatchers that run."""
    most_replicas: int = 0
    """Number of dispatchers that may run at once; 0 if not known."""
    read: int = 0
    filtered: int = 0
    delivered: int = 0
    retried: int = 0
    dead_lettered: int = 0


class ConsoleState(Model):
    """The state that the page shows all the time."""

    place: str
    """The name of this data folder or cluster."""
    kafka: str
    """Kafka's address, as text for the viewer; empty if not known."""
    brokers: tuple[ConsoleBroker, ...] = ()
    """Brokers and KafkaChannels."""
    triggers: tuple[ConsoleTrigger, ...] = ()
    """Triggers and Subscriptions."""
    archives: bool = False
    """Whether this place has DeadLetterArchives."""
    problems: tuple[str, ...] = ()
    """A sentence for each thing that can't be shown, or isn't right."""


class ConsoleCondition(Model):
    """A condition in an object's status, with Knative's fields. `severity` is empty for an error,
    else `Warning` or `Info`."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    severity: str = ""


class TriggerDetails(Model):
    """Further fields of one Trigger or Subscription, shown when the viewer opens it."""

    may: tuple[Action, ...] = ()
    """The actions that the viewer may do."""

    filters: str
    """The filters in YAML; empty if it gets all events."""
    delivery: str
    """`spec.delivery` in YAML; empty if the Broker's applies."""
    order: str
    """The order of its deliveries, such as `key`."""
    max_in_flight: str = ""
    """The largest number of events that are delivered at once, as declared; empty if none is
    declared."""
    reply: str = ""
    """Where a Subscription's replies go; empty if they are discarded, or go back to the Broker."""
    declared_in: str = ""
    """The file and document of its manifest; empty in a cluster."""
    conditions: tuple[ConsoleCondition, ...] = ()


class FilterVerdict(Model):
    """Whether a Trigger would get an event."""

    namespace: str
    name: str
    broker: str
    gets_it: bool
    why_not: tuple[str, ...] = ()
    """The filter clauses that refuse the event; empty if it gets the event."""


class ConsoleFailure(Model):
    """One dead letter: an event that could not be delivered. Unknown fields are empty."""

    id: str
    type: str
    source: str
    reason: str
    """Why the delivery was given up."""
    code: str
    """HTTP status of the last answer."""
    attempts: str
    first_time: str
    """Time of the first attempt, in RFC 3339."""
    last_time: str
    """Time of the last attempt, in RFC 3339."""
    destination: str
    error: str
    """The subscriber's answer, or why there was none."""
    data: str
    """The beginning of the event's data, as text."""
    omitted: str
    """The parts of the event that were too large to be kept."""
    position: str
    """`topic/partition/offset` of the event in its Broker's topic."""
    replayed: str = ""
    """When the event was last sent again, in RFC 3339."""
    of_broker: bool = False
    """Whether it belongs to the Broker and to no Trigger, since the record holds no event."""


class ReasonCount(Model):
    """A reason, and the number of dead letters with it that were not sent again."""

    reason: str
    count: int


class Failures(Model):
    """A Trigger's latest dead letters."""

    last: tuple[ConsoleFailure, ...]
    """The dead letters, newest first."""
    reasons: tuple[ReasonCount, ...]
    """Counts of the reasons in `last`, the most frequent first."""
    is_all: bool
    """Whether these are all dead letters."""
    commands: Mapping[str, str]
    """Commands for a terminal, by what they do."""
    report: str = ""
    """URL of the last report, relative to the page; empty if there is none."""


class ReportRow(Model):
    """One DeadLetterArchive, and the totals of its last report from its status."""

    namespace: str
    name: str
    broker: str
    made: str = ""
    """When the report was made; empty if there is none."""
    unresolved: int | None = None
    """Dead letters that were not sent again with success; None if not known."""
    groups: int | None = None
    """Groups of dead letters that failed alike; None if not known."""
    waiting: int | None = None
    """Number of dead letters that aren't in its tables yet; None if not known."""
    problem: str = ""
    """Why the report can't be served although it was made; empty if it can."""


class Reports(Model):
    """All DeadLetterArchives that the viewer may list."""

    archives: tuple[ReportRow, ...]
    problems: tuple[str, ...] = ()
    """A sentence for each namespace whose archives can't be listed."""


class ReplaySelect(Model):
    """A selection of dead letters, as `spec.select` of a DeadLetterReplay. A dead letter is
    selected if it has all values that are given; None, and empty `ids`, allow any value."""

    trigger: str
    destination: str | None = None
    reason: str | None = None
    code: int | None = None
    summary: str | None = None
    source: str | None = None
    ids: tuple[str, ...] = ()


class ReplayCreation(Model):
    """The request of a report's button: replay the dead letters of one group of the report, which
    failed alike."""

    request: Annotated[str, Field(pattern=r"^[0-9a-f]{10}$")]
    """Id of the request: a request that is sent twice creates only one DeadLetterReplay."""
    group: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    """The group's id in the report."""
    select: ReplaySelect


class ArchiveReplay(Model):
    """A DeadLetterReplay and its progress."""

    name: str
    group: str = ""
    """The group of a report for which the replay was created; empty if it was created elsewhere."""
    created: str = ""
    ids: int = 0
    """Number of events that the replay names by id; 0 if it selects otherwise."""
    phase: str = ""
    """The state of the replay, from its status; empty until it has one."""
    message: str = ""
    selected: int | None = None
    """Number of dead letters that the replay selected; None until its Job has counted them."""
    sent: int | None = None
    """Number of events that the replay has sent again; None until its Job has sent any."""


class ArchiveReplays(Model):
    """The DeadLetterReplays of one archive, newest first."""

    may: bool
    """Whether the viewer may create one."""
    all: tuple[ArchiveReplay, ...] = ()
    """The replays; empty, too, if the viewer may not list them."""


class EventName(Model):
    """Identifies an event: an `id` is unique for its `source` only."""

    id: str
    source: str


class ReplayRequest(Model):
    """A request to send dead letters of a Trigger again."""

    kind: TriggerKind = "Trigger"
    namespace: str
    name: str
    events: tuple[EventName, ...]
    """The events whose dead letters are sent."""
    dry_run: bool = False
    """Whether to send nothing, and only answer what would be sent."""


class ChosenEvent(Model):
    """One dead letter that a replay was asked for, and whether it is sent."""

    about: str
    """The Trigger, the event and why it failed, as one line for the viewer."""
    obstacle: str = ""
    """Why it isn't sent; empty if it is."""


class ReplayResult(Model):
    """The result of a replay: which events it has sent, or would send."""

    chosen: tuple[ChosenEvent, ...]
    replay: str = ""
    """The replay's id; empty if nothing was sent."""
