"""GraphParser for the grammar of :mod:`taso_py.ir.text`: graphs, types, sizes, attributes.

Recursive descent over a token list; the rule grammar (:mod:`taso_py.rules.text`) extends the same parser.

Invariant: reading executes nothing; every mistake is a :class:`GraphTextError` that names line and column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn, TypeVar

from taso_py.ir.errors import GraphTextError, TasoError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import AttributeValue, Input, Operator, Ref
from taso_py.ir.sign import SIGNS, Sign
from taso_py.ir.size import Dim, Open, floordiv, open_size, symbol
from taso_py.ir.text import MUTABLE
from taso_py.ir.types import Axis, DType, Group, TensorType

_T = TypeVar("_T")
_DTYPES = {dtype.value: dtype for dtype in DType}
_WORDS: dict[str, float | bool | None] = {
    "true": True,
    "false": False,
    "none": None,
    "inf": float("inf"),
    "nan": float("nan"),
}
_TOKEN = re.compile(
    r"""(?:\s|//\ [^\n]*)*+
      (?:(?P<open>(?:[A-Za-z_][\w.]*+|\((?:[^(){}]++|\([^()]*+\))*+\))\{\d+\ in\ \d+\.\.\d*\})
      |(?P<float>\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+)
      |(?P<int>\d+)
      |(?P<name>[A-Za-z_]\w*)
      |(?P<string>"(?:[^"\\]|\\.)*")
      |(?P<mark>->|\.\.|//|>=|==|[][(){}<>,;:=+*$\#.-])
      |(?P<end>\Z)
      |(?P<unknown>.))""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A lexical token: its kind, its text and its position in the input."""

    kind: str
    text: str
    place: int


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a text without spaces and comments (``// `` to the end of the line); ``end`` is last."""
    tokens: list[Token] = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "unknown"
        token = Token(kind, match[kind], match.start(kind))
        if kind == "unknown":
            raise GraphTextError(f"{position(text, token.place)}: unexpected character {token.text!r}")
        tokens.append(token)
        if kind == "end":
            break
    return tokens


def position(text: str, place: int) -> str:
    """Return line and column of a character, counted from one."""
    return f"line {text.count(chr(10), 0, place) + 1}, column {place - text.rfind(chr(10), 0, place)}"


def parse_graph(text: str, operators: Mapping[str, type[Operator]]) -> Graph:
    """Parse one graph.

    Raises:
        GraphTextError: the text does not follow the grammar, or a node does not type-check.
    """
    parser = GraphParser(text, operators)
    graph = parser.graph()
    parser.expect("", kind="end")
    return graph


class GraphParser:
    """Recursive-descent parser; each method reads one construct of the grammar."""

    def __init__(self, text: str, operators: Mapping[str, type[Operator]]) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._next = 0
        self._operators = operators

    # -- tokens

    def peek(self, ahead: int = 0) -> Token:
        """Return the next token, or one further ahead."""
        place = self._next + ahead
        return self._tokens[place] if place < len(self._tokens) else self._tokens[-1]

    def fail(self, message: str) -> NoReturn:
        """Raise a syntax error at the current token."""
        raise GraphTextError(f"{position(self._text, self.peek().place)}: {message}")

    def accept(self, text: str) -> bool:
        """Skip the next token if it is ``text``; return whether it was."""
        token = self._tokens[self._next]
        if token.text != text or token.kind == "string":
            return False
        self._next += 1
        return True

    def expect(self, text: str, kind: str | None = None) -> str:
        """Read the given text, or any token of a kind; return its text."""
        token = self.peek()
        if token.kind != kind if kind else (token.text != text or token.kind == "string"):
            self.fail(f"expected {text or kind}, found {token.text or 'the end'}")
        self._next += 1
        return token.text

    def several(self, item: Callable[[], _T], close: str) -> list[_T]:
        """Read items separated by commas up to ``close``, which is skipped."""
        items: list[_T] = []
        if self.accept(close):
            return items
        while True:
            items.append(item())
            if self.accept(close):
                return items
            self.expect(",")

    # -- sizes, types, attributes

    def size(self) -> Dim:
        """Read a size: a sum of products."""
        total = self._product()
        while self.peek().text in ("+", "-"):
            total = total + self._product() if self.accept("+") else total - (self.accept("-") and self._product())
        return total

    def _product(self) -> Dim:
        if self.accept("-"):
            return -1 * self._product()
        product = self._factor()
        while self.peek().text in ("*", "//"):
            product = product * self._factor() if self.accept("*") else self._divide(product)
        return product

    def _divide(self, numerator: Dim) -> Dim:
        self.expect("//")
        return floordiv(numerator, self._factor())

    def _factor(self) -> Dim:
        if self.peek().kind == "open":
            return open_size(Open.parse(self.expect("", kind="open")))
        if self.accept("("):
            inner = self.size()
            self.expect(")")
            return inner
        if self.peek().kind == "int":
            return int(self.expect("", kind="int"))
        return symbol(self.expect("", kind="name"))

    def type(self) -> TensorType:
        """Read a tensor type: ``f32[..B,M,2*K]``."""
        name = self.expect("", kind="name")
        if name not in _DTYPES:
            self.fail(f"no element type is called {name}")
        self.expect("[")
        axes = tuple(self.several(self._axis, "]"))
        try:
            return TensorType(_DTYPES[name], axes)
        except ValueError as error:
            self.fail(str(error))

    def _axis(self) -> Axis:
        return Group(self.expect("", kind="name")) if self.accept("..") else self.size()

    def attribute(self) -> AttributeValue:
        """Read an attribute value."""
        token = self.peek()
        if token.kind == "string":
            self._next += 1
            return str(json.loads(token.text))
        if self.accept("["):
            return tuple(self.several(self.attribute, "]"))
        if self.accept("$"):
            return Ref(int(self.expect("", kind="int")))
        if token.text == "-" and (self.peek(1).kind == "float" or self.peek(1).text in ("inf", "nan")):
            self._next += 1
            return -self._number()
        if token.kind == "float":
            return self._number()
        if token.text in _WORDS:
            self._next += 1
            return _WORDS[token.text]
        if token.text in _DTYPES:
            return self.type() if self.peek(1).text == "[" else _DTYPES[self.expect("", kind="name")]
        return self.size()

    def _number(self) -> float:
        return float(self.expect("", kind=self.peek().kind))

    # -- values and graphs

    def value(self, names: Mapping[str, Value]) -> Value:
        """Read a value: a name, an output of a name, or an operator applied to values."""
        token = self.peek()
        if token.text in names and self.peek(1).text not in ("(", "{", "#"):
            self._next += 1
            return self._select(names[token.text].node) if self.accept(".") else names[token.text]
        return Value(self.node(names), 0)

    def _select(self, node: Node) -> Value:
        index = int(self.expect("", kind="int"))
        if index >= len(node.types):
            self.fail(f"{node.op.name} has no output {index}")
        return Value(node, index)

    def node(self, names: Mapping[str, Value]) -> Node:
        """Read an operator applied to values, with its token and attributes."""
        start = self._next
        name = self.expect("", kind="name")
        if name not in self._operators:
            self._next = start
            self.fail(f"no value or operator is called {name}")
        token = int(self.expect("", kind="int")) if self.accept("#") else None
        inputs = self.several(lambda: self.value(names), ")") if self.accept("(") else []
        attributes = dict(self.several(self._named_attribute, "}")) if self.accept("{") else {}
        try:
            return make(self._operators[name](**attributes), inputs, token)
        except (TasoError, TypeError, ValueError) as error:
            self._next = start
            self.fail(f"{name}: {error}")

    def _named_attribute(self) -> tuple[str, AttributeValue]:
        name = self.expect("", kind="name")
        self.expect("=")
        return name, self.attribute()

    def variable(self) -> Node:
        """Read a named and typed input, perhaps with a sign: ``x: positive f32[2,3]``."""
        name = self.expect("", kind="name")
        self.expect(":")
        sign = self._sign()
        return make(Input(name, self.type(), sign=sign))

    def _sign(self) -> Sign:
        sign = SIGNS.get(self.peek().text, Sign.ANY)
        if sign:
            self._next += 1
        return sign

    def argument(self) -> Node:
        """Read an input of a graph, which may be one that it writes to: ``x: mutable f32[2,3]``."""
        name = self.expect("", kind="name")
        self.expect(":")
        is_mutable, sign = self.accept(MUTABLE), self._sign()
        return make(Input(name, self.type(), is_mutable, sign))

    def graph(self) -> Graph:
        """Read a whole graph."""
        self.expect("graph")
        self.expect("(")
        inputs = self.several(self.argument, ")")
        names = {node.op.key: node.value for node in inputs if isinstance(node.op, Input)}
        self.expect("{")
        while self.peek(1).text == "=":
            name = self.expect("", kind="name")
            self.expect("=")
            names[name] = Value(self.node(names), 0)
        effects: list[Value] = []
        if self.accept("effects"):
            effects = self._values(names)
        outputs: list[Value] = []
        if self.accept("return") and self.peek().text != "}":
            outputs = self._values(names)
        self.expect("}")
        return Graph(tuple(inputs), tuple(outputs), tuple(value.node for value in effects))

    def _values(self, names: Mapping[str, Value]) -> list[Value]:
        values = [self.value(names)]
        while self.accept(","):
            values.append(self.value(names))
        return values

    def bindings_and_values(self, names: Mapping[str, Value]) -> list[Value]:
        """Read ``t0 = ...; f(t0), g(t0)``, as :func:`taso_py.ir.text.print_values` writes it."""
        names = dict(names)
        while self.peek(1).text == "=":
            name = self.expect("", kind="name")
            self.expect("=")
            names[name] = Value(self.node(names), 0)
            self.expect(";")
        return self._values(names)
