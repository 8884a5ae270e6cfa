"""Substitutions: a source graph that may be replaced by a target graph.

Invariant: a substitution that exists is well-formed: both sides type-check for all sizes under one set of variables,
have equal output types, and the target uses no variable, size or group that the source does not bind. Whether it is
true is for a prover to decide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from taso_py.ir.errors import InvariantError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import AttributeValue, Input, Operator
from taso_py.ir.sign import Sign
from taso_py.ir.size import Dim, Poly, substitute, symbol, symbols
from taso_py.ir.text import described, print_values
from taso_py.ir.types import Group, TensorType
from taso_py.ops.scalar import Condition
from taso_py.rules.verdict import Numerics

Recipe: TypeAlias = tuple[tuple[Operator, tuple[TensorType, ...]], ...]
"""The operators of a target as instantiated in a model, operands first, with their result types."""


@dataclass(frozen=True)
class Substitution:
    """A rule: ``source`` may be replaced by ``target`` wherever the preconditions hold."""

    source: Graph
    """Its inputs are the variables; sizes and integer attributes may be symbols."""
    target: Graph
    """A graph over the same variables."""
    preconditions: tuple[Condition, ...] = ()
    """Conditions on the sizes beyond those that repeated symbols express."""
    numerics: Numerics = Numerics.EXACT
    proof: str = ""
    """Kind of proof: ``index`` or ``derived``; empty for a candidate."""

    def __post_init__(self) -> None:
        source, target = self.source, self.target
        if source.inputs != target.inputs or source.effects or target.effects:
            raise InvariantError("a substitution needs two pure graphs over the same variables")
        if [value.type for value in source.outputs] != [value.type for value in target.outputs]:
            raise InvariantError("the two sides of a substitution differ in type")
        if any(isinstance(value.node.op, Input) for value in source.outputs) or not source.outputs:
            raise InvariantError("the source of a substitution must compute something")
        unbound = _names(target) - _names(source)
        if unbound:
            raise InvariantError(f"the target uses {', '.join(sorted(unbound))}, which the source does not bind")
        unbound = set().union(*(symbols(c.value) for c in self.preconditions)) - _names(source)
        if unbound:
            raise InvariantError(
                f"a precondition is about {', '.join(sorted(unbound))}, which the source does not bind"
            )

    @cached_property
    def recipes(self) -> dict[Hashable, Recipe | None]:
        """Cache of instantiated targets, filled by :mod:`taso_py.rules.apply`; None where the target does not fit."""
        return {}

    @property
    def variables(self) -> tuple[Node, ...]:
        """Input nodes of both sides."""
        return self.source.inputs

    @cached_property
    def signs(self) -> Mapping[str, Sign]:
        """The signs that are demanded of variables, by their names."""
        declared = {node.op.key: node.op.sign for node in self.variables if isinstance(node.op, Input)}
        return {name: sign for name, sign in declared.items() if sign}

    @cached_property
    def id(self) -> str:
        """``r`` and twelve hexadecimal digits that hash the content (without the proof)."""
        return "r" + hashlib.blake2b(self.statement.encode(), digest_size=6).hexdigest()

    @cached_property
    def statement(self) -> str:
        """Text of the substitution in the rule grammar, without identifier, numerics and proof."""
        variables = ", ".join(f"{key(node)}: {described(node)}" for node in self.variables)
        lines = [
            variables,
            "source " + print_values(self.source.outputs),
            "target " + print_values(self.target.outputs),
        ]
        if self.preconditions:
            lines.append("where " + ", ".join(map(str, self.preconditions)))
        return "\n".join(f"  {line}" for line in lines)

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of operators of source and target."""
        return operator_count(self.source), operator_count(self.target)

    @property
    def reversed(self) -> Substitution:
        """The substitution from target to source.

        Raises:
            InvariantError: it is not well-formed, e.g. because the target forgets a variable.
        """
        return replace(self, source=self.target, target=self.source)

    def substitute(self, bindings: Mapping[str, Dim]) -> Substitution:
        """Return the instance with size variables replaced."""
        source, target = (
            rebuild(side, lambda type_: type_.substitute(bindings), lambda op: op.substitute(bindings))
            for side in (self.source, self.target)
        )
        conditions = tuple(replace(c, value=substitute(c.value, bindings)) for c in self.preconditions)
        return replace(self, source=source, target=target, preconditions=conditions)


def key(variable: Node) -> str:
    """Return the name of a variable."""
    if not isinstance(variable.op, Input):
        raise InvariantError(f"{variable!r} is not a variable")
    return variable.op.key


def retyped(variable: Node, type_: TensorType) -> Value:
    """Return a variable of another type, with the same name and sign."""
    if not isinstance(variable.op, Input):
        raise InvariantError(f"{variable!r} is not a variable")
    return make(replace(variable.op, type=type_)).value


def operator_count(graph: Graph) -> int:
    """Return the number of nodes that are not inputs."""
    return sum(not isinstance(node.op, Input) for node in graph.nodes)


def rebuild(
    graph: Graph,
    retype: Callable[[TensorType], TensorType],
    change: Callable[[Operator], Operator] = lambda op: op,
    rename: Callable[[str], str] = lambda name: name,
) -> Graph:
    """Return a graph with the types and names of its inputs and its operators' attributes changed."""
    return _rebuilt(graph, lambda op: replace(op, key=rename(op.key), type=retype(op.type)), change)


def _rebuilt(graph: Graph, declare: Callable[[Input], Input], change: Callable[[Operator], Operator]) -> Graph:
    def rebuilt(node: Node, inputs: tuple[Value, ...]) -> Node:
        return make(declare(node.op) if isinstance(node.op, Input) else change(node.op), inputs, node.token)

    return graph.map(rebuilt)


def with_signs(rule: Substitution, signs: Mapping[str, Sign]) -> Substitution:
    """Return the rule with other signs demanded of some of its variables, by name."""
    source, target = (
        _rebuilt(side, lambda op: replace(op, sign=signs.get(op.key, op.sign)), lambda op: op)
        for side in (rule.source, rule.target)
    )
    return replace(rule, source=source, target=target)


def attribute_symbols(value: AttributeValue) -> set[str]:
    """Return the size variables in an attribute value."""
    if isinstance(value, Poly):
        return set(value.symbols)
    if isinstance(value, TensorType):
        return set(value.symbols)
    if isinstance(value, tuple):
        return set().union(*map(attribute_symbols, value))
    return set()


def _names(graph: Graph) -> set[str]:
    """Return variables, sizes and groups that a side uses; only inputs that its outputs reach count."""
    reached = Graph((), graph.outputs).nodes
    found: set[str] = set()
    for node in reached:
        if isinstance(node.op, Input):
            groups = {axis for axis in node.op.type.shape if isinstance(axis, Group)}
            found |= {f"variable {node.op.key}"} | {str(group) for group in groups} | node.op.type.symbols
        else:
            found |= set().union(*(attribute_symbols(value) for _, value in node.op.attributes))
    return found


def canonical(rule: Substitution) -> Substitution:
    """Return the rule in canonical form: variables ``a, b, ...`` and sizes ``A, B, ...`` in order of first occurrence.

    Unused variables are dropped. Rules that differ in names only become equal (up to the order of commutative operands,
    which follows the names).
    """
    order = [node for node in Graph((), rule.source.outputs).nodes if isinstance(node.op, Input)]
    variables = {key(node): name for node, name in zip(order, _letters("a"), strict=False)}
    sizes = dict(zip(_size_order(order, rule), _letters("A"), strict=False))

    def retype(type_: TensorType) -> TensorType:
        shape = (Group(sizes[f"..{a.name}"]) if isinstance(a, Group) else substitute(a, moved) for a in type_.shape)
        return TensorType(type_.dtype, tuple(shape))

    moved = {name: symbol(letter) for name, letter in sizes.items()}
    renamed = [
        rebuild(side, retype, lambda op: op.substitute(moved), lambda name: variables.get(name, name))
        for side in (Graph(tuple(order), rule.source.outputs), Graph(tuple(order), rule.target.outputs))
    ]
    conditions = tuple(replace(c, value=substitute(c.value, moved)) for c in rule.preconditions)
    return replace(rule, source=renamed[0], target=renamed[1], preconditions=conditions)


def _letters(first: str) -> Iterable[str]:
    for number in range(1 << 30):
        letter = chr(ord(first) + number % 26)
        yield letter if number < 26 else f"{letter}{number // 26}"


def _size_order(variables: Iterable[Node], rule: Substitution) -> list[str]:
    found: dict[str, None] = {}
    for node in variables:
        for axis in node.types[0].shape:
            if isinstance(axis, Group):
                found[f"..{axis.name}"] = None
            elif isinstance(axis, Poly):
                found.update(dict.fromkeys(sorted(axis.symbols)))
    for node in rule.source.nodes:
        for _, value in node.op.attributes:
            found.update(dict.fromkeys(sorted(attribute_symbols(value))))
    return list(found)
