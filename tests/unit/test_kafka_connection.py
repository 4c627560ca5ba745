"""How to reach Kafka: the Secret's keys (spec/naming.md) as librdkafka's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from knafka.clients.kafka.kafka_connection import (
    connection_configuration,
    consumer_configuration,
    producer_configuration,
)
from knafka.core.contract import Kafka
from knafka.core.errors import InvalidDocument

SASL = {"user": "u", "password": "p"}
SASL_CONFIGURATION = {
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": "p",
}


def mounted(folder: Path, secret: Mapping[str, str | bytes]) -> Kafka:
    """As Kubernetes mounts a Secret: each key a link into a folder that can be swapped."""
    data = folder / "..2024_01_01"
    data.mkdir()
    (folder / "..data").symlink_to(data)
    for key, value in secret.items():
        (data / key).write_bytes(value if isinstance(value, bytes) else value.encode())
        (folder / key).symlink_to(Path("..data") / key)
    return Kafka(bootstrap_servers="k:9092", secret_path=str(folder))


def test_without_a_secret_it_is_plaintext() -> None:
    assert connection_configuration(Kafka(bootstrap_servers="k:9092")) == {
        "bootstrap.servers": "k:9092"
    }


@pytest.mark.parametrize("servers", [" a:1 , b:2", "a:1,b:2,", ",a:1,,b:2"])
def test_the_servers_are_trimmed(servers: str) -> None:
    found = connection_configuration(Kafka(bootstrap_servers=servers))["bootstrap.servers"]
    assert found == "a:1,b:2"


@pytest.mark.parametrize("servers", [" ", ",", " , "])
def test_no_servers_are_refused(servers: str) -> None:
    with pytest.raises(InvalidDocument, match="bootstrapServers"):
        connection_configuration(Kafka(bootstrap_servers=servers))


@pytest.mark.parametrize(
    ("secret", "configuration"),
    [
        ({"protocol": "PLAINTEXT"}, {"security.protocol": "plaintext"}),
        (
            {"protocol": "SASL_PLAINTEXT", **SASL},
            {"security.protocol": "sasl_plaintext", **SASL_CONFIGURATION},
        ),
        (
            {"protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "ca.crt": "CA", **SASL},
            {
                "security.protocol": "sasl_ssl",
                **SASL_CONFIGURATION,
                "sasl.mechanism": "SCRAM-SHA-512",
                "ssl.ca.pem": "CA",
            },
        ),
        # Without ca.crt the system's roots are trusted: librdkafka's default.
        (
            {"protocol": "SASL_SSL", **SASL},
            {"security.protocol": "sasl_ssl", **SASL_CONFIGURATION},
        ),
        (
            {"protocol": "SSL", "ca.crt": "CA", "user.crt": "CERT", "user.key": "KEY"},
            {
                "security.protocol": "ssl",
                "ssl.ca.pem": "CA",
                "ssl.certificate.pem": "CERT",
                "ssl.key.pem": "KEY",
            },
        ),
        (
            {"protocol": "SSL", "ca.crt": "CA", "user.skip": "true"},
            {"security.protocol": "ssl", "ssl.ca.pem": "CA"},
        ),
    ],
    ids=lambda each: each.get("protocol", ""),
)
def test_a_secret_becomes_librdkafkas_configuration(
    tmp_path: Path, secret: dict[str, str], configuration: dict[str, str]
) -> None:
    found = connection_configuration(mounted(tmp_path, secret))
    assert found == {"bootstrap.servers": "k:9092", **configuration}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_every_mechanism_of_upstream_but_oauth_is_known(tmp_path: Path, mechanism: str) -> None:
    secret = {"protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, **SASL}
    assert connection_configuration(mounted(tmp_path, secret))["sasl.mechanism"] == mechanism


@pytest.mark.parametrize(
    ("secret", "told"),
    [
        ({}, "protocol: invalid value: '': want one of PLAINTEXT"),
        ({"protocol": "ssl"}, "protocol: invalid value: 'ssl'"),
        ({"protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", **SASL}, "sasl.mechanism"),
        ({"protocol": "SASL_SSL", "password": "p"}, "user: missing"),
        ({"protocol": "SASL_SSL", "user": "u"}, "password: missing"),
        ({"protocol": "SSL", "user.key": "KEY"}, "user.crt: missing"),
        ({"protocol": "SSL", "user.crt": "CERT"}, "user.key: missing"),
        ({"protocol": "SSL", "user.skip": "false"}, "user.crt: missing"),
    ],
)
def test_a_secret_that_can_not_work_is_told_by_its_key(
    tmp_path: Path, secret: dict[str, str], told: str
) -> None:
    with pytest.raises(InvalidDocument) as raised:
        connection_configuration(mounted(tmp_path, secret))
    assert told in str(raised.value)


def test_no_value_of_a_secret_is_told(tmp_path: Path) -> None:
    secret = {"protocol": "SASL_SSL", "sasl.mechanism": "x", "user": "u", "password": "hidden"}
    with pytest.raises(InvalidDocument) as raised:
        connection_configuration(mounted(tmp_path, secret))
    assert "hidden" not in str(raised.value)


def test_line_ends_around_a_value_are_not_part_of_it(tmp_path: Path) -> None:
    """`echo password | base64` is how many Secrets come to be."""
    secret = {"protocol": "SASL_PLAINTEXT\n", "user": "u\n", "password": "p\r\n"}
    assert connection_configuration(mounted(tmp_path, secret))["sasl.password"] == "p"


def test_keystores_in_the_same_secret_do_no_harm(tmp_path: Path) -> None:
    secret: dict[str, str | bytes] = {"protocol": "PLAINTEXT", "user.p12": b"\x30\x82\xff\xfe\x00"}
    assert connection_configuration(mounted(tmp_path, secret))["security.protocol"] == "plaintext"


def test_a_secret_that_is_not_mounted_is_told(tmp_path: Path) -> None:
    missing = Kafka(bootstrap_servers="k:9092", secret_path=str(tmp_path / "nowhere"))
    with pytest.raises(InvalidDocument, match="secretPath: the Secret can't be read"):
        connection_configuration(missing)


SET = Kafka(
    bootstrap_servers="k:9092",
    consumer={"client.rack": "a", "fetch.max.wait.ms": "100"},
    producer={"compression.type": "lz4"},
)


@pytest.mark.conformance("BUS-34")
def test_what_is_set_reaches_the_clients_of_its_side_only() -> None:
    plain = {"bootstrap.servers": "k:9092"}
    assert connection_configuration(SET) == plain, "what an admin client gets"
    assert consumer_configuration(SET) == {**plain, "client.rack": "a", "fetch.wait.max.ms": "100"}
    assert producer_configuration(SET) == {**plain, "compression.codec": "lz4"}


def test_a_contract_that_sets_what_nobody_may_is_refused() -> None:
    broken = SET.model_copy(update={"producer": {"acks": "0"}})
    with pytest.raises(InvalidDocument, match=r"producer\.acks: can't be set"):
        producer_configuration(broken)


@pytest.mark.parametrize(
    ("protocol", "secret", "configuration"),
    [
        ("SSL", {"ca.crt": "CA"}, {"security.protocol": "ssl", "ssl.ca.pem": "CA"}),
        ("SASL_PLAINTEXT", SASL, {"security.protocol": "sasl_plaintext", **SASL_CONFIGURATION}),
        (
            "SSL",
            {"user.crt": "C", "user.key": "K"},
            {
                "security.protocol": "ssl",
                "ssl.certificate.pem": "C",
                "ssl.key.pem": "K",
            },
        ),
    ],
    ids=["an authority alone", "a user", "a client's certificate"],
)
def test_a_source_declares_how_it_connects_and_its_secrets_need_not(
    tmp_path: Path, protocol: str, secret: Mapping[str, str], configuration: Mapping[str, str]
) -> None:
    kafka = mounted(tmp_path, secret).model_copy(update={"protocol": protocol})
    assert connection_configuration(kafka) == {"bootstrap.servers": "k:9092", **configuration}


def test_a_source_may_encrypt_without_any_secret() -> None:
    kafka = Kafka(bootstrap_servers="k:9092", protocol="SSL")
    assert connection_configuration(kafka) == {
        "bootstrap.servers": "k:9092",
        "security.protocol": "ssl",
    }
