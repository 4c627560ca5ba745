"""Knafka installed in the test cluster, as `kubectl apply -k operator/deploy` does it.

And what tests do with it: make Brokers, Triggers, subscribers, send events, ask what arrived.

One installation serves a whole run and all of its workers; every test has a namespace of its own.
Its Kafka is one that both the pods and the tests reach (`cluster_kafka`). A test that changes the
installation, or loads the whole machine, is marked `alone`. Registered in tests/conftest.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
from support.cluster import DIRECT, OPERATOR_NAMESPACE, Cluster
from support.once_a_run import OnceARun
from support.secure_kafka import KafkaAccess

ROOT: Final = Path(__file__).resolve().parents[2]

READY: Final = 60.0
"""Seconds until something is Ready: a few on an idle machine."""
ARRIVAL: Final = 60.0
"""Seconds until an event has arrived, cold starts included."""

LEFT: Final = 90.0
"""Seconds that a run waits at its end for the deletion of what its tests made."""

EVENTING: Final = "eventing.knative.dev/v1"


@dataclass(frozen=True, slots=True)
class Component:
    """A folder of operator/deploy that an installation may add."""

    definitions: str
    """The folder of crds/, which is a kustomization."""
    kinds: tuple[str, ...]
    """Names of the CustomResourceDefinitions in it."""
    setting: str
    """The operator's variable that says `enabled`."""


COMPONENTS: Final[Mapping[str, Component]] = {
    "channels": Component(
        "messaging",
        ("subscriptions.messaging.knative.dev", "kafkachannels.messaging.knative.dev"),
        "KNAFKA_CHANNELS",
    ),
    "sensors": Component("sensors", ("sensors.knafka.dev",), "KNAFKA_SENSORS"),
    "sources": Component("sources", ("kafkasources.sources.knative.dev",), "KNAFKA_SOURCES"),
    "sinks": Component("sinks", ("kafkasinks.eventing.knative.dev",), "KNAFKA_SINKS"),
}
"""By its folder's name, which is the name of the fixture, too, that a test takes to have it."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A subscriber in the cluster that remembers what it was sent."""

    cluster: Cluster
    namespace: str
    name: str

    @property
    def ref(self) -> dict[str, Any]:
        """As a Trigger's `subscriber` or a `deadLetterSink`."""
        reference = {"apiVersion": "v1", "kind": "Service", "name": self.name}
        return {"ref": {**reference, "namespace": self.namespace}}

    @property
    def url(self) -> str:
        return f"http://{self.name}.{self.namespace}.svc.cluster.local"

    def seen(self) -> list[dict[str, Any]]:
        """Every event, in the order of arrival."""
        found: list[dict[str, Any]] = self._ask("GET", "/seen").json()
        return found

    def ids(self) -> list[str]:
        return [event["id"] for event in self.seen()]

    def summary(self) -> dict[str, Any]:
        """`received`, `unique`, `duplicates`, `outOfOrder`."""
        found: dict[str, Any] = self._ask("GET", "/summary").json()
        return found

    def behave(self, **behaviour: Any) -> None:
        """Answer so from now on."""
        self._ask("POST", "/control", content=json.dumps(behaviour).encode())

    def forget(self) -> None:
        self._ask("DELETE", "/seen")

    def is_reached(self) -> bool:
        """Whether its Service leads to it."""
        try:
            self._ask("GET", "/summary")
        except httpx.TransportError:
            return False
        return True

    def wait_for(self, count: int, within: float = ARRIVAL) -> list[dict[str, Any]]:
        """What has arrived once that many different events have."""
        what = f"{count} events at {self.name}"
        self.cluster.wait_for(lambda: self.summary()["unique"] >= count, within, what)
        return self.seen()

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        service = self.cluster.get("service", self.name, self.namespace)
        assert service is not None
        url = f"http://{service['spec']['clusterIP']}{path}"
        answer = httpx.request(method, url, timeout=30, trust_env=False, **more)
        answer.raise_for_status()
        return answer


class Installation:
    """The operator, running."""

    def __init__(self, cluster: Cluster, kafka: KafkaAccess, run: OnceARun) -> None:
        self.cluster = cluster
        self.kafka = kafka
        self._run = run
        self._kinds: list[str] = []
        """Those of the components that this has installed."""

    def install(self, components: Collection[str] = ()) -> None:
        """Everything of operator/deploy, with our images and our Kafka, and these of `COMPONENTS`;
        returns when it runs."""
        kubectl = self.cluster.kubectl
        deploy = kubectl("kustomize", str(ROOT / "operator" / "deploy"))
        self.cluster.apply(self.located(deploy, "knafka", "knafka-operator"))
        self.configure("kafka-broker-config", OPERATOR_NAMESPACE)
        self.configure("kafka-channel-config", OPERATOR_NAMESPACE)
        for name in components:
            self.prepare(name)
        if DIRECT:
            self.cluster.apply(ROOT / "operator" / "deploy" / "direct" / "rbac.yaml")
        # Another run may have had others.
        kubectl(
            "set", "env", "-n", OPERATOR_NAMESPACE, "deploy/knafka-operator",
            *(
                f"{component.setting}=enabled" if name in components else f"{component.setting}-"
                for name, component in COMPONENTS.items()
            ),
            "KNAFKA_DIRECT=enabled" if DIRECT else "KNAFKA_DIRECT-",
        )  # fmt: skip
        # The image's tag is the one of the run before, so nothing else says that it has changed.
        kubectl("rollout", "restart", "-n", OPERATOR_NAMESPACE, "deploy/knafka-operator")
        self.until_running()

    def prepare(self, component: str) -> None:
        """Everything of a component but the variable that switches it on."""
        folder = ROOT / "crds" / COMPONENTS[component].definitions
        self.cluster.apply(self.cluster.kubectl("kustomize", str(folder)))
        kinds = COMPONENTS[component].kinds
        self.cluster.until_established(*(f"crd/{kind}" for kind in kinds))
        self._kinds += kinds
        self.cluster.apply(ROOT / "operator" / "deploy" / component / "rbac.yaml")

    def located(self, manifests: str, *images: str) -> str:
        """The manifests with our images where they are; files of the repository don't know it."""
        for name in images:
            manifests = manifests.replace(f": {name}:latest\n", f": {self.cluster.image(name)}\n")
        return manifests

    def until_left(self) -> None:
        """Wait until nothing is left of what tests deleted, while its Kafka is still there."""
        kinds = ",".join(("triggers", "brokers", *self._kinds))
        deadline = time.monotonic() + LEFT
        while self.cluster.kubectl("get", kinds, "--all-namespaces", "-oname").strip():
            if time.monotonic() > deadline:
                return
            time.sleep(1)

    def until_running(self) -> None:
        self.cluster.kubectl(
            "rollout", "status", "-n", OPERATOR_NAMESPACE, "deploy/knafka-operator",
            "--timeout=120s",
        )  # fmt: skip

    def leader(self) -> str:
        """Who holds the Lease: its pod's name, an underscore, its UID; empty: nobody."""
        lease = self.cluster.get("lease", "knafka-operator", OPERATOR_NAMESPACE) or {}
        return str(lease.get("spec", {}).get("holderIdentity", ""))

    def configure(self, name: str, namespace: str, kind: str = "PLAINTEXT", **data: str) -> None:
        """A Broker's ConfigMap that names our Kafka; one copy of everything, as it is one node."""
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace},
                "data": {
                    "bootstrap.servers": self.kafka.bootstrap(kind),
                    "default.topic.partitions": "4",
                    "default.topic.replication.factor": "1",
                    **{key.replace("__", "."): value for key, value in data.items()},
                },
            }
        )

    @contextmanager
    def allowing(self, external_topics: str) -> Iterator[None]:
        """Have the installation allow these external topics meanwhile, and no others."""
        with self._run.holding("external-topics"):
            own = {"external__topics": external_topics}
            self.configure("kafka-broker-config", OPERATOR_NAMESPACE, **own)
            try:
                yield
            finally:
                self.configure("kafka-broker-config", OPERATOR_NAMESPACE)

    @contextmanager
    def settings(self, **values: str) -> Iterator[None]:
        """Have the operator run with these variables meanwhile."""
        command = ("set", "env", "-n", OPERATOR_NAMESPACE, "deploy/knafka-operator")
        self.cluster.kubectl(*command, *(f"{key}={value}" for key, value in values.items()))
        self.until_running()
        try:
            yield
        finally:
            self.cluster.kubectl(*command, *(f"{key}-" for key in values))
            self.until_running()

    def touch(self, kind: str, name: str, namespace: str) -> None:
        """Have it looked at now, as docs/how-to/connect-to-kafka.md says."""
        self.cluster.annotate(kind, name, namespace, **{"example.com/touched": str(time.time())})

    def broker(
        self,
        namespace: str,
        name: str = "default",
        *,
        partitions: int = 4,
        ready: bool = True,
        annotations: Mapping[str, str] | None = None,
        data: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> str:
        """Apply a Broker, with `data` in its ConfigMap; gives its address, where `ready`."""
        self.configure(
            f"{name}-kafka",
            namespace,
            default__topic__partitions=str(partitions),
            **(data or {}),
        )
        config = {"apiVersion": "v1", "kind": "ConfigMap", "name": f"{name}-kafka"}
        self.cluster.apply(
            {
                "apiVersion": EVENTING,
                "kind": "Broker",
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "annotations": {
                        "eventing.knative.dev/broker.class": "kafka",
                        **(annotations or {}),
                    },
                },
                "spec": {"config": config, **spec},
            }
        )
        if not ready:
            return ""
        self.until_ready("broker", name, namespace)
        return str(self.status("broker", name, namespace)["address"]["url"])

    def trigger(
        self,
        namespace: str,
        name: str,
        subscriber: Mapping[str, Any],
        *,
        broker: str = "default",
        ready: bool = True,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Apply a Trigger; returns once it is Ready, where `ready`."""
        self.cluster.apply(
            {
                "apiVersion": EVENTING,
                "kind": "Trigger",
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "annotations": dict(annotations or {}),
                },
                "spec": {"broker": broker, "subscriber": dict(subscriber), **spec},
            }
        )
        if ready:
            self.until_ready("trigger", name, namespace)

    def subscriber(self, namespace: str, name: str = "subscriber", **env: str) -> Subscriber:
        """A plain Service with one pod that never ends, so that it remembers."""
        image = self.cluster.image("knafka-test")
        labels = {"app": name}
        container = {
            "name": "subscriber",
            "image": image,
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "ports": [{"containerPort": 8080}],
            "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
            # Without a request it gets next to nothing of a busy node, and attempts time out.
            "resources": {"requests": {"cpu": "25m"}},
        }
        self.cluster.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
                    },
                },
            },
            namespace=namespace,
        )
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
            },
            namespace=namespace,
        )
        self.cluster.wait_for(
            lambda: self._is_rolled_out(name, namespace), READY, f"Deployment {name} is there"
        )
        subscriber = Subscriber(self.cluster, namespace, name)
        # The pod is Ready before the Service leads to it.
        self.cluster.wait_for(subscriber.is_reached, READY, f"Service {name} leads to its pod")
        return subscriber

    def _is_rolled_out(self, name: str, namespace: str) -> bool:
        """Whether all pods of a Deployment are of its newest generation, and run."""
        found = self.cluster.get("deployment.apps", name, namespace) or {}
        status = found.get("status", {})
        counts = [status.get(f"{of}eplicas") for of in ("r", "updatedR", "availableR")]
        is_seen = status.get("observedGeneration") == found.get("metadata", {}).get("generation")
        return is_seen and counts == [1, 1, 1]

    def send(
        self,
        address: str,
        id_: str,
        type_: str = "made",
        data: bytes = b"{}",
        **attributes: str,
    ) -> httpx.Response:
        """POST one event in binary mode to a Broker's address."""
        headers = {
            "ce-specversion": "1.0",
            "ce-id": id_,
            "ce-source": "/tests",
            "ce-type": type_,
            "content-type": "application/json",
            **{f"ce-{key}": value for key, value in attributes.items()},
        }
        return self.post(address, headers, data)

    def post(self, address: str, headers: Mapping[str, str], data: bytes) -> httpx.Response:
        """POST anything to a Broker's address."""
        parts = urlsplit(address)
        return self.cluster.request(parts.netloc, parts.path, headers=headers, content=data)

    def until_ready(self, kind: str, name: str, namespace: str, within: float = READY) -> None:
        what = f"{kind} {namespace}/{name} is Ready"
        self.cluster.wait_for(lambda: self.cluster.is_ready(kind, name, namespace), within, what)

    def status(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        found = self.cluster.get(kind, name, namespace)
        return dict(found["status"]) if found and "status" in found else {}

    def condition(self, kind: str, name: str, namespace: str, type_: str) -> dict[str, str]:
        """One condition; empty while there is none."""
        conditions: Sequence[dict[str, str]] = self.status(kind, name, namespace).get(
            "conditions", []
        )
        return next((each for each in conditions if each["type"] == type_), {})

    def until_condition(
        self, kind: str, name: str, namespace: str, type_: str, reason: str
    ) -> dict[str, str]:
        """The condition, once it isn't True for this reason."""

        def found() -> dict[str, str]:
            has = self.condition(kind, name, namespace, type_)
            return has if has.get("reason") == reason and has["status"] != "True" else {}

        return self.cluster.wait_for(found, READY, f"{type_} of {kind} {name} says {reason}")

    def newest_revision(self, namespace: str, service: str) -> str:
        """Of a Knative Service, Ready or not."""
        found = self.status("service.serving.knative.dev", service, namespace)
        return str(found.get("latestCreatedRevisionName", ""))

    def until_zero(self, namespace: str, service: str, within: float = 120.0) -> float:
        """Wait until a Knative Service has no pod that isn't ending; gives the seconds it took."""
        began = time.monotonic()
        self.cluster.wait_for(
            lambda: not self.cluster.pods(namespace, service), within, f"{service} is at zero"
        )
        return time.monotonic() - began


@pytest.fixture(scope="session")
def installed(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    cluster_kafka: KafkaAccess,
    once_a_run: OnceARun,
) -> Installation:
    """Knafka, running in the cluster, with the components that any test of this run takes."""
    installation = Installation(cluster, cluster_kafka, once_a_run)
    fixtures = {
        name
        for item in request.session.items
        if item.get_closest_marker("cluster")
        for name in getattr(item, "fixturenames", ())
    }
    components = [name for name in COMPONENTS if name in fixtures]
    once_a_run.get("installed", lambda: installation.install(components), installation.until_left)
    return installation


@pytest.fixture
def brokers_go(request: pytest.FixtureRequest, cluster: Cluster, namespace: str) -> Iterator[None]:
    """Delete what the test made before its namespace, so that Kafka is left clean."""
    yield
    for kind in ("triggers", "brokers"):
        cluster.delete(kind, namespace, within=leaving(request))


def leaving(request: pytest.FixtureRequest) -> float:
    """For how many seconds a test waits at its end for what it deletes, which needn't be seen
    through: `until_left` does. It waits where its own Kafka ends next."""
    return 90.0 if "mortal_kafka" in request.fixturenames else 0.0
