"""`knafka dead-letters --context`: a cluster's archives are asked, and followed to the end."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.api_server import ApiServer, api_server, kubeconfig
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog
from typer.testing import CliRunner, Result

from knafka.core import names
from knafka.core.contract import Egress, Ingress, Kafka, Sink
from knafka.core.dead_letter import Failure, Origin, dead_letter_of
from knafka.core.delivery import Reason
from knafka_cli.command_line import app
from knafka_cli.dead_letters import archive_commands, cluster_targets, dead_letter_commands
from knafka_client.declared.declared_source import DeclaredView
from knafka_operator.archives.operation_model import parse_operation
from knafka_operator.model.sensors import KNAFKA

ROOT = f"/apis/{KNAFKA}/namespaces/shop"


class Cluster:
    """An API server with the archive `kept`, and an operator that does one step at each pause."""

    def __init__(self, server: ApiServer, config: Path) -> None:
        self.server = server
        self.config = config
        self.steps: list[Mapping[str, Any]] = []
        """The next statuses of what is asked for last."""
        self.requested: list[str] = []
        server.kinds[KNAFKA] = {
            "DeadLetterArchive": "deadletterarchives",
            "DeadLetterReplay": "deadletterreplays",
            "DeadLetterPurge": "deadletterpurges",
        }
        self.archive("kept")

    def archive(self, name: str, **spec: Any) -> None:
        spec = {"storage": {"url": "s3a://b/x"}, "report": {"schedule": "0 6 * * *"}, **spec}
        self.server.put(KNAFKA, "DeadLetterArchive", "shop", name, spec=spec)

    def made(self) -> dict[str, Any]:
        """The operation."""
        (found,) = (
            each for path, each in self.server.objects.items() if "deadletterarchives" not in path
        )
        return found

    def pause(self, _: float) -> None:
        status = dict(self.steps.pop(0))
        archive = self.server.objects[f"{ROOT}/deadletterarchives/kept"]
        if asked := (archive["metadata"].get("annotations") or {}).get("knafka.dev/run"):
            if "lastRun" in status:
                status["requested"] = asked
            archive["status"] = status
        else:
            self.made()["status"] = status

    def run(self, *words: str) -> Result:
        where = ("--kubeconfig", str(self.config), "-n", "shop")
        return CliRunner().invoke(app, ["dead-letters", *words, *where])


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with api_server() as (server, client):
        found = Cluster(server, kubeconfig(tmp_path, client.configuration.host))
        # Not time's own: threads that earlier tests left, as Spark's, sleep by that.
        clock = SimpleNamespace(sleep=found.pause, time=time.time, monotonic=time.monotonic)
        monkeypatch.setattr("knafka_cli.dead_letters.archive_operations.time", clock)
        yield found


def ends(phase: str, **more: Any) -> Sequence[Mapping[str, Any]]:
    queued = {"phase": "Queued", "message": "Job kept-3 of its archive runs"}
    return [queued, queued, {"phase": "Running"}, {"phase": phase, **more}]


def test_a_replay_is_made_and_followed_until_it_has_sent(cluster: Cluster) -> None:
    cluster.steps += ends("Succeeded", sent=3, replayID="uid-1")
    done = cluster.run(
        *("replay", "--trigger", "mail", "--code", "503", "--since", "2026-01-31", "--rate", "5"),
        *("--id", "1", "--id", "2", "--summary", "-x"),
    )
    assert done.exit_code == 0, done.output
    assert done.stdout == "3 events sent again by the replay uid-1\n"
    assert done.stderr.count("Queued: Job kept-3 of its archive runs") == 1
    made = cluster.made()
    assert made["spec"] == {
        "archive": "kept",
        "rate": 5.0,
        "select": {
            "trigger": "mail", "code": 503, "since": "2026-01-31", "summary": "-x",
            "ids": ["1", "2"],
        },
    }  # fmt: skip
    metadata = {**made["metadata"], "creationTimestamp": "2026-01-31T00:00:00Z"}
    parse_operation({**made, "metadata": metadata})  # which the operator understands


def test_a_replay_that_fails_is_an_exit_code_and_a_reason(cluster: Cluster) -> None:
    cluster.steps += ends("Failed", message="4 attempts failed, the last with: no such topic")
    done = cluster.run("replay")
    assert done.exit_code == 1
    assert "the last with: no such topic" in done.stderr


def test_nobody_has_to_wait(cluster: Cluster) -> None:
    done = cluster.run("replay", "--no-wait")
    assert done.exit_code == 0
    assert done.stdout == ""
    assert f"DeadLetterReplay shop/{cluster.made()['metadata']['name']}" in done.stderr


def test_a_dry_run_says_what_would_be_sent_and_goes_by_itself(cluster: Cluster) -> None:
    event = {"trigger": "mail", "type": "t", "id": "1", "source": "/s", "reason": "status"}
    cluster.steps += ends(
        "Succeeded",
        selected=3,
        leftOut=1,
        triggers={"shop/default/mail": 3},
        events=[{**event, "code": 503}],
    )
    done = cluster.run("replay", "--dry-run", "--no-wait")
    assert done.stdout.splitlines() == [
        "mail: t 1 from /s (status 503)",
        "and 2 more",
        "3 would be sent: 3 to shop/default/mail",
        "1 left out: resolved, being sent again, or no events",
    ]
    assert cluster.made()["spec"]["dryRun"] is True
    assert cluster.made()["spec"]["ttlSecondsAfterFinished"] == 3_600


def test_a_purge_is_made_and_followed(cluster: Cluster) -> None:
    cluster.steps += ends("Succeeded", purged=7)
    done = cluster.run("purge", "--unresolved", "--id", "4711")
    assert done.stdout == "7 failures purged\n"
    assert cluster.made()["kind"] == "DeadLetterPurge"
    assert cluster.made()["spec"]["unresolved"] is True
    assert cluster.made()["spec"]["select"] == {"ids": ["4711"]}


@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        ("compact", {}, "5 new dead letters\n"),
        ("report", {"report": {"report": "r", "unresolved": 2, "events": 9, "groups": 1}},
         "2 of 9 events unresolved in 1 group\n"),
    ],
    ids=["compact", "report"],
)  # fmt: skip
def test_an_archive_is_asked_to_run_and_followed(
    cluster: Cluster, command: str, status: Mapping[str, Any], told: str
) -> None:
    run = {"outcome": "Succeeded", "records": 5}
    cluster.steps += [{"phase": "Running"}, {"phase": "Ending", "lastRun": run}]
    cluster.steps += [{"phase": "Idle", "lastRun": run, **status}]
    done = cluster.run(command)
    assert (done.exit_code, done.stdout) == (0, told), done.output


def test_a_run_that_failed_is_an_exit_code_and_a_reason(cluster: Cluster) -> None:
    run = {"outcome": "Failed", "message": "no space left"}
    cluster.steps.append({"phase": "Failing", "lastRun": run})
    done = cluster.run("compact")
    assert done.exit_code == 1
    assert "no space left" in done.stderr


def test_the_archive_is_the_only_one_of_the_broker_or_named(cluster: Cluster) -> None:
    cluster.archive("other", broker="main")
    done = cluster.run("replay", "--no-wait")
    assert done.exit_code == 2
    assert "which DeadLetterArchive (--archive)? there is kept of default, other of main" in (
        done.stderr
    )
    assert cluster.run("replay", "--no-wait", "--broker", "shop/main").exit_code == 0
    assert cluster.made()["spec"]["archive"] == "other"
    done = cluster.run("replay", "--archive", "none")
    assert "there is no DeadLetterArchive none in shop" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("replay", "--where", "1 = 1"), "--where can't be used with a cluster"),
        (("replay", "--tables", "x"), "--tables can't be used with a cluster"),
        (("compact", "--keep-hours", "1"), "--keep-hours can't be used with a cluster"),
        (("report", "--open"), "--open can't be used with a cluster"),
        (("list", "--tables", "x"), "--tables can't be used with a cluster"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_a_cluster_cannot_be_asked_is_refused(
    cluster: Cluster, words: Sequence[str], told: str
) -> None:
    done = cluster.run(*words)
    assert done.exit_code == 2
    assert told in done.stderr


def test_a_clusters_options_without_a_cluster_are_refused() -> None:
    done = CliRunner().invoke(app, ["dead-letters", "replay", "--archive", "kept"])
    assert done.exit_code == 2
    assert "--archive needs a cluster: name its --context" in done.stderr


def test_a_cluster_without_the_definitions_says_so(cluster: Cluster) -> None:
    cluster.server.kinds.pop(KNAFKA)
    cluster.server.objects.clear()
    done = cluster.run("compact")
    assert done.exit_code == 1


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """What a cluster declares: Trigger `mail`, one of whose events failed; Kafka is in memory."""
    memory, kafka = MemoryLog(), Kafka(bootstrap_servers="k:1")
    topic = names.dead_letter_topic("shop", "main", "mail")
    ingress = Ingress(namespace="shop", broker="main", topic="main", kafka=kafka)
    egress = Egress(
        namespace="shop", broker="main", trigger="mail", topic="main", group="mail",
        dead_letter_topic=topic, kafka=kafka, subscriber=Sink(url="http://s/"),
    )  # fmt: skip
    memory.create(topic)
    headers = [(f"ce_{name}", b"1.0") for name in ("specversion", "id", "source", "type")]
    failure = Failure("http://s/", Reason.STATUS, 1, 0.0, 0.0, 503, b"no")
    origin = Origin("shop", "main", "mail", "main", 0, 1)
    stored, value = dead_letter_of(headers, b"{}", failure, origin)
    memory.store(topic, None, value, stored)
    found = DeclaredView([ingress], [egress], {"shop/main": {"bootstrap.servers": "k:1"}})

    def ask(reached: Any, asked: Any) -> Any:
        return asyncio.run(asked(MemoryAdmin(memory)))

    monkeypatch.setattr(cluster_targets.TopicsTarget, "read_objects", lambda *_: found)
    monkeypatch.setattr(archive_commands, "ask_kafka", ask)
    return memory


def test_a_clusters_dead_letters_are_listed_and_shown_as_they_lie(
    cluster: Cluster, view: MemoryLog
) -> None:
    listed = cluster.run("list").stdout.splitlines()
    assert listed[0].split() == ["TRIGGER", "COUNT", "SENT", "AGAIN", "OLDEST", "NEWEST", "REASONS"]
    assert listed[1].startswith("shop/mail  1  ")
    assert listed[1].endswith("status 503 × 1")
    shown = cluster.run("show", "shop/mail")
    assert shown.stdout.startswith("1.0 1.0 from 1.0\n  status 503 after 1 attempts")
    assert cluster.run("show", "shop/none").exit_code == 2


@pytest.mark.parametrize(
    ("broker", "named"),
    [("main", ("default", "main")), ("shop/main", ("shop", "main")),
     ("channel/shop/main", ("shop", "KafkaChannel-main"))],
)  # fmt: skip
def test_those_of_a_broker_are_found_in_tables_without_an_installation(
    broker: str, named: tuple[str, str]
) -> None:
    conditions = dead_letter_commands._failure_conditions(None, None, broker)
    assert {each.column: each.value for each in conditions} == dict(
        zip(("namespace", "broker", "trigger"), (*named, ""), strict=True)
    )


def test_those_of_a_subscription_are_found_in_tables_without_an_installation() -> None:
    conditions = dead_letter_commands._failure_conditions(None, "subscription/shop/mail")
    equal, others = conditions[:2], conditions[2:]
    assert {each.column: each.value for each in equal} == {"namespace": "shop", "trigger": "mail"}
    compare = {">=": operator.ge, "<": operator.lt}
    for broker in ("0", "mail", "z.z", "KafkaChannel-0", "KafkaChannel-z9.z"):
        passes = all(compare[each.operator](broker, each.value) for each in others)
        assert passes is broker.startswith("KafkaChannel-")


def test_dead_letters_of_a_broker_itself_stand_under_it(cluster: Cluster, view: MemoryLog) -> None:
    """Records that hold no event are no Trigger's (decision 0031)."""
    assert "broker/" not in cluster.run("list").stdout
    topic = names.broker_dead_letter_topic("shop", "main")
    view.create(topic)
    failure = Failure("", Reason.UNDECODABLE, 0, 0.0, 0.0, body=b"no attributes")
    stored, value = dead_letter_of([], b"data", failure, Origin("shop", "main", "", "main", 0, 7))
    view.store(topic, None, value, stored)
    last = cluster.run("list").stdout.splitlines()[-1]
    assert last.startswith("broker/shop/main  1  ")
    assert last.endswith("undecodable-record × 1")
    shown = cluster.run("show", "--broker", "shop/main").stdout
    assert shown.startswith("a record that holds no event: main/0/7\n  undecodable-record\n")
    assert "no attributes" in shown
    assert "holds no event" not in cluster.run("show", "shop/mail").stdout
    for whose in ((), ("shop/mail", "--broker", "shop/main")):
        refused = cluster.run("show", *whose)
        assert refused.exit_code == 2
        assert "Name a Trigger, or a Broker" in refused.stderr
