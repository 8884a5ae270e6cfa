"""Lemmas: rules for the sizes and the number of operators of one graph, derived from rules of few operators.

The operators of a loop over rows become one for all of them (:mod:`taso_py.rules.rows`), and so do many that read one
value (:mod:`taso_py.rules.siblings`). No rule has as many operands and outputs.

Invariant: a lemma is what :meth:`Lemmas.target` derives from its source by given rules, so that whoever has these can
check it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Input
from taso_py.rules.excerpt import images
from taso_py.rules.match import Match
from taso_py.rules.rows import Roller, has_rows
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.siblings import Merger, has_siblings
from taso_py.rules.substitution import Substitution
from taso_py.rules.verdict import Numerics

LEMMA = "lemma"
"""The kind of proof of a rule that is derived from others for the graph at hand."""


def may_have_lemmas(graph: Graph) -> bool:
    """Return whether a graph has enough operators alike that a lemma might match."""
    return has_rows(graph) or has_siblings(graph)


class Lemmas:
    """Rules from which lemmas are derived."""

    def __init__(self, rules: Iterable[Substitution]) -> None:
        """Choose from rules; their order does not matter."""
        self._rules = RuleSet.of(rules)

    @cached_property
    def _roller(self) -> Roller:
        return Roller(self._rules)

    @cached_property
    def _merger(self) -> Merger:
        return Merger(self._rules)

    def matches(self, graph: Graph, tried: set[Sequence[Node]]) -> Iterator[Match]:
        """Yield the matches of lemmas in a graph, operands first, each for other nodes than all those before it.

        Args:
            graph: the graph.
            tried: nodes whose lemma is left out; those that are looked at are added.
        """
        covered = set[Node]()
        for finder in self._finders(graph):
            for roots in map(tuple, finder.sets(graph)):
                leaves = () if roots in tried or covered.issuperset(roots) else finder.leaves(roots)
                tried.add(roots)
                match = self._match(roots, leaves) if leaves else None
                if match is not None:
                    covered.update(match.nodes)
                    yield match

    def _finders(self, graph: Graph) -> Iterator[Roller | Merger]:
        """Yield those of the two ways that may find something in a graph."""
        if has_rows(graph):
            yield self._roller
        if has_siblings(graph):
            yield self._merger

    def target(self, source: Graph) -> tuple[Sequence[Value], Sequence[Substitution]] | None:
        """Return what replaces a graph's outputs, and the rules that this rests on; None if no lemma is about them."""
        roots = [node for node, _ in source.outputs]
        is_flat = all(isinstance(value.node.op, Input) for root in roots for value in root.inputs)
        values, used = (self._merger if is_flat else self._roller).derived(roots)
        bases = {rule.id: rule for rule in used}
        return (values, [bases[id_] for id_ in sorted(bases)]) if values else None

    def bases(self, lemma: Substitution) -> Sequence[Substitution]:
        """Return the rules that a lemma follows from; none if it does not follow from any that are known."""
        derived = self.target(lemma.source)
        return derived[1] if derived is not None and _lemma(lemma.source, *derived) == lemma else ()

    def _match(self, roots: Sequence[Node], leaves: Sequence[Value]) -> Match | None:
        """Return the match of the lemma about nodes that are computed from some values, if there is one."""
        variables = {leaf: make(Input(f"v{place}", leaf.type)).value for place, leaf in enumerate(leaves)}
        found = images(roots, variables)
        source = Graph(tuple(value.node for value in variables.values()), tuple(found[root].value for root in roots))
        derived = self.target(source) if _has_one_dtype(source) else None
        if derived is None:
            return None
        origins = {image: node for node, image in found.items()}
        nodes = [origins[image] for image in source.nodes if not isinstance(image.op, Input)]
        values = {f"v{place}": leaf for place, leaf in enumerate(leaves)}
        return lemma_match(_lemma(source, *derived), derived[1], nodes, values)


def lemma_match(
    lemma: Substitution, bases: Sequence[Substitution], nodes: Sequence[Node], values: Mapping[str, Value]
) -> Match:
    """Return the match of a lemma.

    Args:
        lemma: the lemma.
        bases: the rules that it follows from.
        nodes: what its operators are matched to, operands first.
        values: what its variables are bound to, by name.
    """
    operators = [node for node in lemma.source.nodes if not isinstance(node.op, Input)]
    matched = dict(zip(operators, nodes, strict=True))
    outputs = tuple(Value(matched[node], output) for node, output in lemma.source.outputs)
    dtype = outputs[0].type.dtype
    return Match(lemma, tuple(nodes), values, sizes={}, dtype=dtype, outputs=outputs, bases=tuple(bases))


def _lemma(source: Graph, targets: Sequence[Value], bases: Sequence[Substitution]) -> Substitution:
    numerics = max((rule.numerics for rule in bases), default=Numerics.EXACT)
    return Substitution(source, Graph(source.inputs, tuple(targets)), numerics=numerics, proof=LEMMA)


def _has_one_dtype(side: Graph) -> bool:
    """Return whether all values are of one type of numbers, so that rules hold of them in any precision."""
    return len({type_.dtype for node in side.nodes for type_ in node.types}) == 1
