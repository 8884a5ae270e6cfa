"""Lemmas: rules for the sizes and the number of operators of one graph, derived from rules of few operators.

The operators of a loop over rows become one for all of them (:mod:`taso_py.rules.rows`), and so do many that read one
value (:mod:`taso_py.rules.siblings`), those that are alike and have nothing in common (:mod:`taso_py.rules.batches`;
convolutions: :mod:`taso_py.rules.groups`), sums (:mod:`taso_py.rules.sums`) and joins (:mod:`taso_py.rules.joins`) of
many parts. No rule has as many operands.

Invariant: a lemma is what :meth:`Lemmas.target` derives from its source by given rules, so that whoever has these can
check it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value, make
from taso_py.ir.operator import Input
from taso_py.rules.batches import Batcher, has_batches
from taso_py.rules.excerpt import images
from taso_py.rules.groups import Grouper, has_groups
from taso_py.rules.joins import Joiner, has_joins
from taso_py.rules.match import Match
from taso_py.rules.rows import Roller, has_rows
from taso_py.rules.ruleset import RuleSet
from taso_py.rules.siblings import FewMerger, Merger, has_few_siblings, has_siblings
from taso_py.rules.substitution import Substitution
from taso_py.rules.sums import Adder, has_sums
from taso_py.rules.verdict import Numerics

LEMMA = "lemma"
"""The kind of proof of a rule that is derived from others for the graph at hand."""


class Finder(Protocol):
    """Finds the lemmas of one kind, and derives them from rules."""

    def __init__(self, rules: Iterable[Substitution]) -> None:
        """Choose the rules that are needed; their order does not matter."""

    def sets(self, graph: Graph) -> Iterator[Sequence[Node]]:
        """Yield the sets of nodes that a lemma may replace."""
        ...

    def leaves(self, roots: Sequence[Node]) -> Sequence[Value]:
        """Return what some nodes are computed from, as far as the lemma matters; nothing if there is none."""
        ...

    def derived(self, roots: Sequence[Node]) -> tuple[Sequence[Value], Sequence[Substitution]]:
        """Return what replaces nodes, and the rules that say so; nothing if they stay as they are."""
        ...


Kinds: TypeAlias = Mapping[type[Finder], Callable[[Graph], bool]]
"""Kinds of lemmas, and whether they may match in a graph; what comes first is looked for first."""
FINDERS: Kinds = {
    Roller: has_rows,
    Merger: has_siblings,
    Batcher: has_batches,
    Grouper: has_groups,
    Adder: has_sums,
    Joiner: has_joins,
}
"""The kinds that replace what ordinary rules cannot."""
WITH_FEW: Kinds = {**FINDERS, FewMerger: has_few_siblings}
"""These, and those that ordinary rules make unnecessary where no other lemma is about what they lead to."""


def may_have_lemmas(graph: Graph) -> bool:
    """Return whether a graph has enough operators alike that a lemma might match."""
    return any(may_match(graph) for may_match in WITH_FEW.values())


class Lemmas:
    """Rules from which lemmas are derived."""

    def __init__(self, rules: Iterable[Substitution]) -> None:
        """Choose from rules; their order does not matter."""
        self._rules = RuleSet.of(rules)
        self._finders = dict[type[Finder], Finder]()

    def _finder(self, kind: type[Finder]) -> Finder:
        """Return the finder of a kind, for which rules are chosen when it is first needed."""
        if kind not in self._finders:
            self._finders[kind] = kind(self._rules)
        return self._finders[kind]

    def matches(self, graph: Graph, tried: set[tuple[object, ...]], kinds: Kinds = FINDERS) -> Iterator[Match]:
        """Yield the matches of lemmas in a graph, operands first, each for other nodes than all those before it.

        Args:
            graph: the graph.
            tried: the kinds of lemmas and the nodes that are left out; those that are looked at are added.
            kinds: the kinds that are looked for.
        """
        covered = set[Node]()
        for kind in [kind for kind, may_match in kinds.items() if may_match(graph)]:
            finder = self._finder(kind)
            for roots in map(tuple, finder.sets(graph)):
                is_known = (kind, *roots) in tried or covered.issuperset(roots)
                leaves = () if is_known else finder.leaves(roots)
                tried.add((kind, *roots))
                match = self._match(roots, leaves) if leaves else None
                if match is not None:
                    covered.update(match.nodes)
                    yield match

    def target(self, source: Graph) -> tuple[Sequence[Value], Sequence[Substitution]] | None:
        """Return what replaces a graph's outputs, and the rules that this rests on; None if no lemma is about them."""
        roots = [node for node, _ in source.outputs]
        derived = (self._finder(kind).derived(roots) for kind in FINDERS)
        values, used = next((found for found in derived if found[0]), ((), ()))
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
