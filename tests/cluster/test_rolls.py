"""A new image, or a setting of all functions, rolls a few of them at a time (issue 30).

    KNAFKA_ROLLED=10 KNAFKA_RATE=100 pytest tests/cluster/test_rolls.py -s

rolls 20 functions: 10 Brokers, each with a receiver and a Trigger; without that one with two.
It disturbs every namespace of the cluster, so nothing else may run beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest
from support.cluster import OPERATOR_NAMESPACE
from support.installation import Installation
from support.steady_load import RATE, Load, longest_pause

pytestmark = pytest.mark.alone

BROKERS: Final = int(os.environ.get("KNAFKA_ROLLED", "1"))
TRIGGERS: Final = 1 if BROKERS > 1 else 2
EVENTS_A_SECOND: Final = float(os.environ.get("KNAFKA_RATE", RATE))
"""To all Brokers together."""
LONGEST_PAUSE: Final = 10.0
SETTLED: Final = 120.0
AT_A_TIME: Final = 2
"""KNAFKA_MAX_ROLLS where nothing is said."""
DEPLOYMENT: Final = ("-n", OPERATOR_NAMESPACE, "deploy/knafka-operator")


@contextmanager
def _image(installed: Installation, image: str) -> Iterator[None]:
    """Have functions made of this image meanwhile."""
    kubectl, usual = installed.cluster.kubectl, installed.cluster.image("knafka")
    kubectl("set", "env", *DEPLOYMENT, f"KNAFKA_IMAGE={image}")
    try:
        yield
    finally:
        kubectl("set", "env", *DEPLOYMENT, f"KNAFKA_IMAGE={usual}")
        installed.until_running()


@pytest.mark.timeout(1800)
def test_a_new_image_for_all_functions_lets_no_send_fail(
    installed: Installation, namespace: str
) -> None:
    """All at once, 7,232 of 8,000 sends timed out, and it ended only with the load."""
    subscriber = installed.subscriber(namespace)
    names = [f"b{number}" for number in range(BROKERS)]
    addresses = {name: installed.broker(namespace, name) for name in names}
    triggers = [f"{name}-t{number}" for name in names for number in range(TRIGGERS)]
    for trigger in triggers:
        broker = trigger.partition("-")[0]
        installed.trigger(namespace, trigger, subscriber.ref, broker=broker, ready=False)
    for trigger in triggers:
        installed.until_ready("trigger", trigger, namespace, within=300)
    functions = [
        *(f"{name}-kn-receiver" for name in names),
        *(f"{trigger}-kn-dispatcher" for trigger in triggers),
    ]
    revisions = {each: installed.newest_revision(namespace, each) for each in functions}
    image = _digest(installed, namespace, revisions[functions[0]])
    most = 0

    def rolled() -> bool:
        nonlocal most
        services = [
            installed.status("service.serving.knative.dev", each, namespace) for each in functions
        ]
        starting = [
            each
            for each in services
            if each.get("latestCreatedRevisionName") != each.get("latestReadyRevisionName")
        ]
        most = max(most, len(starting))
        newest = {each["latestReadyRevisionName"] for each in services}
        return not starting and newest.isdisjoint(revisions.values())

    with ExitStack() as stack:
        rate = EVENTS_A_SECOND / BROKERS
        loads = [stack.enter_context(Load(address, rate)) for address in addresses.values()]
        subscriber.wait_for(20 * BROKERS)
        began, clock = time.monotonic(), time.time()
        with _image(installed, image):
            installed.until_running()
            installed.cluster.wait_for(rolled, 60 * len(functions), "every function has rolled")
            took = time.monotonic() - began
            time.sleep(5)  # of load: what follows late is seen, too
            pause = longest_pause(subscriber.seen(), clock, time.time())
            failed = {**{k: v for each in loads for k, v in each.failed.items()}}
            print(
                f"{len(functions)} functions rolled in {took:.0f} s, {most} at a time, with "
                f"{EVENTS_A_SECOND:g} events a second: {len(failed)} of "
                f"{sum(len(each.statuses) for each in loads)} sends failed, the longest pause was "
                f"{pause:.1f} s"
            )
    assert failed == {}
    assert most <= AT_A_TIME
    assert pause < LONGEST_PAUSE


def _digest(installed: Installation, namespace: str, revision: str) -> str:
    """The same image by its digest: another name makes another Revision."""
    found = installed.status("revision", revision, namespace)
    return str(found["containerStatuses"][0]["imageDigest"])
