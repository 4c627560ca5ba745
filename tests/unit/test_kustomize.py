"""The kustomizations that users apply, or copy and change, as kubectl builds them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.gate import IN_CI

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not IN_CI and shutil.which("kubectl") is None, reason="kubectl is not installed"
)


def built(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Manifests by kind and name."""
    command = ["kubectl", "kustomize", str(ROOT / folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    manifests = yaml.safe_load_all(done.stdout)
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


def test_the_example_changes_what_is_the_users_and_leaves_the_rest() -> None:
    base, mine = built("operator/deploy"), built("examples/kustomize")
    changed = {key for key in base if base[key] != mine[key]}
    assert base.keys() == mine.keys()
    assert changed == {("Deployment", "knafka-operator"), ("ConfigMap", "kafka-broker-config")}
    assert "registry.local" not in yaml.safe_dump(mine["Deployment", "knafka-operator"])


def test_the_example_keeps_the_settings_that_the_base_has() -> None:
    before, after = (
        built(folder)["Deployment", "knafka-operator"]["spec"]["template"]["spec"]
        for folder in ("operator/deploy", "examples/kustomize")
    )
    names = [{each["name"] for each in pod["containers"][0]["env"]} for pod in (before, after)]
    assert names[0] == names[1]
    assert after["containers"][0]["securityContext"] == before["containers"][0]["securityContext"]
    assert {"imagePullSecrets", "nodeSelector", "tolerations"} <= after.keys()
