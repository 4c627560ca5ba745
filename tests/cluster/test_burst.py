"""A burst is delivered by several pods, in order for each key, whatever is killed (issue 4, item 3;
BRK-14, KN-BRK-07, CHN-28, CHN-31)."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

import pytest
from support.cluster import OPERATOR_NAMESPACE
from support.installation import Installation, Subscriber
from support.mortal_kafka import MortalKafka

from testcluster import settings

EVENTS = int(os.environ.get("KNAFKA_BURST", "6000"))
EVENTS_WHILE_KILLED = EVENTS // 3
EVENTS_TO_SPREAD = EVENTS * 2 // 5
"""Events of each round while all is killed in turn; there are as many rounds as that needs."""
KEYS = 400
PARTITIONS = 8
SENDERS = 8
KILL_EVERY = 4.0
"""Seconds between two kills."""

pytestmark = pytest.mark.alone


def send_all(address: str, numbers: range) -> None:
    """Send numbered events, each key's one after another; what isn't accepted is sent again.

    By http.client: others would take of the two cores what the burst is to have.
    """
    parts = urlsplit(address)

    def send(keys: Sequence[int]) -> None:
        with closing(HTTPConnection(settings.NODE_IP, 81, timeout=15)) as connection:
            for number in (n for n in numbers if n % KEYS in keys):
                headers = {
                    "host": parts.netloc,
                    "ce-specversion": "1.0",
                    "ce-id": str(number),
                    "ce-source": "/burst",
                    "ce-type": "made",
                    "ce-partitionkey": f"k{number % KEYS}",
                    "content-type": "application/json",
                }
                body = json.dumps({"n": number}).encode()
                while not _accepted(connection, parts.path, headers, body):
                    time.sleep(0.2)

    with ThreadPoolExecutor(SENDERS) as pool:
        for done in [pool.submit(send, range(each, KEYS, SENDERS)) for each in range(SENDERS)]:
            done.result()


def _accepted(connection: HTTPConnection, path: str, headers: dict[str, str], body: bytes) -> bool:
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status == 202
    except (OSError, HTTPException):
        connection.close()  # the next request opens it anew
        return False


class Repeated(threading.Thread):
    """Does something again and again until it is told to stop."""

    def __init__(self, what: Callable[[], None], every: float) -> None:
        super().__init__(daemon=True)
        self._what = what
        self._every = every
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._every):
            self._what()

    def __enter__(self) -> Repeated:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def _set_up(
    installed: Installation, namespace: str, kafka: MortalKafka, delay: float
) -> tuple[str, Subscriber]:
    subscriber = installed.subscriber(namespace, SUBSCRIBER_DELAY=str(delay))
    address = installed.broker(
        namespace,
        partitions=PARTITIONS,
        data={"bootstrap.servers": kafka.server.bootstrap_servers},
    )
    installed.trigger(
        namespace,
        "all",
        subscriber.ref,
        annotations={
            "autoscaling.eventing.knative.dev/lag-threshold": "500",
            "autoscaling.eventing.knative.dev/max-scale": "4",
            "autoscaling.eventing.knative.dev/polling-interval": "2",
            "autoscaling.eventing.knative.dev/cooldown-period": "5",
        },
        delivery={"retry": 10, "backoffDelay": "PT0.2S"},
    )
    return address, subscriber


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("mortal_kafka", "brokers_go")  # in this order: Kafka outlives them
def test_a_burst_raises_dispatchers_to_several_pods_and_back_to_zero(
    installed: Installation, namespace: str, mortal_kafka: MortalKafka
) -> None:
    # One dispatcher has 100 attempts under way, so it delivers 33 events a second: less than come,
    # also on a machine that does other things.
    address, subscriber = _set_up(installed, namespace, mortal_kafka, delay=3.0)
    pods: list[int] = []
    count = lambda: pods.append(len(installed.cluster.pods(namespace, "all-kn-dispatcher")))  # noqa: E731
    with Repeated(count, 2.0):
        send_all(address, range(EVENTS_TO_SPREAD))
        subscriber.wait_for(EVENTS_TO_SPREAD, within=300)
    summary = subscriber.summary()
    assert (summary["unique"], summary["outOfOrder"]) == (EVENTS_TO_SPREAD, {})
    assert 2 <= max(pods) <= 4
    installed.until_zero(namespace, "all-kn-dispatcher")
    print(f"pods every two seconds: {pods}; {summary['duplicates']} duplicates")


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("mortal_kafka", "brokers_go")
def test_nothing_is_lost_or_out_of_order_while_everything_is_killed_at_random(
    installed: Installation, namespace: str, mortal_kafka: MortalKafka
) -> None:
    address, subscriber = _set_up(installed, namespace, mortal_kafka, delay=0.01)
    chance = random.Random(7)
    killed: list[str] = []

    def kill_pod(selector: str, where: str) -> None:
        found = installed.cluster.kubectl(
            "get", "pods", "-n", where, "-l", selector, "-oname", check=False
        ).split()
        if found:
            installed.cluster.kubectl(
                "delete", "-n", where, chance.choice(found), "--force", "--grace-period=0",
                "--wait=false", check=False,
            )  # fmt: skip

    victims: dict[str, Callable[[], None]] = {
        "receiver": lambda: kill_pod("knafka.dev/role=receiver", namespace),
        "dispatcher": lambda: kill_pod("knafka.dev/role=dispatcher", namespace),
        "operator": lambda: kill_pod("app.kubernetes.io/component=operator", OPERATOR_NAMESPACE),
        "kafka": mortal_kafka.kill_and_restart,
    }
    order = list(victims)

    def kill() -> None:
        # Each in turn, in an order of chance: no run is spared by luck.
        if not killed or len(killed) % len(order) == 0:
            chance.shuffle(order)
        victim = order[len(killed) % len(order)]
        killed.append(victim)
        victims[victim]()

    sent = 0
    with Repeated(kill, KILL_EVERY):
        # A machine that is fast enough has sent them all before each was killed.
        while not sent or set(killed) != set(victims):
            send_all(address, range(sent, sent + EVENTS_WHILE_KILLED))
            sent += EVENTS_WHILE_KILLED
    subscriber.wait_for(sent, within=300)
    summary = subscriber.summary()
    assert (summary["unique"], summary["outOfOrder"]) == (sent, {})
    print(f"killed {killed}; {summary['duplicates']} duplicates")
