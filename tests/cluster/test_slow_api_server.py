"""An API server that takes two seconds for each answer, and is away then (issue 30, "must show" 3).

KNAFKA_RATE=100 pytest tests/cluster/test_slow_api_server.py -s
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import httpx
import pytest
from support.cluster import OPERATOR_NAMESPACE
from support.gate import only_chaos
from support.installation import Installation
from support.slow_api_server import SlowApiServer, slow_api_server
from support.steady_load import RATE, Load, longest_pause

from testcluster import settings

pytestmark = pytest.mark.alone

EVENTS_A_SECOND: Final = float(os.environ.get("KNAFKA_RATE", RATE))
LATENCY: Final = 2.0
SLOW_FOR: Final = 60.0
AWAY_FOR: Final = 30.0
"""Seconds: twice as long as a Lease is good for without a renewal."""
LONGEST_PAUSE: Final = 3.0
AFTERWARDS: Final = 10.0
"""Seconds of load once a replica leads again."""
METRICS_PORT: Final = 9090
DEPLOYMENT: Final = ("-n", OPERATOR_NAMESPACE, "deploy/knafka-operator")


@pytest.fixture
def slowed(installed: Installation) -> Iterator[SlowApiServer]:
    """The operator, and nobody else, reaches the API server through this."""
    kubectl = installed.cluster.kubectl
    with slow_api_server() as proxy:
        there = (
            f"KUBERNETES_SERVICE_HOST={settings.HOST_IP}",
            f"KUBERNETES_SERVICE_PORT={proxy.port}",
        )
        kubectl("set", "env", *DEPLOYMENT, *there)
        installed.until_running()
        yield proxy
        kubectl("set", "env", *DEPLOYMENT, *(f"{each.partition('=')[0]}-" for each in there))
        installed.until_running()


def _operators(installed: Installation) -> list[dict[str, Any]]:
    """Their pods."""
    pods = installed.cluster.pods(OPERATOR_NAMESPACE)
    return [pod for pod in pods if pod["metadata"]["name"].startswith("knafka-operator-")]


def _restarts(installed: Installation) -> int:
    return sum(
        status["restartCount"]
        for pod in _operators(installed)
        for status in pod["status"]["containerStatuses"]
    )


def _leading(pods: Sequence[Mapping[str, Any]]) -> int:
    """Replicas that act at the moment; one that doesn't answer is none."""
    count = 0
    for pod in pods:
        url = f"http://{pod['status']['podIP']}:{METRICS_PORT}/metrics"
        with suppress(httpx.HTTPError):
            told = httpx.get(url, timeout=5, trust_env=False).text
            count += "knafka_operator_leader 1" in told
    return count


@only_chaos  # three minutes
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("brokers_go")
def test_a_slow_api_server_restarts_no_operator_and_pauses_no_delivery(
    installed: Installation, slowed: SlowApiServer, namespace: str
) -> None:
    """Ten restarts in 42 minutes, each of which read everything again."""
    subscriber = installed.subscriber(namespace)
    address = installed.broker(namespace)
    installed.trigger(namespace, "all", subscriber.ref)
    pods, restarts = _operators(installed), _restarts(installed)
    most = 0

    def watch(seconds: float) -> tuple[set[str], float]:
        """Who held the Lease in this time, and the longest pause of deliveries."""
        nonlocal most
        began, holders = time.time(), set[str]()
        while time.time() < began + seconds:
            holders.add(installed.leader())
            most = max(most, _leading(pods))
            time.sleep(1)  # of load; it is the time that is looked at
        return holders, longest_pause(subscriber.seen(), began, time.time())

    with Load(address, EVENTS_A_SECOND) as load:
        subscriber.wait_for(50)
        holder = installed.leader()
        slowed.latency = LATENCY
        holders, while_slow = watch(SLOW_FOR)
        print(f"{LATENCY:g} s for each call: nothing arrived for {while_slow:.2f} s")
        slowed.go_away()
        _, while_away = watch(AWAY_FOR)
        slowed.come_back()
        slowed.latency = 0.0
        began = time.time()
        installed.cluster.wait_for(lambda: _leading(pods) == 1, 60, "a replica leads again")
        again = time.time() - began
        _, afterwards = watch(AFTERWARDS)
        print(
            f"away for {AWAY_FOR:g} s: nothing arrived for {while_away:.2f} s, and for "
            f"{afterwards:.2f} s after a replica led again, {again:.1f} s after its return"
        )
    subscriber.wait_for(len(load.accepted), within=90)
    # What is new is seen to.
    installed.trigger(namespace, "later", subscriber.ref)
    assert load.failed == {}
    assert holders == {holder}
    assert most == 1
    assert _restarts(installed) == restarts
    assert max(while_slow, while_away, afterwards) < LONGEST_PAUSE
