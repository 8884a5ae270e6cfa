"""Assignment of memory formats: a label of each chosen cover selects one of its at most two pairs of formats.

Invariant: a value is converted once, if any reader needs it in another format than it is given in. So the cost is
submodular in the labels, with which minimum cuts find an optimum (Kolmogorov and Zabih, What energy functions can be
minimized via graph cuts?, PAMI 2004).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, field
from itertools import repeat
from math import fsum
from typing import Protocol, Self, TypeAlias

import networkx as nx

from taso_py.backend.plan import Format, is_formatted
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.kernels.tile import Cover, Formats

ROUNDING_MARGIN = 1 - 1e-9
"""Relative margin: a smaller improvement may be a rounding error, and accepting it might cycle."""
Labels: TypeAlias = dict[Node, int]
"""Labels of placements, by root; those left out keep the label that they have."""


class Prices(Protocol):
    """Prices of covers and conversions, in seconds."""

    def covers(self, node: Node) -> Sequence[Cover]:
        """Return the covers that end with a node, including those of the node alone."""
        ...

    def cover_seconds(self, cover: Cover, formats: Formats) -> float:
        """Return the latency of a cover that reads and gives values in these formats."""
        ...

    def conversion_seconds(self, value: Value, format_: Format) -> float:
        """Return the latency of converting a value to a format."""
        ...


@dataclass(frozen=True)
class BoundaryFormats:
    """The memory formats at the boundary of a graph that is part of another; by default all are dense."""

    given: Mapping[Value, Format] = field(default_factory=dict[Value, Format])
    """The formats of operands that are not dense."""
    wanted: tuple[Format, ...] = ()
    """The formats required of the results, in the order of the outputs; empty if all are dense."""

    def returned(self, graph: Graph) -> Mapping[Value, Set[Format]]:
        """Return the outputs of a graph whose format matters, with the formats in which they are required."""
        found: dict[Value, set[Format]] = {}
        for value, format_ in zip(graph.outputs, self.wanted or repeat(Format.DENSE), strict=False):
            if is_formatted(value):
                found.setdefault(value, set()).add(format_)
        return found

    def gives(self, value: Value) -> Format:
        """Return the format of a value that no cover computes."""
        return self.given.get(value, Format.DENSE)


DENSE_BOUNDARY = BoundaryFormats()


@dataclass(frozen=True, slots=True)
class Placement:
    """A chosen cover, reduced to the facts that later changes around it need."""

    nodes: tuple[Node, ...]
    """The nodes that it computes; the last, its root, is the one whose outputs others read."""
    pairs: Sequence[Formats]
    """The formats to choose from: one or two."""
    own: Sequence[float]
    """The cost in each of them."""
    label: int
    """The index of the chosen formats."""
    format_matters: bool
    """True if the memory format may matter here."""


class Labelling:
    """The placements of a graph with their labels, and what they cost under others."""

    def __init__(self, graph: Graph, prices: Prices, boundary: BoundaryFormats = DENSE_BOUNDARY) -> None:
        """Start without placements."""
        self.placements: dict[Node, Placement] = {}
        """The placements, by root."""
        self.homes: dict[Node, Node] = {}
        """For nodes inside a placement, its root."""
        self._prices, self._users = prices, graph.users
        self._boundary, self._wanted = boundary, boundary.returned(graph)
        self._known_adjacent: dict[Node, list[Value]] = {}
        self._known_readers: dict[Value, list[Node]] = {}

    def extended(self, placements: Iterable[Placement]) -> Self:
        """Return a labelling with more placements."""
        other = copy(self)
        other.placements, other.homes = dict(self.placements), dict(self.homes)
        other._known_adjacent, other._known_readers = {}, {}
        for placement in placements:
            *inner, root = placement.nodes
            other.placements[root] = placement
            other.homes.update(dict.fromkeys(inner, root))
        return other

    @property
    def values(self) -> Set[Value]:
        """The values of rank 4 that placements read or give, or that are returned."""
        return self.values_around(self.placements) | self._wanted.keys()

    def free(self, roots: Iterable[Node]) -> list[Node]:
        """Return the roots whose placements have a choice."""
        return [root for root in roots if root in self.placements and len(self.placements[root].pairs) > 1]

    def seconds(self, roots: Iterable[Node], values: Iterable[Value], labels: Mapping[Node, int]) -> float:
        """Return the cost of placements and conversions under labels; it does not depend on their order."""
        placements = [(root, self.placements[root]) for root in roots]
        own = fsum([placement.own[labels.get(root, placement.label)] for root, placement in placements])
        return own + fsum([self.conversion_cost(value, labels) for value in values])

    def conversion_cost(self, value: Value, labels: Mapping[Node, int]) -> float:
        """Return the cost of converting a value: once, if any reader needs another format than it is given in."""
        placements, node = self.placements, value.node
        maker = placements.get(node)
        given = self._boundary.gives(value) if maker is None else maker.pairs[labels.get(node, maker.label)][1]
        is_wanted = value in self._wanted and given.other in self._wanted[value]
        for root in () if is_wanted else self.readers(value):
            placement = placements[root]
            if placement.pairs[labels.get(root, placement.label)][0] is not given:
                is_wanted = True
                break
        return self._prices.conversion_seconds(value, given.other) if is_wanted else 0.0

    def readers(self, value: Value) -> list[Node]:
        """Return the roots of the placements that read a value from another, remembered."""
        known = self._known_readers.get(value)
        if known is None:
            known = self._known_readers[value] = []
            for user in self._users[value.node]:
                placement = self.placements.get(root := self.homes.get(user, user))
                if placement is not None and value in user.inputs and value.node not in placement.nodes:
                    known.append(root)
        return known

    def adjacent_values(self, root: Node) -> list[Value]:
        """Return the values of rank 4 that a placement reads and gives, remembered."""
        known = self._known_adjacent.get(root)
        if known is None:
            nodes = self.placements[root].nodes
            read = [value for node in nodes for value in node.inputs if is_formatted(value) and value.node not in nodes]
            found = dict.fromkeys([*read, *(value for value in root.outputs if is_formatted(value))])
            known = self._known_adjacent[root] = list(found)
        return known

    def values_around(self, roots: Iterable[Node]) -> set[Value]:
        """Return the values of rank 4 that placements read and give."""
        return set[Value]().union(*map(self.adjacent_values, roots))

    def local_search(self, free: Sequence[Node], start: int) -> Labels:
        """Return labels that no single change improves, for free placements, equal at first, and their neighbours."""
        labels = dict.fromkeys(free, start)
        waiting = dict.fromkeys(free)
        while waiting:
            root = next(iter(waiting))
            del waiting[root]
            before, stays = labels.get(root), self._seconds_at(root, labels)
            labels[root] = (self.placements[root].label if before is None else before) ^ 1
            if self._seconds_at(root, labels) < stays * ROUNDING_MARGIN:
                waiting.update(dict.fromkeys(self._free_neighbours(root)))
            elif before is None:
                del labels[root]
            else:
                labels[root] = before
        return labels

    def best(self) -> Labels:
        """Return optimal labels of all placements with a choice.

        Latencies are submodular in the labels. So a label that local search from all 0 sets to 1 is 1 in every optimum,
        and a label that local search from all 1 sets to 0 is 0 in every optimum: only where the two differ is there
        anything to solve for (persistency: Boros and Hammer, Pseudo-Boolean optimization, 2002).
        """
        free = self.free(self.placements)
        least, most = self.local_search(free, 0), self.local_search(free, 1)
        open_ = [root for root in free if least[root] != most[root]]
        return least | self._cut(least, open_) if open_ else least

    def _seconds_at(self, root: Node, labels: Mapping[Node, int]) -> float:
        """Return the cost of a placement under labels, with the conversions of the values it reads and gives."""
        placement = self.placements[root]
        seconds = placement.own[labels.get(root, placement.label)]
        for value in self.adjacent_values(root):
            seconds += self.conversion_cost(value, labels)
        return seconds

    def _free_neighbours(self, root: Node) -> list[Node]:
        """Return the placements with a choice that give or read a value that a placement reads or gives."""
        nodes = [node for value in self.adjacent_values(root) for node in (value.node, *self._users[value.node])]
        return self.free([self.homes.get(node, node) for node in nodes])

    def _cut(self, labels: Mapping[Node, int], free: Sequence[Node]) -> Labels:
        """Return the optimal labels, given the fixed ones: a minimum cut between dense (source) and channels last."""
        network: nx.DiGraph[object] = nx.DiGraph()
        network.add_nodes_from((_SOURCE, _SINK))
        for root in free:
            own = self.placements[root].own
            _add(network, _SOURCE, root, own[1])
            _add(network, root, _SINK, own[0])
        variables = set(free)

        def side(root: Node, end: int) -> object:
            """Return the vertex of the format that a cover reads (end 0) or gives (end 1): variable or terminal."""
            placement = self.placements[root]
            pairs, label = placement.pairs, labels.get(root, placement.label)
            return root if root in variables and pairs[0][end] is not pairs[1][end] else _fixed(pairs[label][end])

        for value in dict.fromkeys(value for root in free for value in self.adjacent_values(root)):
            readers: list[object] = [side(root, 0) for root in self.readers(value)]
            readers += map(_fixed, self._wanted.get(value, ()))
            is_made = value.node in self.placements
            maker = side(value.node, 1) if is_made else _fixed(self._boundary.gives(value))
            self._add_value(network, value, maker, readers)
        _, (dense, _) = nx.minimum_cut(network, _SOURCE, _SINK, flow_func=nx.algorithms.flow.shortest_augmenting_path)
        return {root: int(root not in dense) for root in free}

    def _add_value(self, network: nx.DiGraph[object], value: Value, maker: object, readers: Sequence[object]) -> None:
        """Add edges that are cut if a value is given dense and a reader needs channels last, or the opposite."""
        others = [reader for reader in readers if reader != maker]
        if not others:
            return
        # The vertices of the converted value; a single reader can serve as them itself.
        to_last, to_dense = (value, Format.CHANNELS_LAST), (value, Format.DENSE)
        if len(others) == 1:
            to_last = to_dense = others[0]
        _add(network, maker, to_last, self._prices.conversion_seconds(value, Format.CHANNELS_LAST))
        _add(network, to_dense, maker, self._prices.conversion_seconds(value, Format.DENSE))
        for reader in others if len(others) > 1 else ():
            _add(network, to_last, reader, None)
            _add(network, reader, to_dense, None)


_SOURCE, _SINK = "dense", "channels last"


def _fixed(format_: Format) -> str:
    """Return the terminal of a format that is not to be chosen."""
    return _SOURCE if format_ is Format.DENSE else _SINK


_UNAVAILABLE_S = 1e9
"""Seconds that an impossible kernel counts as: if nothing else is left, there must still be a finite cut."""


def _add(network: nx.DiGraph[object], tail: object, head: object, seconds: float | None) -> None:
    """Add to the capacity of an edge; None for one that is never cut."""
    if seconds is None:
        network.add_edge(tail, head)
        return
    seconds = min(seconds, _UNAVAILABLE_S)
    if network.has_edge(tail, head):
        network[tail][head]["capacity"] += seconds
    else:
        network.add_edge(tail, head, capacity=seconds)
