"""A replay that edits: on a real Kafka, sent by the driver and by Spark's workers."""

from __future__ import annotations

import pytest
from support.gate import only_chaos
from support.letters import DeadLetters, compacted

from knafka.core import names
from knafka.core.dead_letter import REPLAY
from knafka_jobs.command_options import FailureSelection
from knafka_jobs.event_edits import EventEdits
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_records import KafkaRecords
from knafka_jobs.job_errors import JobError
from knafka_jobs.replay import replay_run as replaying
from knafka_jobs.replay.replay_run import replay

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]

EDITS = EventEdits.parse(["type=test.v2"], [], ["/total=2"])


@only_chaos
@pytest.mark.parametrize("driver_events", [0, 5_000], ids=["workers", "driver"])
def test_edited_events_are_sent_and_what_cannot_be_edited_is_counted_and_stays(
    driver_events: int,
    dead: DeadLetters,
    client: KafkaClient,
    tables: Tables,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(6):
        dead.add("mail", number, data=b"no json" if number == 3 else b'{"total": "1"}')
    dead.flush()
    compacted(tables, client, dead)
    monkeypatch.setattr(replaying, "DRIVER_EVENTS", driver_events)

    def send(edits: EventEdits, replay_id: str | None = None) -> replaying.ReplayRunResult:
        return replay(
            tables, client, FailureSelection(), replay_id, "me", None, lambda _: None, edits=edits
        )

    done = send(EDITS)
    assert (done.sent, done.left_out) == (5, 1)
    assert done.problems == ("1 event not edited: the data are not JSON",)
    name = names.replay_topic(dead.namespace, "main", "mail")
    topic = client.topics([name])[name]
    log = KafkaRecords(client, {topic.id: name})
    records = [
        record
        for partition, span in topic.spans.items()
        for record in log.messages((topic.id, partition), span)
    ]
    assert {record.value() for record in records} == {b'{"total": 2}'}
    for record in records:
        headers = dict(record.headers() or ())
        assert headers.pop(REPLAY).startswith(done.replay_id.encode())
        assert headers["ce_type"] == b"test.v2"
        assert headers["ce_knafkaedited"] == b"type,data"
    (run,) = tables.read("replays").collect()
    assert run["selection"] == f"everything {EDITS}"
    letters = tables.read("records").collect()
    assert {bytes(row["value"]) for row in letters} == {b"no json", b'{"total": "1"}'}

    with pytest.raises(JobError, match="1 event not edited"):
        send(EDITS)
    assert send(EventEdits()).sent == 1, "what could not be edited can be sent as it is"
