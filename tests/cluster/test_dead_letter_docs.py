"""docs/how-to/archive-dead-letters.md, and what handle-dead-letters.md has for a cluster: their
commands and manifests, run as they are written.

On the test cluster, a claim that is a folder of this machine, and a real S3. What stands for a
reader's own words is in `instead`. The jobs' image takes minutes to build, so `make chaos` has it.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import yaml
from support.archiving import IMAGE, WITHIN, volume
from support.gate import only_chaos
from support.installation import ARRIVAL, Installation, Subscriber
from support.pages import Shell, block, blocks
from support.s3 import Bucket

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import names
from knafka.ports.log import Record
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.lookup.groups import list_groups

T = TypeVar("T")

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1_800), only_chaos]

PAGE: Final = "how-to/archive-dead-letters.md"
INSTALL: Final = block(PAGE, "components:")
ON_A_CLAIM: Final = block(PAGE, "kubectl -n shop apply -f - <<EOF")
ON_S3: Final = block(PAGE, "kubectl -n shop create secret generic my-keys")
LOOK: Final = block(PAGE, "export AWS_ENDPOINT_URL")
REPORT_BY_SPARK: Final = block(PAGE, "JARS=")
NOW: Final = block(PAGE, "kubectl -n shop annotate")
STATUS: Final = block(PAGE, "kubectl -n shop get deadletterarchive kept -o yaml")
OPERATIONS: Final = block(PAGE, "apiVersion: knafka.dev/v1alpha1", "kind: DeadLetterReplay")
OPERATE: Final = block(PAGE, "kubectl -n shop apply -f replay.yaml")
BY_COMMAND: Final = block(PAGE, "knafka dead-letters replay")
FROM_A_LAPTOP: Final = block(PAGE, "knafka dead-letters list --groups")
BIND: Final = block(PAGE, "kubectl -n shop create rolebinding")
ERASE: Final = block(PAGE, "kubectl -n shop patch")
CHAT: Final = block(PAGE, "kubectl -n shop create secret generic chat")
DELETE: Final = block(PAGE, "kubectl -n shop delete")
NOT_HERE: Final = (
    "docker build",  # `archiving` has the same image by `make image-jobs`' own script
    "knafka console",  # tests/cluster/test_console.py
    "- {name: KNAFKA_CONSOLE_URL",  # tests/cluster/test_dead_letter_jobs.py
    ".venv/bin/knafka up",  # needs no cluster
)

OTHER_PAGE: Final = "how-to/handle-dead-letters.md"
NOTICE: Final = block(OTHER_PAGE, "kubectl get trigger payments -o jsonpath='{.status.conditions")
KEEP_LONGER: Final = block(OTHER_PAGE, "kubectl annotate trigger payments")
TOPIC: Final = block(OTHER_PAGE, "kubectl get trigger payments -o jsonpath='{.status.annotations")
BY_HAND: Final = block(OTHER_PAGE, "export PYSPARK_SUBMIT_ARGS")
ERASE_BY_HAND: Final = block(OTHER_PAGE, ".venv/bin/python -m knafka_jobs compact")

PERSON: Final = "4711"
"""The event that somebody wants to be erased."""
IDS: Final = (PERSON, "4712", "4713")


def instead(installed: Installation, namespace: str, bucket: Bucket) -> dict[str, str]:
    """What a reader would put in place of the pages' words; `shell` has their context."""
    registry, keys = "registry.example.com/team", bucket.environment
    return {
        "shop": namespace,
        "my-bucket": bucket.name,
        "http://minio.minio:9000": bucket.endpoint,
        "http://minio.example.com:9000": bucket.endpoint,
        "kafka.example.com:9092": installed.kafka.bootstrap("PLAINTEXT"),
        **{f"{key}=...": f"{key}={keys[key]}" for key in keys if "KEY" in key},
        **{
            f"{registry}/{name}:1.0.0": installed.cluster.image(name)
            for name in (IMAGE, "knafka-chat-example")
        },
        "https://chat.example.com/hooks/my-hook": f"http://hook.{namespace}.svc.cluster.local/",
    }


@pytest.fixture
def shell(
    archiving: Installation, namespace: str, cluster_bucket: Bucket, tmp_path: Path
) -> Iterator[Shell]:
    cluster, kubeconfig = archiving.cluster, tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig.read_text())
    for words in (
        ("rename-context", cluster.kubectl("config", "current-context").strip(), "my-cluster"),
        ("set-context", "--current", f"--namespace={namespace}"),
    ):
        cluster.kubectl("config", "--kubeconfig", str(kubeconfig), *words)
    yield Shell.opened(tmp_path, kubeconfig, instead(archiving, namespace, cluster_bucket))
    cluster.kubectl("delete", "deadletterarchive", "--all", "-n", namespace, "--timeout=90s")


@pytest.fixture
def claim(archiving: Installation, namespace: str) -> Iterator[Path]:
    """The folder that the page's claim will be."""
    with volume(archiving.cluster, namespace, "dead-letters") as folder:
        yield folder


class Payments:
    """A Broker `default`, and a Trigger `payments` whose subscriber takes nothing yet."""

    def __init__(self, installed: Installation, namespace: str) -> None:
        self.installed = installed
        self.namespace = namespace
        self.address = installed.broker(namespace)
        self.subscriber: Subscriber = installed.subscriber(namespace, "payments")
        self.said = uuid.uuid4().hex
        """What the event says of a person."""
        self.declare("payments")

    def declare(self, trigger: str) -> None:
        filters = [{"exact": {"type": "made"}}]  # no report that is announced
        self.installed.trigger(
            self.namespace, trigger, self.subscriber.ref, delivery={"retry": 0}, filters=filters
        )

    def fail(self) -> None:
        """Each of the events; returns once they are dead letters."""
        self.subscriber.behave(status=503)
        for id_ in IDS:
            said = self.said if id_ == PERSON else "nothing"
            data = json.dumps({"card": said}).encode()
            sent = self.installed.send(self.address, id_, data=data, subject=said)
            assert sent.status_code == 202
        self.installed.cluster.wait_for(
            lambda: len(self.in_topic()) == len(IDS), ARRIVAL, "they are dead letters"
        )
        self.subscriber.behave(status=202)
        self.subscriber.forget()

    def until_archived(self, shell: Shell) -> None:
        """By the Job that the page asks for, once the archive knows of them."""
        self._until(waiting=len(IDS))
        shell.run(NOW)
        self._until(archived=len(IDS), waiting=0, phase="Idle")

    def _until(self, **expected: Any) -> None:
        def status() -> dict[str, Any]:
            return self.installed.status("deadletterarchive", "kept", self.namespace)

        self.installed.cluster.wait_for(
            lambda: expected.items() <= status().items(), WITHIN, f"kept: {expected}"
        )

    def topic(self, trigger: str = "payments") -> str:
        return names.dead_letter_topic(self.namespace, "default", trigger)

    def in_topic(self) -> Sequence[Record]:
        """What the dead-letter topic has; it is made for the first."""

        async def read(admin: KafkaAdmin) -> Sequence[Record]:
            there = await admin.describe_topic(self.topic())
            return await admin.read_last(self.topic(), 100) if there else []

        return self._asked(read)

    def keeps(self, trigger: str, milliseconds: str) -> bool:
        """Whether that is the retention of the Trigger's topic."""

        async def read(admin: KafkaAdmin) -> bool:
            found = await admin.describe_topic(self.topic(trigger))
            return found is not None and found.config.get("retention.ms") == milliseconds

        return self._asked(read)

    def _asked(self, what: Callable[[KafkaAdmin], Awaitable[T]]) -> T:
        async def ask() -> T:
            servers = {"bootstrap.servers": self.installed.kafka.bootstrap("PLAINTEXT")}
            admin = KafkaAdmin(servers)
            try:
                return await what(admin)
            finally:
                await admin.close()

        return asyncio.run(ask())


def saying(word: str, root: Path) -> set[str]:
    """What of this folder has it, and be it in a file of a folder in it.

    A word at random is in Parquet as it is, compressed or not.
    """
    return {
        each.relative_to(root).parts[0]
        for each in root.rglob("*")
        if each.is_file() and word.encode() in each.read_bytes()
    }


def test_every_block_of_the_page_is_run_or_named() -> None:
    known = {
        *(INSTALL, ON_A_CLAIM, ON_S3, LOOK, REPORT_BY_SPARK, NOW, STATUS, OPERATIONS, OPERATE),
        *(BY_COMMAND, FROM_A_LAPTOP, BIND, ERASE, CHAT, DELETE),
    }
    left = [each for each in blocks(PAGE) if each not in known]
    assert [each for each in left if not each.startswith(NOT_HERE)] == []
    assert len(left) == len(NOT_HERE)


def test_the_component_gives_the_operator_the_image_that_is_named(shell: Shell) -> None:
    """ "Install it": in a kustomization as docs/how-to/install.md has it, examples/mine."""
    mine = shell.folder / "examples" / "mine"
    mine.mkdir()
    base = "kind: Kustomization\nresources: [../../operator/deploy]\n"
    (mine / "kustomization.yaml").write_text(base + shell.written(INSTALL))
    made = list(yaml.safe_load_all(shell.run("kubectl kustomize examples/mine")))
    kinds = {each["spec"]["names"]["kind"] for each in made if "names" in each.get("spec", {})}
    assert kinds >= {"DeadLetterArchive", "DeadLetterReplay", "DeadLetterPurge"}
    (operator,) = [each for each in made if each["kind"] == "Deployment"]
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    images = [each for each in container["env"] if each["name"] == "KNAFKA_JOBS_IMAGE"]
    assert [each["value"] for each in images] == [
        shell.instead["registry.example.com/team/knafka-jobs:1.0.0"]
    ]
    shell.run("kubectl apply --dry-run=server -k examples/mine")


def test_a_claim_has_tables_and_reports_until_somebody_deletes_them(
    archiving: Installation, namespace: str, shell: Shell, claim: Path
) -> None:
    """A report is made and its event reaches the chat; deleting the archive keeps the tables."""
    payments, hook = Payments(archiving, namespace), archiving.subscriber(namespace, "hook")
    shell.run(CHAT)
    archiving.until_ready("trigger", "reports-to-chat", namespace)
    shell.run(ON_A_CLAIM)
    archiving.until_ready("deadletterarchive", "kept", namespace)
    payments.fail()
    payments.until_archived(shell)

    reports = claim / "dead-letters" / "reports"
    assert (reports / "report.html").read_text().startswith("<!doctype html>")
    report = json.loads((reports / "report.json").read_text())
    assert report["totals"]["unresolved"] == len(IDS)
    # Beside Hadoop's checksums.
    kept = sorted(each.suffix for each in (reports / "history").glob("[!.]*"))
    assert kept == [".html", ".json"], "both forms of the one report"
    status = yaml.safe_load(shell.run(STATUS))["status"]
    assert status["lastRun"]["outcome"] == "Succeeded"
    assert (status["report"]["report"], status["report"]["unresolved"]) == (report["id"], len(IDS))
    assert {each["status"] for each in status["conditions"]} == {"True"}
    (told,) = archiving.cluster.wait_for(hook.seen, WITHIN, "the chat gets the event")
    assert told["attributes"] == {}, "it is no event but a plain POST"

    shell.run(DELETE)
    assert archiving.cluster.get("deadletterarchive", "kept", namespace) is None
    files = TableFiles(str(claim / "dead-letters"))
    (counted,) = files.query("SELECT count(*) AS number FROM failures", "failures")
    assert counted["number"] == len(IDS)
    assert (reports / "report.html").exists()


def test_failed_events_are_sent_again_and_one_is_forgotten_by_objects(
    archiving: Installation, namespace: str, shell: Shell, claim: Path
) -> None:
    """After the purge no file of the tables has the event, only the report that told of it."""
    payments = Payments(archiving, namespace)
    shell.run(ON_A_CLAIM)
    payments.fail()
    payments.until_archived(shell)
    tables = claim / "dead-letters"
    assert saying(payments.said, tables) >= {"records", "failures", "reports"}

    shell.run(BIND)
    for kind, answer in (("deadletterreplays", "yes"), ("deadletterpurges", "no")):
        ask = f"kubectl auth can-i create {kind}.knafka.dev --as=ada --as-group=shop-developers"
        assert shell.run(f"{ask} || true").strip().endswith(answer)

    (shell.folder / "replay.yaml").write_text(shell.written(OPERATIONS))
    shown = shell.run(OPERATE)
    assert "payments-again" in shown
    assert "forget-4711" in shown
    payments.subscriber.wait_for(len(IDS))
    assert sorted(payments.subscriber.ids()) == sorted(IDS)
    forgotten = archiving.status("deadletterpurge", "forget-4711", namespace)
    assert forgotten["purged"] == 1
    assert saying(payments.said, tables) == {"reports"}, "as the page says"
    files = TableFiles(str(tables))
    left = files.query("SELECT id FROM failures ORDER BY id", "failures")
    assert [each["id"] for each in left] == [each for each in IDS if each != PERSON]


def test_the_command_line_does_the_same_and_says_how_it_went(
    archiving: Installation, namespace: str, shell: Shell, claim: Path
) -> None:
    """What failed a moment ago is among what it finds: each operation compacts first."""
    payments = Payments(archiving, namespace)
    shell.run(ON_A_CLAIM)
    payments.fail()
    said = shell.run(BY_COMMAND, within=5 * WITHIN)
    assert f"{len(IDS)} would be sent: {len(IDS)} to {namespace}/default/payments" in said
    assert f"{len(IDS)} events sent again by the replay" in said
    assert "1 failures purged" in said
    assert "0 new dead letters" in said
    payments.subscriber.wait_for(len(IDS))
    left = len(IDS) - 1
    assert f"0 of {left} events unresolved in 1 groups" in said
    assert (
        json.loads((claim / "dead-letters" / "reports" / "report.json").read_text())["totals"][
            "events"
        ]
        == left
    )


def test_an_archive_in_a_bucket_is_read_on_this_machine_and_one_event_is_erased(
    archiving: Installation, namespace: str, shell: Shell, cluster_bucket: Bucket
) -> None:
    """Its keys are in a Secret; after "Erase one event" neither bucket nor topic has it."""
    payments, folder = Payments(archiving, namespace), cluster_bucket.folder
    shell.run(ON_S3)
    archiving.until_ready("deadletterarchive", "kept", namespace)
    payments.fail()
    payments.until_archived(shell)
    assert saying(payments.said, folder / namespace) >= {"records", "failures"}
    assert len(payments.in_topic()) == len(IDS)

    said = shell.run(LOOK, REPORT_BY_SPARK)
    listed = [line.split()[:2] for line in said.splitlines()]
    assert [f"{namespace}/payments", str(len(IDS))] in listed
    for id_ in IDS:
        assert f"made {id_} from /tests" in said
    assert f"{len(IDS)} would be sent: {len(IDS)} to {namespace}/default/payments" in said
    page = (shell.folder / "dead-letters.html").read_text()
    assert page.startswith("<!doctype html>")
    assert f'"unresolved": {len(IDS)}' in said

    group = list_groups(TableFiles(str(folder / namespace)), (), datetime.now(UTC))[0]
    own = replace(shell, instead={**shell.instead, "0f3c5a9e77b1": group.id})
    said = own.run(FROM_A_LAPTOP)
    assert f"acknowledged: {group.id}" in said
    assert f"{group.events} event{'' if group.events == 1 else 's'} written to" in said
    assert (shell.folder / "failed.ndjson").exists()
    (shell.folder / "failed.ndjson").unlink()

    said = shell.run(ERASE)
    assert "1 failures purged" in said
    assert saying(payments.said, folder) == set()
    assert payments.in_topic() == []
    spec = (archiving.cluster.get("deadletterarchive", "kept", namespace) or {})["spec"]
    assert "keep" not in spec.get("compaction", {})
    shell.run(DELETE)
    assert (folder / namespace / "failures").exists(), "the tables stay"


def test_dead_letters_are_noticed_and_their_topics_keep_as_long_as_somebody_says(
    archiving: Installation, namespace: str, shell: Shell
) -> None:
    """handle-dead-letters.md, "Notice them" and "How long they are kept"."""
    cluster, payments = archiving.cluster, Payments(archiving, namespace)
    payments.declare("audit")
    payments.fail()
    cluster.wait_for(
        lambda: shell.run(NOTICE).startswith(f"{len(IDS)} dead letters wait"), ARRIVAL, "noticed"
    )
    assert shell.run(TOPIC) == payments.topic()
    shell.run(KEEP_LONGER)
    for trigger, kept in (("payments", str(90 * 86_400_000)), ("audit", "-1")):
        cluster.wait_for(partial(payments.keeps, trigger, kept), ARRIVAL, f"{trigger}: {kept}")


def test_one_event_is_erased_by_hand_from_a_kafka_anywhere(
    archiving: Installation, namespace: str, shell: Shell
) -> None:
    """handle-dead-letters.md, "Of a Kafka anywhere" and "Delete them"."""
    payments = Payments(archiving, namespace)
    payments.fail()
    shell.run(BY_HAND)
    tables = shell.folder / "dead-letters"
    assert saying(payments.said, tables) >= {"records", "failures"}
    assert (shell.folder / "dead-letters.html").read_text().startswith("<!doctype html>")
    shell.run(BY_HAND.splitlines()[0], ERASE_BY_HAND)
    assert saying(payments.said, tables) == set()
    assert payments.in_topic() == []
