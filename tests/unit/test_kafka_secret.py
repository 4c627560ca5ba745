"""The Secret for Kafka, as librdkafka and as a Java client are told of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from knafka.core.errors import InvalidDocument
from knafka.core.kafka_settings.kafka_secret import for_java, for_librdkafka

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
        ({**SCRAM, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
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


@pytest.mark.parametrize("told", [for_librdkafka, for_java])
@pytest.mark.parametrize("kind", ["RSA", "EC", "ENCRYPTED"])
def test_a_key_that_is_not_plain_pkcs8_is_refused_with_the_way_out(
    told: Callable[[dict[str, str]], dict[str, str]], kind: str
) -> None:
    """As upstream: librdkafka reads PKCS#1, but Java does not, and both use the one Secret."""
    key = f"-----BEGIN {kind} PRIVATE KEY-----\nMII\n-----END {kind} PRIVATE KEY-----"
    with pytest.raises(InvalidDocument) as caught:
        told({**MUTUAL, "user.key": key})
    assert caught.value.path == "user.key"
    assert f"{kind} PRIVATE KEY is not PKCS#8 without a passphrase" in caught.value.problem
    assert "openssl pkcs8 -topk8 -nocrypt" in caught.value.problem
    assert "MII" not in str(caught.value)


def test_a_pkcs8_key_is_taken_with_whatever_openssl_wrote_around_it() -> None:
    key = "Bag Attributes\n-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----"
    assert for_librdkafka({**MUTUAL, "user.key": key})["ssl.key.pem"] == key


LEGACY_LOGIN = {"username": "me", "password": "p"}
LOGIN = {"user": "me", "password": "p"}


@pytest.mark.parametrize(
    ("legacy", "today"),
    [
        (LEGACY_LOGIN, {"protocol": "SASL_PLAINTEXT", **LOGIN}),
        (
            {**LEGACY_LOGIN, "saslType": "SCRAM-SHA-512", "ca.crt": "CA"},
            {"protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "ca.crt": "CA", **LOGIN},
        ),
        (
            {**LOGIN, "sasltype": "SCRAM-SHA-256", "tls.enabled": "true"},
            {"protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", **LOGIN},
        ),
        (
            {**LOGIN, "sasltype": "PLAIN", "saslType": "SCRAM-SHA-256", "tls.enabled": "false"},
            {"protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", **LOGIN},
        ),
        (
            {**LEGACY_LOGIN, **LOGIN, "user": "preferred"},
            {"protocol": "SASL_PLAINTEXT", **LOGIN, "user": "preferred"},
        ),
        ({"tls.enabled": "True"}, {"protocol": "SSL", "user.skip": "true"}),
        ({"tls.enabled": "true", **MUTUAL, "protocol": ""}, MUTUAL),
        ({"tls.enabled": "false"}, {"protocol": "PLAINTEXT"}),
        # Today's keys, where they are, are meant.
        ({**SCRAM, "saslType": "PLAIN", "username": "x", "tls.enabled": "false"}, SCRAM),
        ({"protocol": "SASL_PLAINTEXT", **LEGACY_LOGIN}, {"protocol": "SASL_PLAINTEXT", **LOGIN}),
    ],
    ids=str,
)
def test_an_older_secret_means_what_it_meant(legacy: dict[str, str], today: dict[str, str]) -> None:
    """spec/naming.md, Secret keys: legacy."""
    assert for_librdkafka(legacy) == for_librdkafka(today)
    assert for_java(legacy) == for_java(today)


@pytest.mark.parametrize("key", ["tls.enabled", "user.skip"])
def test_a_flag_is_true_or_false(key: str) -> None:
    secret = {"protocol": "" if key == "tls.enabled" else "SSL", key: "maybe"}
    with pytest.raises(InvalidDocument, match=f"{key}: invalid value: maybe"):
        for_librdkafka(secret)
