"""Sensors in the local mode as a user meets them: the operator, real Kafka, real processes."""

from __future__ import annotations

import os
import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kafka import Kafka
from support.up import Up

from knafka_local.children import free_port

pytestmark = pytest.mark.kafka

EXAMPLE = Path(__file__).parents[2] / "examples" / "sensor"


@pytest.fixture
def up(tmp_path: Path, kafka: Kafka) -> Iterator[Up]:
    """The example, in a namespace of its own as the Kafka is shared; it sleeps after a second."""
    namespace = f"sensors-{os.getpid()}-{free_port()}"
    folder = tmp_path / "files"
    shutil.copytree(EXAMPLE, folder)
    for file in folder.glob("*.yaml"):
        text = file.read_text().replace(
            "metadata:\n  name", f"metadata:\n  namespace: {namespace}\n  name"
        )
        idle = 'annotations: {autoscaling.eventing.knative.dev/cooldown-period: "1"}'
        file.write_text(text.replace("namespace: default", f"namespace: {namespace}, {idle}"))
    servers = "--bootstrap-servers", kafka.bootstrap_servers
    running = Up(folder, tmp_path / "data", *servers, "--send", EXAMPLE / "events.ndjson")
    yield running
    if running.process.poll() is None:
        running.stop()


def test_the_example_fires_sleeps_and_fires_again_with_what_it_has_held(up: Up) -> None:
    """BUS-14, BUS-16: nothing is lost by sleep, and what fires is delivered by a Trigger."""
    up.wait_for(r"Sensor \S+/fulfilment is ready")
    # They are sent side by side, and fire in the order in which the Broker has taken them.
    up.wait_for(r"shipping \| order 2 is paid: (o-2 p-2|p-2 o-2)")
    up.wait_for(r"Sensor \S+/fulfilment: 0 of \d+ processes")
    assert up.pids("knafka.sensor") == [], "what waits holds no process"
    match = re.search(r"Broker \S+ at (http://\S+)", up.output)
    assert match is not None
    headers = {
        "ce-specversion": "1.0",
        "ce-type": "com.example.payment.received",
        "ce-source": "/bank",
        "ce-id": "p-1",
        "ce-orderid": "1",
    }
    request = urllib.request.Request(match[1], b"", headers, method="POST")
    with urllib.request.urlopen(request) as response:
        assert response.status == 202
    up.wait_for(r"shipping \| order 1 is paid: o-1 p-1")
    assert up.output.count("order 2 is paid") == 1
