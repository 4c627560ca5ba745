"""Each dead letter is in the table once, whichever topics a run of the compaction reads."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.gate import only_chaos
from support.kafka import Kafka
from support.letters import PARTITIONS, TRIGGERS, DeadLetters, compacted, held

from knafka_jobs.command_options import CompactOptions, FailureSelection
from knafka_jobs.compact.checkpoints import Checkpoints
from knafka_jobs.compact.compact_run import CompactResult, compact, fold_leftovers
from knafka_jobs.compact.reading import read_ranges
from knafka_jobs.io.delta import Tables, explain_spark_errors
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.job_errors import JobError
from knafka_jobs.replay.purge_run import purge
from knafka_jobs.report.report_run import make_report
from knafka_jobs.report.spark_engine import SparkEngine
from knafka_jobs.schema import RECORDS
from knafka_jobs.topic_offsets import BrokerName, OffsetSpan, ReadState, TopicState

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]


@pytest.fixture
def other(kafka: Kafka) -> Iterator[DeadLetters]:
    """Another Broker's."""
    made = DeadLetters(kafka.bootstrap_servers, f"other{uuid.uuid4().hex[:8]}")
    yield made
    made.clean()


class Forgetful(KafkaClient):
    """A Kafka whose metadata lack a topic for a moment."""

    def __init__(self, bootstrap_servers: str, missing: str) -> None:
        super().__init__(KafkaConnection(bootstrap_servers))
        self.missing = missing

    def dead_letter_topics(self, broker: BrokerName | None = None) -> dict[str, TopicState]:
        found = super().dead_letter_topics(broker)
        return {name: topic for name, topic in found.items() if name != self.missing}


def everything(client: KafkaClient, *brokers: DeadLetters) -> list[tuple[str, int, int]]:
    """Every position that ever held a dead letter."""
    found: Mapping[str, TopicState] = client.dead_letter_topics()
    return sorted(
        (name, partition, offset)
        for name, topic in found.items()
        if _is_of(name, *brokers)
        for partition, span in topic.spans.items()
        for offset in range(span.end)
    )


def _is_of(topic: str, *brokers: DeadLetters) -> bool:
    """Other tests leave dead letters on the same Kafka."""
    return any(f"-{each.namespace}-" in topic for each in brokers)


def everywhere(tables: Tables, client: KafkaClient) -> CompactResult:
    """A run over all Brokers."""
    return compact(tables, client, CompactOptions(keep_hours=1), lambda line: None)


def test_runs_over_all_brokers_and_over_one_table_each_dead_letter_once(
    dead: DeadLetters, other: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    for number in range(100):
        for trigger in TRIGGERS:
            dead.add(trigger, number)
            other.add(trigger, number)
    dead.flush()
    other.flush()
    everywhere(tables, client)
    for number in range(5):
        dead.add("mail", 100 + number)
        other.add("mail", 100 + number)
    dead.flush()
    other.flush()
    assert compacted(tables, client, dead, keep_hours=1).records == 5
    assert everywhere(tables, client).records == 5
    assert compacted(tables, client, other, keep_hours=1).records == 0
    assert everywhere(tables, client).records == 0
    theirs = [each for each in held(tables) if _is_of(each[0], dead, other)]
    assert sorted(theirs) == everything(client, dead, other)
    failures = {
        broker: make_report(SparkEngine(tables), broker, datetime.now(UTC)).totals.failures
        for broker in (BrokerName(dead.namespace, "main"), BrokerName(other.namespace, "main"))
    }
    assert list(failures.values()) == [305, 305]


@only_chaos
def test_a_topic_that_the_metadata_lack_for_a_moment_is_read_where_it_was_left(
    kafka: Kafka, dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    for number in range(50):
        for trigger in TRIGGERS:
            dead.add(trigger, number)
    dead.flush()
    compacted(tables, client, dead, keep_hours=1)
    dead.add("mail", 50)
    dead.add("bill", 50)
    dead.flush()
    forgetful = Forgetful(kafka.bootstrap_servers, dead.topic("mail"))
    assert compacted(tables, forgetful, dead, keep_hours=1).records == 1
    assert compacted(tables, client, dead, keep_hours=1).records == 1
    assert sorted(held(tables)) == everything(client, dead)


@only_chaos
def test_a_new_topic_whose_first_records_are_deleted_is_read_from_there(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    """And does not end the runs for good, as it would if it joined a stream that goes on."""
    dead.delete(dead.topic("bill"))
    dead.add("mail", 1)
    dead.flush()
    compacted(tables, client, dead, keep_hours=1)
    dead.make("bill")
    for number in range(10):
        dead.append("bill", None, b"%d" % number, key=b"one partition")
    dead.flush()
    bill = dead.topic("bill")
    spans = client.dead_letter_topics(BrokerName(dead.namespace, "main"))[bill].spans
    (filled,) = [number for number, span in spans.items() if span.end]
    client.delete_before({(bill, filled): 4})
    assert compacted(tables, client, dead, keep_hours=1).records == 6
    assert len(spans) == PARTITIONS


def test_what_was_purged_does_not_come_back(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    """Though its topic still has it, and whichever topics the next run reads."""
    for number in range(10):
        dead.add("mail", number)
        dead.add("bill", number)
    dead.flush()
    compacted(tables, client, dead, keep_hours=1)
    assert (
        purge(tables, FailureSelection(trigger="mail"), True, partial(fold_leftovers, tables)) == 10
    )
    dead.delete(dead.topic("ship"))
    assert compacted(tables, client, dead, keep_hours=1).records == 0
    assert tables.read("records").count() == 10


@only_chaos
def test_what_was_purged_is_deleted_from_its_topic_with_the_rest(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    """What was purged once stopped the deletion of all that lay behind it, for good."""
    for number in range(10):
        dead.append("mail", None, b"%d" % number, key=b"one partition")
    dead.flush()
    compacted(tables, client, dead, keep_hours=1)
    assert (
        purge(tables, FailureSelection(where="offset = 4"), True, partial(fold_leftovers, tables))
        == 1
    )
    assert compacted(tables, client, dead).deleted == 10
    assert tables.is_empty("purged")
    dead.append("mail", None, b"10", key=b"one partition")
    dead.flush()
    assert compacted(tables, client, dead).deleted == 1


def test_spark_reads_the_ranges_it_is_given_and_nothing_else(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    """Neither partitions that it is not given nor records that come later; and where a range is
    not there any more it fails, and appends nothing. (test_ingest_properties.py relies on it.)"""
    for number in range(10):
        dead.append("mail", None, b"%d" % number, key=b"one partition")
        dead.append("bill", None, b"%d" % number, key=b"one partition")
    dead.flush()
    mail, bill = dead.topic("mail"), dead.topic("bill")
    found = client.topics([mail, bill])
    (filled,) = [number for number, span in found[mail].spans.items() if span.end]
    names = {topic.id: name for name, topic in found.items()}
    ids = {name: topic.id for name, topic in found.items()}
    ranges = {(ids[mail], filled): OffsetSpan(3, 7), (ids[bill], filled): OffsetSpan(9, 10)}
    read = dict.fromkeys(ranges, ReadState(0))
    rows = read_ranges(tables, client, ranges, read, names)
    places = [(mail, filled, offset) for offset in range(3, 7)] + [(bill, filled, 9)]
    checkpoints = Checkpoints(tables)
    checkpoints.save_offsets(5, {})
    assert checkpoints.append_batch(rows, 5, None) == 5
    assert sorted(held(tables)) == sorted(places)
    assert checkpoints.last_batch() == 5

    with pytest.raises(JobError, match="another compaction"):
        checkpoints.append_batch(rows, 6, None)
    client.delete_before({(mail, filled): 5})
    with pytest.raises(JobError), explain_spark_errors("reading"):
        checkpoints.append_batch(rows, 6, 5)
    dead.delete(bill)
    rows = read_ranges(tables, client, {(ids[bill], filled): OffsetSpan(9, 10)}, read, names)
    with pytest.raises(JobError), explain_spark_errors("reading"):
        checkpoints.append_batch(rows, 6, 5)
    assert sorted(held(tables)) == sorted(places)
    assert checkpoints.last_batch() == 5


def test_of_two_compactions_without_a_lock_only_one_appends(
    tables: Tables, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an object store: the one that writes later is passed over by Delta, and says why."""
    row = tables.rows([(None,) * len(RECORDS)], RECORDS)
    tables.table_id("records")
    first = Checkpoints(tables)
    first.save_offsets(1, {})
    later = Tables(spark, tables.root)
    write = later._write

    def write_after_the_other(*arguments: Any) -> None:
        assert first.append_batch(row, 2, None) == 1
        write(*arguments)

    monkeypatch.setattr(later, "_write", write_after_the_other)
    with pytest.raises(JobError, match="another compaction runs"):
        Checkpoints(later).append_batch(row, 1, None)
    assert tables.read("records").count() == 1
