"""Finds the Triggers that match an event, without evaluating every filter.

    Selection: one Trigger's compiled filter, and its keys; a matching event has one of them
    FilterIndex: event --its type, source, ...--> Triggers with such a key --filter--> the matches

An exact value is found by hash, a prefix by its length. An `all` is indexed by the part whose key
the fewest other filters have, an `any` by each of its parts. Filters without a key (`suffix`,
`not`, CESQL) are evaluated for each event.

The index matches as each Trigger's own filter does, and counts the same CESQL errors: parts of an
`all` after a CESQL expression are no keys, as the expression must be evaluated first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeAlias, TypeVar, assert_never

from knafka.core.events.event import Attributes
from knafka.core.filters.declared_filters import (
    CESQL,
    All,
    Any_,
    AttributesFilter,
    Exact,
    Filter,
    Not,
    Prefix,
    Suffix,
)
from knafka.core.filters.predicates import CountError, Predicate, compile_trigger

T = TypeVar("T")


class _Key(NamedTuple):
    """An event has this key if its attribute `name` equals `value` or, if `is_prefix`, begins with
    it."""

    name: str
    value: str
    is_prefix: bool


class _OneOf(NamedTuple):
    """Keys of a conjunction: its filter is indexed under one of them, the rarest."""

    keys: tuple[_Keys, ...]


class _EachOf(NamedTuple):
    """Keys of a disjunction: its filter is indexed under each of them."""

    keys: tuple[_Keys, ...]


_Keys: TypeAlias = _Key | _OneOf | _EachOf
"""The keys of a filter: one key, or the keys of the filter's parts."""


class _IndexChoice(NamedTuple):
    """Keys under which a filter may be indexed, and what that costs."""

    entry_count: int
    """Number of entries that the index has under these keys already."""
    has_prefix: bool
    """Whether one of the keys is a prefix, which takes longer to find than an exact value."""
    keys: list[_Key]

    @property
    def cost(self) -> tuple[int, bool]:
        """The value by which choices are compared: the number of entries, and among equal numbers
        exact values before prefixes."""
        return self.entry_count, self.has_prefix


@dataclass(frozen=True, slots=True)
class Selection:
    """The filter of one Trigger, prepared for an index."""

    passes: Predicate
    keys: _Keys | None
    """Attribute values by which the index finds the filter; None: it is evaluated for each
    event."""
    is_decided_by_key: bool
    """Whether every event with one of the keys matches, so that `passes` needn't be called."""


def select(
    attributes: AttributesFilter, filters: tuple[Filter, ...], count_error: CountError
) -> Selection | None:
    """Compile a Trigger's filter for the index; None: it matches every event. `attributes`, the
    older form, counts only without `filters`. `count_error` is called for each evaluation of a
    CESQL expression that ends with an error."""
    if not filters and not attributes.attributes:
        return None
    if filters:
        keys, decides = _keys_of_conjunction(filters)
    else:
        pairs = attributes.attributes.items()
        # An empty value stands for any, so it is no key.
        attribute_keys = tuple(_Key(name, value, False) for name, value in pairs if value)
        keys = _OneOf(attribute_keys) if attribute_keys else None
        decides = len(pairs) == 1
    return Selection(compile_trigger(attributes, filters, count_error), keys, decides)


def _keys_of(spec: Filter) -> tuple[_Keys | None, bool]:
    """Return the keys by which an index can find a filter, and whether every event with one of
    these keys matches the filter. The keys are None if the filter must be evaluated for each
    event."""
    match spec:
        case Exact(exact=values):
            return _OneOf(tuple(_Key(*pair, False) for pair in values.items())), len(values) == 1
        case Prefix(prefix=values):
            return _OneOf(tuple(_Key(*pair, True) for pair in values.items())), len(values) == 1
        case All(all=inner):
            return _keys_of_conjunction(inner)
        case Any_(any=inner):
            parts = [_keys_of(condition) for condition in inner]
            keys = tuple(part_keys for part_keys, _ in parts if part_keys is not None)
            if len(keys) < len(parts):
                return None, False  # an event may match the part without a key
            return _EachOf(keys), all(decides for _, decides in parts)
        case Suffix() | Not() | CESQL():
            return None, False
        case _:
            assert_never(spec)


def _keys_of_conjunction(parts: Sequence[Filter]) -> tuple[_Keys | None, bool]:
    """Return the keys by which an index can find the conjunction of the filters `parts`, and
    whether every event with one of these keys matches it. The keys are None if the conjunction
    must be evaluated for each event."""
    keys: list[_Keys] = []
    part_decides = False
    for part in parts:
        part_keys, part_decides = _keys_of(part)
        if part_keys is not None:
            keys.append(part_keys)
        if _has_cesql(part):
            # Under a key of a later part, the filter wouldn't be evaluated for events without that
            # key, and the expression's errors in these events wouldn't be counted.
            break
    # A key says nothing about other parts: it can decide only if there is one part, which is then
    # the part that `part_decides` is about.
    is_decided_by_key = part_decides and len(parts) == 1
    return (_OneOf(tuple(keys)) if keys else None), is_decided_by_key


def _has_cesql(spec: Filter) -> bool:
    """Whether a filter is or contains a CESQL expression. As the expression's errors are counted,
    no key of a later part of the same conjunction may prevent its evaluation."""
    match spec:
        case CESQL():
            return True
        case All(all=inner) | Any_(any=inner):
            return any(map(_has_cesql, inner))
        case Not(not_=negated):
            return _has_cesql(negated)
        case Exact() | Prefix() | Suffix():
            return False
        case _:
            assert_never(spec)


@dataclass(slots=True, eq=False)
class _Entry(Generic[T]):
    """A filter in the index, with its owner."""

    owner: T
    selection: Selection
    keys: tuple[_Key, ...] = ()
    """The keys under which the filter is indexed; empty: it is evaluated for each event."""


@dataclass(slots=True)
class _Bucket(Generic[T]):
    """The entries that are indexed under one key."""

    decided: dict[_Entry[T], T] = field(default_factory=dict)
    """Owners by entry, of the entries that match every event with this key."""
    tried: dict[_Entry[T], None] = field(default_factory=dict)
    """Entries whose filter has to be evaluated."""
    once: dict[_Entry[T], None] = field(default_factory=dict)
    """Entries that are also indexed under other keys; each must be evaluated and returned only
    once."""

    def __len__(self) -> int:
        """Return the number of entries under this key."""
        return len(self.decided) + len(self.tried) + len(self.once)

    def add(self, entry: _Entry[T]) -> None:
        """Add an entry: to `once` if it has several keys, else to `decided` if its key decides,
        else to `tried`."""
        if len(entry.keys) > 1:
            self.once[entry] = None
        elif entry.selection.is_decided_by_key:
            self.decided[entry] = entry.owner
        else:
            self.tried[entry] = None

    def remove(self, entry: _Entry[T]) -> None:
        """Remove an entry."""
        for entries in (self.decided, self.tried, self.once):
            entries.pop(entry, None)


_Buckets: TypeAlias = dict[str, dict[str, _Bucket[T]]]
"""Buckets by attribute name and by value, or prefix of a value."""


class FilterIndex(Generic[T]):
    """Owners of filters, found by the attributes of an event."""

    def __init__(self) -> None:
        self._entries: dict[T, _Entry[T]] = {}
        """All entries by owner."""
        self._exact: _Buckets[T] = {}
        """Entries that are indexed under exact values."""
        self._prefix: _Buckets[T] = {}
        """Entries that are indexed under prefixes."""
        self._lengths: dict[str, list[int]] = {}
        """The lengths of the prefixes, by attribute, in ascending order."""
        self._others: dict[_Entry[T], None] = {}
        """Entries without a key, which are evaluated for each event."""

    def add(self, owner: T, selection: Selection) -> None:
        """Add a new owner with its filter, `selection`, under the keys that cost least: those that
        the fewest entries have already."""
        entry = self._entries[owner] = _Entry(owner, selection)
        if selection.keys is None:
            self._others[entry] = None
            return
        entry.keys = tuple(dict.fromkeys(self._cheapest_choice(selection.keys).keys))
        for key in entry.keys:
            by_value = self._buckets(key).setdefault(key.name, {})
            if (bucket := by_value.get(key.value)) is None:
                bucket = by_value[key.value] = _Bucket()
                self._update_lengths(key)
            bucket.add(entry)

    def remove(self, owner: T) -> None:
        """Remove an owner and its filter. Raises KeyError if the owner isn't in the index."""
        entry = self._entries.pop(owner)
        self._others.pop(entry, None)
        for key in entry.keys:
            buckets = self._buckets(key)
            bucket = buckets[key.name][key.value]
            bucket.remove(entry)
            if not bucket:
                del buckets[key.name][key.value]
                if not buckets[key.name]:
                    del buckets[key.name]
                self._update_lengths(key)

    def matches(self, attributes: Attributes) -> list[T]:
        """Return the owners whose filters match these attributes, each once, in no particular
        order."""
        matching: list[T] = []
        once: dict[_Entry[T], None] = {}
        for name, by_value in self._exact.items():
            if (value := attributes.get(name)) is not None and (bucket := by_value.get(value)):
                _match(bucket, attributes, matching, once)
        for name, by_value in self._prefix.items():
            if (value := attributes.get(name)) is not None:
                for length in self._lengths[name]:
                    if length > len(value):
                        break
                    if bucket := by_value.get(value[:length]):
                        _match(bucket, attributes, matching, once)
        # Entries with several keys may be in several buckets, so they are evaluated only now.
        matching += [
            entry.owner
            for entry in once
            if entry.selection.is_decided_by_key or entry.selection.passes(attributes)
        ]
        if self._others:
            matching += [
                entry.owner for entry in self._others if entry.selection.passes(attributes)
            ]
        return matching

    def _buckets(self, key: _Key) -> _Buckets[T]:
        """Return the buckets of prefixes if `key` is a prefix, else those of exact values."""
        return self._prefix if key.is_prefix else self._exact

    def _update_lengths(self, key: _Key) -> None:
        """Update the lengths of the prefixes of the key's attribute; do nothing if `key` is no
        prefix."""
        if key.is_prefix:
            self._lengths[key.name] = sorted(
                {len(prefix) for prefix in self._prefix.get(key.name, ())}
            )

    def _cheapest_choice(self, keys: _Keys) -> _IndexChoice:
        """Return the cheapest choice (`_IndexChoice.cost`) of keys under which a filter can be
        indexed. `keys`: all keys of the filter."""
        match keys:
            case _Key(name=name, value=value, is_prefix=is_prefix):
                bucket = self._buckets(keys).get(name, {}).get(value)
                return _IndexChoice(0 if bucket is None else len(bucket), is_prefix, [keys])
            case _OneOf(keys=inner):
                return min(map(self._cheapest_choice, inner), key=lambda choice: choice.cost)
            case _EachOf(keys=inner):
                choices = [self._cheapest_choice(part) for part in inner]
                return _IndexChoice(
                    sum(choice.entry_count for choice in choices),
                    any(choice.has_prefix for choice in choices),
                    [key for choice in choices for key in choice.keys],
                )


def _match(
    bucket: _Bucket[T],
    attributes: Attributes,
    matching: list[T],
    once: dict[_Entry[T], None],
) -> None:
    """Add to `matching` the owners in a bucket whose filters match an event with these attributes.
    Entries that other buckets have, too (`bucket.once`), are added to `once`, and the caller
    evaluates them."""
    matching += bucket.decided.values()
    for entry in bucket.tried:
        if entry.selection.passes(attributes):
            matching.append(entry.owner)
    if bucket.once:
        once.update(bucket.once)
