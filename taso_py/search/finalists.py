"""Which of the graphs that a search found are kept: cheap ones, and ones that are cheap for another reason.

Latencies guide a search, and some are wrong. What two graphs have in common is wrong alike; what they do not share
decides between them, and may turn it round. So among graphs of nearly the same cost those are worth timing that differ
most from the others.

Invariant: the cheapest graph is always kept, and so is the original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node
from taso_py.ir.operator import Operator
from taso_py.ir.types import TensorType

DOUBT = 0.05
"""By what share a cost may be wrong: usual predictions differ from what is measured by as much."""


class Found(Protocol):
    """A graph that was found."""

    @property
    def graph(self) -> Graph:
        """The graph."""
        ...

    @property
    def seconds(self) -> float:
        """What it costs."""
        ...


class NodeCost(Protocol):
    """What nodes cost."""

    def node_cost(self, node: Node) -> float:
        """What a node adds to the latency of a graph."""
        ...


AnyFound = TypeVar("AnyFound", bound=Found)
_Work: TypeAlias = tuple[Operator, tuple[tuple[TensorType, bool], ...]]
"""An operator with the types of its operands, and which of them are static: what its latency depends on."""


def finalists(found: Iterable[AnyFound], original: AnyFound, cost: NodeCost, count: int) -> list[AnyFound]:
    """The graphs to keep, cheapest first: a quarter of them as they are the cheapest, the others by :func:`distinct`.

    Args:
        found: some graphs.
        original: what they were made from; if it is among them, it is kept and does not count.
        cost: says what nodes cost.
        count: how many to keep.
    """
    ordered = sorted(found, key=lambda one: one.seconds)
    given = [one for one in ordered if one is original]
    others = [one for one in ordered if one is not original]
    cheap = others[: max(1, count // 4)]
    kept = [*cheap, *distinct(others[len(cheap) :], cost, count - len(cheap), [*cheap, *given])]
    return sorted([*kept, *given], key=lambda one: one.seconds)


def distinct(found: Sequence[AnyFound], cost: NodeCost, count: int, beside: Sequence[AnyFound] = ()) -> list[AnyFound]:
    """The graphs that may most likely be the fastest after all, most likely first.

    One may gain on another the share :data:`DOUBT` of what either has and the other has not.

    Args:
        found: some graphs, the cheapest first.
        cost: says what nodes cost.
        count: how many to choose.
        beside: graphs that are chosen already; if there are none, the cheapest of ``found`` is the first choice.
    """
    if not found:
        return []
    chosen = list(beside) or [found[0]]
    picked = [] if beside else [found[0]]
    works = {id(one): _works(one.graph, cost) for one in (*found, *chosen)}
    least = {id(one): min(_apart(works[id(one)], works[id(other)]) for other in chosen) for one in found}
    waiting = [one for one in found if not any(one is other for other in chosen)]
    while waiting and len(picked) < count:
        best = max(waiting, key=lambda one: DOUBT * least[id(one)] - one.seconds)
        picked.append(best)
        waiting.remove(best)
        for one in waiting:
            least[id(one)] = min(least[id(one)], _apart(works[id(one)], works[id(best)]))
    return picked


def _works(graph: Graph, cost: NodeCost) -> Counter[tuple[_Work, float]]:
    """How often each piece of work that takes time is done, with its cost."""
    found: Counter[tuple[_Work, float]] = Counter()
    for node in graph.nodes:
        seconds = cost.node_cost(node)
        if seconds > 0:
            found[(node.op, tuple([(value.type, value.node.is_static) for value in node.inputs])), seconds] += 1
    return found


def _apart(one: Counter[tuple[_Work, float]], other: Counter[tuple[_Work, float]]) -> float:
    """The cost of what two graphs do not share, of both together."""
    return sum(seconds * count for part in (one - other, other - one) for (_, seconds), count in part.items())
