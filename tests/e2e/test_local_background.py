"""`knafka up --detach` and all that looks at it from outside, as a user would in one terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kafka import Kafka

from knafka_client.sockets import free_port

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(sys.platform != "linux", reason="the local mode is tested on Linux"),
]

KNAFKA = Path(sys.executable).with_name("knafka")
WITHIN = 60.0
"""Seconds for anything to happen on a busy machine."""
PAUSE = 1.0
"""Seconds between two commands that ask the same: each takes as much CPU."""
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
  subscriber: {uri: "http://127.0.0.1:9/"}
  delivery: {retry: 0, timeout: PT1S}
"""


class Installation:
    """Commands on one data folder; the namespace is its own, as the Kafka may be shared."""

    def __init__(self, folder: Path) -> None:
        self.namespace = f"background-{os.getpid()}-{free_port()}"
        self.trigger = f"{self.namespace}/mail"
        self.manifests = folder / "shop.yaml"
        self.manifests.write_text(MANIFESTS.replace("NAMESPACE", self.namespace))
        self._environment = {**os.environ, "KNAFKA_DATA": str(folder / "data")}

    def knafka(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(KNAFKA), *map(str, words)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=self._environment
        )

    def until(self, text: str, *words: str | Path) -> str:
        """Ask until the answer holds `text`."""
        deadline = time.monotonic() + WITHIN
        while text not in (answer := self.knafka(*words).stdout):
            assert time.monotonic() < deadline, answer
            time.sleep(PAUSE)
        return answer


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    yield made
    made.knafka("down")


@pytest.mark.integration
def test_what_runs_in_the_background_is_looked_at_and_mended_from_outside(
    installation: Installation, kafka: Kafka
) -> None:
    options = ("--bootstrap-servers", kafka.bootstrap_servers, "--port", str(free_port()))
    started = installation.knafka("up", "-f", installation.manifests, "--detach", *options)
    assert started.returncode == 0, started.stderr + started.stdout
    assert "runs in the background" in started.stdout
    again = installation.knafka("up", "-f", installation.manifests, "-d", *options)
    assert again.returncode == 1
    assert "runs on" in again.stdout + again.stderr

    assert installation.knafka("status").returncode == 0
    assert "/shop" in installation.knafka("broker", "list").stdout

    assert (
        installation.knafka("send", f"{installation.namespace}/shop", "--id", "a").returncode == 0
    )
    tail = installation.knafka(
        "tail", "--trigger", installation.trigger, "--last", "1", "--count", "1"
    )
    assert " a from knafka-cli" in tail.stdout
    letters = ("dead-letters", "list", installation.trigger)
    installation.until("refused × 1", *letters)

    replayed = installation.knafka("dead-letters", "replay", "--id", "a")
    assert "1 event sent again" in replayed.stdout
    # Nobody listens there still, so it fails again: the older one was sent again, this one waits.
    deadline = time.monotonic() + WITHIN
    while installation.knafka(*letters).stdout.splitlines()[1].split()[1:3] != ["1", "1"]:
        assert time.monotonic() < deadline, installation.knafka(*letters).stdout
        time.sleep(PAUSE)

    assert "up |" in installation.knafka("logs").stdout
    stopped = installation.knafka("down")
    assert (stopped.returncode, stopped.stdout.split(";")[0]) == (0, "stopped")
    assert installation.knafka("status").returncode == 1
    assert "nothing runs" in installation.knafka("down").stdout
