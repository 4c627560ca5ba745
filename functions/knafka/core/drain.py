"""The drain: what is asked of a dispatcher and what it tells back, as both planes know it.

`POST /drain` with a `DrainRequest` as a line of JSON makes a dispatcher join its Trigger's group
and deliver, or has it go on; the response streams one `DrainProgress` a second as JSON lines, the
last of which has an `ended`. A drain is a lease: it goes on when the request is over, whether its
budget was spent or the caller hung up, and the next request continues it. What ends it is to have
nothing to do, the end of the process, or a caller that says so: a second line in the request's
body, `STOP`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from knafka.core.documents import Duration, Model

PATH: Final = "/drain"
PROGRESS_INTERVAL: Final = 1.0
"""Seconds between two lines of progress: no proxy's idle timeout is that short."""


MAX_BUDGET: Final = 600.0
"""Seconds: Knative's own limit of a request. While one is under way nobody else can ask."""
MAX_IDLE: Final = 86_400.0
"""Seconds: a drain that waits longer for something to do would be one that never ends."""

STOP: Final = b'{"stop":true}\n'
"""Added by a caller to its request to end the drain: attempts finish within a bound, settled
offsets are committed, the group is left, and the response ends. Only a request that names what it
drains (`egress`, `shard` or `sensor`) may do so."""


class DrainRequest(Model):
    """How long to deliver."""

    idle: Annotated[Duration, Field(ge=0), AfterValidator(lambda idle: min(idle, MAX_IDLE))] = 30.0
    """Seconds without anything to do after which the drain ends (cooldown-period); `MAX_IDLE` if
    more are asked for."""
    budget: Annotated[Duration, Field(gt=0, le=MAX_BUDGET)] = 570.0
    """Seconds after which the request is over: below the Service's timeoutSeconds of 600."""
    renewal: bool = False
    """Whether a dispatcher asks for itself, as nobody else did."""
    egress: str | None = None
    """Digest of the Egress to drain by. While a changed Trigger is rolled out its old Revision
    still answers; a dispatcher that has another Egress refuses, since what the old filter passes
    over would be lost to the new one."""
    shard: str | None = None
    """`Shard.group` of a dispatcher with many Egresses: all of them are to drain."""
    sensor: str | None = None
    """Digest of the Sensor to drain: a process that has another version of it refuses."""
    slot: Annotated[int, Field(ge=0)] | None = None
    """Which of a Sensor's processes this one is: no two have the same at once. A process that was
    killed has left a transaction open, which its successor in this place ends. A drain that is
    under way already goes on with the one that it has, and says so."""

    bearer: Annotated[str, Field(exclude=True, repr=False)] = ""
    """The caller's token, which came in a header: a dispatcher that asks its own Service shows it
    there again. It is in no document and no log."""

    @property
    def may_stop(self) -> bool:
        """Whether the request names what is to be drained, so that a process that drains something
        else refuses it."""
        return any(value is not None for value in (self.egress, self.shard, self.sensor))


class Ended(StrEnum):
    """Why a request is over, and with it, but for `BUDGET`, the drain."""

    IDLE = "idle"
    BUDGET = "budget"
    """The request's seconds are spent; the drain goes on."""
    STOPPED = "stopped"
    """The caller has said so, or the process was told to end."""
    FAILED = "failed"


@dataclass(slots=True)
class Counts:
    """Counts of events by outcome, and of attempts."""

    read: int = 0
    filtered: int = 0
    delivered: int = 0
    retried: int = 0
    dead_lettered: int = 0
    replied: int = 0
    lost: int = 0
    """Given up unfinished, where events are delivered at most once (BUS-5)."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, name) + getattr(other, name) for name in COUNTED))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, name) - getattr(other, name) for name in COUNTED))


COUNTED: Final = tuple(field.name for field in fields(Counts))
"""The fields of `Counts`, which are those of a `DrainProgress`, too."""


def outcomes(counts: Counts | DrainProgress) -> Iterator[tuple[str, int]]:
    """Yield the counts by their values of the metric's label `outcome`."""
    for name in COUNTED:
        yield name, getattr(counts, name)


class Waiting(Model):
    """What one trigger of a Sensor holds in one partition of the trigger topic."""

    trigger: str
    partition: int
    keys: int
    """Correlation keys for which it holds events; 1 of a trigger without correlation."""
    since: int
    """When the oldest of its events was appended to the bus, in milliseconds since the Unix
    epoch."""
    key: str | None = None
    """The correlation key of that event, or its beginning."""
    has: tuple[str, ...] = ()
    """The dependencies of the events that are held for that key."""


class Holding(Model):
    """What a Sensor's process held a moment ago."""

    partitions: tuple[int, ...]
    """Partitions of the trigger topic that this process owns, all of whose events are included."""
    triggers: tuple[Waiting, ...] = ()


class DrainProgress(Model):
    """Counts since the drain began, and what it does right now."""

    read: int = 0
    filtered: int = 0
    delivered: int = 0
    retried: int = 0
    dead_lettered: int = 0
    replied: int = 0
    lost: int = Field(default=0, exclude_if=lambda count: not count)
    """Left out while there are none: an operator that is older knows no such field."""
    dead_letters: dict[str, int] = Field(default_factory=dict, exclude_if=lambda found: not found)
    """Those of `dead_lettered` by reason and status, such as `status 503` or `timeout`. Left out
    while there are none, like `lost`."""
    late: int = Field(default=0, exclude_if=lambda count: not count)
    """Of a Sensor's drain, events that came too late for their order. Left out while there are
    none, like `lost`."""
    unsettled: int = 0
    """Records read and not settled, right now."""
    partitions: tuple[int, ...] = ()
    """Owned right now."""
    slot: int | None = None
    """Of a Sensor's drain, the `DrainRequest.slot` that it began with; None: none."""
    holding: Holding | None = None
    """Of a Sensor's drain, in some of its lines; None: as it was before."""
    congestion: str | None = None
    """Why most events wait without an attempt, for a person; None: they don't (KN-DP-05)."""
    loop: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """What has come back again and again since it began, for a person; None: nothing has
    (KN-BRK-13). Left out then, like `lost`."""
    ended: Ended | None = None
    error: str | None = None
    """Why it failed, for a person."""

    @property
    def counts(self) -> Counts:
        return Counts(*(getattr(self, name) for name in COUNTED))


class Settled(Model):
    """The offsets that the groups of a shard had committed when its drain ended, as Kafka has
    confirmed."""

    topic: str
    offsets: dict[int, int]
    """By partition that this dispatcher owned until the end: everything below is settled."""
    without: tuple[str, ...] = ()
    """Groups of which that isn't so: their drain failed, a commit wasn't confirmed, they are
    behind, or they read another topic."""


class ShardProgress(Model):
    """Progress of a dispatcher with many Egresses."""

    contract: int
    """Offset in the contract's topic before which it delivers by every record: drains of what was
    there before have ended."""
    egresses: dict[str, DrainProgress] = Field(default_factory=dict)
    """Progress by group: of those that have changed since the last line; of all in a request's
    first and last one. A failed one has an `error`, and starts again by itself."""
    settled: Settled | None = None
    """In the last line, committed offsets of the groups in `egresses`; None: not known."""
    ended: Ended | None = None
    error: str | None = None
