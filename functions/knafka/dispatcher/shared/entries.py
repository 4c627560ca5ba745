"""Parses contract records, and picks the Egresses whose records name this shard."""

from __future__ import annotations

import json
from contextlib import suppress

from knafka.core.contract import Egress, SharedEgress
from knafka.core.documents import parse_json
from knafka.core.errors import InvalidDocument


class ShardEntryParser:
    """A `contract_topic.EntryParser` of one shard; the key of a record is its Egress's group."""

    def __init__(self, shard: str) -> None:
        """`shard` is the name of this process's shard (`Shard.group`)."""
        self._shard = shard

    def entry_of(self, key: str, value: bytes) -> Egress | None:
        """Parse a contract record; returns its Egress, None if that belongs to another shard.
        Raises `InvalidDocument`, also if `key` isn't the Egress's group."""
        shared = parse_json(SharedEgress, value.decode())
        if shared.egress.group != key:
            raise InvalidDocument("egress.group", f"invalid value: {shared.egress.group}")
        return shared.egress if shared.shard == self._shard else None

    def concerns(self, value: bytes) -> bool:
        """Whether a record that `entry_of` refuses names this shard; False also if no shard's name
        can be read from it."""
        with suppress(Exception):
            return bool(json.loads(value)["shard"] == self._shard)
        return False
