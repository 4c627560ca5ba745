"""Parses a Sensor's conditions: which events a trigger needs to fire (BUS-2, BUS-3, BUS-S1).

    condition  = all, { "||", all } ;
    all        = term, { "&&", term } ;
    term       = "(", condition, ")" | name | number, "of", name | "!", name ;

`3 of a` wants the latest three events of `a`. `a && !b` wants `a` without a `b` that follows in
time. Not here: when absence is decided; see `absence`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from knafka.core.errors import InvalidExpression

MAX_CONDITION_LENGTH: Final = 4096
"""Most characters of a condition."""
MAX_CONDITION_DEPTH: Final = 32
"""Deepest nesting of parentheses."""
MAX_COUNT: Final = 1000
"""Most events of one dependency that a condition may want; all are held until the trigger fires."""

MAX_NAME: Final = 63
"""Most characters of the name of a dependency or trigger."""
NAME: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
"""Syntax of the names of dependencies and triggers."""

_TOKEN = re.compile(rf"\s*(?:({NAME})|(&&|\|\||[()!]))")
"""Matches a token and the space before it; the first group is a name, the second a symbol."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The condition that at least `count` events of the dependency `name` have come."""

    name: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Unwanted:
    """The condition that no event of the dependency `name` has come."""

    name: str


@dataclass(frozen=True, slots=True)
class AllOf:
    """A condition that is fulfilled if all of its parts are."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A condition that is fulfilled if any of its parts is."""

    parts: tuple[Node, ...]


Node: TypeAlias = Wanted | Unwanted | AllOf | AnyOf
"""A node of a condition's syntax tree."""


@dataclass(frozen=True)
class TriggerCondition:
    """A parsed condition of a trigger."""

    tree: Node
    """The condition's wanted part: it has no `Unwanted`."""
    wanted: Mapping[str, int]
    """The number of events that are wanted of each dependency. If the condition names a dependency
    more than once, it is the greatest number."""
    unwanted: frozenset[str]
    """The dependencies of which no event may follow."""

    @property
    def is_simple(self) -> bool:
        """Whether any single event of its dependencies makes the condition true, so that no event
        needs to be held (BUS-S2)."""
        return not self.unwanted and _is_simple(self.tree)

    @property
    def names(self) -> frozenset[str]:
        """The names of all dependencies in the condition, wanted or not."""
        return self.unwanted | self.wanted.keys()

    def holds(self, counts: Mapping[str, int]) -> bool:
        """Whether the condition's wanted part is fulfilled. `counts`: number of events by
        dependency."""
        return _holds(self.tree, counts)


def all_of(names: Sequence[str]) -> TriggerCondition:
    """Return the condition that wants an event of each of the dependencies `names`: the condition
    of a trigger that declares none (BUS-S1)."""
    return _condition_of_node(_join_parts(AllOf, [Wanted(name) for name in names]), [])


def parse(text: str) -> TriggerCondition:
    """Parse a condition by the grammar in the module's docstring. Raises `InvalidExpression`, also
    if the condition wants no event, if it wants and negates the same dependency, or if `&&` doesn't
    join each `!a` to all the rest."""
    if len(text) > MAX_CONDITION_LENGTH:
        raise InvalidExpression(
            f"a condition has {MAX_CONDITION_LENGTH} characters at most", MAX_CONDITION_LENGTH
        )
    tree = _ConditionParser(list(_tokens(text))).parse_condition()
    parts = tree.parts if isinstance(tree, AllOf) else (tree,)
    unwanted = [part.name for part in parts if isinstance(part, Unwanted)]
    wanted = [part for part in parts if not isinstance(part, Unwanted)]
    has_inner_negation = any(
        isinstance(node, Unwanted) for part in wanted for node in _walk_nodes(part)
    )
    if has_inner_negation:
        raise InvalidExpression(
            "what is negated is joined to the rest by &&: a && b && !c, and not a && (b || !c)"
        )
    if not wanted:
        raise InvalidExpression("a condition wants at least one event that comes: a && !b")
    condition = _condition_of_node(_join_parts(AllOf, wanted), unwanted)
    if contradictory := condition.unwanted & condition.wanted.keys():
        raise InvalidExpression(f"{min(contradictory)} is wanted and unwanted")
    return condition


def _condition_of_node(tree: Node, unwanted: Sequence[str]) -> TriggerCondition:
    """Return the condition whose wanted part has the syntax tree `tree`, and whose unwanted
    dependencies are `unwanted`."""
    wanted_counts: dict[str, int] = {}
    for node in _walk_nodes(tree):
        if isinstance(node, Wanted):
            wanted_counts[node.name] = max(node.count, wanted_counts.get(node.name, 0))
    return TriggerCondition(tree, wanted_counts, frozenset(unwanted))


def _join_parts(kind: type[AllOf | AnyOf], parts: Sequence[Node]) -> Node:
    """Return a node of the class `kind` with these parts; a single part is returned as it is."""
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def _walk_nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes within it."""
    yield node
    if isinstance(node, AllOf | AnyOf):
        for part in node.parts:
            yield from _walk_nodes(part)


def _is_simple(node: Node) -> bool:
    """Whether a single event of any dependency in the node fulfils the node: it consists of wanted
    events, one of each, joined by `||`."""
    match node:
        case Wanted(count=count):
            return count == 1
        case AnyOf(parts):
            return all(map(_is_simple, parts))
        case _:
            return False


def _holds(node: Node, counts: Mapping[str, int]) -> bool:
    """Whether a node, which contains no `Unwanted`, is fulfilled. `counts`: number of events by
    dependency."""
    match node:
        case Wanted(name, count):
            return counts.get(name, 0) >= count
        case AllOf(parts):
            return all(_holds(part, counts) for part in parts)
        case AnyOf(parts):
            return any(_holds(part, counts) for part in parts)
        case Unwanted():
            raise AssertionError("a condition's tree has only wanted events")


class _Token(NamedTuple):
    """A token of a condition."""

    text: str
    position: int
    """Index of its first character in the condition."""
    is_name: bool


_END: Final = ""
"""Text of the token after the last one."""


def _tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens of a condition, the last one with the text `_END`. Raises
    `InvalidExpression` for a character that begins no token."""
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            # The error names the first character that isn't space.
            position += len(text[position:]) - len(text[position:].lstrip())
            raise InvalidExpression(
                f"{text[position]!r} has no meaning in a condition: want names, &&, ||, ! and ()",
                position,
            )
        token_text, position = match[1] or match[2], match.end()
        yield _Token(token_text, position - len(token_text), is_name=bool(match[1]))
    yield _Token(_END, len(text), False)


class _ConditionParser:
    """Parses a condition's tokens, with one method for each rule of the grammar. Each method moves
    past the tokens that it parses, and raises `InvalidExpression` if they don't fit its rule."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._next_index = 0
        """Index of the token that is to be parsed next."""
        self._depth = 0
        """Number of parentheses that are open."""

    def parse_condition(self) -> Node:
        """Parse a whole condition up to its end."""
        tree = self._parse_alternatives()
        if self._token.text != _END:
            raise self._unexpected_token_error("&& or ||")
        return tree

    def _parse_alternatives(self) -> Node:
        """Parse one or more conjunctions joined by `||`; a single one is returned as it is."""
        parts = [self._parse_conjunction()]
        while self._skip_if("||"):
            parts.append(self._parse_conjunction())
        return _join_parts(AnyOf, _flatten(AnyOf, parts))

    def _parse_conjunction(self) -> Node:
        """Parse one or more terms joined by `&&`; a single one is returned as it is."""
        parts = [self._parse_term()]
        while self._skip_if("&&"):
            parts.append(self._parse_term())
        return _join_parts(AllOf, _flatten(AllOf, parts))

    def _parse_term(self) -> Node:
        """Parse a dependency, its negation (`!a`), a number of its events (`3 of a`), or a
        condition in parentheses."""
        if self._skip_if("("):
            self._depth += 1
            if self._depth > MAX_CONDITION_DEPTH:
                raise InvalidExpression(
                    f"at most {MAX_CONDITION_DEPTH} parentheses within each other",
                    self._token.position,
                )
            tree = self._parse_alternatives()
            if not self._skip_if(")"):
                raise self._unexpected_token_error(")")
            self._depth -= 1
            return tree
        if self._skip_if("!"):
            return Unwanted(self._parse_name())
        if self._is_count():
            return self._parse_counted()
        return Wanted(self._parse_name())

    def _is_count(self) -> bool:
        """Whether the next three tokens are a number, `of` and a name, as in `3 of a`."""
        # All three are checked, as a dependency may be named 3, or of.
        last_index = len(self._tokens) - 1
        first, second, third = (
            self._tokens[min(self._next_index + offset, last_index)] for offset in range(3)
        )
        return first.text.isdecimal() and second.text == "of" and third.is_name

    def _parse_counted(self) -> Node:
        """Parse a number of events and their dependency (`3 of a`). Raises `InvalidExpression`
        unless the number is 1 to `MAX_COUNT`."""
        token = self._token
        count = int(token.text)
        if not 1 <= count <= MAX_COUNT:
            raise InvalidExpression(f"want 1 to {MAX_COUNT} events, not {count}", token.position)
        self._next_index += 2  # the number, and `of`
        return Wanted(self._parse_name(), count)

    def _parse_name(self) -> str:
        """Parse the name of a dependency."""
        token = self._token
        if not token.is_name:
            raise self._unexpected_token_error("the name of a dependency")
        self._next_index += 1
        return token.text

    def _skip_if(self, text: str) -> bool:
        """Move past the next token and return True if the token's text is `text`; else return
        False."""
        if self._token.text != text:
            return False
        self._next_index += 1
        return True

    @property
    def _token(self) -> _Token:
        """The token that is to be parsed next; the last one is `_END`."""
        return self._tokens[self._next_index]

    def _unexpected_token_error(self, expectation: str) -> InvalidExpression:
        """Return the error for the next token; `expectation` says what would be allowed there."""
        token = self._token
        shown_token = repr(token.text) if token.text else "the end"
        return InvalidExpression(f"want {expectation}, not {shown_token}", token.position)


def _flatten(kind: type[AllOf | AnyOf], parts: Sequence[Node]) -> Sequence[Node]:
    """Return the parts of a node of the class `kind`; a part of this class is replaced by its own
    parts, as `a && (b && c)` is `a && b && c`. One level is enough, as the parts of a nested part
    were flattened when that part was parsed."""
    flat_parts: list[Node] = []
    for part in parts:
        flat_parts += part.parts if isinstance(part, kind) else (part,)
    return flat_parts
