"""Converts the Secret for Kafka into the configuration of librdkafka and of Java clients.

The Secret's keys are upstream's (spec/naming.md, Secret keys), or those of upstream's older
Secrets, which name no protocol. For a Secret that can't work, `InvalidDocument` is raised. Not
here: tokens (`kafka_oauth`), and reading the Secret.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from knafka.core.errors import InvalidDocument
from knafka.core.kafka_settings import kafka_oauth
from knafka.core.kafka_settings.kafka_oauth import OAUTHBEARER, quote_for_jaas

PROTOCOLS: Final = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)

_JAVA_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""Java's login module for each mechanism with a password."""

_OTHER_KEY_FORMAT: Final = re.compile("-----BEGIN ((?:RSA|EC|DSA|ENCRYPTED) PRIVATE KEY)-----")
"""Finds the beginning of a private key that isn't PKCS#8 without a passphrase."""


def for_librdkafka(secret: Mapping[str, str]) -> dict[str, str]:
    """Return the security part of librdkafka's configuration for the Secret's keys: protocol, login
    and certificates. Raises `InvalidDocument`."""
    secret = _with_current_keys(secret)
    protocol = _protocol(secret)
    configuration = {"security.protocol": protocol.lower()}
    if protocol.startswith("SASL"):
        mechanism = _mechanism(secret)
        if mechanism == OAUTHBEARER:
            kafka_oauth.check_protocol(secret, protocol)
            configuration |= kafka_oauth.for_librdkafka(secret)
        else:
            configuration["sasl.mechanism"] = mechanism
            configuration["sasl.username"] = _required_value(secret, "user")
            configuration["sasl.password"] = _required_value(secret, "password")
    if protocol.endswith("SSL"):
        if authority := secret.get("ca.crt"):
            configuration["ssl.ca.pem"] = authority
        if _has_certificate(secret):
            configuration["ssl.certificate.pem"] = _required_value(secret, "user.crt")
            configuration["ssl.key.pem"] = _client_key(secret)
    return configuration


def with_protocol(values: Mapping[str, str], protocol: str) -> dict[str, str]:
    """Return a Secret's `values` with a protocol that was declared elsewhere, such as in a
    KafkaSource. If the Secret has no client certificate, `user.skip` is added, which says so."""
    certificate_flag = {} if values.get("user.crt") else {"user.skip": "true"}
    return {**values, **certificate_flag, "protocol": protocol}


def for_java(secret: Mapping[str, str]) -> dict[str, str]:
    """Return the security part of a Java client's configuration for the Secret's keys, with inline
    certificates. Raises `InvalidDocument`."""
    secret = _with_current_keys(secret)
    protocol = _protocol(secret)
    configuration = {"security.protocol": protocol}
    if protocol.startswith("SASL"):
        mechanism = _mechanism(secret)
        if mechanism == OAUTHBEARER:
            kafka_oauth.check_protocol(secret, protocol)
            configuration |= kafka_oauth.for_java(secret)
        else:
            user, password = _required_value(secret, "user"), _required_value(secret, "password")
            configuration["sasl.mechanism"] = mechanism
            configuration["sasl.jaas.config"] = (
                f"{_JAVA_MODULES[mechanism]} required "
                f"username={quote_for_jaas(user)} password={quote_for_jaas(password)};"
            )
    if protocol.endswith("SSL"):
        if authority := secret.get("ca.crt"):
            configuration["ssl.truststore.type"] = "PEM"
            configuration["ssl.truststore.certificates"] = authority
        if _has_certificate(secret):
            configuration["ssl.keystore.type"] = "PEM"
            configuration["ssl.keystore.certificate.chain"] = _required_value(secret, "user.crt")
            configuration["ssl.keystore.key"] = _client_key(secret)
    return configuration


def _with_current_keys(secret: Mapping[str, str]) -> Mapping[str, str]:
    """Return the Secret with the keys that this module reads: the keys of upstream's older Secrets
    are renamed, and a protocol is inferred for such a Secret. Raises `InvalidDocument` if its
    `tls.enabled` is no Boolean."""
    values = dict(secret)
    mechanism = secret.get("saslType") or secret.get("sasltype")
    if mechanism and not secret.get("sasl.mechanism"):
        values["sasl.mechanism"] = mechanism
    if (user := secret.get("username")) and not secret.get("user"):
        values["user"] = user
    is_old = any(secret.get(key) for key in ("username", "saslType", "sasltype", "tls.enabled"))
    if is_old and not secret.get("protocol"):
        has_password = values.get("user") and values.get("password")
        is_encrypted = secret.get("ca.crt") or _boolean_value(secret, "tls.enabled")
        transport = "SSL" if is_encrypted else "PLAINTEXT"
        values["protocol"] = f"SASL_{transport}" if has_password else transport
        if not secret.get("user.key"):
            values["user.skip"] = "true"  # there is no client certificate
    return values


def _boolean_value(secret: Mapping[str, str], key: str) -> bool:
    """Return the Boolean at this key of the Secret; False if the key is missing or empty. Raises
    `InvalidDocument` for a value other than true and false (in upper or lower case)."""
    value = secret.get(key) or "false"
    if value.lower() not in ("true", "false"):
        raise InvalidDocument(key, f"invalid value: {value:.20}: want true or false")
    return value.lower() == "true"


def _protocol(secret: Mapping[str, str]) -> str:
    """Return the security protocol that the Secret names. Raises `InvalidDocument` if it is missing
    or unknown."""
    return _check_one_of(PROTOCOLS, "protocol", secret.get("protocol", ""))


def _mechanism(secret: Mapping[str, str]) -> str:
    """Return the SASL mechanism that the Secret names; PLAIN if it names none. Raises
    `InvalidDocument` for an unknown mechanism."""
    return _check_one_of(MECHANISMS, "sasl.mechanism", secret.get("sasl.mechanism", "PLAIN"))


def _check_one_of(allowed: Collection[str], key: str, value: str) -> str:
    """Return the value of the Secret's key `key` unchanged. Raises `InvalidDocument` if it isn't
    one of `allowed`."""
    if value not in allowed:
        raise InvalidDocument(key, f"invalid value: {value!r}: want one of {', '.join(allowed)}")
    return value


def _has_certificate(secret: Mapping[str, str]) -> bool:
    """Whether a client authenticates by the certificate in the Secret. It does if the protocol is
    SSL (not SASL_SSL), and `user.skip` isn't true."""
    return secret.get("protocol") == "SSL" and not _boolean_value(secret, "user.skip")


def _client_key(secret: Mapping[str, str]) -> str:
    """Return the client's private key. Raises `InvalidDocument` if it is missing, or isn't PKCS#8
    without a passphrase, the only format that Java reads."""
    key = _required_value(secret, "user.key")
    if other_format := _OTHER_KEY_FORMAT.search(key):
        raise InvalidDocument(
            "user.key",
            f"{other_format[1]} is not PKCS#8 without a passphrase: "
            "`openssl pkcs8 -topk8 -nocrypt` makes it so",
        )
    return key


def _required_value(secret: Mapping[str, str], key: str) -> str:
    """Return this key's value in the Secret. Raises `InvalidDocument` if it is missing or empty."""
    if not (value := secret.get(key)):
        raise InvalidDocument(key, "missing in the Secret for Kafka")
    return value
