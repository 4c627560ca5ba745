"""What a replay reads of the topics that it sends to: its own events, none of earlier replays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame
from support.gate import only_chaos
from support.letters import DeadLetters, compacted

from knafka.core import names
from knafka_jobs.command_options import FailureSelection
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient, read_spans
from knafka_jobs.io.kafka_records import KafkaRecords
from knafka_jobs.replay import runs
from knafka_jobs.replay.replay_run import replay
from knafka_jobs.topic_offsets import NamedPartition, OffsetSpan, spans_of

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]

EARLIER, LATER = 40, 10


@only_chaos
def test_a_new_replay_reads_its_topic_from_where_the_earlier_ones_ended(
    dead: DeadLetters, client: KafkaClient, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent under a new id, so nobody looks for it; at the end, only what was sent since
    is read back."""
    topic = names.replay_topic(dead.namespace, "main", "mail")
    one_by_one = list[Any]()
    by_spark = list[Mapping[NamedPartition, OffsetSpan]]()

    def send(replay_id: str, first: int, events: int) -> None:
        for number in range(first, first + events):
            dead.add("mail", number)
        dead.flush()
        compacted(tables, client, dead)
        one_by_one.clear()
        sent = replay(tables, client, FailureSelection(), replay_id, "me", None, lambda _: None)
        assert sent.sent == events

    send("r1", 0, EARLIER)
    ends = {position: span.end for position, span in spans_of(client.topics([topic])).items()}
    assert sum(ends.values()) >= EARLIER
    messages = KafkaRecords.messages

    def counted_messages(*given: Any) -> Iterator[Any]:
        for message in messages(*given):
            one_by_one.append(message)
            yield message

    def noted_spans(
        spark: Any, connection: Any, spans: Mapping[NamedPartition, OffsetSpan]
    ) -> DataFrame:
        by_spark.append(spans)
        return read_spans(spark, connection, spans)

    monkeypatch.setattr(KafkaRecords, "messages", counted_messages)
    monkeypatch.setattr(runs, "read_spans", noted_spans)
    send("r2", EARLIER, LATER)
    (spans,) = by_spark
    assert {position: span.start for position, span in spans.items()} == {
        position: ends[position] for position in spans
    }
    assert one_by_one == [], "nor is anything read one by one"
