"""Encodes the state of deliveries in a commit's metadata, so that it outlives a dispatcher.

The metadata, text of at most `MAX_METADATA` characters, says which records above the committed
position are settled, and for the others the state of their delivery: attempts so far, times of the
first and the last one, and when the next is due. So a retry policy ends as declared however often
partitions are reassigned, and after a kill only the records that the last second settled are
repeated (design: the drain).

    "k1:" + base64(policy, base, count, deliveries, ranges)       integers as LEB128

If not everything fits, ranges are left out, the highest first: their records are delivered again
after a kill. The deliveries always fit if there are at most `MAX_DELIVERIES`.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from knafka.core.contract import Egress
from knafka.core.delivery import Outcome, Reason
from knafka.core.documents import digest
from knafka.core.offsets import OffsetRange

MAX_METADATA: Final = 4095
"""Most characters of a commit's metadata: Kafka's `offset.metadata.max.bytes` is 4,096 by default,
and confluent-kafka (2.16) sends a NUL after the text, which counts, too."""
MARK_LENGTH: Final = 13
"""Characters of the metadata that are left free for the topic's mark (`commit_metadata`)."""
MAX_DELIVERIES: Final = 78
"""Number of deliveries whose states always fit: each takes at most 39 bytes, mostly a dozen."""

PROGRESS_PREFIX: Final = "k1:"
"""Begins the metadata, and says how they are encoded."""
_MAX_BODY_BYTES: Final = (MAX_METADATA - MARK_LENGTH - len(PROGRESS_PREFIX)) // 4 * 3
"""Most bytes before their encoding as base64, which makes 4 characters of 3 bytes."""
_MAX_NUMBER_BYTES: Final = 9
"""Most bytes of an encoded number: they hold 63 bits, as many as an offset has."""
_REASONS: Final = tuple(Reason)
"""A reason is encoded as its index here, so new ones go to the end."""
_FAILED_FLAG: Final = 4
"""Added to the encoded stage if `DeliveryState.failed` follows."""
_REPLIED_FLAG: Final = 8
"""Added to the encoded stage if `DeliveryState.reply_tries` follows."""


class DeliveryStage(IntEnum):
    """The destination of an event's next attempt; each stage follows when the one before has
    finally failed."""

    SUBSCRIBER = 0
    SINK = 1
    """The dead letter sink."""
    TOPIC = 2
    """The dead-letter topic."""


SUBSCRIBER: Final = DeliveryStage.SUBSCRIBER
"""Shortcut for code that runs for each event: to look up the member costs 40 ns, four times an
event."""


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """The state of one unsettled event's delivery. Times are Unix time in seconds, kept to the
    millisecond."""

    stage: DeliveryStage
    tries: int
    """Attempts in this stage."""
    attempts: int
    """Attempts at the subscriber."""
    first_attempt: float
    """When the first attempt at the subscriber began; 0: none has begun."""
    last_attempt: float
    """When the last attempt at the subscriber, or at its reply, began; 0: none has begun."""
    due: float
    """When the next attempt may begin."""
    failed: Outcome | None = None
    """The outcome of the last attempt at the subscriber; None: that attempt hasn't ended, or its
    outcome isn't known. In later stages it is always known."""
    reply_tries: int = 0
    """Failed attempts to store or send its reply. The reply itself isn't kept: the next dispatcher
    calls the subscriber again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The decoded metadata of a commit, about the records from its offset on."""

    settled: Sequence[OffsetRange] = ()
    """Ranges of settled records, in ascending order."""
    deliveries: Mapping[int, DeliveryState] = field(default_factory=dict)
    """State of begun deliveries by offset, in order."""
    same_policy: bool = True
    """Whether the progress was written under the same retry policy and destinations."""


def policy_of(egress: Egress) -> int:
    """Return a checksum (32 bits) of an Egress's retry policy and destinations. If the checksum in
    a commit is another one, the deliveries there reached their states under other rules."""
    parts = [egress.delivery, egress.subscriber, egress.dead_letter_sink]
    if egress.reply is not None:
        parts.append(egress.reply)
    return zlib.crc32(" ".join(digest(part) if part else "" for part in parts).encode())


def encode(position: int, progress: Progress, policy: int) -> tuple[str, bool]:
    """Return the metadata for a commit of the offset `position`, and whether all of `progress` fits
    into it. `policy`: the checksum of the retry policy (`policy_of`), by which the reader sees
    whether the policy is still the same."""
    if not progress.settled and not progress.deliveries:
        return "", True
    # Numbers are encoded as differences, which take fewer bytes: times to the earliest first
    # attempt, offsets to the one before.
    base = min(
        (_to_milliseconds(delivery.first_attempt) for delivery in progress.deliveries.values()),
        default=0,
    )
    deliveries, previous_offset = [], position
    for offset, state in progress.deliveries.items():
        deliveries.append(_encode_leb128(offset - previous_offset, *_state_numbers(state, base)))
        previous_offset = offset
    ranges, previous_end = [], position
    for first, range_end in progress.settled:
        ranges.append(_encode_leb128(first - previous_end, range_end - first))
        previous_end = range_end
    head = policy.to_bytes(4, "big") + _encode_leb128(base)
    # The 2 bytes are for the number of deliveries, which takes one byte, or two from 128 on.
    fitting_deliveries = _parts_within(deliveries, _MAX_BODY_BYTES - len(head) - 2)
    body = head + _encode_leb128(len(fitting_deliveries)) + b"".join(fitting_deliveries)
    fitting_ranges = _parts_within(ranges, _MAX_BODY_BYTES - len(body))
    is_complete = len(fitting_deliveries) == len(deliveries) and len(fitting_ranges) == len(ranges)
    text = PROGRESS_PREFIX + base64.b64encode(body + b"".join(fitting_ranges)).decode()
    return text, is_complete


def _parts_within(parts: Sequence[bytes], byte_limit: int) -> Sequence[bytes]:
    """Return as many of these parts, from the first on, as fit into `byte_limit` bytes together."""
    remaining_bytes = byte_limit
    for index, part in enumerate(parts):
        remaining_bytes -= len(part)
        if remaining_bytes < 0:
            return parts[:index]
    return parts


def decode(position: int, metadata: str, policy: int) -> Progress:
    """Decode the metadata that were committed with the offset `position`. The progress is empty if
    Knafka didn't write them, or if they are broken. `policy`: the checksum of the present policy
    (`policy_of`), which `Progress.same_policy` compares."""
    try:
        return _decode(position, metadata, policy)
    except (ValueError, IndexError, binascii.Error):
        return Progress()


def settled_ahead(position: int, metadata: str) -> int:
    """Return how many offsets above the committed `position` are settled according to the commit's
    `metadata`. The lag, the records left to be settled, is smaller by this number."""
    progress = decode(position, metadata, policy=0)  # the policy makes no difference here
    return sum(range_end - first for first, range_end in progress.settled)


def _decode(position: int, metadata: str, policy: int) -> Progress:
    """Decode as `decode` does, but raise ValueError, IndexError or `binascii.Error` for broken
    metadata that begin with `PROGRESS_PREFIX`."""
    if not metadata.startswith(PROGRESS_PREFIX):
        return Progress()
    body = base64.b64decode(metadata[len(PROGRESS_PREFIX) :], validate=True)
    same_policy = int.from_bytes(body[:4], "big") == policy
    numbers = _Numbers(body, 4)
    base, count = numbers.take(), numbers.take()
    deliveries: dict[int, DeliveryState] = {}
    offset = position
    for _ in range(count):
        offset += numbers.take()
        deliveries[offset] = _take_state(numbers, base)
    settled: list[OffsetRange] = []
    range_end = position
    while numbers.has_more:
        first = range_end + numbers.take()
        range_end = first + numbers.take()
        settled.append((first, range_end))
    return Progress(tuple(settled), deliveries, same_policy)


def _state_numbers(state: DeliveryState, base: int) -> Sequence[int]:
    """Return the numbers that encode a delivery's state. Its first attempt is encoded as the
    milliseconds since `base` (ms), which is no later."""
    first, last = _to_milliseconds(state.first_attempt), _to_milliseconds(state.last_attempt)
    # No difference is negative, as LEB128 has no sign; a clock may have been set back.
    times = (first - base, max(0, last - first), max(0, _to_milliseconds(state.due) - last))
    flagged_stage = int(state.stage)
    optional_values: list[int] = []
    if (last_outcome := state.failed) is not None:
        flagged_stage |= _FAILED_FLAG
        # A reason is encoded as its index plus 1, as 0 stands for none.
        optional_values += [
            _REASONS.index(last_outcome.failure) + 1 if last_outcome.failure else 0,
            last_outcome.status or 0,
        ]
    if state.reply_tries:
        flagged_stage |= _REPLIED_FLAG
        optional_values.append(state.reply_tries)
    return (flagged_stage, state.tries, state.attempts, *times, *optional_values)


def _take_state(numbers: _Numbers, base: int) -> DeliveryState:
    """Take the numbers of one delivery's state, as `_state_numbers` returns them, and decode them.
    `base`: the time (ms) from which its first attempt was counted."""
    flagged_stage = numbers.take()
    tries, attempts = numbers.take(), numbers.take()
    first = base + numbers.take()
    last = first + numbers.take()
    due = last + numbers.take()
    last_outcome: Outcome | None = None
    if flagged_stage & _FAILED_FLAG:
        reason, status = numbers.take(), numbers.take()
        last_outcome = Outcome(status or None, _REASONS[reason - 1] if reason else None)
    reply_tries = numbers.take() if flagged_stage & _REPLIED_FLAG else 0
    return DeliveryState(
        DeliveryStage(flagged_stage & ~(_FAILED_FLAG | _REPLIED_FLAG)),
        tries,
        attempts,
        first / 1000,
        last / 1000,
        due / 1000,
        last_outcome,
        reply_tries,
    )


def _to_milliseconds(seconds: float) -> int:
    """Convert seconds to whole milliseconds."""
    return round(seconds * 1000)


def _encode_leb128(*numbers: int) -> bytes:
    """Encode unsigned integers as LEB128: seven bits per byte, the lowest first. In every byte of a
    number but the last, the highest bit is set."""
    encoded = bytearray()
    for number in numbers:
        while number > 0x7F:
            encoded.append(number & 0x7F | 0x80)
            number >>= 7
        encoded.append(number)
    return bytes(encoded)


class _Numbers:
    """Reads integers as `_encode_leb128` writes them, from the index `start` of `body` on."""

    def __init__(self, body: bytes, start: int) -> None:
        self._body = body
        self._next_index = start
        """Index of the next byte to read."""

    @property
    def has_more(self) -> bool:
        """Whether any number is left to take."""
        return self._next_index < len(self._body)

    def take(self) -> int:
        """Return the next number, and move past it. Raises IndexError if the body ends before or
        within it, ValueError if it has more bytes than any number of Kafka's or of ours."""
        number = shift = 0
        while (byte := self._body[self._next_index]) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift == 7 * _MAX_NUMBER_BYTES:
                raise ValueError("a number is too long")
            self._next_index += 1
        self._next_index += 1
        return number | byte << shift
