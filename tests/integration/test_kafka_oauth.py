"""Tokens in place of a password, on a real Kafka that checks their signatures: CHN-21, BUS-42.

AWS's own endpoint isn't here: its library is replaced by one that signs as our issuer does, so
that Kafka's side, the callback of every client and the renewal are the real ones.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import rsa
from support.logs import SOON, Owner
from support.token_issuer import AUDIENCE, TokenIssuer
from support.waiting import until_found

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.consumers.kafka_reader import KafkaReader
from knafka.clients.kafka.kafka_connection import connection_configuration
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.contract import Kafka
from knafka.core.errors import LogError
from knafka.core.kafka_settings.kafka_secret import for_java
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.asyncio(loop_scope="module")]

TIMEOUT = 8.0
"""Seconds an admin's request may take in these tests."""
SHORT = 6.0
"""Seconds for which a token is good that is to expire in a test; Kafka ends its connections then.
librdkafka looks once a second whether four fifths of them are over."""
SECURITY = "org.apache.kafka.common.security.oauthbearer"
ALLOWED_URLS = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls"
"""Java clients and servers of Kafka 4 fetch from nowhere else; librdkafka has no such list."""
MSK = {
    "protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "tokenProvider": "MSKAccessTokenProvider",
    "awsRegion": "eu-west-1",
}


@dataclass(frozen=True)
class World:
    server: KafkaServer
    issuer: TokenIssuer
    distribution: KafkaDistribution

    @property
    def bootstrap_servers(self) -> str:
        return self.server.address("TOKENS")

    def mounted(self, folder: Path, secret: Mapping[str, str]) -> Kafka:
        folder.mkdir()
        for key, value in secret.items():
            (folder / key).write_text(value)
        return Kafka(bootstrap_servers=self.bootstrap_servers, secret_path=str(folder))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    kafka_distribution: KafkaDistribution, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("oauth")
    async with TokenIssuer(folder) as issuer:
        listener = "listener.name.tokens.oauthbearer"
        server = KafkaServer(
            kafka_distribution,
            folder / "kafka",
            listeners={"TOKENS": "SASL_PLAINTEXT"},
            properties={
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": issuer.jwks.as_uri(),
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                f"{listener}.sasl.jaas.config": f"{SECURITY}.OAuthBearerLoginModule required;",
                f"{listener}.sasl.server.callback.handler.class": (
                    f"{SECURITY}.OAuthBearerValidatorCallbackHandler"
                ),
                f"{listener}.connections.max.reauth.ms": "3600000",
            },
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAVA_TOOL_OPTIONS", f"{ALLOWED_URLS}={issuer.jwks.as_uri()}")
            await server.start()
        yield World(server, issuer, kafka_distribution)
        await server.stop()


@pytest.fixture
def signer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of AWS's library."""

    class Signer:
        @staticmethod
        def generate_auth_token(region: str) -> tuple[str, int]:
            assert region == "eu-west-1"
            token, expires = world.issuer.token()
            return token, int(expires * 1000)

    module = ModuleType("aws_msk_iam_sasl_signer")
    module.MSKAuthTokenProvider = Signer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


async def stored(writer: KafkaWriter, topic: str, value: bytes) -> bool:
    """Append a record, and return whether Kafka has acknowledged it."""
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def reported(error: LogError | None) -> None:
        done.set_result(error is None)

    with suppress(LogError):
        writer.append(topic, b"k", value, [], reported)
        return await done
    return False


@pytest.mark.conformance("BUS-42")
@pytest.mark.usefixtures("signer")
async def test_events_pass_for_longer_than_a_token_is_good_for(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admin, writer and reader each renew theirs, before Kafka ends the connection with it.

    Kafka refuses a client that renews it twice within a second (KIP-368), as one did on a busy
    machine: what was refused is asked for again.
    """
    monkeypatch.setattr(world.issuer, "lifetime", SHORT)
    secrets = {"oidc": world.issuer.secret, "msk-iam": MSK}
    kafkas = [world.mounted(tmp_path / kind, secret) for kind, secret in secrets.items()]
    plain = {"security.protocol": "sasl_plaintext"}  # as the tests' Kafka listens
    await asyncio.gather(
        *(pass_events(world, {**connection_configuration(kafka), **plain}) for kafka in kafkas)
    )


async def pass_events(world: World, kafka: Mapping[str, Any]) -> None:
    topic = f"events-{uuid.uuid4().hex}"
    admin = KafkaAdmin(kafka, request_timeout=TIMEOUT)
    assert await admin.cluster_id() == world.server.cluster_id
    await admin.ensure_topic(topic, 1, 1, {})
    async with asyncio.timeout(SOON):
        while not await admin.end_offsets_of_all([topic]):  # until it has a leader
            pass
    await admin.ensure_committed(topic, topic)
    writer, reader = KafkaWriter(kafka), KafkaReader(kafka, topic, topic, Owner())
    sent: list[bytes] = []
    appended: list[bytes] = []  # what wasn't acknowledged is appended once more
    got: list[bytes | None] = []
    ends: dict[int, int] = {}

    async def is_stored(value: bytes) -> bool:
        appended.append(value)
        return await stored(writer, topic, value)

    async def are_ends_known() -> bool:
        with suppress(LogError):
            ends.update(await admin.end_offsets(topic))
        return bool(ends)

    loop = asyncio.get_running_loop()
    until = loop.time() + 1.5 * SHORT
    async with asyncio.timeout(SOON):
        while loop.time() < until or len(set(got)) < len(sent):
            if loop.time() < until:
                sent.append(b"%d" % len(sent))
                await until_found(partial(is_stored, sent[-1]))
            try:
                got += [each.value() for each in await reader.read(100, 0.2)]
            except LogError:
                # It begins anew, as a drain does.
                await reader.close(TIMEOUT)
                reader = KafkaReader(kafka, topic, topic, Owner())
    assert list(dict.fromkeys(got)) == sent
    await until_found(are_ends_known)
    assert ends.keys() == {0}
    assert len(sent) <= ends[0] <= len(appended)
    await reader.close(TIMEOUT)
    await writer.close(TIMEOUT)
    await admin.close()


async def test_a_wrong_client_secret_is_told_soon(world: World) -> None:
    wrong = {**world.issuer.secret, "sasl.oauthbearer.client.secret": "wrong"}
    told = await refusal(world, wrong)
    assert "authentication failed: Failed to acquire SASL OAUTHBEARER token" in told
    assert "invalid_client" in told, "OAuth's own code"


async def test_an_endpoint_that_nobody_serves_is_told_soon(world: World) -> None:
    away = {**world.issuer.secret, "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/t"}
    told = await refusal(world, away)
    assert "127.0.0.1:1" in told
    assert "connect" in told.lower()


async def test_a_token_that_kafka_does_not_trust_is_told_soon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    monkeypatch.setattr(world.issuer, "key", another)
    assert "authentication failed" in await refusal(world, world.issuer.secret)


async def refusal(world: World, secret: Mapping[str, str]) -> str:
    """What the operator's client says of this Secret."""
    configuration: dict[str, Any] = {
        **KafkaConnection(world.bootstrap_servers, secret).for_librdkafka(),
    }
    admin = KafkaAdmin(configuration, request_timeout=TIMEOUT)
    with pytest.raises(LogError) as caught:
        async with asyncio.timeout(TIMEOUT):
            await admin.cluster_id()
    await admin.close()
    assert "never-shown" not in str(caught.value)
    return str(caught.value)


async def test_the_jobs_reach_it_by_both_of_their_clients(world: World, tmp_path: Path) -> None:
    """Spark's Kafka client is Java's; here it is the one of Kafka's own command."""
    secret = world.issuer.secret
    client = KafkaClient(KafkaConnection(world.bootstrap_servers, secret))
    await asyncio.to_thread(client.connect)
    properties = tmp_path / "client.properties"
    properties.write_text(
        "".join(f"{key}={value}\n" for key, value in for_java(secret).items()).replace("\\", "\\\\")
    )
    command = [
        str(world.distribution.java), f"{ALLOWED_URLS}={world.issuer.endpoint}",
        "-cp", world.distribution.class_path,
        "kafka.admin.ConfigCommand", "--bootstrap-server", world.bootstrap_servers,
        "--command-config", str(properties), "--describe", "--entity-type", "brokers",
        "--entity-name", "1",
    ]  # fmt: skip
    run = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Dynamic configs for broker 1 are" in run.stdout
