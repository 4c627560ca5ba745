"""Event types: which types of events, from which sources, are new to a receiver (Knative Eventing's
feature `eventtype-auto-create`).

    an event is stored --type and source are new--> told at `/event-types` for a while --> known

The operator asks every so often, and makes an EventType of each. A receiver itself has no rights
at the API server. A type stays in the answers for `TOLD_FOR`, so that another caller hides none.

Bounded for each Broker or KafkaChannel by itself: whoever sends a new type with each event costs
nobody else an EventType.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from knafka.core.kafka_binding import RecordHeaders

EVENT_TYPES: Final = b"/event-types"
"""Path at which they are told."""
MAX_KNOWN: Final = 1_000
"""Types with their sources of one Broker or KafkaChannel that are told in a process's life."""
MAX_NEW: Final = 50
"""Of these, those that are told at a time; what is new then has to come again."""
MAX_BYTES: Final = 512
"""Of a type and its source together; larger ones are never told."""
TOLD_FOR: Final = 120.0
"""Seconds for which one is told once it was asked for: four times by the operator's interval."""
MAX_ANSWER: Final = 60_000
"""Bytes of an answer, about; the next one begins with whom there was no room for."""
MAX_EACH: Final = 10
"""Of one Broker or KafkaChannel in an answer."""


@dataclass(slots=True)
class _NewType:
    type: str
    source: str
    schema: str | None
    told_since: float | None = None


class _PathTypes:
    """Of one Broker or KafkaChannel."""

    __slots__ = ("known", "new")

    def __init__(self) -> None:
        self.known: set[int] = set()
        """Hashes, as the texts come from outside: who finds two with one hash loses an
        EventType."""
        self.new: list[_NewType] = []


class SeenTypes:
    """What one receiver has seen, by path."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds since whenever."""
        self._clock = clock
        self._seen: dict[str, _PathTypes] = {}

    def note(self, path: str, headers: RecordHeaders) -> None:
        """An event with these record headers was stored for `path`."""
        found = dict(headers)
        type_, source = found.get("ce_type"), found.get("ce_source")
        seen = self._seen.get(path)
        if seen is None:
            seen = self._seen[path] = _PathTypes()
        key = hash((type_, source))
        if key in seen.known or len(seen.known) >= MAX_KNOWN:
            return
        # A record that holds a whole event has neither, and is seldom.
        if type_ is None or source is None or len(type_) + len(source) > MAX_BYTES:
            seen.known.add(key)
            return
        if len(seen.new) >= MAX_NEW:
            self._forget(seen)
            if len(seen.new) >= MAX_NEW:
                return
        seen.known.add(key)
        schema = found.get("ce_dataschema")
        told = None if schema is None or len(schema) > MAX_BYTES else schema.decode()
        seen.new.append(_NewType(type_.decode(), source.decode(), told))

    def keep(self, paths: Collection[str]) -> None:
        """Nothing is served at other paths any more."""
        for path in self._seen.keys() - set(paths):
            del self._seen[path]

    def document(self) -> str:
        """As JSON: `{"eventTypes": [{"path", "type", "source", "schema"}, …]}`, without a schema
        where an event named none."""
        told: list[dict[str, str]] = []
        size, now = 0, self._clock()
        for path, seen in list(self._seen.items()):
            if size > MAX_ANSWER:
                break
            # Behind the others in the next answer.
            self._seen[path] = self._seen.pop(path)
            self._forget(seen)
            for each in seen.new[:MAX_EACH]:
                each.told_since = each.told_since or now
                entry = {"path": path, "type": each.type, "source": each.source}
                told.append(entry if each.schema is None else {**entry, "schema": each.schema})
                size += sum(map(len, told[-1].values())) + 50
            # Those that weren't told are first in the next answer.
            seen.new = [*seen.new[MAX_EACH:], *seen.new[:MAX_EACH]]
        return json.dumps({"eventTypes": told})

    def _forget(self, seen: _PathTypes) -> None:
        """Tell no more what was told for long enough."""
        since = self._clock() - TOLD_FOR
        seen.new = [each for each in seen.new if each.told_since is None or each.told_since > since]
