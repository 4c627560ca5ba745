"""Pending events: records that were read and are not settled yet, in their partitions and lanes.

Events of one lane go one at a time, in the order they were admitted; lanes are independent of each
other. The Trigger's order decides what a lane is: a key's events, a partition's, or (lane None) a
single event, which may go at once.

A lane exists only while one of its events is under way, and needs a queue only when another one
waits behind it: a topic of a million keys needs only as many lanes as keys are in flight.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Final, Generic, TypeAlias, TypeVar

from knafka.core.contract import Order
from knafka.core.dead_letter import LOGGED_ATTEMPTS, Attempt
from knafka.core.delivery import Outcome
from knafka.core.events.hops import hops_of
from knafka.core.events.kafka_binding import Draft, RecordHeaders
from knafka.core.numbering import partition_of
from knafka.core.offsets import OffsetTracker
from knafka.core.progress import (
    MAX_DELIVERIES,
    SUBSCRIBER,
    DeliveryStage,
    DeliveryState,
    Progress,
    encode,
)
from knafka.dispatcher.engine.tracing import DeliveryTrace, log_ids
from knafka.ports.log import OffsetAndMetadata, Record

Lane: TypeAlias = bytes | None
"""A record's key, or `WHOLE_PARTITION`; None: the event waits for no other one."""
T = TypeVar("T")
"""The type of the events."""

WHOLE_PARTITION: Final = b""
"""The one lane of a partition whose events keep the order of their offsets."""


def lane_function(order: Order) -> Callable[[bytes | None], Lane]:
    """Return the function that returns the lane of a record's key (None or empty: without key) for
    this order. Each partition has lanes of its own."""
    if order is Order.PARTITION:
        return lambda key: WHOLE_PARTITION
    if order is Order.NONE:
        return lambda key: None
    return lambda key: key or None


class Lanes(Generic[T]):
    """The lanes of one partition."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        """Begin without events."""
        self._waiting: dict[bytes, deque[T] | None] = {}
        """The waiting events of each lane that has an event under way; None: no event waits."""

    def admit(self, lane: Lane, event: T) -> bool:
        """Add an event to its lane. Returns True if it may be sent now; False: it waits, and a
        later `release` returns it."""
        if lane is None:
            return True
        queues = self._waiting
        if lane not in queues:
            queues[lane] = None
            return True
        queue = queues[lane]
        if queue is None:
            queue = queues[lane] = deque()
        queue.append(event)
        return False

    def release(self, lane: Lane) -> T | None:
        """Note that the lane's event is settled; returns the event that may be sent next, None if
        none waits."""
        if lane is None:
            return None
        queue = self._waiting[lane]
        if queue:
            return queue.popleft()
        del self._waiting[lane]
        return None


class AssignedPartition:
    """One assigned partition: its offsets, its lanes and its unsettled events.

    `progress` was stored by an earlier owner in its last commit's metadata; `initial_offset` is
    that commit's offset.
    """

    __slots__ = (
        "_metadata_is_complete",
        "backoffs",
        "committed",
        "held_back",
        "held_bytes",
        "in_flight",
        "initial_offset",
        "kafka_number",
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

    def __init__(
        self, number: int, progress: Progress | None = None, initial_offset: int = 0
    ) -> None:
        """Begin without events; `progress` None: no earlier owner has stored its progress."""
        progress = progress or Progress()
        self.number = number
        self.kafka_number = partition_of(number)
        """Kafka's own number of the partition in its topic (`core.numbering`)."""
        self.initial_offset = initial_offset
        self.tracker: OffsetTracker[PendingEvent] = OffsetTracker(progress.settled)
        """Knows which offsets are settled, and holds the unsettled events by offset."""
        self.restored = dict(progress.deliveries)
        """States of the deliveries that an earlier owner began, by offset, until the records are
        read."""
        self.same_policy = progress.same_policy
        """Whether the earlier owner had the same retry policy and destinations."""
        self.committed: OffsetAndMetadata | None = None
        """The last commit of this drain; None: it has made none."""
        self.lanes: Lanes[PendingEvent] = Lanes()
        self.held_bytes = 0
        """Bytes of the requests for its unsettled records."""
        self.in_flight = 0
        """Attempts under way."""
        self.retrying: set[PendingEvent] = set()
        """Unsettled events whose delivery has begun: they had an attempt, or were put off as there
        was no token for it. Commits keep their state."""
        self.held_back: list[PendingEvent] = []
        """Events that wait until the commit metadata has room for their state (`may_begin`)."""
        self.backoffs: set[TimerHandle] = set()
        """Timers of the events that wait for their next attempt."""
        self.open = True
        """Whether attempts may begin; a partition is closed before it is revoked."""
        self.paused = False
        """Whether reading this partition is paused."""
        self.matching_from: float = inf
        """First offset from which on its reader returns only records that match the filter
        (`selecting`)."""
        self._metadata_is_complete = True
        """Whether the last commit's metadata had room for all that is known above its offset."""

    @property
    def may_begin(self) -> bool:
        """Whether one more delivery may begin, as the commit metadata has room for its state."""
        return len(self.retrying) + len(self.restored) < MAX_DELIVERIES

    @property
    def may_read(self) -> bool:
        """Whether more records may be read, as the commit metadata has room for what they add."""
        return self._metadata_is_complete and len(self.retrying) < MAX_DELIVERIES

    @property
    def position(self) -> int:
        """The offset below which every record is settled. Before the first record was read, it is
        the offset of the earlier owner's commit."""
        position = self.tracker.position
        return self.initial_offset if position is None else position

    def close(self) -> None:
        """Begin no more attempts, and cancel the timers of events that wait for one."""
        self.open = False
        while self.backoffs:
            self.backoffs.pop().cancel()

    def to_commit(self, policy: int) -> OffsetAndMetadata | None:
        """Return the commit of the position, whose metadata (`core.progress`) holds what is known
        of the records above; None: no record was read yet. Notes whether all of that had room
        (`may_read`). `policy` is the checksum of the Egress's retry policy (`policy_of`)."""
        tracker = self.tracker
        if (position := tracker.position) is None or (next_offset := tracker.next_offset) is None:
            return None
        if self.restored:
            # A state that was passed by without its record: compaction has removed the record.
            self.restored = {
                offset: state for offset, state in self.restored.items() if offset >= next_offset
            }
        if not (
            tracker.unsettled or tracker.has_inherited_ranges or self.restored or self.retrying
        ):
            self._metadata_is_complete = True
            return OffsetAndMetadata(position)
        deliveries = {event.offset: event.state for event in self.retrying} | self.restored
        progress = Progress(tracker.settled_ahead(), dict(sorted(deliveries.items())))
        metadata, self._metadata_is_complete = encode(position, progress, policy)
        return OffsetAndMetadata(position, metadata)


class PendingReply:
    """A reply that its topic or destination has not taken yet."""

    __slots__ = ("body", "draft", "size", "status")

    def __init__(self, draft: Draft, status: int, body: bytes) -> None:
        """Keep a reply with the response (`status`, `body`) that held it."""
        self.draft = draft
        """The reply as a record, as it is to be stored or sent."""
        self.status = status
        """Status of the subscriber's response that held the reply."""
        self.body = body
        """Body of that response, for the dead letter."""
        self.size = len(draft.value or b"") + len(body)
        """Bytes of the reply's data and of `body`."""


class PendingEvent:
    """A record that is not settled, and the state of its delivery."""

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
        self,
        record: Record,
        headers: RecordHeaders | None,
        partition: AssignedPartition,
        lane: Lane,
    ) -> None:
        """Begin the delivery of a record's event, at the subscriber and without attempts."""
        self.record = record
        self.headers = headers
        """The record's headers; None: it has none, or they can't be read. They are read only once:
        after raising an error, confluent-kafka returns a broken list, whose use crashes the
        process."""
        self.partition = partition
        self.offset = record.offset()
        self.lane = lane
        """The lane whose events go one at a time (`Lanes`); None: the event waits for no other."""
        self.head = b""
        """Header lines of the request that its stage sends; empty until they are encoded."""
        self.body = b""
        """Body of that request."""
        self.size = 0
        """Bytes that count as held: head and body as first encoded, plus those of a kept reply."""
        self.stage: DeliveryStage = SUBSCRIBER
        """Where the next attempt goes: to the subscriber, the dead-letter sink or the topic."""
        self.tries = 0
        """Failed attempts in this stage."""
        self.attempts = 0
        """Attempts at the subscriber."""
        self.reply: PendingReply | None = None
        """The subscriber's reply, until its topic or destination has taken it."""
        self.reply_tries = 0
        """Failed attempts to store or send the reply."""
        self.first_attempt = 0.0
        """When the first attempt at the subscriber began (Unix time); 0: none has."""
        self.last_attempt = 0.0
        """When the last attempt at the subscriber, or at its reply, began (Unix time); 0: none
        has."""
        self.due = 0.0
        """When the next attempt may begin (Unix time)."""
        self.is_probe = False
        """Whether this event probes a subscriber that is away (`congestion`)."""
        self.failed: Outcome | None = None
        """The subscriber's last outcome, once the delivery has failed for good."""
        self.response_body = b""
        """Body of the subscriber's last response, or a sentence that says why there is none."""
        self.log: list[Attempt] | None = None
        """The last failed attempts, at most `LOGGED_ATTEMPTS`; None: none is recorded."""
        self.trace: DeliveryTrace | None = None
        """Spans of this event's delivery; None: it isn't sampled."""

    @property
    def hops(self) -> int:
        """How many times the event was sent to a dead-letter sink and came back
        (`core.events.hops`). After `MAX_HOPS` times it is sent there no more."""
        return hops_of(self.headers, self.record.value())

    @property
    def log_ids(self) -> Mapping[str, str]:
        """The trace and span ids for `extra` of a log line about the event."""
        return log_ids(self.trace, self.headers)

    def record_failed_attempt(self, outcome: Outcome) -> None:
        """Add the last attempt at the subscriber, which failed with this outcome, to `log`, which
        keeps the last `LOGGED_ATTEMPTS` failed attempts."""
        attempt = Attempt(self.last_attempt, outcome)
        if self.log is None:
            self.log = [attempt]
        else:
            self.log = [*self.log[1 - LOGGED_ATTEMPTS :], attempt]

    @property
    def state(self) -> DeliveryState:
        """The state of its delivery, which a commit's metadata keeps. The state's outcome is the
        one with which the delivery failed for good; before that, the last attempt's if it
        failed."""
        failed_outcome = self.failed
        if failed_outcome is None and self.log and self.log[-1].began == self.last_attempt:
            failed_outcome = self.log[-1].outcome
        return DeliveryState(
            self.stage,
            self.tries,
            self.attempts,
            self.first_attempt,
            self.last_attempt,
            self.due,
            failed_outcome,
            self.reply_tries,
        )

    def resume(self, state: DeliveryState, *, same_policy: bool) -> None:
        """Continue the delivery in the `state` in which an earlier owner left it. If the retry
        policy or a destination has changed (`same_policy` False), begin again at the subscriber,
        with no try counted yet. Exception: an event at the stage TOPIC whose outcome is known
        (`state.failed`) stays there, as only its dead letter has to be stored. So does an event
        that this owner has given up, whatever its `state`, as it has no request."""
        self.attempts = state.attempts
        self.first_attempt = state.first_attempt
        self.last_attempt = state.last_attempt
        if state.failed is not None:
            self.log = [Attempt(state.last_attempt, state.failed)]
        has_to_be_stored = state.stage is DeliveryStage.TOPIC and state.failed is not None
        if has_to_be_stored or (same_policy and self.failed is None):
            self.stage = state.stage
            self.tries = state.tries
            self.due = state.due
            self.failed = None if state.stage is SUBSCRIBER else state.failed
            self.reply_tries = state.reply_tries

    def keep_reply(self, reply: PendingReply) -> None:
        """Keep a reply until its next attempt; its bytes count as held by the partition."""
        self.reply = reply
        self.size += reply.size
        self.partition.held_bytes += reply.size

    def drop_reply(self) -> None:
        """Forget the kept reply, if there is one."""
        if self.reply is not None:
            self.size -= self.reply.size
            self.partition.held_bytes -= self.reply.size
            self.reply = None
