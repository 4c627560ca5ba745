"""The world of `behaviour` in the test cluster: the operator as it is installed for all its tests.

Each test has a namespace; deleting its Triggers and Brokers is left to that namespace's end.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx
import pytest
from confluent_kafka.admin import AdminClient
from support.behaviour import conditions_of, send
from support.cluster import OPERATOR_NAMESPACE, Cluster
from support.installation import Installation
from support.kafka import names_in
from support.listener import Listener

from knafka_operator.model.conditions import Condition
from knafka_operator.model.resources import PAUSED_ANNOTATION

T = TypeVar("T")

PATIENCE: Final = 90.0
"""Seconds: cold starts of pods on a busy machine."""
NOWHERE: Final = "127.0.0.1:9"
"""An address at which no Kafka answers a pod."""


class ClusterWorld:
    """See `behaviour.World`."""

    def __init__(self, installed: Installation, listener: Listener) -> None:
        self.namespace = f"behaviour-{uuid.uuid4().hex[:6]}"
        self._installed = installed
        self._cluster: Cluster = installed.cluster
        self._listener = listener
        self._cluster.make_namespace(self.namespace)

    def close(self) -> None:
        for kind in ("triggers", "brokers"):
            self._cluster.delete(kind, self.namespace)
        self._cluster.delete("namespace", "", self.namespace)

    def apply(self, *documents: Mapping[str, Any]) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self._cluster.apply(items, namespace=self.namespace)

    def pause(self, trigger: str, *, paused: bool = True) -> None:
        annotation = {PAUSED_ANNOTATION: "true" if paused else None}
        self._cluster.annotate("trigger", trigger, self.namespace, **annotation)

    def delete(self, kind: str, name: str) -> None:
        self._cluster.kubectl("delete", kind, name, "-n", self.namespace, "--timeout=90s")

    def refusal(self, *documents: Mapping[str, Any]) -> str:
        items = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        answer = self._cluster.kubectl(
            *("apply", "-n", self.namespace, "--dry-run=server", "-f-"),
            text=json.dumps(items),
            check=False,
        )
        return answer if "denied the request" in answer else ""

    def conditions(self, kind: str, name: str) -> list[Condition]:
        return conditions_of(self._status(kind, name).get("conditions") or ())

    def observes_newest(self, kind: str, name: str) -> bool:
        found = self._cluster.get(kind, name, self.namespace) or {}
        observed = found.get("status", {}).get("observedGeneration")
        return bool(found and observed == found["metadata"]["generation"])

    def until(self, holds: Callable[[], T], what: Callable[[], str]) -> T:
        found: list[T] = []

        def is_so() -> bool:
            found[:] = [holds()]
            return bool(found[0])

        try:
            self._cluster.wait_for(is_so, PATIENCE, "what is expected")
        except pytest.fail.Exception as error:
            pytest.fail(f"{what()}: {error}")
        return found[0]

    def subscriber(self, name: str) -> dict[str, Any]:
        return self._listener.sink(self._path(name))

    def arrived(self, name: str) -> list[str]:
        return [each.id for each in self._listener.at(self._path(name))]

    def send(self, broker: str, *ids: str, type_: str = "made") -> None:
        parts = urlsplit(self._status("Broker", broker)["address"]["url"])

        def post(_: str, **request: Any) -> httpx.Response:
            return self._cluster.request(parts.netloc, parts.path, **request)

        send(post, parts.path, *ids, type_=type_)

    @contextmanager
    def kafka_is_away(self) -> Iterator[Mapping[str, str]]:
        yield {"bootstrap.servers": NOWHERE}

    def kept_in_kafka(self) -> set[str]:
        admin = AdminClient({"bootstrap.servers": self._installed.kafka.bootstrap("PLAINTEXT")})
        return {each for each in names_in(admin) if self.namespace in each}

    def restart(self) -> None:
        leader = self._installed.leader()
        self._cluster.delete("pod", OPERATOR_NAMESPACE, leader.partition("_")[0])
        self.until(
            lambda: self._installed.leader() not in ("", leader), lambda: f"{leader} still leads"
        )
        self._installed.until_running()

    def _path(self, subscriber: str) -> str:
        return f"/{self.namespace}/{subscriber}"

    def _status(self, kind: str, name: str) -> dict[str, Any]:
        return self._installed.status(kind, name, self.namespace)


@pytest.fixture(scope="session")
def cluster_world(
    installed: Installation, listener: Listener
) -> Callable[[], AbstractContextManager[ClusterWorld]]:
    """Makes worlds in the installation that all cluster tests share."""

    @contextmanager
    def entered() -> Iterator[ClusterWorld]:
        world = ClusterWorld(installed, listener)
        try:
            yield world
        finally:
            world.close()

    return entered
