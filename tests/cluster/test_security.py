"""Brokers whose Kafka wants to know who asks: Secrets, and what happens when they are wrong.

Every kind of security is a real listener of the tests' Kafka (support/secure_kafka.py).
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from support.cluster import OPERATOR_NAMESPACE, Cluster
from support.gate import IN_GATE, only_chaos
from support.installation import READY, ROOT, Installation, Subscriber
from support.secure_kafka import PASSWORD, KafkaAccess

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record

KINDS: Final = {
    "PLAIN": "plain",
    "SCRAM-SHA-512": "scram",
    "SSL": "certificate",
    "SASL_SSL": "scram-tls",
}
"""Of security, and the name of the Broker, its ConfigMap, its Secret and its Trigger."""
TRIED: Final = ("SASL_SSL",) if IN_GATE else tuple(KINDS)
"""The gate tries the kind that has most of the others': a password, SCRAM and certificates."""
PROJECTION: Final = ROOT / "operator" / "deploy" / "project-secrets" / "rbac.yaml"

EXTERNAL_TOPIC: Final = "kafka.eventing.knative.dev/external.topic"


@dataclass(frozen=True, slots=True)
class Secured:
    """One namespace with Brokers of every kind, and a subscriber that all Triggers deliver to."""

    installed: Installation
    namespace: str
    subscriber: Subscriber

    @property
    def kafka(self) -> KafkaAccess:
        return self.installed.kafka

    def secret(self, name: str, kind: str, namespace: str = "", **changed: str) -> None:
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace or self.namespace},
            "stringData": {**self.kafka.secret(kind), **changed},
        }
        self.installed.cluster.apply(manifest)

    def broker(self, name: str, kind: str, namespace: str = "") -> None:
        """A Broker whose ConfigMap, in `namespace`, names the listener and a Secret beside it."""
        where = namespace or self.namespace
        self.installed.configure(name, where, kind, auth__secret__ref__name=name)
        config = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "namespace": where}
        self.installed.broker(self.namespace, name, ready=False, config=config)

    def event_passes(self, name: str) -> None:
        """From the Broker's address to the subscriber."""
        installed = self.installed
        installed.until_ready("broker", name, self.namespace)
        installed.until_ready("trigger", name, self.namespace)
        address = installed.status("broker", name, self.namespace)["address"]["url"]
        assert installed.send(address, name).status_code == 202
        installed.cluster.wait_for(
            lambda: name in self.subscriber.ids(), READY, f"an event through {name}"
        )

    def pods(self, broker: str) -> list[dict[str, Any]]:
        """Of the Broker's receiver and its Triggers' dispatchers, ending ones too."""
        selector = f"knafka.dev/broker={broker}"
        found = self.installed.cluster.kubectl(
            "get", "pods", "-n", self.namespace, "-l", selector, "-ojson"
        )
        pods: list[dict[str, Any]] = json.loads(found)["items"]
        return pods


@pytest.fixture(scope="module")
def secured(cluster: Cluster, installed: Installation) -> Iterator[Secured]:
    """All Brokers are declared at once, since each takes a while to be Ready."""
    namespace = f"security-{uuid.uuid4().hex[:6]}"
    cluster.make_namespace(namespace)
    secured = Secured(installed, namespace, installed.subscriber(namespace))
    for kind in TRIED:
        name = KINDS[kind]
        secured.secret(name, kind)
        secured.broker(name, kind)
        installed.trigger(namespace, name, secured.subscriber.ref, broker=name, ready=False)
    yield secured
    for each in ("triggers", "brokers"):
        cluster.delete(each, namespace)
    cluster.delete("namespace", "", namespace)


def mounted(pod: Mapping[str, Any]) -> list[str]:
    """The Secrets in a pod; fails for a volume that could hold any other credential."""
    names = []
    for volume in pod["spec"].get("volumes", ()):
        assert volume.keys() & {"secret", "emptyDir"}, f"a volume of another sort: {volume}"
        if "secret" in volume:
            names.append(volume["secret"]["secretName"])
    return names


@pytest.mark.parametrize("kind", TRIED)
def test_an_event_goes_through_a_broker_whose_kafka_wants_credentials(
    secured: Secured, kind: str
) -> None:
    """naming.md, the Secret's keys; and the pods get that Secret, as files, and nothing else."""
    name = KINDS[kind]
    secured.event_passes(name)
    pods = secured.pods(name)
    assert {pod["metadata"]["labels"]["knafka.dev/role"] for pod in pods} == {
        "receiver",
        "dispatcher",
    }
    for pod in pods:
        assert mounted(pod) == [name]
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert PASSWORD not in json.dumps(pod)
        assert "never-shown" not in json.dumps(pod)


def test_a_wrong_password_is_a_condition_that_says_so_and_the_right_one_mends_it(
    secured: Secured,
) -> None:
    """Issue 4, item 7."""
    name, installed = "mistyped", secured.installed
    secured.secret(name, "SCRAM-SHA-512", password="another")
    secured.broker(name, "SCRAM-SHA-512")
    condition = installed.until_condition(
        "broker", name, secured.namespace, "TopicReady", "KafkaAuthenticationFailed"
    )
    assert condition["status"] == "False"
    assert "authentication failed" in condition["message"].lower()
    ready = installed.condition("broker", name, secured.namespace, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "KafkaAuthenticationFailed")
    secured.secret(name, "SCRAM-SHA-512")
    installed.until_ready("broker", name, secured.namespace)


@only_chaos
def test_a_missing_secret_is_a_condition_until_it_is_there(secured: Secured) -> None:
    name, installed = "forgotten", secured.installed
    secured.broker(name, "PLAIN")
    condition = installed.until_condition(
        "broker", name, secured.namespace, "ConfigParsed", "SecretNotFound"
    )
    assert f"{secured.namespace}/{name}" in condition["message"]
    secured.secret(name, "PLAIN")
    installed.until_ready("broker", name, secured.namespace)


def test_a_secret_elsewhere_is_not_reached_by_its_path(secured: Secured) -> None:
    """The client puts names into paths as they are: this one led to another namespace's Secret."""
    name, installed = "path", secured.installed
    secret = f"../../{OPERATOR_NAMESPACE}/secrets/knafka-webhook-certificate"
    installed.configure(name, secured.namespace, "PLAIN", auth__secret__ref__name=secret)
    config = {"apiVersion": "v1", "kind": "ConfigMap", "name": name}
    installed.broker(secured.namespace, name, ready=False, config=config)
    installed.until_condition("broker", name, secured.namespace, "ConfigParsed", "SecretNotFound")


@pytest.fixture
def operators_secret(cluster: Cluster, namespace: str) -> Iterator[str]:
    """The name of a ConfigMap and a Secret in the operator's namespace, which the test makes."""
    yield namespace
    for kind in ("secret", "configmap"):
        cluster.delete(kind, OPERATOR_NAMESPACE, namespace)


@only_chaos
@pytest.mark.alone
def test_the_operators_secret_stays_where_it_is_unless_the_setting_lets_it_be_copied(
    installed: Installation, namespace: str, operators_secret: str
) -> None:
    """The component operator/deploy/project-secrets, and what is so without it."""
    secured = Secured(installed, namespace, installed.subscriber(namespace))
    kubectl, name = installed.cluster.kubectl, operators_secret
    secured.secret(name, "SCRAM-SHA-512", OPERATOR_NAMESPACE)
    secured.broker(name, "SCRAM-SHA-512", OPERATOR_NAMESPACE)
    installed.trigger(secured.namespace, name, secured.subscriber.ref, broker=name, ready=False)
    of = "broker", name, secured.namespace, "ConfigParsed"
    installed.until_condition(*of, "ConfigMapNotAllowed")
    kubectl("label", "configmap", name, "-n", OPERATOR_NAMESPACE, "knafka.dev/broker-config=true")
    condition = installed.until_condition(*of, "SecretNotProjected")
    assert "KNAFKA_PROJECT_SECRETS=true" in condition["message"]
    assert installed.cluster.get("secret", f"{name}-kn-kafka", secured.namespace) is None

    operator = ("-n", OPERATOR_NAMESPACE, "deploy/knafka-operator")
    try:
        kubectl("apply", "-f", str(PROJECTION))
        kubectl("set", "env", *operator, "KNAFKA_PROJECT_SECRETS=true")
        installed.until_running()
        secured.event_passes(name)
        assert {secret for pod in secured.pods(name) for secret in mounted(pod)} == {
            f"{name}-kn-kafka"
        }
        # While it can still be reached: without the Secret nobody could delete its topic.
        for kind in ("trigger", "broker"):
            kubectl("delete", kind, name, "-n", secured.namespace, "--timeout=90s")
    finally:
        kubectl("set", "env", *operator, "KNAFKA_PROJECT_SECRETS-")
        kubectl("delete", "-f", str(PROJECTION))
        installed.until_running()


def _is_gone(cluster: Cluster, service: str, namespace: str) -> bool:
    return cluster.get("ksvc", service, namespace) is None


@pytest.fixture
def neighbour(cluster: Cluster) -> Iterator[str]:
    """A second namespace, of somebody who may make Brokers and Triggers in it."""
    name = f"neighbour-{uuid.uuid4().hex[:6]}"
    cluster.make_namespace(name)
    yield name
    for each in ("triggers", "brokers"):
        cluster.delete(each, name)
    cluster.delete("namespace", "", name)


@pytest.mark.usefixtures("brokers_go")
def test_no_namespace_reads_or_writes_anothers_topic(
    installed: Installation, namespace: str, neighbour: str
) -> None:
    """Issue 12, item 2; whatever the installation allows, and whether a webhook looks or not."""
    address = installed.broker(namespace)
    topic = installed.status("broker", "default", namespace)["annotations"]["default.topic"]
    data = {"external.topics": "*"}
    with installed.allowing("*"):
        installed.broker(neighbour, "thief", ready=False, data=data)
        kubectl = installed.cluster.kubectl
        for each in (topic, "__consumer_offsets"):
            said = kubectl(
                "annotate", "broker", "thief", "-n", neighbour, f"{EXTERNAL_TOPIC}={each}",
                "--overwrite", check=False,
            )  # fmt: skip
            assert "validation failed" in said
            assert each in said
    assert installed.send(address, "1").status_code == 202


@only_chaos
def test_an_external_topic_is_used_for_as_long_as_the_installation_allows_it(
    installed: Installation, neighbour: str
) -> None:
    """Issue 12, item 2: the user's ConfigMap allows nothing; what is allowed can be taken back."""
    admin = KafkaAdmin({"bootstrap.servers": installed.kafka.bootstrap("PLAINTEXT")})
    topic = f"{neighbour}.legacy"
    asyncio.run(admin.ensure_topic(topic, 1, 1, {}))
    subscriber = installed.subscriber(neighbour)
    annotations, data = {EXTERNAL_TOPIC: topic}, {"external.topics": "*"}
    installed.broker(neighbour, ready=False, annotations=annotations, data=data)
    installed.trigger(neighbour, "all", subscriber.ref, ready=False)
    told = installed.until_condition(
        "broker", "default", neighbour, "TopicReady", "ExternalTopicNotAllowed"
    )
    assert f"{OPERATOR_NAMESPACE}/kafka-broker-config" in told["message"]
    assert "address" not in installed.status("broker", "default", neighbour)

    with installed.allowing("{namespace}.*"):
        installed.until_ready("broker", "default", neighbour)
        installed.until_ready("trigger", "all", neighbour)
        address = installed.status("broker", "default", neighbour)["address"]["url"]
        assert installed.send(address, "1").status_code == 202
        subscriber.wait_for(1)

    installed.touch("broker", "default", neighbour)
    installed.until_condition(
        "broker", "default", neighbour, "TopicReady", "ExternalTopicNotAllowed"
    )
    installed.until_condition("trigger", "all", neighbour, "BrokerReady", "BrokerNotReady")
    assert "address" not in installed.status("broker", "default", neighbour)
    for name in ("default-kn-receiver", "all-kn-dispatcher"):
        installed.cluster.wait_for(
            partial(_is_gone, installed.cluster, name, neighbour), READY, f"{name} is gone"
        )

    named = {"specversion": "1.0", "id": "2", "source": "/tests", "type": "made"}
    key, headers, value = to_record(Event(named, b"{}"))
    producer = Producer({"bootstrap.servers": installed.kafka.bootstrap("PLAINTEXT")})
    producer.produce(topic, value=value, key=key, headers=headers)  # type: ignore[arg-type]
    assert producer.flush(10) == 0
    with installed.allowing(topic):
        installed.until_ready("trigger", "all", neighbour)
        subscriber.wait_for(2)
    assert subscriber.ids() == ["1", "2"]
