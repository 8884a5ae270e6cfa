"""Equality saturation: all rules at once, and the cheapest graph of all that they show to be equal.

The graph's values are put into an e-graph (:mod:`taso_py.search.egraph`); in every round each rule is applied wherever
it matches, without forgetting what was there before; then the cheapest graph is extracted by the latencies of its
nodes (Tate et al., POPL 2009; Willsey et al., POPL 2021). It is what the search is compared with.

What it cannot do here is told in the notes of the result. Rules with several outputs are left out: extraction would
count what the outputs share once for each of them, and merging two products of which one feeds the other makes cycles.
Latencies of nodes are those without regard to kernels that cover several; the extracted graph is judged with them.

An e-graph knows that two graphs are equal, not by which steps. The result must come with a trace that replays, so the
steps are found afterwards: from the original, only those rewrites are taken that the e-graph made and that the
extracted graph consists of, those first that bring the graph closest to it. Graphs on the way are results too.

Invariant: every result is reached from the original graph by steps; an extracted graph that is not is no result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import chain, islice

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.rules.apply import instantiate
from taso_py.rules.match import Match, Matcher
from taso_py.rules.pattern import Pattern, compile_pattern
from taso_py.rules.substitution import Substitution
from taso_py.search.backtracking import WHOLE
from taso_py.search.cost import Cost
from taso_py.search.egraph import egraph_of
from taso_py.search.engine import Engine
from taso_py.search.extract import cheapest, extracted
from taso_py.search.partition import Partition
from taso_py.search.result import Limits, Report, SearchResult, StopReason
from taso_py.search.state import Option, State

ROUNDS = 8
"""How many rounds of applying all rules there are at most."""
NODES = 4000
"""How many nodes the e-graph may have; the round that gets there is broken off."""
MATCHES = 400
"""How many matches of one rule are applied in a round: some match everywhere and would leave no room for others."""
SHARE = 0.5
"""How much of the time saturation may take; the rest is for finding the way to what was extracted."""
DETOURS = 40
"""How many graphs more are built than rewrites are wanted before the extracted graph is given up."""


@dataclass
class _Tally:
    """What there was to do, and what was done of it, in all regions."""

    regions: int = 0
    reached: int = 0
    rounds: int = 0
    nodes: int = 0
    full: int = 0

    def notes(self, left_out: int) -> tuple[str, ...]:
        return (
            f"{left_out} rules with several outputs were left out: equality saturation does not express them",
            f"e-graphs of {self.regions} regions: {self.nodes} nodes, {self.rounds} rounds, {self.full} at their limit",
            f"the extracted graph was reached step by step in {self.reached} of {self.regions} regions",
        )


def search(
    graph: Graph,
    rules: Iterable[Substitution],
    cost: Cost,
    limits: Limits | None = None,
    report: Report | None = None,
) -> SearchResult:
    """Saturates a graph, region by region if it is large; as :func:`taso_py.search.backtracking.search`, without alpha.

    The budget is that of graphs that are built on the way to the extracted ones.
    """
    known, limits, tally = tuple(rules), limits or Limits(), _Tally()
    single = [rule for rule in known if len(rule.source.outputs) == 1]

    def strategy(region: Graph, matcher: Matcher, cost: Cost, limits: Limits, report: Report | None) -> Saturation:
        return Saturation(region, single, matcher, cost, limits, report, tally)

    matcher = Matcher(single, keep_symmetric=True)
    if sum(not node.is_static for node in graph.nodes) <= WHOLE:
        found = strategy(graph, matcher, cost, limits, report).run()
    else:
        found = Partition(graph, matcher, cost, limits, report, strategy).run()
    return replace(found, notes=tally.notes(len(known) - len(single)))


@dataclass(frozen=True, eq=False)
class _Rewrite:
    """An application of a rule in the e-graph."""

    match: Match
    target: Value

    @property
    def is_collapse(self) -> bool:
        """Whether the target is one of the operands, so that nothing new was made."""
        return self.target in self.match.values.values()


class Saturation(Engine):
    """The strategy for one region; :func:`search` runs it."""

    def __init__(
        self,
        graph: Graph,
        rules: Sequence[Substitution],
        matcher: Matcher,
        cost: Cost,
        limits: Limits,
        report: Report | None,
        tally: _Tally,
    ) -> None:
        """Prepare the saturation of a region by rules with one output, for which the matcher is prepared."""
        super().__init__(graph, matcher, cost, limits, report)
        self._patterns = [compile_pattern(rule) for rule in rules]
        self._tally = tally
        self._egraph = egraph_of(graph)
        self._rewrites: list[_Rewrite] = []
        self._seen = set[object]()
        self._forms: dict[Node, Node | None] = {}
        self._queued = 0

    def explore(self, original: State) -> StopReason:
        self._tally.regions += 1
        settled = False
        for _ in range(ROUNDS):
            if not self._round():
                settled = not self._is_full
                break
            self._tally.rounds += 1
        self._tally.nodes += len(self._egraph)
        self._tally.full += self._is_full
        chosen = cheapest(self._egraph, self._cost)
        goal = extracted(self._egraph, original.graph, chosen)
        if goal is None:
            return StopReason.STALLED
        stop = self._walk(original, goal, self._wanted(chosen))
        return StopReason.STALLED if stop is StopReason.EXHAUSTED and not settled else stop

    @property
    def _is_full(self) -> bool:
        spent = self.clock.spent
        return len(self._egraph) >= NODES or spent > SHARE * self.limits.seconds

    def _round(self) -> bool:
        """Applies every rule wherever it matches now; false if nothing came of it or there is no more room."""
        found, changed = self._matches(), False
        for match in found:
            self.clock()
            if self._is_full:
                return False
            targets = instantiate(match)
            if targets is not None:
                target = self._egraph.add(targets[0])
                changed |= self._egraph.union(match.outputs[0], target)
                self._rewrites.append(_Rewrite(match, targets[0]))
        return changed

    def _matches(self) -> list[Match]:
        """The matches that were not applied before, at most so many of a rule."""
        found: list[Match] = []
        by_operator = self._egraph.by_operator()
        for pattern in self._patterns:
            roots = by_operator.get(type(pattern.operators[pattern.outputs[0].index].op), [])
            found += islice(filter(self._is_new, self._matches_at(pattern, roots)), MATCHES)
        return found

    def _matches_at(self, pattern: Pattern, roots: Iterable[Node]) -> Iterator[Match]:
        """The matches at those of some nodes that run."""
        for root in roots:
            # Most roots have no match, and it takes time to find that out.
            self.clock()
            if not root.is_static:
                yield from self._egraph.matches(pattern, root)

    def _is_new(self, match: Match) -> bool:
        self.clock()
        identity = match.rule.id, match.nodes, tuple(match.values.values())
        if identity in self._seen or not self.limits.allows(match):
            return False
        self._seen.add(identity)
        return True

    def _wanted(self, chosen: Mapping[Value, Node]) -> set[object]:
        """The rewrites that lead to chosen nodes, or to what such rewrites match, as identities in the e-graph."""
        leading: dict[Node, list[_Rewrite]] = {}
        collapsing: dict[Value, list[_Rewrite]] = {}
        for rewrite in self._rewrites:
            if rewrite.is_collapse:
                collapsing.setdefault(self._egraph.find(rewrite.match.outputs[0]), []).append(rewrite)
            else:
                form = self._egraph.canonical(rewrite.target.node)
                leading.setdefault(form, []).append(rewrite)
        waiting, met, wanted = list(chosen.values()), set[Node](), set[object]()
        while waiting:
            node = waiting.pop()
            if node in met:
                continue
            met.add(node)
            classes = [self._egraph.find(value) for value in node.outputs]
            for rewrite in chain(leading.get(node, ()), *(collapsing.get(class_, ()) for class_ in classes)):
                forms = {inner: self._egraph.canonical(inner) for inner in rewrite.match.nodes}
                wanted.add(self._identity(rewrite.match, forms))
                waiting += forms.values()
        return wanted

    def _identity(self, match: Match, forms: Mapping[Node, Node]) -> object:
        """What is the same for matches in graphs and in the e-graph that are the same up to equality."""
        nodes = tuple(forms[node] for node in match.nodes)
        return match.rule.id, nodes, tuple(sorted((name, self._class(v)) for name, v in match.values.items()))

    def _class(self, value: Value) -> tuple[str, int]:
        found = self._egraph.class_of(value, self._forms)
        return found.key if found is not None else ("", -1)

    def _walk(self, original: State, goal: Graph, wanted: set[object]) -> StopReason:
        """Takes wanted rewrites from the original graph until it is the extracted one, closest to it first.

        Nothing is left to do once it is reached; where no rewrite is left and it is not, the walk has stalled.
        """
        places = frozenset(node for node in goal.nodes if not node.is_static)
        ways: list[tuple[int, int, State, Option]] = []
        met = {original.graph.key}
        self._offer(ways, original, places, wanted)
        allowed = self._built + len(wanted) + DETOURS
        while ways:
            if self.is_spent:
                return StopReason.BUDGET
            if self._built >= allowed:
                return StopReason.STALLED
            _, _, state, option = heappop(ways)
            built = self.build(state, option, set())
            if built is None or built.step.graph.key in met:
                continue
            met.add(built.step.graph.key)
            after = self.expand(built, ends_excursion=True)
            if after.graph == goal:
                break
            self._offer(ways, after, places, wanted)
        reached = goal.key in met
        self._tally.reached += reached
        return StopReason.EXHAUSTED if reached else StopReason.STALLED

    def _offer(
        self,
        ways: list[tuple[int, int, State, Option]],
        state: State,
        places: frozenset[Node],
        wanted: set[object],
    ) -> None:
        """Queues the wanted rewrites of a state by what it lacks of the extracted graph, the latest state first."""
        missing = sum(node not in state.index.place for node in places)
        for option in state.options:
            option.origin = None
            match = option.match(state.sites)
            forms = {node: self._form(node) for node in match.nodes}
            found = {node: form for node, form in forms.items() if form is not None}
            if len(found) == len(forms) and self._identity(match, found) in wanted:
                self._queued += 1
                heappush(ways, (missing, -self._queued, state, option))

    def _form(self, node: Node) -> Node | None:
        """The node of the e-graph that a node of a graph is, up to equality of its operands."""
        self._egraph.class_of(node.outputs[0], self._forms)
        return self._forms[node]
