"""Joint choice of kernels and memory formats for a graph.

Selecting covers is a packing problem (:mod:`taso_py.cost.packing`). Each selected cover has at most two choices of
formats, which are assigned at the lowest cost of all (:mod:`taso_py.cost.labelling`).

Invariant: the formats are optimal for the covers selected; and covers are selected three times: as if nothing had to be
converted, and as if everything around them were dense, or channels last, with conversions where they differ. The
cheapest choice wins, so it is never worse than the best plan that is dense throughout, or channels last throughout,
unless so many covers overlap that not all combinations of them are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import networkx as nx

from taso_py.backend.plan import Format, Plan, PlanStep, is_formatted
from taso_py.cost.labelling import DENSE_BOUNDARY, BoundaryFormats, Labelling, Labels, Placement, Prices
from taso_py.cost.packing import cheapest_covers
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, is_running
from taso_py.kernels.tile import Cover, Formats


@dataclass(frozen=True)
class Choice:
    """A plan and its latency."""

    plan: Plan
    seconds: float


Costs: TypeAlias = tuple[Sequence[Formats], Sequence[float]]
"""The formats that a cover can choose from, and its cost in each."""
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
    return solve(Problem(graph, prices, frozenset(formats)), starts=starts).choice


@dataclass(frozen=True)
class Solution:
    """The best covers of a graph, and their best labels."""

    covers: Sequence[Cover]
    labelling: Labelling
    labels: Labels
    seconds: float

    @property
    def formats(self) -> list[Formats]:
        """The formats of each cover."""
        placements = (self.labelling.placements[cover.root] for cover in self.covers)
        return [placement.pairs[self.labels.get(placement.nodes[-1], 0)] for placement in placements]

    @property
    def choice(self) -> Choice:
        """The plan, with its latency."""
        chosen = zip(self.covers, self.formats, strict=True)
        steps = {cover.root: cover.step(formats) for cover, formats in chosen}
        return Choice(Plan({node: step for node, step in steps.items() if step != PlanStep(None)}), self.seconds)


def solve(
    problem: Problem, boundary: BoundaryFormats = DENSE_BOUNDARY, starts: Sequence[Format | None] = EVERY_START
) -> Solution:
    """Return the best covers of a problem with their best labels; the arguments are those of :func:`choose`."""
    nothing = Labelling(problem.graph, problem.prices, boundary)
    found: list[Solution] = []
    for covers in problem.coverings(starts):
        labelling = nothing.extended(map(problem.placement, covers))
        labels = labelling.best()
        seconds = labelling.seconds(labelling.placements, labelling.values, labels)
        found.append(Solution(covers, labelling, labels, seconds))
    return min(found, key=lambda solution: solution.seconds)


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

    def coverings(self, starts: Sequence[Format | None]) -> Sequence[list[Cover]]:
        """Return covers that compute every node once, one list for each start that makes a difference."""
        return coverings(
            self._alone,
            self._fused,
            self._costs,
            prices=self.prices,
            starts=starts if self.has_choice else (Format.DENSE,),
        )

    def placement(self, cover: Cover) -> Placement:
        """Return a cover as a placement in the first of its formats."""
        return Placement(cover.nodes, *self._costs(cover), label=0, format_matters=cover.root in self.images)

    def _costs(self, cover: Cover) -> Costs:
        pairs = allowed(cover, self._formats, matter=cover.root in self.images)
        return pairs, [self.prices.cover_seconds(cover, pair) for pair in pairs]


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


def allowed(cover: Cover, formats: frozenset[Format], *, matter: bool = True) -> Sequence[Formats]:
    """Return the cover's formats that are among the given ones; its first if none are, or if formats do not matter."""
    return (matter and [pair for pair in cover.formats if formats.issuperset(pair)]) or cover.formats[:1]


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
