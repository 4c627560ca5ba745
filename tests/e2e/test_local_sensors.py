"""Sensors in the local mode as a user meets them: the operator, real Kafka, real processes."""

from __future__ import annotations

import os
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from support.kafka import Kafka
from support.up import Up

from knafka_client.sockets import free_port

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


PAIRS = """\
import sys

import functions_framework


@functions_framework.cloud_event
def pairs(event):
    sys.stdout.write("pair %s\\n" % " ".join(each["id"] for each in event.data))
    sys.stdout.flush()
"""
PAIRED = """\
apiVersion: knafka.dev/v1alpha1
kind: Sensor
metadata:
  name: paired
  annotations: {autoscaling.eventing.knative.dev/cooldown-period: "1"}
spec:
  dependencies:
    - name: left
      filters: [{exact: {type: left}}]
    - name: right
      filters: [{exact: {type: right}}]
  triggers:
    - name: pair
      conditions: left && right
      subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: pairs}}
"""


@pytest.fixture
def up(tmp_path: Path, kafka: Kafka) -> Iterator[Up]:
    """The example, in a namespace of its own as the Kafka is shared; it sleeps after a second."""
    namespace = f"sensors-{os.getpid()}-{free_port()}"
    folder = tmp_path / "files"
    shutil.copytree(EXAMPLE, folder)
    (folder / "subscriber" / "pairs.py").write_text(PAIRS)
    service = (SERVICE % {"name": "pairs"}).replace("main.py", "pairs.py")
    (folder / "paired.yaml").write_text(PAIRED + service)
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


@pytest.mark.integration
def test_the_example_fires_sleeps_and_fires_again_with_what_it_has_held(up: Up) -> None:
    """BUS-14, BUS-16: nothing is lost by sleep, and what fires is delivered by a Trigger."""
    up.wait_for(r"Sensor \S+/fulfilment is ready")
    # They are sent side by side, and fire in the order in which the Broker has taken them.
    up.wait_for(r"shipping \| order 2 is paid: (o-2 p-2|p-2 o-2)")
    up.wait_for(r"Sensor \S+/fulfilment: 0 of \d+ processes")
    up.until(
        lambda: up.pids("knafka.sensor") == [], "the end of its process, as what waits holds none"
    )
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
    paired = f"{named[1].partition('/')[0]}/paired"
    up.wait_for(rf"Sensor {paired} is ready")
    for first in (0, PAIRED_AT_ONCE):
        # Asleep at first, both times: a backlog of ten partitions.
        up.until(lambda: is_asleep(up, paired), f"{paired} to sleep")
        for number in range(2 * first, 2 * (first + PAIRED_AT_ONCE)):
            about = {"ce-specversion": "1.0", "ce-source": "/s", "ce-id": f"{number}"}
            send(match[1], {**about, "ce-type": ("left", "right")[number % 2]})
            time.sleep(0.02)
        last = first + PAIRED_AT_ONCE
        up.until(partial(has_pairs, up, last), f"{last} pairs")
        assert sorted(pairs(up), key=lambda each: each[0]) == [
            (2 * number, 2 * number + 1) for number in range(last)
        ]


PAIRED_AT_ONCE = 40


def pairs(up: Up) -> list[tuple[int, int]]:
    """What `pairs` was sent."""
    found = re.findall(r"^pairs \| pair (\d+) (\d+)$", up.output, re.MULTILINE)
    return [(int(left), int(right)) for left, right in found]


def has_pairs(up: Up, count: int) -> bool:
    return len(pairs(up)) >= count


def is_asleep(up: Up, sensor: str) -> bool:
    """Whether the last that was said of it is that no process of it runs."""
    said = re.findall(rf"Sensor {sensor}: (\d+) of \d+ processes", up.output)
    return not said or said[-1] == "0"


@pytest.mark.integration
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
        up.until(lambda: up.knafka("sensor", "status").stdout == settled, settled, every=1)
        (folder / "sensor.yaml").write_text(within.replace("kind: Sensor", "kind: NoSensor"))
        gone = rf"Subscription {namespace}/fulfilment-ship"
        up.until(lambda: gone not in up.knafka("status").stdout, f"{gone} to go", every=1)
        assert "receipt-of-" in up.output
        assert re.search(rf"receipt-of-{fired % 'note'}", up.output) is None, "it is discarded"
    finally:
        if up.process.poll() is None:
            up.stop()
