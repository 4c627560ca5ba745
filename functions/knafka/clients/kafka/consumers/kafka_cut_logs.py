"""Starts partitions so that a log that was cut is noticed, and finds where it was cut.

    committed: 20, epoch 0      log: 0 ... 4 | 5 ... 99      epoch 0 ends at 5: read on from there
                                     epoch 0 | epoch 1

An unclean election may take a log's end away. New records get the offsets of lost ones, and a group
that continues at its commit never reads the new records below that. The commit's leader epoch shows
the loss: Kafka says where that epoch ends (KIP-320). librdkafka (2.16.0) asks Kafka for the end
when a leader changes and after a seek, but not when a partition is assigned, so every partition is
sought after its assignment. librdkafka reports a cut as an error, and names the cut's offset only
in the error's text.

Not here: what a reader does with the partition (`kafka_membership`, `kafka_positioned`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from knafka.clients.kafka.kafka_client import log_error_of
from knafka.clients.kafka.kafka_commits import NO_EPOCH, end_epochs, epoch_of

SEEK_TIMEOUT: Final = 5.0
"""Seconds within which librdkafka must have started an assigned partition. That takes less than a
millisecond, unless the partition's former assignment has not ended yet."""
SEEK_INTERVAL: Final = 0.005
"""Seconds between two tries to seek in a partition that isn't started yet."""
EPOCH_TIMEOUT: Final = 5.0
"""Seconds that Kafka may take to say in which leader epoch a cut log ends now; it takes
milliseconds."""

_EPOCH_END: Final = re.compile(r"broker end offset is (\d+) \(offset leader epoch (\d+)\)")
"""Finds in the text of librdkafka's error the end offset and the number of a leader epoch: the
position's epoch or, if the log has lost that, the last epoch before it."""


def assign_checked(consumer: Consumer, starts: Sequence[TopicPartition]) -> None:
    """Assign partitions, and start to read each at its position in `starts`. If the position has a
    leader epoch, librdkafka first asks Kafka where that epoch ends; if it ends below the position,
    the log was cut, and a poll returns an error of `LOST_OFFSET_ERRORS` instead of records. Raises
    `LogError` if a partition can't be assigned or sought."""
    assigned = [TopicPartition(start.topic, start.partition) for start in starts]
    checked = [start for start in starts if start.offset > 0 and epoch_of(start) != NO_EPOCH]
    try:
        # Paused first: else librdkafka would send a fetch before the seek. The fetch may take
        # `fetch.wait.max.ms`, for an answer that is thrown away; or its answer reports the lost
        # offset, which the seek reports, too.
        sought = [TopicPartition(start.topic, start.partition) for start in checked]
        for partition in sought:
            # librdkafka can't pause a partition that it doesn't know; this makes it known.
            consumer.get_watermark_offsets(partition, cached=True)
        consumer.pause(sought)
        consumer.incremental_assign(list(starts))
        for start in checked:
            _seek(consumer, start)
        # librdkafka keeps a pause beyond the end of an assignment.
        consumer.resume(assigned)
    except KafkaException as error:
        raise log_error_of(error.args[0]) from error


def _seek(consumer: Consumer, start: TopicPartition) -> None:
    """Seek to the position `start` in a paused partition that was just assigned. Raises
    `KafkaException` if that isn't done within `SEEK_TIMEOUT` seconds."""
    deadline = time.monotonic() + SEEK_TIMEOUT
    while True:
        try:
            consumer.seek(start)
        except KafkaException as error:
            # `_STATE`: librdkafka has not started the partition yet.
            if error.args[0].code() != KafkaError._STATE or time.monotonic() > deadline:
                raise
            time.sleep(SEEK_INTERVAL)
        else:
            return


def cut_of(consumer: Consumer, message: Message) -> TopicPartition | None:
    """Return the offset at which a partition's log was cut, with the leader epoch that ends there;
    below that offset, the log is still the one that was read. `message` reports an error of
    `LOST_OFFSET_ERRORS`. May block for `EPOCH_TIMEOUT` seconds.

    Returns None if the text of librdkafka's error doesn't name the offset, or if Kafka doesn't say
    in time which leader epoch the log ends in. Also None if that is no later epoch: then no
    election has cut the log, but its topic was created anew."""
    topic, number, error = message.topic(), message.partition(), message.error()
    if topic is None or number is None or error is None:
        return None
    if (match := _EPOCH_END.search(error.str())) is None:
        return None
    cut = TopicPartition(topic, number, int(match[1]), "", int(match[2]))
    end_epoch = end_epochs(consumer, [cut], EPOCH_TIMEOUT).get((topic, number), NO_EPOCH)
    return cut if end_epoch > epoch_of(cut) else None


def restart_of(consumer: Consumer, message: Message, settled: int | None) -> TopicPartition:
    """Return the position from which a partition must be read again after its log was cut or
    created anew: the cut (`cut_of`) or `settled`, whichever is lower; the log's start if one of
    them is unknown. `settled`: the offset below which all records are settled; None: unknown.
    `message` reports an error of `LOST_OFFSET_ERRORS`. May block for `EPOCH_TIMEOUT` seconds."""
    cut = None if settled is None else cut_of(consumer, message)
    if cut is None or settled is None:
        return TopicPartition(str(message.topic()), int(message.partition() or 0), OFFSET_BEGINNING)
    cut.offset = min(cut.offset, settled)
    return cut
