"""Receiver, dispatcher and admin on Kafka's real listeners, by the Secret keys of naming.md.

Issue 4, Security. Whoever is refused is told why, and soon.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from support import functions, secure_kafka
from support.scripted import ScriptedServer
from support.secure_kafka import KINDS, Authority, SecureKafka
from support.trigger_world import Held, drained
from support.waiting import until
from support.wire import connected

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.kafka_connection import connection_configuration
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.contract import Egress, Ingress, Kafka, Sink
from knafka.core.drain import Ended
from knafka.core.errors import LogError
from knafka_local.kafka.kafka_distribution import KafkaDistribution

pytestmark = [pytest.mark.kafka, pytest.mark.asyncio(loop_scope="module")]

TIMEOUT = 15.0
"""Seconds an admin's request may take in these tests: on a busy machine, which librdkafka needs to
see what a broker does each time."""
EVENT = (
    b"POST /ns/broker HTTP/1.1\r\nhost: x\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\n"
    b"ce-type: t\r\ncontent-length: 4\r\n\r\ndata"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured(
    kafka_distribution: KafkaDistribution, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SecureKafka]:
    async with secure_kafka.running(kafka_distribution, tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka


def ingress(kafka: Kafka, topic: str = "events") -> Ingress:
    return Ingress(namespace="ns", broker="broker", topic=topic, kafka=kafka)


def egress(kafka: Kafka, topic: str = "events", url: str = "http://nowhere/") -> Egress:
    return Egress(
        namespace="ns", broker="broker", trigger="trigger",
        topic=topic, group=topic, dead_letter_topic=f"{topic}-dead",
        kafka=kafka, subscriber=Sink(url=url),
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_an_event_passes_through_every_kind_of_security(
    secured: SecureKafka, tmp_path: Path, kind: str
) -> None:
    kafka = secured.mounted(kind, tmp_path / "secret")
    topic = f"events-{uuid.uuid4().hex}"
    admin = KafkaAdmin(connection_configuration(kafka))
    assert await admin.cluster_id() == secured.server.cluster_id
    assert await admin.ensure_topic(topic, 2, 1, {"retention.ms": "3600000"})
    description = await admin.describe_topic(topic)
    assert description is not None
    assert description.config == {"retention.ms": "3600000"}
    await admin.ensure_committed(topic, topic)

    async with (
        functions.receiver([ingress(kafka, topic)], tmp_path / "receiver.log") as receiver,
        ScriptedServer() as subscriber,
        functions.dispatcher(egress(kafka, topic, subscriber.url), tmp_path / "log") as dispatcher,
    ):
        await receiver.ready()
        async with connected(receiver.port) as wire:
            wire.send(EVENT)
            assert (await wire.response()).status == 202
        assert (await admin.lags([topic], topic))[topic].total == 1
        ended = await drained(dispatcher)
    assert (ended.ended, ended.delivered) == (Ended.IDLE, 1)
    assert [arrival.id for arrival in subscriber.arrivals] == ["1"]
    assert (await admin.lags([topic], topic))[topic].total == 0
    await admin.delete_group(topic)
    await admin.close()


OTHERS = Authority("somebody else")
STRANGER = OTHERS.issue("stranger")
NO_REASON = "every connection ends without a reason, as with a wrong security protocol"

REFUSALS: dict[str, tuple[str, dict[str, str | None], str]] = {
    "a wrong password with PLAIN": ("PLAIN", {"password": "x"}, "authentication failed: "),
    "a wrong password with SCRAM": (
        "SCRAM-SHA-256",
        {"password": "x"},
        "authentication failed: ",
    ),
    "a wrong password under TLS": ("SASL_SSL", {"password": "x"}, "authentication failed: "),
    "an unknown user": ("SCRAM-SHA-512", {"user": "nobody"}, "authentication failed: "),
    "an unknown CA": ("SASL_SSL", {"ca_crt": OTHERS.certificate}, "certificate verify failed"),
    "a CA that the system doesn't know": (
        "SASL_SSL",
        {"ca_crt": None},
        "certificate verify failed",
    ),
    "an unknown CA with mutual TLS": (
        "SSL",
        {"ca_crt": OTHERS.certificate},
        "certificate verify failed",
    ),
    "no client certificate": (
        "SSL",
        {"user_skip": "true"},
        "Kafka refuses our certificate or misses one",
    ),
    "a client certificate of a stranger": (
        "SSL",
        {"user_crt": STRANGER.certificate, "user_key": STRANGER.key},
        "Kafka refuses our certificate or misses one",
    ),
    "PLAINTEXT where TLS is wanted": ("SSL user.skip", {"protocol": "PLAINTEXT"}, NO_REASON),
    "PLAINTEXT where a password is wanted": ("PLAIN", {"protocol": "PLAINTEXT"}, NO_REASON),
    "TLS where there is none": (
        "PLAIN",
        {"protocol": "SASL_SSL"},
        "connecting to a PLAINTEXT broker listener?",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_who_is_refused_is_told_why_within_a_bound(
    secured: SecureKafka, tmp_path: Path, case: str
) -> None:
    kind, changed, why = REFUSALS[case]
    kafka = secured.mounted(kind, tmp_path / "secret", **changed)
    admin = KafkaAdmin(connection_configuration(kafka), request_timeout=TIMEOUT)
    started = time.monotonic()
    with pytest.raises(LogError) as refused:
        await admin.cluster_id()
    assert time.monotonic() - started < TIMEOUT + 2
    assert why in str(refused.value)
    assert "never-shown" not in str(refused.value)
    await admin.close()


@pytest.mark.parametrize(
    "case",
    [
        "a wrong password with SCRAM",
        "an unknown CA",
        "no client certificate",
        "PLAINTEXT where a password is wanted",
    ],
)
async def test_a_refused_function_says_why(secured: SecureKafka, tmp_path: Path, case: str) -> None:
    """Readiness and the drain, which the operator shows, carry the reason."""
    kind, changed, why = REFUSALS[case]
    kafka = secured.mounted(kind, tmp_path / "secret", **changed)
    async with (
        functions.receiver([ingress(kafka)], tmp_path / "receiver.log") as receiver,
        functions.dispatcher(egress(kafka), tmp_path / "dispatcher.log") as dispatcher,
    ):
        ended = await drained(dispatcher)
        assert ended.ended is Ended.FAILED
        assert ended.error is not None
        assert why in ended.error
        async with asyncio.timeout(10):
            while True:
                status, told = await receiver.get("/readyz")
                if why.encode() in told:
                    break
        assert status == 503


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"user_key": STRANGER.key}, "key values mismatch"),
        ({"user_key": "garbage"}, "ssl.key.pem failed: not in PEM format?"),
        ({"user_crt": "garbage"}, "ssl.certificate.pem failed: error reading certificate"),
        ({"ca_crt": "garbage"}, "ssl.ca.pem: not in PEM format?"),
    ],
    ids=["key of another certificate", "user.key", "user.crt", "ca.crt"],
)
async def test_a_broken_certificate_is_told_before_anything_is_asked(
    secured: SecureKafka, tmp_path: Path, changed: dict[str, str | None], why: str
) -> None:
    kafka = secured.mounted("SSL", tmp_path / "secret", **changed)
    with pytest.raises(LogError, match=why.replace("?", r"\?")):
        KafkaAdmin(connection_configuration(kafka))


async def test_a_writer_that_may_not_write_says_so_and_writes_once_it_may(
    secured: SecureKafka, tmp_path: Path
) -> None:
    """An idempotent producer that was refused an id would refuse everything from then on."""
    topic = f"events-{uuid.uuid4().hex}"
    admin = KafkaAdmin({"bootstrap.servers": secured.bootstrap("PLAINTEXT")})
    await admin.ensure_topic(topic, 1, 1, {})
    refused = secured.mounted("PLAIN", tmp_path / "secret", user=secure_kafka.NOBODY)
    writer = KafkaWriter(connection_configuration(refused))

    async def append() -> LogError | None:
        reported: asyncio.Future[LogError | None] = asyncio.Future()
        try:
            writer.append(topic, None, b"x", [], reported.set_result)
        except LogError as error:
            return error
        return await asyncio.wait_for(reported, 30)

    assert f"`--operation Write --topic {topic}`" in str(await append())
    await asyncio.to_thread(allow, secured.bootstrap("PLAINTEXT"), topic)
    async with asyncio.timeout(30):
        while await append() is not None:  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.1)
    assert writer.failure is None
    await writer.close(1)
    await admin.close()


@pytest.mark.parametrize(
    ("ask", "acl"),
    [
        (lambda admin, topic: admin.ensure_topic(topic, 1, 1, {}), "Create --topic {}"),
        (lambda admin, topic: admin.delete_topic(topic), "Delete --topic {}"),
        (lambda admin, topic: admin.describe_topic(topic), "Describe --topic {}"),
        (lambda admin, topic: admin.end_offsets(topic), "Describe --topic {}"),
        (lambda admin, topic: admin.read_last(topic, 10), "Describe --topic {}"),
        (
            lambda admin, topic: admin.set_topic_config(topic, {"retention.ms": "1"}),
            "AlterConfigs --topic {}",
        ),
        (lambda admin, topic: admin.delete_group(topic), "Delete --group {}"),
        (lambda admin, topic: admin.members(topic), "Describe --group {}"),
    ],
    ids=["make", "delete", "describe", "ends", "read", "configure", "delete group", "members"],
)
async def test_who_is_refused_is_told_the_acl_that_is_missing(
    secured: SecureKafka, tmp_path: Path, ask: Callable[[KafkaAdmin, str], Any], acl: str
) -> None:
    """Issue 30: `Topic authorization failed.` names neither what nor whose."""
    topic = f"events-{uuid.uuid4().hex}"
    owner = KafkaAdmin({"bootstrap.servers": secured.bootstrap("PLAINTEXT")})
    await owner.ensure_topic(topic, 1, 1, {})
    await owner.ensure_committed(topic, topic)
    refused = secured.mounted("PLAIN", tmp_path / "secret", user=secure_kafka.NOBODY)
    admin = KafkaAdmin(connection_configuration(refused))
    with pytest.raises(LogError, match=f"`--operation {acl.format(topic)}`"):
        await ask(admin, topic)
    await admin.close()
    await owner.close()


async def test_a_dispatcher_that_may_make_no_topics_buries_once_there_is_one(
    secured: SecureKafka, tmp_path: Path
) -> None:
    """KN-DLV-09: until then the event waits, and the log says what to do."""
    open_to_all = secured.bootstrap("PLAINTEXT")
    topic = f"events-{uuid.uuid4().hex}"
    admin = KafkaAdmin({"bootstrap.servers": open_to_all})
    await admin.ensure_topic(topic, 1, 1, {})
    await admin.ensure_committed(topic, topic)
    for resource, name, operation in (
        (ResourceType.TOPIC, topic, AclOperation.READ),
        (ResourceType.GROUP, topic, AclOperation.READ),
        (ResourceType.TOPIC, f"{topic}-dead", AclOperation.WRITE),
    ):
        await asyncio.to_thread(allow, open_to_all, name, resource, operation)
    kafka = secured.mounted("PLAIN", tmp_path / "secret", user=secure_kafka.NOBODY)
    store(open_to_all, topic)
    async with functions.dispatcher(egress(kafka, topic), tmp_path / "log") as dispatcher:
        held = Held(dispatcher)
        told = f"make the topic {topic}-dead, or allow the Kafka user of this Broker"
        await until(lambda: told in dispatcher.log, within=60)
        assert held.lines[-1].unsettled == 1
        await admin.ensure_topic(f"{topic}-dead", 1, 1, {})
        await until(lambda: held.lines[-1].dead_lettered == 1, within=60)
        await held.hang_up()
    assert len(await admin.read_last(f"{topic}-dead", 10)) == 1
    await admin.close()


def store(bootstrap_servers: str, topic: str) -> None:
    """An event that nobody can deliver."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    attributes = {"specversion": "1.0", "id": "1", "source": "/", "type": "t"}
    headers: dict[str, str | bytes | None] = {f"ce_{name}": attributes[name] for name in attributes}
    producer.produce(topic, b"an event", headers=headers)
    assert producer.flush(30) == 0


def allow(
    bootstrap_servers: str,
    name: str,
    resource: ResourceType = ResourceType.TOPIC,
    operation: AclOperation = AclOperation.WRITE,
) -> None:
    """Let `NOBODY` do this, by default write to a topic."""
    binding = AclBinding(
        resource, name, ResourcePatternType.LITERAL, f"User:{secure_kafka.NOBODY}", "*",
        operation, AclPermissionType.ALLOW,
    )  # fmt: skip
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for made in admin.create_acls([binding]).values():
        made.result(30)
