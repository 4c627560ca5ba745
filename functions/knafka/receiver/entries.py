"""What a receiver serves of the topic that it follows: all Ingresses that stand there."""

from __future__ import annotations

from knafka.core.contract import Ingress
from knafka.core.documents import parse_json
from knafka.core.errors import InvalidDocument


class IngressEntries:
    """`contract_topic.Entries`, by path."""

    def entry_of(self, key: str, value: bytes) -> Ingress:
        ingress = parse_json(Ingress, value.decode())
        if ingress.path != key:
            raise InvalidDocument("broker", f"its path is {ingress.path}: want that of its key")
        return ingress

    def concerns(self, value: bytes) -> bool:
        """Every record of the topic is for its receiver."""
        return True
