"""docs/how-to/deploy-with-func.md on a cluster: its func.yaml, deployed (FN-12, FN-13).

func can't be had through the package registries, so its part is played: by `service_of`, and of a
build from source by tools/images/build.py. Kafka's own tool is played by `Topics`. Everything else
is as it stands on the page.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from support.cluster import Cluster
from support.gate import only_chaos
from support.installation import ARRIVAL, READY, ROOT, Installation, Subscriber
from support.once_a_run import OnceARun
from support.pages import block, blocks
from support.secure_kafka import KafkaAccess

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin

PAGE: Final = "how-to/deploy-with-func.md"
PREBUILT, FROM_SOURCE = "knafka", "knafka-func"
KAFKA: Final = "kafka.example.com:9092"
EDIT: Final = dict(
    zip(
        (PREBUILT, FROM_SOURCE),
        (line for text in blocks(PAGE) for line in text.splitlines() if line.startswith("sed -i")),
        strict=True,
    )
)
"""What puts one's own words into the func.yaml of the receiver."""


def service_of(function: dict[str, Any]) -> dict[str, Any]:
    """What func's Knative deployer makes of a func.yaml."""
    deploy = function["deploy"]
    options = deploy["options"]
    labels = {
        "function.knative.dev": "true",
        "function.knative.dev/name": function["name"],
        "function.knative.dev/runtime": function["runtime"],
    }
    scaling = {
        f"autoscaling.knative.dev/{key}-scale": str(options["scale"][key]) for key in ("min", "max")
    }
    probes = {
        f"{each}Probe": {"httpGet": {"path": path}}
        for each, path in deploy["healthEndpoints"].items()
    }
    container = {
        "name": "user-container",
        "image": function["image"],
        "env": [{"name": "BUILT", "value": "20261121T000000"}, *function["run"]["envs"]],
        "securityContext": {
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **probes,
    }
    limits = options.get("resources", {}).get("limits", {})
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": function["name"], "labels": labels},
        "spec": {
            "template": {
                "metadata": {"labels": labels, "annotations": scaling},
                "spec": {
                    "containerConcurrency": limits.get("concurrency", 0),
                    "containers": [container],
                },
            }
        },
    }


class Topics:
    """The page's topics in the tests' Kafka, each under a name of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._suffix = uuid.uuid4().hex[:8]
        self._made: set[str] = set()

    def own(self, text: str, namespace: str) -> str:
        """The page's text with our words in place of its own."""
        text = text.replace(KAFKA, self.bootstrap).replace(".default.svc", f".{namespace}.svc")
        named = r"\b(orders(-mail-dead-letters)?|fulfilment-(trigger|action|changelog))\b"
        text = re.sub(named, rf"\1-{self._suffix}", text)
        return re.sub(r'("group": "\w+)', rf"\1-{self._suffix}", text)

    def run(self, text: str) -> None:
        """`kafka-topics.sh`, a line or many."""
        for line in text.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line)
            assert program == "kafka-topics.sh"
            options = dict(pairwise(words))
            assert options["--bootstrap-server"] == self.bootstrap
            if "--delete" in options:
                asyncio.run(self.delete(options["--topic"]))
            else:
                assert "--create" in options
                config = dict([options["--config"].split("=")]) if "--config" in options else {}
                asyncio.run(self._make(options["--topic"], int(options["--partitions"]), config))

    async def _make(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        admin = KafkaAdmin({"bootstrap.servers": self.bootstrap})
        await admin.ensure_topic(topic, partitions, 1, config)
        await admin.close()
        self._made.add(topic)

    async def delete(self, *topics: str) -> None:
        """These, or all that were made."""
        admin = KafkaAdmin({"bootstrap.servers": self.bootstrap})
        for topic in topics or tuple(self._made):
            await admin.delete_topic(topic)
            self._made.discard(topic)
        await admin.close()


@pytest.fixture
def topics(cluster_kafka: KafkaAccess) -> Iterator[Topics]:
    made = Topics(cluster_kafka.bootstrap("PLAINTEXT"))
    yield made
    asyncio.run(made.delete())


class Functions:
    """The page's functions in a namespace, all of one image."""

    def __init__(self, cluster: Cluster, namespace: str, topics: Topics, image: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.topics = topics
        self.image = image
        for each in topic_commands()[:1]:
            topics.run(topics.own(each, namespace))

    def deploy(self, text: str) -> str:
        """A func.yaml, as `func deploy`; gives the URL once it is Ready."""
        function = yaml.safe_load(self.topics.own(text, self.namespace))
        function["image"] = self.cluster.image(self.image)
        self.cluster.apply(service_of(function), namespace=self.namespace)
        name = function["name"]
        self.cluster.wait_for(
            lambda: self.cluster.is_ready("ksvc", name, self.namespace), READY, f"{name} is Ready"
        )
        service = self.cluster.get("ksvc", name, self.namespace)
        assert service is not None
        return str(service["status"]["url"])

    def receiver(self, folder: Path) -> str:
        """The func.yaml of the repository, edited by the page's command."""
        edit = EDIT[self.image]
        file = folder / edit.split()[-1]
        file.parent.mkdir(exist_ok=True)
        file.write_text((ROOT / edit.split()[-1]).read_text())
        subprocess.run(["bash", "-euc", edit], cwd=folder, check=True)
        assert KAFKA in file.read_text()
        return self.deploy(file.read_text())

    def dispatcher(self, **contract: object) -> str:
        """The page's dispatcher, with these fields of its contract otherwise."""
        (text,) = func_yamls("mail-dispatcher")
        function = yaml.safe_load(text)
        for variable in function["run"]["envs"]:
            if variable["name"] == "KNAFKA_EGRESS":
                variable["value"] = json.dumps({**json.loads(variable["value"]), **contract})
        return self.deploy(yaml.safe_dump(function, width=10_000))

    def ask(self, url: str, path: str, **more: Any) -> httpx.Response:
        return self.cluster.request(urlsplit(url).netloc, path, **more)

    def send(self, url: str, type_: str, **attributes: str) -> None:
        """As `func invoke -f cloudevent`, which knows no path."""
        headers = {
            "ce-specversion": "1.0",
            "ce-id": str(uuid.uuid4()),
            "ce-source": "/boson/fn",
            "ce-type": type_,
            "content-type": "application/json",
            **{f"ce-{name}": value for name, value in attributes.items()},
        }
        answer = self.ask(url, "/", headers=headers, content=b'{"item": "a pen"}')
        assert answer.status_code == 202


def topic_commands() -> Sequence[str]:
    return [
        each for each in blocks(PAGE) if each.startswith("kafka-topics.sh") and "create" in each
    ]


def func_yamls(name: str) -> Sequence[str]:
    return [each for each in blocks(PAGE) if f"name: {name}\n" in each]


@pytest.fixture
def subscriber(
    cluster: Cluster, cluster_kafka: KafkaAccess, once_a_run: OnceARun, namespace: str
) -> Subscriber:
    """The page's `mail`."""
    return Installation(cluster, cluster_kafka, once_a_run).subscriber(namespace, "mail")


@pytest.mark.parametrize("image", [PREBUILT, FROM_SOURCE])
def test_an_event_goes_through_the_pages_receiver_and_dispatcher(
    cluster: Cluster, namespace: str, topics: Topics, subscriber: Subscriber, tmp_path: Path,
    image: str,
) -> None:  # fmt: skip
    """FN-12, FN-13, UX-1: from zero, as `func invoke` sends it; nobody asks the dispatcher."""
    functions = Functions(cluster, namespace, topics, image)
    url = functions.receiver(tmp_path)
    functions.dispatcher()
    functions.send(url, "com.example.order.cancelled")
    functions.send(url, "com.example.order.placed")
    (event,) = subscriber.wait_for(1, ARRIVAL)
    assert event["type"] == "com.example.order.placed"
    for command in block(PAGE, "func delete").splitlines():  # which deletes the Knative Service
        name = command.split()[2]
        cluster.kubectl("delete", "ksvc", name, "-n", namespace, "--timeout=90s")
    topics.run(topics.own(block(PAGE, f"kafka-topics.sh --bootstrap-server {KAFKA} --delete"), ""))


@only_chaos
def test_a_sensors_action_goes_through_the_pages_functions(
    cluster: Cluster, namespace: str, topics: Topics, subscriber: Subscriber, tmp_path: Path
) -> None:
    """FN-12: and a dispatcher of its topic, which sleeps until somebody asks it."""
    functions = Functions(cluster, namespace, topics, PREBUILT)
    for each in topic_commands()[1:]:
        topics.run(topics.own(each, namespace))
    url = functions.receiver(tmp_path)
    (sensor,) = func_yamls("fulfilment")
    functions.deploy(sensor)
    (action_topic,) = set(re.findall(r'"actionTopic": "([\w-]+)"', sensor))
    functions.dispatcher(topic=action_topic, filters=[])
    functions.send(url, "com.example.order.placed", orderid="o-1")
    functions.send(url, "com.example.payment.received", orderid="o-1")
    (event,) = subscriber.wait_for(1, ARRIVAL)
    assert event["type"] == "dev.knafka.sensor.fired"
    assert event["key"] == "o-1", "what the events have in common is the subject"


@only_chaos
def test_a_dispatcher_that_may_sleep_delivers_when_somebody_asks_it(
    cluster: Cluster, namespace: str, topics: Topics, subscriber: Subscriber, tmp_path: Path
) -> None:
    """FN-10: without KNAFKA_DRAIN_AT_START and with `min: 0`, as the page says."""
    functions = Functions(cluster, namespace, topics, PREBUILT)
    functions.send(functions.receiver(tmp_path), "com.example.order.placed")
    (text,) = func_yamls("mail-dispatcher")
    text = re.sub(r" +- name: KNAFKA_DRAIN_AT_START\n.*\n", "", text).replace("min: 1", "min: 0")
    url = functions.deploy(text)
    command = shlex.split(block(PAGE, "curl -X POST DISPATCHER_URL"))
    path = command[3].removeprefix("DISPATCHER_URL")
    answer = functions.ask(url, path, content=command[-1].encode())
    assert answer.status_code == 200, answer.text
    last = json.loads(answer.text.splitlines()[-1])
    assert (last["ended"], last["delivered"]) == ("idle", 1)
    assert subscriber.summary()["unique"] == 1
