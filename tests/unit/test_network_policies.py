"""NetworkPolicies: who may reach whom, by what the component's policies mean (issue 38).

The test cluster enforces none, so their meaning is worked out here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.gate import IN_CI
from support.network_policies import Network, Peer

from knafka_operator.functions import receiver_services, services
from knafka_operator.receivers.receivers import CONTRACT_PORT
from knafka_operator.senders.encryption import RECEIVER_TLS_PORT
from knafka_operator.sensors import manifests as sensor_manifests

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "operator" / "deploy"

pytestmark = pytest.mark.skipif(
    not IN_CI and shutil.which("kubectl") is None, reason="kubectl is not installed"
)


def function(name: str, namespace: str, role: str) -> Peer:
    return Peer(name, namespace, services.with_common_labels({services.ROLE_LABEL: role}))


def of_knafka(component: str) -> Peer:
    labels = {"app.kubernetes.io/name": "knafka", "app.kubernetes.io/component": component}
    return Peer(f"the {component}", "knafka", labels)


OPERATOR, CONSOLE = of_knafka("operator"), of_knafka("console")
RECEIVER = function("a receiver", "shop", services.RECEIVER_ROLE)
DIRECT = Peer("a direct receiver", "shop", {**RECEIVER.labels, **receiver_services.DIRECT_LABEL})
DISPATCHER = function("a dispatcher", "shop", services.DISPATCHER_ROLE)
REPLAYER = function("a replayer", "shop", services.REPLAYER_ROLE)
SHARD = function("a shared dispatcher", "shop", services.SHARD_ROLE)
SENSOR = function("a Sensor", "shop", sensor_manifests.SENSOR_ROLE)
OF_CHANNELS = function("the channels' receiver", "knafka", services.RECEIVER_ROLE)
CHANNELS_SHARD = function("a channel's dispatcher", "knafka", services.SHARD_ROLE)
ACTIVATOR = Peer("the activator", "knative-serving", {"app": "activator"})
GATEWAY = Peer("the gateway", "kourier-system", {"app": "3scale-kourier-gateway"})
PROMETHEUS = Peer("Prometheus", "monitoring")
KAFKA = Peer("Kafka", "kafka")
MANAGED_KAFKA = Peer("a managed Kafka", address="198.51.100.7")
DNS = Peer("DNS", "kube-system", {"k8s-app": "kube-dns"})
NODE_DNS = Peer("the node's DNS cache", address="169.254.20.10")
API_SERVER = Peer("the API server", address="10.0.0.1")
METADATA = Peer("the node's credentials", address="169.254.169.254")
SUBSCRIBER = Peer("a subscriber", "warehouse", {"app": "stock"})
OUTSIDE = Peer("a subscriber outside", address="198.51.100.80")
STRANGER = Peer("a stranger", "elsewhere", {"app": "curious"})
NEIGHBOUR = Peer("another pod of the namespace", "shop", {"app": "web"})
PRETENDER = Peer("a stranger with our labels", "elsewhere", OPERATOR.labels)

ALLOWED = [
    # Events and drains come by Knative's way.
    (ACTIVATOR, RECEIVER, 8012),
    (GATEWAY, RECEIVER, 8012),
    (GATEWAY, RECEIVER, 8112),
    (ACTIVATOR, DISPATCHER, 8012),
    (ACTIVATOR, SHARD, 8012),
    (ACTIVATOR, SENSOR, 8012),
    (ACTIVATOR, OF_CHANNELS, 8012),
    (ACTIVATOR, CONSOLE, 8012),
    (ACTIVATOR, DISPATCHER, 9090),
    (OPERATOR, GATEWAY, 8081),
    (OPERATOR, ACTIVATOR, 8012),
    (DISPATCHER, ACTIVATOR, 8012),
    (STRANGER, GATEWAY, 8081),
    (STRANGER, RECEIVER, RECEIVER_TLS_PORT),
    # Or past it, where that is said.
    (STRANGER, DIRECT, CONTRACT_PORT),
    (NEIGHBOUR, DIRECT, CONTRACT_PORT),
    (DISPATCHER, DIRECT, CONTRACT_PORT),
    (DIRECT, GATEWAY, 8081),
    # What the operator asks pods themselves.
    (OPERATOR, RECEIVER, CONTRACT_PORT),
    (OPERATOR, OF_CHANNELS, CONTRACT_PORT),
    # Metrics.
    (PROMETHEUS, OPERATOR, 9090),
    (PROMETHEUS, OPERATOR, 8081),
    (PROMETHEUS, DISPATCHER, CONTRACT_PORT),
    (CONSOLE, OPERATOR, 9090),
    # Kafka, DNS, the API server.
    *((each, KAFKA, 9092) for each in (OPERATOR, CONSOLE, RECEIVER, DISPATCHER, SENSOR, SHARD)),
    *((each, MANAGED_KAFKA, 9098) for each in (OPERATOR, RECEIVER, DISPATCHER, REPLAYER)),
    *((each, API_SERVER, 6443) for each in (OPERATOR, CONSOLE, RECEIVER)),
    (API_SERVER, OPERATOR, 9443),
    # Events go wherever users say.
    *((each, SUBSCRIBER, 8080) for each in (DISPATCHER, SHARD, REPLAYER, CHANNELS_SHARD)),
    (DISPATCHER, OUTSIDE, 8443),
    (DISPATCHER, NEIGHBOUR, 3000),
    # Other pods are left alone.
    (STRANGER, NEIGHBOUR, 80),
    (NEIGHBOUR, METADATA, 80),
]

REFUSED = [
    (STRANGER, OPERATOR, 9090),
    (STRANGER, OPERATOR, 8081),
    (STRANGER, OPERATOR, 8080),
    (PRETENDER, RECEIVER, CONTRACT_PORT),
    (NEIGHBOUR, OPERATOR, 9090),
    (RECEIVER, OPERATOR, 9090),
    (STRANGER, CONSOLE, 8012),
    *(
        (STRANGER, each, CONTRACT_PORT)
        for each in (RECEIVER, DISPATCHER, SHARD, SENSOR, OF_CHANNELS)
    ),
    *((STRANGER, each, 8012) for each in (RECEIVER, DISPATCHER, SHARD, SENSOR, OF_CHANNELS)),
    (NEIGHBOUR, DISPATCHER, CONTRACT_PORT),
    (STRANGER, DISPATCHER, RECEIVER_TLS_PORT),
    (STRANGER, DIRECT, 8012),
    (NEIGHBOUR, DISPATCHER, 8012),
    (OPERATOR, DISPATCHER, CONTRACT_PORT),
    (PROMETHEUS, RECEIVER, 8012),
    (PROMETHEUS, OPERATOR, 8080),
    # Who takes events sends none, and who sends some reaches no node's credentials.
    (RECEIVER, SUBSCRIBER, 8080),
    (RECEIVER, OUTSIDE, 80),
    (SENSOR, SUBSCRIBER, 8080),
    (OPERATOR, SUBSCRIBER, 8080),
    (OPERATOR, OUTSIDE, 8080),
    (CONSOLE, SUBSCRIBER, 8080),
    *((each, METADATA, 80) for each in (OPERATOR, CONSOLE, RECEIVER, DISPATCHER, SHARD, SENSOR)),
    *((each, METADATA, 443) for each in (OPERATOR, CONSOLE, RECEIVER, DISPATCHER, SHARD, SENSOR)),
    (DISPATCHER, RECEIVER, CONTRACT_PORT),
]


def policies(folder: Path, namespace: str = "knafka") -> list[dict[str, Any]]:
    """Those of a kustomization; `namespace`: of those that name none."""
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "NetworkPolicy"]
    for each in found:
        each["metadata"].setdefault("namespace", namespace)
    return found


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """The component in the operator's namespace, and the folder that is for one with Brokers."""
    mine = tmp_path_factory.mktemp("mine")
    deploy = os.path.relpath(DEPLOY, mine.resolve())
    kustomization = {"resources": [deploy], "components": [f"{deploy}/network-policies"]}
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    shop = policies(DEPLOY / "network-policies" / "functions", "shop")
    namespaces = {"monitoring": {"knafka.dev/monitoring": "true"}}
    return Network(namespaces, [*policies(mine), *shop])


def told(case: tuple[Peer, Peer, int]) -> str:
    source, target, port = case
    return f"{source} to {target}:{port}"


@pytest.mark.parametrize("case", ALLOWED, ids=told)
def test_what_knafka_needs_is_let_through(network: Network, case: tuple[Peer, Peer, int]) -> None:
    assert network.allows(*case)


@pytest.mark.parametrize("case", REFUSED, ids=told)
def test_what_nobody_needs_is_refused(network: Network, case: tuple[Peer, Peer, int]) -> None:
    assert not network.allows(*case)


@pytest.mark.parametrize("pod", [OPERATOR, CONSOLE, RECEIVER, DISPATCHER, SENSOR], ids=str)
@pytest.mark.parametrize("server", [DNS, NODE_DNS], ids=str)
def test_all_of_them_resolve_names(network: Network, pod: Peer, server: Peer) -> None:
    assert network.allows(pod, server, 53, "UDP")
    assert network.allows(pod, server, 53)
    if pod is not DISPATCHER:  # which goes wherever users say
        assert not network.allows(pod, STRANGER, 53, "UDP"), "a tunnel"


def test_the_policies_are_of_no_others_pods(network: Network) -> None:
    """Those that a namespace has already, and its other pods, stay as they are."""
    assert {each["metadata"]["namespace"] for each in network.policies} == {"knafka", "shop"}
    assert all(each["spec"]["podSelector"] for each in network.policies)


def test_without_the_component_there_are_none() -> None:
    assert policies(DEPLOY) == []


def policy(ingress: list[Any] | None = None, **spec: Any) -> dict[str, Any]:
    rules = {} if ingress is None else {"ingress": ingress}
    return {"metadata": {"namespace": "shop"}, "spec": {"podSelector": {}, **rules, **spec}}


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        ([], True),
        ([policy()], False),
        ([policy([])], False),
        ([policy([{}])], True),
        ([policy([{"ports": [{"port": 80}]}])], True),
        ([policy([{"ports": [{"port": 81}]}])], False),
        ([policy([{"ports": [{"port": 80, "protocol": "UDP"}]}])], False),
        ([policy([{"ports": [{"port": 1, "endPort": 99}]}])], True),
        ([policy(), policy([{}])], True),
        ([policy([{"from": [{"podSelector": {}}]}])], False),
        ([policy([{"from": [{"namespaceSelector": {}}]}])], True),
        ([policy([{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}])], False),
        ([policy(policyTypes=["Egress"])], True),
    ],
)
def test_policies_mean_what_kubernetes_says(given: list[dict[str, Any]], passes: bool) -> None:
    """A pod that none selects is open; rules add up; without a namespaceSelector peers are of the
    policy's own namespace."""
    assert Network({}, given).allows(STRANGER, NEIGHBOUR, 80) is passes
