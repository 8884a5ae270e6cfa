"""Equality saturation: apply all rules at once, and extract the cheapest graph of all proved equal.

The graph's values are put into an e-graph (:mod:`taso_py.search.egraph`); in every round each rule is applied wherever
it matches, without removing anything; then the cheapest graph is extracted by the latencies of its nodes (Tate et al.,
POPL 2009; Willsey et al., POPL 2021). Backtracking is compared with it.

Its limitations are listed in the notes of the result. Rules with several outputs are left out: extraction would count
the work that the outputs share once for each of them, and merging two products of which one feeds the other makes
cycles. Extraction uses latencies of single nodes, without kernels that cover several; the extracted graph is estimated
with them.

An e-graph knows that two graphs are equal, but not by which steps. A result needs a trace that replays, so the steps
are found afterwards: starting from the original, only rewrites that the e-graph made and that lead to nodes of the
extracted graph are taken, those first that bring the graph closest to it. Intermediate graphs are results too.

Invariant: every result is reached from the original graph by steps; an extracted graph that is not reached is no
result.
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
from taso_py.search.explorer import Explorer
from taso_py.search.extract import choose_nodes, extract_graph
from taso_py.search.partition import Partition
from taso_py.search.result import Limits, ProgressCallback, SearchResult, SearchStop
from taso_py.search.state import Option, SearchState

ROUNDS = 8
"""The most rounds of applying all rules."""
NODES = 4000
"""The most nodes of the e-graph; the round that reaches it is ended."""
MATCHES = 400
"""The most matches of one rule in a round: some match everywhere and would leave no room for others."""
SHARE = 0.5
"""The largest share of the time that saturation may take; the rest is for deriving the extracted graph."""
DETOURS = 40
"""The number of graphs built beyond the number of wanted rewrites before the extracted graph is given up."""


@dataclass
class _Tally:
    """Statistics of saturation, summed over all regions."""

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
    rules: Iterable[Substitution] | Matcher,
    cost: Cost,
    limits: Limits | None = None,
    report: ProgressCallback | None = None,
) -> SearchResult:
    """Saturate a graph, by regions if it is large; like :func:`taso_py.search.backtracking.search`, without alpha.

    The budget limits the graphs that are built on the way to the extracted ones.
    """
    known, limits, tally = Matcher.of(rules).rules, limits or Limits(), _Tally()
    single = [rule for rule in known if len(rule.source.outputs) == 1]

    def strategy(
        region: Graph, matcher: Matcher, cost: Cost, limits: Limits, report: ProgressCallback | None
    ) -> Saturation:
        return Saturation(region, single, matcher, cost=cost, limits=limits, report=report, tally=tally)

    matcher = Matcher(single, keep_all=True)
    if sum(not node.is_static for node in graph.nodes) <= WHOLE:
        found = strategy(graph, matcher, cost, limits, report).run()
    else:
        found = Partition(graph, matcher, cost, limits=limits, report=report, strategy=strategy).run()
    return replace(found, notes=tally.notes(len(known) - len(single)))


@dataclass(frozen=True, eq=False)
class _Rewrite:
    """An application of a rule in the e-graph."""

    match: Match
    target: Value

    @property
    def is_collapse(self) -> bool:
        """True if the target is one of the operands, so that nothing new was made."""
        return self.target in self.match.values.values()


class Saturation(Explorer):
    """The saturation strategy for one region; :func:`search` runs it."""

    def __init__(
        self,
        graph: Graph,
        rules: Sequence[Substitution],
        matcher: Matcher,
        cost: Cost,
        limits: Limits,
        report: ProgressCallback | None,
        tally: _Tally,
    ) -> None:
        """Create the saturation of a region by rules with one output, for which the matcher is prepared."""
        super().__init__(graph, matcher, cost, limits=limits, report=report)
        self._patterns = [compile_pattern(rule) for rule in rules]
        self._tally = tally
        self._egraph = egraph_of(graph)
        self._rewrites: list[_Rewrite] = []
        self._seen = set[object]()
        self._forms: dict[Node, Node | None] = {}
        self._queued = 0

    def explore(self, original: SearchState) -> SearchStop:
        self._tally.regions += 1
        settled = False
        for _ in range(ROUNDS):
            if not self._round():
                settled = not self._is_full
                break
            self._tally.rounds += 1
        self._tally.nodes += len(self._egraph)
        self._tally.full += self._is_full
        chosen = choose_nodes(self._egraph, self._cost)
        goal = extract_graph(self._egraph, original.graph, chosen)
        if goal is None:
            return SearchStop.STALLED
        stop = self._walk(original, goal, self._wanted(chosen))
        return SearchStop.STALLED if stop is SearchStop.EXHAUSTED and not settled else stop

    @property
    def _is_full(self) -> bool:
        spent = self.clock.spent
        return len(self._egraph) >= NODES or spent > SHARE * self.limits.seconds

    def _round(self) -> bool:
        """Apply every rule wherever it matches now; return false if nothing changed or there is no more room."""
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
        """Return the matches that were not applied before, up to a limit per rule."""
        found: list[Match] = []
        by_operator = self._egraph.by_operator()
        for pattern in self._patterns:
            roots = by_operator.get(type(pattern.operators[pattern.outputs[0].number].op), [])
            found += islice(filter(self._is_new, self._matches_at(pattern, roots)), MATCHES)
        return found

    def _matches_at(self, pattern: Pattern, roots: Iterable[Node]) -> Iterator[Match]:
        """Yield the matches at those of the nodes that run."""
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
        """Return the identities of the rewrites that lead to chosen nodes, or to nodes that such rewrites match."""
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
        """Return a key that is equal for matches, in graphs or in the e-graph, that are the same up to equality."""
        nodes = tuple(forms[node] for node in match.nodes)
        return match.rule.id, nodes, tuple(sorted((name, self._class(v)) for name, v in match.values.items()))

    def _class(self, value: Value) -> tuple[str, int]:
        found = self._egraph.class_of(value, self._forms)
        return found.key if found is not None else ("", -1)

    def _walk(self, original: SearchState, goal: Graph, wanted: set[object]) -> SearchStop:
        """Take wanted rewrites from the original graph until it is the extracted one, closest to it first.

        The search is exhausted once it is reached; if no rewrite is left before that, it has stalled.
        """
        places = frozenset(node for node in goal.nodes if not node.is_static)
        ways: list[tuple[int, int, SearchState, Option]] = []
        met = {original.graph.key}
        self._offer(ways, original, places, wanted)
        allowed = self._built + len(wanted) + DETOURS
        while ways:
            if self.is_spent:
                return SearchStop.BUDGET
            if self._built >= allowed:
                return SearchStop.STALLED
            _, _, state, option = heappop(ways)
            built = self.build(state, option, set())
            if built is None or built.step.graph.key in met:
                continue
            met.add(built.step.graph.key)
            after = self.expand(built, ends_detour=True)
            if after.graph == goal:
                break
            self._offer(ways, after, places, wanted)
        reached = goal.key in met
        self._tally.reached += reached
        return SearchStop.EXHAUSTED if reached else SearchStop.STALLED

    def _offer(
        self,
        ways: list[tuple[int, int, SearchState, Option]],
        state: SearchState,
        places: frozenset[Node],
        wanted: set[object],
    ) -> None:
        """Queue the wanted rewrites of a state by the number of nodes missing from the goal, the latest state first."""
        missing = sum(node not in state.index.place for node in places)
        for option in state.options:
            option.origin = None
            match = option.match(state.node_ids)
            forms = {node: self._form(node) for node in match.nodes}
            found = {node: form for node, form in forms.items() if form is not None}
            if len(found) == len(forms) and self._identity(match, found) in wanted:
                self._queued += 1
                heappush(ways, (missing, -self._queued, state, option))

    def _form(self, node: Node) -> Node | None:
        """Return the e-graph's node for a node of a graph, up to equality of its operands; None if there is none."""
        self._egraph.class_of(node.outputs[0], self._forms)
        return self._forms[node]
