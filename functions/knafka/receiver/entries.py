"""Parses contract records, and picks the Ingresses that a receiver serves: all, or one."""

from __future__ import annotations

from dataclasses import replace

from knafka.clients.kafka.kafka_connection import side_settings
from knafka.contract_topic import Contract
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


def refuse_if_missing(path: str | None, current: Contract[Ingress]) -> Contract[Ingress]:
    """Return the contract `current`; if it lacks `path`, the only one that this receiver serves
    (None: it serves all), with that path as refused. The receiver runs because the path is
    declared, so somebody has deleted the contract's topic, or Kafka has lost it: the answer must be
    503, not a 404 that says that the path isn't declared."""
    if path is None or path in current.entries or path in current.refused:
        return current
    return replace(current, refused={**current.refused, path: "it isn't there"})
