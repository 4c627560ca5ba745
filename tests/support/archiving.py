"""DeadLetterArchives in the test cluster: what they need, and where their tables are.

Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from support.cluster import Cluster, testcluster
from support.installation import ROOT, Installation
from support.s3 import Bucket, gateway

from testcluster import settings

IMAGE: Final = "knafka-jobs"
WITHIN: Final = 300.0
"""Seconds for a Job: its image is pulled, and Spark starts."""


@pytest.fixture(scope="session")
def archiving(installed: Installation) -> Iterator[Installation]:
    """With what operator/deploy/dead-letters adds."""
    cluster = installed.cluster
    testcluster("jobs")
    cluster.apply(ROOT / "crds" / "dead-letters")
    cluster.apply(ROOT / "operator" / "deploy" / "dead-letters" / "rbac.yaml")
    cluster.until_established("crd/deadletterarchives.knafka.dev")
    with installed.settings(KNAFKA_JOBS_IMAGE=cluster.image(IMAGE)):
        yield installed


@pytest.fixture(scope="session")
def cluster_bucket(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """One that pods and tests reach at the same address."""
    with gateway(tmp_path_factory.mktemp("cluster-s3"), settings.HOST_IP) as found:
        yield found


@contextmanager
def volume(cluster: Cluster, namespace: str, claim: str) -> Iterator[Path]:
    """The folder that a claim of this name gets: one of this machine, which is the node.

    At the end the namespace's archives are deleted, too, and the claim.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # a hostPath has no fsGroup
        cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": namespace},
                "spec": {
                    "capacity": {"storage": "20Gi"},
                    "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                    "storageClassName": "",
                    "hostPath": {"path": folder},
                    "claimRef": {"namespace": namespace, "name": claim},
                },
            }
        )
        yield Path(folder)
        cluster.kubectl("delete", "deadletterarchive", "--all", "-n", namespace, "--timeout=90s")
        cluster.kubectl(
            "delete", "pvc", claim, "-n", namespace, "--wait=false", "--ignore-not-found"
        )
        cluster.kubectl("delete", "pv", namespace, "--wait=false")
