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
_Work: TypeAlias = tuple[str, tuple[tuple[str, bool], ...], float]
"""An operator with the types of its operands, and which of them are static: what its latency depends on; and that."""


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


def kept(found: Sequence[AnyFound], original: AnyFound, cost: NodeCost, count: int) -> tuple[list[AnyFound], bool]:
    """The same, and true; after an interrupt from the keyboard simply the cheapest, and false.

    Costs that nobody asked for before may be measured here, so that an interrupt may well come.

    Args:
        found: some graphs, the cheapest first.
        original: as in :func:`finalists`, like the others.
        cost: says what nodes cost.
        count: how many to keep.
    """
    try:
        return finalists(found, original, cost, count), True
    except KeyboardInterrupt:
        cheapest = [one for one in found if one is not original][:count]
        return [one for one in found if one is original or any(one is other for other in cheapest)], False


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
    works = _Works(cost)
    least = {id(one): min(works.apart(one.graph, other.graph) for other in chosen) for one in found}
    waiting = [one for one in found if not any(one is other for other in chosen)]
    while waiting and len(picked) < count:
        best = max(waiting, key=lambda one: DOUBT * least[id(one)] - one.seconds)
        picked.append(best)
        waiting.remove(best)
        for one in waiting:
            least[id(one)] = min(least[id(one)], works.apart(one.graph, best.graph))
    return picked


class _Works:
    """The work that graphs do, each piece numbered."""

    def __init__(self, cost: NodeCost) -> None:
        self._cost = cost
        self._numbers: dict[_Work, int] = {}
        self._seconds: list[float] = []
        self._of: dict[Node, int] = {}
        self._known: dict[Graph, Counter[int]] = {}

    def apart(self, one: Graph, other: Graph) -> float:
        """The cost of what two graphs do not share, of both together."""
        first, second = self._counted(one), self._counted(other)
        unshared = (first - second) + (second - first)
        return sum(self._seconds[work] * count for work, count in unshared.items())

    def _counted(self, graph: Graph) -> Counter[int]:
        """How often each piece of work is done; what is done at build time costs nothing."""
        if graph not in self._known:
            self._known[graph] = Counter([self._number(node) for node in graph.nodes if not node.is_static])
        return self._known[graph]

    def _number(self, node: Node) -> int:
        """The number of what a node does."""
        number = self._of.get(node)
        if number is None:
            seconds = self._cost.node_cost(node)
            work = node.op.text, tuple([(value.type.text, value.node.is_static) for value in node.inputs]), seconds
            number = self._of[node] = self._numbers.setdefault(work, len(self._seconds))
            if number == len(self._seconds):
                self._seconds.append(seconds)
        return number
