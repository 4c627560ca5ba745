"""The threat model: each line of docs/design/threat-model.md names a test that there is; and those
of its tests that belong nowhere else (issue 38)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from knafka.core.authorization import Authorization
from knafka_operator.model.event_policies import POLICIES_VERSION, POLICY
from knafka_operator.model.resources import EVENTING, Resource
from knafka_operator.senders.authentication import Authentication
from knafka_operator.senders.policies import Policies

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "threat-model.md"
SECURITY = ROOT / "SECURITY.md"
NOT_PROMISED = "Not promised"
PARTS = ("TLS", "NetworkPolicies")
"""What is only partly there: a line that waits for the rest goes above once it is."""


@cache
def there() -> frozenset[str]:
    """`test_file.py::test_name` of every test."""
    return frozenset(
        f"{path.name}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"(?m)^ *(?:async )?def (test_\w+)", path.read_text())
    )


def rows() -> list[tuple[str, str, str]]:
    """Heading and both cells of every line of its tables."""
    found, heading = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith(("| ---", "| may not", "| what |")):
            what, shown = line.strip("| ").split(" | ")
            found.append((heading, what, shown))
    return found


PROMISED = [row for row in rows() if row[0] != NOT_PROMISED]


@pytest.mark.parametrize("row", PROMISED, ids=lambda row: row[1][:60])
def test_every_line_names_tests_that_there_are(row: tuple[str, str, str]) -> None:
    named = re.findall(r"`([^`]+)`", row[2])
    assert named, "a line without a test is not promised"
    assert [each for each in named if each not in there()] == []


def test_what_is_not_promised_says_what_it_waits_for_and_names_no_test() -> None:
    waiting = [row for row in rows() if row[0] == NOT_PROMISED]
    assert waiting
    assert [what for _, what, _ in waiting if "::" in what] == []
    until = {shown for _, _, shown in waiting}
    assert all(each.startswith(("nobody's plan", *PARTS)) for each in until)


def test_every_boundary_has_lines() -> None:
    assert {heading for heading, _, _ in rows()} == {
        "Anybody in the pod network",
        "A namespace's owner",
        "A subscriber",
        "Who writes to Kafka",
        "A browser",
        "Who may change the operator's namespace",
        "On one machine",
        NOT_PROMISED,
    }


def test_security_promises_nothing_that_the_threat_model_has_no_line_of() -> None:
    """Each promise leads to the lines with its tests; `test_docs` holds that they are there."""
    promises = SECURITY.read_text().partition("Knafka's promises")[2].partition("Not promised")[0]
    bullets = re.split(r"(?m)^- ", promises)[1:]
    assert bullets
    assert [each for each in bullets if "(docs/design/threat-model.md#" not in each] == []


# Tests of lines that belong nowhere else

BROKER = {"apiVersion": EVENTING, "kind": "Broker"}
SENDER = "system:serviceaccount:evil:sender"


def may_send(*policies: dict[str, Any]) -> bool | Any:
    """Whether the sender may send to the Broker shop/default, for which these policies are known;
    without any, everybody may."""
    known = Policies()
    known.update(policies, ())
    resource = Resource.model_validate(
        {**BROKER, "metadata": {"namespace": "shop", "name": "default"}}
    )
    asked = Authentication(True, "allow-all", known.of("shop"))
    applied = tuple(each.policy for each in asked.applied_policies_of(resource))
    return Authorization(applied, asked.mode, "shop").verdict(SENDER)


def policy(namespace: str = "shop", **more: Any) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": "p", "uid": "1"}
    spec = {"from": [{"sub": SENDER}]}
    return {
        "apiVersion": POLICIES_VERSION,
        "kind": POLICY,
        "metadata": metadata,
        "spec": spec,
        **more,
    }


@pytest.mark.parametrize(
    "more",
    [
        {"spec": {"from": "everybody"}},
        {"spec": {"from": [{"sub": SENDER}], "filters": [{"no-such": {}}]}},
        {"spec": {"from": [{"sub": SENDER}], "to": "all"}},
        {"spec": {"from": [{"ref": {"kind": "PingSource", "name": "x"}}]}},
        {
            "spec": {"from": [{"ref": {"kind": "PingSource", "name": "x"}}]},
            "status": {"from": [SENDER], "conditions": [{"type": "Ready", "status": "False"}]},
        },
    ],
    ids=["senders", "filters", "targets", "unresolved", "not Ready"],
)
def test_a_policy_that_cant_be_read_opens_nothing(more: dict[str, Any]) -> None:
    """Not even what `allow-all` would."""
    assert may_send() is True
    assert may_send(policy()) is True
    assert may_send(policy(**more)) is False


def test_a_policy_of_another_namespace_opens_nothing() -> None:
    target = {"to": [{"ref": {**BROKER, "name": "default"}}], "from": [{"sub": SENDER}]}
    other = {"from": [{"sub": "system:serviceaccount:shop:web"}]}
    assert may_send(policy(spec=other), policy("evil", spec=target)) is False


def roles() -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((ROOT / "operator" / "deploy" / "rbac.yaml").read_text())
    return [each for each in documents if each["kind"] in ("ClusterRole", "Role")]


def test_the_operator_may_neither_grant_rights_nor_enter_pods_nor_write_secrets_elsewhere() -> None:
    for role in roles():
        for rule in role["rules"]:
            said = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert "*" not in said
            if "rbac.authorization.k8s.io" in rule["apiGroups"]:
                # Of tokens of Triggers' accounts: nobody may grant what they don't have.
                assert rule["resources"] == ["roles", "rolebindings"]
            assert not {"impersonate", "escalate", "bind"} & set(rule["verbs"])
            assert not {each for each in rule["resources"] if each.startswith("pods/")}
            writes = set(rule["verbs"]) - {"get", "list", "watch"}
            if role["kind"] == "ClusterRole" and writes:
                assert not {"secrets", "configmaps", "pods"} & set(rule["resources"])
            if "secrets" in rule["resources"] and writes - {"create"}:
                assert rule["resourceNames"] == [
                    "knafka-function-keys",
                    "knafka-webhook-certificate",
                ]
