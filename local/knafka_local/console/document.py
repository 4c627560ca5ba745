"""The console's documents: what its page reads as JSON. Pure: snapshot, declared values -> values.

Counts are sums since the start of whatever keeps them; the page makes rates of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import yaml

from knafka.core import documents
from knafka.core.documents import Model
from knafka.core.event import Event
from knafka_local import triggers
from knafka_local.dead_letters import DeadLetter
from knafka_local.snapshot import BrokerRow, ConditionRow, Snapshot, TriggerRow
from knafka_operator.model.resources import DELIVERY_ORDER, MAX_IN_FLIGHT, Trigger

UNAVAILABLE: Final = "SubscriberUnavailable"
"""Reason of a Trigger whose circuit is open (`decide.delivery_status`, KN-DP-05)."""
DELIVERING: Final = "Delivering"


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


class BrokerState(Model):
    """One Broker, or whatever else takes events in."""

    kind: str = "Broker"
    namespace: str
    name: str
    url: str = ""
    accepted: int = 0
    rejected: int = 0
    refused: str = ""
    """Why it isn't Ready; empty: it is."""


class TriggerState(Model):
    """One Trigger: where it is in the flow, and how it does."""

    kind: str = "Trigger"
    namespace: str
    name: str
    broker: str
    """In the same namespace."""
    filters: str = ""
    """All on one line."""
    subscriber: str = ""
    health: Health
    why: str = ""
    """The words for its health: a condition's, or the scaler's last decision."""
    lag: int | None = None
    """Events; None: not known."""
    replicas: int = 0
    most_replicas: int = 0
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
    may: tuple[Action, ...]
    brokers: tuple[BrokerState, ...] = ()
    triggers: tuple[TriggerState, ...] = ()
    problems: tuple[str, ...] = ()


class ConditionState(Model):
    """One condition, as `kubectl` shows it."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    severity: str = ""


class TriggerDetails(Model):
    """What is shown of one Trigger when it is opened."""

    filters: str
    """As they are written, in YAML; empty: it wants all events."""
    delivery: str
    """The same of `spec.delivery`; empty: as its Broker says."""
    order: str
    max_in_flight: str = ""
    declared_in: str = ""
    conditions: tuple[ConditionState, ...] = ()


class Verdict(Model):
    """Whether a Trigger would get an event."""

    namespace: str
    name: str
    broker: str
    gets_it: bool
    why_not: tuple[str, ...] = ()
    """The clauses that refuse it."""


class Failure(Model):
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


class ReasonCount(Model):
    """How many dead letters nobody has sent again, by why they failed."""

    reason: str
    count: int


class Failures(Model):
    """A Trigger's last dead letters, the newest first."""

    last: tuple[Failure, ...]
    reasons: tuple[ReasonCount, ...]
    """Of those in `last`, the most frequent first."""
    is_all: bool
    """Whether there are no older ones."""
    commands: Mapping[str, str]
    """For a terminal, by what they do."""
    report: str = ""
    """Where the last report on them is served, relative to the page; empty: there is none."""


class EventName(Model):
    """Which event: an `id` is unique for its `source` only."""

    id: str
    source: str


class ReplayRequest(Model):
    """Which dead letters of a Trigger to send again."""

    namespace: str
    name: str
    events: tuple[EventName, ...]
    dry_run: bool = False


class Chosen(Model):
    """What becomes of one dead letter that was asked for."""

    about: str
    obstacle: str = ""
    """Why it isn't sent; empty: it is."""


class Replayed(Model):
    """What a replay has done, or would do."""

    chosen: tuple[Chosen, ...]
    replay: str = ""
    """Its id; empty: nothing was sent."""


def state(
    snapshot: Snapshot, declared: Iterable[Trigger], place: str, may: Sequence[Action]
) -> ConsoleState:
    """The console's state of a snapshot and the Triggers as they are declared."""
    specs = {each.id: each for each in declared}
    return ConsoleState(
        place=place,
        kafka=snapshot.kafka,
        may=tuple(may),
        brokers=tuple(map(_broker, snapshot.brokers)),
        triggers=tuple(_trigger(each, specs.get(each.name)) for each in snapshot.triggers),
        problems=snapshot.problems,
    )


def _broker(row: BrokerRow) -> BrokerState:
    namespace, _, name = row.name.rpartition("/")
    return BrokerState(
        namespace=namespace,
        name=name,
        url=row.url,
        accepted=row.accepted,
        rejected=row.rejected,
        refused=row.refused,
    )


def _trigger(row: TriggerRow, declared: Trigger | None) -> TriggerState:
    namespace, _, name = row.name.rpartition("/")
    health, why = health_of(row)
    return TriggerState(
        namespace=namespace,
        name=name,
        broker=row.broker or (declared.spec.broker if declared else ""),
        filters=triggers.filters_in_short(declared) if declared else "",
        subscriber=triggers.subscriber_in_short(declared.spec.subscriber) if declared else "",
        health=health,
        why=why,
        lag=row.lag,
        replicas=row.replicas,
        most_replicas=row.most_replicas,
        read=row.read,
        filtered=row.filtered,
        delivered=row.delivered,
        retried=row.retried,
        dead_lettered=row.buried,
    )


def health_of(row: TriggerRow) -> tuple[Health, str]:
    """How a Trigger is, and the words for it."""
    if row.refused:
        return Health.NOT_READY, row.refused
    if row.error:
        delivering = next((each for each in row.conditions if each.type == DELIVERING), None)
        is_open = delivering is not None and delivering.reason == UNAVAILABLE
        return (Health.UNAVAILABLE if is_open else Health.TROUBLED), row.error
    if row.paused:
        return Health.PAUSED, "its events wait"
    return (Health.DELIVERING if row.replicas else Health.RESTING), row.decision


def details(
    trigger: Trigger, conditions: Iterable[ConditionRow], declared_in: str
) -> TriggerDetails:
    """What is declared of a Trigger, and its conditions."""
    annotations = trigger.metadata.annotations
    spec = documents.dump(trigger.spec)
    wanted = ("filters",) if trigger.spec.filters else ("filter",)
    return TriggerDetails(
        filters=_written(spec, wanted),
        delivery=_written(spec, ("delivery",)),
        order=annotations.get(DELIVERY_ORDER, "key"),
        max_in_flight=annotations.get(MAX_IN_FLIGHT, ""),
        declared_in=declared_in,
        conditions=tuple(
            ConditionState(
                type=each.type,
                status=each.status,
                reason=each.reason,
                message=each.message,
                severity=each.severity,
            )
            for each in conditions
        ),
    )


def _written(spec: Mapping[str, Any], names: Sequence[str]) -> str:
    shown = {name: spec[name] for name in names if spec.get(name)}
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=80) if shown else ""


def verdicts(asked: Iterable[Trigger], event: Event) -> tuple[Verdict, ...]:
    """Who would get the event, and which clause says no."""
    return tuple(
        Verdict(
            namespace=each.metadata.namespace,
            name=each.metadata.name,
            broker=each.spec.broker,
            gets_it=not (clauses := tuple(triggers.refusals(each, event))),
            why_not=clauses,
        )
        for each in asked
    )


def failures(letters: Sequence[DeadLetter], limit: int, trigger: str, report: str) -> Failures:
    """A Trigger's dead letters, oldest first as they were read, `limit` at most."""
    found = tuple(
        Failure(**{name: getattr(each, name) for name in Failure.model_fields})
        for each in reversed(letters)
    )
    reasons = Counter(f"{each.reason} {each.code}".strip() for each in found if not each.replayed)
    return Failures(
        last=found,
        reasons=tuple(ReasonCount(reason=why, count=n) for why, n in reasons.most_common()),
        is_all=len(letters) < limit,
        commands={
            "Show them": f"knafka dead-letters show {trigger}",
            "Report on all of them": "knafka dead-letters report --open",
        },
        report=report,
    )
