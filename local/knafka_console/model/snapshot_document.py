"""Makes the console's documents from declared objects and a snapshot, which has a row for each
object with its state. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import yaml

from knafka.core import documents
from knafka.core.events.event import Event
from knafka_client.declared import triggers
from knafka_client.state.snapshot import BrokerRow, ConditionRow, Snapshot, TriggerRow
from knafka_client.topics.dead_letters import StoredDeadLetter
from knafka_console.model.document import (
    Action,
    ConsoleBroker,
    ConsoleCondition,
    ConsoleFailure,
    ConsoleState,
    ConsoleTrigger,
    Failures,
    FilterVerdict,
    Health,
    ReasonCount,
    TriggerDetails,
)
from knafka_operator.kafka import egresses
from knafka_operator.model.resources import (
    MAX_IN_FLIGHT,
    Destination,
    Trigger,
)

SUBSCRIBER_UNAVAILABLE: Final = "SubscriberUnavailable"
"""Reason of a Trigger whose circuit is open (`dispatchers.conditions`, KN-DP-05)."""
DELIVERING: Final = "Delivering"
"""Type of the condition that warns of failing deliveries."""


def state_document(snapshot: Snapshot, declared: Iterable[Trigger], place: str) -> ConsoleState:
    """Return the console's state, from a snapshot and the declared Triggers and Subscriptions (the
    latter as Triggers). `place` is the name of the data folder or cluster."""
    specs = {(trigger.kind, trigger.id): trigger for trigger in declared}
    return ConsoleState(
        place=place,
        kafka=snapshot.kafka,
        brokers=tuple(map(_broker_document, snapshot.brokers)),
        triggers=tuple(
            _trigger_document(row, specs.get((row.kind, row.name))) for row in snapshot.triggers
        ),
        problems=snapshot.problems,
    )


def _broker_document(row: BrokerRow) -> ConsoleBroker:
    """Return the document of a Broker or KafkaChannel, from its row in a snapshot."""
    namespace, _, name = row.name.rpartition("/")
    return ConsoleBroker(
        kind=row.kind,
        namespace=namespace,
        name=name,
        url=row.url,
        accepted=row.accepted,
        rejected=row.rejected,
        refused=row.refused,
    )


def _trigger_document(row: TriggerRow, declared: Trigger | None) -> ConsoleTrigger:
    """Return the document of a Trigger or Subscription, from its row in a snapshot. `declared` is
    the object itself, a Subscription as a Trigger; None if it can't be read."""
    namespace, _, name = row.name.rpartition("/")
    health, health_text = health_of(row)
    assert row.kind != "Sensor", "a snapshot keeps Sensors in `sensors`"
    return ConsoleTrigger(
        kind=row.kind,
        namespace=namespace,
        name=name,
        broker=row.broker or (declared.spec.broker if declared else ""),
        filters=_filters_text(declared),
        subscriber=triggers.destination_text(declared.spec.subscriber) if declared else "",
        health=health,
        why=health_text,
        lag=row.lag,
        replicas=row.replicas,
        most_replicas=row.most_replicas,
        read=row.read,
        filtered=row.filtered,
        delivered=row.delivered,
        retried=row.retried,
        dead_lettered=row.dead_lettered,
    )


def _filters_text(declared: Trigger | None) -> str:
    """Return a Trigger's filters on one line; empty for a Subscription, or if `declared` is
    None."""
    if declared is None or declared.kind != "Trigger":
        return ""
    return triggers.filters_text(declared)


def health_of(row: TriggerRow) -> tuple[Health, str]:
    """Return the worst health that applies to a Trigger or Subscription, and a text about it: a
    condition's, the scaler's last decision, or that events wait."""
    if row.refused:
        return Health.NOT_READY, row.refused
    if row.error:  # the text of the condition `Delivering`, which is a warning
        delivering = next(
            (condition for condition in row.conditions if condition.type == DELIVERING), None
        )
        is_circuit_open = delivering is not None and delivering.reason == SUBSCRIBER_UNAVAILABLE
        return (Health.UNAVAILABLE if is_circuit_open else Health.TROUBLED), row.error
    if row.paused:
        return Health.PAUSED, "its events wait"
    return (Health.DELIVERING if row.replicas else Health.RESTING), row.decision


def details_document(
    trigger: Trigger,
    conditions: Iterable[ConditionRow],
    declared_in: str,
    may: Iterable[Action] = (),
    reply: Destination | None = None,
) -> TriggerDetails:
    """Return the details of a Trigger, or of a Subscription that was converted to a Trigger.

    `conditions` are those of its status. `declared_in` is the place of its manifest; empty in a
    cluster. `may` are the actions that the viewer may do, and `reply` is where a Subscription's
    replies go (None: it names no such place).
    """
    annotations = trigger.metadata.annotations
    spec = documents.dump(trigger.spec)
    # A Trigger with `filters` ignores its `filter`.
    filter_fields = ("filters",) if trigger.spec.filters else ("filter",)
    return TriggerDetails(
        may=tuple(may),
        filters=_yaml_of(spec, filter_fields),
        delivery=_yaml_of(spec, ("delivery",)),
        order=egresses.order_name(trigger),
        max_in_flight=annotations.get(MAX_IN_FLIGHT, ""),
        reply="" if reply is None else triggers.destination_text(reply),
        declared_in=declared_in,
        conditions=tuple(
            ConsoleCondition(
                type=condition.type,
                status=condition.status,
                reason=condition.reason,
                message=condition.message,
                severity=condition.severity,
            )
            for condition in conditions
        ),
    )


def _yaml_of(spec: Mapping[str, Any], field_names: Sequence[str]) -> str:
    """Return these fields of a spec in YAML. Fields that aren't set are left out; empty if none is
    set."""
    fields = {name: spec[name] for name in field_names if spec.get(name)}
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=80) if fields else ""


def verdicts(declared: Iterable[Trigger], event: Event) -> tuple[FilterVerdict, ...]:
    """Return for each Trigger whether it would get the event, and the filter clauses that refuse
    it."""
    return tuple(_verdict(trigger, event) for trigger in declared)


def _verdict(trigger: Trigger, event: Event) -> FilterVerdict:
    """Return whether a Trigger would get the event, and the filter clauses that refuse it."""
    refusing_clauses = tuple(triggers.refusing_clauses(trigger, event))
    return FilterVerdict(
        namespace=trigger.metadata.namespace,
        name=trigger.metadata.name,
        broker=trigger.spec.broker,
        gets_it=not refusing_clauses,
        why_not=refusing_clauses,
    )


def failures_document(
    letters: Sequence[StoredDeadLetter], limit: int, commands: Mapping[str, str], report: str = ""
) -> Failures:
    """Return the document of a Trigger's newest dead letters.

    `letters` are the dead letters, oldest first, and `limit` is the number that was asked for: if
    they are fewer, the Trigger has no others. `commands` are commands for a terminal, by what they
    do. `report` is the URL of the last report, empty if there is none.
    """
    # The fields of `ConsoleFailure` have the names that they have in a `StoredDeadLetter`.
    newest_first = tuple(
        ConsoleFailure(**{name: getattr(letter, name) for name in ConsoleFailure.model_fields})
        for letter in reversed(letters)
    )
    reasons = Counter(
        f"{failure.reason} {failure.code}".strip()
        for failure in newest_first
        if not failure.replayed
    )
    return Failures(
        last=newest_first,
        reasons=tuple(
            ReasonCount(reason=reason, count=count) for reason, count in reasons.most_common()
        ),
        is_all=len(letters) < limit,
        commands=commands,
        report=report,
    )
