"""Selection of covers: they may not overlap, and each saves something over its nodes one by one.

Overlaps are local (a sum of two convolutions can be computed along with either), so each connected part of the conflict
graph is usually small and solved exactly, by branch and bound. In a large one covers are taken greedily by savings.

Invariant: the selected covers compute every node once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from taso_py.ir.node import Node
from taso_py.kernels.tile import Cover

MOST_EXACT = 18
"""The most covers in a connected part of the conflict graph that is solved exactly."""


def cheapest_covers(
    alone: Mapping[Node, Sequence[Cover]], fused: Iterable[Cover], seconds: Callable[[Cover], float]
) -> list[Cover]:
    """Return the cheapest covers that compute every node once.

    Args:
        alone: the nodes, and the covers of each by itself.
        fused: the covers of several of the nodes.
        seconds: returns a cover's cost.
    """
    single = {node: min(covers, key=seconds) for node, covers in alone.items()}
    costs = {node: seconds(cover) for node, cover in single.items()}
    savings = {cover: sum(costs[node] for node in cover.nodes) - seconds(cover) for cover in fused}
    packed = _packing({cover: saving for cover, saving in savings.items() if saving > 0})
    inside = {node for cover in packed for node in cover.nodes}
    return [*packed, *(cover for node, cover in single.items() if node not in inside)]


def _packing(savings: Mapping[Cover, float]) -> list[Cover]:
    """Return disjoint covers that save the most together."""
    packed: list[Cover] = []
    for part in _parts(savings):
        ordered = sorted(part, key=lambda cover: (-savings[cover], cover.root.digest, cover.name, len(cover.nodes)))
        packed += _heaviest(ordered, savings) if len(ordered) <= MOST_EXACT else _greedy(ordered)
    return packed


def _parts(covers: Iterable[Cover]) -> Iterator[list[Cover]]:
    """Yield the connected parts of the conflict graph, whose edges join overlapping covers."""
    by_node: dict[Node, list[Cover]] = {}
    for cover in covers:
        for node in cover.nodes:
            by_node.setdefault(node, []).append(cover)
    seen: set[Cover] = set()
    for first in covers:
        if first in seen:
            continue
        seen.add(first)
        part = [first]
        for cover in part:
            for other in (other for node in cover.nodes for other in by_node[node] if other not in seen):
                seen.add(other)
                part.append(other)
        yield part


def _greedy(ordered: Sequence[Cover]) -> list[Cover]:
    taken: list[Cover] = []
    for cover in ordered:
        if all(_disjoint(cover, other) for other in taken):
            taken.append(cover)
    return taken


def _heaviest(ordered: Sequence[Cover], savings: Mapping[Cover, float]) -> list[Cover]:
    """Return the best set of disjoint covers, by branch and bound: with the first, then without it."""
    best, best_saving = list[Cover](), 0.0
    stack: list[tuple[list[Cover], float, Sequence[Cover]]] = [([], 0.0, ordered)]
    while stack:
        taken, saving, rest = stack.pop()
        if saving > best_saving:
            best, best_saving = taken, saving
        if not rest or saving + sum(savings[cover] for cover in rest) <= best_saving:
            continue
        first, others = rest[0], rest[1:]
        stack.append((taken, saving, others))
        stack.append(([*taken, first], saving + savings[first], [c for c in others if _disjoint(c, first)]))
    return best


def _disjoint(one: Cover, other: Cover) -> bool:
    return not set(one.nodes) & set(other.nodes)
