"""Dead letters kept in tables by Jobs that start by themselves (issue 18), and a backtest as a Job.

The jobs' image takes minutes to build, so `make chaos` has these. Tables are in a folder of this
machine, which is the node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml
from support.archiving import IMAGE, WITHIN, volume
from support.browser import chromium_of, every, one, wait
from support.cluster import OPERATOR_NAMESPACE
from support.gate import only_chaos
from support.installation import ROOT, Installation, Subscriber

from knafka_jobs.io.table_files import TableFiles
from knafka_operator.model.resources import TOPIC_STATUS

COUNT: Final = 20
MADE: Final = [{"exact": {"type": "made"}}]
"""Filters of a Trigger that takes no event that tells of a report."""

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1_800), only_chaos]


@pytest.fixture
def claim(archiving: Installation, namespace: str) -> Iterator[Path]:
    """A claim `tables`, and the folder that it is."""
    with volume(archiving.cluster, namespace, "tables") as folder:
        archiving.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "tables", "namespace": namespace},
                "spec": {
                    "accessModes": ["ReadWriteMany"],
                    "storageClassName": "",
                    "resources": {"requests": {"storage": "1Gi"}},
                    "volumeName": namespace,
                },
            }
        )
        yield folder


def bury(installed: Installation, namespace: str) -> None:
    """So many events that no subscriber takes, and wait until they are dead letters."""
    address = installed.broker(namespace)
    nobody = {"uri": f"http://nobody.{namespace}.svc.cluster.local"}
    installed.trigger(namespace, "fails", nobody, delivery={"retry": 0}, filters=MADE)
    for number in range(COUNT):
        assert installed.send(address, str(number)).status_code == 202


def declare(installed: Installation, namespace: str, **spec: Any) -> None:
    installed.cluster.apply(
        {
            "apiVersion": "knafka.dev/v1alpha1",
            "kind": "DeadLetterArchive",
            "metadata": {"name": "kept", "namespace": namespace},
            "spec": {
                "storage": {"claim": {"name": "tables"}},
                "compaction": {"number": COUNT},
                "report": {"schedule": "0 6 * * *"},
                **spec,
            },
        }
    )


def until_archived(installed: Installation, namespace: str) -> dict[str, Any]:
    """The archive's status once all are in the tables."""

    def archived() -> dict[str, Any]:
        status = installed.status("deadletterarchive", "kept", namespace)
        return status if status.get("archived") == COUNT else {}

    return installed.cluster.wait_for(archived, WITHIN, f"{COUNT} dead letters are archived")


def pods_of_archives(installed: Installation, namespace: str) -> list[dict[str, Any]]:
    found = installed.cluster.kubectl(
        "get", "pods", "-n", namespace, "-l", "knafka.dev/archive", "-ojson"
    )
    items: list[dict[str, Any]] = json.loads(found)["items"]
    return items


@pytest.mark.parametrize("executors", [0, 2])
def test_dead_letters_are_archived_by_a_job_that_starts_by_itself(
    archiving: Installation, namespace: str, claim: Path, executors: int
) -> None:
    cluster, most = archiving.cluster, 0
    archiving.broker(namespace)
    declare(archiving, namespace, executors=executors)
    archiving.until_ready("deadletterarchive", "kept", namespace)
    bury(archiving, namespace)

    def running() -> bool:
        nonlocal most
        most = max(most, len(pods_of_archives(archiving, namespace)))
        return archiving.status("deadletterarchive", "kept", namespace).get("archived") == COUNT

    cluster.wait_for(running, WITHIN, "all are archived")
    assert most == 1 + executors
    assert list((claim / "dead-letters" / "records").rglob("*.parquet"))
    cluster.wait_for(
        lambda: not pods_of_archives(archiving, namespace), 90, "its pods and executors are gone"
    )
    assert cluster.kubectl("get", "jobs", "-n", namespace, "-oname") == ""
    leases = cluster.kubectl("get", "leases", "-n", OPERATOR_NAMESPACE, "-oname")
    assert "knafka-archive-" not in leases

    requested = "knafka.dev/run=now"
    cluster.kubectl("annotate", "deadletterarchive", "kept", "-n", namespace, requested)
    cluster.wait_for(
        lambda: archiving.status("deadletterarchive", "kept", namespace).get("report"),
        WITHIN,
        "a report is made",
    )
    report = json.loads((claim / "dead-letters" / "reports" / "report.json").read_text())
    assert report["totals"]["failures"] == COUNT


@pytest.mark.parametrize(("role", "executors"), [("driver", 0), ("driver", 2), ("executor", 2)])
def test_a_job_whose_pod_is_killed_leaves_each_dead_letter_tabled_once(
    archiving: Installation, namespace: str, claim: Path, role: str, executors: int
) -> None:
    """By SIGKILL, whichever pod it is: without a driver the next Job makes it good, without an
    executor Spark makes another."""
    cluster = archiving.cluster
    declare(archiving, namespace, executors=executors)
    bury(archiving, namespace)
    pod = cluster.wait_for(
        lambda: next(
            (
                each["metadata"]["name"]
                for each in pods_of_archives(archiving, namespace)
                if each["status"]["phase"] == "Running"
                and each["metadata"]["labels"].get("spark-role", "driver") == role
            ),
            "",
        ),
        WITHIN,
        f"its {role} runs",
    )
    cluster.kubectl("delete", "pod", pod, "-n", namespace, "--grace-period=0", "--force")
    until_archived(archiving, namespace)
    files = TableFiles(str(claim / "dead-letters"))
    rows = files.query('SELECT DISTINCT topic_id, "partition", "offset" FROM records', "records")
    assert len(rows) == COUNT
    for table in ("records", "failures"):
        (counted,) = files.query(f"SELECT count(*) AS number FROM {table}", table)
        assert counted["number"] == COUNT
    (summed,) = files.query("SELECT sum(failures) AS number FROM failures", "failures")
    assert summed["number"] == COUNT


CONSOLE: Final = "knafka-console"


@pytest.fixture
def console(archiving: Installation) -> Iterator[str]:
    """The host of the console's function, which takes tokens without TLS; reports link to it."""
    cluster = archiving.cluster
    for file in ("rbac.yaml", "service.yaml"):
        manifests = (ROOT / "operator" / "deploy" / "console" / file).read_text()
        manifests = manifests.replace(
            ": knafka-operator:latest", f": {cluster.image('knafka-operator')}"
        ).replace(
            "KNAFKA_CONSOLE_NAME, value: cluster}",
            "KNAFKA_CONSOLE_NAME, value: cluster}\n"
            '            - {name: KNAFKA_CONSOLE_PLAIN_HTTP, value: "true"}',
        )
        cluster.apply(manifests)
    archiving.until_ready("ksvc", CONSOLE, OPERATOR_NAMESPACE)
    url = archiving.status("ksvc", CONSOLE, OPERATOR_NAMESPACE)["url"]
    with archiving.settings(KNAFKA_CONSOLE_URL=url):
        yield urlsplit(url).netloc


def test_a_served_report_is_read_in_a_browser_and_its_button_replays(
    archiving: Installation, namespace: str, claim: Path, console: str, tmp_path: Path
) -> None:
    """From the dead letter to what a person sees, is told of and does about it."""
    from selenium.webdriver import Keys

    cluster = archiving.cluster
    told = archiving.subscriber(namespace, "told")
    declare(archiving, namespace)
    bury(archiving, namespace)
    reported = [{"exact": {"type": "dev.knafka.deadletters.reported"}}]
    archiving.trigger(namespace, "tells", told.ref, filters=reported)
    until_archived(archiving, namespace)

    def report(run: str) -> dict[str, Any]:
        before = archiving.status("deadletterarchive", "kept", namespace).get("report") or {}
        requested = f"knafka.dev/run={run}"
        cluster.kubectl(
            "annotate", "--overwrite", "deadletterarchive", "kept", "-n", namespace, requested
        )

        def made() -> dict[str, Any]:
            found = archiving.status("deadletterarchive", "kept", namespace).get("report") or {}
            return dict(found) if found.get("report") != before.get("report") else {}

        found = cluster.wait_for(made, WITHIN, "a report is made")
        assert found.keys().isdisjoint({"notServed", "notAnnounced"}), found
        return found

    first = report("first")
    told.wait_for(1)
    assert told.ids() == [first["report"]]

    cluster.kubectl("create", "serviceaccount", "ada", "-n", namespace)
    for role in ("view", "knafka-console-viewer", "knafka-console-editor"):
        cluster.kubectl(
            "create", "rolebinding", f"ada-{role}", f"--clusterrole={role}",
            f"--serviceaccount={namespace}:ada", "-n", namespace,
        )  # fmt: skip
    token = cluster.kubectl("create", "token", "ada", "-n", namespace).strip()
    subscriber = archiving.subscriber(namespace, "mended")
    archiving.trigger(namespace, "fails", subscriber.ref, delivery={"retry": 0}, filters=MADE)
    every_host = f"--host-resolver-rules=MAP * {cluster.ingress}"
    with chromium_of(tmp_path, every_host) as chromium:
        chromium.get(f"http://{console}/report?of={namespace}/kept")
        wait(chromium, lambda: every(chromium, "#token"), 120)
        one(chromium, "#namespaces").send_keys(namespace)
        one(chromium, "#token").send_keys(token, Keys.ENTER)
        wait(chromium, lambda: every(chromium, ".opener"), 120)
        assert f"{COUNT}\nof {COUNT} that failed" in one(chromium, ".tiles").text
        one(chromium, ".opener").send_keys(Keys.ENTER)
        wait(chromium, lambda: one(chromium, ".send").is_displayed(), 60)
        one(chromium, ".send").send_keys(Keys.ENTER)
        one(chromium, "#ask .copy").send_keys(Keys.ENTER)
        wait(chromium, lambda: "Succeeded" in one(chromium, ".replays").text, WITHIN)
    subscriber.wait_for(COUNT, 120)
    assert sorted(subscriber.ids(), key=int) == [str(each) for each in range(COUNT)]
    # What is resolved a compaction finds out by what was settled of the replay.
    assert report("second")["unresolved"] == 0
    told.wait_for(2)


def test_a_backtest_of_a_sensor_runs_as_a_job(archiving: Installation, namespace: str) -> None:
    """The example, as docs/how-to/try-a-sensor.md has it; the Sensor need not be there."""
    cluster = archiving.cluster
    address = archiving.broker(namespace)
    for order in ("1", "2", "3"):
        for type_ in ("order.placed", "payment.received"):
            sent = archiving.send(
                address, f"{type_}-{order}", f"com.example.{type_}", orderid=order
            )
            assert sent.status_code == 202
    sensor = yaml.safe_load((ROOT / "examples" / "sensor" / "sensor.yaml").read_text())
    metadata = {"name": "fulfilment-backtest", "namespace": namespace}
    data = {"sensor.json": json.dumps(sensor)}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    topic = archiving.status("broker", "default", namespace)["annotations"][TOPIC_STATUS]
    job = (ROOT / "examples" / "sensor-backtest" / "job.yaml").read_text()
    for there, here in (
        ("namespace: default", f"namespace: {namespace}"),
        ("registry.example.com/team/knafka-jobs:1.0.0", cluster.image(IMAGE)),
        ("kafka.example.com:9092", archiving.kafka.bootstrap("PLAINTEXT")),
        ("knative-broker-default-default", topic),
    ):
        assert there in job
        job = job.replace(there, here)
    cluster.apply(job)
    cluster.kubectl(
        "wait", "--for=condition=Complete", f"--timeout={WITHIN:.0f}s", "-n", namespace,
        "job/fulfilment-backtest",
    )  # fmt: skip
    said = cluster.kubectl("logs", "-n", namespace, "job/fulfilment-backtest")
    found = json.loads(said.strip().splitlines()[-1])
    assert (found["events"], found["firings"]) == (6, {"ship": 3, "remind": 0})


def operate(installed: Installation, namespace: str, kind: str, name: str, **spec: Any) -> None:
    installed.cluster.apply(
        {
            "apiVersion": "knafka.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"archive": "kept", **spec},
        }
    )


def healed(installed: Installation, namespace: str) -> Subscriber:
    """A subscriber that has failed so many archived events, and takes any now."""
    subscriber = installed.subscriber(namespace)
    declare(installed, namespace)
    address = installed.broker(namespace)
    subscriber.behave(status=503)
    installed.trigger(namespace, "fails", subscriber.ref, delivery={"retry": 0})
    for number in range(COUNT):
        assert installed.send(address, str(number)).status_code == 202
    until_archived(installed, namespace)
    subscriber.behave(status=202)
    subscriber.forget()
    return subscriber


def until_done(installed: Installation, namespace: str, kind: str, name: str) -> dict[str, Any]:
    """An operation's status once it has ended."""

    def ended() -> dict[str, Any]:
        status = installed.status(kind.lower(), name, namespace)
        return status if status.get("phase") in ("Succeeded", "Failed") else {}

    status = installed.cluster.wait_for(ended, WITHIN, f"{kind} {name} has ended")
    assert status["phase"] == "Succeeded", status
    return status


def test_what_a_healed_subscriber_takes_is_replayed_resolved_and_purged(
    archiving: Installation, namespace: str, claim: Path
) -> None:
    """Two at once take turns; a second replay finds nothing; nothing is left but the tables."""
    cluster, subscriber = archiving.cluster, healed(archiving, namespace)

    operate(archiving, namespace, "DeadLetterReplay", "try", dryRun=True, select={"code": 503})
    tried = until_done(archiving, namespace, "DeadLetterReplay", "try")
    assert (tried["selected"], tried["triggers"]) == (COUNT, {f"{namespace}/default/fails": COUNT})
    operate(archiving, namespace, "DeadLetterReplay", "some", select={"ids": ["1", "2"]})
    operate(archiving, namespace, "DeadLetterReplay", "rest", select={"trigger": "fails"})
    some, rest = (
        until_done(archiving, namespace, "DeadLetterReplay", each) for each in ("some", "rest")
    )
    assert some["sent"] + rest["sent"] == COUNT, "whichever was first"
    subscriber.wait_for(COUNT)
    assert subscriber.summary()["duplicates"] == 0

    changed = cluster.kubectl(
        "patch", "deadletterreplay", "rest", "-n", namespace, "--type=merge",
        '-p={"spec":{"dryRun":true}}', check=False,
    )  # fmt: skip
    assert "immutable: make another DeadLetterReplay" in changed
    operate(archiving, namespace, "DeadLetterPurge", "old", select={"trigger": "fails"})
    assert until_done(archiving, namespace, "DeadLetterPurge", "old")["purged"] == COUNT
    (left,) = TableFiles(str(claim / "dead-letters")).query(
        "SELECT count(*) AS number FROM failures", "failures"
    )
    assert left["number"] == 0
    cluster.wait_for(lambda: not pods_of_archives(archiving, namespace), 90, "its pods are gone")
    assert cluster.kubectl("get", "jobs", "-n", namespace, "-oname") == ""
    cluster.kubectl("delete", "deadletterreplay", "--all", "-n", namespace, "--timeout=60s")


def test_a_replay_whose_pod_is_killed_sends_each_event_once(
    archiving: Installation, namespace: str, claim: Path
) -> None:
    """By SIGKILL in the middle of sending; and one that is deleted leaves no pod."""
    cluster, subscriber = archiving.cluster, healed(archiving, namespace)
    operate(archiving, namespace, "DeadLetterReplay", "again", rate=1)
    subscriber.wait_for(3, WITHIN)
    (pod,) = pods_of_archives(archiving, namespace)
    cluster.kubectl(
        *("delete", "pod", pod["metadata"]["name"], "-n", namespace),
        *("--grace-period=0", "--force"),
    )
    done = until_done(archiving, namespace, "DeadLetterReplay", "again")
    assert done["sent"] == COUNT
    assert subscriber.wait_for(COUNT)
    assert subscriber.summary()["duplicates"] == 0

    subscriber.behave(status=503)
    operate(archiving, namespace, "DeadLetterReplay", "ended", rate=1)
    cluster.wait_for(lambda: pods_of_archives(archiving, namespace), WITHIN, "it runs")
    cluster.kubectl("delete", "deadletterreplay", "ended", "-n", namespace, "--timeout=90s")
    assert not pods_of_archives(archiving, namespace)
