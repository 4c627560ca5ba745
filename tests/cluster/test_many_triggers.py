"""Many Triggers made at once: how long until all are Ready, and what that costs (issue 14, 4).

    KNAFKA_TRIGGERS=200 KNAFKA_INITIAL_SCALE=0 pytest tests/cluster/test_many_triggers.py -s

Prints the time until each Trigger is Ready, the requests of the operator to the API server by verb
and resource, those of everybody together, the most pods there were, and the CPU of the operator.
`KNAFKA_INITIAL_SCALE=1` measures with a pod for each new Revision, which is Knative's default;
`KNAFKA_WITHIN` is for how many seconds that may go on. No event is sent: every Trigger of a Broker
is woken by one, since its dispatcher is what filters.

The operator's requests are counted by the API server: a FlowSchema for each verb and resource of
its service account has a counter of its own. The priority level is the one that it has anyway.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

import pytest
from support.cluster import OPERATOR_NAMESPACE, Cluster
from support.gate import only_chaos
from support.installation import EVENTING, Installation

TRIGGERS: Final = int(os.environ.get("KNAFKA_TRIGGERS", "10"))
INITIAL_SCALE: Final = os.environ.get("KNAFKA_INITIAL_SCALE", "0")
WITHIN: Final = float(os.environ.get("KNAFKA_WITHIN", "600"))
"""Seconds until all are Ready."""
CLIENTS: Final = 8
SAMPLE: Final = 2.0
"""Seconds between two counts of pods."""

ACCOUNT: Final = "knafka-operator"
FLOWS: Final[Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    # name: API group, resources, verbs
    "services-read": ("serving.knative.dev", ("services",), ("get", "list", "watch")),
    "services-apply": ("serving.knative.dev", ("services",), ("create", "update", "patch")),
    "services-delete": ("serving.knative.dev", ("services",), ("delete",)),
    "revisions-read": ("serving.knative.dev", ("revisions",), ("get", "list", "watch")),
    "triggers-read": ("eventing.knative.dev", ("triggers", "brokers"), ("get", "list", "watch")),
    "triggers-patch": ("eventing.knative.dev", ("triggers", "brokers"), ("patch", "update")),
    "status-patch": (
        "eventing.knative.dev", ("triggers/status", "brokers/status"), ("patch", "update"),
    ),
    "config-read": ("", ("configmaps", "secrets"), ("get", "list", "watch")),
    "subscribers-read": ("", ("services",), ("get", "list", "watch")),
    "pods-read": ("", ("pods",), ("get", "list", "watch")),
    "events-create": ("", ("events",), ("create", "patch")),
    "lease": ("coordination.k8s.io", ("leases",), ("get", "update", "create")),
}  # fmt: skip
PREFIX: Final = "measured-"
DISPATCHED: Final = "apiserver_flowcontrol_dispatched_requests_total"
ALL_REQUESTS: Final = "apiserver_request_total"

pytestmark = [pytest.mark.alone, pytest.mark.timeout(WITHIN + 600)]


class Pods(threading.Thread):
    """Counts the pods of a namespace again and again."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(daemon=True)
        self.cluster, self.namespace = cluster, namespace
        self.most: Counter[str] = Counter()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(SAMPLE):
            phases = self.cluster.kubectl(
                "get", "pods", "-n", self.namespace, "-l", "knafka.dev/role",
                "-ojsonpath={.items[*].status.phase}", check=False,
            ).split()  # fmt: skip
            counted = Counter(phases)
            for phase in ("Running", "Pending"):
                self.most[phase] = max(self.most[phase], counted[phase])
            self.most["all"] = max(self.most["all"], len(phases))

    def __enter__(self) -> Pods:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


@pytest.fixture
def counted(cluster: Cluster) -> Iterator[None]:
    """The API server counts the operator's requests by verb and resource meanwhile."""
    cluster.apply(_list([_flow(name) for name in FLOWS]))
    try:
        yield
    finally:
        names = [PREFIX + name for name in FLOWS]
        cluster.kubectl("delete", "flowschemas", *names, "--ignore-not-found", check=False)


@pytest.fixture(scope="module")
def initial_scale(installed: Installation) -> Iterator[None]:
    with installed.settings(KNAFKA_INITIAL_SCALE=INITIAL_SCALE):
        yield


@only_chaos
@pytest.mark.skipif(INITIAL_SCALE != "0", reason="each function runs once")
@pytest.mark.usefixtures("brokers_go", "initial_scale")
def test_a_trigger_whose_function_has_never_run_is_ready_and_delivers(
    installed: Installation, namespace: str
) -> None:
    """What KNAFKA_INITIAL_SCALE=0 promises."""
    subscriber = installed.subscriber(namespace)
    address = installed.broker(namespace)
    installed.trigger(namespace, "orders", subscriber.ref)
    assert installed.cluster.pods(namespace, "orders-kn-dispatcher") == []
    assert installed.send(address, "one").status_code == 202
    subscriber.wait_for(1)


@only_chaos
@pytest.mark.usefixtures("brokers_go", "initial_scale", "counted")
def test_many_triggers_made_at_once_are_all_ready(installed: Installation, namespace: str) -> None:
    cluster = installed.cluster
    installed.until_left()  # or what the operator still deletes would be counted, too
    subscriber = installed.subscriber(namespace)
    installed.configure("default-kafka", namespace)
    with Pods(cluster, namespace) as pods:
        before, cpu = requests(cluster), operator_cpu(cluster)
        progress = Progress(cluster, namespace)
        try:
            create(cluster, manifests(namespace, TRIGGERS, subscriber.ref))
            progress.applied = progress.seconds()
            cluster.wait_for(progress.is_over, WITHIN, f"{TRIGGERS} Triggers are Ready")
        finally:
            after, spent = requests(cluster), operator_cpu(cluster) - cpu
            print(f"\n{TRIGGERS} Triggers, initial scale {INITIAL_SCALE}: {progress}")
            print(f"from its creation until Ready, each: {spread(times(cluster, namespace))}")
            print(f"most pods: {dict(pods.most)}; the operator's CPU: {spent:.1f} s")
            flows = {name: after[PREFIX + name] - before[PREFIX + name] for name in FLOWS}
            print(f"the operator's requests: {sum(flows.values())}: {flows}")
            others = {
                name: count - before[name]
                for name, count in after.items()
                if name.startswith("all ") and count > before[name]
            }
            print(f"everybody's requests: {sum(others.values())}: {top(others)}")

    assert flows["services-apply"] <= 2 * (TRIGGERS + 1), "a function is applied once, or twice"

    began = time.monotonic()
    cluster.delete("triggers", namespace)
    cluster.wait_for(
        lambda: not cluster.are_there("triggers", namespace),
        WITHIN,
        "the Triggers are gone",
    )
    print(f"all gone {time.monotonic() - began:.0f} s after their deletion")


class Progress:
    """Functions and Triggers that are there and Ready, printed every ten seconds."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._began = time.monotonic()
        self._printed = 0.0
        self.applied = self.functions = self.ready = 0.0
        """Seconds until all were created, had a Knative Service, and were Ready."""

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def is_over(self) -> bool:
        functions = self._get("ksvc", "{.items[*].metadata.uid}")
        ready = self._get("triggers", "{.items[*].status.conditions[?(@.type=='Ready')].status}")
        if not self.functions and len(functions) > TRIGGERS:  # the receiver is one, too
            self.functions = self.seconds()
        if self.seconds() - self._printed >= 10:
            self._printed = self.seconds()
            counts = f"{len(functions)} functions, {ready.count('True')} Triggers Ready"
            print(f"{self._printed:.0f} s: {counts}", flush=True)
        if ready.count("True") < TRIGGERS:
            return False
        self.ready = self.seconds()
        return True

    def __str__(self) -> str:
        return (
            f"all created after {self.applied:.0f} s, all functions applied after "
            f"{self.functions:.0f} s, all Ready after {self.ready:.0f} s"
        )

    def _get(self, kind: str, path: str) -> list[str]:
        where = ("-n", self._namespace)
        return self._cluster.kubectl("get", kind, *where, f"-ojsonpath={path}").split()


def manifests(namespace: str, triggers: int, subscriber: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A Broker and its Triggers, each of which wants events of another type."""
    config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "default-kafka"}
    broker = {
        "apiVersion": EVENTING,
        "kind": "Broker",
        "metadata": {
            "name": "default",
            "namespace": namespace,
            "annotations": {"eventing.knative.dev/broker.class": "kafka"},
        },
        "spec": {"config": config},
    }
    of_broker = [
        {
            "apiVersion": EVENTING,
            "kind": "Trigger",
            "metadata": {"name": f"trigger-{number}", "namespace": namespace},
            "spec": {
                "broker": "default",
                "filters": [{"exact": {"type": f"type-{number}"}}],
                "subscriber": subscriber,
            },
        }
        for number in range(triggers)
    ]
    return [broker, *of_broker]


def create(cluster: Cluster, items: Sequence[Mapping[str, Any]]) -> None:
    """Several at a time: one kubectl makes one object after another, each through the webhooks."""
    lists = [json.dumps(_list(items[at::CLIENTS])) for at in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(cluster.kubectl, "create", "-f-", text=each) for each in lists]:
            done.result()


def times(cluster: Cluster, namespace: str) -> list[int]:
    """Seconds from the creation of each Trigger until it was Ready."""
    found = json.loads(cluster.kubectl("get", "triggers", "-n", namespace, "-ojson"))

    def at(text: str) -> datetime:
        return datetime.fromisoformat(text)

    return [
        int((at(each["lastTransitionTime"]) - at(item["metadata"]["creationTimestamp"])).seconds)
        for item in found["items"]
        for each in item.get("status", {}).get("conditions", ())
        if each["type"] == "Ready" and each["status"] == "True"
    ]


def spread(seconds: Sequence[int]) -> str:
    found = sorted(seconds)
    return f"median {found[len(found) // 2]} s, last {found[-1]} s" if found else "none"


def requests(cluster: Cluster) -> Counter[str]:
    """Requests so far: the operator's by FlowSchema, everybody's as `all VERB RESOURCE`."""
    found: Counter[str] = Counter()
    for line in cluster.kubectl("get", "--raw", "/metrics").splitlines():
        name, _, rest = line.partition("{")
        if name not in (DISPATCHED, ALL_REQUESTS):
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        count = int(float(rest.rpartition(" ")[2]))
        if name == DISPATCHED:
            found[labels["flow_schema"]] += count
        else:
            found[f"all {labels['verb']} {labels['resource']}"] += count
    return found


def operator_cpu(cluster: Cluster) -> float:
    """Seconds of CPU that the operator's pods have taken."""
    (node,) = cluster.kubectl("get", "nodes", "-oname").split()
    path = f"/api/v1/{node.replace('node/', 'nodes/')}/proxy/stats/summary"
    pods = json.loads(cluster.kubectl("get", "--raw", path))["pods"]
    return sum(
        float(each.get("cpu", {}).get("usageCoreNanoSeconds", 0)) / 1e9
        for each in pods
        if each["podRef"]["namespace"] == OPERATOR_NAMESPACE
    )


def top(counts: Mapping[str, int], most: int = 20) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda each: -each[1])[:most])


def _list(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _flow(name: str) -> dict[str, Any]:
    group, resources, verbs = FLOWS[name]
    account = {"name": ACCOUNT, "namespace": OPERATOR_NAMESPACE}
    rule = {
        "apiGroups": [group],
        "resources": list(resources),
        "verbs": list(verbs),
        "namespaces": ["*"],
        "clusterScope": True,
    }
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": PREFIX + name},
        "spec": {
            "priorityLevelConfiguration": {"name": "workload-low"},
            "matchingPrecedence": 500,
            "rules": [
                {
                    "subjects": [{"kind": "ServiceAccount", "serviceAccount": account}],
                    "resourceRules": [rule],
                }
            ],
        },
    }
