"""Parses tokens into a syntax tree by precedence climbing (§2, §3.6).

Expressions that nest deeper than `MAX_DEPTH` are refused, so that neither parsing nor evaluation
can exhaust the stack. A chain of operators may be as long as the text allows.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from knafka.core.cesql.errors import Failed
from knafka.core.cesql.lexer import Token, tokenize
from knafka.core.cesql.syntax import Attribute, Call, Chain, Exists, InfixStep, Literal, Node, Unary
from knafka.core.cesql.values import as_integer
from knafka.core.errors import InvalidExpression

MAX_DEPTH: Final = 64
"""Deepest nesting of operands within operands (parentheses, arguments, right sides, NOT). Each
level takes up to six stack frames, and Python allows a thousand, callers included."""

_PRECEDENCE: Final = {
    operator: level
    for level, operators in enumerate(
        (
            ("AND", "OR", "XOR"),
            ("=", "!=", "<>", ">=", "<=", ">", "<"),
            ("+", "-"),
            ("*", "/", "%"),
            ("LIKE", "NOT LIKE", "IN", "NOT IN"),
        )
    )
    for operator in operators
}
"""Precedence of each infix operator: 0 binds loosest."""

_match_attribute_name = re.compile(r"[A-Za-z0-9]+").fullmatch
_match_function_name = re.compile(r"[A-Za-z][A-Za-z_]*").fullmatch
_match_digits = re.compile(r"[0-9]+").fullmatch


def parse(text: str) -> Node:
    """Parse an expression into its syntax tree. Raises `InvalidExpression`."""
    parser = _ExpressionParser(text)
    node = parser.parse_expression()
    parser.expect_end()
    return node


class _ExpressionParser:
    """Parses an expression's tokens, one after the other. Every method moves past what it parses,
    and raises `InvalidExpression` for anything else.

    A token can be recognised by its text alone: a string keeps its quotes, a keyword is in upper
    case, and no word equals a keyword.
    """

    def __init__(self, text: str) -> None:
        self._tokens = tokenize(text)
        self._next_index = 0
        """Index of the token that is to be parsed next."""
        self._depth = 0
        """Number of levels of nesting that are open."""

    def parse_expression(self, lowest: int = 0) -> Node:
        """Parse an operand, and the operators after it whose precedence is at least `lowest` (0 to
        4; an operator of higher precedence binds tighter)."""
        self._enter_level()
        start = self._token.start
        node = self._parse_operand()
        while (level := self._operator_precedence()) >= lowest:
            # All operators of this level that follow each other are one chain.
            end = self._previous.end
            steps = []
            while self._operator_precedence() == level:
                steps.append(self._parse_step())
            node = Chain(node, tuple(steps), start, end)
        self._depth -= 1
        return node

    def expect_end(self) -> None:
        """Raise `InvalidExpression` unless all tokens were parsed."""
        if self._token.kind != "end":
            self._reject("expected an operator or the end")

    def _operator_precedence(self) -> int:
        """Return the precedence of the infix operator that comes next; -1 if the next token is no
        infix operator."""
        operator = self._token.text
        if operator == "NOT":  # there is a token after it, at least the end
            operator = f"NOT {self._tokens[self._next_index + 1].text}"
        return _PRECEDENCE.get(operator, -1)

    def _parse_step(self) -> InfixStep:
        """Parse the next infix operator and its right operands."""
        level = self._operator_precedence()
        operator = self._next_token().text
        if operator == "NOT":
            operator = f"NOT {self._next_token().text}"
        start = self._token.start
        operands: tuple[Node, ...]
        match operator:
            case "LIKE" | "NOT LIKE":
                if self._token.kind != "string":
                    self._reject("expected the pattern of LIKE, a string literal")
                operands = (_unquote(self._next_token()),)
            case "IN" | "NOT IN":
                self._expect("(")
                operands = self._parse_expressions()
            case _:
                # An operator of the same level isn't part of the right side: it continues the
                # chain.
                operands = (self.parse_expression(level + 1),)
        return InfixStep(operator, operands, start, self._previous.end)

    def _parse_operand(self) -> Node:
        """Parse a literal, an attribute, an EXISTS, a call, or an expression in parentheses; or NOT
        or a minus sign with its operand."""
        token = self._next_token()
        match token.kind, token.text:
            case "string", _:
                return _unquote(token)
            case "word", _ if self._token.text == "(":
                return self._parse_call(token)
            case "word", text if _match_digits(text):
                return _parse_integer(text, token.start)
            case "word", _:
                return Attribute(_attribute_name(token))
            case "keyword", "TRUE" | "FALSE" as text:
                return Literal(text == "TRUE")
            case "keyword", "EXISTS":
                if self._token.kind != "word":
                    self._reject("expected the name of an attribute")
                return Exists(_attribute_name(self._next_token()))
            case "symbol", "(":
                node = self.parse_expression()
                self._expect(")")
                return node
            case "symbol", "+" | "-" as sign if self._is_sign_of_number(token):
                return _parse_integer(sign + self._next_token().text, token.start)
            case ("keyword", "NOT") | ("symbol", "-"):
                self._enter_level()
                node = Unary(token.text, self._parse_operand())
                self._depth -= 1
                return node
        self._next_index -= 1  # the error names the token that was taken above
        self._reject("expected a value")

    def _is_sign_of_number(self, sign: Token) -> bool:
        """Whether the next token is a number that follows the token `sign` without a space."""
        return self._token.start == sign.end and _match_digits(self._token.text) is not None

    def _parse_call(self, token: Token) -> Call:
        """Parse the arguments of a call of the function that `token` names."""
        if not _match_function_name(token.text):
            raise InvalidExpression(f"{token.text!r} cannot name a function", token.start)
        self._expect("(")
        if self._token.text == ")":
            self._next_token()
            return Call(token.text.upper(), ())
        return Call(token.text.upper(), self._parse_expressions())

    def _parse_expressions(self) -> tuple[Node, ...]:
        """Parse one or more expressions up to and including the closing parenthesis."""
        nodes = [self.parse_expression()]
        while self._token.text == ",":
            self._next_token()
            nodes.append(self.parse_expression())
        self._expect(")")
        return tuple(nodes)

    @property
    def _token(self) -> Token:
        """The token that is to be parsed next."""
        return self._tokens[self._next_index]

    @property
    def _previous(self) -> Token:
        """The token that was parsed last."""
        return self._tokens[self._next_index - 1]

    def _next_token(self) -> Token:
        """Return the token that is to be parsed next, and move past it."""
        token = self._token
        self._next_index += 1
        return token

    def _expect(self, symbol: str) -> None:
        """Move past the next token if it is this symbol, else raise `InvalidExpression`."""
        if self._token.text != symbol:
            self._reject(f"expected {symbol!r}")
        self._next_token()

    def _reject(self, expectation: str) -> NoReturn:
        """Raise `InvalidExpression` for the next token; `expectation` says what would be allowed
        there."""
        shown_token = "the end" if self._token.kind == "end" else self._token.text[:40]
        raise InvalidExpression(f"{expectation}, found {shown_token}", self._token.start)

    def _enter_level(self) -> None:
        """Count one more level of nesting, until the caller decrements `_depth`. Raises
        `InvalidExpression` beyond `MAX_DEPTH`."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidExpression(f"nested deeper than {MAX_DEPTH}", self._token.start)


def _attribute_name(token: Token) -> str:
    """Return the text of this token, an attribute's name, in lower case. Raises `InvalidExpression`
    if no attribute can have this name."""
    if not _match_attribute_name(token.text):
        raise InvalidExpression(f"{token.text!r} cannot name an attribute", token.start)
    return token.text.lower()


def _parse_integer(text: str, position: int) -> Literal:
    """Return the literal of the integer in `text`, which is at `position` in the expression. Raises
    `InvalidExpression` if the integer doesn't fit into 32 bits."""
    try:
        return Literal(as_integer(text))
    except Failed:
        raise InvalidExpression("the integer does not fit into 32 bits", position) from None


def _unquote(token: Token) -> Literal:
    """Return the literal of a string token, without its quotes. Only an escaped quote of the kind
    that delimits the string is unescaped; other backslashes stay for LIKE (§2.2)."""
    quote = token.text[0]

    def unescape(escaped: re.Match[str]) -> str:
        """Return the quote without its backslash; any other escaped character unchanged."""
        return quote if escaped[1] == quote else escaped[0]

    return Literal(re.sub(r"\\(.)", unescape, token.text[1:-1], flags=re.DOTALL))
