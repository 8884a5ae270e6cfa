"""Incremental cost estimates: after a rewrite, only the changed nodes and their surroundings are covered anew.

An estimate records which covers compute a graph, in which formats, and the cost of each. A substitution rebuilds
everything downstream of it, but node for node: there the covers, the formats and the prices stay.

Invariant: an estimate is the cost of a feasible plan, hence never below that of the best plan. A fresh one is that of
:func:`taso_py.cost.choice.choose`; a revised one may be higher if other covers and formats far from the changes would
now be better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from math import fsum

from taso_py.backend.plan import Format, is_formatted
from taso_py.cost.choice import Costs, Problem, allowed, coverings, is_usable, solve
from taso_py.cost.labelling import (
    DENSE_BOUNDARY,
    ROUNDING_MARGIN,
    BoundaryFormats,
    Labelling,
    Labels,
    Placement,
    Prices,
)
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running
from taso_py.kernels.tile import Cover

REACH = 3
"""The most nodes that a cover has before its last: product, normalisation, sum, activation."""

SURROUNDINGS = tuple(Format)
"""The formats assumed everywhere around the affected nodes, one after the other, when covers are chosen for them."""


@dataclass(frozen=True)
class Estimate:
    """The cost estimate of a graph, with the covers, formats and conversions it is based on."""

    placements: Mapping[Node, Placement]
    """The placements, by the last node of each."""
    homes: Mapping[Node, Node]
    """For nodes inside a placement, its last node."""
    conversions: Mapping[Value, float]
    """The converted values, and the cost of each conversion."""
    seconds: float

    def gives(self, value: Value) -> Format:
        """Return the format in which a value is given."""
        placement = self.placements.get(value.node)
        return Format.DENSE if placement is None else placement.pairs[placement.label][1]


def estimate_graph(
    graph: Graph, prices: Prices, formats: Iterable[Format] = Format, boundary: BoundaryFormats = DENSE_BOUNDARY
) -> Estimate:
    """Return the estimate of a graph, computed from scratch."""
    found = solve(Problem(graph, prices, frozenset(formats)), boundary)
    return _estimate(found.labelling, found.labels, {}, found.labelling.values)


def _estimate(labelling: Labelling, labels: Labels, known: Mapping[Value, float], values: Set[Value]) -> Estimate:
    """Return the estimate of a graph under labels.

    Args:
        labelling: the placements.
        labels: their labels.
        known: the costs of conversions that are not recomputed; those of values that are recomputed are ignored.
        values: the values whose conversion cost is recomputed.
    """
    placements = labelling.placements
    placements.update((root, replace(placements[root], label=label)) for root, label in labels.items())
    conversions = {value: seconds for value, seconds in known.items() if value not in values}
    conversions.update((value, seconds) for value in values if (seconds := labelling.conversion_cost(value, {})))
    own = sum([placement.own[placement.label] for placement in placements.values()])
    return Estimate(placements, labelling.homes, conversions, seconds=own + fsum(conversions.values()))


def revise(
    before: Estimate,
    graph: Graph,
    images: Mapping[Node, Node],
    touched: Set[Node],
    prices: Prices,
    formats: Iterable[Format] = Format,
    boundary: BoundaryFormats = DENSE_BOUNDARY,
) -> Estimate:
    """Return the estimate of a graph that was made from another by a rewrite.

    Args:
        before: the estimate of the other graph.
        graph: the new graph.
        images: maps nodes to the new nodes that differ from them in their operands only.
        touched: the nodes that are new, read something else than before, or lost or gained readers.
        prices: the latencies.
        formats: the memory formats to choose from.
        boundary: the formats of the graph's inputs and outputs.
    """
    revision = _Revision(before, graph, images, prices=prices, formats=frozenset(formats), boundary=boundary)
    affected = revision.remove_placements(revision.affected(touched))
    values = {value for node in {*touched, *affected} for value in node.outputs if is_formatted(value)}
    least = {way: way.lower_bound() for way in revision.retilings(affected)}
    first, *others = sorted(least, key=least.__getitem__)  # the one that is likely to win
    best = first.estimate(values)
    for way in others:
        if least[way] * ROUNDING_MARGIN < best.seconds:
            best = min(best, way.estimate(values), key=lambda estimate: estimate.seconds)
    return best


class _Revision:
    """A revision of an estimate in progress."""

    def __init__(
        self,
        before: Estimate,
        graph: Graph,
        images: Mapping[Node, Node],
        prices: Prices,
        formats: frozenset[Format],
        boundary: BoundaryFormats,
    ) -> None:
        self._graph, self._images, self._prices, self._formats = graph, images, prices, formats
        self._users, self._returned = graph.users, set(graph.outputs)
        self._labelling = Labelling(graph, prices, boundary)
        self._placements, self._homes = self._labelling.placements, self._labelling.homes
        self._conversions = {
            Value(images.get(node, node), output): seconds for (node, output), seconds in before.conversions.items()
        }
        for placement in before.placements.values():
            self._take_over(placement)

    def _take_over(self, placement: Placement) -> None:
        """Take over a placement, unless nodes of it are gone or have become nodes that another placement computes."""
        images, placements, homes = self._images, self._placements, self._homes
        nodes = tuple([images.get(node, node) for node in placement.nodes])
        for node in nodes:
            if node not in self._users or node in placements or node in homes:
                return
        *inner, root = nodes
        if nodes != placement.nodes:
            # Several times as fast as dataclasses.replace.
            placement = Placement(
                nodes, placement.pairs, placement.own, label=placement.label, format_matters=placement.format_matters
            )
        placements[root] = placement
        for node in inner:
            homes[node] = root

    def affected(self, touched: Set[Node]) -> dict[Node, None]:
        """Return the nodes to cover anew: touched or uncovered ones, and those that a cover computes with them."""
        start = dict.fromkeys(
            node
            for node in self._graph.nodes
            if (node in touched or (node not in self._placements and node not in self._homes)) and is_running(node)
        )
        waiting = list(start)
        while waiting:
            node = waiting.pop()
            # A value that is read through views may have another layout than before.
            if node.op.is_view:
                more = [user for user in self._users[node] if user not in start]
                start.update(dict.fromkeys(more))
                waiting += more
        affected, reached = dict(start), list(start)
        roots = dict(start)
        for _ in range(REACH):
            reached = [user for node in reached for user in self._users[node] if user not in roots]
            roots.update(dict.fromkeys(reached))
        for root in roots:
            for cover in self._prices.covers(root):
                if len(cover.nodes) > 1 and not start.keys().isdisjoint(cover.nodes) and self._is_usable(cover):
                    affected.update(dict.fromkeys(cover.nodes))
        return affected

    def remove_placements(self, affected: dict[Node, None]) -> list[Node]:
        """Remove the placements that meet the affected nodes; return all nodes that have no placement then."""
        waiting = list(affected)
        while waiting:
            node = waiting.pop()
            placement = self._placements.pop(self._homes.get(node, node), None)
            for inner in placement.nodes if placement is not None else ():
                self._homes.pop(inner, None)
                if inner in self._users and inner not in affected:
                    affected[inner] = None
                    waiting.append(inner)
        return [node for node in self._graph.nodes if node in affected]

    def retilings(self, affected: Sequence[Node]) -> list[_Retiling]:
        """Return the ways to cover the nodes without placement; there is at least one."""
        inside = set(affected)
        sensitive = self._format_sensitive(affected)
        alone: dict[Node, list[Cover]] = {}
        fused: list[Cover] = []
        for node in affected:
            covers = self._prices.covers(node)
            alone[node] = [cover for cover in covers if len(cover.nodes) == 1]
            fused += [c for c in covers if len(c.nodes) > 1 and inside.issuperset(c.nodes) and self._is_usable(c)]

        @cache
        def costs(cover: Cover) -> Costs:
            pairs = allowed(cover, self._formats, matter=cover.root in sensitive)
            return pairs, [self._prices.cover_seconds(cover, pair) for pair in pairs]

        def placement(cover: Cover) -> Placement:
            return Placement(cover.nodes, *costs(cover), 0, cover.root in sensitive)

        taken = coverings(
            alone, fused, costs, prices=self._prices, starts=SURROUNDINGS if sensitive else (Format.DENSE,)
        )
        known = {value: seconds for value, seconds in self._conversions.items() if value.node in self._users}
        return [
            _Retiling(self._labelling.extended(map(placement, covers)), [cover.root for cover in covers], known)
            for covers in taken
        ]

    def _is_usable(self, cover: Cover) -> bool:
        return is_usable(cover, self._users, self._returned)

    def _format_sensitive(self, affected: Sequence[Node]) -> set[Node]:
        """Return the affected nodes whose memory format may matter: image operators, and nodes connected to them."""
        if Format.CHANNELS_LAST not in self._formats:
            return set()
        inside, found = set(affected), set[Node]()
        waiting = [node for node in affected if node.op.has_channels or self._meets_format_sensitive(node)]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += [other for other in self._connected(node) if other in inside and other not in found]
        return found

    def _connected(self, node: Node) -> list[Node]:
        """Return the nodes connected with a node by values of rank 4."""
        below = [value.node for value in node.inputs if is_formatted(value)]
        return below + [
            user for user in self._users[node] if any(v.node is node and is_formatted(v) for v in user.inputs)
        ]

    def _meets_format_sensitive(self, node: Node) -> bool:
        placements = (self._placements.get(self._homes.get(other, other)) for other in self._connected(node))
        return any(placement is not None and placement.format_matters for placement in placements)


class _Retiling:
    """A way to cover the nodes that have lost their placements."""

    def __init__(self, labelling: Labelling, new_roots: Sequence[Node], known: Mapping[Value, float]) -> None:
        self._labelling, self._new_roots, self._known = labelling, new_roots, known

    def lower_bound(self) -> float:
        """Return a lower bound of the cost of the placements, whatever their formats."""
        return fsum([min(placement.own) for placement in self._labelling.placements.values()])

    def estimate(self, values: Set[Value]) -> Estimate:
        """Choose formats, of new placements and of others as far as that pays, and return the estimate.

        Args:
            values: the values whose conversion cost may have changed, whatever is chosen.
        """
        labellings, labelling = self._local_optima(), self._labelling
        changed = set(self._new_roots).union(*labellings)
        around = labelling.values_around(changed)
        best = min(labellings, key=lambda labels: labelling.seconds(changed, around, labels), default=Labels())
        return _estimate(labelling, best, self._known, values | around)

    def _local_optima(self) -> list[Labels]:
        """Return local optima of the labels, one per start; only one if it is fastest everywhere without conversion."""
        found: list[Labels] = []
        labelling, free = self._labelling, self._labelling.free(self._new_roots)
        for label in (1, 0) if free else ():
            found.append(labels := labelling.local_search(free, label))
            least = fsum([min(labelling.placements[root].own) for root in labels])
            if labelling.seconds(labels, labelling.values_around(labels), labels) * ROUNDING_MARGIN <= least:
                break
        return found
