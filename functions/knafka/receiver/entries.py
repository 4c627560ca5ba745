"""What a receiver serves of the topic that it follows: all Ingresses that stand there, or one."""

from __future__ import annotations

from knafka.clients.kafka_connection import settings
from knafka.core.contract import Ingress
from knafka.core.documents import parse_json
from knafka.core.errors import InvalidDocument


class IngressEntries:
    """`contract_topic.Entries`, by path."""

    def __init__(self, path: str | None = None) -> None:
        """`path`: of the only one that is served."""
        self._path = path

    def entry_of(self, key: str, value: bytes) -> Ingress | None:
        if self._path is not None and key != self._path:
            return None
        ingress = parse_json(Ingress, value.decode())
        if ingress.path != key:
            raise InvalidDocument("broker", f"its path is {ingress.path}: want that of its key")
        settings(ingress.kafka, "producer")
        return ingress

    def concerns(self, value: bytes) -> bool:
        """Whether it is refused or not, every record that is read is for this receiver."""
        return True
