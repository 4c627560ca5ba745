"""What operator/deploy installs: two replicas that share what they must, and no more rights."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from knafka_operator.installation.settings import Settings
from knafka_operator.kube_api import leadership
from knafka_operator.kube_api.memory_cluster import MemoryCluster
from knafka_operator.model.resources import FINALIZER
from knafka_operator.runtime.selections import UNWATCHED
from knafka_operator.webhooks import handlers
from knafka_operator.webhooks import server as webhooks

DEPLOY = Path(__file__).resolve().parents[2] / "operator" / "deploy"


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], Any]:
    return {
        (each["kind"], each["metadata"]["name"]): each
        for file in ("operator.yaml", "rbac.yaml")
        for each in yaml.safe_load_all((DEPLOY / file).read_text())
    }


def test_one_of_two_replicas_always_stays(manifests: dict[tuple[str, str], Any]) -> None:
    deployment = manifests["Deployment", "knafka-operator"]["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    budget = manifests["PodDisruptionBudget", "knafka-operator"]["spec"]
    assert budget["minAvailable"] == 1
    assert budget["selector"] == deployment["selector"]
    pod = deployment["template"]["spec"]
    assert ("PriorityClass", pod["priorityClassName"]) in manifests
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert spread["labelSelector"] == deployment["selector"]


@pytest.mark.conformance("BUS-29")
def test_the_lease_is_the_only_one_that_may_be_changed(
    manifests: dict[tuple[str, str], Any],
) -> None:
    rules = [
        rule
        for (kind, _), each in manifests.items()
        if kind in ("Role", "ClusterRole")
        for rule in each["rules"]
        if "leases" in rule["resources"]
    ]
    assert [(rule.get("resourceNames"), rule["verbs"]) for rule in rules] == [
        (None, ["create"]),
        ([leadership.LEASE_NAME], ["get", "update"]),
    ]


def test_what_is_read_but_may_not_be_watched_is_not_watched(
    manifests: dict[tuple[str, str], Any],
) -> None:
    """Each look at a Revision began a watch that was refused again every two minutes."""
    rules = manifests["ClusterRole", "knafka-operator"]["rules"]
    unheard = {
        (group, resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if "get" in rule["verbs"] and "watch" not in rule["verbs"]
    }
    unwatched = {(version.rpartition("/")[0], f"{kind.lower()}s") for version, kind in UNWATCHED}
    rbac = "rbac.authorization.k8s.io"
    assert unheard == {
        ("serving.knative.dev", "revisions"),
        ("", "serviceaccounts"),
        *((rbac, "roles"), (rbac, "rolebindings")),
    }
    assert unheard <= unwatched


def test_a_pod_is_the_same_after_its_container_was_started_anew_and_nobody_else_is() -> None:
    pod = {"KNAFKA_NAMESPACE": "knafka", "KNAFKA_IMAGE": "knafka", "HOSTNAME": "operator-1"}
    first, again, elsewhere, other = (
        Settings.from_environment({**pod, **more}).identity
        for more in ({"KNAFKA_POD_UID": "7"}, {"KNAFKA_POD_UID": "7"}, {}, {})
    )
    assert first == again == "operator-1_7"
    assert len({first, elsewhere, other}) == 3


def test_the_webhooks_kopf_takes_no_finalizer_away() -> None:
    """kopf removes its own where no handler wants it: Brokers went before their topics."""
    assert handlers.kopf_settings().persistence.finalizer != FINALIZER


async def test_replicas_that_start_at_one_time_share_one_certificate() -> None:
    """Each made its own, and the API server believed the one that came last."""
    cluster, now = MemoryCluster(), datetime.now(UTC)
    first, second = await asyncio.gather(
        *(webhooks.ensure_certificate(cluster, "knafka", now) for _ in range(2))
    )
    assert {key: text.strip() for key, text in first.items()} == {
        key: text.strip() for key, text in second.items()
    }
