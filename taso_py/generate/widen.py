"""Wider forms of rules that merge two operators on a shared operand: the same for more operators at once.

Merging two small operators may not pay where merging four does, and a search that has to pass through the former does
not reach the latter. The wider rule follows from the narrow one, so it is a macro; it is proved on its own all the
same.

Invariant: every rule returned was proved by the given prover.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from taso_py.ir.errors import TasoError
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Input
from taso_py.ir.size import Dim, symbol
from taso_py.ops.movement import Concat, Slice
from taso_py.rules.substitution import Substitution, canonical
from taso_py.rules.verdict import Outcome, Prover

WAYS = (3, 4)
"""Numbers of operators that the wider rules merge; matching tries every choice of so many readers of an operand."""


def widen_rules(rules: Iterable[Substitution], prove: Prover) -> list[Substitution]:
    """Return the wider forms of the rules that have one, if it is proved."""
    found: list[Substitution] = []
    for rule in rules:
        for ways in WAYS:
            wide = _widen(rule, ways)
            verdict = prove(wide) if wide is not None else None
            if wide is None or verdict is None or verdict.outcome is not Outcome.PROVED:
                continue
            if verdict.numerics is not None:  # a rule without a proved numerics class is not shipped
                found.append(replace(wide, numerics=verdict.numerics, proof="derived"))
    return found


def _widen(rule: Substitution, ways: int) -> Substitution | None:
    """Return the rule for more operators, or None if it does not merge two."""
    merged = _match_merge(rule)
    if merged is None:
        return None
    first, second, whole, cut = merged
    try:
        copies = [first, *(_renamed(first, second, number) for number in range(2, ways + 1))]
        operands = [_operand(parts, joined) for *parts, joined in zip(*copies, whole.inputs, strict=True)]
        target = make(whole.op, operands).value
        sources = [make(whole.op, copy).value for copy in copies]
        start: Dim = 0
        outputs: list[Value] = []
        for source in sources:
            length = source.type.shape[cut.axis]
            if not isinstance(length, Dim):
                return None
            outputs.append(make(Slice(cut.axis, start, start + length), [target]).value)
            start = start + length
        variables = tuple(dict.fromkeys(value.node for copy in copies for value in copy))
        return canonical(Substitution(Graph(variables, tuple(sources)), Graph(variables, tuple(outputs))))
    except TasoError:
        return None


def _match_merge(rule: Substitution) -> tuple[Sequence[Value], Sequence[Value], Node, Slice] | None:
    """Return the operands of both operators, the merged operator and the first slice of it; None for any other rule."""
    sources, targets = rule.source.outputs, rule.target.outputs
    if len(sources) != 2 or rule.preconditions:
        return None
    (one, two), (cut, other) = (value.node for value in sources), (value.node for value in targets)
    if not (isinstance(cut.op, Slice) and isinstance(other.op, Slice) and cut.inputs == other.inputs):
        return None
    whole = cut.inputs[0].node
    operands = [value for node in (one, two) for value in node.inputs]
    if not one.op == two.op == whole.op or any(not isinstance(value.node.op, Input) for value in operands):
        return None
    if cut.op.start != 0 or any(not _fits(*parts) for parts in zip(one.inputs, two.inputs, whole.inputs, strict=True)):
        return None
    return one.inputs, two.inputs, whole, cut.op


def _fits(one: Value, two: Value, joined: Value) -> bool:
    """Return whether the merged operator's operand is the shared one, or the concatenation of both."""
    return (
        one == two == joined if one == two else isinstance(joined.node.op, Concat) and joined.node.inputs == (one, two)
    )


def _renamed(first: Sequence[Value], second: Sequence[Value], number: int) -> Sequence[Value]:
    """Return the operands of copy ``number``: the second's, with its own variables and sizes renamed."""
    known = {name for value in first for name in value.type.symbols}
    own = {name for value in second for name in value.type.symbols} - known
    sizes: dict[str, Dim] = {name: symbol(f"{name}_{number}") for name in own}
    return [_copy(value, sizes, number) if value not in first else value for value in second]


def _copy(value: Value, sizes: dict[str, Dim], number: int) -> Value:
    op = value.node.op
    assert isinstance(op, Input)
    return make(replace(op, key=f"{op.key}_{number}", type=op.type.substitute(sizes))).value


def _operand(parts: Sequence[Value], joined: Value) -> Value:
    return joined if all(part == joined for part in parts) else make(joined.node.op, parts).value
