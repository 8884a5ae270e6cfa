"""Incremental cost estimates: after a rewrite, only the changed nodes and their surroundings are covered anew.

An estimate records which covers compute a graph, in which formats, and the cost of each. A substitution rebuilds
everything downstream of it, but node for node: there the covers, the formats and the prices stay.

Invariant: an estimate is the cost of a feasible plan, hence never below that of the best plan. A fresh one is that of
:func:`taso_py.cost.choice.choose`; a revised one may be higher if other covers and formats far from the changes would
now be better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from math import fsum

from taso_py.backend.plan import Format, is_formatted
from taso_py.cost.choice import (
    DENSE_BOUNDARY,
    ROUNDING_MARGIN,
    BoundaryFormats,
    Costs,
    Prices,
    Problem,
    allowed,
    coverings,
    is_usable,
    solve,
)
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running
from taso_py.kernels.tile import Cover, Formats

REACH = 3
"""The most nodes that a cover has before its last: product, normalisation, sum, activation."""

SURROUNDINGS = tuple(Format)
"""The formats assumed everywhere around the affected nodes, one after the other, when covers are chosen for them."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A chosen cover, reduced to the facts that later changes around it need."""

    nodes: tuple[Node, ...]
    """The nodes that it computes; the last is the one whose outputs others read."""
    pairs: Sequence[Formats]
    """The formats to choose from: one or two."""
    own: Sequence[float]
    """The cost in each of them."""
    label: int
    """The index of the chosen formats."""
    format_matters: bool
    """True if the memory format may matter here."""


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
    problem = Problem(graph, prices, frozenset(formats))
    seconds, labelling, labels = solve(problem, boundary)
    placements = {
        cover.root: Placement(cover.nodes, pairs, own, label=label, format_matters=cover.root in problem.images)
        for cover, pairs, own, label in zip(labelling.covers, labelling.pairs, labelling.own, labels, strict=True)
    }
    homes = {node: cover.root for cover in labelling.covers for node in cover.nodes[:-1]}
    return Estimate(placements, homes, labelling.conversions(labels), seconds=seconds)


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
    best = first.choose_formats(values)
    for way in others:
        if least[way] * ROUNDING_MARGIN < best.seconds:
            best = min(best, way.choose_formats(values), key=lambda estimate: estimate.seconds)
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
        self._before, self._graph, self._images = before, graph, images
        self._prices, self._formats = prices, formats
        self._users = graph.users
        self._returned, self._boundary, self._wanted = set(graph.outputs), boundary, boundary.returned(graph)
        self._placements: dict[Node, Placement] = {}
        self._homes: dict[Node, Node] = {}
        self._new_roots: list[Node] = []
        self._known_adjacent: dict[Node, list[Value]] = {}
        self._known_readers: dict[Value, list[Node]] = {}
        for placement in before.placements.values():
            self._take_over(placement)

    def _take_over(self, placement: Placement) -> None:
        """Take over a placement, unless nodes of it are gone or have become nodes that another placement computes."""
        images, placements, homes = self._images, self._placements, self._homes
        if len(placement.nodes) == 1:
            node = images.get(placement.nodes[0], placement.nodes[0])
            if node in self._users and node not in placements and node not in homes:
                is_same = node is placement.nodes[0]
                placements[node] = (
                    placement
                    if is_same
                    else Placement(
                        (node,),
                        placement.pairs,
                        placement.own,
                        label=placement.label,
                        format_matters=placement.format_matters,
                    )
                )
            return
        nodes = tuple([images.get(node, node) for node in placement.nodes])
        for node in nodes:
            if node not in self._users or node in placements or node in homes:
                return
        *inner, root = nodes
        placements[root] = (
            placement
            if nodes == placement.nodes
            else Placement(
                nodes, placement.pairs, placement.own, label=placement.label, format_matters=placement.format_matters
            )
        )
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

    def retilings(self, affected: Sequence[Node]) -> list[_Revision]:
        """Return one revision for each way to cover the nodes without placement; there is at least one."""
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
            pairs = self._pairs(cover, sensitive)
            return pairs, [self._prices.cover_seconds(cover, pair) for pair in pairs]

        def placement(cover: Cover) -> Placement:
            return Placement(cover.nodes, *costs(cover), 0, cover.root in sensitive)

        taken = coverings(
            alone, fused, costs, prices=self._prices, starts=SURROUNDINGS if sensitive else (Format.DENSE,)
        )
        return [self._extended(map(placement, covers)) for covers in taken]

    def _extended(self, placements: Iterable[Placement]) -> _Revision:
        """Return this revision with more placements."""
        way = copy(self)
        way._placements, way._homes, way._new_roots = dict(self._placements), dict(self._homes), []
        way._known_adjacent, way._known_readers = {}, {}
        for placement in placements:
            *inner, root = placement.nodes
            way._placements[root] = placement
            way._homes.update(dict.fromkeys(inner, root))
            way._new_roots.append(root)
        return way

    def _is_usable(self, cover: Cover) -> bool:
        return is_usable(cover, self._users, self._returned)

    def _pairs(self, cover: Cover, sensitive: Set[Node]) -> Sequence[Formats]:
        if len(cover.formats) > 1 and cover.root not in sensitive:
            return cover.formats[:1]
        return allowed(cover, self._formats)

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

    def lower_bound(self) -> float:
        """Return a lower bound of the cost of the placements, whatever their formats."""
        return fsum([min(placement.own) for placement in self._placements.values()])

    def choose_formats(self, values: Set[Value]) -> Estimate:
        """Choose formats, of new placements and of others as far as that pays, and return the estimate.

        Args:
            values: the values whose conversion cost may have changed, whatever is chosen.
        """
        free = [root for root in self._new_roots if len(self._placements[root].pairs) > 1]
        labellings = self._local_optima(free)
        changed = set(self._new_roots).union(*labellings)
        around = set[Value]().union(*map(self._adjacent_values, changed))
        if labellings:
            best = min(labellings, key=lambda labels: self._seconds(changed, around, labels))
            self._placements.update(
                (root, replace(self._placements[root], label=label)) for root, label in best.items()
            )
        return self._result(values | around)

    def _local_optima(self, free: Sequence[Node]) -> list[dict[Node, int]]:
        """Return local optima of the labels, one per start; only one if it is fastest everywhere without conversion."""
        found: list[dict[Node, int]] = []
        for label in (1, 0) if free else ():
            found.append(labels := self._local_search(free, label))
            around = set[Value]().union(*map(self._adjacent_values, labels))
            least = fsum([min(self._placements[root].own) for root in labels])
            if self._seconds(labels.keys(), around, labels) * ROUNDING_MARGIN <= least:
                break
        return found

    def _local_search(self, free: Sequence[Node], start: int) -> dict[Node, int]:
        """Return labels that no single change improves, for free placements, equal at first, and their neighbours."""
        labels = dict.fromkeys(free, start)
        waiting = dict.fromkeys(free)
        while waiting:
            root = next(iter(waiting))
            del waiting[root]
            label, stays = labels.get(root, self._placements[root].label), self._seconds_at(root, labels)
            if self._seconds_at(root, {**labels, root: label ^ 1}) < stays * ROUNDING_MARGIN:
                labels[root] = label ^ 1
                waiting.update(dict.fromkeys(self._free_neighbours(self._adjacent_values(root))))
        return labels

    def _free_neighbours(self, values: Iterable[Value]) -> list[Node]:
        nodes = [node for value in values for node in (value.node, *self._users[value.node])]
        roots = [self._homes.get(node, node) for node in nodes]
        return [root for root in roots if root in self._placements and len(self._placements[root].pairs) > 1]

    def _adjacent_values(self, root: Node) -> list[Value]:
        """Return the values of rank 4 that a placement reads and gives, remembered."""
        known = self._known_adjacent.get(root)
        if known is None:
            nodes = self._placements[root].nodes
            read = [value for node in nodes for value in node.inputs if is_formatted(value) and value.node not in nodes]
            found = dict.fromkeys([*read, *(value for value in root.outputs if is_formatted(value))])
            known = self._known_adjacent[root] = list(found)
        return known

    def _readers(self, value: Value) -> list[Node]:
        """Return the placements that read a value from another, remembered."""
        known = self._known_readers.get(value)
        if known is None:
            known = self._known_readers[value] = []
            for user in self._users[value.node]:
                placement = self._placements.get(root := self._homes.get(user, user))
                if placement is not None and value in user.inputs and value.node not in placement.nodes:
                    known.append(root)
        return known

    def _seconds(self, roots: Set[Node], values: Set[Value], labels: Mapping[Node, int]) -> float:
        """Return the cost of placements and conversions under labels; the sum does not depend on set order."""
        placements = [(root, self._placements[root]) for root in roots]
        own = fsum([placement.own[labels.get(root, placement.label)] for root, placement in placements])
        return own + fsum([self._conversion_cost(value, labels) for value in values])

    def _seconds_at(self, root: Node, labels: Mapping[Node, int]) -> float:
        """Return the cost of a placement under labels, with the conversions of the values it reads and gives."""
        placement = self._placements[root]
        seconds = placement.own[labels.get(root, placement.label)]
        for value in self._adjacent_values(root):
            seconds += self._conversion_cost(value, labels)
        return seconds

    def _conversion_cost(self, value: Value, labels: Mapping[Node, int]) -> float:
        """Return the cost of converting a value: once, if any reader needs another format than it is given in."""
        placements, node = self._placements, value.node
        maker = placements.get(node)
        given = self._boundary.gives(value) if maker is None else maker.pairs[labels.get(node, maker.label)][1]
        is_wanted = value in self._wanted and given.other in self._wanted[value]
        for root in () if is_wanted else self._readers(value):
            placement = placements[root]
            if placement.pairs[labels.get(root, placement.label)][0] is not given:
                is_wanted = True
                break
        return self._prices.conversion_seconds(value, given.other) if is_wanted else 0.0

    def _result(self, changed: Set[Value]) -> Estimate:
        """Return the estimate, with the conversion cost of the changed values recomputed."""
        conversions: dict[Value, float] = {}
        for (node, output), seconds in self._before.conversions.items():
            value = Value(self._images.get(node, node), output)
            if value.node in self._users and value not in changed:
                conversions[value] = seconds
        conversions.update((value, seconds) for value in changed if (seconds := self._conversion_cost(value, {})))
        own = sum([placement.own[placement.label] for placement in self._placements.values()])
        return Estimate(self._placements, self._homes, conversions, seconds=own + fsum(conversions.values()))
