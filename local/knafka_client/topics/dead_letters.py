"""Dead letters as the command line shows them: read from their topics, touched in no way.

Those that were compacted are known by `dead_letter_tables`, and passed over here where `tabled`
says up to which offsets they are.

One that was sent again lies in its topic for a while yet: it is known by the record with the same
event in its Trigger's replay topic, which is younger. One that failed again is younger still.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from knafka.core import names
from knafka.core.contract import Egress, Ingress, Sink
from knafka.core.dead_letter import (
    ATTEMPT_LOG,
    ATTRIBUTE_PREFIX,
    OMITTED,
    logged_attempts,
    timestamp,
)
from knafka.core.errors import LogError
from knafka.ports.log import LogAdmin, Record
from knafka_operator.decide.desired import replay_topic
from knafka_operator.model.family import family_of

READ_AT_MOST: Final = 10_000
"""Of one topic: enough to see what goes wrong; the reports are for all of it."""
PREVIEW: Final = 200
"""Characters of data or error that are shown."""
COLUMNS: Final = ("TRIGGER", "COUNT", "SENT AGAIN", "OLDEST", "NEWEST", "REASONS")
"""Of a table of overviews."""


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """One event that could not be delivered, and how it failed. Unknown is empty."""

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
    """What the subscriber answered, or why it did not."""
    data: str
    omitted: str
    """What of it was too large for its topic."""
    position: str
    """`topic/partition/offset` of the event in its Broker's topic."""
    replayed: str = ""
    """When it was sent again, if it was."""
    attempt_log: Sequence[tuple[str, str]] = ()
    """Time and result of each of the last attempts, as far as they are known one by one."""
    of_broker: bool = False
    """Whether it is no Trigger's, but its Broker's: the record holds no event."""

    def json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    def text(self) -> str:
        """Some lines for a person."""
        how = f"{self.reason} {self.code}".strip()
        lines = [
            f"{self.type} {self.id} from {self.source}",
            f"  {how} after {self.attempts} attempts at {self.destination}",
            f"  first {self.first_time}, last {self.last_time}, was {self.position}",
        ]
        if self.of_broker:  # nobody has tried to deliver it
            lines[:2] = [f"a record that holds no event: {self.position}", f"  {how}"]
        lines += [f"  attempt {time}: {result}" for time, result in self.attempt_log]
        if self.error:
            lines.append(f"  {'answer' if self.code else 'error'}: {self.error}")
        if self.omitted:
            lines.append(f"  too large to be kept: {self.omitted}")
        if self.data:
            lines.append(f"  data: {self.data}")
        if self.replayed:
            lines.append(f"  sent again {self.replayed}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Overview:
    """What lies in the dead-letter topic of one Trigger, or of a Broker."""

    trigger: str
    count: int
    """Those that nobody has sent again; all else is about them."""
    oldest: str
    newest: str
    reasons: Mapping[str, int]
    replayed: int = 0
    """Those that were sent again and have not failed since."""
    is_cut: bool = False
    """Whether there are more."""

    @property
    def counted(self) -> str:
        return f"{self.count}+" if self.is_cut else str(self.count)

    @property
    def row(self) -> Sequence[str]:
        """The cells of a table with the columns `COLUMNS`."""
        reasons = ", ".join(f"{reason} × {count}" for reason, count in self.reasons.items())
        return (
            self.trigger, self.counted, str(self.replayed), self.oldest, self.newest, reasons
        )  # fmt: skip

    def __add__(self, other: Overview) -> Overview:
        """Of the same Trigger, about other dead letters."""
        return Overview(
            self.trigger,
            self.count + other.count,
            min(filter(None, (self.oldest, other.oldest)), default=""),
            max(self.newest, other.newest),
            Counter(self.reasons) + Counter(other.reasons),
            self.replayed + other.replayed,
            self.is_cut or other.is_cut,
        )


def preview_lines(would: Mapping[str, Any]) -> Iterator[str]:
    """The lines for a person about a replay's dry run; `would` is the job's answer."""
    for event in would["events"]:
        how = f"{event['reason']} {event['code'] or ''}".strip()
        yield f"{event['trigger']}: {event['type']} {event['id']} from {event['source']} ({how})"
    if (more := would["would_send"] - len(would["events"])) > 0:
        yield f"and {more} more"
    to = ", ".join(f"{count} to {name}" for name, count in would["triggers"].items())
    yield f"{would['would_send']} would be sent{f': {to}' if to else ''}"
    if would["left_out"]:
        yield f"{would['left_out']} left out: resolved, on their way, or no events"


def of_broker(owner: Ingress | Egress) -> Egress:
    """A stand-in Egress for the dead letters of a Broker or KafkaChannel itself, which are records
    that hold no event: it has no Trigger's name, and the Broker's dead-letter topic."""
    is_channel = owner.kind in ("KafkaChannel", "Subscription")
    name = names.of_channel(owner.broker) if is_channel else owner.broker
    return Egress(
        namespace=owner.namespace,
        broker=owner.broker,
        trigger="",
        kind="Subscription" if is_channel else "Trigger",
        topic=owner.topic,
        group="",
        dead_letter_topic=names.broker_dead_letter_topic(owner.namespace, name),
        kafka=owner.kafka,
        subscriber=Sink(url="http://nobody.invalid/"),
    )


def owner(namespace: str, broker: str, trigger: str) -> str:
    """Whose dead letters they are, for people; `broker` as the dead letters have it."""
    if trigger:
        return f"{namespace}/{trigger}"
    channel = broker.removeprefix(names.of_channel(""))
    kind = "broker" if channel == broker else "channel"
    return f"{kind}/{namespace}/{channel}"


def name_of(egress: Egress) -> tuple[str, str, str]:
    """Namespace, Broker and Trigger, as the dead letters have them."""
    return egress.namespace, family_of(egress.kind).own_name(egress.broker), egress.trigger


Tabled: TypeAlias = Mapping[tuple[str, int], int]
"""The first offset of each partition, by topic id, that the tables don't have."""


async def letters(
    admin: LogAdmin, egress: Egress, limit: int, tabled: Tabled | None = None
) -> Sequence[StoredDeadLetter]:
    """The last `limit` dead letters of a Trigger, oldest first. Raises `LogError`."""
    records = await _untabled(admin, egress.dead_letter_topic, limit, tabled or {})
    sent = await replays(admin, egress) if records else {}
    return [letter(record, replayed_at(record, sent)) for record in records]


async def _untabled(admin: LogAdmin, topic: str, limit: int, tabled: Tabled) -> Sequence[Record]:
    records = await read_topic(admin, topic, limit)
    if not records or not tabled or (described := await admin.describe_topic(topic)) is None:
        return records
    return [
        record
        for record in records
        if record.offset() >= tabled.get((described.id, record.partition()), 0)
    ]


async def overview(admin: LogAdmin, egress: Egress, tabled: Tabled | None = None) -> Overview:
    """Count, times and reasons of a Trigger's dead letters. Raises `LogError`."""
    letters_read = await letters(admin, egress, READ_AT_MOST, tabled)
    open_ = [letter_ for letter_ in letters_read if not letter_.replayed]
    times = sorted(letter_.last_time for letter_ in open_)
    return Overview(
        owner(*name_of(egress)),
        len(open_),
        times[0] if times else "",
        times[-1] if times else "",
        Counter(f"{letter_.reason} {letter_.code}".strip() for letter_ in open_),
        len(letters_read) - len(open_),
        len(letters_read) == READ_AT_MOST,
    )


async def read_topic(admin: LogAdmin, topic: str, limit: int) -> Sequence[Record]:
    """The last `limit` records of a topic; none if the topic doesn't exist, as it is made with its
    first record."""
    try:
        return await admin.read_all(topic, limit)
    except LogError as error:
        if error.unknown_topic:
            return []
        raise


Replays: TypeAlias = Mapping[bytes, int]
"""Event to when it was sent again last, in milliseconds since the Unix epoch."""


async def replays(admin: LogAdmin, egress: Egress) -> Replays:
    """Which of a Trigger's dead letters the job or the command sent again, and when last."""
    sent: dict[bytes, int] = {}
    for record in await read_topic(admin, replay_topic(egress), READ_AT_MOST):
        identity = _identity(record)
        sent[identity] = max(sent.get(identity, 0), record.timestamp()[1])
    return sent


def replayed_at(record: Record, sent: Replays) -> int | None:
    """When this dead letter was sent again (milliseconds); None: not since it failed."""
    replayed = sent.get(_identity(record))
    return replayed if replayed is not None and replayed >= record.timestamp()[1] else None


def _identity(record: Record) -> bytes:
    """The event that a record holds: id, source and data, or all of what is no event."""
    headers = dict(record.headers() or ())
    parts = [headers.get("ce_id") or b"", headers.get("ce_source") or b"", record.value() or b""]
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).digest()


def letter(record: Record, replayed: int | None = None) -> StoredDeadLetter:
    """Read leniently: what was dead-lettered may be no event at all."""
    attributes = {
        name.removeprefix("ce_"): (value or b"").decode(errors="replace")
        for name, value in record.headers() or ()
    }
    written = timestamp(record.timestamp()[1] / 1000)
    where = [
        attributes.get(f"{ATTRIBUTE_PREFIX}{part}", "?")
        for part in ("topic", "partition", "offset")
    ]

    def text(name: str, otherwise: str = "") -> str:
        return shown(attributes.get(name, otherwise))

    return StoredDeadLetter(
        id=text("id"),
        type=text("type"),
        source=text("source"),
        reason=text(f"{ATTRIBUTE_PREFIX}reason"),
        code=text("knativeerrorcode"),
        attempts=text(f"{ATTRIBUTE_PREFIX}attempts"),
        first_time=text(f"{ATTRIBUTE_PREFIX}firsttime"),
        last_time=text(f"{ATTRIBUTE_PREFIX}lasttime", written),
        destination=text("knativeerrordest"),
        error=shown(_decoded(attributes.get("knativeerrordata", ""))),
        data=shown((record.value() or b"")[: 4 * PREVIEW].decode(errors="replace")),
        omitted=text(OMITTED),
        position=shown("/".join(where)),
        attempt_log=[
            (shown(time), shown(result))
            for time, result in logged_attempts(attributes.get(ATTEMPT_LOG, ""))
        ],
        replayed="" if replayed is None else timestamp(replayed / 1000),
        of_broker=f"{ATTRIBUTE_PREFIX}broker" in attributes
        and not text(f"{ATTRIBUTE_PREFIX}trigger"),
    )


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode(errors="replace")
    except ValueError:
        return text


def shown(text: str) -> str:
    """Fit for a terminal: one line, bounded, no controls."""
    flat = "".join(character if character.isprintable() else " " for character in text).strip()
    return flat if len(flat) <= PREVIEW else flat[: PREVIEW - 1] + "…"
