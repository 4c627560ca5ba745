"""Dead-letters records, firings and held events that a Sensor can't handle, and logs them.

    a record raises --------------> a dead letter with the event     the others go on
    a firing can't be written ----> one that names its events        they are held no more
    what is held can't be used ---> one that names its events        they are held no more

A trigger of a Sensor holds events until its condition is true; then it fires: an action is written.
Not here: the contents of dead letters (`core.sensor.letters`), and writing them (`batch`).
"""

from __future__ import annotations

import logging

from knafka.core.delivery import Reason
from knafka.core.events.kafka_binding import Draft, RecordHeaders
from knafka.core.sensor import letters
from knafka.core.sensor.held import Firing
from knafka.observability import RateLimitedFilter
from knafka.ports.log import Record
from knafka.sensor.batch import Batch

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))


def dead_letter_record(
    record: Record,
    headers: RecordHeaders | None,
    error: Exception,
    batch: Batch,
    trigger: str | None = None,
) -> None:
    """Add a dead letter of a record to the batch because handling it raised `error` (BUS-S11), and
    log the error. `headers` are those of the record (None: it has none, or they can't be read); the
    caller passes them on as a client returns them only once. `trigger` is the only trigger for
    which the record failed; None: it failed for all triggers."""
    topic, number, offset = record.topic(), record.partition(), record.offset()
    failure = letters.failure_of(error)
    draft = Draft(record.key(), headers or [], record.value())
    batch.add_dead_letter_of_record((topic, number, offset), draft, failure, trigger)
    reason, failure_text = failure
    if reason is Reason.INTERNAL_ERROR:
        log.error(
            "the event at %d of %s/%d is dead-lettered because of a bug of ours",
            offset,
            topic,
            number,
            exc_info=error,
        )
    elif reason is Reason.UNDECODABLE:
        batch.counts.undecodable += 1
        log.error("the record at %d of %s/%d is no event: %s", offset, topic, number, failure_text)
    else:
        log.error(
            "the event at %d of %s/%d is dead-lettered: %s", offset, topic, number, failure_text
        )


def fire_or_dead_letter(number: int, key: str, firing: Firing, batch: Batch) -> None:
    """Add the action of a firing to the batch, or a dead letter that names its events if no action
    can be written (KN-DLV-09). `key`: the trigger and its correlation key (`records.key_of`);
    `number`: the key's partition of the trigger topic."""
    last = firing.last
    try:
        # With the time, as another event may have the same offset: the topic may have been deleted
        # and created again.
        batch.fire(key, firing, f"t{number}.{last.offset}.{last.at}")
    except Exception as error:
        failure = letters.failure_of(error)
        batch.add_dead_letter_of_events(number, key, firing.events, failure)
        count, failure_text = len(firing.events), failure[1]
        log.error(
            "a firing of %.200s with %d events is dead-lettered: %s", key, count, failure_text
        )


def dead_letter_held_events(number: int, key: str, error: Exception, batch: Batch) -> None:
    """Drop the events held for one trigger and correlation key, because handling them raised
    `error`: log the error, and add a dead letter that names the events to the batch. `key`: that
    trigger and correlation key (`records.key_of`); `number`: the key's partition of the trigger
    topic."""
    log.error("the events held for %.200s can't be handled, and are dropped", key, exc_info=error)
    batch.drop_held(number, key, letters.failure_of(error))  # also adds the dead letter
