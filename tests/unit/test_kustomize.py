"""The kustomizations that users apply, or copy and change, as kubectl builds them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.gate import IN_CI

from knafka_console.settings import ConsoleSettings as ConsoleSettings
from knafka_operator.archives.manifests import DRIVER_ROLE
from knafka_operator.installation.settings import Settings

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not IN_CI and shutil.which("kubectl") is None, reason="kubectl is not installed"
    ),
]


Manifests = dict[tuple[str, str], dict[str, Any]]
"""By kind and name."""


def pod(manifests: Manifests) -> dict[str, Any]:
    """The operator's."""
    spec: dict[str, Any] = manifests["Deployment", "knafka-operator"]["spec"]["template"]["spec"]
    return spec


def environment(manifests: Manifests) -> dict[str, str]:
    """The operator's; what the pod's own fields say is a placeholder."""
    (container,) = pod(manifests)["containers"]
    return variables(container)


def variables(container: Mapping[str, Any]) -> dict[str, str]:
    """What a container gets where there are no Secrets, all of which are optional."""
    return {
        each["name"]: each.get("value", "field")
        for each in container["env"]
        if "secretKeyRef" not in each.get("valueFrom", {})
    }


def built(folder: str | Path) -> Manifests:
    command = ["kubectl", "kustomize", str(ROOT / folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    manifests = yaml.safe_load_all(done.stdout)
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


def test_the_example_changes_what_is_the_users_and_leaves_the_rest() -> None:
    base, mine = built("operator/deploy"), built("examples/kustomize")
    changed = {key for key in base if base[key] != mine[key]}
    assert base.keys() == mine.keys()
    assert changed == {("Deployment", "knafka-operator"), ("ConfigMap", "kafka-broker-config")}
    (container,) = pod(mine)["containers"]
    assert container["image"] == "registry.example.com/team/knafka-operator:1.0.0"
    assert environment(mine)["KNAFKA_IMAGE"] == "registry.example.com/team/knafka:1.0.0"


def test_monitoring_is_applied_beside_the_base() -> None:
    """Issue 16: monitors, alerts and a dashboard that Grafana's sidecar finds."""
    found = built("operator/deploy/monitoring")
    assert found.keys() == {
        ("ServiceMonitor", "knafka-operator"),
        ("PodMonitor", "knafka-functions"),
        ("PrometheusRule", "knafka"),
        ("ConfigMap", "knafka-dashboard"),
    }
    dashboard = found["ConfigMap", "knafka-dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["knafka.json"])["title"] == "Knafka"


def test_the_example_adds_to_the_settings_that_the_base_has() -> None:
    base, mine = built("operator/deploy"), built("examples/kustomize")
    before, after = pod(base), pod(mine)
    of_functions = {"KNAFKA_POD", "KNAFKA_RECEIVER_RESOURCES", "KNAFKA_DISPATCHER_RESOURCES"}
    assert environment(mine).keys() == environment(base).keys() | of_functions
    assert after["containers"][0]["securityContext"] == before["containers"][0]["securityContext"]
    assert {"imagePullSecrets", "nodeSelector", "tolerations"} <= after.keys()


def test_the_operator_takes_what_the_example_says_of_the_functions_pods() -> None:
    pods = Settings.from_environment(environment(built("examples/kustomize"))).pods
    assert pods.spec["imagePullSecrets"] == [{"name": "my-registry"}]
    assert {"nodeSelector", "tolerations"} < pods.spec.keys()
    assert pods.receiver_resources["limits"] == {"memory": "512Mi"}


@pytest.mark.parametrize("component", [False, True], ids=["alone", "with its component"])
def test_a_kustomization_elsewhere_builds_upon_the_base(tmp_path: Path, component: bool) -> None:
    """As the published base is used: a folder of one's own names it, and where the images are."""
    deploy = os.path.relpath(ROOT / "operator" / "deploy", tmp_path.resolve())
    mine: dict[str, Any] = {
        "resources": [deploy],
        "images": [{"name": "knafka-operator", "newName": "mine/operator", "newTag": "2"}],
    }
    if component:
        mine["components"] = [f"{deploy}/project-secrets"]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    found = built(tmp_path)
    assert pod(found)["containers"][0]["image"] == "mine/operator:2"
    assert ("KNAFKA_PROJECT_SECRETS" in environment(found)) is component
    assert (("ClusterRole", "knafka-project-secrets") in found) is component


CHANNELS = {
    ("CustomResourceDefinition", "kafkachannels.messaging.knative.dev"),
    ("CustomResourceDefinition", "subscriptions.messaging.knative.dev"),
    ("ConfigMap", "kafka-channel-config"),
    ("ClusterRole", "knafka-channels"),
    ("ClusterRoleBinding", "knafka-channels"),
    ("Role", "knafka-channels"),
    ("RoleBinding", "knafka-channels"),
    ("ServiceAccount", "knafka-channel-dispatchers"),
    ("ClusterRole", "knafka-kafkachannel-addressable"),
    ("ClusterRole", "knafka-kafkachannel-channelable"),
}


def test_the_console_is_a_component_and_its_account_may_next_to_nothing(tmp_path: Path) -> None:
    """docs/decisions/0025: what a viewer sees is decided by the viewer's own rights."""
    deploy = os.path.relpath(ROOT / "operator" / "deploy", tmp_path.resolve())
    mine = {
        "resources": [deploy],
        "components": [f"{deploy}/console"],
        "images": [{"name": "knafka-operator", "newName": "mine/operator", "newTag": "2"}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    found, base = built(tmp_path), built("operator/deploy")
    assert found.keys() - base.keys() == {
        ("ServiceAccount", "knafka-console"),
        ("Role", "knafka-console"),
        ("RoleBinding", "knafka-console"),
        ("Role", "knafka-console-secrets"),
        ("RoleBinding", "knafka-console-secrets"),
        ("ClusterRole", "knafka-console-viewer"),
        ("ClusterRole", "knafka-console-editor"),
        ("Service", "knafka-console"),
        ("Service", "knafka-operator-replicas"),
    }
    (rule,) = found["Role", "knafka-console"]["rules"]
    assert (rule["verbs"], rule["resourceNames"]) == (
        ["get"], ["kafka-broker-config", "kafka-channel-config"],
    )  # fmt: skip
    assert found["Role", "knafka-console-secrets"]["rules"] == [], "until somebody names one"
    for name in ("viewer", "editor"):
        assert "labels" not in found["ClusterRole", f"knafka-console-{name}"]["metadata"]
    (container,) = found["Service", "knafka-console"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "mine/operator:2"
    settings = ConsoleSettings.from_environment(variables(container))
    host = found["Service", "knafka-operator-replicas"]
    assert settings.metrics == f"{host['metadata']['name']}.{host['metadata']['namespace']}.svc"
    assert host["spec"]["selector"].items() <= pod_labels(base).items()
    assert not settings.plain_http


def test_sensors_are_asked_for_by_a_component(tmp_path: Path) -> None:
    """Without it nothing of theirs is there, and with it the operator may make Triggers and
    Subscriptions."""
    deploy = os.path.relpath(ROOT / "operator" / "deploy", tmp_path.resolve())
    mine = {"resources": [deploy], "components": [f"{deploy}/sensors"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    found, base = built(tmp_path), built("operator/deploy")
    assert found.keys() - base.keys() == {
        ("CustomResourceDefinition", "sensors.knafka.dev"),
        ("ClusterRole", "knafka-sensors"),
        ("ClusterRoleBinding", "knafka-sensors"),
    }
    assert {key for key in base if base[key] != found[key]} == {("Deployment", "knafka-operator")}
    assert environment(found) == environment(base) | {"KNAFKA_SENSORS": "enabled"}
    rules = found["ClusterRole", "knafka-sensors"]["rules"]
    deletes = [rule["resources"] for rule in rules if "delete" in rule["verbs"]]
    assert deletes == [["triggers"], ["subscriptions"]]


def test_sources_are_asked_for_by_a_component(tmp_path: Path) -> None:
    """Without it eventing-kafka-broker's are left alone, and their CRD isn't touched."""
    deploy = os.path.relpath(ROOT / "operator" / "deploy", tmp_path.resolve())
    mine = {"resources": [deploy], "components": [f"{deploy}/sources"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    found, base = built(tmp_path), built("operator/deploy")
    assert found.keys() - base.keys() == {
        ("CustomResourceDefinition", "kafkasources.sources.knative.dev"),
        ("ClusterRole", "knafka-sources"),
        ("ClusterRoleBinding", "knafka-sources"),
        ("ClusterRole", "knafka-kafkasource-observer"),
    }
    assert {key for key in base if base[key] != found[key]} == {("Deployment", "knafka-operator")}
    assert environment(found) == environment(base) | {"KNAFKA_SOURCES": "enabled"}
    for rule in found["ClusterRole", "knafka-sources"]["rules"]:
        assert "delete" not in rule["verbs"]


def test_sinks_are_asked_for_by_a_component(tmp_path: Path) -> None:
    """Without it eventing-kafka-broker's are left alone, and their CRD isn't touched."""
    deploy = os.path.relpath(ROOT / "operator" / "deploy", tmp_path.resolve())
    mine = {"resources": [deploy], "components": [f"{deploy}/sinks"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    found, base = built(tmp_path), built("operator/deploy")
    assert found.keys() - base.keys() == {
        ("CustomResourceDefinition", "kafkasinks.eventing.knative.dev"),
        ("ClusterRole", "knafka-sinks"),
        ("ClusterRoleBinding", "knafka-sinks"),
        ("ClusterRole", "knafka-kafkasink-addressable"),
    }
    assert {key for key in base if base[key] != found[key]} == {("Deployment", "knafka-operator")}
    assert environment(found) == environment(base) | {"KNAFKA_SINKS": "enabled"}
    for rule in found["ClusterRole", "knafka-sinks"]["rules"]:
        assert "delete" not in rule["verbs"]


def test_archives_are_asked_for_by_a_component_and_only_jobs_may_make_pods(tmp_path: Path) -> None:
    """Issue 18: the operator itself may make none, and a Job's account only beside it."""
    deploy = os.path.relpath(ROOT / "operator" / "deploy", tmp_path.resolve())
    mine = {
        "resources": [deploy],
        "components": [f"{deploy}/dead-letters"],
        "images": [{"name": "knafka-operator", "newName": "mine/operator", "newTag": "2"}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    found, base = built(tmp_path), built("operator/deploy")
    assert found.keys() - base.keys() == {
        ("CustomResourceDefinition", "deadletterarchives.knafka.dev"),
        ("CustomResourceDefinition", "deadletterreplays.knafka.dev"),
        ("CustomResourceDefinition", "deadletterpurges.knafka.dev"),
        ("ClusterRole", "knafka-dead-letters"),
        ("ClusterRole", "knafka-dead-letters-viewer"),
        ("ClusterRole", "knafka-dead-letters-replayer"),
        ("ClusterRole", "knafka-dead-letters-editor"),
        ("ClusterRole", "knafka-dead-letter-driver"),
        ("ClusterRoleBinding", "knafka-dead-letters"),
        ("Role", "knafka-dead-letters"),
        ("RoleBinding", "knafka-dead-letters"),
    }
    assert environment(found) == environment(base) | {"KNAFKA_JOBS_IMAGE": "knafka-jobs:latest"}
    rules = found["ClusterRole", "knafka-dead-letters"]["rules"]
    assert not [rule for rule in rules if "pods" in rule["resources"]]
    (bound,) = (rule for rule in rules if "bind" in rule["verbs"])
    assert bound["resourceNames"] == [DRIVER_ROLE]
    (driver,) = found["ClusterRole", DRIVER_ROLE]["rules"]
    assert driver["resources"] == ["pods"]


def test_who_may_replay_may_neither_purge_nor_make_archives() -> None:
    """Issue 18: an archive's pods have the Secrets that it names."""
    documents = yaml.safe_load_all((ROOT / "operator/deploy/dead-letters/rbac.yaml").read_text())
    (role,) = (
        each for each in documents if each["metadata"]["name"] == "knafka-dead-letters-replayer"
    )
    reading, making = role["rules"]
    assert reading["verbs"] == ["get", "list", "watch"]
    assert making["resources"] == ["deadletterreplays"]


def pod_labels(manifests: Manifests) -> dict[str, str]:
    """Of the operator's pods."""
    template = manifests["Deployment", "knafka-operator"]["spec"]["template"]
    labels: dict[str, str] = template["metadata"]["labels"]
    return labels


@pytest.fixture(scope="module")
def with_channels(tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    """The base with both of its components."""
    folder = tmp_path_factory.mktemp("channels")
    deploy = os.path.relpath(ROOT / "operator" / "deploy", folder.resolve())
    mine = {
        "resources": [deploy],
        "components": [f"{deploy}/channels", f"{deploy}/project-secrets"],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    return built(folder)


def test_channels_are_asked_for_by_a_component(with_channels: Manifests) -> None:
    base = built("operator/deploy")
    assert not CHANNELS & base.keys()
    secrets = {(kind, "knafka-project-secrets") for kind in ("ClusterRole", "ClusterRoleBinding")}
    assert with_channels.keys() == base.keys() | CHANNELS | secrets
    changed = {key for key in base if base[key] != with_channels[key]}
    assert changed == {("Deployment", "knafka-operator")}
    more = {"KNAFKA_CHANNELS": "enabled", "KNAFKA_PROJECT_SECRETS": "true"}
    assert environment(with_channels) == environment(base) | more


@pytest.mark.conformance("KN-CHN-07")
def test_the_roles_of_other_controllers_take_in_channels(with_channels: Manifests) -> None:
    """KN-CHN-07."""
    found = {}
    for duck in ("addressable", "channelable"):
        role = with_channels["ClusterRole", f"knafka-kafkachannel-{duck}"]
        assert role["metadata"]["labels"] == {f"duck.knative.dev/{duck}": "true"}
        (rule,) = role["rules"]
        assert rule["apiGroups"] == ["messaging.knative.dev"]
        assert rule["resources"] == ["kafkachannels", "kafkachannels/status"]
        found[duck] = set(rule["verbs"])
    assert found["addressable"] == {"get", "list", "watch"}
    assert found["channelable"] == found["addressable"] | {"create", "update", "patch", "delete"}


def test_channels_give_the_operator_no_more_rights_than_they_need(
    with_channels: Manifests,
) -> None:
    """Nothing of anybody's is deleted but Services and Ingresses, and no Secret is written."""
    rules = with_channels["ClusterRole", "knafka-channels"]["rules"]
    deletes = [set(rule["resources"]) for rule in rules if "delete" in rule["verbs"]]
    assert deletes == [{"services"}, {"ingresses"}]
    asked = {each for rule in rules for each in rule["resources"]}
    assert "secrets" not in asked
    own = with_channels["Role", "knafka-channels"]["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in own] == [
        (["pods"], ["get", "list"]),
        (["namespaces"], ["get"]),
    ]
    for kind in ("ClusterRole", "Role"):
        binding = with_channels[f"{kind}Binding", "knafka-channels"]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (kind, "knafka-channels")
        (subject,) = binding["subjects"]
        assert ("ServiceAccount", subject["name"]) in with_channels


@pytest.mark.conformance("CHN-17")
def test_where_the_channels_kafka_is_outlives_an_upgrade(with_channels: Manifests) -> None:
    """A value here would replace the user's whenever this is applied again."""
    config = with_channels["ConfigMap", "kafka-channel-config"]
    assert config["metadata"]["namespace"] == "knafka"
    assert "data" not in config


@pytest.mark.parametrize("file", ["operator/deploy/operator.yaml", "examples", "func.yaml"])
def test_no_registry_is_named_but_that_of_the_docs(file: str) -> None:
    """Images have bare names: who installs them says where they are."""
    path = ROOT / file
    files = path.rglob("*.yaml") if path.is_dir() else [path]
    registries = {
        found
        for each in files
        for found in re.findall(r"([\w.-]+(?:\.[\w-]+|:\d+)/[\w./-]*knafka)", each.read_text())
    }
    assert registries <= {"registry.example.com/team/knafka"}


def test_a_busy_node_does_not_have_the_operator_restarted() -> None:
    """200 Triggers with a first pod each had both replicas restarted three times in five minutes:
    a probe waited for a second, and three in a row were enough."""
    (container,) = pod(built("operator/deploy"))["containers"]
    probe = container["livenessProbe"]
    assert probe["timeoutSeconds"] >= 10
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 60
