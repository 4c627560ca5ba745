"""The console of a real `knafka up`: what its page asks, answered from Kafka and the files."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.gate import only_chaos
from support.kafka import Kafka
from support.up import WITHIN, Up

from knafka_client.sockets import free_port

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(sys.platform != "linux", reason="the local mode is tested on Linux"),
]

MANIFESTS = """\
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: shop, namespace: NAMESPACE}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: mail, namespace: NAMESPACE}
spec:
  broker: shop
  filters:
    - exact: {type: order}
  subscriber: {uri: "http://127.0.0.1:9/"}  # nobody is there
  delivery: {retry: 0, timeout: PT1S}
"""
CHANNEL = """\
---
apiVersion: messaging.knative.dev/v1
kind: KafkaChannel
metadata: {name: shop, namespace: NAMESPACE}
---
apiVersion: messaging.knative.dev/v1
kind: Subscription
metadata: {name: mail, namespace: NAMESPACE}
spec:
  channel: {apiVersion: messaging.knative.dev/v1, kind: KafkaChannel, name: shop}
  subscriber: {uri: "http://127.0.0.1:9/"}
  delivery: {retry: 0, timeout: PT1S}
"""
EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order"}


class Console:
    """A `knafka up` of one Trigger whose subscriber is away, asked as its page does."""

    def __init__(self, folder: Path, kafka: Kafka, more: str = "") -> None:
        self.namespace = f"console-{os.getpid()}-{free_port()}"
        self.manifests = folder / "shop.yaml"
        self.manifests.write_text((MANIFESTS + more).replace("NAMESPACE", self.namespace))
        port = str(free_port())
        self.up = Up(
            self.manifests,
            folder / "data",
            *("--bootstrap-servers", kafka.bootstrap_servers, "--console-port", port),
        )
        self.url = f"http://127.0.0.1:{port}/"
        self.trigger = f"api/triggers/{self.namespace}/mail"
        self.subscription = f"api/subscriptions/{self.namespace}/mail"

    def ask(self, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        request = urllib.request.Request(self.url + path)
        if method == "POST":
            data = json.dumps(body or {}).encode()
            headers = {"knafka-console": "1", "content-type": "application/json"}
            request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def get(self, path: str) -> Any:
        return self.ask(path, method="GET")

    def until(
        self, condition: Callable[[dict[str, Any]], bool], kind: str = "Trigger"
    ) -> dict[str, Any]:
        """Ask for the Trigger's or Subscription's state until it is so."""
        deadline = time.monotonic() + WITHIN
        while True:
            (mail,) = (each for each in self.get("api/state")["triggers"] if each["kind"] == kind)
            found: dict[str, Any] = mail
            if condition(found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.1)


@pytest.fixture
def console(tmp_path: Path, kafka: Kafka) -> Iterator[Console]:
    made = Console(tmp_path, kafka)
    yield made
    if made.up.process.poll() is None:
        made.up.stop()


def test_a_failure_is_seen_sent_again_and_held_back_from_the_console(console: Console) -> None:
    assert re.search(rf"console at {console.url}$", console.up.output, re.MULTILINE)
    with urllib.request.urlopen(console.url, timeout=30) as page:
        assert b"Who would get this event?" in page.read()
    (broker,) = console.get("api/state")["brokers"]
    assert broker["namespace"] == console.namespace

    (verdict,) = console.ask("api/who", EVENT)["verdicts"]
    assert verdict["getsIt"]
    (verdict,) = console.ask("api/who", {**EVENT, "type": "refund"})["verdicts"]
    assert "filters[0].exact.type" in verdict["whyNot"][0]

    headers = {f"ce-{name}": value for name, value in EVENT.items()}
    sent = urllib.request.Request(broker["url"], b"{}", headers, method="POST")
    with urllib.request.urlopen(sent, timeout=30) as response:
        assert response.status == 202
    console.until(lambda mail: mail["deadLettered"] == 1)
    failures = console.get(f"{console.trigger}/failures")
    assert [(each["id"], each["reason"]) for each in failures["last"]] == [("1", "refused")]

    asked = {"namespace": console.namespace, "name": "mail"}
    events = [{"id": "1", "source": "/shop"}]
    assert console.ask("api/replay", {**asked, "events": events})["replay"]
    deadline = time.monotonic() + WITHIN  # nobody is there still, so it fails again
    while len(console.get(f"{console.trigger}/failures")["last"]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)

    assert str(console.manifests) in console.ask(f"{console.trigger}/pause")["done"]
    console.until(lambda mail: mail["health"] == "paused")
    assert "# nobody is there" in console.manifests.read_text()
    console.ask(f"{console.trigger}/resume")
    console.until(lambda mail: mail["health"] != "paused")
    details = console.get(console.trigger)
    assert "exact:\n    type: order" in details["filters"]
    assert str(console.manifests) in details["declaredIn"]

    with pytest.raises(urllib.error.HTTPError, match="404"):
        console.get("api/triggers/default/nobody")
    began = time.monotonic()
    assert console.up.stop() == 0
    assert time.monotonic() - began < WITHIN
    assert "stopped; everything is kept" in console.up.output


@only_chaos
@pytest.mark.integration
def test_a_subscriptions_failure_is_seen_sent_again_and_held_back(
    tmp_path: Path, kafka: Kafka
) -> None:
    """CHN-32: beside a Broker and a Trigger of the same names, which have none of it."""
    console = Console(tmp_path, kafka, CHANNEL)
    try:
        found = {each["kind"]: each for each in console.get("api/state")["brokers"]}
        headers = {f"ce-{name}": value for name, value in EVENT.items()}
        sent = urllib.request.Request(found["KafkaChannel"]["url"], b"{}", headers, method="POST")
        with urllib.request.urlopen(sent, timeout=30) as response:
            assert response.status == 202
        console.until(lambda mail: mail["deadLettered"] == 1, "Subscription")
        asked = {"kind": "Subscription", "namespace": console.namespace, "name": "mail"}
        events = [{"id": "1", "source": "/shop"}]
        assert console.ask("api/replay", {**asked, "events": events})["replay"]
        # Its dispatcher has got it, as nobody is there still: it fails again.
        deadline = time.monotonic() + WITHIN
        while len(console.get(f"{console.subscription}/failures")["last"]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert console.get(f"{console.trigger}/failures")["last"] == []

        console.ask(f"{console.subscription}/pause")
        console.until(lambda mail: mail["health"] == "paused", "Subscription")
        assert console.until(lambda mail: mail["kind"] == "Trigger")["health"] != "paused"
        console.ask(f"{console.subscription}/resume")
        console.until(lambda mail: mail["health"] != "paused", "Subscription")
    finally:
        console.up.stop()
