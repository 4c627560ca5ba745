"""KafkaChannels and Subscriptions on the cluster (issue 16, items 2 to 4).

    KNAFKA_CHANNEL_COUNT=500 KNAFKA_SUBSCRIPTIONS=200 pytest tests/cluster/test_channels.py -s

Prints how long it takes until all are Ready.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from support.channels import RECEIVER, SMOKE_TEST, Channels, channel, subscription
from support.cluster import OPERATOR_NAMESPACE, Cluster

from testcluster import settings

CHANNELS: Final = int(os.environ.get("KNAFKA_CHANNEL_COUNT", "8"))
SUBSCRIPTIONS: Final = int(os.environ.get("KNAFKA_SUBSCRIPTIONS", "8"))
WITHIN: Final = 300.0
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("channels_go")]


@pytest.mark.conformance("KN-CHN-01", "KN-CHN-02", "KN-CHN-05", "KN-CHN-11", "KN-SUB-02")
@pytest.mark.conformance("CHN-22", "CHN-29", "CHN-31", "CHN-32", "DSP-1", "DSP-10", "DSP-19")
@pytest.mark.conformance("DSP-15", "DSP-16", "DSP-17", "DSP-18", "DSP-20", "DSP-21")
def test_a_channels_events_reach_each_subscription_and_replies_their_address(
    channels: Channels, namespace: str, tmp_path: Path
) -> None:
    """DSP-1, CHN-29, CHN-31, KN-CHN-01, KN-CHN-02, KN-CHN-11, KN-SUB-02: by the channel's own host;
    one that fails is dead-lettered, and holds nobody up (CHN-32); what was consumed is counted
    (DSP-15 to DSP-21)."""
    installed = channels.installed
    audit = installed.subscriber(namespace, "audit")
    asked = installed.subscriber(namespace, "asked", SUBSCRIBER_REPLY_TYPE="answered")
    replies = installed.subscriber(namespace, "replies")
    failing = installed.subscriber(namespace, "failing")
    address = channels.channel(namespace, "my-kafkachannel")
    assert address == f"http://my-kafkachannel-kn-channel.{namespace}.svc.cluster.local"
    channels.subscription(namespace, "audit", "my-kafkachannel", audit.ref)
    channels.subscription(namespace, "asked", "my-kafkachannel", asked.ref, reply=replies.ref)
    channels.subscription(
        namespace, "failing", "my-kafkachannel", failing.ref, delivery={"retry": 0}
    )
    # By now its address is routed to: right after the roll-out it may be refused.
    failing.behave(status=500)
    for number in range(19):
        sent = {**SMOKE_TEST, "ce-id": str(number), "ce-partitionkey": "k"}
        assert installed.post(f"{address}/", sent, b'{"test":"hello"}').status_code == 202
    last = {**SMOKE_TEST, "ce-id": "19", "ce-partitionkey": "k"}
    assert posted_in_a_pod(channels, f"{address}/", last) == "202"
    assert [each["id"] for each in audit.wait_for(20)] == [str(n) for n in range(20)]
    asked.wait_for(20)
    assert {each["id"] for each in replies.wait_for(20)} == {
        f"reply-to-{number}" for number in range(20)
    }
    failing.wait_for(20)
    status = installed.status("kafkachannel", "my-kafkachannel", namespace)
    assert [each["ready"] for each in status["subscribers"]] == ["True"] * 3
    declared = channels.cluster.get("kafkachannel", "my-kafkachannel", namespace)
    assert declared is not None
    assert {each["name"] for each in declared["spec"]["subscribers"]} == {
        "audit", "asked", "failing",
    }  # fmt: skip

    group = f"kafka.{namespace}.my-kafkachannel.{uid(channels, namespace, 'audit')}"
    cluster = channels.cluster
    counted = cluster.wait_for(
        lambda: [each for each in consumed(cluster, group) if sum(each) == 20], 120, "counts of 20"
    )
    assert sorted(counted[0]) == [0, 20], "a series for each partition, zeros included"

    assert by_curl(tmp_path, f"{address}/") == "HTTP/1.1 202 Accepted"
    audit.wait_for(21)
    counted = cluster.wait_for(
        lambda: [each for each in consumed(cluster, group) if sum(each) == 21], 120, "one more"
    )
    assert sorted(counted[0]) in ([0, 21], [1, 20]), "one more on one of the partitions"

    services = channels.cluster.kubectl("get", "ksvc", "-n", namespace, "-oname").split()
    assert services == [], "the data plane of channels is in the operator's namespace (CHN-22)"
    unknown = f"http://nobody-kn-channel.{namespace}.svc.cluster.local/"
    assert installed.post(unknown, SMOKE_TEST, b"{}").status_code == 404


@pytest.mark.conformance("KN-CHN-01", "CHN-2", "CHN-6", "CHN-23")
def test_channels_come_while_others_are_used_and_none_that_was_ready_is_not_found(
    channels: Channels, namespace: str
) -> None:
    """CHN-2, CHN-6, CHN-23: no 404, no other Revision, no restart of the receiver."""
    cluster = channels.cluster
    channels.channel(namespace, "first")
    before = cluster.get("ksvc", RECEIVER, OPERATOR_NAMESPACE)
    assert before is not None
    restarted = restarts(channels)
    with posting(channels, namespace) as poster:
        began = time.monotonic()
        many = [channel(namespace, f"channel-{number}") for number in range(CHANNELS)]
        cluster.create_all("kafkachannel", namespace, many)
        made = time.monotonic() - began
        cluster.wait_for(
            lambda: poster.find_ready() == CHANNELS + 1, WITHIN, "all channels are Ready"
        )
        print(f"\n{CHANNELS} channels: made after {made:.0f} s, all Ready after {age(began)}")
        poster.asked_all.clear()
        cluster.wait_for(poster.asked_all.is_set, WITHIN, "each was sent an event")
    print(f"{poster.answered} while they came")
    assert set(poster.answered) == {202}
    after = cluster.get("ksvc", RECEIVER, OPERATOR_NAMESPACE)
    assert after is not None
    assert after["status"]["latestReadyRevisionName"] == before["status"]["latestReadyRevisionName"]
    assert restarts(channels).items() >= restarted.items()


@pytest.mark.conformance("KN-CHN-03", "CHN-14", "CHN-26", "CHN-27", "DSP-2", "DSP-3", "DSP-10")
def test_many_subscriptions_of_a_channel_share_a_dispatcher(
    channels: Channels, namespace: str
) -> None:
    """CHN-14, CHN-26, CHN-27, DSP-2, DSP-3, DSP-10."""
    cluster, installed = channels.cluster, channels.installed
    subscriber = installed.subscriber(namespace)
    address = channels.channel(namespace, "orders")
    before = set(dispatchers(cluster, namespace))
    began = time.monotonic()
    many = [
        subscription(namespace, f"sub-{number}", "orders", subscriber.ref)
        for number in range(SUBSCRIPTIONS)
    ]
    cluster.create_all("subscription.messaging.knative.dev", namespace, many)
    made = time.monotonic() - began

    def operational() -> bool:
        listed = installed.status("kafkachannel", "orders", namespace).get("subscribers") or ()
        return [each["ready"] for each in listed] == ["True"] * SUBSCRIPTIONS

    cluster.wait_for(operational, WITHIN, "all subscribers are ready")
    print(f"\n{SUBSCRIPTIONS} Subscriptions: made after {made:.0f} s, ready after {age(began)}")
    (shard,) = set(dispatchers(cluster, namespace)) - before
    assert "-kn-channel-shard-0" in shard
    began = time.monotonic()
    assert installed.send(address, "to-all").status_code == 202
    cluster.wait_for(
        lambda: subscriber.summary()["received"] >= SUBSCRIPTIONS, WITHIN, "all have got it"
    )
    print(f"one event: delivered to all after {age(began)}")
    assert subscriber.summary()["received"] == SUBSCRIPTIONS, "nobody got it twice"


class Poster(threading.Thread):
    """POSTs to every channel that is Ready, one after another."""

    def __init__(self, channels: Channels, namespace: str) -> None:
        super().__init__(daemon=True)
        self._channels = channels
        self._namespace = namespace
        self._over = threading.Event()
        self._ready: list[str] = []
        self.answered: dict[int, int] = {}
        self.asked_all = threading.Event()
        """Set after each round."""

    def find_ready(self) -> int:
        """How many there are."""
        found: dict[str, Any] = json.loads(
            self._channels.cluster.kubectl("get", "kafkachannels", "-n", self._namespace, "-ojson")
        )
        self._ready = [
            each["status"]["address"]["url"]
            for each in found["items"]
            if any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in (each.get("status") or {}).get("conditions") or ()
            )
        ]
        return len(self._ready)

    def run(self) -> None:
        number = 0
        while not self._over.is_set():
            starts_whole = not self.asked_all.is_set()
            for address in list(self._ready):
                number += 1
                code = self._channels.installed.send(address, str(number)).status_code
                self.answered[code] = self.answered.get(code, 0) + 1
                if self._over.is_set():
                    return
            if starts_whole and self._ready:
                self.asked_all.set()
            self._over.wait(0.01)

    def finish(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def posting(channels: Channels, namespace: str) -> Iterator[Poster]:
    poster = Poster(channels, namespace)
    poster.find_ready()
    poster.start()
    try:
        yield poster
    finally:
        poster.finish()


def posted_in_a_pod(channels: Channels, url: str, headers: Mapping[str, str]) -> str:
    """The status of DSP-19's request, sent from within the cluster by the address as it is."""
    pod = channels.receiver_pods()[0]["metadata"]["name"]
    send = (
        "import json, sys, urllib.request as r\n"
        'asked = r.Request(sys.argv[1], b\'{"test":"hello"}\', json.loads(sys.argv[2]))\n'
        "print(r.urlopen(asked, timeout=30).status)"
    )
    return channels.cluster.kubectl(
        "exec", "-n", OPERATOR_NAMESPACE, pod, "-c", "function", "--",
        "python3", "-c", send, url, json.dumps(dict(headers)),
    ).strip()  # fmt: skip


def by_curl(folder: Path, url: str) -> str:
    """DSP-19's request as its page has it, by curl and the cluster's own DNS: the first line of the
    answer. This machine reaches Services, and a mount of its own has the cluster's resolver."""
    resolver = folder / "resolv.conf"
    resolver.write_text(f"nameserver {settings.DNS_IP}\n")
    headers = [f"-H{name}: {value}" for name, value in SMOKE_TEST.items()]
    curl = ["curl", "-si", "--noproxy", "*", "-XPOST", *headers, '-d{"test":"hello"}', url]
    inside = 'mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside, resolver, *curl],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[0].strip()


def uid(channels: Channels, namespace: str, subscription: str) -> str:
    found = channels.cluster.get("subscription.messaging.knative.dev", subscription, namespace)
    assert found is not None
    return str(found["metadata"]["uid"])


def consumed(cluster: Cluster, group: str) -> list[list[float]]:
    """What a consumer has consumed of each partition, as each replica of the operator says that
    is asked at DSP-21's address; one that waits says nothing."""
    service = cluster.get("service", "kafka-channel-dispatcher", OPERATOR_NAMESPACE)
    assert service is not None
    url = f"http://{service['spec']['clusterIP']}:8081/metrics"
    text = httpx.get(url, timeout=30, trust_env=False).text
    assert "# HELP eventing_kafka_consumed_msg_count Consumed Message Count" in text
    assert "# TYPE eventing_kafka_consumed_msg_count gauge" in text
    lines = text.splitlines()
    name = f'eventing_kafka_consumed_msg_count{{consumer="{group}",partition='
    return [[float(each.rpartition(" ")[2]) for each in lines if each.startswith(name)]]


def restarts(channels: Channels) -> dict[str, list[int]]:
    """Of the containers of each of the receiver's pods."""
    return {
        pod["metadata"]["name"]: [
            each["restartCount"] for each in pod["status"]["containerStatuses"]
        ]
        for pod in channels.receiver_pods()
    }


def dispatchers(cluster: Cluster, namespace: str) -> list[str]:
    """Services of shared dispatchers in the operator's namespace, of this namespace's channels."""
    listed = cluster.kubectl(
        "get", "ksvc", "-n", OPERATOR_NAMESPACE, "-l", "knafka.dev/role=shard", "-oname"
    )
    return [each for each in listed.split() if namespace in each]


def age(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"
