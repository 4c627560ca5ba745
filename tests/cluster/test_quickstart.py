"""The quickstart on a cluster, as docs/how-to/install.md applies it (issue 4, item 1).

Then what a user does next: an event from a pod to the Broker's address, and subscribers of every
sort on the same Broker.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from support.cluster import Cluster
from support.installation import ARRIVAL, ROOT, Installation, Subscriber

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.errors import LogError
from knafka.ports.log import Record

QUICKSTART: Final = ROOT / "examples" / "quickstart"
SERVICES: Final = ("orders", "large-orders", "payments")
"""Functions under functions-framework; each has a Trigger of its name."""
INVOICED: Final = "com.example.invoice.made"
"""What the `func` function replies with."""


@dataclass(frozen=True, slots=True)
class Quickstart:
    """It, applied and Ready in a namespace of its own."""

    installed: Installation
    namespace: str
    address: str
    plain: Subscriber
    """A plain Service beside it; everything that may end there has an id of its own."""

    def arrived(self, id_: str) -> dict[str, Any]:
        """An event at the plain Service."""
        return self.installed.cluster.wait_for(
            lambda: next((each for each in self.plain.seen() if each["id"] == id_), {}),
            ARRIVAL,
            f"{id_} at the plain Service",
        )

    def log(self, service: str) -> str:
        """What a Knative Service's pods wrote."""
        selector = f"serving.knative.dev/service={service}"
        return self.installed.cluster.logs(self.namespace, selector)

    def wait_for_log(self, service: str, line: str) -> None:
        self.installed.cluster.wait_for(
            lambda: line in self.log(service), ARRIVAL, f"{line!r} in the log of {service}"
        )

    def dead_letters(self, trigger: str) -> list[Record]:
        """All of the Trigger's durable topic."""
        annotations = self.installed.status("trigger", trigger, self.namespace)["annotations"]
        topic = annotations["knafka.dev/dead-letter-topic"]

        async def read() -> list[Record]:
            admin = KafkaAdmin({"bootstrap.servers": self.installed.kafka.bootstrap("PLAINTEXT")})
            try:
                return list(await admin.read_last(topic, 100))
            except LogError as error:
                if not error.unknown_topic:  # it is made for the first
                    raise
                return []
            finally:
                await admin.close()

        return asyncio.run(read())


@pytest.fixture(scope="module")
def quickstart(cluster: Cluster, installed: Installation) -> Iterator[Quickstart]:
    namespace = f"quickstart-{uuid.uuid4().hex[:6]}"
    kubectl = cluster.kubectl
    cluster.make_namespace(namespace)
    # Where Kafka is, is the installation's to say; here several test runs share one.
    bootstrap = f"bootstrap.servers={installed.kafka.bootstrap('PLAINTEXT')}"
    kubectl(
        "create", "configmap", "quickstart-kafka", "-n", namespace, f"--from-literal={bootstrap}"
    )
    began = time.monotonic()
    manifests = (QUICKSTART / "quickstart.yaml").read_text()
    cluster.apply(installed.located(manifests, "knafka-quickstart"), namespace=namespace)
    installed.until_ready("broker", "default", namespace)
    print(f"\nthe Broker is Ready after {time.monotonic() - began:.1f} s")
    for name in SERVICES:
        installed.until_ready("ksvc", name, namespace)
        installed.until_ready("trigger", name, namespace)
    print(f"everything is Ready after {time.monotonic() - began:.1f} s")
    address = installed.status("broker", "default", namespace)["address"]["url"]
    yield Quickstart(installed, namespace, address, installed.subscriber(namespace, "plain"))
    for kind in ("triggers", "brokers"):
        cluster.delete(kind, namespace)
    cluster.delete("namespace", "", namespace)


def knative(name: str) -> dict[str, Any]:
    """A Knative Service as a Trigger's subscriber."""
    return {"ref": {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": name}}


def deploy(quickstart: Quickstart, name: str, image: str, **env: str) -> None:
    """A Knative Service of one pod that stays, so that it remembers."""
    cluster = quickstart.installed.cluster
    container = {
        "image": cluster.image(image),
        "env": [{"name": key, "value": value} for key, value in env.items()],
    }
    scaling = {f"autoscaling.knative.dev/{each}-scale": "1" for each in ("min", "max")}
    template = {"metadata": {"annotations": scaling}, "spec": {"containers": [container]}}
    cluster.apply(
        {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"template": template},
        },
        namespace=quickstart.namespace,
    )


def test_an_event_that_a_pod_posts_to_the_address_reaches_the_functions_that_want_it(
    quickstart: Quickstart,
) -> None:
    """Ready means 202 (KN-BRK-01), and a functions-framework function needs nothing of ours."""
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "order-7",
        "ce-source": "/shop",
        "ce-type": "com.example.order.placed",
        "ce-subject": "barbara",
        "Content-Type": "application/json",  # in these letters, or busybox adds another
    }
    options = " ".join(f"--header '{name}: {value}'" for name, value in headers.items())
    body = json.dumps({"item": "a pen"})
    command = f"wget -S -O- {options} --post-data '{body}' {quickstart.address} 2>&1 || true"
    answer = quickstart.installed.cluster.run_once(
        quickstart.namespace, "send", "knafka-quickstart", "sh", "-c", command
    )
    assert "HTTP/1.1 202 Accepted" in answer
    quickstart.wait_for_log("orders", "order order-7 of barbara: {'item': 'a pen'}")
    assert "order-7" not in quickstart.log("large-orders")
    assert "order-7" not in quickstart.log("payments")


def test_every_sort_of_subscriber_gets_its_events_and_a_reply_goes_through_the_broker(
    quickstart: Quickstart,
) -> None:
    """A plain Service, a Knative Service and a `func` function (UX-4); KN-BRK-09, KN-BRK-11."""
    installed, namespace = quickstart.installed, quickstart.namespace
    deploy(quickstart, "invoicing", "knafka-test-func", FUNC_REPLY_TYPE=INVOICED)
    deploy(quickstart, "serverless", "knafka-test")
    for name in ("invoicing", "serverless"):
        installed.until_ready("ksvc", name, namespace)
    shipped = [{"exact": {"type": "com.example.order.shipped"}}]
    for name, subscriber, filters in (
        ("to-plain", quickstart.plain.ref, shipped),
        ("to-serverless", knative("serverless"), shipped),
        ("to-func", knative("invoicing"), shipped),
        ("to-invoices", quickstart.plain.ref, [{"exact": {"type": INVOICED}}]),
    ):
        installed.trigger(namespace, name, subscriber, filters=filters, ready=False)
    for name in ("to-plain", "to-serverless", "to-func", "to-invoices"):
        installed.until_ready("trigger", name, namespace)

    answer = installed.send(quickstart.address, "shipped-1", "com.example.order.shipped")
    assert answer.status_code == 202

    quickstart.arrived("shipped-1")
    host = f"serverless.{namespace}.svc.cluster.local"
    seen = installed.cluster.wait_for(
        lambda: installed.cluster.request(host, "/seen", method="GET").json(),
        ARRIVAL,
        "an event at serverless",
    )
    assert [each["id"] for each in seen] == ["shipped-1"]
    assert quickstart.arrived("reply-to-shipped-1")["type"] == INVOICED
    quickstart.wait_for_log("invoicing", '"id": "shipped-1"')


def test_what_a_subscriber_fails_for_good_goes_to_the_dead_letter_sink(
    quickstart: Quickstart,
) -> None:
    """KN-DLV-07, KN-DLV-08."""
    installed, namespace = quickstart.installed, quickstart.namespace
    installed.trigger(
        namespace,
        "refunds",
        knative("payments"),
        filters=[{"exact": {"type": "com.example.refund"}}],
        delivery={"retry": 1, "backoffDelay": "PT0.1S", "deadLetterSink": quickstart.plain.ref},
    )
    assert installed.send(quickstart.address, "refund-1", "com.example.refund").status_code == 202
    assert quickstart.arrived("refund-1")["attributes"]["knativeerrorcode"] == "500"
    assert quickstart.dead_letters("refunds") == []


def test_without_a_sink_it_is_kept_in_the_durable_topic(quickstart: Quickstart) -> None:
    """The quickstart's own Trigger `payments`, whose subscriber always fails."""
    installed = quickstart.installed
    answer = installed.send(quickstart.address, "payment-9", "com.example.payment.received")
    assert answer.status_code == 202
    (record,) = installed.cluster.wait_for(
        lambda: quickstart.dead_letters("payments"), ARRIVAL, "a dead letter of payments"
    )
    headers = dict(record.headers() or [])
    assert headers["ce_id"] == b"payment-9"
    assert headers["ce_knafkaattempts"] == b"3"
    assert headers["ce_knativeerrorcode"] == b"500"
