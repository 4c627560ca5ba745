"""An API server that takes two seconds for each answer (issue 30, "must show" 3).

KNAFKA_RATE=100 pytest tests/cluster/test_slow_api_server.py -s
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Final

import pytest
from support.cluster import OPERATOR_NAMESPACE
from support.installation import Installation
from support.slow_api_server import SlowApiServer, slow_api_server
from support.steady_load import RATE, Load, longest_pause

from testcluster import settings

pytestmark = pytest.mark.alone

FULL: Final = "KNAFKA_RATE" in os.environ
EVENTS_A_SECOND: Final = float(os.environ.get("KNAFKA_RATE", RATE))
LATENCY: Final = 2.0
SLOW_FOR: Final = 60.0
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


def _restarts(installed: Installation) -> int:
    pods = installed.cluster.pods(OPERATOR_NAMESPACE)
    return sum(
        status["restartCount"]
        for pod in pods
        if pod["metadata"]["name"].startswith("knafka-operator-")
        for status in pod["status"]["containerStatuses"]
    )


@pytest.mark.skipif(not FULL, reason="make chaos: two minutes")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("brokers_go")
def test_a_slow_api_server_restarts_no_operator_and_pauses_no_delivery(
    installed: Installation, slowed: SlowApiServer, namespace: str
) -> None:
    """Ten restarts in 42 minutes, each of which read everything again."""
    subscriber = installed.subscriber(namespace)
    address = installed.broker(namespace)
    installed.trigger(namespace, "all", subscriber.ref)
    with Load(address, EVENTS_A_SECOND) as load:
        subscriber.wait_for(50)
        holder, restarts, began = installed.leader(), _restarts(installed), time.time()
        holders = {holder}
        slowed.latency = LATENCY
        while time.time() < began + SLOW_FOR:
            holders.add(installed.leader())
            time.sleep(1)  # of load; it is the time that is looked at
        slowed.latency = 0.0
        pause = longest_pause(subscriber.seen(), began, time.time())
    print(f"{LATENCY:g} s for each call, for {SLOW_FOR:g} s: nothing arrived for {pause:.2f} s")
    subscriber.wait_for(len(load.accepted), within=90)
    assert load.failed == {}
    assert holders == {holder}
    assert _restarts(installed) == restarts
    assert pause < 3
