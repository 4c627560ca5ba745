"""What a process has read of the bus and of the trigger topic, taken in the order of the events.

    bus            take_in --Bus--> route        in the order of all partitions that are ours
    trigger topic  take_in --InOrder--> reduce   in the order of all there are

Until when everything was read is asked for only while something waits for it. Not here: what an
event does (`handlers`), and transactions (`processor`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from knafka.core.sensor import records
from knafka.core.sensor.contract import Sensor
from knafka.core.sensor.order import InOrder, Routed, Taken
from knafka.core.sensor.routing import Router
from knafka.core.sensor.rules import Rule
from knafka.observability import RateLimitedFilter
from knafka.ports.log import Record
from knafka.ports.transactions import Partition, TransactionalLog
from knafka.sensor.batch import BATCH, Batch
from knafka.sensor.bus import Bus
from knafka.sensor.handlers import Collected, Handlers
from knafka.sensor.tracing import SensorTracing
from knafka.sensor.watermark import Watermark

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))

SHORTEST_WAIT: Final = 0.005
"""Seconds between two looks at what waits until it is next, at least."""
LONGEST_WAIT: Final = 0.02
"""Seconds between two of them, at most."""
HELD_BACK_RECORDS: Final = 50_000
"""Records of the trigger topic that wait in a process until they are next; of more the first are
taken, though something may come before them."""
HELD_BACK_BYTES: Final = 64 * 1024 * 1024
"""Bytes of them."""


class Ordering:
    """Of one process. Times are ms since the Unix epoch."""

    def __init__(
        self,
        sensor: Sensor,
        rules: Mapping[str, Rule],
        router: Router,
        log: TransactionalLog,
        tracing: SensorTracing | None,
    ) -> None:
        self._sensor = sensor
        self._bus = Bus(sensor, log)
        self._watermark = Watermark(sensor, log)
        self._handlers = Handlers(sensor, rules, router, self._bus, tracing)
        self._positions: dict[Partition, int] = {}
        """What is committed."""
        self._read_to: dict[int, int] = {}
        """The next offset to be read of each partition of the trigger topic."""
        self._taken: dict[int, Taken | None] = {}
        """What is committed of what was taken behind the position."""
        self._ordered: dict[int, InOrder[Collected]] = {}
        """What was read of the trigger topic, and waits until it is next."""

    # Partitions

    def assigned(self, partition: Partition, position: int, metadata: str) -> None:
        """A partition is ours, and this is what was committed of it."""
        number = partition.number
        self._positions[partition] = position
        if partition.topic == self._sensor.topic:
            self._bus.assigned(number, position, records.routed_in(metadata))
        else:
            self._watermark.forget()
            self._read_to[number] = position
            self._taken[number] = records.taken_in(metadata)
            self._ordered[number] = InOrder(self._taken[number])

    def revoked(self, partition: Partition) -> None:
        self._positions.pop(partition, None)
        if partition.topic == self._sensor.topic:
            self._bus.revoked(partition.number)
        else:
            for each in (self._read_to, self._taken, self._ordered):
                each.pop(partition.number, None)

    @property
    def partitions(self) -> Sequence[Partition]:
        return list(self._positions)

    def position(self, partition: Partition) -> int:
        """What is committed of a partition of ours."""
        return self._positions[partition]

    # What waits

    @property
    def waiting(self) -> int:
        """Events that were read and wait until they are next."""
        return self._bus.queued + sum(map(len, list(self._ordered.values())))

    @property
    def stalled(self) -> Collection[int]:
        """Partitions of the bus that were waited for in vain."""
        return self._bus.stalled

    @property
    def first(self) -> int | None:
        """The time of the first event that waits until it is next; None: none does."""
        times = [self._bus.first, *(each.first for each in self._ordered.values())]
        return min((at for at in times if at is not None), default=None)

    @property
    def has_next(self) -> bool:
        """Whether something waits only for its transaction."""
        return self._bus.has_next or any(each.has_next for each in self._ordered.values())

    def patience(self, now: int) -> float | None:
        """Seconds after which it is worth to look again; None: nothing waits."""
        if self.first is None:
            return None
        seconds = (self._bus.next_look - now) / 1000
        return min(max(SHORTEST_WAIT, seconds), LONGEST_WAIT) if seconds > 0 else LONGEST_WAIT

    @property
    def grace(self) -> int:
        return self._bus.grace

    @property
    def asked_at(self) -> int:
        """When that was asked for, by our clock."""
        return self._watermark.asked_at

    @property
    def known(self) -> int | None:
        """The time before which every event was read that concerns partitions of ours, as it was
        last asked for."""
        return self._watermark.known

    # In a batch

    def take_in(
        self,
        found: Sequence[Record],
        reached: Mapping[Partition, int],
        batch: Batch,
        now: int,
        first_at: int,
    ) -> int:
        """These records were read by now, the first of them at `first_at`, and these ends were
        reached; gives how many events were next at once."""
        bus, count = self._sensor.topic, 0
        for record in found:
            if record is not found[0]:
                first_at = now
            if record.topic() == bus:
                self._handlers.take_in(record, batch, now, first_at)
            else:
                number = record.partition()
                self._read_to[number] = record.offset() + 1
                if self._handlers.collect(record, self._ordered[number], batch, now):
                    batch.taken.setdefault(number, None)
                    count += 1
        for (topic, number), end in reached.items():
            if topic == bus:
                self._bus.reached(number, end)
            elif number in self._read_to:
                self._read_to[number] = end
        return count

    def look(self, now: int, due: int | None, since: int) -> None:
        """Learn until when everything was read, as far as something waits for it; `due`: also until
        this time, as asked for since `since`. While nothing is routed that isn't committed."""
        bus, ordered = self._bus, self._ordered
        held_back = [at for each in ordered.values() if (at := each.first) is not None]
        times = [*held_back, bus.waits_for, bus.first_ahead, due]
        for at in sorted(each for each in times if each is not None):
            after = since if at == due else 0
            if (known := bus.read_until) is None or known <= at or bus.ended_at < after:
                bus.refresh(now, at, after)
                break
        bus.forget_ahead()
        if held_back or due is not None:
            known = self._watermark.look(bus.routed_until, bus.ended_at, self._read_to)
            if known is not None:
                for each in ordered.values():
                    each.know(known)

    def route(self, batch: Batch) -> int:
        """Have what is next on the bus in the trigger topic; gives how many events."""
        count = 0
        for arrival, until in self._bus.ready(BATCH):
            self._handlers.route(arrival, batch, until)
            count += 1
        return count

    def reduce(self, batch: Batch) -> int:
        """Have triggers take what is next; gives how many events."""
        count, share = 0, max(1, len(self._ordered))
        room = HELD_BACK_RECORDS // share, HELD_BACK_BYTES // share
        for number, ordered in self._ordered.items():
            for collected, late in ordered.take(BATCH - count, *room):
                self._handlers.reduce(collected, batch)
                count += 1
                batch.taken.setdefault(number, None)
                if late and collected.found is not None:
                    trigger = records.trigger_of(collected.found.key)
                    batch.counts.late[trigger] += 1
                    log.warning(
                        "an event for %.200s came %d ms too late for its order, and counts as if"
                        " it had come now",
                        *(trigger, late),
                    )
        return count

    def expired(self, number: int, until: int) -> None:
        """In a partition of the trigger topic it was decided what hasn't come before a time."""
        self._ordered[number].close(until)

    def set_positions(self, batch: Batch) -> None:
        """What is committed with the batch: whatever has changed."""
        for partition, committed in self._positions.items():
            number = partition.number
            if partition.topic == self._sensor.topic:
                position = self._bus.position(number)
                if position != committed:
                    batch.positions[partition] = position
                    until = self._bus.routed(number)
                    batch.routed[number] = Routed(until, not self._bus.is_log_time)
                continue
            ordered, read = self._ordered[number], self._read_to[number]
            position = ordered.position(read)
            if position != committed or number in batch.taken or partition in batch.positions:
                batch.positions[partition] = position
                batch.taken[number] = ordered.taken(read)

    def committed(self, batch: Batch) -> None:
        self._positions.update(batch.positions)
        self._taken.update(batch.taken)
        for number, routed in batch.routed.items():
            self._bus.committed(number, routed.until)

    def go_back(self) -> None:
        """What isn't committed is read again."""
        self._bus.go_back(self._positions)
        self._watermark.forget()  # it was about where these were read
        for number, taken in self._taken.items():
            self._ordered[number] = InOrder(taken)
            self._read_to[number] = self._positions[Partition(self._sensor.trigger_topic, number)]

    def balance(self) -> None:
        """Have nothing read on that is far ahead of the rest."""
        self._bus.balance()
