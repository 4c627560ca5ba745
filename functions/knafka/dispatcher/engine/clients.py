"""The clients with which a drain reads and delivers one Egress's events, and its share of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from knafka.core.events.kafka_binding import Envelope, RecordHeaders
from knafka.dispatcher.engine.sending.broker_letters import BrokerDeadLetters
from knafka.ports.log import Assignment, LogReader, LogWriter, Record, TopicMaker
from knafka.ports.subscriber import Subscriber

MAX_UNSETTLED_BYTES: Final = 32 * 1024 * 1024
"""Most bytes of requests that a drain may hold if it is alone in its dispatcher; twice as many
while events of some of its partitions wait for long (`HeldPartitions`)."""

Format: TypeAlias = Literal["json", "binary", "batch"] | None
"""How the request holds the event: `json`: in structured mode; `binary`: in binary mode; `batch`:
its data, a JSON array of events, is the whole body. None: in the mode of its record."""

OpenReader: TypeAlias = Callable[[Assignment], LogReader]
"""Opens a drain's reader; the `Assignment` (the drain) learns which partitions it gets and
loses."""


class Parser(Protocol):
    """Parses records and encodes requests, once for many drains."""

    def envelope(self, record: Record, headers: RecordHeaders | None) -> Envelope:
        """Parse the record's event. `headers` are the record's headers (None: it has none), passed
        on because they may be read only once. Raises `InvalidEvent`."""
        ...

    def request(
        self, record: Record, envelope: Envelope, format_: Format, prefix: bytes,
        partition: int | None,
    ) -> tuple[bytes, bytes]:  # fmt: skip
        """Return the header lines and the body of the request that delivers the event
        (`intake.encode_request` has the parameters)."""
        ...


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of one Egress, and its share of the dispatcher. In a dispatcher of its own the
    Egress keeps them for the process's life, in a shard for one drain."""

    open_reader: OpenReader
    """Opens the reader of each drain."""
    writer: LogWriter
    """Stores replies and dead letters."""
    subscriber: Subscriber
    """Posts events to the subscriber, to the dead-letter sink and to the reply destination."""
    topics: TopicMaker
    """Creates the dead-letter topic when it is first needed."""
    broker_dead_letters: BrokerDeadLetters | None = None
    """Writes the Broker's dead letters; None: the Egress names no topic for its Broker's dead
    letters."""
    parser: Parser | None = None
    """Parses records and encodes requests once for all Egresses of a shard; None: the drain parses
    and encodes for itself."""
    held_bytes: Callable[[], int] = lambda: MAX_UNSETTLED_BYTES
    """Returns the most bytes of requests that the Egress may hold now."""
    max_in_flight: Callable[[], int] | None = None
    """Returns the number of attempts that may be under way at once; None: as many as the Egress
    declares."""
    attempts_per_turn: int | None = None
    """Attempts that may begin in one turn of the event loop; None: no limit, as the Egress is
    alone."""
