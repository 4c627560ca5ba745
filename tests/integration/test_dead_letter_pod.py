"""What a DeadLetterReplay's or DeadLetterPurge's pod does, on a real Kafka and Spark (issue 18)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.gate import only_chaos
from support.letters import DeadLetters

from knafka.core import names
from knafka_jobs import pod
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.replay.send import events_sent_by

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]


class Pod:
    """Runs one command after the other, in one Spark session."""

    def __init__(
        self, spark: SparkSession, client: KafkaClient, dead: DeadLetters, tables: Tables
    ) -> None:
        self._spark, self._client = spark, client
        self._words = (
            f"--tables={tables.root}",
            f"--bootstrap-servers={client.connection.bootstrap_servers}",
            f"--broker={dead.namespace}/main",
            f"--group={names.archive_group(dead.namespace, 'kept', 'uid')}",
        )
        self.killed_at = ""
        """A line of its progress."""

    def run(self, command: str, *words: str, **select: Any) -> dict[str, Any]:
        words = (*self._words, f"--select={json.dumps(select)}", *words)
        given = pod._pod_parser().parse_args([command, *words])
        return pod.compact_and_run(self._spark, self._client, given, self._say)

    def _say(self, line: str) -> None:
        if self.killed_at and self.killed_at in line:
            raise KeyboardInterrupt


@pytest.fixture
def pod_(spark: SparkSession, client: KafkaClient, dead: DeadLetters, tables: Tables) -> Pod:
    return Pod(spark, client, dead, tables)


def sent_ids(client: KafkaClient, dead: DeadLetters, trigger: str, replay: str) -> list[str]:
    """Failures that lie in a Trigger's replay topic."""
    name = names.replay_topic(dead.namespace, "main", trigger)
    there = client.topics([name])
    return (
        [each.failure_id for each in events_sent_by(client, there[name], replay)] if there else []
    )


def test_what_a_replay_is_asked_for_it_sends_once_however_often_it_runs(
    pod_: Pod, client: KafkaClient, dead: DeadLetters, tables: Tables
) -> None:
    """Also what no run before has compacted; and one that had ended when it was killed."""
    for number in range(20):
        dead.add("mail", number)
    dead.add("bill", 3)
    dead.flush()
    dry = pod_.run("replay", "--dry-run", trigger="mail", ids=["3", "4", "absent", "${env:HOME}"])
    assert (dry["records"], dry["would_send"], dry["left_out"]) == (21, 2, 0)
    assert {each["id"] for each in dry["events"]} == {"3", "4"}
    assert sent_ids(client, dead, "mail", "uid-1") == []

    def replay() -> Any:
        named = ("--replay-id=uid-1", "--by=shop/x")
        return pod_.run("replay", *named, trigger="mail", ids=["3", "4"])["sent"]

    pod_.killed_at = " sent"
    with pytest.raises(KeyboardInterrupt):
        replay()
    pod_.killed_at = ""
    assert replay() == 2
    assert replay() == 2
    assert len(sent_ids(client, dead, "mail", "uid-1")) == 2
    assert sent_ids(client, dead, "bill", "uid-1") == []
    run = tables.read("replays").where("replay_id = 'uid-1'").first()
    assert run is not None
    assert (run["by"], run["events"]) == ("shop/x", 2)
    assert run["selection"].endswith("--trigger mail --id 3 --id 4")


@only_chaos
def test_a_purge_forgets_what_it_selects_and_nothing_the_second_time(
    pod_: Pod, dead: DeadLetters, tables: Tables
) -> None:
    for number in range(6):
        dead.add("mail", number)
    dead.flush()
    assert pod_.run("purge", ids=["1"])["purged"] == 0, "it isn't resolved"
    assert pod_.run("purge", "--unresolved", "--dry-run", ids=["1", "2"])["would_purge"] == 2
    assert pod_.run("purge", "--unresolved", ids=["1", "2"])["purged"] == 2
    assert pod_.run("purge", "--unresolved", ids=["1", "2"])["purged"] == 0
    left = {row["id"] for row in tables.read("failures").select("id").collect()}
    assert left == {"0", "3", "4", "5"}
