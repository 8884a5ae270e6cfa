"""Substitutions and graphs as egglog programs: rules with sizes as pattern variables, sides at given sizes.

Every operator is a constructor named by its text without integers, which are arguments. The shape of every tensor is a
list from the last axis to the first, so that an axis group is the rest of a list. Rules do not decompose lists, which
would be joins: for each tensor, its axes and the rest of its shape before them are tabled (:data:`SHAPES`).

Invariant: a rule matches only where the types fit, and what it adds has the right shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from taso_py.ir.node import Node, Value
from taso_py.ir.operator import AttributeValue, Input, attribute_text
from taso_py.ir.size import Dim, FloorDiv, Poly, symbol, terms
from taso_py.ir.types import Group, TensorType
from taso_py.ops.base import plain_axis
from taso_py.ops.movement import Slice
from taso_py.ops.scalar import Condition
from taso_py.ops.signs import sign_of
from taso_py.rules.substitution import Substitution, key

MOST_AXES = 6
"""Number of axes, from the last, that are tabled."""

HEADER = """
(datatype Shape (Scalar) (Axis i64 Shape))
(sort Tensor)
(constructor Variable (String) Tensor)
(function sign (Tensor) i64 :merge (max old new))
""" + "".join(
    f"(function before{axis} (Tensor) Shape :merge old)(function axis{axis} (Tensor) i64 :merge old)"
    for axis in range(MOST_AXES + 1)
)
"""``before0`` is the shape, ``axis1`` the last axis, ``before1`` the axes before it, and so on. ``sign`` is known of
what is inserted; what rules add has that of what it is equal to."""

SHAPES = "".join(
    f"(rule ((= (before{axis} t) (Axis n s))) ((set (axis{axis + 1} t) n) (set (before{axis + 1} t) s)) "
    ":ruleset complete)"
    for axis in range(MOST_AXES)
)
"""Rules that table the axes of each tensor whose shape is known."""

TABLES = {"Axis": 2, "Variable": 1, "sign": 1} | {
    f"{name}{axis}": 1 for name in ("before", "axis") for axis in range(MOST_AXES + 1)
}
"""Constructors and functions that are not operators, with their number of arguments."""


def declaration(node: Node) -> tuple[str, str]:
    """Return the name of an operator's constructor, and the command that declares it."""
    name, numbers = _constructor(node)
    return name, f"(constructor {name} ({'i64 ' * len(numbers)}{'Tensor ' * len(node.inputs)}) Tensor)"


def arity(node: Node) -> int:
    """Return the number of arguments of an operator's constructor."""
    return len(_constructor(node)[1]) + len(node.inputs)


def _constructor(node: Node) -> tuple[str, list[Dim]]:
    """Return an operator's constructor and its integer arguments: all numbers in attributes that may be symbols."""
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
class EgglogRule:
    """A substitution as an egglog rule; sizes are pattern variables."""

    facts: list[str] = field(default_factory=list[str])
    actions: list[str] = field(default_factory=list[str])
    bound: set[str] = field(default_factory=set[str])
    needed: set[str] = field(default_factory=set[str])
    _fresh: int = 0

    def rewrite(self, rule: Substitution) -> str:
        """Return the facts and actions of the egglog rule; empty if a size is bound inside an expression only."""
        names: dict[Node, str] = {}
        for node in rule.source.nodes:
            names[node] = f"n{len(names)}"
            if isinstance(node.op, Input):
                self._add_type_facts(names[node], node.op.type)
                if node.op.sign:
                    self.facts.append(f"(>= (sign {names[node]}) {int(node.op.sign)})")
            else:
                self.facts.append(f"(= {names[node]} {self._call(node, names, self._match)})")
        for condition in (*rule.preconditions, *_guards(rule)):
            relation = "=" if condition.is_equality else ">="
            self.facts.append(f"({relation} {self._compute(condition.value)} 0)")
        for node in rule.target.nodes:
            if node not in names:
                names[node] = f"n{len(names)}"
                self.actions.append(f"(let {names[node]} {self._call(node, names, self._compute)})")
                self.actions.append(f"(set (before0 {names[node]}) {self._shape(node.types[0])})")
        for left, right in zip(rule.source.outputs, rule.target.outputs, strict=True):
            self.actions.append(f"(union {names[left.node]} {names[right.node]})")
        if not self.needed <= self.bound:
            return ""
        return f"({' '.join(self.facts)}) ({' '.join(self.actions)})"

    def _call(self, node: Node, names: Mapping[Node, str], number: Callable[[Dim], str]) -> str:
        name, numbers = _constructor(node)
        return f"({' '.join([name, *map(number, numbers), *(names[value.node] for value in node.inputs)])})"

    def _add_type_facts(self, name: str, type_: TensorType) -> None:
        """Add the facts that state a variable's type."""
        plain = [axis for axis in type_.shape if not isinstance(axis, Group)]
        for place, axis in enumerate(reversed(plain), start=1):
            self.facts.append(f"(= (axis{place} {name}) {self._match(axis)})")
        lead = self._shape(TensorType(type_.dtype, type_.shape[: type_.rank - len(plain)]))
        self.facts.append(f"(= (before{len(plain)} {name}) {lead})")

    def _shape(self, type_: TensorType) -> str:
        text = "(Scalar)"
        for axis in type_.shape:
            text = f"group_{axis.name}" if isinstance(axis, Group) else f"(Axis {self._compute(axis)} {text})"
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
    """Return an expression over sizes in egglog's syntax."""
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
    """Yield the conditions that shape inference checks of the target at concrete sizes, unless they are evident."""
    for node in rule.target.nodes:
        statements = [axis - 1 for axis in node.types[0].shape if isinstance(axis, Poly)]
        if isinstance(node.op, Slice):
            size = plain_axis(node.inputs[0].type, node.op.axis)
            statements += [node.op.start, node.op.stop - node.op.start, size - node.op.stop]
        for statement in statements:
            if any(monomial and coefficient < 0 for monomial, coefficient in terms(statement)):
                yield Condition(statement)


def insertion(nodes: Iterable[Node]) -> str:
    """Return the commands that insert nodes at concrete sizes, operands first, into the e-graph."""
    commands: list[str] = []
    for node in nodes:
        shape = "(Scalar)"
        for size in node.types[0].sizes:
            shape = f"(Axis {size} {shape})"
        commands.append(f"(set (before0 {expression(node.value)}) {shape})")
        if sign := sign_of(node.value):
            commands.append(f"(set (sign {expression(node.value)}) {int(sign)})")
    return "\n".join(commands)


def expression(value: Value) -> str:
    """Return a value at concrete sizes as an expression."""
    node = value.node
    if isinstance(node.op, Input):
        return f'(Variable "{key(node)}")'
    name, numbers = _constructor(node)
    return f"({' '.join([name, *map(str, numbers), *map(expression, node.inputs)])})"
