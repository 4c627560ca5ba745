"""Sensors in the local mode as a user meets them: the operator, real Kafka, real processes."""

from __future__ import annotations

import os
import re
import shutil
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.kafka import Kafka
from support.up import Up

from knafka_local.children import free_port

pytestmark = pytest.mark.kafka

EXAMPLE = Path(__file__).parents[2] / "examples" / "sensor"


CHANNEL = EXAMPLE.with_name("channel")
ON_CHANNEL = """\
apiVersion: messaging.knative.dev/v1
kind: KafkaChannel
metadata:
  name: orders
---
apiVersion: knafka.dev/v1alpha1
kind: Sensor
metadata:
  name: fulfilment
spec:
  channel: orders
  dependencies:
    - name: order
      filters: [{exact: {type: com.example.order.placed}}]
    - name: payment
      filters: [{exact: {type: com.example.payment.received}}]
  triggers:
    - name: ship
      correlation: orderid
      subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: receipts}}
      reply: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: mail}}
    - name: note
      correlation: orderid
      subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: receipts}}
"""
SERVICE = """\
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: %(name)s
spec:
  template:
    metadata:
      annotations:
        local.knafka.dev/command:
          functions-framework --source subscriber/main.py --target %(name)s
    spec: {containers: [{image: none}]}
"""


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


def send(url: str, attributes: Mapping[str, str]) -> None:
    request = urllib.request.Request(url, b"", {**attributes}, method="POST")
    with urllib.request.urlopen(request) as response:
        assert response.status == 202


def test_the_example_fires_sleeps_and_fires_again_with_what_it_has_held(up: Up) -> None:
    """BUS-14, BUS-16: nothing is lost by sleep, and what fires is delivered by a Trigger."""
    up.wait_for(r"Sensor \S+/fulfilment is ready")
    # They are sent side by side, and fire in the order in which the Broker has taken them.
    up.wait_for(r"shipping \| order 2 is paid: (o-2 p-2|p-2 o-2)")
    up.wait_for(r"Sensor \S+/fulfilment: 0 of \d+ processes")
    assert up.pids("knafka.sensor") == [], "what waits holds no process"
    named = re.search(r"Sensor (\S+/fulfilment) is ready", up.output)
    assert named is not None
    assert up.knafka("sensor", "next", named[1]).stdout == f"{named[1]} has read everything\n"
    assert up.knafka("sensor", "dead-letters", named[1]).stdout == (
        f"{named[1]} has no dead letters\n"
    )
    match = re.search(r"Broker \S+ at (http://\S+)", up.output)
    assert match is not None
    headers = {
        "ce-specversion": "1.0",
        "ce-type": "com.example.payment.received",
        "ce-source": "/bank",
        "ce-id": "p-1",
        "ce-orderid": "1",
    }
    send(match[1], headers)
    up.wait_for(r"shipping \| order 1 is paid: o-1 p-1")
    assert up.output.count("order 2 is paid") == 1


def test_on_a_channel_it_fires_and_what_is_answered_goes_where_its_trigger_says(
    tmp_path: Path, kafka: Kafka
) -> None:
    """Two triggers fire for one order; of their replies one has a destination."""
    namespace = f"sensors-{os.getpid()}-{free_port()}"
    folder = tmp_path / "files"
    shutil.copytree(CHANNEL / "subscriber", folder / "subscriber")
    text = ON_CHANNEL + "".join(SERVICE % {"name": each} for each in ("receipts", "mail"))
    within = text.replace("metadata:\n  name", f"metadata:\n  namespace: {namespace}\n  name")
    (folder / "sensor.yaml").write_text(within)
    up = Up(folder, tmp_path / "data", "--bootstrap-servers", kafka.bootstrap_servers)
    try:
        up.wait_for(rf"Sensor {namespace}/fulfilment is ready")
        match = re.search(r"KafkaChannel \S+/orders at (http://\S+)", up.output)
        assert match is not None
        for type_, id_ in (("order.placed", "o-2"), ("payment.received", "p-2")):
            of = {"ce-specversion": "1.0", "ce-source": "/shop", "ce-orderid": "2"}
            send(match[1], {**of, "ce-type": f"com.example.{type_}", "ce-id": id_})
        fired = rf"{namespace}\.fulfilment\.%s\.\S+"
        up.wait_for(rf"receipts \| order {fired % 'ship'} of 2")
        up.wait_for(rf"receipts \| order {fired % 'note'} of 2")
        up.wait_for(rf"mail \| receipt-of-{fired % 'ship'} to 2")
        settled = f"{namespace}/fulfilment: 0 events unread, 2 firings\n"
        up.until(lambda: up.knafka("sensor", "status").stdout == settled, settled)
        (folder / "sensor.yaml").write_text(within.replace("kind: Sensor", "kind: NoSensor"))
        gone = rf"Subscription {namespace}/fulfilment-ship"
        up.until(lambda: gone not in up.knafka("status").stdout, f"{gone} to go")
        assert "receipt-of-" in up.output
        assert re.search(rf"receipt-of-{fired % 'note'}", up.output) is None, "it is discarded"
    finally:
        if up.process.poll() is None:
            up.stop()
