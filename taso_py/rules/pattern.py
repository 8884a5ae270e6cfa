"""The source of a substitution compiled for matching, and the bindings of a partial match.

Invariant: bindings only grow; once :meth:`Bindings.settle` has returned true, every size that the source mentions is
bound and every equation between the source and the graph holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import AttributeValue, Input, Operator, substitute_attribute
from taso_py.ir.size import Dim, Poly, solve, substitute, symbol, symbols
from taso_py.ir.types import Axis, DType, Group, TensorType
from taso_py.rules.substitution import Substitution, attribute_symbols, key

Size: TypeAlias = Dim | float
Counts: TypeAlias = Mapping[type[Operator], int]
"""Number of nodes of each kind."""
Operand: TypeAlias = tuple[type[Operator], int, int]
"""Kind and arity of an operand's operator, and the output that is read."""
Application: TypeAlias = tuple[type[Operator], tuple[Operand, ...]]
"""Kind of a node's operator, and its operands."""


class OperandRef(NamedTuple):
    """Reference to a value of the source: variable number ``number``, or output ``output`` of operator ``number``."""

    is_variable: bool
    number: int
    output: int


@dataclass(frozen=True, slots=True)
class JoinPoint:
    """An operator at which matching continues once everything below the bound operators is bound."""

    index: int
    """Number of the operator."""
    kind: type[Operator]
    through: OperandRef | None
    """The bound value that the operator reads; None if it shares none and may be anywhere."""


@dataclass(frozen=True, slots=True)
class PatternOperator:
    """One operator of the source."""

    op: Operator
    operands: tuple[OperandRef, ...]
    symbolic: tuple[tuple[str, AttributeValue], ...]
    """Attributes that mention sizes or the element type of the rule, matched by equations; zeros have a sign."""
    literal: tuple[tuple[str, AttributeValue], ...]
    """All other attributes; the graph must have equal ones."""
    swappable: bool
    """True if both orders of the operands have to be tried."""


class Outline(NamedTuple):
    """The kinds of an operator and its operands, by which most nodes that do not fit are told."""

    kind: type[Operator]
    operands: tuple[Operand | None, ...]
    """None for a variable."""
    swappable: bool

    def fits(self, application: Application) -> bool:
        """Return whether a node may fit."""
        kind, operands = application
        if kind is not self.kind or len(operands) != len(self.operands):
            return False
        orders = (operands, operands[::-1]) if self.swappable else (operands,)
        return any(
            all(wanted in (None, actual) for wanted, actual in zip(self.operands, order, strict=True))
            for order in orders
        )


@dataclass(frozen=True, slots=True)
class Readers:
    """The nodes that must read a value."""

    counts: Counts
    outlines: frozenset[Outline]
    """Each is that of at least one of the nodes."""


@dataclass(frozen=True, slots=True)
class VariableType:
    """The type of a variable, split into element type, axis group and axes."""

    dtype: DType
    group: str | None
    axes: tuple[int | str | Poly, ...]
    """The axes after the group: each a number, the name of a size, or an expression of sizes."""


@dataclass(frozen=True)
class Pattern:
    """A compiled source; its sizes have names that begin with ``MARK``."""

    rule: Substitution
    nodes: tuple[Node, ...]
    """The operators of the source, operands first."""
    variables: tuple[Node, ...]
    """The variables that the source uses."""
    operators: tuple[PatternOperator, ...]
    """One for each of ``nodes``."""
    types: tuple[VariableType, ...]
    """One for each of ``variables``."""
    outputs: tuple[OperandRef, ...]
    plans: tuple[tuple[JoinPoint, ...], ...]
    """For each operator at which matching may begin, the join points to continue at."""
    readers: tuple[tuple[Readers, ...], ...]
    """For each operator, the readers that its operands must have, one by one, and then those it must have itself."""
    outlines: tuple[Outline, ...]
    """One for each of ``nodes``."""
    sizes: tuple[str, ...]
    """Names of the sizes that a match must bind."""

    @cached_property
    def roots(self) -> frozenset[int]:
        """The operators that yield the outputs; a match has a node for each."""
        return frozenset([slot.number for slot in self.outputs])

    @cached_property
    def root(self) -> int | None:
        """The operator that yields all outputs; None if there are several."""
        return next(iter(self.roots)) if len(self.roots) == 1 else None

    @cached_property
    def shared(self) -> Set[OperandRef]:
        """The values that all roots read; none if there are less than three roots."""
        read = [set(self.operators[root].operands) for root in self.roots]
        return set.intersection(*read) if len(read) > 2 else frozenset()

    @cached_property
    def is_parallel(self) -> bool:
        """True if there are more than two outputs, and a match is circular wherever one is computed from another."""
        below = {type(node.op) for place, node in enumerate(self.nodes) if place not in self.roots}
        used = {key(node) for node in Graph((), self.rule.target.outputs).nodes if isinstance(node.op, Input)}
        is_below = not below.isdisjoint(type(self.nodes[root].op) for root in self.roots)
        return len(self.roots) > 2 and not is_below and used >= set(map(key, self.variables))


MARK = "?"
"""Prefix of the names of a rule's sizes during matching, which keeps them apart from the sizes of a model."""


def compile_pattern(rule: Substitution) -> Pattern:
    """Compile the source of a rule for matching."""
    used = Graph((), rule.source.outputs).nodes
    nodes = tuple(node for node in used if not isinstance(node.op, Input))
    variables = tuple(node for node in used if isinstance(node.op, Input))
    slots: dict[Node, tuple[bool, int]] = {node: (False, place) for place, node in enumerate(nodes)}
    slots |= {node: (True, place) for place, node in enumerate(variables)}
    names = {name for node in used for _, value in node.op.attributes for name in attribute_symbols(value)}
    marked = {name: symbol(MARK + name) for name in names}
    operators = tuple(_operator(node, slots, marked) for node in nodes)
    outputs = tuple(OperandRef(*slots[value.node], value.output) for value in rule.source.outputs)
    outlines = tuple(_outline(operators, operator) for operator in operators)
    roots = {slot.number for slot in outputs}
    return Pattern(
        rule=rule,
        nodes=nodes,
        variables=variables,
        operators=operators,
        types=tuple(_variable(node.types[0].substitute(marked)) for node in variables),
        outputs=outputs,
        plans=tuple(_plan(operators, start) for start in range(len(operators))),
        readers=tuple(_readers(operators, outlines, place, roots) for place in range(len(operators))),
        outlines=outlines,
        sizes=tuple(sorted(map(str, marked.values()))),
    )


def _operator(node: Node, slots: Mapping[Node, tuple[bool, int]], marked: Mapping[str, Dim]) -> PatternOperator:
    names = type(node.op).__dataclass_fields__
    attributes = [(name, substitute_attribute(getattr(node.op, name), marked)) for name in names]
    operands = tuple(OperandRef(*slots[value.node], value.output) for value in node.inputs)
    return PatternOperator(
        op=node.op,
        operands=operands,
        symbolic=tuple(pair for pair in attributes if _is_symbolic(pair[1])),
        literal=tuple(pair for pair in attributes if not _is_symbolic(pair[1])),
        swappable=node.op.commutative and len(set(operands)) == 2,
    )


def _outline(operators: Sequence[PatternOperator], operator: PatternOperator) -> Outline:
    """Return the outline of an operator of a rule."""

    def operand(slot: OperandRef) -> Operand | None:
        if slot.is_variable:
            return None
        read = operators[slot.number]
        return type(read.op), len(read.operands), slot.output

    return Outline(type(operator.op), tuple(map(operand, operator.operands)), operator.swappable)


def application(node: Node) -> Application:
    """Return the kinds of a node and its operands, to compare with outlines."""
    return type(node.op), tuple([(type(n.op), len(n.inputs), output) for n, output in node.inputs])


def _is_symbolic(value: AttributeValue) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_symbolic, value))
    return value is DType.FLOAT or (isinstance(value, float) and not value) or bool(attribute_symbols(value))


def _variable(type_: TensorType) -> VariableType:
    group = next((axis.name for axis in type_.shape if isinstance(axis, Group)), None)
    axes = (axis for axis in type_.shape if not isinstance(axis, Group))
    return VariableType(
        type_.dtype, group, tuple(axis if isinstance(axis, int) else axis.name or axis for axis in axes)
    )


def _readers(
    operators: Sequence[PatternOperator], outlines: Sequence[Outline], place: int, roots: Set[int]
) -> tuple[Readers, ...]:
    """Return the readers required of an operator's operands and of itself; none for operands that may be swapped."""

    def needed(slots: Set[OperandRef]) -> Readers:
        """Return the nodes that must read some values; only roots are known to be distinct nodes."""
        reading = [number for number, reader in enumerate(operators) if not slots.isdisjoint(reader.operands)]
        distinct = [outlines[number].kind for number in reading if number in roots]
        counts = {outlines[number].kind: max(1, distinct.count(outlines[number].kind)) for number in reading}
        return Readers(counts, frozenset([outlines[number] for number in reading if number != place]))

    operator = operators[place]
    operands = [needed(set() if operator.swappable else {slot}) for slot in operator.operands]
    given = {slot for reader in operators for slot in reader.operands if not slot.is_variable and slot.number == place}
    return (*operands, needed(given))


def _plan(operators: Sequence[PatternOperator], start: int) -> tuple[JoinPoint, ...]:
    """Return the join points that lead from one operator, and all below it, to all the others."""
    covered = _below(operators, [OperandRef(False, start, 0)])
    plan: list[JoinPoint] = []
    while True:
        reached = {slot.number for slot in covered if not slot.is_variable}
        open_ = [place for place in range(len(operators)) if place not in reached]
        if not open_:
            return tuple(plan)
        plan.append(_join_point(operators, open_, covered))
        covered |= _below(operators, [OperandRef(False, plan[-1].index, 0)])


def _join_point(operators: Sequence[PatternOperator], open_: Sequence[int], covered: set[OperandRef]) -> JoinPoint:
    """Choose an operator to continue at: preferably a reader of an operator, as variables have more readers."""

    def readers(slot: OperandRef) -> int:
        return 1 if slot.is_variable else 0 if operators[slot.number].operands else 2

    ways = [(readers(slot), place, slot) for place in open_ for slot in operators[place].operands if slot in covered]
    _, place, through = min(ways, key=lambda way: way[:2], default=(0, open_[-1], None))
    return JoinPoint(place, type(operators[place].op), through)


def _below(operators: Sequence[PatternOperator], slots: Iterable[OperandRef]) -> set[OperandRef]:
    """Return the references and everything that they are computed from."""
    stack, found = list(slots), set[OperandRef]()
    while stack:
        slot = stack.pop()
        if slot not in found:
            found.add(slot)
            stack.extend(() if slot.is_variable else operators[slot.number].operands)
    return found


def _is_same_number(one: Size, other: Size) -> bool:
    """Return whether two numbers are equal, zeros including their sign, since one over them differs."""
    return one == other and (one != 0 or str(one).startswith("-") == str(other).startswith("-"))


class Bindings:
    """The bindings of a partial match: operators to nodes, variables to values, sizes to numbers."""

    __slots__ = ("dtype", "groups", "nodes", "pending", "sizes", "values")

    nodes: list[Node | None]
    values: list[Value | None]
    sizes: dict[str, Size]
    groups: dict[str, tuple[Axis, ...]]
    dtype: DType | None
    """The element type for ``FLOAT``."""
    pending: list[tuple[Poly, Dim]]
    """Equations whose left side could not be solved when they were found."""

    def __init__(self, operators: int, variables: int) -> None:
        self.nodes, self.values = [None] * operators, [None] * variables
        self.sizes, self.groups, self.pending = {}, {}, []
        self.dtype = None

    def copy(self) -> Bindings:
        """Return an independent copy."""
        new = Bindings.__new__(Bindings)
        new.nodes, new.values = self.nodes.copy(), self.values.copy()
        new.sizes, new.groups, new.pending = self.sizes.copy(), self.groups.copy(), self.pending.copy()
        new.dtype = self.dtype
        return new

    def bind_node(self, index: int, operator: PatternOperator, node: Node) -> bool:
        """Bind an operator to a node; False if the node does not fit."""
        op = node.op
        if type(op) is not type(operator.op) or len(node.inputs) != len(operator.operands) or node.token is not None:
            return False
        for name, value in operator.literal:
            if getattr(op, name) != value:
                return False
        for name, value in operator.symbolic:
            if not self._equate_attribute(value, getattr(op, name)):
                return False
        for type_ in node.types:
            if type_.may_be_empty:
                return False
        self.nodes[index] = node
        return True

    def bind_variable(self, index: int, variable: VariableType, value: Value) -> bool:
        """Bind a variable to a value; False if it is bound to another one or the types do not fit."""
        known = self.values[index]
        if known is not None:
            return known == value
        self.values[index] = value
        return self.bind_type(variable, value.type)

    def bind_type(self, variable: VariableType, type_: TensorType) -> bool:
        """Bind what the type of a variable mentions; False if it does not fit."""
        shape, axes = type_.shape, variable.axes
        if type_.may_be_empty or not self._bind_dtype(variable.dtype, type_.dtype):
            return False
        lead = len(shape) - len(axes)
        if variable.group is None:
            if lead:
                return False
        elif lead < 0 or self.groups.setdefault(variable.group, shape[:lead]) != shape[:lead]:
            return False
        for wanted, actual in zip(axes, shape[lead:], strict=True):
            if isinstance(actual, Group):
                return False
            if isinstance(wanted, str):
                if not self._bind_size(wanted, actual):
                    return False
            elif not self._equate(wanted, actual):
                return False
        return True

    def _bind_dtype(self, wanted: DType, actual: DType) -> bool:
        if wanted is DType.INT:
            return actual.is_index
        if wanted is not DType.FLOAT:
            return wanted is actual
        if self.dtype is None and actual.is_floating:
            self.dtype = actual
        return self.dtype is actual

    def _equate(self, wanted: Dim, actual: Dim) -> bool:
        if isinstance(wanted, int):
            return wanted == actual
        if wanted.name is not None:
            return self._bind_size(wanted.name, actual)
        self.pending.append((wanted, actual))
        return True

    def _bind_size(self, name: str, actual: Dim) -> bool:
        """Bind a name to a size; False if it is bound to another one, or to a number that differs from it."""
        known = self.sizes.setdefault(name, actual)
        if isinstance(known, float):
            if not _is_same_number(known, actual):
                return False
            self.sizes[name] = actual
        return known == actual

    def _equate_attribute(self, wanted: AttributeValue, actual: AttributeValue) -> bool:
        if isinstance(wanted, tuple):
            return (
                isinstance(actual, tuple)
                and len(wanted) == len(actual)
                and all(self._equate_attribute(left, right) for left, right in zip(wanted, actual, strict=True))
            )
        if isinstance(wanted, DType):
            return isinstance(actual, DType) and self._bind_dtype(wanted, actual)
        if isinstance(wanted, Poly) and isinstance(actual, float):
            name = wanted.name
            return name is not None and _is_same_number(self.sizes.setdefault(name, actual), actual)
        if isinstance(wanted, int | Poly) and isinstance(actual, int | Poly):
            return self._equate(wanted, actual)
        if isinstance(wanted, float) and isinstance(actual, int | float):
            return _is_same_number(wanted, actual)
        return wanted == actual

    def settle(self, names: Iterable[str]) -> bool:
        """Solve the pending equations; return whether all hold and all names are bound."""
        progress = True
        while self.pending and progress:
            progress, waiting = False, self.pending
            self.pending = []
            for wanted, actual in waiting:
                difference = substitute(wanted, self.integers()) - actual
                if difference == 0:
                    continue
                solution = self._solve(difference)
                if solution is None:
                    self.pending.append((wanted, actual))
                else:
                    name, size = solution
                    if (isinstance(size, int) and size < 0) or not self._bind_size(name, size):
                        return False
                    progress = True
        return not self.pending and all(name in self.sizes for name in names)

    def _solve(self, difference: Dim) -> tuple[str, Dim] | None:
        """Return the only unbound size of an equation and its value; also of ``4*K - 12``, as sizes are integers."""
        unbound = [name for name in symbols(difference) if name.startswith(MARK)]
        if len(unbound) != 1:
            return None
        (name,) = unbound
        solved = solve(difference, lambda candidate: candidate == name)
        if solved is not None:
            return solved
        constant = substitute(difference, {name: 0})
        factor = substitute(difference, {name: 1}) - constant
        if not isinstance(constant, int) or not isinstance(factor, int) or not factor or constant % factor:
            return None
        value = -constant // factor
        return (name, value) if substitute(difference, {name: value}) == 0 else None

    def integers(self) -> dict[str, Dim]:
        """Return the bindings of sizes, without those of other numbers."""
        return {name: size for name, size in self.sizes.items() if not isinstance(size, float)}
