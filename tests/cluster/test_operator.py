"""The operator itself: replicas, a Kafka that is gone, topics that aren't ours (issue 4)."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest
from confluent_kafka.admin import AdminClient
from support.cluster import OPERATOR_NAMESPACE
from support.gate import only_chaos
from support.installation import READY, Installation
from support.mortal_kafka import MortalKafka

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin


def _events(installed: Installation, namespace: str) -> dict[str, str]:
    """Reason to message of the Kubernetes Events on Brokers and Triggers."""
    found = json.loads(installed.cluster.kubectl("get", "events", "-n", namespace, "-ojson"))
    return {
        each["reason"]: each["message"]
        for each in found["items"]
        if each["involvedObject"]["kind"] in ("Broker", "Trigger")
    }


@only_chaos
@pytest.mark.usefixtures("mortal_kafka", "brokers_go")
def test_a_kafka_that_is_gone_never_blocks_a_deletion_for_ever(
    installed: Installation, namespace: str, mortal_kafka: MortalKafka
) -> None:
    """KN-BRK-22."""
    data = {"bootstrap.servers": mortal_kafka.server.bootstrap_servers}
    installed.broker(namespace, data=data)
    installed.trigger(namespace, "all", {"uri": "http://nowhere.invalid"})
    mortal_kafka.kill()
    kubectl = installed.cluster.kubectl
    kubectl("delete", "trigger/all", "broker/default", "-n", namespace, "--timeout=250s")
    left = installed.cluster.wait_for(
        lambda: _events(installed, namespace).get("LeftInKafka", ""), 30, "an Event tells of it"
    )
    assert "Kafka still has" in left
    mortal_kafka.start()


def test_what_is_deleted_at_once_with_its_configuration_leaves_nothing_in_kafka(
    installed: Installation, namespace: str
) -> None:
    """As `kubectl delete -f` does it, in whatever order; KN-BRK-22."""
    kafka, cluster = installed.kafka, installed.cluster
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "kafka", "namespace": namespace},
            "stringData": kafka.secret("SASL_SSL"),
        }
    )
    data = {"bootstrap.servers": kafka.bootstrap("SASL_SSL"), "auth.secret.ref.name": "kafka"}
    installed.broker(namespace, data=data)
    installed.trigger(namespace, "all", {"uri": "http://nowhere.invalid"})
    topic = installed.status("broker", "default", namespace)["annotations"]["default.topic"]
    group = installed.status("trigger", "all", namespace)["annotations"]["group.id"]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap("PLAINTEXT")})
    assert topic in admin.list_topics(timeout=10).topics
    assert group in _groups(admin)
    everything = ("configmap/default-kafka", "secret/kafka", "broker/default", "trigger/all")
    cluster.kubectl("delete", *everything, "-n", namespace, "--timeout=50s")
    # Kafka's broker lists a topic until it has heard of the deletion from its controller.
    cluster.wait_for(
        lambda: topic not in admin.list_topics(timeout=10).topics, READY, "the topic is gone"
    )
    assert group not in _groups(admin)


def _groups(admin: AdminClient) -> set[str]:
    return {each.group_id for each in admin.list_consumer_groups().result().valid}


@pytest.mark.usefixtures("mortal_kafka", "brokers_go")
def test_a_topic_that_nobody_of_ours_made_is_not_taken(
    installed: Installation, namespace: str, mortal_kafka: MortalKafka
) -> None:
    """naming.md: what was there before is nobody's of ours, and stays."""
    admin = KafkaAdmin({"bootstrap.servers": mortal_kafka.server.bootstrap_servers})
    data = {"bootstrap.servers": mortal_kafka.server.bootstrap_servers}
    topic = f"knative-broker-{namespace}-default"
    asyncio.run(admin.ensure_topic(topic, 2, 1, {}))
    installed.broker(namespace, data=data, ready=False)
    told = installed.until_condition("broker", "default", namespace, "TopicReady", "TopicNotOurs")
    assert topic in told["message"]
    kubectl = installed.cluster.kubectl
    kubectl("delete", "broker", "default", "-n", namespace, "--timeout=60s")
    assert asyncio.run(admin.describe_topic(topic)) is not None


@pytest.mark.usefixtures("mortal_kafka", "brokers_go")
def test_an_external_topic_is_used_as_it_is_and_never_deleted(
    installed: Installation, namespace: str, mortal_kafka: MortalKafka
) -> None:
    """naming.md: external.topic."""
    admin = KafkaAdmin({"bootstrap.servers": mortal_kafka.server.bootstrap_servers})
    data = {"bootstrap.servers": mortal_kafka.server.bootstrap_servers}
    topic = f"{namespace}.legacy"
    asyncio.run(admin.ensure_topic(topic, 2, 1, {}))
    external = {"kafka.eventing.knative.dev/external.topic": topic}
    with installed.allowing(topic):
        address = installed.broker(namespace, data=data, annotations=external)
        assert installed.send(address, "1").status_code == 202
    kubectl = installed.cluster.kubectl
    kubectl("delete", "broker", "default", "-n", namespace, "--timeout=60s")
    found = asyncio.run(admin.describe_topic(topic))
    assert found is not None
    assert found.partitions == 2
    assert len(asyncio.run(admin.read_last(topic, 10))) == 1


@pytest.mark.usefixtures("brokers_go")
def test_a_kind_that_there_cannot_be_is_a_condition_of_its_own_trigger(
    installed: Installation, namespace: str
) -> None:
    """Issue 12, item 11: it ended the Trigger's daemon, and disturbed those of others."""
    installed.broker(namespace)
    for number, (api_version, kind) in enumerate(
        [("serving.knative.dev/v1", "*"), ("a/b/c", "Service"), ("v1", "Servise")]
    ):
        ref = {"apiVersion": api_version, "kind": kind, "name": "subscriber"}
        installed.trigger(namespace, f"typo-{number}", {"ref": ref}, ready=False)
        told = installed.until_condition(
            "trigger", f"typo-{number}", namespace, "SubscriberResolved", "NotFound"
        )
        assert kind in told["message"]
    installed.trigger(namespace, "right", installed.subscriber(namespace).ref)


@pytest.mark.usefixtures("brokers_go")
def test_what_has_drifted_is_a_condition_and_is_left_as_it_is(
    installed: Installation, namespace: str
) -> None:
    installed.broker(namespace, partitions=2)
    before = installed.condition("broker", "default", namespace, "TopicAsDeclared")
    assert before["status"] == "True"
    installed.configure(
        "default-kafka",
        namespace,
        default__topic__partitions="5",
        **{"default.topic.config.retention.ms": "60000"},
    )
    installed.cluster.kubectl(
        "annotate", "broker", "default", "-n", namespace, f"example.com/look={time.time()}"
    )
    told = installed.until_condition(
        "broker", "default", namespace, "TopicAsDeclared", "TopicDrifted"
    )
    assert "partitions: 2, declared 5" in told["message"]
    assert "retention.ms: not set, declared 60000" in told["message"]
    assert installed.condition("broker", "default", namespace, "Ready")["status"] == "True"


@pytest.mark.usefixtures("brokers_go")
def test_prometheus_is_told_of_every_trigger(installed: Installation, namespace: str) -> None:
    installed.broker(namespace)
    installed.trigger(namespace, "all", {"uri": "http://nowhere.invalid"})
    labels = f'{{broker="default",namespace="{namespace}",trigger="all"}}'
    wanted = (
        "knafka_operator_leader 1.0",
        f"knafka_trigger_lag{labels} 0.0",
        f'knafka_broker_ready{{broker="default",namespace="{namespace}"}} 1.0',
    )

    def is_told() -> bool:
        leader = installed.leader().partition("_")[0]
        pod = installed.cluster.get("pod", leader, OPERATOR_NAMESPACE)
        assert pod is not None
        url = f"http://{pod['status']['podIP']}:9090/metrics"
        text = httpx.get(url, trust_env=False, timeout=30).text
        return all(each in text for each in wanted)

    # A Trigger is Ready before its lag is looked at.
    installed.cluster.wait_for(is_told, READY, "the leader tells of the Trigger")
