"""The mutants of a source file: one small change each, such as `<` for `<=`.

Pure: text in, `Mutant`s out. Not mutated is what no test should check: annotations, docstrings, log
calls, and strings with a space, which are text for people.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

LOGGERS: Final = frozenset({"log", "logger", "logging", "warnings"})

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
FUNCTIONS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
BOUNDS: Final = frozenset({"min", "max"})
"""Functions of two arguments for which each argument alone is a mutant: the value without its
bound."""
NEGATED_ALREADY: Final = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
"""Comparisons whose mutant in `COMPARISONS` is their negation already."""

Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A source file with the bytes from `start` to `end` replaced."""

    path: str
    """From the repository's root."""
    line: int
    """The first line that is changed, from 1."""
    last_line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line} {self.kind}: {shortened(self.old)} -> {shortened(self.new)}"
        )

    def applied_to(self, source: str) -> str:
        """Return the file's text with the change. Raises `ValueError` if `source` has changed
        since."""
        whole = source.encode()
        if whole[self.start : self.end].decode() != self.old:
            raise ValueError(f"{self.path} has changed since the mutant was made")
        return (whole[: self.start] + self.new.encode() + whole[self.end :]).decode()

    def compiles(self, source: str) -> bool:
        """Whether the file with the change is valid Python."""
        try:
            compile(self.applied_to(source), self.path, "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return all mutants of a file, in its order; a few of them don't compile
    (`Mutant.compiles`)."""
    places = _Places(path, source)
    mutants: dict[tuple[int, int, str], Mutant] = {}
    for node in _mutable(ast.parse(source)):
        for kind, replaced, new in _changes(node):
            mutant = places.mutant(kind, replaced, new)
            if mutant.new != mutant.old:
                mutants.setdefault((mutant.start, mutant.end, mutant.new), mutant)
    return sorted(
        mutants.values(), key=lambda candidate: (candidate.start, candidate.end, candidate.new)
    )


def shortened(text: str) -> str:
    """Return code in one line of at most 60 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


class _Places:
    """Finds nodes in a file's bytes, in which ast counts columns."""

    def __init__(self, path: str, source: str) -> None:
        """Find where each line begins; `path` is the file's, from the repository's root."""
        self._path = path
        self._source = source.encode()
        self._lines = [0]
        """The index of each line's first byte."""
        for line in self._source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def mutant(self, kind: str, node: ast.expr | ast.stmt, new: str) -> Mutant:
        """Return the mutant that replaces a node by the text `new`."""
        last_line = node.end_lineno or node.lineno
        start = self._lines[node.lineno - 1] + node.col_offset
        end = self._lines[last_line - 1] + (node.end_col_offset or 0)
        old = self._source[start:end].decode()
        return Mutant(self._path, node.lineno, last_line, kind, start, end, old, new)


def _mutable(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes below it, without those that aren't mutated."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if name == "decorator_list" and "dataclass" in ast.unparse(child):
                continue  # its options, frozen and slots, are checked by the type checker
            if isinstance(child, ast.AST) and not _is_left_alone(child):
                yield from _mutable(child)


def _is_left_alone(node: ast.AST) -> bool:
    """Whether a node and all below it aren't mutated."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.Assert():
            return True  # the positions in an f-string are wrong before Python 3.12
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in LOGGERS
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in LOGGERS or name == "__all__"
        case ast.ClassDef(bases=bases):
            return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)
    return False


Change = tuple[str, "ast.expr | ast.stmt", str]
"""The kind of a mutant, the node that is replaced, and the new text."""


def _changes(node: ast.AST) -> Iterator[Change]:
    """Yield all changes of one node, without those of the nodes below it."""
    match node:
        case ast.Compare(ops=[operator, *_]) if type(operator) in COMPARISONS:
            yield "comparison", node, _with(node, ops=[_other(operator), *node.ops[1:]])
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC and not _is_not_arithmetic(
            node
        ):
            yield "arithmetic", node, _with(node, op=ARITHMETIC[type(operator)]())
        case ast.AugAssign(op=operator):
            yield "statement left out", node, "pass"
            if type(operator) in ARITHMETIC:
                yield "arithmetic", node, ast.unparse(_copy(node, op=ARITHMETIC[type(operator)]()))
        case ast.BoolOp(op=operator):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and/or", node, _with(node, op=other)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not left out", node, f"({ast.unparse(operand)})"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "sign", node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield "boolean", node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "number", node, repr(value + 1)
        case ast.Constant(value=str() as value) if value and " " not in value:
            yield "string", node, repr(f"{value}XX")
        case ast.Call():
            yield from _changes_of_call(node)
        case ast.stmt():
            yield from _changes_of_statement(node)
    yield from _negations(node)


def _changes_of_call(node: ast.Call) -> Iterator[Change]:
    """Yield the changes of a call: `min` for `max` and the like, and arguments that are left
    out."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=[_, _], keywords=[]) if name in BOUNDS:
            for argument in node.args:
                yield "bound left out", node, f"({ast.unparse(argument)})"
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            yield "function", node.func, FUNCTIONS[name]
    for place, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            rest = [*node.keywords[:place], *node.keywords[place + 1 :]]
            yield f"argument {keyword.arg} left out", node, ast.unparse(_copy(node, keywords=rest))


def _changes_of_statement(node: ast.stmt) -> Iterator[Change]:
    """Yield the changes of a statement: it is left out, or returns None, or ends a loop in the
    other way."""
    match node:
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield "returned value left out", node, "return None"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete() | ast.Raise():
            yield "statement left out", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield "statement left out", node, "pass"
        case ast.Break():
            yield "break/continue", node, "continue"
        case ast.Continue():
            yield "break/continue", node, "break"


def _negations(node: ast.AST) -> Iterator[Change]:
    """Yield the negation of a node's condition, unless another change negates it already."""
    tests = [
        *([node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else ()),
        *(node.ifs if isinstance(node, ast.comprehension) else ()),
        *([node.guard] if isinstance(node, ast.match_case) and node.guard else ()),
    ]
    for test in tests:
        match test:
            case ast.UnaryOp(op=ast.Not()) | ast.Constant():
                continue
            case ast.Compare(ops=[operator]) if isinstance(operator, NEGATED_ALREADY):
                continue
        yield "condition negated", test, f"(not ({ast.unparse(test)}))"


def _is_none(node: ast.expr) -> bool:
    """Whether an expression is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def _is_not_arithmetic(node: ast.BinOp) -> bool:
    """Whether an operator formats or joins text, or unites types: its mutant would raise a
    TypeError."""
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes | None))
        or (isinstance(node.op, ast.BitOr) and ast.unparse(side)[:1].isupper())
        for side in (node.left, node.right)
    )


def _other(operator: ast.cmpop) -> ast.cmpop:
    """Return the comparison that replaces this one (`COMPARISONS`)."""
    return COMPARISONS[type(operator)]()


def _copy(node: Node, **changes: object) -> Node:
    """Return a copy of a node with some fields changed."""
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def _with(node: ast.expr, **changes: object) -> str:
    """Return the text, in parentheses, of an expression with some fields changed."""
    return f"({ast.unparse(_copy(node, **changes))})"
