"""Reads dead letters from their topics, without changing anything.

A Spark job copies dead letters from the topics into tables. Records below the offsets of
`OffsetsInTables` are in the tables, and left out here: `dead_letter_tables` reads those. A dead
letter that was replayed stays in its topic for some time: the record with the same event in the
Trigger's replay topic is younger. If the event failed again, its new dead letter names that record.
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
    EDITED,
    OMITTED,
    origin_of,
    parse_attempt_log,
    timestamp,
)
from knafka.core.errors import LogError
from knafka.ports.log import LogAdmin, Record
from knafka_operator.kafka.egresses import replay_topic
from knafka_operator.model.family import family_of

MOST_RECORDS_READ: Final = 10_000
"""The most records that are read of one topic: enough to see what fails; reports cover all."""
LONGEST_PREVIEW: Final = 200
"""Largest number of characters of data or of an error that are shown."""
COLUMNS: Final = ("TRIGGER", "COUNT", "SENT AGAIN", "OLDEST", "NEWEST", "REASONS")
"""The columns of a table of overviews."""
ACKNOWLEDGED_COLUMN: Final = "ACKNOWLEDGED"
"""A further column of the table, if any dead letter is acknowledged."""


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """One event that could not be delivered, and how it failed; an unknown field is empty.

    `id`, `type`, `source` and `destination` are as the record has them, since events are chosen by
    them; all other texts are fit for a terminal (`preview_text`).
    """

    id: str
    type: str
    source: str
    reason: str
    """Why the delivery was given up, a `delivery.Reason`."""
    code: str
    """HTTP status of the last answer."""
    attempts: str
    """Number of attempts."""
    first_time: str
    last_time: str
    """Times of the first and the last attempt, in RFC 3339."""
    destination: str
    """URL of the last attempt."""
    error: str
    """The subscriber's answer, or why there was none."""
    data: str
    """The beginning of the event's data, as text."""
    omitted: str
    """The parts of the event that were too large for the dead-letter topic."""
    position: str
    """`topic/partition/offset` of the event in its Broker's topic."""
    replayed: str = ""
    """When the event was last sent again; empty if never."""
    attempt_log: Sequence[tuple[str, str]] = ()
    """Time and result of each of the last attempts, as far as they were recorded."""
    of_broker: bool = False
    """Whether the dead letter belongs to the Broker and no Trigger, since the record holds no
    event."""

    @property
    def event_text(self) -> str:
        """Type, id and source of the event, as text."""
        return f"{preview_text(self.type)} {preview_text(self.id)} from {preview_text(self.source)}"

    def json(self) -> str:
        """Return the dead letter as one line of JSON, with control characters escaped."""
        text = json.dumps(asdict(self), ensure_ascii=False)
        return "".join(
            character if character.isprintable() else json.dumps(character)[1:-1]  # unquoted
            for character in text
        )

    def text(self) -> str:
        """Return the dead letter as lines of text."""
        reason = f"{self.reason} {self.code}".strip()
        if self.of_broker:  # nobody has tried to deliver it
            lines = [f"a record that holds no event: {self.position}", f"  {reason}"]
        else:
            attempts = f"{self.attempts} attempts at {preview_text(self.destination)}"
            lines = [self.event_text, f"  {reason} after {attempts}"]
        lines.append(f"  first {self.first_time}, last {self.last_time}, was {self.position}")
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
class DeadLetterOverview:
    """Counts the dead letters in the topic of one Trigger, or of a Broker."""

    trigger: str
    """The name that `owner_name` returns: `namespace/trigger`, or a Broker's name."""
    count: int
    """Dead letters that were not sent again; times and reasons are about these only."""
    oldest: str
    newest: str
    """Their least and their greatest `last_time`, in RFC 3339; empty if `count` is 0."""
    reasons: Mapping[str, int]
    """Number of dead letters by reason and status code."""
    replayed: int = 0
    """Dead letters that were sent again and have not failed since."""
    is_cut: bool = False
    """Whether the topic has more dead letters than were read."""
    acknowledged: int = 0
    """Number of dead letters in `count` whose group somebody has acknowledged."""

    @property
    def count_text(self) -> str:
        """The count as text, with a `+` if there are more."""
        return f"{self.count}+" if self.is_cut else str(self.count)

    @property
    def row(self) -> Sequence[str]:
        """The cells of a table row, for `COLUMNS`."""
        reasons = ", ".join(f"{reason} × {count}" for reason, count in self.reasons.items())
        return (
            self.trigger, self.count_text, str(self.replayed), self.oldest, self.newest, reasons
        )  # fmt: skip

    def __add__(self, other: DeadLetterOverview) -> DeadLetterOverview:
        """Return the sum of two overviews of one Trigger that are about different dead letters."""
        return DeadLetterOverview(
            self.trigger,
            self.count + other.count,
            oldest=min(filter(None, (self.oldest, other.oldest)), default=""),
            newest=max(self.newest, other.newest),
            reasons=Counter(self.reasons) + Counter(other.reasons),
            replayed=self.replayed + other.replayed,
            is_cut=self.is_cut or other.is_cut,
            acknowledged=self.acknowledged + other.acknowledged,
        )


def preview_lines(preview: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines of text about a replay's dry run: its events, then how many would be sent to
    which Trigger. `preview` is the JSON document that the replay job prints."""
    for event in preview["events"]:
        reason = f"{event['reason']} {event['code'] or ''}".strip()
        yield f"{event['trigger']}: {event['type']} {event['id']} from {event['source']} ({reason})"
    if (hidden := preview["would_send"] - len(preview["events"])) > 0:
        yield f"and {hidden} more"
    targets = ", ".join(f"{count} to {name}" for name, count in preview["triggers"].items())
    yield f"{preview['would_send']} would be sent{f': {targets}' if targets else ''}"
    if preview["left_out"]:
        yield f"{preview['left_out']} left out: resolved, being sent again, or no events"


def edit_lines(preview: Mapping[str, Any]) -> Iterator[str]:
    """Yield a replay's edits of events as a diff of each event: `- ` the old value of an attribute,
    `+ ` the new one. `preview` is the JSON document that a dry run of the replay job prints."""
    for edited in preview["edits"]:
        before, after = edited["before"], edited["after"]
        yield preview_text(f"{before['type']} {before['id']} from {before['source']}")
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name):
                yield from (
                    f"  {sign} {name}: {preview_text(document[name])}"
                    for sign, document in (("-", before), ("+", after))
                    if name in document
                )
    if count := preview["not_editable"]:
        yield f"{count} can't be edited and would be left out: {preview['problem']}"


def broker_dead_letter_egress(owner: Ingress | Egress) -> Egress:
    """Return an Egress for reading a Broker's or KafkaChannel's own dead letters, which are records
    that hold no event. Nothing is delivered to it. Its `trigger` is empty, and its `kind` says
    whether the owner is a Broker or a channel."""
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
        subscriber=Sink(url="http://nobody.invalid/"),  # required, but never used
    )


def owner_name(namespace: str, broker: str, trigger: str) -> str:
    """Return a name to show for the owner of dead letters: `namespace/trigger`, or
    `broker/namespace/name` or `channel/namespace/name` if `trigger` is empty.

    `broker` is a Broker's name, or what `names.of_channel` returns for a KafkaChannel.
    """
    if trigger:
        return f"{namespace}/{trigger}"
    channel = broker.removeprefix(names.of_channel(""))  # unchanged if it is a Broker's name
    kind = "broker" if channel == broker else "channel"
    return f"{kind}/{namespace}/{channel}"


def dead_letter_key(egress: Egress) -> tuple[str, str, str]:
    """Return namespace, Broker and Trigger of an Egress as its dead letters hold them; a
    KafkaChannel's name is what `names.of_channel` returns."""
    return egress.namespace, family_of(egress.kind).own_name(egress.broker), egress.trigger


OffsetsInTables: TypeAlias = Mapping[tuple[str, int], int]
"""For each partition (topic id and number): the first offset whose record isn't in the tables."""


async def read_dead_letters(
    admin: LogAdmin, egress: Egress, limit: int, in_tables: OffsetsInTables | None = None
) -> Sequence[StoredDeadLetter]:
    """Return those of a Trigger's newest `limit` dead letters that aren't in the tables, oldest
    first. `in_tables` None: no dead letter is in the tables. Raises `LogError`."""
    records = await _read_not_in_tables(admin, egress.dead_letter_topic, limit, in_tables or {})
    last_replays = await read_last_replays(admin, egress) if records else {}
    return [parse_dead_letter(record, replayed_at(record, last_replays)) for record in records]


async def _read_not_in_tables(
    admin: LogAdmin, topic: str, limit: int, in_tables: OffsetsInTables
) -> Sequence[Record]:
    """Return the records among a topic's newest `limit` whose offsets `in_tables` doesn't cover,
    oldest first. Raises `LogError`."""
    records = await read_topic(admin, topic, limit)
    description = await admin.describe_topic(topic) if records and in_tables else None
    if description is None:
        return records
    return [
        record
        for record in records
        if record.offset() >= in_tables.get((description.id, record.partition()), 0)
    ]


async def read_overview(
    admin: LogAdmin, egress: Egress, in_tables: OffsetsInTables | None = None
) -> DeadLetterOverview:
    """Count those of a Trigger's newest `MOST_RECORDS_READ` dead letters that aren't in the tables.
    `in_tables` None: no dead letter is in the tables. Raises `LogError`."""
    dead_letters = await read_dead_letters(admin, egress, MOST_RECORDS_READ, in_tables)
    not_replayed = [dead_letter for dead_letter in dead_letters if not dead_letter.replayed]
    times = sorted(dead_letter.last_time for dead_letter in not_replayed)
    reasons = (f"{dead_letter.reason} {dead_letter.code}".strip() for dead_letter in not_replayed)
    return DeadLetterOverview(
        owner_name(*dead_letter_key(egress)),
        len(not_replayed),
        oldest=times[0] if times else "",
        newest=times[-1] if times else "",
        reasons=Counter(reasons),
        replayed=len(dead_letters) - len(not_replayed),
        is_cut=len(dead_letters) == MOST_RECORDS_READ,
    )


async def read_topic(admin: LogAdmin, topic: str, limit: int) -> Sequence[Record]:
    """Return a topic's newest `limit` records, oldest first; none if the topic doesn't exist.
    Raises `LogError`."""
    try:
        return await admin.read_last(topic, limit)
    except LogError as error:
        if error.unknown_topic:
            return []
        raise


LastReplays: TypeAlias = Mapping[bytes, tuple[int, tuple[str, int, int]]]
"""When each event was last sent again, in ms since the Unix epoch, and the topic, partition and
offset of that record in the replay topic; by a digest of the event."""


async def read_last_replays(admin: LogAdmin, egress: Egress) -> LastReplays:
    """Return when each event was last sent again to a Trigger, and where. Raises `LogError`."""
    last: dict[bytes, tuple[int, tuple[str, int, int]]] = {}
    for record in await read_topic(admin, replay_topic(egress), MOST_RECORDS_READ):
        edited = dict(record.headers() or ()).get(f"ce_{EDITED}") or b""
        # A replay that edited the data has other data than the dead letter.
        digest = _event_digest(record, with_data=b"data" not in edited.split(b","))
        replay = record.timestamp()[1], (record.topic(), record.partition(), record.offset())
        last[digest] = max(replay, last.get(digest, replay))
    return last


def replayed_at(record: Record, last_replays: LastReplays) -> int | None:
    """Return when this dead letter was last sent again, in ms since the Unix epoch; None if it
    wasn't sent since it failed. `last_replays` is the result of `read_last_replays`."""
    # Of a replay that edited the data, `last_replays` has the digest without data.
    digests = (_event_digest(record, with_data=with_data) for with_data in (True, False))
    replays = [last_replays[digest] for digest in digests if digest in last_replays]
    # A dead letter of the replayed record is younger than that, even if a broker's clock is behind.
    if not replays or (last := max(replays))[1] == origin_of(record.headers() or []):
        return None
    return last[0] if last[0] >= record.timestamp()[1] else None


def _event_digest(record: Record, *, with_data: bool) -> bytes:
    """Return a digest of the record's event: of its id and source, which no replay edits, and
    (`with_data` True) of its data, which a replay may have edited."""
    headers = dict(record.headers() or ())
    parts = [headers.get("ce_id") or b"", headers.get("ce_source") or b""]
    parts += [record.value() or b""] if with_data else []
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).digest()


def parse_dead_letter(record: Record, replayed: int | None = None) -> StoredDeadLetter:
    """Read a record of a dead-letter topic; missing and invalid attributes become empty.

    `replayed` is the time of the last replay, in ms since the Unix epoch; None: there was none.
    """
    attributes = {
        name.removeprefix("ce_"): (value or b"").decode(errors="replace")
        # The event's own headers (`ce_`) are sorted last, so they replace others of the same name.
        for name, value in sorted(record.headers() or (), key=_is_of_event)
    }
    written = timestamp(record.timestamp()[1] / 1000)
    position = [
        attributes.get(f"{ATTRIBUTE_PREFIX}{part}", "?")
        for part in ("topic", "partition", "offset")
    ]

    def text(name: str, otherwise: str = "") -> str:
        """Return the value of an attribute, made fit for a terminal; `otherwise` if it is
        missing."""
        return preview_text(attributes.get(name, otherwise))

    return StoredDeadLetter(
        id=attributes.get("id", ""),
        type=attributes.get("type", ""),
        source=attributes.get("source", ""),
        reason=text(f"{ATTRIBUTE_PREFIX}reason"),
        code=text("knativeerrorcode"),
        attempts=text(f"{ATTRIBUTE_PREFIX}attempts"),
        first_time=text(f"{ATTRIBUTE_PREFIX}firsttime"),
        last_time=text(f"{ATTRIBUTE_PREFIX}lasttime", written),
        destination=attributes.get("knativeerrordest", ""),
        error=preview_text(_from_base64(attributes.get("knativeerrordata", ""))),
        # A character has at most 4 bytes.
        data=preview_text((record.value() or b"")[: 4 * LONGEST_PREVIEW].decode(errors="replace")),
        omitted=text(OMITTED),
        position=_without_controls("/".join(position)),
        attempt_log=[
            (preview_text(time), preview_text(result))
            for time, result in parse_attempt_log(attributes.get(ATTEMPT_LOG, ""))
        ],
        replayed="" if replayed is None else timestamp(replayed / 1000),
        of_broker=f"{ATTRIBUTE_PREFIX}broker" in attributes
        and not text(f"{ATTRIBUTE_PREFIX}trigger"),
    )


def _is_of_event(header: tuple[str, bytes | None]) -> bool:
    """Whether a record's header (name and value) is an attribute of the event."""
    return header[0].startswith("ce_")


def _from_base64(text: str) -> str:
    """Return the text that `text` encodes in base64; `text` itself if it isn't base64."""
    try:
        return base64.b64decode(text, validate=True).decode(errors="replace")
    except ValueError:
        return text


def preview_text(text: str) -> str:
    """Return the text on one line of at most `LONGEST_PREVIEW` characters, without control
    characters."""
    flat = _without_controls(text)
    return flat if len(flat) <= LONGEST_PREVIEW else flat[: LONGEST_PREVIEW - 1] + "…"


def _without_controls(text: str) -> str:
    """Return the text on one line, without control characters."""
    return "".join(character if character.isprintable() else " " for character in text).strip()
