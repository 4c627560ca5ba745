"""Senders past Knative's proxy: switched on and off, scaled, rolled and stopped under load
(issue 37, "must show" 1).

    KNAFKA_RATE=300 pytest tests/cluster/test_direct.py -s

also rolls and scales out, and prints how long nothing arrived; KNAFKA_PHASE=75 has thousands of
events a second sent for ten minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition
from support.channels import Channels
from support.cluster import OPERATOR_NAMESPACE
from support.functions import receiver
from support.gate import only_chaos
from support.installation import READY, ROOT, Installation, Subscriber
from support.receiver_requests import ingress
from support.steady_load import RATE, Load, longest_pause

from bench.usage import cpu_seconds
from bench.world import build_kbench
from knafka.core import names
from knafka.core.contract import Ingress
from knafka.core.documents import dump
from knafka.settings import INGRESSES
from knafka_operator.receivers.direct import DIRECT
from testcluster import settings

FULL: Final = "KNAFKA_RATE" in os.environ
EVENTS_A_SECOND: Final = float(os.environ.get("KNAFKA_RATE", RATE))
RECEIVER: Final = "default-kn-receiver"
SERVICE: Final = "default-kn-receiver-direct"
CHANNELS_SERVICE: Final = "kafka-channel-receiver-direct"
MIN_SCALE: Final = "autoscaling.knative.dev/min-scale"
LONGEST_PAUSE: Final = 1.0 if FULL else 9.0
"""Seconds; in the gate, on a busy machine, nine times as long."""
AFTERWARDS: Final = 5.0
"""Seconds of load after a change: what follows late is seen, too."""
INGRESS: Final = f"http://{settings.NODE_IP}:81"

Way = tuple[str, str, Callable[[], float]]
"""URL, Host header if it is another, and the seconds of CPU of those who serve it."""
LOADS: Final = {
    "as many as are taken": ("-c=64",),
    "2,000 a second": ("-c=64", "-rate=2000"),
    "batches of 100": ("-c=16", "-batch=100"),
}
PHASE: Final = float(os.environ.get("KNAFKA_PHASE", "10"))
"""Seconds of load before and after each change of the long run: 75 make it ten minutes."""
MANY: Final = 2000
"""Events a second of the long run."""

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900), pytest.mark.usefixtures("brokers_go")]


@pytest.fixture
def direct_component(installed: Installation) -> Iterator[None]:
    """The operator's right to make the Service."""
    path = str(ROOT / "operator" / "deploy" / "direct" / "rbac.yaml")
    installed.cluster.kubectl("apply", "-f", path)
    yield
    installed.cluster.kubectl("delete", "-f", path)


def until_address(installed: Installation, namespace: str, *, direct: bool) -> str:
    """The Broker's address once it is of this way."""

    def address() -> str:
        url = str(installed.status("broker", "default", namespace)["address"]["url"])
        return url if (f"{SERVICE}." in url) == direct else ""

    way = "direct" if direct else "Knative's"
    return installed.cluster.wait_for(address, READY, f"the address is {way}")


def service_url(installed: Installation, namespace: str) -> str:
    """Of the Service past Knative, by its address: this machine knows no names of the cluster."""
    service = installed.cluster.get("service", SERVICE, namespace)
    assert service is not None
    return f"http://{service['spec']['clusterIP']}:80"


class Directed:
    """A Broker and who sends to whatever address its status has."""

    def __init__(self, installed: Installation, namespace: str, load: Load) -> None:
        self.installed, self.namespace, self.load = installed, namespace, load

    def follow(self, *, direct: bool) -> None:
        """Wait until the address is of this way, and send there from then on."""
        url = until_address(self.installed, self.namespace, direct=direct)
        through = service_url(self.installed, self.namespace) if direct else INGRESS
        self.load.send_to(url, through)

    def annotate(self, key: str, value: str) -> None:
        self.installed.cluster.kubectl(
            "annotate", "broker", "default", "-n", self.namespace, "--overwrite", f"{key}={value}"
        )

    def until_ready(self) -> None:
        self.installed.until_ready("broker", "default", self.namespace, within=120)

    def pods(self) -> set[str]:
        pods = self.installed.cluster.pods(self.namespace, RECEIVER)
        return {pod["metadata"]["name"] for pod in pods}

    def until_pods(self, count: int) -> None:
        """Wait until the newest Revision has so many, and nothing else serves."""

        def revisions() -> list[str]:
            pods = self.installed.cluster.pods(self.namespace, RECEIVER)
            return [pod["metadata"]["labels"]["serving.knative.dev/revision"] for pod in pods]

        def are_there() -> bool:
            newest = self.installed.newest_revision(self.namespace, RECEIVER)
            return revisions() == [newest] * count

        self.installed.cluster.wait_for(are_there, 180, f"{count} pods of the receiver")


def switch_on(directed: Directed) -> None:
    directed.annotate(DIRECT, "true")
    directed.follow(direct=True)


def stop_a_pod(directed: Directed) -> None:
    """SIGTERM to the one of two that the sender's connections are at, or not."""
    (pod, *_) = sorted(directed.pods())
    directed.installed.cluster.kubectl(
        "delete", "pod", pod, "-n", directed.namespace, "--timeout=90s"
    )


def scale_out(directed: Directed) -> None:
    directed.annotate(MIN_SCALE, "3")
    directed.until_pods(3)
    directed.until_ready()


def scale_in(directed: Directed) -> None:
    directed.annotate(MIN_SCALE, "2")
    directed.until_pods(2)
    directed.until_ready()


def switch_off(directed: Directed) -> None:
    directed.annotate(DIRECT, "false")
    directed.follow(direct=False)
    directed.until_ready()


CHANGES: Final[dict[str, Callable[[Directed], None]]] = {
    "switched on": switch_on,
    "a pod stopped": stop_a_pod,
    **({"scaled out": scale_out, "scaled in": scale_in} if FULL else {}),
    "switched off": switch_off,
}


@only_chaos
def test_no_send_fails_and_none_is_lost_whatever_becomes_of_the_receiver(
    installed: Installation, direct_component: None, namespace: str
) -> None:
    subscriber = installed.subscriber(namespace)
    address = installed.broker(namespace, annotations={MIN_SCALE: "2"})
    installed.trigger(namespace, "all", subscriber.ref)
    pauses: dict[str, float] = {}
    with Load(address, EVENTS_A_SECOND) as load:
        subscriber.wait_for(50)
        directed = Directed(installed, namespace, load)
        for name, change in CHANGES.items():
            began, failed = time.time(), len(load.failed)
            change(directed)
            time.sleep(AFTERWARDS)  # of load; it is the time that is looked at
            pauses[name] = longest_pause(subscriber.seen(), began, time.time())
            print(
                f"{name}: nothing arrived for {pauses[name]:.2f} s in {time.time() - began:.0f} s, "
                f"{len(load.failed) - failed} sends failed"
            )
    _all_arrive(installed, subscriber, load)
    assert load.failed == {}
    assert max(pauses.values()) < LONGEST_PAUSE


def _all_arrive(installed: Installation, subscriber: Subscriber, load: Load) -> None:
    sent = load.accepted
    installed.cluster.wait_for(lambda: sent <= set(subscriber.ids()), 90, f"all {len(sent)} events")
    print(f"{len(sent)} accepted, {len(load.failed)} not, 0 lost")


@only_chaos  # three minutes
@pytest.mark.usefixtures("channels_go")
def test_a_channels_host_leads_past_the_proxy_and_back_and_no_send_fails(
    channels: Channels, direct_component: None, namespace: str
) -> None:
    """Its address stays: senders follow where its host leads."""
    installed = channels.installed
    subscriber = installed.subscriber(namespace)
    address = channels.channel(namespace, "orders")
    channels.subscription(namespace, "all", "orders", subscriber.ref)
    pauses: dict[str, float] = {}

    def until_led(*, past: bool) -> None:
        installed.cluster.wait_for(
            lambda: (
                past
                == installed.cluster.get("service", "orders-kn-channel", namespace)["spec"][  # type: ignore[index]
                    "externalName"
                ].startswith(CHANNELS_SERVICE)
            ),
            READY,
            "its host leads to the other way",
        )

    with Load(address, EVENTS_A_SECOND) as load:
        subscriber.wait_for(50)
        began = time.time()
        with installed.settings(KNAFKA_DIRECT="enabled"):
            until_led(past=True)
            service = installed.cluster.get("service", CHANNELS_SERVICE, OPERATOR_NAMESPACE)
            assert service is not None
            load.send_to(address, f"http://{service['spec']['clusterIP']}:80")
            time.sleep(AFTERWARDS)
            pauses["on"] = longest_pause(subscriber.seen(), began, time.time())
            began = time.time()
            off = "annotate", "kafkachannel", "orders", "-n", namespace, f"{DIRECT}=false"
            installed.cluster.kubectl(*off)
            until_led(past=False)
            load.send_to(address, INGRESS)
            time.sleep(AFTERWARDS)
            pauses["off"] = longest_pause(subscriber.seen(), began, time.time())
            began = time.time()
        installed.until_ready("kafkachannel", "orders", namespace, within=120)
        time.sleep(AFTERWARDS)
        pauses["its receiver as before"] = longest_pause(subscriber.seen(), began, time.time())
    print(f"nothing arrived for, s: {pauses}")
    _all_arrive(installed, subscriber, load)
    assert load.failed == {}
    assert max(pauses.values()) < LONGEST_PAUSE


@only_chaos  # two minutes
def test_knative_scales_by_what_comes_past_its_proxy(
    installed: Installation, direct_component: None, namespace: str
) -> None:
    """From one pod, by a target that this machine's senders reach."""
    annotations = {DIRECT: "true", "autoscaling.knative.dev/target": "1"}
    address = installed.broker(namespace, annotations=annotations)
    subscriber = installed.subscriber(namespace)
    installed.trigger(namespace, "all", subscriber.ref)
    with Load(address, EVENTS_A_SECOND) as load:
        directed = Directed(installed, namespace, load)
        directed.follow(direct=True)
        began = time.time()
        installed.cluster.wait_for(lambda: len(directed.pods()) >= 3, 120, "three pods")
        print(
            f"three pods after {time.time() - began:.0f} s of {EVENTS_A_SECOND:g} events a second"
        )
    _all_arrive(installed, subscriber, load)
    directed.until_pods(1)


class Sender:
    """kbench, sending `MANY` events a second to one address until it is left. Ids go on from
    `first`."""

    def __init__(self, kbench: Path, url: str, host: str, first: int) -> None:
        options = f"-url={url}", f"-host={host}", f"-rate={MANY}", f"-first-id={first}"
        command = [str(kbench), "load", *options, "-n=100000000", "-c=64", "-size=200"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )

    def stop(self) -> dict[str, Any]:
        """End; gives what became of the events."""
        self._process.terminate()
        out, _ = self._process.communicate(timeout=60)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found


@only_chaos  # it takes minutes
@pytest.mark.timeout(1800)
def test_thousands_a_second_lose_nothing_whatever_becomes_of_the_receiver(
    installed: Installation, direct_component: None, namespace: str
) -> None:
    """Every send is answered 202, and all of them are in the log; no second without a record."""
    kbench = build_kbench()
    # As many pods as are declared: by default it would be one for each 350 events a second.
    annotations = {MIN_SCALE: "2", "autoscaling.knative.dev/target": "1000"}
    installed.broker(namespace, annotations=annotations)
    directed = Directed(installed, namespace, Load(INGRESS))
    knatives = f"{RECEIVER}.{namespace}.svc.cluster.local"
    path = f"/{namespace}/default"
    sent: list[dict[str, Any]] = []

    def send(number: int, *, direct: bool) -> Sender:
        url = service_url(installed, namespace) if direct else INGRESS
        return Sender(kbench, f"{url}{path}", "" if direct else knatives, number * 10**9)

    def change(what: str, make: Callable[[], None]) -> None:
        began = time.time()
        make()
        print(f"{what} after {time.time() - began:.0f} s")
        time.sleep(PHASE)  # of load; it is the time that is looked at

    def roll() -> None:
        before = installed.newest_revision(namespace, RECEIVER)
        directed.annotate("autoscaling.knative.dev/window", "31s")
        installed.cluster.wait_for(
            lambda: installed.newest_revision(namespace, RECEIVER) != before, 60, "a new Revision"
        )
        directed.until_ready()

    began = time.time()
    sender = send(0, direct=False)
    time.sleep(PHASE)
    for number, direct in ((1, True), (2, False)):
        directed.annotate(DIRECT, str(direct).lower())
        until_address(installed, namespace, direct=direct)
        following = send(number, direct=direct)
        sent.append(sender.stop())
        sender = following
        time.sleep(PHASE)
        if direct:
            change("a pod stopped", lambda: stop_a_pod(directed))
            change("scaled out", lambda: scale_out(directed))
            change("rolled", roll)
            change("scaled in", lambda: scale_in(directed))
    sent.append(sender.stop())
    took = time.time() - began
    assert [each["errors"] for each in sent] == [{}, {}, {}]
    assert [list(each["status"]) for each in sent] == [["202"]] * 3
    accepted = [each["ok"] for each in sent]
    ids, pause = _in_the_log(installed, names.broker_topic(namespace, "default"))
    lost = sum(
        number * 10**9 + each not in ids for number, of in enumerate(accepted) for each in range(of)
    )
    print(
        f"{took:.0f} s, {sum(accepted)} accepted, 0 not, {lost} lost, "
        f"{len(ids)} in the log, none for {pause:.2f} s at most"
    )
    assert lost == 0
    assert pause < LONGEST_PAUSE


def _in_the_log(installed: Installation, topic: str) -> tuple[set[int], float]:
    """Ids of all records of a topic, and the longest time between two of them."""
    servers = installed.kafka.bootstrap("PLAINTEXT")
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test-reads"})
    partitions = consumer.list_topics(topic).topics[topic].partitions
    left = 0
    for each in partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, each))
        left += high - low
    consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
    ids, times = set[int](), set[int]()
    while left:
        for record in consumer.consume(10_000, 1.0):
            assert record.error() is None
            left -= 1
            times.add(record.timestamp()[1])
            headers = dict(record.headers() or ())
            ids.add(int(headers["ce_id"] or b""))
    consumer.close()
    return ids, max(later - earlier for earlier, later in pairwise(sorted(times))) / 1000


@only_chaos  # it measures
@pytest.mark.kafka
async def test_what_an_event_costs_by_each_way(
    installed: Installation, direct_component: None, namespace: str, tmp_path: Path
) -> None:
    """Prints CPU (of Knative's proxy, too), events a second and latency. Each way is a quarter of
    a minute with as many events as are taken, and one with 2,000 a second."""
    annotations = {DIRECT: "true", MIN_SCALE: "1", "autoscaling.knative.dev/max-scale": "1"}
    installed.broker(namespace, annotations=annotations)
    until_address(installed, namespace, direct=True)
    kbench = build_kbench()
    (pod,) = installed.cluster.pods(namespace, RECEIVER)
    path = f"/{namespace}/default"
    ways: dict[str, Way] = {
        "direct": (f"{service_url(installed, namespace)}{path}", "", _pod_cpu(pod)),
        "its proxy": (f"http://{pod['status']['podIP']}:8012{path}", "", _pod_cpu(pod)),
        "gateway and proxy": (
            f"{INGRESS}{path}", f"{RECEIVER}.{namespace}.svc.cluster.local", _pod_cpu(pod)
        ),
    }  # fmt: skip
    topic = names.broker_topic(namespace, "default")
    declared = ingress(installed.kafka.bootstrap("PLAINTEXT"), topic)
    async with receiver([declared], tmp_path / "log") as alone, in_pod(pod, declared) as beside:
        await alone.ready()
        pid = alone.process.pid
        by_loopback = f"{alone.url}{declared.path}", "", lambda: cpu_seconds([pid])
        ways = {
            "the function alone": by_loopback,
            "the function alone, in the pod's network": beside,
            **ways,
        }
        for name, way in [*ways.items(), *ways.items()]:
            for load, options in LOADS.items():
                found, used = await asyncio.to_thread(_load, kbench, way, options)
                assert set(found["status"]) == {"202"}, f"{name}: {found}"
                cost = f"{used * 1e6 / found['events']:.1f} us an event"
                rate = f"{found['per_s']:.0f} a second"
                print(f"{name}, {load}: {cost}, {rate}, {found['latency_ms']}")


@asynccontextmanager
async def in_pod(pod: dict[str, Any], declared: Ingress) -> AsyncIterator[Way]:
    """A receiver of this machine in a pod's network, where only the network is the pod's."""
    (process, *_) = _processes(pod)
    environment = {**os.environ, "PORT": "8081", INGRESSES: json.dumps([dump(declared)])}
    function = await asyncio.create_subprocess_exec(
        *("nsenter", "-t", process, "-n", sys.executable, "-m", "knafka.receiver"),
        env=environment,
        stderr=asyncio.subprocess.DEVNULL,
    )
    url = f"http://{pod['status']['podIP']}:8081"
    async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(30):
        while True:
            try:
                if (await client.get(f"{url}/health/readiness")).status_code == 200:
                    break
            except httpx.TransportError:
                await asyncio.sleep(0.1)
    try:
        yield f"{url}{declared.path}", "", lambda: cpu_seconds([function.pid])
    finally:
        function.terminate()
        await function.wait()


def _load(kbench: Path, way: Way, more: Sequence[str]) -> tuple[dict[str, Any], float]:
    """What kbench says, and the seconds of CPU that were used meanwhile."""
    url, host, cpu = way
    options = f"-url={url}", f"-host={host}", "-d=15s", *more
    command = [str(kbench), "load", *options]
    began = cpu()
    done = subprocess.run(command, input="\n\n", capture_output=True, text=True, check=True)
    used = cpu() - began
    return json.loads(done.stdout.splitlines()[-1]), used


def _cgroup(pod: dict[str, Any]) -> Path:
    name = f"pod{pod['metadata']['uid']}"
    (found,) = Path(f"/sys/fs/cgroup/cpuacct{settings.CGROUP}").rglob(name)
    return found


def _pod_cpu(pod: dict[str, Any]) -> Callable[[], float]:
    """Seconds of CPU that the pod's containers have used."""
    usage = _cgroup(pod) / "cpuacct.usage"
    return lambda: int(usage.read_text()) / 1e9


def _processes(pod: dict[str, Any]) -> list[str]:
    """Ids of the pod's processes, all of which are in its network."""
    return [
        each for path in _cgroup(pod).rglob("cgroup.procs") for each in path.read_text().split()
    ]
