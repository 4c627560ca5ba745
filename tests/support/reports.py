"""Reports for tests of the page: as large, and as hostile, as a test asks for.

The same arguments always make the same report, so that pictures of its page can be compared.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from knafka.core.delivery import Reason
from knafka_jobs.failure_groups import group_id
from knafka_jobs.fingerprint import fingerprint
from knafka_jobs.report.assemble import DAY, HOUR, failure_rate, group_age, group_order
from knafka_jobs.report.report_document import (
    Bucket,
    Change,
    ChangeKind,
    Changes,
    Example,
    Group,
    PreviousReport,
    ReplayRun,
    Report,
    Top,
    Totals,
    bucket_seconds,
    replay_command,
)

MADE = datetime(2026, 3, 4, 9, 30, tzinfo=UTC)
SINCE = MADE - timedelta(days=2)
STEP = bucket_seconds(SINCE, MADE)

_ERRORS = {
    Reason.TIMEOUT: "no response within 5 s",
    Reason.REFUSED: "connection refused: 10.0.3.17:8080",
    Reason.BROKEN: "the connection was closed before the response was complete",
    Reason.STATUS: '{"error":"inventory is locked","retryable":true}',
    Reason.MALFORMED_REPLY: "the reply is no valid CloudEvent: the attribute type is required",
    Reason.REPLY_NOT_STORED: "Kafka did not take the reply: message too large",
    Reason.REPLY_NOT_DELIVERED: "no connection to replies.shop: Connection refused",
    Reason.UNDECODABLE: "the record has no ce_specversion header",
    Reason.INTERNAL_ERROR: "KeyError: 'subject'",
    Reason.TOO_LARGE: "the action topic takes no record of 19800423 bytes",
    Reason.NO_TOKEN: "the API server gives none",
    Reason.STATE_FULL: "the Sensor held more than 1000000 keys, and these events were the oldest",
}
_NAMES = ("orders", "billing", "shipping", "stock", "mail", "audit", "fraud", "search")
_TYPES = ("placed", "paid", "cancelled", "shipped")


def sample_group(index: int = 0, **changed: object) -> Group:
    """The `index`-th group of a believable installation, with what is `changed`."""
    chance = random.Random(index)
    name = _NAMES[index % len(_NAMES)]
    trigger = f"{name}-to-warehouse" if index < 24 else f"{name}-{index // 24:03}"
    reason = list(Reason)[(index * 5 + index // 8) % len(Reason)]
    status = chance.choice((500, 502, 503, 429)) if reason is Reason.STATUS else None
    subscriber = f"http://{name}.shop.svc.cluster.local/events"
    summary = fingerprint(_ERRORS[reason])
    events = max(1, int(chance.paretovariate(0.6)) % 5000)
    kind = chance.choice(list(ChangeKind))
    unresolved = 0 if kind is ChangeKind.RESOLVED else chance.randint(1, events)
    peak = chance.uniform(0.1, 0.9) * (MADE - SINCE)
    failed = sorted(
        min(MADE, max(SINCE, SINCE + peak + timedelta(hours=chance.gauss(0, 4))))
        for _ in range(min(events, 200))
    )
    counts: dict[datetime, int] = {}
    for moment in failed:
        start = datetime.fromtimestamp(moment.timestamp() // STEP * STEP, UTC)
        counts[start] = counts.get(start, 0) + -(-events // len(failed))
    group = Group(
        id=group_id("shop", "default", trigger, subscriber, reason, status, summary),
        namespace="shop",
        broker="default",
        trigger=trigger,
        subscriber=subscriber,
        reason=reason,
        status=status,
        summary=summary,
        events=events,
        failures=sum(counts.values()),
        unresolved=unresolved,
        share=min(1.0, events / 40_000),
        retries=events * 3,
        first_seen=failed[0],
        last_seen=failed[-1],
        last_hour=sum(moment >= MADE - HOUR for moment in failed),
        rate=failure_rate(sum(moment >= MADE - DAY for moment in failed), failed[0], MADE),
        age=group_age(failed[0], MADE),
        oldest_unresolved=failed[0] if unresolved else None,
        buckets=tuple(Bucket(start=start, failures=n) for start, n in sorted(counts.items())),
        top_types=tuple(
            Top(value=f"com.example.order.{each}", events=events // (n + 1) or 1)
            for n, each in enumerate(_TYPES[: chance.randint(1, 4)])
        ),
        top_sources=(Top(value="/shop/checkout", events=events),),
        examples=tuple(
            sample_example(index * 10 + n, reason=reason, failed_at=failed[-1 - n])
            for n in range(min(3, events, len(failed)))
        ),
        change=Change(
            kind=kind,
            failures={ChangeKind.GROWING: events // 3, ChangeKind.NEW: events}.get(kind, 0),
            resolved=events if kind is ChangeKind.RESOLVED else 0,
            failed_again=-(-unresolved // 5) if kind is ChangeKind.FAILED_AGAIN else 0,
        ),
        replay_command=replay_command(
            "shop", "default", trigger, subscriber, reason, status, summary
        ),
    )
    return group.model_copy(update=changed)


def sample_example(
    index: int = 0,
    reason: Reason = Reason.STATUS,
    failed_at: datetime = MADE,
    **changed: object,
) -> Example:
    data = f'{{"order":{index},"customer":"c-{index % 97:04}","total":{index % 300}.50}}'
    example = Example(
        id=f"order-{index:06}",
        source="/shop/checkout",
        type=f"com.example.order.{_TYPES[index % len(_TYPES)]}",
        failed_at=failed_at,
        attempts=4,
        error=_ERRORS[reason],
        data_bytes=len(data),
        data_preview=data,
        data_content_type="application/json",
        topic="knative-broker-shop-default",
        partition=index % 6,
        offset=10_000 + index,
    )
    return example.model_copy(update=changed)


def sample_report(*groups: Group, replays: tuple[ReplayRun, ...] = ()) -> Report:
    """A report of these groups, with the sums that belong to them."""
    kinds = [group.change.kind for group in groups]
    oldest = [each.oldest_unresolved for each in groups if each.oldest_unresolved]
    return Report(
        id="2026-03-04T09-30-00Z",
        made=MADE,
        since=SINCE,
        until=MADE,
        bucket_seconds=STEP,
        previous=PreviousReport(id="2026-03-03T09-30-00Z", made=MADE - timedelta(days=1)),
        totals=Totals(
            groups=len(groups),
            events=sum(group.events for group in groups),
            failures=sum(group.failures for group in groups),
            unresolved=sum(group.unresolved for group in groups),
            retries=sum(group.retries for group in groups),
            oldest_unresolved=min(oldest, default=None),
        ),
        changes=Changes(
            new=kinds.count(ChangeKind.NEW),
            growing=kinds.count(ChangeKind.GROWING),
            steady=kinds.count(ChangeKind.STEADY),
            resolved=kinds.count(ChangeKind.RESOLVED),
            failed_again=kinds.count(ChangeKind.FAILED_AGAIN),
        ),
        groups=tuple(sorted(groups, key=group_order)),
        replays=replays,
    )


def sample_groups(count: int) -> list[Group]:
    return [sample_group(index) for index in range(count)]


def sample_replay() -> ReplayRun:
    return ReplayRun(
        id="r-2026-03-03-1",
        by="ana@ops",
        started=MADE - timedelta(hours=20),
        finished=MADE - timedelta(hours=19),
        selection="--broker shop/default --trigger stock-to-warehouse --reason timeout",
        sent=412,
        resolved=398,
        failed_again=14,
    )
