"""The local mode as a user meets it: `knafka up` as a process, real Kafka, real subscribers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.kafka import Kafka
from support.up import KNAFKA, WITHIN, Up, command_line

from knafka_client.sockets import free_port
from knafka_local.kafka.kafka_distribution import KafkaDistribution

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc"),
]

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"

SUBSCRIBER = """
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Subscriber(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(float(os.environ.get("PAUSE", "0")))
        os.write(1, (self.headers["ce-id"] + "\\n").encode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass

class Server(ThreadingHTTPServer):
    request_queue_size = 1000

Server(("127.0.0.1", int(os.environ["PORT"])), Subscriber).serve_forever()
"""
BROKER = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: four}
data: {default.topic.partitions: "4"}
---
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: shop}
spec: {config: {apiVersion: v1, kind: ConfigMap, name: four}}
---
"""
SERVICE = """\
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: worker}
spec:
  template:
    metadata: {annotations: {local.knafka.dev/command: python subscriber.py}}
    spec: {containers: [{image: none, env: [{name: PAUSE, value: "%s"}]}]}
---
"""
TRIGGER = """\
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata:
  name: orders
  annotations:
    autoscaling.eventing.knative.dev/cooldown-period: "2"
    autoscaling.eventing.knative.dev/lag-threshold: "50"
spec:
  broker: shop
  subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: worker}}
  delivery: {retry: 5, backoffDelay: PT0.1S}
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts a `knafka up` on data of this test; whatever still runs at the end is stopped."""
    started: list[Up] = []

    def start(manifests: Path, *options: str | Path) -> Up:
        started.append(Up(manifests, tmp_path / "data", *options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.stop()


@pytest.fixture
def shop(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder of manifests in a namespace of its own: the Kafka may be shared."""
    folder = tmp_path / f"shop-{os.getpid()}-{free_port()}"
    folder.mkdir()

    def write(pause: float = 0.0, trigger: str = TRIGGER, more: str = "") -> Path:
        text = BROKER + SERVICE % pause + trigger + more
        text = text.replace("metadata: {name", f"metadata: {{namespace: {folder.name}, name")
        text = text.replace("metadata:\n  name", f"metadata:\n  namespace: {folder.name}\n  name")
        (folder / "subscriber.py").write_text(SUBSCRIBER)
        unfinished = folder / "shop.new"
        unfinished.write_text(text)
        unfinished.replace(folder / "shop.yaml")
        return folder

    return write


@pytest.mark.conformance("KN-DLV-08")
def test_the_quickstart_shows_events_arrive_and_its_data_outlive_it(
    up: Callable[..., Up], kafka_distribution: KafkaDistribution
) -> None:
    """Issue 3, "What it must show", 1, and KN-DLV-08: events, dead letters, a second start."""
    kafka_port = ("--kafka-port", str(free_port()))
    running = up(QUICKSTART, *kafka_port, "--send", QUICKSTART / "events.ndjson")
    for number in range(1, 7):
        running.wait_for(rf"orders \| order order-{number} of ")
    running.wait_for(r"large-orders \| a large order, order-4: 2500")
    running.wait_for(r"payments \| payment payment-2: the bank does not answer")
    running.until(lambda: _dead_lettered(running) == 2, "two dead letters", every=1)
    shown = running.knafka("dead-letters", "show", "payments", "--json").stdout
    assert shown.count('"reason": "status", "code": "500", "attempts": "3"') == 2
    assert "9 of 9 accepted" in running.output
    traced = running.knafka("trace", "payment-2").stdout
    assert re.search(r"default/payments +dead letter +status 500 after 3 attempts", traced)
    assert re.search(r"default/orders +not wanted +filters\[0\].exact.type", traced)
    assert "order-2" in running.knafka("trigger", "test", "large-orders", _event(2)).stdout

    assert running.stop() == 0
    assert running.knafka("trigger", "list").returncode == 1

    again = up(QUICKSTART, *kafka_port)
    assert _dead_lettered(again) == 2


def _dead_lettered(running: Up) -> int:
    found = re.search(r"default/payments +(\d+)", running.knafka("dead-letters", "list").stdout)
    return int(found[1]) if found else 0


def _event(number: int) -> str:
    lines = (QUICKSTART / "events.ndjson").read_text().splitlines()
    return next(line for line in lines if f'"order-{number}"' in line)


@pytest.mark.integration
def test_no_accepted_event_is_lost_when_any_process_is_killed(
    up: Callable[..., Up], shop: Callable[..., Path], kafka_distribution: KafkaDistribution
) -> None:
    """Issue 3, "What it must show", 1: `kill -9` of the receiver, a dispatcher, and Kafka."""
    running = up(shop(pause=0.01), "--kafka-port", str(free_port()))
    send = [KNAFKA, "send", "--data-dir", running.data, "--count", "2000", "--rate", "400"]
    command = [*map(str, send), "--id", "{n}", "--subject", "s{n}"]
    sending = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    running.until(lambda: len(running.arrived()) > 50, "the first events")
    for victim in ("knafka.receiver", "knafka.dispatcher", "kafka.Kafka"):
        running.until(lambda what=victim: bool(running.pids(what)), victim)  # type: ignore[misc]
        os.kill(running.pids(victim)[0], signal.SIGKILL)
        seen = len(running.arrived())
        running.until(lambda seen=seen: len(running.arrived()) > seen, "more")  # type: ignore[misc]
    answers = sending.communicate(timeout=WITHIN)[0]
    # On a busy machine Kafka may be away for longer than an event is sent again.
    refused = set(re.findall(r" (\d+): .* after 21 attempts$", answers, re.MULTILINE))
    assert (sending.returncode == 0) == (not refused), answers
    for identity in refused:
        sent = running.knafka("send", "--id", identity, "--subject", f"s{identity}")
        assert sent.returncode == 0, sent.stdout
    everything = {str(number) for number in range(1, 2001)}
    running.until(lambda: running.arrived() >= everything, "every accepted event")
    assert running.stop(signal.SIGTERM) == 0


@pytest.mark.integration
@pytest.mark.conformance("KN-TRG-06")
def test_an_idle_trigger_has_no_process_and_a_busy_one_never_more_than_partitions(
    up: Callable[..., Up], shop: Callable[..., Path], kafka: Kafka
) -> None:
    """Issue 3, "What it must show", 4; KN-TRG-06: the first event after zero is delivered."""
    # 100 at once and 0.2 s each: one dispatcher delivers 500 a second, so that a backlog stands.
    running = up(shop(pause=0.2), "--bootstrap-servers", kafka.bootstrap_servers)
    assert running.pids("knafka.dispatcher") == []

    assert running.knafka("send", "--id", "alone").returncode == 0
    running.until(lambda: "alone" in running.arrived(), "the event")
    running.until(lambda: running.pids("knafka.dispatcher") == [], "the cooldown")

    assert running.knafka("send", "--count", "3000", "--id", "many-{n}").returncode == 0
    running.until(lambda: len(running.arrived()) == 3001, "all events")
    running.wait_for("Trigger .*: 0 of 4 dispatchers")
    replicas = {int(each) for each in re.findall(r"(\d+) of 4 dispatchers", running.output)}
    assert max(replicas) in (2, 3, 4)


@pytest.mark.integration
@pytest.mark.conformance("KN-DLV-06", "KN-TRG-03")
def test_files_that_change_are_applied_and_broken_ones_change_nothing(
    up: Callable[..., Up], shop: Callable[..., Path], kafka: Kafka
) -> None:
    """KN-DLV-06, KN-TRG-03: the field is named, the good state stays, the rest goes on."""
    folder = shop()
    running = up(folder, "--bootstrap-servers", kafka.bootstrap_servers)

    shop(trigger=TRIGGER.replace("retry: 5", "retry: -5"))
    running.wait_for(r"shop.yaml, document 4: Trigger .*/orders: .*spec.delivery.retry")
    assert running.knafka("send", "--id", "in-spite-of-it").returncode == 0
    running.until(lambda: "in-spite-of-it" in running.arrived(), "the event")

    lost = TRIGGER.replace("name: orders", "name: lost").replace("name: worker", "name: nobody")
    other = "---\n" + BROKER.rpartition("---\n")[0].rpartition("---\n")[2].replace("shop", "other")
    shop(more=f"---\n{lost}{other}")
    running.wait_for(r"solved: .*spec.delivery.retry")
    running.wait_for(r"Trigger .*/lost is not ready: NotFound: Service .*/nobody")
    running.wait_for(rf"Broker {folder.name}/other at http://")
    assert running.knafka("send", f"{folder.name}/other").returncode == 0
    assert running.knafka("send", f"{folder.name}/shop", "--id", "after-it").returncode == 0
    running.until(lambda: "after-it" in running.arrived(), "the event")

    shop(trigger="", more="")
    running.wait_for(r"Trigger .*/orders is gone")
    running.wait_for(rf"Broker {folder.name}/other is gone")
    running.until(lambda: running.pids("knafka.dispatcher") == [], "its dispatchers' end")
    assert running.knafka("send", f"{folder.name}/shop").returncode == 0


@pytest.mark.integration
def test_a_program_starts_anew_when_its_source_changes_and_says_when_it_can_not(
    up: Callable[..., Up], shop: Callable[..., Path], kafka: Kafka
) -> None:
    """Issue 14: the command's folder is watched, and a command that can't start isn't ready."""
    folder = shop()
    running = up(folder, "--bootstrap-servers", kafka.bootstrap_servers)
    source = folder / "subscriber.py"
    source.write_text(
        SUBSCRIBER.replace('(self.headers["ce-id"]', '("new-" + self.headers["ce-id"]')
    )
    running.wait_for("Service .*/worker: its source has changed")
    assert running.knafka("send", "--id", "event").returncode == 0
    running.until(lambda: "new-event" in running.arrived(), "the event, by the new program")
    source.write_text("raise SystemExit(3)")
    running.wait_for(r"Service .*/worker: CommandFailed: its command ended with code 3")


@pytest.mark.integration
def test_a_second_one_on_the_same_data_or_port_says_what_to_do(
    up: Callable[..., Up], shop: Callable[..., Path], kafka: Kafka, tmp_path: Path
) -> None:
    folder = shop()
    running = up(folder, "--bootstrap-servers", kafka.bootstrap_servers)
    port = re.search(r"127\.0\.0\.1:(\d+)/", running.output)
    assert port is not None
    for data, says in (
        (running.data, "--data-dir DIR"),
        (tmp_path / "other", "another with --port"),
    ):
        command = [KNAFKA, "up", "-f", folder, "--data-dir", data, "--port", port[1]]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert says in ended.stderr


@pytest.mark.integration
def test_nothing_survives_the_death_of_the_supervisor(
    up: Callable[..., Up], shop: Callable[..., Path], kafka: Kafka
) -> None:
    """After `kill -9` of `knafka up` itself, the same command starts it again."""
    folder = shop()
    options = ("--bootstrap-servers", kafka.bootstrap_servers)
    running = up(folder, *options)
    children = running.pids("")
    assert len(children) == 2
    running.process.kill()
    running.process.wait()
    assert running.knafka("send").returncode == 1
    again = up(folder, *options)
    assert again.knafka("send", "--id", "again").returncode == 0
    again.until(lambda: "again" in again.arrived(), "the event")
    assert not any(command_line(str(pid)) for pid in children)
