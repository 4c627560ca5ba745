"""Dead letters as the command line shows them: read from their topics, touched in no way."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from knafka.core.contract import Egress
from knafka.core.dead_letter import ATTRIBUTE_PREFIX, OMITTED
from knafka.core.errors import LogError
from knafka.ports.log import LogAdmin, Record

READ_AT_MOST: Final = 10_000
"""Of one topic: enough to see what goes wrong; the reports are for all of it."""
PREVIEW: Final = 200
"""Characters of data or error that are shown."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
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
        if self.error:
            lines.append(f"  {'answer' if self.code else 'error'}: {self.error}")
        if self.omitted:
            lines.append(f"  too large to be kept: {self.omitted}")
        if self.data:
            lines.append(f"  data: {self.data}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Overview:
    """What lies in one Trigger's dead-letter topic."""

    trigger: str
    count: int
    oldest: str
    newest: str
    reasons: Mapping[str, int]

    @property
    def counted(self) -> str:
        return f"{self.count}+" if self.count == READ_AT_MOST else str(self.count)


async def letters(admin: LogAdmin, egress: Egress, limit: int) -> Sequence[DeadLetter]:
    """The last `limit` dead letters of a Trigger, oldest first. Raises `LogError`."""
    try:
        records = await admin.read_all(egress.dead_letter_topic, limit)
    except LogError as error:
        if error.unknown_topic:  # it is made for the first dead letter
            return []
        raise
    return [letter(record) for record in records]


async def overview(admin: LogAdmin, egress: Egress) -> Overview:
    """Count, times and reasons of a Trigger's dead letters. Raises `LogError`."""
    found = await letters(admin, egress, READ_AT_MOST)
    times = sorted(each.last_time for each in found)
    return Overview(
        f"{egress.namespace}/{egress.trigger}",
        len(found),
        times[0] if times else "",
        times[-1] if times else "",
        Counter(f"{each.reason} {each.code}".strip() for each in found),
    )


def letter(record: Record) -> DeadLetter:
    """Read leniently: what was buried may be no event at all."""
    found = {
        name.removeprefix("ce_"): (value or b"").decode(errors="replace")
        for name, value in record.headers() or ()
    }
    milliseconds = record.timestamp()[1]
    written = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    where = [
        found.get(f"{ATTRIBUTE_PREFIX}{part}", "?") for part in ("topic", "partition", "offset")
    ]

    def text(name: str, otherwise: str = "") -> str:
        return shown(found.get(name, otherwise))

    return DeadLetter(
        id=text("id"),
        type=text("type"),
        source=text("source"),
        reason=text(f"{ATTRIBUTE_PREFIX}reason"),
        code=text("knativeerrorcode"),
        attempts=text(f"{ATTRIBUTE_PREFIX}attempts"),
        first_time=text(f"{ATTRIBUTE_PREFIX}firsttime"),
        last_time=text(f"{ATTRIBUTE_PREFIX}lasttime", written.replace("+00:00", "Z")),
        destination=text("knativeerrordest"),
        error=shown(_decoded(found.get("knativeerrordata", ""))),
        data=shown((record.value() or b"")[: 4 * PREVIEW].decode(errors="replace")),
        omitted=text(OMITTED),
        position=shown("/".join(where)),
    )


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode(errors="replace")
    except ValueError:
        return text


def shown(text: str) -> str:
    """Fit for a terminal: one line, bounded, no controls."""
    flat = "".join(each if each.isprintable() else " " for each in text).strip()
    return flat if len(flat) <= PREVIEW else flat[: PREVIEW - 1] + "…"
