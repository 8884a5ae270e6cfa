"""Composition of a whole graph from the results for its regions.

Regions come in topological order, so that when one is inserted, the values it reads are known; its nodes are made once.
The steps that lead to the same graph one by one are derived only on demand: each rebuilds everything downstream of it,
in the whole graph.

Invariant: the graph computes what it did before, whatever is inserted. Its steps are those of the whole graph, as if it
had not been cut; the caller has to check that they lead to it, since by chance a region may have come to contain a node
of another, which the step that replaces it would replace in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, remake
from taso_py.ir.operator import Input, Weight
from taso_py.ops.signs import sign_of
from taso_py.rules.apply import instantiate
from taso_py.rules.match import Match
from taso_py.search.region import GraphRegion
from taso_py.search.result import Candidate
from taso_py.search.rewire import rewire
from taso_py.search.transfer import Transfer


@dataclass(frozen=True, eq=False)
class RegionInstance:
    """An occurrence of a region that has the same structure as another up to inputs and weights."""

    number: int
    """Its position among all regions."""
    region: GraphRegion
    like: Graph
    """The graph of the other region."""
    same: Mapping[Node, Node]
    """Maps nodes of the other region to nodes of this one."""


class Composition:
    """A graph composed of candidates for its regions; iterating over it derives the steps that lead to it."""

    def __init__(self, before: Candidate, chosen: Sequence[tuple[RegionInstance, Candidate | None]]) -> None:
        """Compose a graph.

        Args:
            before: the graph that was cut.
            chosen: all its regions in topological order, and the candidate to insert, found for the region that each
                resembles; a region without one stays as it is.
        """
        self._before = before
        self._became: dict[Value, Value] = {}
        """Maps values that cross region boundaries to their replacements."""
        self._impure = (node for node in before.graph.nodes if node.token is not None)
        """The impure nodes between regions that are not rebuilt yet."""
        self._effects: dict[Node, Node] = {}
        self._inserted: list[tuple[Mapping[Node, Value], Candidate]] = []
        for place, candidate in chosen:
            self._insert(place, candidate)
        self.cut_values = frozenset(self._became.values())
        """The values at which the graph was cut."""
        outputs = tuple(map(self._now, before.graph.outputs))
        self.graph = Graph(before.graph.inputs, outputs, tuple(map(self._effect, before.graph.effects)))

    @property
    def applied(self) -> tuple[str, ...]:
        """The identifiers of the rules in the order of application."""
        inserted = (rule for _, candidate in self._inserted for rule in candidate.applied)
        return (*self._before.applied, *inserted)

    def __iter__(self) -> Iterator[tuple[Match, Graph]]:
        """Yield the matches that are applied one after the other, each with the graph after it."""
        yield from self._before.steps
        graph = self._before.graph
        for leaves, candidate in self._inserted:
            transfer = Transfer(leaves)
            for match, _ in candidate.steps:
                moved = transfer.match(match)
                after = _applied(graph, moved)
                if after is not None:
                    graph = after
                    yield moved, graph

    def _insert(self, place: RegionInstance, candidate: Candidate | None) -> None:
        region = place.region
        inputs = dict(zip(region.graph.inputs, region.inputs, strict=True))
        outputs = dict(zip(region.graph.outputs, region.outputs, strict=True))
        leaves: dict[Node, Value] = {}
        for node, there in place.same.items():
            # All other leaves are the same node in both.
            if isinstance(node.op, Input | Weight):
                leaves[node] = self._now(inputs[there]) if there in inputs else Value(there, 0)
        # If two inputs became one, steps that distinguish them may not fit any more.
        if candidate is not None and len(set(leaves.values())) == len(leaves) and _has_signs(candidate, leaves):
            self._inserted.append((leaves, candidate))
            after = candidate.graph
        else:
            after = place.like
        transfer = Transfer(leaves)
        for old, new in zip(place.like.outputs, after.outputs, strict=True):
            self._became[outputs[Value(place.same[old.node], old.output)]] = transfer.value(new)

    def _now(self, value: Value) -> Value:
        """Return the replacement of a value that regions read or the graph returns."""
        if value.node.token is not None:
            return Value(self._effect(value.node), value.output)
        return self._became.get(value, value)

    def _effect(self, node: Node) -> Node:
        """Return the replacement of an impure node between regions; those before it are rebuilt first."""
        while node not in self._effects:
            effect = next(self._impure)
            self._effects[effect] = remake(effect, list(map(self._now, effect.inputs)))
        return self._effects[node]


def _has_signs(candidate: Candidate, leaves: Mapping[Node, Value]) -> bool:
    """Return whether the values that a region reads have the signs that its steps may rely on.

    What another region computes is equal to what it was, but its sign need not be evident any more.
    """
    relies = any(match.rule.signs for match, _ in candidate.steps)
    return not relies or all(sign_of(value) >= sign_of(leaf.value) for leaf, value in leaves.items())


def _applied(graph: Graph, match: Match) -> Graph | None:
    """Return the graph after a match; None if it does not fit any more, or changes nothing."""
    targets = instantiate(match)
    if targets is None or len(set(match.outputs)) < len(set(match.rule.source.outputs)):
        return None
    ends = {node for node, _ in match.outputs}
    first = next((place for place, node in enumerate(graph.nodes) if node in ends), None)
    if first is None:
        return None
    after, _ = rewire(graph, dict(zip(match.outputs, targets, strict=True)), first)
    return None if after == graph else after
