"""The protocol of drains that both planes share: requests to a dispatcher, and its answers.

`POST /drain` with a `DrainRequest` as a line of JSON makes a dispatcher join its Trigger's group
and deliver events, or renews its drain; the response streams one `DrainProgress` a second as JSON
lines, the last of which has an `ended`. A drain is a lease: it goes on when the request is over,
whether its budget was spent or the caller hung up, and the next request continues it. It ends when
there is nothing to do, when the process ends, or when a caller sends `STOP` as a second line of the
request's body.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from knafka.core.documents import Duration, Model

PATH: Final = "/drain"
"""Path of requests to drain."""
PROGRESS_INTERVAL: Final = 1.0
"""Seconds between two lines of progress: no proxy's idle timeout is that short."""


MAX_BUDGET: Final = 600.0
"""Longest request in seconds: Knative's own limit. While a request is under way, another is refused
unless it may replace the first."""
MAX_IDLE: Final = 86_400.0
"""Longest `idle` in seconds: a drain that waits longer for events would hardly ever end."""

COMMIT_INTERVAL: Final = 1.0
"""Seconds between commits: after a kill, the events of about this time are delivered again."""
MAX_COMMIT_INTERVAL: Final = 5.0
"""Most seconds between commits: the interval where 1,000 groups or more share a dispatcher. It is
Kafka's own default (auto.commit.interval.ms)."""

STOP: Final = b'{"stop":true}\n'
"""The line that a caller adds to its request to end the drain: attempts finish within a time limit,
settled offsets are committed, the group is left, and the response ends. Only a request that names
what it drains (`egress`, `shard` or `sensor`) may do so."""


class DrainRequest(Model):
    """A request to deliver events, and for how long."""

    idle: Annotated[Duration, Field(ge=0), AfterValidator(lambda idle: min(idle, MAX_IDLE))] = 30.0
    """Seconds without anything to do after which the drain ends (cooldown-period); a larger number
    than `MAX_IDLE` counts as `MAX_IDLE`."""
    budget: Annotated[Duration, Field(gt=0, le=MAX_BUDGET)] = 570.0
    """Seconds after which the request is over; less than the Service's timeoutSeconds of 600."""
    renewal: bool = False
    """Whether the dispatcher itself sends the request, because nobody else did."""
    egress: str | None = None
    """Digest of the Egress by which to drain; None: any that the dispatcher has. A dispatcher with
    another Egress refuses the request: while a changed Trigger is rolled out, its old Revision
    still answers, and would settle events that only the new filter matches."""
    shard: str | None = None
    """`Shard.group` of a dispatcher with many Egresses, all of which are drained; None: this is a
    request for another kind of function."""
    sensor: str | None = None
    """Digest of the Sensor to drain; a process that has another version of the Sensor refuses the
    request. None: this is a request for another kind of function."""
    slot: Annotated[int, Field(ge=0)] | None = None
    """Number of a Sensor's process; no two processes have the same at once. A killed process leaves
    a transaction open, which its successor in this slot ends. A drain that is already under way
    keeps its own slot, and reports it."""

    bearer: Annotated[str, Field(exclude=True, repr=False)] = ""
    """The caller's token, which came in a header: a dispatcher that renews its drain by a request
    to its own Service sends the same token there. It is in no document and no log."""

    @property
    def can_be_stopped(self) -> bool:
        """Whether `STOP` may end the drain: only if the request names what it drains, as then a
        process that drains something else refuses the request."""
        return any(value is not None for value in (self.egress, self.shard, self.sensor))


class Ended(StrEnum):
    """Why a request has ended, and (except for `BUDGET`) the drain with it."""

    IDLE = "idle"
    """There was nothing to do for `DrainRequest.idle` seconds."""
    BUDGET = "budget"
    """The request's seconds are spent; the drain goes on."""
    STOPPED = "stopped"
    """The caller sent `STOP`, or the process is to end."""
    FAILED = "failed"
    """An error ended the drain; the progress says which."""


@dataclass(slots=True)
class Counts:
    """Counts of events by outcome, and of attempts."""

    read: int = 0
    filtered: int = 0
    """Records that aren't for the Trigger, mostly events that its filter refuses."""
    delivered: int = 0
    retried: int = 0
    """Attempts that failed and are repeated."""
    dead_lettered: int = 0
    replied: int = 0
    """Replies that were stored or sent."""
    lost: int = 0
    """Events given up before delivery succeeded, where they are delivered at most once (BUS-5)."""

    def __add__(self, other: Counts) -> Counts:
        """Return the sums of these counts and those of `other`."""
        return Counts(*(getattr(self, name) + getattr(other, name) for name in COUNTED))

    def __sub__(self, other: Counts) -> Counts:
        """Return the differences of these counts and those of `other`."""
        return Counts(*(getattr(self, name) - getattr(other, name) for name in COUNTED))


COUNTED: Final = tuple(field.name for field in fields(Counts))
"""Names of the fields of `Counts`, which `DrainProgress` has too."""


def outcomes(counts: Counts | DrainProgress) -> Iterator[tuple[str, int]]:
    """Yield name and value of each of these counts, for a metric whose label `outcome` has the name
    as its value."""
    for name in COUNTED:
        yield name, getattr(counts, name)


class Waiting(Model):
    """The events that one trigger of a Sensor holds in one partition of the trigger topic."""

    trigger: str
    partition: int
    keys: int
    """Number of correlation keys for which the trigger holds events; 1 if it has no correlation."""
    since: int
    """When the oldest of the held events was appended to the bus, in milliseconds since the Unix
    epoch."""
    key: str | None = None
    """The correlation key of the oldest event, or the key's beginning; None: the trigger has no
    correlation."""
    has: tuple[str, ...] = ()
    """The dependencies whose events are held for `key`."""


class Holding(Model):
    """The events that a Sensor's process held when it last reported them."""

    partitions: tuple[int, ...]
    """Partitions of the trigger topic that this process owns, all of whose events are included."""
    triggers: tuple[Waiting, ...] = ()


class DrainProgress(Model):
    """Counts since the drain began, and its current state."""

    read: int = 0
    filtered: int = 0
    delivered: int = 0
    retried: int = 0
    dead_lettered: int = 0
    replied: int = 0
    lost: int = Field(default=0, exclude_if=lambda count: not count)
    """Left out while there are none, because an older operator doesn't know the field."""
    dead_letters: dict[str, int] = Field(default_factory=dict, exclude_if=lambda counts: not counts)
    """The `dead_lettered` events by reason and status, such as `status 503` or `timeout`. Left out
    while there are none, like `lost`."""
    late: int = Field(default=0, exclude_if=lambda count: not count)
    """Number of a Sensor's events that came too late for their order. Left out while there are
    none, like `lost`."""
    unsettled: int = 0
    """Records that are read and not yet settled."""
    partitions: tuple[int, ...] = ()
    """Partitions that the dispatcher owns now."""
    slot: int | None = None
    """The `DrainRequest.slot` that a Sensor's drain began with; None if it has none."""
    holding: Holding | None = None
    """Events that a Sensor's drain holds, in some of its lines; None: unchanged since the last
    report."""
    congestion: str | None = None
    """A sentence that says why most events wait without an attempt; None: they don't wait
    (KN-DP-05)."""
    loop: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """A sentence about events that have come back again and again since the drain began
    (KN-BRK-13). None if there are none: then left out, like `lost`."""
    ended: Ended | None = None
    error: str | None = None
    """A sentence that says why the drain failed."""

    @property
    def counts(self) -> Counts:
        """The fields of this progress that count events, as `Counts`."""
        return Counts(*(getattr(self, name) for name in COUNTED))


class Settled(Model):
    """The offsets that the groups of a shard had committed when its drain ended, as Kafka has
    confirmed."""

    topic: str
    offsets: dict[int, int]
    """Offset by partition that this dispatcher owned until the end: every record below it is
    settled."""
    without: tuple[str, ...] = ()
    """Groups for which `offsets` doesn't hold: their drain failed, a commit wasn't confirmed, they
    are behind, or they read another topic."""


class ShardProgress(Model):
    """Progress of a dispatcher with many Egresses."""

    contract: int
    """Offset in the contract topic: the dispatcher applies every record before it, and has ended
    the drains of the Egresses that those records replaced."""
    egresses: dict[str, DrainProgress] = Field(default_factory=dict)
    """Progress by group: of the groups that changed since the last line; of all groups in a
    request's first and last line. A failed drain has an `error`, and restarts by itself."""
    settled: Settled | None = None
    """In the last line, committed offsets of the groups in `egresses`; None: not known."""
    ended: Ended | None = None
    error: str | None = None
