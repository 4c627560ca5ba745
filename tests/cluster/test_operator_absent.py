"""The operator is no single point of failure (issue 13, fault 2 and item 3 of what it must show).

Under load, with every 202 counted in the subscribers: no operator, an operator killed, one that
comes back. `KNAFKA_ABSENT` is for how many seconds there is none (`make chaos`: 600).
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime

import pytest
from support.cluster import OPERATOR_NAMESPACE, Cluster
from support.gate import only_chaos
from support.installation import Installation, Subscriber
from support.steady_load import Load, longest_pause

ABSENT = float(os.environ.get("KNAFKA_ABSENT", "20"))
BUSY = 1.0 if "KNAFKA_ABSENT" in os.environ else 3.0
"""How much longer things may take in the gate, on whatever machine; the figures are printed."""
LONGEST_PAUSE = 10.0 * BUSY
"""Seconds between two events at an awake Trigger; without a successor delivery just ends."""
TAKEN_OVER = 19.0 * BUSY
"""Seconds after which another replica acts, or a sleeping Trigger wakes: 15 of them the Lease."""
SETTLED = 90.0

DEPLOYMENT = ("-n", OPERATOR_NAMESPACE, "deploy/knafka-operator")
MIN_SCALE = {"autoscaling.eventing.knative.dev/min-scale": "1"}


@pytest.fixture
def two_replicas(installed: Installation) -> Iterator[Installation]:
    """An installation that has its operator again when the test is over."""
    installed.until_running()
    yield installed
    installed.cluster.kubectl("scale", *DEPLOYMENT, "--replicas=2")
    installed.until_running()


@pytest.fixture(scope="module")
def delivered_to(installed: Installation) -> Iterator[tuple[str, Subscriber]]:
    namespace, cluster = f"test-{uuid.uuid4().hex[:8]}", installed.cluster
    cluster.make_namespace(namespace)
    address, subscriber = installed.broker(namespace), installed.subscriber(namespace)
    installed.trigger(namespace, "all", subscriber.ref)
    yield address, subscriber
    for kind in ("triggers", "brokers"):
        cluster.delete(kind, namespace)
    cluster.delete("namespace", "", namespace)


@pytest.fixture
def delivering(delivered_to: tuple[str, Subscriber]) -> tuple[str, Subscriber]:
    """The address of a Broker, and who gets all of its events by a Trigger `all`; who has seen
    none. Tests leave both as they are."""
    delivered_to[1].forget()
    return delivered_to


@pytest.mark.alone
@pytest.mark.timeout(900 + ABSENT)
@pytest.mark.usefixtures("brokers_go")
def test_without_an_operator_awake_triggers_are_delivered_to_and_sleeping_ones_once_one_is_back(
    two_replicas: Installation, namespace: str
) -> None:
    """The one that is back finds the Lease as a killed replica leaves it."""
    installed, cluster = two_replicas, two_replicas.cluster
    address, quiet = installed.broker(namespace), installed.broker(namespace, "quiet")
    awake, always, sleeping = subscribers = [
        installed.subscriber(namespace, name) for name in ("awake", "always", "sleeping")
    ]
    installed.trigger(namespace, "sleeping", sleeping.ref, broker="quiet")
    installed.trigger(namespace, "awake", awake.ref)
    installed.trigger(namespace, "always", always.ref, annotations=MIN_SCALE)
    with Load(address) as load:
        for each in (awake, always):
            each.wait_for(50)
        installed.until_zero(namespace, "sleeping-kn-dispatcher")
        cluster.kubectl("scale", *DEPLOYMENT, "--replicas=0")
        cluster.wait_for(lambda: not _processes(cluster), 60, "there is no operator")
        began = time.time()
        time.sleep(ABSENT)  # it is the time without it that is looked at
        ended = time.time()
        pauses = {each.name: longest_pause(each.seen(), began, ended) for each in (awake, always)}
        print(f"no operator for {ABSENT:.0f} s: greatest pause in seconds {pauses}")
        # As one leaves it that was killed, however long the cluster gave it to stop.
        killed = json.dumps({"spec": {"holderIdentity": "killed_1", "leaseDurationSeconds": 15}})
        cluster.kubectl(
            "patch", "lease", "knafka-operator", "-n", OPERATOR_NAMESPACE, "--type=merge",
            "-p", killed,
        )  # fmt: skip
        assert installed.send(quiet, "1").status_code == 202
        assert sleeping.ids() == []
        cluster.kubectl("scale", *DEPLOYMENT, "--replicas=1")
        (event,) = sleeping.wait_for(1, within=120)
    _all_arrive(load, subscribers[:2])
    assert max(pauses.values()) < LONGEST_PAUSE
    (pod,) = cluster.pods(OPERATOR_NAMESPACE)
    started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    was_up = datetime.fromisoformat(started).timestamp()
    log = cluster.kubectl("logs", "-n", OPERATOR_NAMESPACE, pod["metadata"]["name"])
    told = {each["message"]: each["timestamp"] for each in map(json.loads, log.splitlines())}
    leads, waits = (
        datetime.fromisoformat(told[each]).timestamp() - was_up
        for each in ("this replica leads", "waiting for the Lease")
    )
    waited = event["at"] - was_up
    print(f"from the container's start, in seconds: {waits:.1f} waits, {leads:.1f} leads, ", end="")
    print(f"{waited:.1f} delivered (the start is given in whole seconds)")
    assert waited < TAKEN_OVER + 1


@only_chaos
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_the_other_replica_takes_over_from_a_killed_one(
    two_replicas: Installation, delivering: tuple[str, Subscriber]
) -> None:
    cluster, (address, subscriber) = two_replicas.cluster, delivering
    with Load(address) as load:
        subscriber.wait_for(50)
        for how in (("--force", "--grace-period=0"), ()):
            holder = two_replicas.leader()
            pod = holder.partition("_")[0]
            began = time.time()
            cluster.kubectl("delete", "pod", pod, "-n", OPERATOR_NAMESPACE, "--wait=false", *how)
            _until_another_leads(two_replicas, holder)
            waited = time.time() - began
            print(f"{' '.join(how) or 'a clean stop'}: taken over after {waited:.1f} s")
            assert waited < TAKEN_OVER
            two_replicas.until_running()
        pause = longest_pause(subscriber.seen(), began, time.time())
        print(f"greatest pause in delivery {pause:.1f} s")
    _all_arrive(load, [subscriber])


@only_chaos
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_an_image_that_cannot_be_pulled_stops_nobody(
    two_replicas: Installation, delivering: tuple[str, Subscriber]
) -> None:
    """Each dispatcher's newest Revision can't start; the one before it delivers."""
    cluster, (address, subscriber) = two_replicas.cluster, delivering
    namespace = subscriber.namespace
    image = ("set", "env", *DEPLOYMENT, f"KNAFKA_IMAGE={cluster.image('knafka')}")
    with Load(address) as load:
        subscriber.wait_for(50)
        try:
            # At once, whatever else there is that would have its turn before.
            missing = f"{image[-1]}-that-is-not-there"
            cluster.kubectl(*image[:-1], missing, "KNAFKA_MAX_ROLLS=100")
            two_replicas.until_running()
            began = time.time()
            told = two_replicas.until_condition(
                "trigger", "all", namespace, "SubscriptionReady", "FunctionNotReady"
            )
            print(told["message"])
            time.sleep(15)  # it is the time meanwhile that is looked at
            pause = longest_pause(subscriber.seen(), began, time.time())
            print(f"greatest pause in delivery {pause:.1f} s")
        finally:
            cluster.kubectl(*image, "KNAFKA_MAX_ROLLS-")
            two_replicas.until_running()
        assert pause < LONGEST_PAUSE
        two_replicas.until_ready("trigger", "all", namespace, within=120)
    _all_arrive(load, [subscriber])


@only_chaos
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("brokers_go")
def test_what_both_filters_accept_is_not_missed_while_a_trigger_is_edited(
    two_replicas: Installation, namespace: str
) -> None:
    address, subscriber = two_replicas.broker(namespace), two_replicas.subscriber(namespace)
    filters = [{"exact": {"type": "made"}}, {"prefix": {"type": "ma"}}, {"suffix": {"type": "de"}}]
    two_replicas.trigger(namespace, "all", subscriber.ref, filters=filters[:1])
    with Load(address) as load:
        subscriber.wait_for(50)
        began = time.time()
        for each in (*filters[1:], filters[0]):
            two_replicas.trigger(namespace, "all", subscriber.ref, filters=[each])
            time.sleep(2)  # of the load's; an edit is not another's end
        pause = longest_pause(subscriber.seen(), began, time.time())
        print(f"3 edits: greatest pause in delivery {pause:.1f} s")
    _all_arrive(load, [subscriber])


@only_chaos
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("brokers_go")
def test_with_min_scale_an_edited_trigger_is_ready_once_only_what_is_new_decides(
    two_replicas: Installation, namespace: str
) -> None:
    """Pods that drain unasked do so until they end, by what was declared before."""
    address, subscriber = two_replicas.broker(namespace), two_replicas.subscriber(namespace)
    passes_all = [{"prefix": {"type": "m"}}]
    two_replicas.trigger(
        namespace, "all", subscriber.ref, annotations=MIN_SCALE, filters=passes_all
    )
    with Load(address) as load:
        subscriber.wait_for(50)
        passes_none = [{"exact": {"type": "other"}}]
        began = time.time()
        two_replicas.trigger(
            namespace, "all", subscriber.ref, annotations=MIN_SCALE, filters=passes_none,
            ready=False,
        )  # fmt: skip
        two_replicas.until_ready("trigger", "all", namespace, within=180)
        ready = time.time()
        print(f"Ready {ready - began:.1f} s after the edit")
        sent = len(load.statuses)
        time.sleep(5)  # of events that only the old filter accepts
    late = [each["id"] for each in subscriber.seen() if int(each["id"]) > sent + 1]
    assert late == []


def _until_another_leads(installed: Installation, before: str) -> None:
    installed.cluster.wait_for(
        lambda: installed.leader() not in (before, ""), 60, "another one leads"
    )


def _processes(cluster: Cluster) -> Sequence[str]:
    """The operator's pods, those that are about to end as well."""
    return cluster.kubectl("get", "pods", "-n", OPERATOR_NAMESPACE, "-oname").split()


def _all_arrive(load: Load, subscribers: Sequence[Subscriber]) -> None:
    assert load.accepted
    for each in subscribers:
        each.wait_for(len(load.accepted), within=SETTLED)
        assert load.accepted - set(each.ids()) == set()
        twice = each.summary()["duplicates"]
        print(f"{each.name}: {len(load.accepted)} accepted, {twice} twice")
