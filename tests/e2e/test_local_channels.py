"""KafkaChannels in the local mode as a user meets them: real Kafka, real subscribers."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path

import pytest
from support.kafka import Kafka
from support.up import Up

from knafka_client.sockets import free_port
from knafka_client.state import snapshot_file
from knafka_client.state.installation import Installation
from knafka_operator.scale.scaled_groups import LAG_INTERVAL

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "channel"
SUBSCRIBER = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Subscriber(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        os.write(1, ("asked for " + self.headers["ce-id"] + "\\n").encode())
        self.send_response(500 if self.headers["ce-id"].startswith("bad") else 202)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Subscriber).serve_forever()
"""
PICKY = """\
---
apiVersion: messaging.knative.dev/v1
kind: Subscription
metadata:
  name: %(name)s
  annotations: {knafka.dev/isolation: %(isolation)s}
spec:
  channel: {apiVersion: messaging.knative.dev/v1, kind: KafkaChannel, name: orders}
  subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: %(name)s}}
  delivery: {retry: 1, backoffDelay: PT0.1S}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: %(name)s
spec:
  template:
    metadata: {annotations: {local.knafka.dev/command: python picky.py}}
    spec: {containers: [{image: none}]}
"""
MORE = "".join(PICKY % {"name": f"picky-{each}", "isolation": each} for each in ("shared", "own"))
ANOTHER = """\
---
apiVersion: messaging.knative.dev/v1
kind: KafkaChannel
metadata:
  name: another
"""


class Files:
    """The example, in a namespace of its own as the Kafka is shared, with more beside it."""

    def __init__(self, folder: Path) -> None:
        self.namespace = folder.name
        shutil.copytree(EXAMPLE, folder)
        (folder / "picky.py").write_text(SUBSCRIBER)
        self.folder = folder
        self.add("", (EXAMPLE / "channel.yaml").read_text() + MORE)

    def add(self, name: str, text: str) -> None:
        text = text.replace(
            "metadata:\n  name", f"metadata:\n  namespace: {self.namespace}\n  name"
        )
        unfinished = self.folder / "unfinished"
        unfinished.write_text(text)
        unfinished.replace(self.folder / f"{name or 'channel'}.yaml")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / f"orders-{os.getpid()}-{free_port()}")


@pytest.fixture
def up(tmp_path: Path, kafka: Kafka, files: Files) -> Iterator[Callable[[], Up]]:
    """Starts a `knafka up` on data of this test; whatever still runs at the end is stopped."""
    started: list[Up] = []

    def start() -> Up:
        servers = "--bootstrap-servers", kafka.bootstrap_servers
        started.append(Up(files.folder, tmp_path / "data", *servers))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.stop()


def send(url: str, id_: str, subject: str = "ada") -> int:
    """The status with which one event is answered."""
    headers = {
        "ce-specversion": "1.0",
        "ce-type": "com.example.order.placed",
        "ce-source": "/shop",
        "ce-id": id_,
        "ce-subject": subject,
    }
    request = urllib.request.Request(url, b"", headers, method="POST")
    with urllib.request.urlopen(request) as response:
        return int(response.status)


def ids(running: Up, program: str, pattern: str) -> list[str]:
    """What a program printed of events, in the order of their arrival."""
    return re.findall(rf"^{program} \| {pattern}", running.output, re.MULTILINE)


def addresses(running: Up) -> Mapping[str, str]:
    """Where each KafkaChannel is."""
    return dict(re.findall(r"KafkaChannel \S+/(\S+) at (http://\S+)", running.output))


@pytest.mark.integration
def test_the_example_delivers_every_event_to_each_subscription_and_goes_on_after_a_restart(
    up: Callable[[], Up], files: Files
) -> None:
    """CHN-29, CHN-31, CHN-32, KN-SUB-02, KN-SUB-07: 202 is a promise; each Subscription has every
    event, those of a partition in order; replies go to the reply address; what is refused to the
    end is a dead letter, and the next event goes on."""
    running = up()
    running.wait_for(r"KafkaChannel \S+/orders at http://")
    url = addresses(running)["orders"]
    for name in ("audit", "receipts", "picky-shared", "picky-own"):
        running.wait_for(rf"Subscription {files.namespace}/{name} is ready")
    sent = ["good-1", "bad-2", *(f"good-{number}" for number in range(3, 21))]
    assert [send(url, each) for each in sent] == [HTTPStatus.ACCEPTED] * len(sent)

    events = r"com.example.order.placed (\S+) of ada"
    running.until(lambda: len(ids(running, "audit", events)) == len(sent), "all events at audit")
    assert ids(running, "audit", events) == sent
    receipts = [f"receipt-of-{each}" for each in sent]
    mail = r"(\S+) to ada"
    running.until(lambda: len(ids(running, "mail", mail)) == len(sent), "all replies")
    assert sorted(ids(running, "mail", mail)) == sorted(receipts)
    assert ids(running, "receipts", r"order (\S+) of ada") == sent
    asked = [sent[0], sent[1], *sent[1:]]  # the second one twice, as it is tried again
    for picky in ("picky-shared", "picky-own"):
        running.until(
            lambda who=picky: len(ids(running, who, r"asked for (\S+)")) == len(asked),  # type: ignore[misc]
            f"the rest of {picky}",
        )
        assert ids(running, picky, r"asked for (\S+)") == asked
        command = "dead-letters", "show", f"{files.namespace}/{picky}", "--json"
        shown = running.knafka(*command).stdout
        assert shown.count('"reason": "status", "code": "500", "attempts": "2"') == 1, shown

    status = running.knafka("status").stdout
    assert "KafkaChannel" in status
    assert "Subscription" in status
    assert re.search(rf"{files.namespace}/orders +{len(sent)} +0", status), status

    # One more channel is served by the same process.
    before = running.pids("knafka.receiver")
    files.add("another", ANOTHER)
    running.wait_for(r"KafkaChannel \S+/another at http://")
    assert send(addresses(running)["another"], "elsewhere") == HTTPStatus.ACCEPTED
    assert running.pids("knafka.receiver") == before, "no process was replaced"
    by_name = running.knafka("send", f"channel/{files.namespace}/orders", "--id", "by-name")
    assert by_name.returncode == 0, by_name.stderr
    running.wait_for(r"audit \| \S+ by-name of")
    traced = running.knafka("trace", "by-name").stdout
    assert f"by channel/{files.namespace}/orders" in traced, traced
    assert re.search(rf"{files.namespace}/picky-own\b", traced), traced

    assert running.stop() == 0
    again = up()
    again.wait_for(r"KafkaChannel \S+/orders at http://")
    assert send(addresses(again)["orders"], "last") == HTTPStatus.ACCEPTED
    again.wait_for(r"audit \| com.example.order.placed last of ada")
    again.wait_for(r"mail \| receipt-of-last to ada")
    assert ids(again, "audit", r"\S+ (\S+) of") == ["last"]

    # What was accepted is delivered, too, when the supervisor and all its processes are killed.
    pending = [f"pending-{number}" for number in range(5)]
    assert [send(addresses(again)["orders"], each) for each in pending] == [202] * len(pending)
    again.process.kill()
    again.process.wait()
    before_kill = ids(again, "audit", events)
    after = up()
    for each in pending:
        after.until(
            lambda id_=each: id_ in (*before_kill, *ids(after, "audit", events)),  # type: ignore[misc]
            each,
        )


BESIDE = """\
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata:
  name: shop
"""


@pytest.mark.integration
def test_the_port_of_channels_says_that_there_is_none_until_there_is_one(
    up: Callable[[], Up], files: Files
) -> None:
    (files.folder / "channel.yaml").unlink()
    files.add("shop", BESIDE)
    running = up()
    channels = Installation(running.data).read_state().channels_url
    for path in ("/", f"/{files.namespace}/another"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            send(channels + path, "too-early")
        assert refused.value.code == HTTPStatus.NOT_FOUND
        assert "no KafkaChannel is declared" in refused.value.read().decode()
    assert running.pids("knafka.receiver") != []
    files.add("another", ANOTHER)
    running.wait_for(r"KafkaChannel \S+/another at http://")
    assert send(addresses(running)["another"], "in-time") == HTTPStatus.ACCEPTED


PATIENT = PICKY.replace("retry: 1, backoffDelay: PT0.1S", "retry: 100, backoffDelay: PT1S")


@pytest.mark.integration
def test_what_is_delivered_does_not_wait_in_the_status_while_a_neighbour_retries(
    up: Callable[[], Up], files: Files
) -> None:
    """The one that retries keeps the process going that both share, and its own event waiting."""
    shared = {"name": "patient", "isolation": "shared"}
    files.add("", (EXAMPLE / "channel.yaml").read_text() + PATIENT % shared)
    running = up()
    url = addresses(running)["orders"]
    running.wait_for(rf"Subscription {files.namespace}/audit is ready")
    running.wait_for(rf"Subscription {files.namespace}/patient is ready")
    assert send(url, "bad-1") == HTTPStatus.ACCEPTED
    running.wait_for(r"audit \| com.example.order.placed bad-1 of ada")
    running.wait_for(r"patient \| asked for bad-1")

    def waiting() -> Mapping[str, int | None]:
        now = snapshot_file.read_snapshot(Installation(running.data))
        return {each.name.partition("/")[2]: each.lag for each in now.triggers}

    began = time.monotonic()
    running.until(lambda: waiting()["audit"] == 0, "audit to have nothing waiting")
    assert time.monotonic() - began < LAG_INTERVAL / 3
    assert waiting()["patient"] == 1
