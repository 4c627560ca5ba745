"""Parses contract records, and picks the Ingresses that a receiver serves: all, or one."""

from __future__ import annotations

from knafka.clients.kafka.kafka_connection import side_settings
from knafka.core.contract import Ingress
from knafka.core.documents import parse_json
from knafka.core.errors import InvalidDocument


class IngressEntryParser:
    """A `contract_topic.EntryParser` of Ingresses; a record's key is the Ingress's path."""

    def __init__(self, path: str | None = None) -> None:
        """`path`: the path of the only Ingress to serve; None: all are served."""
        self._path = path

    def entry_of(self, key: str, value: bytes) -> Ingress | None:
        """Parse a contract record: `key` is an Ingress's path, `value` the Ingress as JSON. Returns
        the Ingress, or None if this receiver serves only another path. Raises `InvalidDocument`,
        also for a producer setting that isn't allowed."""
        if self._path is not None and key != self._path:
            return None
        ingress = parse_json(Ingress, value.decode())
        if ingress.path != key:
            raise InvalidDocument("broker", f"its path is {ingress.path}: want that of its key")
        side_settings(ingress.kafka, "producer")  # raises for settings that aren't allowed
        return ingress

    def concerns(self, value: bytes) -> bool:
        """Return True: an invalid record always concerns this receiver, as `entry_of` raises
        `InvalidDocument` only for paths that this receiver serves."""
        return True
