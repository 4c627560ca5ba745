"""Jobs on tables as they are found: those with a label, and the last pod of each."""

from __future__ import annotations

from collections.abc import Sequence

from knafka_operator.decide import archive_runs
from knafka_operator.decide.archive_manifests import BATCH, JOB_NAME
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.resources import CORE


async def jobs_of(cluster: Cluster, label: str, uid: str, namespace: str) -> list[Document]:
    """In the order of their runs. Raises `ClusterError`."""
    found = await cluster.list(BATCH, "Job", {label: uid}, namespace)
    return sorted(found, key=archive_runs.run_of)


async def last_pods(cluster: Cluster, jobs: Sequence[Document]) -> dict[str, Document]:
    """By the name of the Job. Raises `ClusterError`."""
    pods = {}
    for each in jobs:
        name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
        if found := await cluster.list(CORE, "Pod", {JOB_NAME: name}, namespace):
            pods[name] = max(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    return pods
