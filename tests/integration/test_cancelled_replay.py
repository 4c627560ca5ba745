"""A replay that is cancelled, on a real Kafka: it ends, and the rest can be sent by another."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.gate import only_chaos
from support.letters import DeadLetters, compacted
from typer.testing import CliRunner

from knafka.core import names
from knafka_cli.command_line import app
from knafka_jobs.command_options import FailureSelection
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.job_errors import JobError
from knafka_jobs.lookup.cancel import cancel_replay
from knafka_jobs.replay import replay_run as replaying
from knafka_jobs.replay import spark_lanes
from knafka_jobs.replay.replay_run import replay
from knafka_jobs.replay.runs import begin_replay
from knafka_jobs.replay.send import events_sent_by
from knafka_jobs.report.replay_list import list_replays

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]

EVENTS = 900


@only_chaos
@pytest.mark.parametrize("driver_events", [0, 5_000], ids=["workers", "driver"])
def test_a_cancelled_replay_ends_and_what_it_has_not_sent_another_one_sends(
    driver_events: int,
    dead: DeadLetters,
    client: KafkaClient,
    tables: Tables,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(EVENTS):
        dead.add("mail", number)
    dead.flush()
    compacted(tables, client, dead)
    monkeypatch.setattr(replaying, "DRIVER_EVENTS", driver_events)
    monkeypatch.setattr(spark_lanes, "PROGRESS_LINE_INTERVAL", 0.0)
    monkeypatch.setattr(replaying, "CANCEL_CHECK_INTERVAL", 0.2)
    lines: list[str] = []
    name = names.replay_topic(dead.namespace, "main", "mail")

    def sent_so_far() -> int:
        return sum(
            span.end for topic in client.topics([name]).values() for span in topic.spans.values()
        )

    has_ended = threading.Event()

    def cancel_once_it_sends() -> None:
        while not sent_so_far():
            if has_ended.wait(0.1):
                return
        cancel_replay(TableFiles(tables.root), "r1", "ann", datetime.now(UTC))

    with ThreadPoolExecutor(1) as pool:
        cancelling = pool.submit(cancel_once_it_sends)
        try:
            done = replay(tables, client, FailureSelection(), "r1", "me", 100, lines.append)
        finally:
            has_ended.set()
        cancelling.result(30)
    assert done.cancelled_by == "ann"
    (listed,) = list_replays(TableFiles(tables.root), 9, datetime.now(UTC))
    assert (listed.id, listed.state, listed.total) == ("r1", "cancelled", EVENTS)
    assert listed.sent == done.sent
    assert 0 < done.sent < EVENTS
    assert lines[-1] == "cancelled by ann"
    rest = replay(tables, client, FailureSelection(), None, "me", None, lines.append)
    assert rest.replay_id != "r1"
    assert rest.sent == EVENTS - done.sent

    topic = client.topics([name])[name]
    there = [list(events_sent_by(client, topic, each.replay_id)) for each in (done, rest)]
    assert [len(each) for each in there] == [done.sent, rest.sent]
    assert len({each.failure_id for sent in there for each in sent}) == EVENTS
    with pytest.raises(JobError, match="finished and sent"):
        cancel_replay(TableFiles(tables.root), "r1", "ann", datetime.now(UTC))


def test_a_replay_that_was_killed_and_then_cancelled_is_ended_by_the_next_which_sends_all(
    dead: DeadLetters, client: KafkaClient, tables: Tables
) -> None:
    """Its process can't look for the cancellation any more, and the next one is a new wish."""
    for number in range(3):
        dead.add("mail", number)
    dead.flush()
    compacted(tables, client, dead)
    lines: list[str] = []
    everything = FailureSelection()
    killed = begin_replay(tables, client, str(everything), None, "me", lines.append, is_alone=True)[
        "replay_id"
    ]
    cancel_replay(TableFiles(tables.root), killed, "ann", datetime.now(UTC))
    done = replay(tables, client, everything, None, "me", None, lines.append)
    assert (done.sent, done.cancelled_by) == (3, None)
    newest, first = list_replays(TableFiles(tables.root), 9, datetime.now(UTC))
    assert (newest.id, newest.state) == (done.replay_id, "finished")
    assert (first.id, first.state, first.sent) == (killed, "cancelled", 0)


def test_a_replay_that_nobody_began_cannot_be_cancelled(tables: Tables) -> None:
    for name in ("records", "failures", "replays"):
        tables.read(name)  # makes it
    command = ["dead-letters", "cancel", "r9", f"--tables={tables.root}"]
    result = CliRunner().invoke(app, command)
    assert "there is no replay r9: unfinished are none" in str(result.exception)
    assert not Path(tables.root, "cancellations").exists()
