"""A replay topic that is deleted before its Trigger has got its events, on a real Kafka."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from support.gate import only_chaos
from support.letters import DeadLetters, compacted

from knafka.core import names
from knafka_jobs.command_options import FailureSelection
from knafka_jobs.compact import judging
from knafka_jobs.compact.judging import mark_lost_by_deletion
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.replay.replay_run import replay
from knafka_jobs.topic_offsets import BrokerName

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]


def commit_starts(client: KafkaClient, topic: str) -> None:
    """Commit that the group of a replay topic has settled none of its records."""
    consumer = client.consumer(**{"group.id": topic})
    numbers = client.topics([topic])[topic].spans
    offsets = [TopicPartition(topic, number, 0) for number in numbers]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


@only_chaos
def test_what_nobody_delivers_any_more_can_be_replayed_once_more(
    dead: DeadLetters, client: KafkaClient, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a Trigger that was deleted, or a Kafka that was made anew beside the old tables."""
    for trigger in ("mail", "bill"):
        dead.add(trigger, 1)
    dead.flush()
    compacted(tables, client, dead, keep_hours=1)
    everything, said = FailureSelection(), list[str]()
    assert replay(tables, client, everything, None, "me", None, said.append).sent == 2
    topic = names.replay_topic(dead.namespace, "main", "mail")
    admin = AdminClient(client.connection.for_librdkafka())
    admin.delete_topics([topic])[topic].result(30)
    while client.topics([topic]):
        time.sleep(0.05)

    compacted(tables, client, dead, keep_hours=1)
    assert replay(tables, client, everything, None, "me", None, said.append).sent == 0, (
        "it may be new"
    )
    monkeypatch.setattr(judging, "GONE_TOPIC_AGE", timedelta(hours=-1))
    bills = names.replay_topic(dead.namespace, "main", "bill")
    spans = client.topics([bills])[bills].spans
    client.delete_before({(bills, number): span.end for number, span in spans.items()})
    lines: list[str] = []
    other = BrokerName(dead.namespace, "other")
    mark_lost_by_deletion(tables, client, other, datetime.now(UTC), lines.append)
    assert lines == [], "another Broker's may be in another Kafka"
    commit_starts(client, bills)
    compacted(tables, client, dead, keep_hours=1, progress=lines.append)
    for name in (topic, bills):
        assert any(line.startswith(f"{name} was deleted, or its records") for line in lines)
    again = replay(tables, client, everything, None, "me", None, said.append)
    assert again.sent == 2
    outcomes = tables.read("sent").orderBy("replay_id").collect()
    assert [row["outcome"] for row in outcomes] == ["lost", "lost", None, None]
    assert {row["replay_id"] for row in outcomes[2:]} == {again.replay_id}
