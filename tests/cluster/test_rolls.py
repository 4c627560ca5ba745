"""A new image, or a setting of all functions, rolls a few of them at a time (issue 30).

    KNAFKA_ROLLED=10 KNAFKA_RATE=100 pytest tests/cluster/test_rolls.py -s

rolls ten functions: the receivers of two Brokers, and eight Triggers, each with events of its own;
without that three of one Broker. It disturbs every namespace of the cluster, so nothing else may
run beside it.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
from support.cluster import OPERATOR_NAMESPACE
from support.installation import Installation
from support.steady_load import RATE, Load, longest_pause

pytestmark = pytest.mark.alone

FUNCTIONS: Final = int(os.environ.get("KNAFKA_ROLLED", "3"))
BROKERS: Final = 1 + FUNCTIONS // 10
EVENTS_A_SECOND: Final = float(os.environ.get("KNAFKA_RATE", RATE))
"""To all Brokers together."""
LONGEST_PAUSE: Final = 10.0 if "KNAFKA_ROLLED" in os.environ else 30.0
"""Seconds in which one Trigger gets nothing; in the gate, on a busy machine, thrice as long."""
SETTLED: Final = 120.0
AT_A_TIME: Final = 2
"""KNAFKA_MAX_ROLLS where nothing is said."""
ALWAYS: Final = {f"autoscaling.eventing.knative.dev/{bound}-scale": "1" for bound in ("min", "max")}
"""One pod each, whatever waits: two cores have no room for more of each."""
DEPLOYMENT: Final = ("-n", OPERATOR_NAMESPACE, "deploy/knafka-operator")


@dataclass(frozen=True, slots=True)
class Rolled:
    """A Trigger with an own dispatcher, which gets the events of one type of its Broker."""

    broker: str
    type: str

    @property
    def name(self) -> str:
        return f"{self.broker}-{self.type}"


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
    cluster, subscriber = installed.cluster, installed.subscriber(namespace)
    brokers = [f"b{number}" for number in range(BROKERS)]
    triggers = [
        Rolled(brokers[number % BROKERS], f"t{number}") for number in range(FUNCTIONS - BROKERS)
    ]
    addresses = {name: installed.broker(namespace, name) for name in brokers}
    for trigger in triggers:
        installed.trigger(
            namespace,
            trigger.name,
            {**subscriber.ref, "uri": f"/{trigger.name}"},
            broker=trigger.broker,
            filters=[{"exact": {"type": trigger.type}}],
            # Each runs before there is a load, and before the next begins to.
            annotations=ALWAYS,
            ready=False,
        )
        installed.until_ready("trigger", trigger.name, namespace, within=120)
    most = 0

    with ExitStack() as stack:
        loads = {
            broker: stack.enter_context(
                Load(
                    address,
                    EVENTS_A_SECOND / BROKERS,
                    source=f"/{broker}",
                    types=[each.type for each in triggers if each.broker == broker],
                )
            )
            for broker, address in addresses.items()
        }
        cluster.wait_for(
            lambda: len(_by_trigger(subscriber.seen())) == len(triggers),
            180,
            "every Trigger delivers",
        )
        time.sleep(15)  # of load: all that its beginning has started is there
        before = _functions(installed, namespace)
        assert len(before) == FUNCTIONS
        image = _digest(installed, namespace, before[f"{brokers[0]}-kn-receiver"][1])

        def rolled() -> bool:
            nonlocal most
            now = _functions(installed, namespace)
            starting = [name for name, (created, ready) in now.items() if created != ready]
            most = max(most, len(starting))
            return not starting and all(
                now[name][1] != ready for name, (_, ready) in before.items()
            )

        began, clock = time.monotonic(), time.time()
        with _image(installed, image):
            installed.until_running()
            cluster.wait_for(rolled, 60 * FUNCTIONS, "every function has rolled")
            took = time.monotonic() - began
            time.sleep(5)  # of load: what follows late is seen, too
            ended, seen = time.time(), _by_trigger(subscriber.seen())
            busy = os.getloadavg()[0]
    pauses = {each.name: longest_pause(seen[f"/{each.name}"], clock, ended) for each in triggers}
    failed = {(name, id_) for name, load in loads.items() for id_ in load.failed}
    sent = sum(len(load.statuses) for load in loads.values())

    def missing() -> int:
        arrived = _by_trigger(subscriber.seen())
        return sum(
            len(
                loads[each.broker].accepted_of(each.type)
                - {e["id"] for e in arrived[f"/{each.name}"]}
            )
            for each in triggers
        )

    cluster.wait_for(lambda: not missing(), SETTLED, "every accepted event has arrived")
    longest, median = max(pauses.values()), statistics.median(pauses.values())
    print(
        f"{FUNCTIONS} functions rolled in {took:.0f} s, {most} at a time, with "
        f"{EVENTS_A_SECOND:g} events a second, load average {busy:.0f} at the end: "
        f"{len(failed)} of {sent} sends failed, none lost; the longest pauses of Triggers were "
        f"{longest:.1f} s, the median {median:.1f} s"
    )
    assert failed == set()
    assert most <= AT_A_TIME
    assert longest < LONGEST_PAUSE, pauses


def _functions(installed: Installation, namespace: str) -> Mapping[str, tuple[str, str]]:
    """The newest Revision of each, and the newest that is Ready."""
    stored = json.loads(installed.cluster.kubectl("get", "ksvc", "-n", namespace, "-ojson"))
    return {
        each["metadata"]["name"]: (
            each["status"].get("latestCreatedRevisionName", ""),
            each["status"].get("latestReadyRevisionName", ""),
        )
        for each in stored["items"]
    }


def _by_trigger(seen: Sequence[Mapping[str, Any]]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """What a subscriber has seen, by the path that it came to."""
    arrived: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for event in seen:
        arrived[event["path"]].append(event)
    return arrived


def _digest(installed: Installation, namespace: str, revision: str) -> str:
    """The same image by its digest: another name makes another Revision."""
    found = installed.status("revision", revision, namespace)
    return str(found["containerStatuses"][0]["imageDigest"])
