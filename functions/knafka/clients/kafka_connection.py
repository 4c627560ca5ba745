"""How to reach Kafka: from the contract and a mounted Secret to librdkafka's configuration.

The Secret's keys are upstream's (spec/naming.md, Secret keys). Refused here: reading a Secret from
the API server. It is a folder of files, as Kubernetes mounts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from knafka.core.contract import Kafka
from knafka.core.errors import InvalidDocument

PROTOCOLS: Final = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def connection(kafka: Kafka) -> dict[str, Any]:
    """librdkafka's configuration; raises `InvalidDocument` for a Secret that can't work."""
    servers = ",".join(each.strip() for each in kafka.bootstrap_servers.split(",") if each.strip())
    configuration: dict[str, Any] = {"bootstrap.servers": servers}
    if kafka.secret_path is not None:
        configuration.update(security(_read(Path(kafka.secret_path))))
    return configuration


def security(secret: Mapping[str, str]) -> dict[str, str]:
    """The security part, from a Secret's values by key."""
    protocol = secret.get("protocol", "")
    if protocol not in PROTOCOLS:
        raise InvalidDocument(
            "protocol", f"invalid value: {protocol!r}: want one of {', '.join(PROTOCOLS)}"
        )
    configuration = {"security.protocol": protocol.lower()}
    if protocol.startswith("SASL"):
        mechanism = secret.get("sasl.mechanism", "PLAIN")
        if mechanism not in MECHANISMS:
            raise InvalidDocument(
                "sasl.mechanism",
                f"invalid value: {mechanism!r}: want one of {', '.join(MECHANISMS)}",
            )
        configuration["sasl.mechanism"] = mechanism
        configuration["sasl.username"] = _present(secret, "user")
        configuration["sasl.password"] = _present(secret, "password")
    if protocol.endswith("SSL"):
        if authority := secret.get("ca.crt"):
            configuration["ssl.ca.pem"] = authority
        if protocol == "SSL" and secret.get("user.skip") != "true":
            configuration["ssl.certificate.pem"] = _present(secret, "user.crt")
            configuration["ssl.key.pem"] = _present(secret, "user.key")
    return configuration


def _present(secret: Mapping[str, str], key: str) -> str:
    if not (value := secret.get(key)):
        raise InvalidDocument(key, "missing in the Secret for Kafka")
    return value


def _read(folder: Path) -> dict[str, str]:
    try:
        files = [each for each in folder.iterdir() if each.is_file()]
        return {each.name: each.read_text().strip() for each in files}
    except OSError as error:
        raise InvalidDocument("secretPath", f"the Secret can't be read: {error}") from error
