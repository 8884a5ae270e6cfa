"""Where rules apply in a graph, and which of its connected subgraphs they touch.

A rule *reaches* a place if it can be applied there and is about at least two operators that run, or lowers the price: a
rule that only says one operator in another way applies to it wherever it stands, and says nothing about what stands
beside it. A rule *touches* a subgraph if the operators that run of one place it reaches all lie in the subgraph. Prices
are those of PyTorch's plain calls on a modelled machine, so that nothing is measured, and all machines agree.

Invariant: everything here is determined by graph and rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.subgraphs import Dataflow, SubgraphForms, connected_sets
from fuzz.prices import ModelledCost
from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, is_running
from taso_py.kernels.table import PLAIN
from taso_py.rules.apply import replacements
from taso_py.rules.index import GraphIndex
from taso_py.rules.match import Matcher
from taso_py.search import greedy
from taso_py.search.cost import cost_delta
from taso_py.search.result import Limits, SearchResult

MOST_OPERATORS = 5
"""Most operators of a subgraph."""
LEAST_GAIN_S = 1e-9
"""Least fall of the price that counts, in seconds."""
NO_LIMIT = Limits(budget=100_000, seconds=1e9)
"""Limits that no graph of the corpus comes near, so that results do not depend on the machine's speed."""


@dataclass(frozen=True)
class Place:
    """Nodes of a graph that a rule can be applied to."""

    rule: str
    """Identifier of the rule."""
    nodes: frozenset[Node]
    """The matched nodes that run."""
    gain_s: float
    """Price of the graph before less that after, in seconds on the modelled machine."""

    @property
    def is_cheaper(self) -> bool:
        """True if the graph is cheaper after the rule is applied."""
        return self.gain_s >= LEAST_GAIN_S


@dataclass(frozen=True)
class FormTally:
    """Connected subgraphs of a graph by number of operators and form."""

    all: Mapping[int, Counter[str]]
    """How many there are."""
    untouched: Mapping[int, Counter[str]]
    """How many of them no rule touches; forms without any are left out."""


def places(graph: Graph, matcher: Matcher) -> list[Place]:
    """Return the places of a graph that rules reach."""
    index, prices = GraphIndex(graph), _prices()
    found: list[Place] = []
    for match in matcher.matches(index, only_running=True):
        replaced = replacements(match, index)
        if replaced is None:
            continue
        nodes = frozenset([node for node in match.nodes if is_running(node)])
        place = Place(match.rule.id, nodes, -cost_delta(prices, index, replaced).seconds)
        if len(nodes) > 1 or place.is_cheaper:
            found.append(place)
    return found


def rewrite(graph: Graph, matcher: Matcher) -> SearchResult:
    """Return the graph after the rules that lower the price, one by one, the best of them first, until none does."""
    return greedy.search(graph, matcher, _prices(), NO_LIMIT)


def _prices() -> ModelledCost:
    return ModelledCost(0, tiles=PLAIN)


def tally_subgraphs(graph: Graph, reached: Iterable[Place], most: int = MOST_OPERATORS) -> FormTally:
    """Return the connected subgraphs of two to ``most`` operators by form, and which of them rules touch."""
    dataflow, forms = Dataflow(graph), SubgraphForms()
    sets = _SetsWithin((dataflow.mask(place.nodes) for place in reached), len(dataflow.nodes), most)
    tally = FormTally(*({size: Counter[str]() for size in range(2, most + 1)} for _ in range(2)))
    for numbers in connected_sets(dataflow.neighbours, most):
        form = forms.of([dataflow.nodes[number] for number in sorted(numbers)])
        tally.all[len(numbers)][form] += 1
        if not sets.any_within(numbers):
            tally.untouched[len(numbers)][form] += 1
    return tally


def cheaper_forms(reached: Iterable[Place], most: int = MOST_OPERATORS) -> Counter[str]:
    """Return how many sets of up to ``most`` nodes have a rule that lowers the price, by form."""
    forms = SubgraphForms()
    cheaper = {place.nodes for place in reached if place.is_cheaper and len(place.nodes) <= most}
    return Counter(forms.of(sorted(nodes, key=lambda node: node.digest)) for nodes in cheaper)


class _SetsWithin:
    """Sets of up to ``most`` nodes, as bits of integers, to be looked for within others."""

    def __init__(self, masks: Iterable[int], count: int, most: int) -> None:
        self._by_least: list[list[int]] = [[] for _ in range(count)]
        for mask in sorted({mask for mask in masks if mask.bit_count() <= most}):
            self._by_least[(mask & -mask).bit_length() - 1].append(mask)

    def any_within(self, numbers: Sequence[int]) -> bool:
        """Return whether one of the sets lies within these nodes."""
        outside = ~sum(1 << number for number in numbers)
        return any(not mask & outside for number in numbers for mask in self._by_least[number])
