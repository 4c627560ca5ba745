"""Unsettled: a record between being read and being settled, and the partition it came from."""

from __future__ import annotations

from asyncio import TimerHandle
from enum import Enum

from knafka.clients.log import Record
from knafka.core.delivery import Outcome
from knafka.core.kafka_binding import RecordHeaders
from knafka.core.offsets import Ledger
from knafka.dispatcher.lanes import Lane, Lanes


class Stage(Enum):
    """Where an event is to go next; each stage follows when the one before failed for good."""

    SUBSCRIBER = "subscriber"
    SINK = "dead-letter sink"
    TOPIC = "dead-letter topic"


class Partition:
    """One assigned partition: its ledger, its lanes, and what may be done with it."""

    __slots__ = (
        "backoffs",
        "held_bytes",
        "in_flight",
        "lanes",
        "ledger",
        "number",
        "open",
        "paused",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.ledger = Ledger()
        self.lanes: Lanes[Unsettled] = Lanes()
        self.held_bytes = 0
        """Of the requests for its unsettled records."""
        self.in_flight = 0
        """Attempts under way."""
        self.backoffs: set[TimerHandle] = set()
        """Its events that wait for another attempt."""
        self.open = True
        """Whether attempts may begin; a partition that is going away is closed first."""
        self.paused = False

    def close(self) -> None:
        """Begin no more attempts; those that wait for one are let go."""
        self.open = False
        while self.backoffs:
            self.backoffs.pop().cancel()


class Unsettled:
    """One record, and how far its delivery has come."""

    __slots__ = (
        "attempts",
        "body",
        "failed",
        "first_attempt",
        "head",
        "headers",
        "lane",
        "last_attempt",
        "offset",
        "partition",
        "record",
        "response_body",
        "size",
        "stage",
        "tries",
    )

    def __init__(
        self, record: Record, headers: RecordHeaders | None, partition: Partition, lane: Lane
    ) -> None:
        self.record = record
        self.headers = headers
        """The record's, if they can be read. They are read once: after it has raised,
        confluent-kafka returns a broken list, and to use that crashes the process."""
        self.partition = partition
        self.offset = record.offset()
        self.lane = lane
        self.head = b""
        self.body = b""
        self.size = 0
        """Bytes of head and body as first prepared."""
        self.stage = Stage.SUBSCRIBER
        self.tries = 0
        """Attempts in this stage."""
        self.attempts = 0
        """Attempts at the subscriber."""
        self.first_attempt = 0.0
        self.last_attempt = 0.0
        self.failed: Outcome | None = None
        """The subscriber's last outcome, once it has failed for good."""
        self.response_body = b""
        """The body of its response, or a sentence about why there is none."""
