"""How the jobs reach Kafka: its addresses and credentials, for librdkafka and for Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knafka.core.errors import InvalidDocument
from knafka.core.kafka_settings.kafka_secret import for_java, for_librdkafka
from knafka.tokens import with_tokens


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Addresses and credentials of Kafka, for librdkafka and for Spark's Kafka source."""

    bootstrap_servers: str
    secret: Mapping[str, str] | None = None
    """The Secret's values by key; None: plaintext without authentication."""

    @classmethod
    def from_folder(cls, bootstrap_servers: str, secret: Path | None) -> KafkaConnection:
        """Return the connection to these addresses with the Secret that is mounted at the folder
        `secret`; None: in plaintext, without authentication. Raises `InvalidDocument` if the folder
        can't be read."""
        if secret is None:
            return cls(bootstrap_servers)
        try:
            files = [file for file in secret.iterdir() if file.is_file()]
            values = {file.name: file.read_text(errors="replace").strip() for file in files}
        except OSError as error:
            raise InvalidDocument("secret", f"the Secret can't be read: {error}") from error
        return cls(bootstrap_servers, values)

    def for_librdkafka(self) -> dict[str, Any]:
        """Return the configuration of a client of librdkafka. Raises `InvalidDocument` if the
        Secret can't be used."""
        security = {} if self.secret is None else for_librdkafka(self.secret)
        return with_tokens(
            {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, **security}
        )

    def for_spark(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source, which reads only committed records."""
        security = {} if self.secret is None else for_java(self.secret)
        configuration = {
            "bootstrap.servers": self.bootstrap_servers,
            "isolation.level": "read_committed",
            **security,
        }
        return {f"kafka.{key}": value for key, value in configuration.items()}
