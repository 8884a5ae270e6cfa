"""Joint choice of kernels and memory formats for a graph.

Selecting covers is a packing problem (:mod:`taso_py.cost.packing`). Each selected cover has at most two choices of
formats, and a value that some readers need in another format than it is given in is converted once, whatever their
number. That is a submodular function of binary variables, whose minimum is a minimum cut (Kolmogorov and Zabih, What
energy functions can be minimized via graph cuts?, PAMI 2004).

Invariant: the formats are optimal for the covers selected; and covers are selected three times: as if nothing had to be
converted, and as if everything around them were dense, or channels last, with conversions where they differ. The
cheapest choice wins, so it is never worse than the best plan that is dense throughout, or channels last throughout,
unless so many covers overlap that not all combinations of them are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Protocol, TypeAlias

import networkx as nx

from taso_py.backend.plan import Format, Plan, PlanStep, is_formatted
from taso_py.cost.packing import cheapest_covers
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running
from taso_py.kernels.tile import Cover, Formats


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


@dataclass(frozen=True)
class Choice:
    """A plan and its latency."""

    plan: Plan
    seconds: float


Costs: TypeAlias = tuple[Sequence[Formats], Sequence[float]]
"""The formats that a cover can choose from, and its cost in each."""
ROUNDING_MARGIN = 1 - 1e-9
"""Relative margin: a smaller improvement may be a rounding error, and accepting it might cycle."""
EVERY_START: Sequence[Format | None] = (None, *Format)


def choose(
    graph: Graph, prices: Prices, *, formats: Iterable[Format] = Format, starts: Sequence[Format | None] = EVERY_START
) -> Choice:
    """Return the best covers and memory formats of a graph.

    Args:
        graph: the graph to compute.
        prices: the latencies.
        formats: the memory formats to choose from.
        starts: the surrounding formats for which covers are selected, see :func:`coverings`.
    """
    seconds, labelling, labels = solve(Problem(graph, prices, frozenset(formats)), starts=starts)
    return Choice(labelling.plan(labels), seconds)


def solve(
    problem: Problem, boundary: BoundaryFormats = DENSE_BOUNDARY, starts: Sequence[Format | None] = EVERY_START
) -> tuple[float, Labelling, list[int]]:
    """Return the cost of the best covers of a problem, and their best labels; the arguments are those of `choose`."""
    tried = [Labelling(covers, problem, boundary) for covers in problem.coverings(starts)]
    labels = [labelling.labels() for labelling in tried]
    found = [(one.seconds(own), one, own) for one, own in zip(tried, labels, strict=True)]
    return min(found, key=lambda one: one[0])


class Problem:
    """A graph's covers, and the nodes whose memory format matters."""

    images: frozenset[Node]
    """The nodes whose memory format may matter."""

    def __init__(self, graph: Graph, prices: Prices, formats: frozenset[Format]) -> None:
        self.prices, self.graph = prices, graph
        self._formats = formats
        self._running = [node for node in graph.nodes if is_running(node)]
        self.images = _reached_from_images(self._running) if Format.CHANNELS_LAST in formats else frozenset[Node]()
        self.has_choice = bool(self.images)
        returned = set(graph.outputs)
        self._alone: dict[Node, list[Cover]] = {}
        self._fused: list[Cover] = []
        for node in self._running:
            covers = prices.covers(node)
            self._alone[node] = [cover for cover in covers if len(cover.nodes) == 1]
            fused = [cover for cover in covers if len(cover.nodes) > 1]
            self._fused += [cover for cover in fused if is_usable(cover, graph.users, returned)]

    def formats(self, cover: Cover) -> Sequence[Formats]:
        """Return the formats that a cover can choose from here: one, or two of which the dense one comes first."""
        if len(cover.formats) > 1 and cover.root not in self.images:
            return cover.formats[:1]
        return allowed(cover, self._formats)

    def coverings(self, starts: Sequence[Format | None]) -> Sequence[list[Cover]]:
        """Return covers that compute every node once, one list for each start that makes a difference."""

        def costs(cover: Cover) -> Costs:
            pairs = self.formats(cover)
            return pairs, [self.prices.cover_seconds(cover, pair) for pair in pairs]

        return coverings(
            self._alone, self._fused, costs, prices=self.prices, starts=starts if self.has_choice else (Format.DENSE,)
        )


def coverings(
    alone: Mapping[Node, Sequence[Cover]],
    fused: Iterable[Cover],
    costs: Callable[[Cover], Costs],
    prices: Prices,
    starts: Sequence[Format | None],
) -> Sequence[list[Cover]]:
    """Return covers that compute every node once: for each surrounding format, the cheapest.

    Args:
        alone: the nodes, and the covers of each by itself.
        fused: the covers of several of the nodes.
        costs: returns a cover's formats and costs.
        prices: gives the costs of conversions.
        starts: the surrounding formats, to and from which a cover's values are converted; None for no conversions.
    """
    known = {cover: costs(cover) for cover in chain(chain.from_iterable(alone.values()), fused)}

    def taken(around: Format | None) -> list[Cover]:
        seconds = {cover: _lowest_cost(cover, *choices, around, prices) for cover, choices in known.items()}
        return cheapest_covers(alone, fused, seconds.__getitem__)

    return list({frozenset(covers): covers for covers in map(taken, starts)}.values())


def _lowest_cost(
    cover: Cover, pairs: Sequence[Formats], own: Sequence[float], around: Format | None, prices: Prices
) -> float:
    """Return the lowest cost of a cover, with conversions from and to a surrounding format, if there is one."""
    if around is None:
        return min(own)
    least = math.inf
    for (reads, gives), seconds in zip(pairs, own, strict=True):
        if reads is not around and seconds < least:
            seconds += sum([prices.conversion_seconds(value, reads) for value in cover.formatted_operands])
        if gives is not around and seconds < least:
            seconds += sum([prices.conversion_seconds(value, around) for value in cover.formatted_outputs])
        least = min(least, seconds)
    return least


def is_usable(cover: Cover, users: Mapping[Node, Iterable[Node]], returned: Set[Value]) -> bool:
    """Return whether nothing else in a graph reads the inner values of a cover."""
    return all(
        returned.isdisjoint(node.outputs) and all(user in cover.nodes for user in users[node])
        for node in cover.nodes[:-1]
    )


def allowed(cover: Cover, formats: frozenset[Format]) -> Sequence[Formats]:
    """Return the cover's formats that are among the given ones; its first if none are."""
    return [pair for pair in cover.formats if formats.issuperset(pair)] or cover.formats[:1]


def _reached_from_images(running: Sequence[Node]) -> frozenset[Node]:
    """Return the nodes whose memory format may matter: connected to convolutions and pooling by values of rank 4."""
    graph: nx.Graph[Node] = nx.Graph()
    for node in running:
        graph.add_node(node)
        graph.add_edges_from((node, value.node) for value in node.inputs if is_formatted(value))
    reached: set[Node] = set()
    for node in running:
        if node.op.has_channels and node not in reached:
            reached |= nx.node_connected_component(graph, node)
    return frozenset(reached)


class Labelling:
    """The assignment of memory formats to chosen covers: a label per cover selects one of its pairs."""

    def __init__(self, covers: Sequence[Cover], problem: Problem, boundary: BoundaryFormats = DENSE_BOUNDARY) -> None:
        self.covers = covers
        self.pairs = [problem.formats(cover) for cover in covers]
        """The formats that each cover can choose from."""
        self._prices = problem.prices
        self.own = [
            [self._prices.cover_seconds(c, pair) for pair in p] for c, p in zip(covers, self.pairs, strict=True)
        ]
        self._maker = {value: i for i, cover in enumerate(covers) for value in cover.formatted_outputs}
        self._readers: dict[Value, list[int]] = {}
        for i, cover in enumerate(covers):
            for value in cover.formatted_operands:
                self._readers.setdefault(value, []).append(i)
        self._boundary, self._returned = boundary, boundary.returned(problem.graph)
        self._values = (*dict.fromkeys((*self._readers, *self._returned)),)
        """The values that may have to be converted."""

    def plan(self, labels: Sequence[int]) -> Plan:
        """Return the plan under labels."""
        steps = {
            cover.root: cover.step(pairs[label])
            for cover, pairs, label in zip(self.covers, self.pairs, labels, strict=True)
        }
        return Plan({node: step for node, step in steps.items() if step != PlanStep(None)})

    def labels(self) -> list[int]:
        """Return the optimal labels.

        Latencies are submodular in the labels. So a label that local search from all 0 sets to 1 is 1 in every optimum,
        and a label that local search from all 1 sets to 0 is 0 in every optimum: only where the two differ is there
        anything to solve for (persistency: Boros and Hammer, Pseudo-Boolean optimization, 2002).
        """
        free = [i for i, pairs in enumerate(self.pairs) if len(pairs) > 1]
        least = self._local_search([0] * len(self.covers), free)
        most = self._local_search([len(pairs) - 1 for pairs in self.pairs], free)
        open_ = [i for i in free if least[i] != most[i]]
        return self._cut(least, open_) if open_ else least

    def seconds(self, labels: Sequence[int]) -> float:
        """Return the latency under labels."""
        own = sum(costs[label] for costs, label in zip(self.own, labels, strict=True))
        return own + sum(self.conversions(labels).values())

    def conversions(self, labels: Sequence[int]) -> dict[Value, float]:
        """Return the cost of converting each value under labels; values that are not converted are left out."""
        return {value: seconds for value in self._values if (seconds := self._conversion_cost(value, labels))}

    def _conversion_cost(self, value: Value, labels: Sequence[int]) -> float:
        """Return the cost of converting a value: once, if any reader needs another format than it is given in."""
        other = self._gives(value, labels).other
        wanted = other in self._returned.get(value, ())
        wanted = wanted or any(self.pairs[i][labels[i]][0] is other for i in self._readers.get(value, ()))
        return self._prices.conversion_seconds(value, other) if wanted else 0.0

    def _gives(self, value: Value, labels: Sequence[int]) -> Format:
        maker = self._maker.get(value)
        return self._boundary.gives(value) if maker is None else self.pairs[maker][labels[maker]][1]

    def _local_search(self, labels: list[int], free: Sequence[int]) -> list[int]:
        """Return labels that no single change improves, by local search."""
        labels, waiting = list(labels), dict.fromkeys(free)
        while waiting:
            i = next(iter(waiting))
            del waiting[i]
            before = self._seconds_at(i, labels)
            labels[i] ^= 1
            if self._seconds_at(i, labels) < before * ROUNDING_MARGIN:
                waiting.update(dict.fromkeys(self._neighbours(i)))
            else:
                labels[i] ^= 1
        return labels

    def _seconds_at(self, i: int, labels: Sequence[int]) -> float:
        """Return the cost of a cover under labels, with the conversions of the values it reads and gives."""
        return self.own[i][labels[i]] + sum(
            [self._conversion_cost(value, labels) for value in self._adjacent_values(i)]
        )

    def _neighbours(self, i: int) -> list[int]:
        """Return the covers with a choice that give or read a value that a cover reads or gives."""
        makers = [self._maker[value] for value in self._adjacent_values(i) if value in self._maker]
        readers = [reader for value in self._adjacent_values(i) for reader in self._readers.get(value, ())]
        return [other for other in (*makers, *readers) if other != i and len(self.pairs[other]) > 1]

    def _adjacent_values(self, i: int) -> Sequence[Value]:
        """Return the values of rank 4 that a cover reads and gives."""
        return self.covers[i].formatted_operands + self.covers[i].formatted_outputs

    def _cut(self, labels: Sequence[int], free: Sequence[int]) -> list[int]:
        """Return the optimal labels, given the fixed ones: a minimum cut between dense (source) and channels last."""
        network: nx.DiGraph[object] = nx.DiGraph()
        network.add_nodes_from((_SOURCE, _SINK))
        for i in free:
            _add(network, _SOURCE, i, self.own[i][1])
            _add(network, i, _SINK, self.own[i][0])
        variables = set(free)

        def side(i: int, end: int) -> object:
            """Return the vertex of the format that a cover reads (end 0) or gives (end 1): variable or terminal."""
            pairs = self.pairs[i]
            return i if i in variables and pairs[0][end] is not pairs[1][end] else _fixed(pairs[labels[i]][end])

        for value in dict.fromkeys(value for i in free for value in self._adjacent_values(i)):
            readers: list[object] = [side(i, 0) for i in self._readers.get(value, ())]
            readers += map(_fixed, self._returned.get(value, ()))
            maker = side(self._maker[value], 1) if value in self._maker else _fixed(self._boundary.gives(value))
            self._add_value(network, value, maker, readers)
        _, (dense, _) = nx.minimum_cut(network, _SOURCE, _SINK, flow_func=nx.algorithms.flow.shortest_augmenting_path)
        return [int(i not in dense) if i in variables else label for i, label in enumerate(labels)]

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
