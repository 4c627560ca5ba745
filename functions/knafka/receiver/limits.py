"""Limits: how much a receiver holds at most, and what counts against it.

Not here: the answers to what has no room (`answers`), and the counts (`ingest` for events that wait
for Kafka, `connections` for requests being received).
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from typing import Final

from knafka.receiver.address import HttpHeaders

HEADER_OVERHEAD: Final = 128
"""Bytes of memory that a header takes besides its name and value, in a request and in a waiting
record."""
RECEIVER_OTHER_FILES: Final = 100
"""Open files besides the connections of senders, most of them connections to Kafka."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a receiver holds at most; together the limits bound its memory. An event without
    room is refused with a status that asks its sender to send it again."""

    in_flight: int = 10_000
    """Events that wait for Kafka: about those of one second at full speed. One of several routes
    with waiting events may hold only as many as it leaves free, and likewise of the bytes
    (`IngestHandler._has_room`)."""
    in_flight_bytes: int = 64 * 1024 * 1024
    """Bytes of headers and bodies of the requests being received; and as many again of the events
    that wait for Kafka."""
    header_bytes: int = 64 * 1024
    """Header names and values of one request; common servers allow 8 to 64 KiB."""
    headers: int = 256
    """Headers of one request: the 100 that common servers allow, plus an event's attributes
    (`core.events.event.MAX_ATTRIBUTES`)."""
    connections: int = 10_000
    """Open connections; each takes a file descriptor and some 10 KB."""


RECEIVER_LIMITS: Final = Limits()
"""The limits of a receiver that declares none."""


def limits_for_process() -> Limits:
    """Return the default limits, with fewer connections if the process may open few files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = min(RECEIVER_LIMITS.connections, files - RECEIVER_OTHER_FILES)
    return replace(RECEIVER_LIMITS, connections=max(1, connections))


def leaves_room(held: int, all_held: int, limit: int) -> bool:
    """Whether a request being received may keep its `held` bytes. All requests that are being
    received, this one included, hold `all_held` bytes, and may hold `limit` bytes.

    A request may hold as many bytes as are still free, so that a smaller request has room, however
    many slow ones there are. A request that holds more than all others together may use all the
    rest.
    """
    free_bytes = limit - all_held
    return free_bytes >= 0 and (held <= free_bytes or 2 * held > all_held)


def header_bytes(headers: HttpHeaders) -> int:
    """Return the number of bytes that headers count as: their names and values, and for each header
    four more, for its colon, space and line end."""
    return sum([len(name) + len(value) + 4 for name, value in headers])
