"""Changes that nobody notices: under load each is a short pause, and loses nothing (issue 30).

    KNAFKA_RATE=100 pytest tests/cluster/test_planned_changes.py -s

Without that, at 25 events a second, only those that no other file of tests makes. Prints how long
nothing arrived for each change. What disturbs every namespace is in files of its own:
`test_rolls`, `test_components`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from support.gate import only_chaos
from support.installation import Installation, Subscriber
from support.steady_load import RATE, Load, longest_pause

pytestmark = pytest.mark.alone

FULL: Final = "KNAFKA_RATE" in os.environ
EVENTS_A_SECOND: Final = float(os.environ.get("KNAFKA_RATE", RATE))
LONGEST_PAUSE: Final = 3.0 if FULL else 9.0
"""Seconds; in the gate, on whatever machine, three times as long. The figures are printed."""
AFTERWARDS: Final = 6.0 if FULL else 3.0
"""Seconds of load after a change is Ready: what follows late is seen, too."""
SETTLED: Final = 90.0
GONE: Final = 60.0
"""Seconds; 49 were measured at a load of 9. 5 until Kubernetes begins, 36 until it looks again
(half of the pods' grace), and what it takes to go through some 90 kinds: docs/performance.md."""
DISPATCHER: Final = "all-kn-dispatcher"

ISOLATION: Final = "knafka.dev/isolation"


@dataclass(eq=False)
class Changed:
    """A Broker and a Trigger under load."""

    installed: Installation
    namespace: str
    subscriber: Subscriber
    other: Subscriber

    def trigger(self, **declared: Any) -> None:
        """Declare the Trigger so; what isn't said is as at the beginning."""
        subscriber = declared.pop("subscriber", self.subscriber)
        self.installed.trigger(self.namespace, "all", subscriber.ref, **declared)

    def config(self, **data: str) -> None:
        name = "default-kafka"
        self.installed.configure(name, self.namespace, "SASL_SSL", **(self.secret() | data))

    def secret(self, **more: str) -> dict[str, str]:
        """Write the Secret; gives what names it in the ConfigMap."""
        self.installed.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "kafka", "namespace": self.namespace},
                "stringData": {**self.installed.kafka.secret("SASL_SSL"), **more},
            }
        )
        return {"auth.secret.ref.name": "kafka"}

    def another_secret(self) -> None:
        """The same access, by a Secret that says something more."""
        self.secret(example="changed")

    def servers(self) -> None:
        """The same Kafka by another list of servers."""
        servers = self.installed.kafka.bootstrap("SASL_SSL")
        self.config(**{"bootstrap.servers": f"{servers},{servers}"})

    def until_changed(self, before: str) -> None:
        """Wait for another Revision than this one, and until all is Ready again."""
        installed, namespace = self.installed, self.namespace
        installed.cluster.wait_for(
            lambda: installed.newest_revision(namespace, DISPATCHER) != before, 60, "a Revision"
        )
        for kind, name in (("broker", "default"), ("trigger", "all")):
            installed.until_ready(kind, name, namespace, within=120)


ROLLS: Final[dict[str, Callable[[Changed], None]]] = {
    "ConfigMap": Changed.servers,
    "Secret": Changed.another_secret,
}
"""What makes another Revision without a change of the Trigger."""
CHANGES: Final[dict[str, Callable[[Changed], None]]] = {
    **ROLLS,
    "filter": lambda changed: changed.trigger(filters=[{"prefix": {"type": "m"}}]),
    "subscriber": lambda changed: changed.trigger(subscriber=changed.other),
    "to a shared dispatcher": lambda changed: changed.trigger(annotations={ISOLATION: "shared"}),
    "to its own dispatcher": lambda changed: changed.trigger(),
}


@only_chaos
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("brokers_go")
def test_a_change_is_a_short_pause_and_loses_nothing(
    installed: Installation, namespace: str
) -> None:
    """Other servers stopped delivery until the new Revision was there: 9 to 13 s."""
    subscribers = [installed.subscriber(namespace, name) for name in ("subscriber", "other")]
    changed = Changed(installed, namespace, *subscribers)
    data = {
        "bootstrap.servers": installed.kafka.bootstrap("SASL_SSL"),
        **changed.secret(),
    }
    address = installed.broker(namespace, data=data)
    changed.trigger()
    pauses: dict[str, float] = {}
    with Load(address, EVENTS_A_SECOND) as load:
        subscribers[0].wait_for(50)
        for name, change in CHANGES.items() if FULL else [("ConfigMap", Changed.servers)]:
            before, began = installed.newest_revision(namespace, DISPATCHER), time.time()
            change(changed)
            if name in ROLLS:
                changed.until_changed(before)
            time.sleep(AFTERWARDS)  # of load; it is the time that is looked at
            seen = [event for each in subscribers for event in each.seen()]
            pauses[name] = longest_pause(seen, began, time.time())
            print(f"{name}: nothing arrived for {pauses[name]:.2f} s")
    sent = load.accepted
    installed.cluster.wait_for(
        lambda: sent <= {id_ for each in subscribers for id_ in each.ids()},
        SETTLED,
        f"all {len(sent)} events",
    )
    print(f"{len(sent)} accepted, {len(load.failed)} not, 0 lost")
    assert load.failed == {}
    assert max(pauses.values()) < LONGEST_PAUSE


@only_chaos  # a minute and more for each
@pytest.mark.timeout(600)
def test_a_namespace_with_ten_functions_that_run_is_gone_within_a_minute(
    installed: Installation, namespace: str
) -> None:
    """It took five to six: Kubernetes waits for half of the longest grace in it."""
    subscriber = installed.subscriber(namespace)
    address = installed.broker(namespace)
    always = {"autoscaling.eventing.knative.dev/min-scale": "1"}
    for number in range(9):
        name = f"t{number}"
        installed.trigger(namespace, name, subscriber.ref, annotations=always, ready=False)
    for number in range(9):
        installed.until_ready("trigger", f"t{number}", namespace, within=180)
    with Load(address):
        subscriber.wait_for(100)
    cluster, began = installed.cluster, time.monotonic()
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    cluster.wait_for(lambda: cluster.get("namespace", namespace) is None, 120, "it is gone")
    took = time.monotonic() - began
    busy = os.getloadavg()[0]
    print(f"a namespace with ten functions is gone after {took:.0f} s, load average {busy:.0f}")
    assert took < GONE
