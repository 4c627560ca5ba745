"""The API server asks the webhooks that the newest version declares (issue 30)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import kopf
import pytest
from kopf._cogs.structs import references
from kopf._core.engines.admission import build_webhooks

from knafka_operator.model.cluster import Document
from knafka_operator.webhooks import channel_handlers, handlers
from knafka_operator.webhooks.registration import Registration, declared_webhooks, is_newest

CONFIGURATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def pod(uid: str, version: str, second: int, **status: Any) -> dict[str, Any]:
    created = f"2026-11-25T22:00:{second:02}Z"
    labels = {"pod-template-hash": version}
    metadata = {"uid": uid, "creationTimestamp": created, "labels": labels}
    return {"metadata": metadata, "status": status}


def going(document: dict[str, Any]) -> dict[str, Any]:
    return {
        **document,
        "metadata": {**document["metadata"], "deletionTimestamp": "2026-11-25T22:01:00Z"},
    }


OLD, NEW = (pod("old", "v1", 1), pod("old-2", "v1", 2)), (pod("new", "v2", 10),)


@pytest.mark.parametrize(
    ("uid", "pods", "newest"),
    [
        pytest.param("old", OLD, True, id="the only version"),
        pytest.param("new", (*OLD, *NEW), True, id="one that takes over"),
        pytest.param("old", (*OLD, *NEW), False, id="one that still runs"),
        pytest.param("old", (*OLD, going(NEW[0])), True, id="one that was taken back"),
        pytest.param(
            "old",
            (*OLD, pod("new", "v2", 10, phase="Failed")),
            True,
            id="one that takes over and has failed",
        ),
        pytest.param(
            "again",
            (*OLD, *NEW, pod("again", "v1", 20)),
            False,
            id="an older one whose pod was made anew",
        ),
        pytest.param("old", (going(OLD[0]), *NEW), False, id="one that ends"),
        pytest.param("old", (going(OLD[0]), OLD[1]), False, id="one that ends beside its like"),
        pytest.param("elsewhere", OLD, True, id="outside of the cluster"),
    ],
)
def test_only_the_version_that_came_last_registers(
    uid: str, pods: Sequence[Document], newest: bool
) -> None:
    assert is_newest(uid, pods) is newest


@pytest.fixture
def registry() -> kopf.OperatorRegistry:
    """With all handlers that there are."""
    registry = kopf.OperatorRegistry()
    for handler in handlers.REGISTRY._webhooks.get_all_handlers():
        registry._webhooks.append(handler)
    channel_handlers.register(registry)
    return registry


def test_what_is_registered_is_what_kopf_would_have_registered(
    registry: kopf.OperatorRegistry,
) -> None:
    """Names among it: an upgrade replaces those, and adds none."""
    ours = declared_webhooks(registry, "knafka.dev", "knafka", "PEM")
    authority = base64.b64encode(b"PEM").decode()
    config: Any = {
        "service": {"name": "knafka-webhook", "namespace": "knafka", "port": 443},
        "caBundle": authority,
    }
    resources = [
        references.Resource(
            group=rule["apiGroups"][0],
            version=rule["apiVersions"][0],
            plural=rule["resources"][0],
            namespaced=True,
        )
        for some in ours.values()
        for each in some
        for rule in each["rules"]
    ]
    for kind, reason in zip(CONFIGURATIONS, ("mutating", "validating"), strict=True):
        of_kind = [
            each for each in registry._webhooks.get_all_handlers() if each.reason.value == reason
        ]
        theirs = build_webhooks(
            of_kind, resources=set(resources), name_suffix="knafka.dev", client_config=config
        )
        for each in theirs:
            del each["objectSelector"], each["admissionReviewVersions"]
        assert [
            {key: value for key, value in each.items() if key != "admissionReviewVersions"}
            for each in ours[kind]
        ] == theirs
        assert len(theirs) == 4


class Api:
    """An API server with these pods."""

    def __init__(self, *pods: Document) -> None:
        self.pods = list(pods)
        self.stored: dict[str, Document] = {}

    async def list(self, *_: object) -> list[Document]:
        return self.pods

    async def merge_cluster_scoped(self, manifest: Document) -> None:
        self.stored[manifest["kind"]] = manifest


def replica(api: Any, uid: str, *names: str) -> Registration:
    webhooks = {kind: [{"name": each} for each in names] for kind in CONFIGURATIONS}
    return Registration(api, "knafka", uid, "knafka.dev", webhooks)


@pytest.mark.parametrize("names", [("brokers", "channels"), ()], ids=["on", "off"])
async def test_whatever_ends_last_the_newest_declares(names: Sequence[str]) -> None:
    """A component is switched, and a replica without it goes on for a while."""
    api = Api(*OLD, *NEW)
    old, new = replica(api, "old", "brokers"), replica(api, "new", *names)
    await new.register()
    await old.register()
    for kind in CONFIGURATIONS:
        assert [each["name"] for each in api.stored[kind]["webhooks"]] == list(names)
