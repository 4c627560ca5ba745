"""Dead letters kept in tables by Jobs that start by themselves (issue 18).

The jobs' image takes minutes to build, so `make chaos` has these. Tables are in a folder of this
machine, which is the node.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.cluster import OPERATOR_NAMESPACE, testcluster
from support.gate import only_chaos
from support.installation import ROOT, Installation

from knafka_jobs.lookup.run import TableFiles

IMAGE: Final = "knafka-jobs"
WITHIN: Final = 300.0
"""Seconds for a Job: its image is pulled, and Spark starts."""
COUNT: Final = 20

pytestmark = [pytest.mark.timeout(1_800), only_chaos]


@pytest.fixture(scope="module")
def archiving(installed: Installation) -> Iterator[Installation]:
    """With what operator/deploy/dead-letters adds."""
    cluster = installed.cluster
    testcluster("jobs")
    cluster.apply(ROOT / "crds" / "dead-letters")
    cluster.apply(ROOT / "operator" / "deploy" / "dead-letters" / "rbac.yaml")
    crd = "crd/deadletterarchives.knafka.dev"
    cluster.kubectl("wait", "--for=condition=Established", crd, "--timeout=60s")
    with installed.settings(KNAFKA_JOBS_IMAGE=cluster.image(IMAGE)):
        yield installed


@pytest.fixture
def claim(archiving: Installation, namespace: str) -> Iterator[Path]:
    """A claim `tables`, and the folder that it is."""
    cluster = archiving.cluster
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # a hostPath has no fsGroup
        spec: dict[str, Any] = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": namespace},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": spec["accessModes"],
                "storageClassName": "",
                "hostPath": {"path": folder},
                "claimRef": {"namespace": namespace, "name": "tables"},
            },
        }
        cluster.apply(volume)
        cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "tables", "namespace": namespace},
                "spec": {**spec, "volumeName": namespace},
            }
        )
        yield Path(folder)
        cluster.kubectl("delete", "deadletterarchive", "--all", "-n", namespace, "--timeout=90s")
        cluster.kubectl("delete", "pvc", "tables", "-n", namespace, "--wait=false")
        cluster.kubectl("delete", "pv", namespace, "--wait=false")


def bury(installed: Installation, namespace: str) -> None:
    """So many events that no subscriber takes, and wait until they are dead letters."""
    address = installed.broker(namespace)
    nobody = {"uri": f"http://nobody.{namespace}.svc.cluster.local"}
    installed.trigger(namespace, "fails", nobody, delivery={"retry": 0})
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
