"""The possible gain of a rule, estimated by counting operators.

Invariant: an order on rules for pruning only; the cost of a graph is measured elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from taso_py.ir.graph import Graph, topological
from taso_py.ir.node import Node, Value
from taso_py.ir.operator import Constant, Input
from taso_py.ops.work import work
from taso_py.rules.substitution import Substitution


def lowers_cost(rule: Substitution) -> bool:
    """Return whether the target has fewer contractions; or as many and less arithmetic."""
    return _work(rule.target) < _work(rule.source)


def gains(source: Sequence[Value], target: Sequence[Value], data: frozenset[str]) -> bool:
    """Return whether the target of a candidate costs less than the source in some way that counts.

    It has fewer contractions, or as many and less arithmetic; or does less at the candidate's sizes; or less where
    ``data`` is read: values that depend on other variables only are computed once.
    """
    sides = [_Cost.of(side, data) for side in (source, target)]
    return any(getattr(sides[1], name) < getattr(sides[0], name) for name in ("operators", "flops", "data_flops"))


def saves_contraction(rule: Substitution) -> bool:
    """Return whether the target has fewer contractions."""
    return _work(rule.target)[0] < _work(rule.source)[0]


def recognizes(rule: Substitution) -> bool:
    """Return whether the target expresses a formula that the source writes out by an operator that the source lacks.

    The forms of one formula differ by steps that gain nothing by themselves; a search that has to take them first
    hardly reaches the operator.
    """
    return lowers_cost(rule) and bool(_names(rule.target) - _names(rule.source))


def only_adds(rule: Substitution) -> bool:
    """Return whether the target still computes everything that the source does, so that it can only add work."""
    computed = {value.node for value in rule.target.outputs} ^ set(rule.target.nodes)
    return all(value.node in computed for value in rule.source.outputs)


@dataclass(frozen=True)
class _Cost:
    """Cost of a side of concrete sizes."""

    operators: tuple[int, int]
    flops: int
    data_flops: int
    """Operations on values that depend on data."""

    @classmethod
    def of(cls, side: Sequence[Value], data: frozenset[str]) -> _Cost:
        nodes = topological(value.node for value in side)
        reads: set[Node] = set()
        flops: dict[Node, int] = {}
        for node in nodes:
            if node.op.key in data if isinstance(node.op, Input) else any(v.node in reads for v in node.inputs):
                reads.add(node)
            flops[node] = _flops(node)
        return cls(
            _work(Graph((), tuple(side))), sum(flops.values()), sum(flops[node] for node in nodes if node in reads)
        )


@lru_cache(maxsize=1 << 15)
def _flops(node: Node) -> int:
    return 0 if isinstance(node.op, Input) else work(node).flops or 0


def _names(graph: Graph) -> set[str]:
    return {node.op.name for node in graph.nodes}


def _work(graph: Graph) -> tuple[int, int]:
    ops = [node.op for node in graph.nodes]
    operators = [op for op in ops if not (op.is_movement or isinstance(op, Input | Constant))]
    contractions = sum(op.is_contraction for op in operators)
    return contractions, len(operators) - contractions
