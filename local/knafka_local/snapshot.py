"""A snapshot: how everything stands at one moment, for whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from knafka_local.manifests import Identity
from knafka_local.plan import Plan, PlannedTrigger
from knafka_local.receiver_process import Answered
from knafka_operator.decide.scaling import TriggerStatus


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One Broker; `refused` says why it isn't served."""

    name: str
    url: str = ""
    accepted: int = 0
    rejected: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class TriggerRow:
    """One Trigger; `refused` says why it isn't Ready. Counts are since the start."""

    name: str
    broker: str = ""
    lag: int | None = None
    replicas: int = 0
    most_replicas: int = 0
    read: int = 0
    filtered: int = 0
    delivered: int = 0
    retried: int = 0
    buried: int = 0
    decision: str = ""
    """The scaler's last, with its reason."""
    error: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of it."""

    kafka: str
    brokers: tuple[BrokerRow, ...] = ()
    triggers: tuple[TriggerRow, ...] = ()
    problems: tuple[str, ...] = ()
    """What in the files can't be used, and what else can't run."""


def take(
    plan: Plan,
    statuses: Mapping[str, TriggerStatus],
    answered: Answered,
    problems: Sequence[str],
    kafka: str,
    url: str,
) -> Snapshot:
    """Put together what the parts know; `statuses` are the scaler's, by `namespace/name`."""
    refused = {"Broker": dict[str, str](), "Trigger": dict[str, str]()}
    others = []
    for who, reason in plan.refused.items():
        if who.kind in refused:
            refused[who.kind][_name(who)] = reason
        else:
            others.append(f"{who}: {reason}")
    return Snapshot(
        kafka,
        tuple(
            [_broker(who, answered, url) for who in plan.brokers]
            + [BrokerRow(name, refused=reason) for name, reason in refused["Broker"].items()]
        ),
        tuple(
            [_trigger(who, each, statuses.get(_name(who))) for who, each in plan.triggers.items()]
            + [TriggerRow(name, refused=reason) for name, reason in refused["Trigger"].items()]
        ),
        (*problems, *others),
    )


def _name(who: Identity) -> str:
    return f"{who.namespace}/{who.name}"


def _broker(who: Identity, answered: Answered, url: str) -> BrokerRow:
    ours = {code: n for (ns, name, code), n in answered.items() if (ns, name) == who[1:]}
    accepted = ours.get(HTTPStatus.ACCEPTED, 0)
    # A probe (200) or a handshake is neither.
    rejected = sum(count for code, count in ours.items() if code >= HTTPStatus.BAD_REQUEST)
    return BrokerRow(_name(who), f"{url}/{_name(who)}", accepted, rejected)


def _trigger(who: Identity, planned: PlannedTrigger, status: TriggerStatus | None) -> TriggerRow:
    row = TriggerRow(
        _name(who),
        planned.egress.broker,
        most_replicas=min(planned.autoscaling.max_scale, planned.partitions),
    )
    if status is None:
        return row
    counts = status.counts
    return replace(
        row,
        lag=status.lag,
        replicas=status.replicas,
        read=counts.read,
        filtered=counts.filtered,
        delivered=counts.delivered,
        retried=counts.retried,
        buried=counts.buried,
        decision=status.scale.reason,
        error=status.error or "",
    )
