"""Substitutions and graphs as egglog programs: rules with sizes as pattern variables, sides at given sizes.

Every operator is a constructor named by its text without integers, which are arguments. The shape of every tensor is a
list from the last axis to the first, so that an axis group is the rest of a list.

Invariant: a rule matches only where the types fit, and what it adds has the right shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from taso_py.ir.node import Node, Value
from taso_py.ir.operator import AttributeValue, Input, attribute_text
from taso_py.ir.size import Dim, FloorDiv, Poly, symbol, terms
from taso_py.ir.types import Group, TensorType
from taso_py.ops.base import plain_axis
from taso_py.ops.movement import Slice
from taso_py.ops.scalar import Condition
from taso_py.rules.substitution import Substitution, key

HEADER = """
(datatype Shape (Scalar) (Axis i64 Shape))
(sort Tensor)
(constructor Variable (String) Tensor)
(function shape (Tensor) Shape :merge old)
"""


def declaration(node: Node) -> tuple[str, str]:
    """The name of an operator's constructor, and the command that declares it."""
    name, numbers = _constructor(node)
    return name, f"(constructor {name} ({'i64 ' * len(numbers)}{'Tensor ' * len(node.inputs)}) Tensor)"


def _constructor(node: Node) -> tuple[str, list[Dim]]:
    """The constructor of an operator, and its integer arguments: all numbers in attributes that may be symbols."""
    numbers: list[Dim] = []
    named = "_".join(f"{f.name}_{_template(getattr(node.op, f.name), numbers)}" for f in fields(node.op))
    return _identifier(f"{node.op.name}_{len(node.inputs)}_{named}"), numbers


def _template(value: AttributeValue, numbers: list[Dim]) -> str:
    if isinstance(value, tuple):
        return "".join(_template(item, numbers) for item in value)
    if isinstance(value, Poly) or (isinstance(value, int) and not isinstance(value, bool)):
        numbers.append(value)
        return "i"
    return attribute_text(value)


def _identifier(text: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else f"_{ord(c)}" for c in text)


@dataclass
class Pattern:
    """A rule as an egglog rule; sizes are pattern variables."""

    facts: list[str] = field(default_factory=list[str])
    actions: list[str] = field(default_factory=list[str])
    bound: set[str] = field(default_factory=set[str])
    needed: set[str] = field(default_factory=set[str])
    _fresh: int = 0

    def rewrite(self, rule: Substitution) -> str:
        """The facts and actions of the egglog rule; empty if a size is bound inside an expression only."""
        names: dict[Node, str] = {}
        for node in rule.source.nodes:
            names[node] = f"n{len(names)}"
            if isinstance(node.op, Input):
                self.facts.append(f"(= (shape {names[node]}) {self._shape(node.op.type, self._match)})")
            else:
                self.facts.append(f"(= {names[node]} {self._call(node, names, self._match)})")
        for condition in (*rule.preconditions, *_guards(rule)):
            relation = "=" if condition.is_equality else ">="
            self.facts.append(f"({relation} {self._compute(condition.value)} 0)")
        for node in rule.target.nodes:
            if node not in names:
                names[node] = f"n{len(names)}"
                self.actions.append(f"(let {names[node]} {self._call(node, names, self._compute)})")
                shape = self._shape(node.types[0], self._compute)
                self.actions.append(f"(set (shape {names[node]}) {shape})")
        for left, right in zip(rule.source.outputs, rule.target.outputs, strict=True):
            self.actions.append(f"(union {names[left.node]} {names[right.node]})")
        if not self.needed <= self.bound:
            return ""
        return f"({' '.join(self.facts)}) ({' '.join(self.actions)})"

    def _call(self, node: Node, names: Mapping[Node, str], number: Callable[[Dim], str]) -> str:
        name, numbers = _constructor(node)
        return f"({' '.join([name, *map(number, numbers), *(names[value.node] for value in node.inputs)])})"

    def _shape(self, type_: TensorType, number: Callable[[Dim], str]) -> str:
        text = "(Scalar)"
        for axis in type_.shape:
            text = f"group_{axis.name}" if isinstance(axis, Group) else f"(Axis {number(axis)} {text})"
        return text

    def _match(self, value: Dim) -> str:
        if isinstance(value, int):
            return str(value)
        if value == symbol(str(value)):
            self.bound.add(str(value))
            return f"size_{value}"
        self._fresh += 1
        self.facts.append(f"(= expression{self._fresh} {self._compute(value)})")
        return f"expression{self._fresh}"

    def _compute(self, value: Dim) -> str:
        self.needed |= value.symbols if isinstance(value, Poly) else set()
        return _arithmetic(value)


def _arithmetic(value: Dim) -> str:
    """An expression over sizes in egglog's syntax."""
    if isinstance(value, int):
        return str(value)
    summands: list[str] = []
    for monomial, coefficient in terms(value):
        product = str(coefficient)
        for atom in monomial:
            factor = f"size_{atom}"
            if isinstance(atom, FloorDiv):
                factor = f"(/ {_arithmetic(atom.numerator)} {_arithmetic(atom.denominator)})"
            product = factor if product == "1" else f"(* {product} {factor})"
        summands.append(product)
    total = summands[0]
    for summand in summands[1:]:
        total = f"(+ {total} {summand})"
    return total


def _guards(rule: Substitution) -> Iterator[Condition]:
    """What shape inference would check of the target at concrete sizes, where it is not evident."""
    for node in rule.target.nodes:
        statements = [axis - 1 for axis in node.types[0].shape if isinstance(axis, Poly)]
        if isinstance(node.op, Slice):
            size = plain_axis(node.inputs[0].type, node.op.axis)
            statements += [node.op.start, node.op.stop - node.op.start, size - node.op.stop]
        for statement in statements:
            if any(monomial and coefficient < 0 for monomial, coefficient in terms(statement)):
                yield Condition(statement)


@dataclass
class Ground:
    """One side of an instance as egglog terms."""

    prefix: str
    _names: dict[Node, str] = field(default_factory=dict[Node, str])

    def insert(self, nodes: Iterable[Node]) -> Iterator[str]:
        """Commands that put nodes, operands first, into the e-graph."""
        for node in nodes:
            self._names[node] = f"${self.prefix}{len(self._names)}"
            operands = [self._names[value.node] for value in node.inputs]
            yield f"(let {self._names[node]} {_call(node, operands)})"
            shape = "(Scalar)"
            for size in node.types[0].sizes:
                shape = f"(Axis {size} {shape})"
            yield f"(set (shape {self._names[node]}) {shape})"

    def value(self, value: Value) -> str:
        """A value that was inserted."""
        return self._names[value.node]

    def expression(self, value: Value) -> str:
        """A value written out, without inserting it."""
        return _call(value.node, [self.expression(operand) for operand in value.node.inputs])


def _call(node: Node, operands: Sequence[str]) -> str:
    if isinstance(node.op, Input):
        return f'(Variable "{key(node)}")'
    name, numbers = _constructor(node)
    return f"({' '.join([name, *map(str, numbers), *operands])})"
