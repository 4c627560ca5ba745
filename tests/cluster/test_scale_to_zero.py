"""From zero: one event starts receiver and dispatcher, and arrives (issue 4, item 2).

Measured beside Knative's bare cold start of the same image, in turns: that is a POST to a Broker
that has no Trigger, so one Knative Service that starts and answers. Nothing is asserted of the
times: the machine's load decides them. The table goes to the output and to
artifacts/scale-to-zero.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest
from support.cluster import Cluster
from support.installation import ARRIVAL, ROOT, Installation

from testcluster import settings

REPETITIONS: Final = int(os.environ.get("KNAFKA_TEST_COLD_STARTS", "1"))
"""`make chaos` has five: the medians of fewer say little."""
FAST: Final = {"window": "6s", "scale-to-zero-pod-retention-period": "0s"}
"""As soon as Knative allows."""
RECEIVER: Final = "default-kn-receiver"
DISPATCHER: Final = "all-kn-dispatcher"
BARE: Final = "bare-kn-receiver"
ARTIFACT: Final = ROOT / "artifacts" / "scale-to-zero.json"


class Arrivals:
    """A subscriber in this process, whose clock is the sender's."""

    def __init__(self) -> None:
        arrivals: dict[str, float] = {}
        arrived = threading.Condition()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                at = time.monotonic()
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.send_response(202)
                self.send_header("content-length", "0")
                self.end_headers()
                with arrived:
                    arrivals.setdefault(self.headers["ce-id"], at)
                    arrived.notify_all()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name there
                pass

        self._arrivals, self._arrived = arrivals, arrived
        self._server = ThreadingHTTPServer((settings.HOST_IP, 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.uri = f"http://{settings.HOST_IP}:{self._server.server_port}/"

    def of(self, id_: str) -> float:
        """When the event came first, on the monotonic clock."""
        with self._arrived:
            came = self._arrived.wait_for(lambda: id_ in self._arrivals, ARRIVAL)
        assert came, f"{id_} has not arrived within {ARRIVAL} s"
        return self._arrivals[id_]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Steps:
    """When each pod of a namespace was first seen in each state, on the monotonic clock."""

    seen: dict[tuple[str, str], float] = field(default_factory=dict)
    """By pod's name and state: `made`, `started` (its function's container) and `ready`."""

    def wait_for(self, service: str, state: str, after: float) -> float:
        """When the first of a Knative Service's pods that were made `after` was so."""
        deadline = time.monotonic() + ARRIVAL
        while time.monotonic() < deadline:
            found = [
                at
                for (pod, what), at in list(self.seen.items())
                if what == state
                and pod.startswith(f"{service}-")
                and self.seen[pod, "made"] > after
            ]
            if found:
                return min(found)
            time.sleep(0.1)
        pytest.fail(f"no pod of {service} is seen to be {state} within {ARRIVAL} s")


@contextmanager
def watching(cluster: Cluster, namespace: str) -> Iterator[Steps]:
    """Follow the pods as kubectl tells of them."""
    steps = Steps()
    started = ".status.containerStatuses[?(@.name=='function')].state.running.startedAt"
    ready = ".status.conditions[?(@.type=='Ready')].status"
    columns = f"custom-columns=:.metadata.name,:{started},:{ready}"
    watch = subprocess.Popen(
        ["kubectl", "get", "pods", "-n", namespace, "--watch", "--no-headers", "-o", columns],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "NO_PROXY": "*"},
        stdout=subprocess.PIPE,
        text=True,
    )

    def read() -> None:
        assert watch.stdout is not None
        for line in watch.stdout:
            at, (pod, has_started, is_ready) = time.monotonic(), line.split()
            steps.seen.setdefault((pod, "made"), at)
            if has_started != "<none>":
                steps.seen.setdefault((pod, "started"), at)
            if is_ready == "True":
                steps.seen.setdefault((pod, "ready"), at)

    reader = threading.Thread(target=read)
    with watch:
        reader.start()
        try:
            yield steps
        finally:
            watch.terminate()
            reader.join()


@pytest.fixture
def arrivals() -> Iterator[Arrivals]:
    found = Arrivals()
    yield found
    found.close()


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("brokers_go")
def test_one_event_brings_receiver_and_dispatcher_up_from_zero_and_arrives(
    cluster: Cluster,
    installed: Installation,
    namespace: str,
    arrivals: Arrivals,
) -> None:
    fast = {f"autoscaling.knative.dev/{key}": value for key, value in FAST.items()}
    bare_address = installed.broker(namespace, "bare", partitions=1, annotations=fast)
    address = installed.broker(namespace, partitions=1, annotations=fast)
    installed.trigger(
        namespace,
        "all",
        {"uri": arrivals.uri},
        annotations={"autoscaling.eventing.knative.dev/cooldown-period": "1"},
    )

    def until_zero(*services: str) -> None:
        for service in services:
            installed.until_zero(namespace, service)

    def post(to: str) -> tuple[str, float, float]:
        """The event's id, when it was sent, and when it was answered."""
        id_, began = uuid.uuid4().hex, time.monotonic()
        assert installed.send(to, id_).status_code == 202
        return id_, began, time.monotonic()

    rows: list[dict[str, float]] = []
    with watching(cluster, namespace) as steps:
        for _ in range(REPETITIONS):
            until_zero(BARE)
            load = os.getloadavg()[0]
            _, began, answered = post(bare_address)
            row = {"load": load, "bare": answered - began}
            until_zero(RECEIVER, DISPATCHER)
            id_, began, answered = post(address)
            row |= {"accepted": answered - began, "delivered": arrivals.of(id_) - began}
            for service, name in ((RECEIVER, "receiver"), (DISPATCHER, "dispatcher")):
                for state in ("made", "started", "ready"):
                    row[f"{name} {state}"] = steps.wait_for(service, state, began) - began
            row["ratio"] = row["delivered"] / row["bare"]
            rows.append(row)
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    medians["ratio"] = medians["delivered"] / medians["bare"]
    print(f"\n{table([*rows, medians])}")
    ARTIFACT.parent.mkdir(exist_ok=True)
    ARTIFACT.write_text(json.dumps({"unit": "s", "rows": rows, "medians": medians}, indent=2))
    until_zero(BARE, RECEIVER, DISPATCHER)


def table(rows: list[dict[str, float]]) -> str:
    """Seconds from the POST on; the last row is the median."""
    lines = ["".join(f"{name:>20}" for name in rows[0])]
    lines += ["".join(f"{value:>20.2f}" for value in row.values()) for row in rows]
    return "\n".join(lines)
