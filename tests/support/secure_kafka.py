"""A Kafka that wants to know who asks: one listener for each kind of security, and its Secrets.

    async with running(distribution, directory) as kafka:
        kafka.bootstrap("SSL"), kafka.secret("SSL")

The Secrets have the keys of spec/naming.md. Its certificates are its own and live for a day.
`kafka.access()` is what another process has to know of it.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID
from support.kafka import NEVER_KILLED

from knafka.core.contract import Kafka
from knafka_client.sockets import HOST
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer

USER: Final = "knafka"
PASSWORD: Final = 'p"a\\s$never-shown'
"""What a careless quoting would break, with a part that would be found wherever it leaked."""
NOBODY: Final = "nobody"
"""A user, with the same password, who may do nothing until somebody allows it; PLAIN only."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_LISTENERS: Final[Mapping[str, str]] = {
    "PASSWORD": "SASL_PLAINTEXT",
    "PASSWORDTLS": "SASL_SSL",
    "MUTUAL": "SSL",
    "SERVERONLY": "SSL",
}
_KINDS: Final[Mapping[str, str]] = {
    "PLAINTEXT": "CLIENTS",
    "PLAIN": "PASSWORD",
    "SCRAM-SHA-256": "PASSWORD",
    "SCRAM-SHA-512": "PASSWORD",
    "SASL_SSL": "PASSWORDTLS",
    "SSL": "MUTUAL",
    "SSL user.skip": "SERVERONLY",
}
KINDS: Final = tuple(kind for kind in _KINDS if kind != "PLAINTEXT")
"""Of security; SASL_SSL is with SCRAM-SHA-512."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Both as PEM; the key is PKCS#8."""

    certificate: str
    key: str


class Authority:
    """A CA of its own."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self.certificate = _pem(builder.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, host: str | None = None) -> Certificate:
        """For a client, or for the server at `host`, an IP address."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._name, key)
        if host is not None:
            address = x509.IPAddress(ipaddress.ip_address(host))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), False)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return Certificate(_pem(builder.sign(self._key, hashes.SHA256())), private)


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """How to reach a running Kafka by each kind of security, from whatever process."""

    addresses: Mapping[str, str]
    """`host:port` by kind."""
    secrets: Mapping[str, Mapping[str, str]]

    def bootstrap(self, kind: str) -> str:
        """`host:port` of the listener for this kind of security."""
        return self.addresses[kind]

    def secret(self, kind: str) -> Mapping[str, str]:
        """What a user would put into the Secret."""
        return self.secrets[kind]


class SecureKafka:
    """A node, as soon as it was started, and how to reach it by each kind of security."""

    def __init__(self, distribution: KafkaDistribution, directory: Path, host: str = HOST) -> None:
        self._authority = Authority("the tests' Kafka")
        self._client = self._authority.issue(USER)
        self.server = KafkaServer(
            distribution,
            directory,
            host=host,
            listeners=_LISTENERS,
            properties={**NEVER_KILLED, **_properties(self._authority, host)},
            format_arguments=[
                f"--add-scram={mechanism}=[name={USER},password={PASSWORD}]"
                for mechanism in MECHANISMS
                if mechanism != "PLAIN"
            ],
        )

    def bootstrap(self, kind: str) -> str:
        """`host:port` of the listener for this kind of security."""
        return self.server.address(_KINDS[kind])

    def secret(self, kind: str) -> dict[str, str]:
        """What a user would put into the Secret."""
        listener = _KINDS[kind]
        found = {"protocol": _LISTENERS.get(listener, "PLAINTEXT")}
        if "SASL" in found["protocol"]:
            mechanism = "SCRAM-SHA-512" if kind == "SASL_SSL" else kind
            found |= {"sasl.mechanism": mechanism, "user": USER, "password": PASSWORD}
        if "SSL" in found["protocol"]:
            found["ca.crt"] = self._authority.certificate
        if listener == "MUTUAL":
            found |= {"user.crt": self._client.certificate, "user.key": self._client.key}
        if listener == "SERVERONLY":
            found["user.skip"] = "true"
        return found

    def access(self) -> KafkaAccess:
        """What another process has to know; only once it is started."""
        return KafkaAccess(
            {kind: self.bootstrap(kind) for kind in _KINDS},
            {kind: self.secret(kind) for kind in _KINDS},
        )

    def mounted(self, kind: str, folder: Path, **changed: str | None) -> Kafka:
        """How the contract tells it, the Secret mounted in `folder`.

        `changed` are other values (None: none) of its keys, whose dots are written as `_`.
        """
        secret: dict[str, str | None] = {**self.secret(kind)}
        secret |= {key.replace("_", "."): value for key, value in changed.items()}
        folder.mkdir()
        for key, value in secret.items():
            if value is not None:
                (folder / key).write_text(value)
        return Kafka(bootstrap_servers=self.bootstrap(kind), secret_path=str(folder))


@asynccontextmanager
async def running(
    distribution: KafkaDistribution, directory: Path, host: str = HOST
) -> AsyncIterator[SecureKafka]:
    """Started, and stopped at the end."""
    kafka = SecureKafka(distribution, directory, host)
    await kafka.server.start()
    try:
        yield kafka
    finally:
        await kafka.server.stop()


def _properties(authority: Authority, host: str) -> dict[str, str]:
    own = authority.issue("kafka", host)
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER};User:CN={USER}",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": own.certificate,
        "ssl.keystore.key": own.key,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.certificate,
        "listener.name.mutual.ssl.client.auth": "required",
    }
    logins = {mechanism: f"{scram} required;" for mechanism in MECHANISMS}
    users = " ".join(f'user_{user}="{quoted}"' for user in (USER, NOBODY))
    logins["PLAIN"] = f"{plain} required {users};"
    for listener in ("password", "passwordtls"):
        for mechanism, login in logins.items():
            key = f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"
            properties[key] = login
    return properties


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
