"""Each dead letter is in the table once, whichever topics a run of the compaction reads."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.kafka import Kafka
from support.letters import PARTITIONS, TRIGGERS, Letters, compacted, held

from knafka_jobs.compact import Compacted, Options, compact, dead_letters_in
from knafka_jobs.compaction import FOLDED, failures_of
from knafka_jobs.errors import JobError
from knafka_jobs.failures import Selection
from knafka_jobs.ingest import Span
from knafka_jobs.replaying import purge
from knafka_jobs.reporting import report
from knafka_jobs.schema import RECORDS
from knafka_jobs.storage import Tables, explained
from knafka_jobs.topics import Connection, Topic, Topics

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]


@pytest.fixture
def other(kafka: Kafka) -> Iterator[Letters]:
    """Another Broker's."""
    made = Letters(kafka.bootstrap_servers, f"other{uuid.uuid4().hex[:8]}")
    yield made
    made.clean()


class Forgetful(Topics):
    """A Kafka whose metadata lack a topic for a moment."""

    def __init__(self, bootstrap_servers: str, missing: str) -> None:
        super().__init__(Connection(bootstrap_servers))
        self.missing = missing

    def dead_letters(self, broker: tuple[str, str] | None = None) -> dict[str, Topic]:
        found = super().dead_letters(broker)
        return {name: topic for name, topic in found.items() if name != self.missing}


def everything(topics: Topics, *brokers: Letters) -> list[tuple[str, int, int]]:
    """Every position that ever held a dead letter."""
    found: Mapping[str, Topic] = topics.dead_letters()
    return sorted(
        (name, partition, offset)
        for name, topic in found.items()
        if any(f"-{each.namespace}-" in name for each in brokers)
        for partition, span in topic.spans.items()
        for offset in range(span.end)
    )


def everywhere(tables: Tables, topics: Topics) -> Compacted:
    """A run over all Brokers."""
    return compact(tables, topics, Options(keep_hours=1), lambda line: None)


def test_runs_over_all_brokers_and_over_one_table_each_dead_letter_once(
    dead: Letters, other: Letters, topics: Topics, tables: Tables
) -> None:
    for number in range(100):
        for trigger in TRIGGERS:
            dead.bury(trigger, number)
            other.bury(trigger, number)
    dead.flush()
    other.flush()
    everywhere(tables, topics)
    for number in range(5):
        dead.bury("mail", 100 + number)
        other.bury("mail", 100 + number)
    dead.flush()
    other.flush()
    assert compacted(tables, topics, dead, keep_hours=1).records == 5
    assert everywhere(tables, topics).records == 5
    assert compacted(tables, topics, other, keep_hours=1).records == 0
    assert everywhere(tables, topics).records == 0
    assert sorted(held(tables)) == everything(topics, dead, other)
    assert report(tables, None, datetime.now(UTC)).totals.failures == 610


def test_a_topic_that_the_metadata_lack_for_a_moment_is_read_where_it_was_left(
    kafka: Kafka, dead: Letters, topics: Topics, tables: Tables
) -> None:
    for number in range(50):
        for trigger in TRIGGERS:
            dead.bury(trigger, number)
    dead.flush()
    compacted(tables, topics, dead, keep_hours=1)
    dead.bury("mail", 50)
    dead.bury("bill", 50)
    dead.flush()
    forgetful = Forgetful(kafka.bootstrap_servers, dead.topic("mail"))
    assert compacted(tables, forgetful, dead, keep_hours=1).records == 1
    assert compacted(tables, topics, dead, keep_hours=1).records == 1
    assert sorted(held(tables)) == everything(topics, dead)


def test_a_new_topic_whose_first_records_are_deleted_is_read_from_there(
    dead: Letters, topics: Topics, tables: Tables
) -> None:
    """And does not end the runs for good, as it would if it joined a stream that goes on."""
    dead.delete(dead.topic("bill"))
    dead.bury("mail", 1)
    dead.flush()
    compacted(tables, topics, dead, keep_hours=1)
    dead.make("bill")
    for number in range(10):
        dead.append("bill", None, b"%d" % number, key=b"one partition")
    dead.flush()
    bill = dead.topic("bill")
    spans = topics.dead_letters((dead.namespace, "main"))[bill].spans
    (filled,) = [number for number, span in spans.items() if span.end]
    topics.delete_before({(bill, filled): 4})
    assert compacted(tables, topics, dead, keep_hours=1).records == 6
    assert len(spans) == PARTITIONS


def test_what_an_older_version_tabled_twice_is_reported_and_then_counted_once(
    dead: Letters, topics: Topics, tables: Tables
) -> None:
    for number in range(12):
        dead.bury("mail", number)
        dead.bury("bill", number)
    dead.flush()
    found = topics.dead_letters((dead.namespace, "main"))
    ranges = {
        (topic.name, partition): span
        for topic in found.values()
        for partition, span in topic.spans.items()
        if span.end
    }
    rows = dead_letters_in(tables, topics, ranges, found)
    tables.append(rows, "records")
    tables.append(rows.where(f"topic = '{dead.topic('mail')}' AND offset > 0"), "records")
    twice = 36 - len([each for each in ranges if each[0] == dead.topic("mail")])
    tables.fold_stream(failures_of, FOLDED)

    told = report(tables, None, datetime.now(UTC))
    assert (told.totals.events, told.totals.failures) == (24, twice)
    assert all(len(group.examples) == 5 for group in told.groups)

    said: list[str] = []
    options = Options((dead.namespace, "main"), keep_hours=1)
    assert compact(tables, topics, options, said.append).records == 0
    assert f"{twice - 24} dead letters were in the table more than once" in "\n".join(said)
    assert sorted(held(tables)) == everything(topics, dead)
    counted = tables.read("failures").select("failures", "retries", "history").collect()
    assert {(row["failures"], row["retries"], len(row["history"])) for row in counted} == {
        (1, 2, 1)
    }
    dead.bury("mail", 0)
    dead.flush()
    again = compacted(tables, topics, dead, keep_hours=1)
    assert (again.records, again.folded) == (1, 1)


def test_what_was_purged_does_not_come_back(dead: Letters, topics: Topics, tables: Tables) -> None:
    """Though its topic still has it, and whichever topics the next run reads."""
    for number in range(10):
        dead.bury("mail", number)
        dead.bury("bill", number)
    dead.flush()
    compacted(tables, topics, dead, keep_hours=1)
    assert purge(tables, Selection(trigger="mail"), unresolved=True, dry_run=False) == 10
    dead.delete(dead.topic("ship"))
    assert compacted(tables, topics, dead, keep_hours=1).records == 0
    assert tables.read("records").count() == 10


def test_spark_reads_the_ranges_it_is_given_and_nothing_else(
    dead: Letters, topics: Topics, tables: Tables
) -> None:
    """Neither partitions that it is not given nor records that come later; and where a range is
    not there any more it fails, and appends nothing. (test_ingest_properties.py relies on it.)"""
    for number in range(10):
        dead.append("mail", None, b"%d" % number, key=b"one partition")
        dead.append("bill", None, b"%d" % number, key=b"one partition")
    dead.flush()
    mail, bill = dead.topic("mail"), dead.topic("bill")
    found = topics.described([mail, bill])
    (filled,) = [number for number, span in found[mail].spans.items() if span.end]
    ranges = {(mail, filled): Span(3, 7), (bill, filled): Span(9, 10)}
    rows = dead_letters_in(tables, topics, ranges, found)
    places = [(mail, filled, offset) for offset in range(3, 7)] + [(bill, filled, 9)]
    tables.note(5, {})
    assert tables.append_batch(rows, 5, None) == 5
    assert sorted(held(tables)) == sorted(places)
    assert tables.last_batch() == 5

    with pytest.raises(JobError, match="another compaction"):
        tables.append_batch(rows, 6, None)
    topics.delete_before({(mail, filled): 5})
    with pytest.raises(JobError), explained("reading"):
        tables.append_batch(rows, 6, 5)
    dead.delete(bill)
    rows = dead_letters_in(tables, topics, {(bill, filled): Span(9, 10)}, found)
    with pytest.raises(JobError), explained("reading"):
        tables.append_batch(rows, 6, 5)
    assert sorted(held(tables)) == sorted(places)
    assert tables.last_batch() == 5


def test_of_two_compactions_without_a_lock_only_one_appends(
    tables: Tables, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an object store: the one that writes later is passed over by Delta, and says why."""
    row = tables.rows([(None,) * len(RECORDS)], RECORDS)
    tables.id("records")
    tables.note(1, {})
    later = Tables(spark, tables.root)
    write = later._write

    def write_after_the_other(*arguments: Any) -> None:
        assert tables.append_batch(row, 2, None) == 1
        write(*arguments)

    monkeypatch.setattr(later, "_write", write_after_the_other)
    with pytest.raises(JobError, match="another compaction runs"):
        later.append_batch(row, 1, None)
    assert tables.read("records").count() == 1
