"""Selection of the graphs that a search returns: cheap ones, and ones that are cheap for different reasons.

Latencies guide a search, and some are wrong. Errors in the work that two graphs share cancel; the work that they do not
share decides between them. So among graphs of nearly the same cost, those that differ most from the others are worth
timing.

Invariant: the cheapest graph is always kept, and so is the original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node

DOUBT = 0.05
"""The relative error that a cost may have, as usual between prediction and measurement."""


class RankedGraph(Protocol):
    """A graph with its cost."""

    @property
    def graph(self) -> Graph:
        """The graph."""
        ...

    @property
    def seconds(self) -> float:
        """The cost of the graph."""
        ...


class NodeCost(Protocol):
    """Costs of nodes."""

    def node_cost(self, node: Node) -> float:
        """Return the latency of a node."""
        ...


AnyRanked = TypeVar("AnyRanked", bound=RankedGraph)
_Work: TypeAlias = tuple[str, tuple[tuple[str, bool], ...], float]
"""An operator with its operands' types and whether each is static, which determine its latency; and the latency."""


def finalists(found: Iterable[AnyRanked], original: AnyRanked, cost: NodeCost, count: int) -> list[AnyRanked]:
    """Return the graphs to keep, cheapest first: a quarter of them for their cost, the others by :func:`distinct`.

    Args:
        found: the graphs to choose from.
        original: the graph they were made from; if it is among them, it is kept and does not count.
        cost: gives the costs of nodes.
        count: the number of graphs to keep.
    """
    ordered = sorted(found, key=lambda one: one.seconds)
    given = [one for one in ordered if one is original]
    others = [one for one in ordered if one is not original]
    cheap = others[: max(1, count // 4)]
    kept = [*cheap, *distinct(others[len(cheap) :], cost, count - len(cheap), [*cheap, *given])]
    return sorted([*kept, *given], key=lambda one: one.seconds)


def finalists_or_cheapest(
    found: Sequence[AnyRanked], original: AnyRanked, cost: NodeCost, count: int
) -> tuple[list[AnyRanked], bool]:
    """Return (the finalists, true); after a keyboard interrupt, (the cheapest graphs, false).

    Costs may be measured here for the first time, so that an interrupt may well come.

    Args:
        found: the graphs to choose from, cheapest first.
        original: as in :func:`finalists`.
        cost: gives the costs of nodes.
        count: the number of graphs to keep.
    """
    try:
        return finalists(found, original, cost, count), True
    except KeyboardInterrupt:
        cheapest = [one for one in found if one is not original][:count]
        return [one for one in found if one is original or any(one is other for other in cheapest)], False


def distinct(
    found: Sequence[AnyRanked], cost: NodeCost, count: int, beside: Sequence[AnyRanked] = ()
) -> list[AnyRanked]:
    """Return the graphs that are most likely to be the fastest after all, most likely first.

    The relative error :data:`DOUBT` is assumed for the cost of the work that two graphs do not share.

    Args:
        found: the graphs to choose from, cheapest first.
        cost: gives the costs of nodes.
        count: the number of graphs to choose.
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
    """The work of graphs as multisets of numbered pieces."""

    def __init__(self, cost: NodeCost) -> None:
        self._cost = cost
        self._numbers: dict[_Work, int] = {}
        self._seconds: list[float] = []
        self._of: dict[Node, int] = {}
        self._known: dict[Graph, Counter[int]] = {}

    def apart(self, one: Graph, other: Graph) -> float:
        """Return the cost of the work that only one of two graphs does, summed over both."""
        first, second = self._counted(one), self._counted(other)
        unshared = (first - second) + (second - first)
        return sum(self._seconds[work] * count for work, count in unshared.items())

    def _counted(self, graph: Graph) -> Counter[int]:
        """Return the number of times each piece of work is done; work done at build time does not count."""
        if graph not in self._known:
            self._known[graph] = Counter([self._number(node) for node in graph.nodes if not node.is_static])
        return self._known[graph]

    def _number(self, node: Node) -> int:
        """Return the number of a node's piece of work."""
        number = self._of.get(node)
        if number is None:
            seconds = self._cost.node_cost(node)
            work = node.op.text, tuple([(value.type.text, value.node.is_static) for value in node.inputs]), seconds
            number = self._of[node] = self._numbers.setdefault(work, len(self._seconds))
            if number == len(self._seconds):
                self._seconds.append(seconds)
        return number
