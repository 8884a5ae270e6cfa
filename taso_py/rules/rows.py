"""Loops over rows rolled up: what is computed of each row becomes what is computed of all rows at once.

Export unrolls a loop into operators for each row, and rules have few operands and outputs. But what is computed of a
slice is a slice of what is computed of the whole, by rules of few operators. So everything that is done to all rows
alike becomes slices of one value. Where a loop ends in a concatenation, adjacent slices are one, by a rule for two of
them, wherever they stand among the operands, since concatenation is associative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from taso_py.ir.graph import Graph, topological
from taso_py.ir.node import Node, Value, make, remake
from taso_py.ir.operator import Input
from taso_py.ops.movement import Concat, Reshape, Slice
from taso_py.rules.backwards import backwards
from taso_py.rules.excerpt import replaced
from taso_py.rules.match import Matcher
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.substitution import Substitution

MOST_SLICES = 4
"""The most slices of a value that are left to ordinary rules if what is computed of them is not joined."""
LEAST_ELEMENTS = 3
"""The fewest slices, each without its axis, of which what is computed is computed at once: few rules have such."""
VIEWS = frozenset({Reshape, Slice})
"""The operators of which every rule that is needed has one in its source: others are not even read."""


def has_rows(graph: Graph) -> bool:
    """Return whether a graph has what unrolled loops have at least: many slices of a value, or some to be joined."""
    running = [node for node in graph.nodes if not node.is_static]
    slices = Counter((node.inputs[0], node.op.axis) for node in running if isinstance(node.op, Slice))
    is_joined = bool(slices) and any(isinstance(node.op, Concat) for node in running)
    return is_joined or max(slices.values(), default=0) >= LEAST_ELEMENTS


class Roller:
    """Rules by which loops are rolled up."""

    def __init__(self, rules: Iterable[Substitution]) -> None:
        """Choose the rules that are needed; their order does not matter."""
        ways: dict[str, tuple[Substitution, Substitution]] = {}
        for stored in RuleSet.of(rules).stored:
            if stored.kinds.isdisjoint(VIEWS):
                continue
            for way in _directions(stored.rule):
                if way is stored.rule or way.id not in ways:
                    ways[way.id] = way, stored.rule
        self.given = {id_: rule for id_, (_, rule) in ways.items()}
        """The given rule by its identifier, and by that of its reverse."""
        # Where one rule takes two operands for slices and another one of them, the other operand would stay behind.
        ordered = sorted([way for way, _ in ways.values()], key=lambda way: (-way.size[0], way.id))

        def matcher(fits: Callable[[Node, Node], bool]) -> Matcher:
            return Matcher([way for way in ordered if fits(_root(way.source), _root(way.target))])

        self.raising, self.lowering = matcher(_raises), matcher(lambda source, target: _raises(target, source))
        self.viewing, self.returning, self.joining = matcher(_views), matcher(_returns), matcher(_joins)
        self.most = max((len(_root(way.source).inputs) for way in ordered), default=0)
        """The most operands of an operator that a rule is about."""
        self._known = _Derivation(self)

    def sets(self, graph: Graph) -> Iterator[Sequence[Node]]:
        """Yield the nodes that may be computed otherwise: concatenations, one by one, and then slices of one value."""
        joined = [node for node in graph.nodes if isinstance(node.op, Concat) and not node.is_static]
        self._known.lift(joined)
        for node in joined:
            yield (node,)
        self._known.lift(graph.nodes)
        yield from self._known.alike(graph.nodes)

    def leaves(self, roots: Sequence[Node]) -> Sequence[Value]:
        """Return what some of these nodes are computed from, as far as it matters; nothing if they stay as they are."""
        return self._known.leaves(roots)

    def derived(self, roots: Sequence[Node]) -> tuple[Sequence[Value], Sequence[Substitution]]:
        """Return what replaces nodes, and the rules that say so; nothing if they stay as they are."""
        derivation = _Derivation(self)
        derivation.lift(roots)
        values = derivation.rolled(roots)
        return values, [self.given[id_] for id_ in derivation.used]


class _Derivation:
    """Values in other forms, by rules."""

    def __init__(self, rules: Roller) -> None:
        self._rules = rules
        self._lifted: dict[Node, Value | None] = {}
        """Nodes as slices, or as slices of length one without their axis; None for those that are neither."""
        self.used = set[str]()
        """The identifiers of the rules that were applied."""

    def lift(self, roots: Iterable[Node]) -> None:
        """Find the nodes that are slices, or can be, among all that some nodes are computed from."""
        for node in topological(roots):
            if node not in self._lifted:
                self._lifted[node] = self._lift(node)

    def rolled(self, roots: Sequence[Node]) -> Sequence[Value]:
        """Return what replaces some nodes: a concatenation of fewer operands, or slices of one value for others.

        It is empty if no two operands of a concatenation are joined, or if the others are no slices of one value.
        """
        if len(roots) > 1:
            wholes = {self._whole(root) for root in roots}
            return () if None in wholes or len(wholes) > 1 else self._slices(roots)
        (root,), runs = roots, self._runs(roots[0])
        if len(runs) == len(root.inputs):
            return ()
        parts = [self._narrowed(part) if len(operands) > 1 else operands[0] for part, operands in runs]
        return [parts[0] if len(parts) == 1 else make(root.op, parts).value]

    def alike(self, nodes: Iterable[Node]) -> Iterator[Sequence[Node]]:
        """Yield the sets of nodes that are slices of one value each, more than ordinary rules have outputs."""
        sets = dict[Value, list[Node]]()
        for node in nodes:
            whole = self._whole(node)
            if whole is not None:
                sets.setdefault(whole, []).append(node)
        return (alike for alike in sets.values() if len(alike) >= self._least(alike[0]))

    def _least(self, node: Node) -> int:
        """Return the fewest nodes like this one that are computed at once."""
        part = self._lifted[node]
        return LEAST_ELEMENTS if part is not None and isinstance(part.node.op, Reshape) else MOST_SLICES + 1

    def leaves(self, roots: Sequence[Node]) -> Sequence[Value]:
        """Return what some nodes (see :meth:`rolled`) are computed from, down to what they are computed of slices of.

        It is empty if nothing replaces them.
        """
        if len(roots) > 1:
            return self._below([(root.value, True) for root in roots])
        runs = self._runs(roots[0])
        if len(runs) == len(roots[0].inputs):
            return ()
        return self._below([(operand, len(operands) > 1) for _, operands in runs for operand in operands])

    def _below(self, values: Sequence[tuple[Value, bool]]) -> Sequence[Value]:
        """Return what values are computed from; those without a mark, and what is no slice, are not taken apart."""
        leaves = dict[Value, None]()
        stack, seen = [*reversed(values)], set[Value]()
        while stack:
            value, is_joined = stack.pop()
            if value in seen:
                continue
            if is_joined and self._lifted.get(value.node) is not None:
                seen.add(value)
                stack += [(operand, not isinstance(value.node.op, Slice)) for operand in reversed(value.node.inputs)]
            else:
                leaves[value] = None
        return [leaf for leaf in leaves if leaf not in seen]

    def _slices(self, nodes: Iterable[Node]) -> Sequence[Value]:
        return [part for part in map(self._lifted.get, nodes) if part is not None]

    def _whole(self, node: Node) -> Value | None:
        """Return the value that a node is a slice of by rules; None if it is none, or is a view as it stands."""
        part = None if type(node.op) in VIEWS else self._lifted.get(node)
        if part is None:
            return None
        slice_ = part.node if isinstance(part.node.op, Slice) else part.node.inputs[0].node
        return slice_.inputs[0]

    def _lift(self, node: Node) -> Value | None:
        if node.is_static or node.token is not None or len(node.types) > 1:
            return None
        if isinstance(node.op, Slice):
            return node.value if node.op.step == 1 else None
        lifted = [self._lifted[operand.node] for operand in node.inputs]
        if not any(lifted) or len(lifted) > self._rules.most:
            return None
        operands = [operand if part is None else part for part, operand in zip(lifted, node.inputs, strict=True)]
        return self._raised(remake(node, operands).value)

    def _raised(self, value: Value) -> Value | None:
        """Return what is computed of slices as a slice, perhaps without its axis, if it is one by a rule."""
        raised = self._applied(self._rules.raising, value, levels=2)
        if raised is not None:
            return raised
        if not isinstance(value.node.op, Reshape):
            return self._without_axis(value)
        if _part(value) is not None:
            return value
        returned = self._applied(self._rules.returning, value, levels=2)
        return returned if returned is not None and isinstance(returned.node.op, Slice) else None

    def _without_axis(self, value: Value) -> Value | None:
        """Return what is computed of slices without their axis as a slice without it, if it is one by rules."""
        part = next((part for part in map(_part, value.node.inputs) if part is not None), None)
        place = None if part is None else value.type.rank + 1 + part.axis
        if place is None or place < 0:
            return None
        shape = value.type.dims
        whole = make(Reshape((*shape[:place], 1, *shape[place:])), [value]).value
        inner = self._applied(self._rules.viewing, whole, levels=3)
        raised = None if inner is None else self._applied(self._rules.raising, inner, levels=2)
        back = make(Reshape(shape), [whole]).value
        if raised is None or self._applied(self._rules.returning, back, levels=2) != value:
            return None
        return make(Reshape(shape), [raised]).value

    def _runs(self, node: Node) -> Sequence[tuple[Value, Sequence[Value]]]:
        """Return the slices that adjacent operands of a concatenation are together, each with these operands.

        An operand that is no slice along the axis, or adjoins no other, stands alone.
        """
        runs: list[tuple[Value, list[Value]]] = []
        axis = node.op.axis if isinstance(node.op, Concat) else 0
        for operand in node.inputs:
            part = self._lifted.get(operand.node)
            if part is not None and runs and adjoin(runs[-1][0], part, axis):
                pair = make(node.op, [runs[-1][0], part]).value
                joined = self._applied(self._rules.joining, pair, levels=2)
                if joined is not None:
                    runs[-1][1].append(operand)
                    runs[-1] = joined, runs[-1][1]
                    continue
            runs.append((part or operand, [operand]))
        return runs

    def _narrowed(self, part: Value) -> Value:
        """Return a slice of something computed as what is computed of slices, as far as rules tell."""
        whole = self._applied(self._rules.returning, part, levels=1)
        if whole is not None:
            return whole
        lowered: dict[Value, Value] = {}
        waiting = [part]
        for value in waiting:
            below = self._applied(self._rules.lowering, value, levels=2)
            if below is not None:
                lowered[value] = below
                waiting += [o for o in below.node.inputs if isinstance(o.node.op, Slice) and o not in waiting]
        narrowed: dict[Value, Value] = {}
        for value, below in reversed(lowered.items()):
            narrowed[value] = remake(below.node, [narrowed.get(o, o) for o in below.node.inputs]).value
        return narrowed.get(part, part)

    def _applied(self, matcher: Matcher, value: Value, levels: int) -> Value | None:
        """Return what a rule puts in place of a value, by the first that matches the uppermost levels of operators."""
        found = replaced(matcher, [value], levels)
        if found is None:
            return None
        rule, (target,) = found
        self.used.add(rule.id)
        return target


def _root(side: Graph) -> Node:
    return side.outputs[0].node


def _directions(rule: Substitution) -> Iterator[Substitution]:
    """Yield the directions in which a rule may be part of a derivation: as it is, and reversed where that is a rule."""
    if len(rule.source.outputs) > 1:
        return
    source, target = _root(rule.source), _root(rule.target)
    if _views(source, target) or _returns(source, target) or _joins(source, target):
        yield rule
    if _raises(source, target) or _raises(target, source):
        yield rule
        if (way := backwards(rule)) is not None:
            yield way


def _raises(source: Node, target: Node) -> bool:
    """Return whether a rule leads from something computed of slices to a slice of that computed of the whole."""
    return (
        isinstance(target.op, Slice)
        and not isinstance(source.op, Slice)
        and type(target.inputs[0].node.op) is type(source.op)
        and any(isinstance(operand.node.op, Slice) for operand in source.inputs)
    )


def _views(source: Node, target: Node) -> bool:
    """Return whether a rule leads from something computed under another shape to that computed under its own."""
    if not isinstance(source.op, Reshape) or isinstance(target.op, Input | Reshape):
        return False
    inner = source.inputs[0].node
    return type(inner.op) is type(target.op) and any(isinstance(operand.node.op, Reshape) for operand in inner.inputs)


def _returns(source: Node, target: Node) -> bool:
    """Return whether a rule says that views of a value are the value."""
    if not isinstance(source.op, Slice | Reshape) or not isinstance(target.op, Input):
        return False
    operand = source.inputs[0].node
    return operand is target or (isinstance(operand.op, Reshape) and operand.inputs[0].node is target)


def _joins(source: Node, target: Node) -> bool:
    """Return whether a rule leads from two slices, joined, to one."""
    parts = [operand.node for operand in source.inputs]
    is_joint = isinstance(source.op, Concat) and len(parts) == 2 and all(isinstance(part.op, Slice) for part in parts)
    return is_joint and isinstance(target.op, Slice)


def adjoin(one: Value, other: Value, axis: int) -> bool:
    """Return whether two values are slices of one value along an axis, and the first ends where the second begins."""
    first, second = one.node.op, other.node.op
    return (
        isinstance(first, Slice)
        and isinstance(second, Slice)
        and one.node.inputs == other.node.inputs
        and axis == first.axis == second.axis
        and first.step == second.step == 1
        and first.stop == second.start
    )


def _part(value: Value) -> Slice | None:
    """Return the slice that a value is a view of, without the axis along which it is one element long."""
    op = value.node.inputs[0].node.op if isinstance(value.node.op, Reshape) else None
    if not isinstance(op, Slice):
        return None
    shape = value.node.inputs[0].type.dims
    place = len(shape) + op.axis
    return op if shape[place] == 1 and (*shape[:place], *shape[place + 1 :]) == value.type.dims else None
