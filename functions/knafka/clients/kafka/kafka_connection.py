"""Builds librdkafka's configuration from the contract and a mounted Secret.

The Secret is read from a folder of files, as Kubernetes mounts it, never from the API server. Not
here: the meaning of its entries (`core.kafka_settings.kafka_secret`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from knafka.core.contract import Kafka
from knafka.core.errors import InvalidDocument
from knafka.core.kafka_settings.client_settings import check_setting
from knafka.core.kafka_settings.client_settings import for_librdkafka as settings_for_librdkafka
from knafka.core.kafka_settings.kafka_secret import for_librdkafka, with_protocol


def connection_configuration(kafka: Kafka) -> dict[str, Any]:
    """Return librdkafka's configuration that connects to this Kafka. Raises `InvalidDocument` if no
    server is named, or the Secret can't be read or used."""
    servers = ",".join(
        server.strip() for server in kafka.bootstrap_servers.split(",") if server.strip()
    )
    if not servers:
        raise InvalidDocument("bootstrapServers", "want at least one host:port")
    configuration: dict[str, Any] = {"bootstrap.servers": servers}
    secret = None if kafka.secret_path is None else _read_secret(Path(kafka.secret_path))
    if kafka.protocol is not None:
        secret = with_protocol(secret or {}, kafka.protocol)
    if secret is not None:
        configuration.update(for_librdkafka(secret))
    return configuration


def consumer_configuration(kafka: Kafka) -> dict[str, Any]:
    """Return the configuration of a consumer, with its declared settings. Raises
    `InvalidDocument`."""
    return {**connection_configuration(kafka), **side_settings(kafka, "consumer")}


def producer_configuration(kafka: Kafka) -> dict[str, Any]:
    """Return the configuration of a producer, with its declared settings. Raises
    `InvalidDocument`."""
    return {**connection_configuration(kafka), **side_settings(kafka, "producer")}


def side_settings(kafka: Kafka, side: Literal["consumer", "producer"]) -> dict[str, str]:
    """Return the settings that are declared for consumers or for producers (`side`), under
    librdkafka's names. Raises `InvalidDocument` for a setting that isn't allowed."""
    declared = kafka.consumer if side == "consumer" else kafka.producer
    return settings_for_librdkafka(
        {
            name: check_setting(side, name, value, f"{side}.{name}")
            for name, value in declared.items()
        }
    )


def _read_secret(folder: Path) -> dict[str, str]:
    """Return the texts of a mounted Secret's files, by file name. Raises `InvalidDocument` if they
    can't be read."""
    try:
        files = [path for path in folder.iterdir() if path.is_file()]
        # The Secret may also hold other tools' keystores, which are binary and not used here.
        return {path.name: path.read_text(errors="replace").strip() for path in files}
    except OSError as error:
        raise InvalidDocument("secretPath", f"the Secret can't be read: {error}") from error
