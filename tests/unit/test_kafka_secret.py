"""The Secret for Kafka, as librdkafka and as a Java client are told of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from knafka.core.errors import InvalidDocument
from knafka.core.kafka_secret import for_java, for_librdkafka

SCRAM = {
    "protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "user": "me",
    "password": 'p"\\',
    "ca.crt": "CA",
}
MUTUAL = {"protocol": "SSL", "ca.crt": "CA", "user.crt": "CERT", "user.key": "KEY"}


def test_a_password_and_an_authority() -> None:
    assert for_librdkafka(SCRAM) == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": 'p"\\',
        "ssl.ca.pem": "CA",
    }
    assert for_java(SCRAM) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="p\\"\\\\";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "CA",
    }


def test_certificates_of_both_sides() -> None:
    assert for_librdkafka(MUTUAL) == {
        "security.protocol": "ssl",
        "ssl.ca.pem": "CA",
        "ssl.certificate.pem": "CERT",
        "ssl.key.pem": "KEY",
    }
    assert for_java(MUTUAL) == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "CA",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "CERT",
        "ssl.keystore.key": "KEY",
    }


@pytest.mark.parametrize("told", [for_librdkafka, for_java])
def test_without_a_client_certificate_the_system_trusts_for_us(
    told: Callable[[dict[str, str]], dict[str, str]],
) -> None:
    """spec/naming.md: `user.skip`, and `ca.crt` absent means the system's roots."""
    assert told({"protocol": "SSL", "user.skip": "true"}).keys() == {"security.protocol"}
    assert told({"protocol": "PLAINTEXT"}).keys() == {"security.protocol"}


def test_plain_is_the_default_mechanism() -> None:
    secret = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "p"}
    assert for_librdkafka(secret)["sasl.mechanism"] == "PLAIN"
    assert "PlainLoginModule" in for_java(secret)["sasl.jaas.config"]


@pytest.mark.parametrize("told", [for_librdkafka, for_java])
@pytest.mark.parametrize(
    ("secret", "path"),
    [
        ({}, "protocol"),
        ({"protocol": "ssl"}, "protocol"),
        ({**SCRAM, "sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism"),
        ({**SCRAM, "user": ""}, "user"),
        ({**SCRAM, "password": ""}, "password"),
        ({**MUTUAL, "user.key": ""}, "user.key"),
        ({**MUTUAL, "user.crt": ""}, "user.crt"),
    ],
    ids=str,
)
def test_a_secret_that_cannot_work_says_which_key_is_wrong(
    told: Callable[[dict[str, str]], dict[str, str]], secret: dict[str, str], path: str
) -> None:
    with pytest.raises(InvalidDocument) as caught:
        told(secret)
    assert caught.value.path == path
