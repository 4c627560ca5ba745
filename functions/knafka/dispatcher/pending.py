"""Pending events: records that are read and not yet settled, and the partitions they come from."""

from __future__ import annotations

from asyncio import TimerHandle
from math import inf
from typing import TYPE_CHECKING

from knafka.core.dead_letter import LOGGED_ATTEMPTS, Attempt
from knafka.core.delivery import Outcome
from knafka.core.hops import hops_of
from knafka.core.kafka_binding import Draft, RecordHeaders
from knafka.core.offsets import OffsetTracker
from knafka.core.progress import (
    MAX_DELIVERIES,
    SUBSCRIBER,
    DeliveryStage,
    DeliveryState,
    Progress,
    encode,
)
from knafka.dispatcher.lanes import Lane, Lanes
from knafka.ports.log import OffsetAndMetadata, Record

if TYPE_CHECKING:
    from knafka.dispatcher.tracing import DeliveryTrace


class Partition:
    """One assigned partition: its offsets, its lanes, and what may be done with it.

    `progress` is what an earlier owner has told with its last commit, and `began` that commit's
    offset.
    """

    __slots__ = (
        "_all_told",
        "backoffs",
        "began",
        "committed",
        "held_back",
        "held_bytes",
        "in_flight",
        "lanes",
        "matching_from",
        "number",
        "open",
        "paused",
        "restored",
        "retrying",
        "same_policy",
        "tracker",
    )

    def __init__(self, number: int, progress: Progress | None = None, began: int = 0) -> None:
        progress = progress or Progress()
        self.number = number
        self.began = began
        self.tracker: OffsetTracker[PendingEvent] = OffsetTracker(progress.settled)
        self.restored = dict(progress.deliveries)
        """Deliveries that an earlier owner has begun and whose records aren't read yet."""
        self.same_policy = progress.same_policy
        self.committed: OffsetAndMetadata | None = None
        """The last commit of ours."""
        self.lanes: Lanes[PendingEvent] = Lanes()
        self.held_bytes = 0
        """Of the requests for its unsettled records."""
        self.in_flight = 0
        """Attempts under way."""
        self.retrying: set[PendingEvent] = set()
        """Its events that had an attempt, or no token for one, and aren't settled."""
        self.held_back: list[PendingEvent] = []
        """Its events that could go, had a commit room to tell of them (`may_begin`)."""
        self.backoffs: set[TimerHandle] = set()
        """Its events that wait for another attempt."""
        self.open = True
        """Whether attempts may begin; a partition that is going away is closed first."""
        self.paused = False
        self.matching_from: float = inf
        """The offset from which on its reader gives only what matches (`selecting`)."""
        self._all_told = True

    @property
    def may_begin(self) -> bool:
        """Whether a commit has room to tell of one more delivery that has begun."""
        return len(self.retrying) + len(self.restored) < MAX_DELIVERIES

    @property
    def may_read(self) -> bool:
        """Whether a commit has room to tell of what more records would leave behind."""
        return self._all_told and len(self.retrying) < MAX_DELIVERIES

    @property
    def done(self) -> int:
        """The offset below which every record is done with."""
        position = self.tracker.position
        return self.began if position is None else position

    def close(self) -> None:
        """Begin no more attempts; those that wait for one are let go."""
        self.open = False
        while self.backoffs:
            self.backoffs.pop().cancel()

    def to_commit(self, policy: int) -> OffsetAndMetadata | None:
        """The position and what is told of what is above it; None: nothing is known."""
        tracker = self.tracker
        if (position := tracker.position) is None:
            return None
        begun = {each.offset: each.state for each in self.retrying} | self.restored
        told = Progress(tracker.settled_ahead(), dict(sorted(begun.items())))
        metadata, self._all_told = encode(position, told, policy)
        return OffsetAndMetadata(position, metadata)


class PendingReply:
    """A subscriber's answer that holds a reply, which was not taken where it belongs."""

    __slots__ = ("body", "draft", "size", "status")

    def __init__(self, draft: Draft, status: int, body: bytes) -> None:
        self.draft = draft
        self.status = status
        """The subscriber's."""
        self.body = body
        """The subscriber's, for the dead letter."""
        self.size = len(draft.value or b"") + len(body)


class PendingEvent:
    """One record, and how far its delivery has come."""

    __slots__ = (
        "attempts",
        "body",
        "due",
        "failed",
        "first_attempt",
        "head",
        "headers",
        "is_probe",
        "lane",
        "last_attempt",
        "log",
        "offset",
        "partition",
        "record",
        "reply",
        "reply_tries",
        "response_body",
        "size",
        "stage",
        "trace",
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
        """Bytes of head and body as first encoded."""
        self.stage: DeliveryStage = SUBSCRIBER
        self.tries = 0
        """Attempts in this stage."""
        self.attempts = 0
        """Attempts at the subscriber."""
        self.reply: PendingReply | None = None
        """What the subscriber has answered, while it is not where it belongs."""
        self.reply_tries = 0
        """Attempts to store or send its reply that have failed."""
        self.first_attempt = 0.0
        self.last_attempt = 0.0
        self.due = 0.0
        """When the next attempt may begin, in Unix time."""
        self.is_probe = False
        """Whether it probes a subscriber that is away (see `congestion`)."""
        self.failed: Outcome | None = None
        """The subscriber's last outcome, once it has failed for good."""
        self.response_body = b""
        """The body of its response, or a sentence about why there is none."""
        self.log: list[Attempt] | None = None
        """The last attempts that have failed, as far as they are known one by one; None: none."""
        self.trace: DeliveryTrace | None = None
        """None: it isn't sampled."""

    @property
    def hops(self) -> int:
        """How often in a row it has been a dead letter at a sink."""
        return hops_of(self.headers, self.record.value())

    def attempt_failed(self, outcome: Outcome) -> None:
        """The last attempt at the subscriber has ended so."""
        attempt = Attempt(self.last_attempt, outcome)
        if self.log is None:
            self.log = [attempt]
        else:
            self.log = [*self.log[1 - LOGGED_ATTEMPTS :], attempt]

    @property
    def state(self) -> DeliveryState:
        """What a commit tells of it."""
        failed = self.failed
        if failed is None and self.log and self.log[-1].began == self.last_attempt:
            failed = self.log[-1].outcome
        return DeliveryState(
            self.stage,
            self.tries,
            self.attempts,
            self.first_attempt,
            self.last_attempt,
            self.due,
            failed,
            self.reply_tries,
        )

    def resume(self, state: DeliveryState, *, same_policy: bool) -> None:
        """Go on where an earlier owner left it; under another policy its retries begin anew."""
        self.attempts = state.attempts
        self.first_attempt = state.first_attempt
        self.last_attempt = state.last_attempt
        if state.failed is not None:
            self.log = [Attempt(state.last_attempt, state.failed)]
        if same_policy or (state.stage is DeliveryStage.TOPIC and state.failed is not None):
            self.stage = state.stage
            self.tries = state.tries
            self.due = state.due
            self.failed = None if state.stage is SUBSCRIBER else state.failed
            self.reply_tries = state.reply_tries

    def keep_reply(self, reply: PendingReply) -> None:
        """Hold a reply for its next attempt; it counts to what its partition holds."""
        self.reply = reply
        self.size += reply.size
        self.partition.held_bytes += reply.size

    def drop_reply(self) -> None:
        """Forget the reply: it goes nowhere any more."""
        if self.reply is not None:
            self.size -= self.reply.size
            self.partition.held_bytes -= self.reply.size
            self.reply = None
