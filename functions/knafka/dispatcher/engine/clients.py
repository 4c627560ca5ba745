"""The clients with which a drain reads and delivers one Egress's events, and its share of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from knafka.dispatcher.engine.parsing import OwnParser, Parser
from knafka.dispatcher.engine.sending.broker_letters import BrokerDeadLetters
from knafka.ports.log import Assignment, LogReader, LogWriter, TopicMaker
from knafka.ports.subscriber import Subscriber

MAX_UNSETTLED_BYTES: Final = 32 * 1024 * 1024
"""Bytes of requests that a drain may hold in a dispatcher of its own."""

OpenReader: TypeAlias = Callable[[Assignment], LogReader]
"""Opens a drain's reader; the `Assignment` (the drain) learns which partitions it gets and
loses."""


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of one Egress: in its own dispatcher for the process's life, in a shard for one
    drain."""

    open_reader: OpenReader
    writer: LogWriter
    """Stores replies and dead letters."""
    subscriber: Subscriber
    """Posts events to the subscriber, to the dead-letter sink and to the reply destination."""
    topics: TopicMaker
    """Creates the dead-letter topic when it is first needed."""
    broker_dead_letters: BrokerDeadLetters | None = None
    """None: the Egress names no topic for its Broker's dead letters."""
    parser: Parser = field(default_factory=OwnParser)
    """Parses records and encodes requests; in a shard, once for all Egresses."""
    held_bytes: Callable[[], int] = lambda: MAX_UNSETTLED_BYTES
    """Returns the bytes of requests that the Egress may hold."""
    max_in_flight: Callable[[], int] | None = None
    """Returns the number of attempts that may be under way at once; None: as many as the Egress
    declares."""
    attempts_per_turn: int | None = None
    """Attempts that may begin in one turn of the event loop; None: no limit, as the Egress is
    alone."""
