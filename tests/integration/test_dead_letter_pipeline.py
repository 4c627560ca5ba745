"""The dead-letter pipeline on a real Kafka and Spark: nothing lost, nothing counted twice."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from support.gate import only_chaos
from support.kafka import Kafka
from support.killed_jobs import STAGES, run_and_kill
from support.letters import REASONS, TRIGGERS, DeadLetters, compacted, held

from knafka.core import names
from knafka.core.dead_letter import REPLAY, Failure, Origin, dead_letter_of
from knafka.core.delivery import Reason
from knafka_jobs.command_options import FailureSelection
from knafka_jobs.compact.compact_run import fold_leftovers
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.job_errors import JobError
from knafka_jobs.replay import replay_run as replaying
from knafka_jobs.replay import spark_lanes
from knafka_jobs.replay.purge_run import purge, purgeable
from knafka_jobs.replay.replay_run import replay
from knafka_jobs.replay.send import events_sent_by
from knafka_jobs.report.datafusion_engine import DataFusionEngine
from knafka_jobs.report.report_run import make_report
from knafka_jobs.report.spark_engine import SparkEngine
from knafka_jobs.topic_offsets import BrokerName

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(1200),  # Spark starts twelve times here
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]

LARGE = 3_000_000

KILLS = int(os.environ.get("KNAFKA_KILLS", "1"))
"""Of the compaction: in one of its three stages; `make chaos` has ten, in each of them."""


def files(folder: Path) -> dict[Path, float]:
    return {each: each.stat().st_mtime for each in folder.rglob("*") if each.is_file()}


def test_kills_lose_nothing_and_count_nothing_twice(
    kafka: Kafka,
    dead: DeadLetters,
    client: KafkaClient,
    spark: SparkSession,
    spark_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """2,000 dead letters for each kill, the last third of them of events that failed before, 3
    Triggers, every reason; the compaction is killed by SIGKILL, in every stage in turn from one by
    chance on, between bursts of dead letters; the topics are emptied all the while."""
    written = KILLS * 2000
    events = written - written // 3
    seed = random.randrange(1000)
    dice = random.Random(seed)
    root = tmp_path / "tables"
    expected: Counter[tuple[str, str]] = Counter()
    log = tmp_path / "log"
    for run in range(KILLS):
        for number in range(run * 2000, (run + 1) * 2000):
            event = number % events
            trigger = TRIGGERS[event % 3]
            dead.add(trigger, event, REASONS[number % len(REASONS)])
            expected[trigger, str(event)] += 1
        dead.flush()
        command = ["compact", "--tables", str(root), "--broker", f"{dead.namespace}/main"]
        command += ["--bootstrap-servers", kafka.bootstrap_servers, "--keep-hours", "0"]
        run_and_kill(
            command, spark_environment, log, STAGES[(seed + run) % 3], dice.uniform(0, 2.5)
        )

    tables = Tables(spark, str(root))
    compacted(tables, client, dead)
    print(f"seed {seed}; {len(list(root.rglob('*.parquet')))} files", log.read_text())

    spans = client.dead_letter_topics(BrokerName(dead.namespace, "main")).values()
    everything = {
        (topic.name, partition, offset)
        for topic in spans
        for partition, span in topic.spans.items()
        for offset in range(span.end)
    }
    assert len(everything) == written
    in_table = held(tables)
    assert len(in_table) == written
    assert set(in_table) == everything
    rows = tables.read("failures").select("trigger", "id", "failures", "retries").collect()
    assert {(row["trigger"], row["id"]): row["failures"] for row in rows} == expected
    assert len(rows) == events
    assert sum(row["retries"] for row in rows) == 2 * written
    assert all(span.start == span.end for topic in spans for span in topic.spans.values())
    reasons = tables.read("records").groupBy("reason").count().collect()
    assert {row["reason"] for row in reasons} == {each.value for each in REASONS}


@pytest.mark.slice
def test_nothing_new_changes_nothing(
    dead: DeadLetters, client: KafkaClient, tables: Tables, tmp_path: Path
) -> None:
    for number in range(30):
        dead.add("mail", number)
    dead.flush()
    first = compacted(tables, client, dead, keep_hours=1)
    assert (first.topics, first.records, first.folded, first.deleted) == (3, 30, 30, 0)
    before = files(tmp_path / "tables")
    again = compacted(tables, client, dead, keep_hours=1)
    assert (again.records, again.folded, again.merged, again.deleted) == (0, 0, (), 0)
    assert files(tmp_path / "tables") == before
    last = compacted(tables, client, dead)
    assert (last.records, last.deleted) == (0, 30)
    told = make_report(DataFusionEngine(tables.root), None, datetime.now(UTC))
    assert (told.totals.events, told.totals.unresolved) == (30, 30)


def test_garbage_is_tabled_like_everything_else(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    dead.append("mail", None, None)
    dead.append("mail", [], b"")
    dead.append("mail", [("ce_id", b""), ("ce_id", b"\xff")], b"\x00\xff")
    dead.append("mail", [("ce_knafkareason", b"?"), ("ce_knafkaattempts", b"-1")], b"x" * 900_000)
    dead.add("mail", 1)
    # Times that Spark's Kafka source has no room for, and one that no calendar has.
    for number, time_ in enumerate(
        (-9_300_000_000_000_000, 0, -9_300_000_000_000_000, 0, -(10**15))
    ):
        dead.add("bill", 100 * number, at=time_)  # whose keys are one
    dead.add("bill", 8)
    # A transaction that was aborted, and one that wasn't: their markers are no records.
    theirs = Producer(
        {"bootstrap.servers": dead.bootstrap_servers, "transactional.id": dead.namespace}
    )
    theirs.init_transactions(30)
    for ends in (theirs.abort_transaction, theirs.commit_transaction):
        theirs.begin_transaction()
        theirs.produce(dead.topic("ship"), b"of somebody else", b"k")
        ends(30)
    dead.flush()
    client.topics_at_rest([dead.topic("ship")])  # a commit is told before it is in the partition
    said: list[str] = []
    assert compacted(tables, client, dead, progress=said.append).records == 12
    (line,) = (each for each in said if "an impossible timestamp" in each)
    assert line.startswith(f"3 records of {dead.topic('bill')}/")
    rows = tables.read("failures").collect()
    assert Counter(row["reason"] for row in rows) == {"undecodable-record": 5, "status": 7}
    assert make_report(SparkEngine(tables), None, datetime.now(UTC)).totals.events == 12
    topics = client.dead_letter_topics(BrokerName(dead.namespace, "main")).values()
    assert all(span.start == span.end for topic in topics for span in topic.spans.values())


@only_chaos
def test_a_topic_that_vanishes_or_is_made_anew_loses_nothing(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    for number in range(20):
        for trigger in TRIGGERS:
            dead.add(trigger, number)
    dead.flush()
    compacted(tables, client, dead, keep_hours=1)
    dead.delete(dead.topic("mail"), dead.topic("bill"))
    dead.make("bill")
    for number in range(100, 170):  # more than there were: offsets alone would tell nothing
        dead.add("bill", number)
    dead.add("ship", 500)
    dead.flush()
    result = compacted(tables, client, dead, keep_hours=1)
    assert (result.topics, result.records) == (2, 71)
    assert compacted(tables, client, dead).deleted == 91
    dead.make("mail")
    dead.add("mail", 600)
    dead.flush()
    assert compacted(tables, client, dead).records == 1
    counts = tables.read("failures").groupBy("trigger").count().collect()
    assert {row["trigger"]: row["count"] for row in counts} == {"mail": 21, "bill": 90, "ship": 21}


@only_chaos
def test_records_that_somebody_else_deleted_are_told_and_the_rest_is_read(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    for number in range(10):
        dead.append("mail", None, b"%d" % number, key=b"same partition")
    dead.flush()
    compacted(tables, client, dead, keep_hours=1)
    for number in range(10):
        dead.append("mail", None, b"%d" % number, key=b"same partition")
    dead.flush()
    spans = client.dead_letter_topics(BrokerName(dead.namespace, "main"))[dead.topic("mail")].spans
    (filled,) = [number for number, span in spans.items() if span.end == 20]
    client.delete_before({(dead.topic("mail"), filled): 15})
    result = compacted(tables, client, dead, keep_hours=1)
    assert (result.records, result.missed) == (5, 5)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("log", marks=only_chaos),
        pytest.param("data", marks=only_chaos),
        pytest.param("checkpoint", marks=only_chaos),
        "records",
    ],
)
def test_a_broken_table_deletes_nothing_from_the_topics(
    dead: DeadLetters, client: KafkaClient, tables: Tables, broken: str
) -> None:
    for number in range(20):
        dead.add("mail", number)
    dead.flush()
    compacted(tables, client, dead, keep_hours=1)
    for number in range(20, 30):
        dead.add("mail", number)
    dead.flush()
    root = Path(tables.root)
    match broken:
        case "log":
            shutil.rmtree(root / "records" / "_delta_log")
        case "data":
            for file in (root / "records").glob("day=*/*.parquet"):
                file.write_bytes(file.read_bytes()[:100])
        case "checkpoint":
            shutil.rmtree(root / "checkpoints")
        case "records":
            shutil.rmtree(root / "records")
    tables = Tables(tables.spark, tables.root)
    with pytest.raises(JobError, match=r"records|checkpoint"):
        compacted(tables, client, dead)
    spans = client.topics([dead.topic("mail")])[dead.topic("mail")].spans.values()
    assert sum(span.end - span.start for span in spans) == 30


def test_a_second_compaction_at_once_is_refused(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    with tables.locked(), pytest.raises(JobError, match="another compaction runs"):
        compacted(tables, client, dead)


class Interrupted(Exception):
    pass


def test_a_replay_that_is_cut_short_sends_each_event_once_in_all(
    dead: DeadLetters, client: KafkaClient, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1200):
        dead.add("mail", number)
    dead.add("bill", 1)
    dead.flush()
    compacted(tables, client, dead)

    def interrupt(line: str) -> None:
        if "sent" in line and not line.startswith("0 "):
            raise Interrupted(line)

    def say(line: str) -> None:
        pass

    selection = FailureSelection(trigger="mail")
    # In lanes, by Spark's workers; and first in one, as there is a rate.
    monkeypatch.setattr(replaying, "DRIVER_EVENTS", 0)
    monkeypatch.setattr(spark_lanes, "PROGRESS_LINE_INTERVAL", 0.0)
    with pytest.raises(Interrupted):
        replay(tables, client, selection, "r1", "me", 200, interrupt)
    with pytest.raises(JobError, match="another selection"):
        replay(tables, client, FailureSelection(), "r1", "me", None, say)
    with monkeypatch.context() as patch:
        patch.setattr(Tables, "has_locks", False)  # as on an object store
        with pytest.raises(JobError, match=r"the replay r1 .* is not finished: if it runs, wait"):
            replay(tables, client, FailureSelection(), None, "me", None, say)
    # Its id needn't be known.
    again = replay(tables, client, selection, None, "me", None, say)
    assert (again.replay_id, again.sent) == ("r1", 1200)
    with pytest.raises(JobError, match="finished and sent 1200"):
        replay(tables, client, selection, "r1", "me", None, say)
    with tables.locked("replay"), pytest.raises(JobError, match="another replay runs"):
        replay(tables, client, selection, "r2", "me", None, say)
    assert replay(tables, client, selection, "r2", "me", None, say).sent == 0

    name = names.replay_topic(dead.namespace, "main", "mail")
    there = list(events_sent_by(client, client.topics([name])[name], "r1"))
    assert len(there) == len({each.failure_id for each in there}) == 1200
    rows = tables.read("sent").collect()
    assert {(row["partition"], row["offset"]) for row in rows} == {
        (each.partition, each.offset) for each in there
    }


def test_a_replay_is_resolved_or_failed_again_in_the_next_report(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    for number in range(10):
        dead.add("mail", number)
    dead.flush()
    compacted(tables, client, dead)
    make_report(DataFusionEngine(tables.root), None, datetime.now(UTC))
    replay(tables, client, FailureSelection(), "r", "me", None, lambda line: None)
    settle(dead, client, 10, failed=3)
    compacted(tables, client, dead)
    told = make_report(DataFusionEngine(tables.root), None, datetime.now(UTC))
    run = told.replays[0]
    assert (run.sent, run.resolved, run.failed_again) == (10, 7, 3)
    assert (told.totals.events, told.totals.unresolved, told.totals.failures) == (10, 3, 13)
    assert told.changes.failed_again == 1


@only_chaos
def test_a_purge_without_a_selection_takes_what_a_replay_has_resolved(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    for number in range(5):
        dead.add("mail", number)
    dead.flush()
    compacted(tables, client, dead)
    replay(tables, client, FailureSelection(), "r", "me", None, lambda line: None)
    settle(dead, client, 5, failed=2)
    compacted(tables, client, dead)
    assert purgeable(tables, FailureSelection(), False).count() == 3
    assert purge(tables, FailureSelection(), False, partial(fold_leftovers, tables)) == 3
    assert compacted(tables, client, dead).folded == 0
    assert tables.read("failures").count() == 2


def settle(dead: DeadLetters, client: KafkaClient, events: int, failed: int) -> None:
    """Settle so many events of the replay topic as a dispatcher does; the first of them fail."""
    name = names.replay_topic(dead.namespace, "main", "mail")
    dispatcher = client.consumer(**{"group.id": name, "auto.offset.reset": "earliest"})
    dispatcher.subscribe([name])
    for _ in range(events):
        record = dispatcher.poll(20)
        assert record is not None
        headers: dict[str, bytes] = dict(record.headers() or [])  # type: ignore[arg-type]
        assert headers.keys() == {"ce_specversion", "ce_id", "ce_source", "ce_type", REPLAY}
        assert record.value() == b"data of " + headers["ce_id"]
        if int(headers["ce_id"]) < failed:
            now = time.time()
            failure = Failure("http://mail/", Reason.STATUS, 1, now, now, 503)
            partition, offset = record.partition(), record.offset()
            assert partition is not None
            assert offset is not None
            origin = Origin(dead.namespace, "main", "mail", name, partition, offset)
            letter = dead_letter_of([*headers.items()], record.value(), failure, origin)
            dead.append("mail", *letter)
    dead.flush()
    dispatcher.commit(asynchronous=False)
    dispatcher.close()


@only_chaos
def test_an_event_as_large_as_its_dead_letter_topic_takes_is_replayed(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    """Also by way of a replay topic that was made when the dead-letter topic took less."""
    mail, bill = ((dead.namespace, "main", trigger) for trigger in ("mail", "bill"))
    client.create_topic(names.replay_topic(*bill), 1, 1, {})
    # Whoever may write to a topic may name anybody: those alone are left out.
    for name in ("a" * 300, "gone", "a b/*"):
        forged = Failure("http://mail/", Reason.STATUS, 1, 1.0, 2.0, 503)
        whose = Origin(dead.namespace, "main", name, "broker", 0, 0)
        event = [("ce_specversion", b"1.0"), ("ce_id", name.encode()), ("ce_source", b"/s")]
        dead.append("ship", *dead_letter_of([*event, ("ce_type", b"t")], b"x", forged, whose))
    for trigger in ("mail", "bill"):
        client.raise_record_limit(dead.topic(trigger), LARGE + 100_000)
        origin = Origin(dead.namespace, "main", trigger, "broker", 0, 0)
        failure = Failure("http://mail/", Reason.STATUS, 1, 1.0, 2.0, 503)
        headers = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s")]
        headers.append(("ce_type", b"t"))
        dead.append(trigger, *dead_letter_of(headers, os.urandom(LARGE), failure, origin))
    dead.flush()
    assert compacted(tables, client, dead).records == 5
    done = replay(tables, client, FailureSelection(), "r", "me", None, lambda line: None)
    assert (done.sent, done.left_out, len(done.problems)) == (2, 3, 3)
    with pytest.raises(JobError, match=r"1 event of .*/gone: .* has no dead-letter topic"):
        replay(
            tables, client, FailureSelection(trigger="gone"), None, "me", None, lambda line: None
        )
    for to in (mail, bill):
        name = names.replay_topic(*to)
        assert len(list(events_sent_by(client, client.topics([name])[name], "r"))) == 1
        assert client.record_limit(name) == LARGE + 100_000
