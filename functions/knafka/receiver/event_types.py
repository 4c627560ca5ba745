"""Event types: which types and sources of events are new to a receiver (Knative Eventing's feature
`eventtype-auto-create`).

    an event is stored --type and source are new--> listed at `/event-types` for a while --> known

The operator reads the list regularly and creates an EventType for each entry, as a receiver has no
rights at the API server. A type stays in the answers for `LISTED_SECONDS` seconds, so that the
operator gets it even if somebody else has asked first.

Each Broker or KafkaChannel has limits of its own: a sender that invents types doesn't use up those
of others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from knafka.core.events.kafka_binding import RecordHeaders

EVENT_TYPES: Final = b"/event-types"
"""Path at which new types are listed."""
MAX_KNOWN_TYPES: Final = 1_000
"""Most pairs of type and source of one Broker or KafkaChannel that are listed in a process's
life."""
MAX_NEW_TYPES: Final = 50
"""Most pairs of one Broker or KafkaChannel that are listed at a time; a further pair is left out
until a later event has it."""
MAX_TYPE_BYTES: Final = 512
"""Most bytes of a type and its source together; longer pairs are never listed."""
LISTED_SECONDS: Final = 120.0
"""Seconds for which a pair is listed after the first answer with it: four times the operator's
interval."""
MAX_ANSWER_BYTES: Final = 60_000
"""Approximate bytes after which an answer takes no further path; the next answer begins with the
remaining paths."""
ENTRY_OVERHEAD: Final = 50
"""Bytes of an entry in an answer besides its values, approximately."""
MAX_PER_PATH: Final = 10
"""Most pairs of one Broker or KafkaChannel in an answer."""


@dataclass(slots=True)
class _NewType:
    """A type with its source and schema, and since when answers have listed it."""

    type: str
    source: str
    schema: str | None
    """The event's `dataschema`; None: it had none, or one longer than `MAX_TYPE_BYTES`."""
    answered_since: float | None = None
    """When the first answer with the type was made, on the clock of `SeenTypes`; None: no answer
    has listed it yet."""


class _PathTypes:
    """The event types of one Broker or KafkaChannel: `new` are those that answers list now, `known`
    those that must not be added again."""

    __slots__ = ("known", "new")

    def __init__(self) -> None:
        """Begin without types."""
        self.known: set[int] = set()
        """Hashes of the pairs of type and source that were listed, or never will be. If two pairs
        have the same hash, the second one gets no EventType."""
        self.new: list[_NewType] = []
        """The pairs that are listed now, in the order in which they go into the next answers."""


class SeenTypes:
    """The types and sources of events that one receiver has stored, by path."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds of a monotonic clock."""
        self._clock = clock
        self._seen: dict[str, _PathTypes] = {}
        """The event types by path; paths whose turn is next in an answer come first."""

    def note_event(self, path: str, headers: RecordHeaders) -> None:
        """List the type, source and schema of an event that was stored, if its pair of type and
        source is new and within the limits. `path`: its Broker's or KafkaChannel's; `headers`: its
        record's."""
        attributes = dict(headers)
        type_, source = attributes.get("ce_type"), attributes.get("ce_source")
        path_types = self._seen.get(path)
        if path_types is None:
            path_types = self._seen[path] = _PathTypes()
        pair_hash = hash((type_, source))
        if pair_hash in path_types.known or len(path_types.known) >= MAX_KNOWN_TYPES:
            return
        # The record of a structured event has neither header, so its type isn't listed; such
        # records are rare.
        if type_ is None or source is None or len(type_) + len(source) > MAX_TYPE_BYTES:
            path_types.known.add(pair_hash)
            return
        if len(path_types.new) >= MAX_NEW_TYPES:
            self._drop_listed(path_types)
            if len(path_types.new) >= MAX_NEW_TYPES:
                return  # the pair isn't known yet, so that a later event with it is listed
        path_types.known.add(pair_hash)
        schema = attributes.get("ce_dataschema")
        short_schema = None if schema is None or len(schema) > MAX_TYPE_BYTES else schema.decode()
        path_types.new.append(_NewType(type_.decode(), source.decode(), short_schema))

    def keep_paths(self, paths: Collection[str]) -> None:
        """Forget all paths but these, as the others are no longer served."""
        for path in self._seen.keys() - set(paths):
            del self._seen[path]

    def next_answer(self) -> str:
        """Return the next answer to the operator, with new types, of about `MAX_ANSWER_BYTES` at
        most, as JSON: `{"eventTypes": [{"path", "type", "source", "schema"}, …]}`, without `schema`
        where the event named none. Each call changes what the next one returns: the types in this
        answer count as answered, and the paths and types that had no room come first next time."""
        entries: list[dict[str, str]] = []
        size, now = 0, self._clock()
        for path, path_types in list(self._seen.items()):
            if size > MAX_ANSWER_BYTES:
                break
            # Put the path behind the others, for the next answer.
            self._seen[path] = self._seen.pop(path)
            self._drop_listed(path_types)
            for new_type in path_types.new[:MAX_PER_PATH]:
                new_type.answered_since = new_type.answered_since or now
                entry = {"path": path, "type": new_type.type, "source": new_type.source}
                entries.append(
                    entry if new_type.schema is None else {**entry, "schema": new_type.schema}
                )
                size += sum(map(len, entries[-1].values())) + ENTRY_OVERHEAD
            # Pairs that had no room come first in the next answer.
            path_types.new = [*path_types.new[MAX_PER_PATH:], *path_types.new[:MAX_PER_PATH]]
        return json.dumps({"eventTypes": entries})

    def _drop_listed(self, path_types: _PathTypes) -> None:
        """Remove from `new` the types that were first in an answer at least `LISTED_SECONDS` ago;
        they stay in `known`."""
        listed_since = self._clock() - LISTED_SECONDS
        path_types.new = [
            new_type
            for new_type in path_types.new
            if new_type.answered_since is None or new_type.answered_since > listed_since
        ]
