"""A real Kubernetes with Knative Serving for the tests, and the means to talk to it.

One cluster for the whole run and all of its workers (tests/cluster), started when a test first
asks for it, with the images of this working tree in its registry; `KNAFKA_KEEP_CLUSTER=1` leaves it
running. `KUBECONFIG` uses a running cluster instead, whose images are `KNAFKA_TEST_IMAGES`
(registry.local:5000) and whose ingress is `KNAFKA_TEST_INGRESS`, or `KNAFKA_TEST_PRIVATE_INGRESS`
for Routes of the cluster's own. Where there is no root or no Linux, the tests that need a cluster
are skipped with the reason, and fail in CI. Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import pytest
from support.gate import IN_CI
from support.mortal_kafka import MortalKafka
from support.objects import Objects
from support.once_a_run import OnceARun
from support.secure_kafka import KafkaAccess, SecureKafka
from support.waiting import PATIENCE

from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_operator.model.cluster import ClusterError
from testcluster import settings

T = TypeVar("T")

BRING_UP: Final = 1800.0  # seconds; one to two minutes with what an earlier run kept
KUBECTL_TIMEOUT: Final = 120.0  # seconds; what waits longer does so by `wait_for`
PAUSE: Final = 0.4  # seconds between two looks, which may be by kubectl: 0.1 s of a core
ONE_COMMAND: Final = 60.0  # seconds for a pod that runs one command
OPERATOR_NAMESPACE: Final = "knafka"
CREATED_AT_ONCE: Final = 8  # requests; each waits for two webhooks of ours
DOMAIN: Final = ".svc.cluster.local"
DIRECT: Final = os.environ.get("KNAFKA_TEST_DIRECT") == "1"
"""Whether senders of Brokers and channels go past Knative's proxy in this run."""
LAST_LINES: Final = 60  # of each log in a report


class Cluster:
    """The cluster, by kubectl and by HTTP; everything blocks."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._objects = Objects(kubeconfig)
        self._images = os.environ.get("KNAFKA_TEST_IMAGES", settings.REGISTRY)
        self.ingress = os.environ.get("KNAFKA_TEST_INGRESS", f"{settings.NODE_IP}:80")
        """Host and port of what leads to Routes, by their hosts."""
        public = f"http://{self.ingress}"
        self._public = httpx.Client(base_url=public, timeout=60, trust_env=False)
        private = os.environ.get("KNAFKA_TEST_PRIVATE_INGRESS", f"{settings.NODE_IP}:81")
        self._private = httpx.Client(base_url=f"http://{private}", timeout=60, trust_env=False)

    def close(self) -> None:
        self._objects.close()
        self._public.close()
        self._private.close()

    def image(self, name: str) -> str:
        """The full name of one of our images, such as `knafka-test`."""
        return f"{self._images}/{name}:latest"

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        """kubectl's output; AssertionError with what it said if it fails and `check` holds."""
        try:
            done = subprocess.run(
                ["kubectl", *arguments],
                input=text,
                env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "NO_PROXY": "*"},
                capture_output=True,
                text=True,
                timeout=KUBECTL_TIMEOUT,
            )
        except subprocess.TimeoutExpired as error:
            code, output = -1, str(error)
        else:
            code, output = done.returncode, done.stderr if done.returncode else done.stdout
        if check and code:
            pytest.fail(f"kubectl {' '.join(arguments)}: {output.strip()}")
        return output

    def apply(self, manifests: str | Path | Mapping[str, Any], *, namespace: str = "") -> None:
        """Apply YAML, a file, a folder with a kustomization, one object or a `List` of them."""
        where = ("--namespace", namespace) if namespace else ()
        match manifests:
            case Path():
                how = "-k" if (manifests / "kustomization.yaml").exists() else "-f"
                self.kubectl("apply", *where, how, str(manifests))
            case str():
                self.kubectl("apply", *where, "-f-", text=manifests)
            case {"kind": "List", "items": items}:
                for each in items:
                    self.apply(each, namespace=namespace)
            case _:
                with _said():
                    self._objects.apply(manifests, namespace)

    def make_namespace(self, name: str) -> None:
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def annotate(self, kind: str, name: str, namespace: str, **annotations: str | None) -> None:
        """Set annotations, or remove them (None); their names by `**{...}`."""
        with _said():
            body = {"metadata": {"annotations": annotations}}
            self._objects.patch(kind, name, namespace, body)

    def delete(self, kind: str, namespace: str, name: str = "", *, within: float = 0.0) -> None:
        """Delete an object, or all of a kind in a namespace; what isn't there is left so.

        Returns at once, or when they are gone, or `within` seconds have passed.
        """
        with _said():
            self._objects.delete(kind, namespace, name)
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and self.are_there(kind, namespace, name):
            time.sleep(PAUSE)

    def are_there(self, kind: str, namespace: str, name: str = "") -> bool:
        """Whether the object is there, or any of a kind in a namespace."""
        with suppress(LookupError):
            if name:
                return self.get(kind, name, namespace) is not None
            return bool(self._objects.list(kind, namespace))
        return False

    def create_all(self, kind: str, namespace: str, documents: Sequence[Mapping[str, Any]]) -> None:
        """Create many at a time: `kubectl apply` takes two requests each, one after another."""
        with ThreadPoolExecutor(CREATED_AT_ONCE) as pool:
            for _ in pool.map(partial(self._objects.create, kind, namespace), documents):
                pass

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any] | None:
        """The object, or None while there is none; kinds are named as kubectl has them."""
        return self._objects.get(kind, name, namespace)

    def is_ready(self, kind: str, name: str, namespace: str) -> bool:
        """Whether the object says Ready of its newest generation."""
        found = self.get(kind, name, namespace)
        if found is None:
            return False
        status = found.get("status", {})
        return status.get("observedGeneration") == found["metadata"]["generation"] and any(
            each["type"] == "Ready" and each["status"] == "True"
            for each in status.get("conditions", [])
        )

    def pods(self, namespace: str, service: str | None = None) -> list[dict[str, Any]]:
        """The pods of a namespace that aren't ending yet, or of one Knative Service."""
        labels = f"serving.knative.dev/service={service}" if service else ""
        found = self._objects.list("pods", namespace, labels)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def wait_for(self, condition: Callable[[], T], within: float, what: str) -> T:
        """What `condition` returns once it is true; it may take its time, unlike `until`'s.

        It fails after `PATIENCE` times `within` seconds: a bound is there to end, not to measure.
        """
        deadline = time.monotonic() + PATIENCE * within
        while not (found := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"{what}: not within {PATIENCE * within:.0f} s")
            time.sleep(PAUSE)
        return found

    def until_established(self, *definitions: str) -> None:
        """Wait until the API server serves the kinds of these CustomResourceDefinitions."""
        # `kubectl wait` fails at once where one is so new that it has no conditions yet.
        command = ("wait", "--for=condition=Established", *definitions, "--timeout=10s")
        self.wait_for(
            lambda: "condition met" in self.kubectl(*command, check=False),
            20,
            f"{' '.join(definitions)} established",
        )

    def request(
        self,
        host: str,
        path: str,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        within: float = 60.0,
    ) -> httpx.Response:
        """Ask a Route by its host, cluster-local ones too, over the ingress; or what is past it.

        It fails after `PATIENCE` times `within` seconds.
        """
        client = self._private if host.endswith(DOMAIN) else self._public
        named = {**(headers or {}), "host": host}
        url = f"{(DIRECT and self.past_the_proxy(host)) or ''}{path}"
        return client.request(
            method, url, headers=named, content=content, timeout=PATIENCE * within
        )

    def past_the_proxy(self, host: str) -> str | None:
        """Where a host of our own Services past Knative's proxy is, which this machine can't
        resolve; None: it leads elsewhere."""
        name, _, namespace = host.removesuffix(DOMAIN).partition(".")
        if not host.endswith(DOMAIN):
            return None
        service = (self.get("service", name, namespace) or {}).get("spec", {})
        if (leads_to := service.get("externalName", "")).endswith(f"-direct.knafka{DOMAIN}"):
            return self.past_the_proxy(leads_to)
        return f"http://{service['clusterIP']}:80" if name.endswith("-direct") else None

    def logs(self, namespace: str, selector: str, *, container: str = "user-container") -> str:
        """What the pods with these labels wrote."""
        return self.kubectl(
            "logs", "-n", namespace, "-l", selector, "-c", container,
            "--tail=-1", "--prefix", check=False,
        )  # fmt: skip

    def run_once(self, namespace: str, name: str, image: str, *command: str) -> str:
        """Run a command in a pod of its own, and return what it wrote; the test fails if it fails.

        Not `kubectl run --attach`, which misses what is written before it is attached.
        """
        container = {"name": "main", "image": self.image(image), "command": list(command)}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        self.apply(pod)

        def phase() -> str:
            status = (self.get("pod", name, namespace) or {}).get("status", {})
            found: str = status.get("phase", "")
            return found if found in ("Succeeded", "Failed") else ""

        ended = self.wait_for(phase, ONE_COMMAND, f"the pod {name} ends")
        output = self.kubectl("logs", name, "-n", namespace)
        self.delete("pod", namespace, name)
        if ended == "Failed":
            pytest.fail(f"the pod {name} failed: {output.strip()}")
        return output

    def diagnosis(self, namespace: str | None) -> str:
        """What a developer would look at first."""
        asked: list[tuple[str, ...]] = [("get", "nodes,ksvc,pods", "--all-namespaces", "-owide")]
        for where in (namespace, OPERATOR_NAMESPACE):
            if where is not None:
                asked += [
                    ("get", "events", "-n", where, "--sort-by=.lastTimestamp"),
                    ("get", "brokers,triggers", "-n", where, "-oyaml"),
                    *self._logs_of(where),
                ]
        return "\n".join(
            f"$ kubectl {' '.join(each)}\n{self.kubectl(*each, check=False)}" for each in asked
        )

    def _logs_of(self, namespace: str) -> list[tuple[str, ...]]:
        pods = self.kubectl("get", "pods", "-n", namespace, "-oname", check=False).split()
        options = ("--all-containers", "--prefix", f"--tail={LAST_LINES}")
        return [("logs", "-n", namespace, pod, *options) for pod in pods]


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config, once_a_run: OnceARun) -> Iterator[Cluster]:
    """A running cluster with our images, or a skip."""
    given = os.environ.get("KUBECONFIG")
    ours = not given or Path(given) == settings.KUBECONFIG
    if not given and (sys.platform != "linux" or os.geteuid() != 0):
        problem = "the test cluster needs Linux and root: set KUBECONFIG to a cluster of yours"
        if IN_CI:
            raise RuntimeError(problem)
        pytest.skip(problem)

    def start() -> None:
        with _shown(pytestconfig):
            if not given:
                testcluster("up")
            if ours:
                testcluster("images")

    def stop() -> None:
        if not given and not os.environ.get("KNAFKA_KEEP_CLUSTER"):
            testcluster("down")

    once_a_run.get("cluster", start, stop)
    found = Cluster(Path(given) if given else settings.KUBECONFIG)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own; it is deleted when the test is over."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.make_namespace(name)
    yield name
    cluster.delete("namespace", "", name)


@pytest.fixture(scope="session")
def cluster_kafka(
    cluster: Cluster,
    kafka_distribution: KafkaDistribution,
    tmp_path_factory: pytest.TempPathFactory,
    once_a_run: OnceARun,
) -> KafkaAccess:
    """A Kafka that pods and tests reach at the same address, with each kind of security."""
    folder = tmp_path_factory.mktemp("cluster-kafka")
    kafka = SecureKafka(kafka_distribution, folder, settings.HOST_IP)
    running: list[MortalKafka] = []

    def start() -> dict[str, Any]:
        running.append(MortalKafka(kafka.server))
        running[0].start()
        return asdict(kafka.access())

    access = once_a_run.get("cluster-kafka", start, lambda: running[0].stop())
    return KafkaAccess(**access)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first cluster test of each file that is run the time in which the cluster starts as
    well."""
    files: set[Path] = set()
    for item in items:
        if item.get_closest_marker("cluster") and not is_skipped(item) and item.path not in files:
            files.add(item.path)
            item.add_marker(pytest.mark.timeout(BRING_UP), append=False)


def is_skipped(item: pytest.Item) -> bool:
    """Whether a marker of a test, whose condition is a value and no text, skips it."""
    skipping = [*item.iter_markers("skip")]
    return bool(skipping) or any(marker.args[0] for marker in item.iter_markers("skipif"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fixtures = getattr(item, "funcargs", {})
    if report.failed and call.when != "teardown" and isinstance(fixtures.get("cluster"), Cluster):
        diagnosis = fixtures["cluster"].diagnosis(fixtures.get("namespace"))
        report.sections.append(("the cluster", diagnosis))
    return report


@contextmanager
def _said() -> Iterator[None]:
    """Fail the test with what the API server said."""
    try:
        yield
    except ClusterError as error:
        pytest.fail(str(error))


def _shown(config: pytest.Config) -> Any:
    """Let progress be seen while it happens."""
    return config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled()


def testcluster(*command: str) -> None:
    """Run `python -m testcluster COMMAND`; its progress is seen where output isn't captured."""
    tools = settings.ROOT / "tools"
    subprocess.run(
        [sys.executable, "-m", "testcluster", *command],
        env={**os.environ, "PYTHONPATH": str(tools)},
        stdout=sys.stderr,
        check=True,
    )
