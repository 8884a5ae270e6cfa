"""Search of large graphs region by region.

A graph is cut at narrow points; each region is searched on its own, within a slack of its own, and regions with the
same structure up to weights are searched once. The best of all regions together is the best of the whole, except for
rewrites across a cut: so a second pass cuts at other values.

Invariant: results are graphs of the whole model with traces of the whole model, as if it had not been cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from taso_py.ir.graph import Graph
from taso_py.ir.node import Node, Value
from taso_py.rules.match import Matcher
from taso_py.search.compose import Composition, RegionInstance
from taso_py.search.cost import Cost, CostEstimate, static_bytes
from taso_py.search.explorer import PRECISION, Explorer
from taso_py.search.finalists import NodeCost, distinct, finalists_or_cheapest
from taso_py.search.region import GraphRegion, correspondence, cut, output_forms
from taso_py.search.result import Candidate, Limits, Progress, ProgressCallback, SearchResult, SearchStop

PASSES = 2
VARIANTS = 16
"""The results of a region that are remembered, so that the whole can be composed without certain rules."""
WHOLES = 12
"""The most compositions of a whole, each without other rules."""
SLACK = 2.0
"""A region's slack as a multiple of the whole's: a step's cost is a larger share of a small part."""
LEAST_BUDGET = 30
"""The least budget of graphs for a region."""
PATIENT_SHARE, LEAST_PATIENCE = 0.25, 10
"""Regions alike with this share of the whole's cost are searched with all the patience, those with less with as much
less, down to a least number of graphs: so an improvement is worth the same number of graphs wherever it is."""


@dataclass(eq=False)
class _Kind:
    """Regions with the same structure up to inputs and weights."""

    first: GraphRegion
    members: list[RegionInstance] = field(default_factory=list[RegionInstance])
    found: SearchResult | None = None

    @property
    def size(self) -> int:
        """The number of running nodes of one of the regions."""
        return sum(not node.is_static for node in self.first.graph.nodes)

    def gain(self, candidate: Candidate) -> float:
        """Return the seconds that a candidate gains in all the regions together."""
        return (self.found.original.seconds - candidate.seconds) * len(self.members) if self.found else 0.0

    def choose(self, banned: Set[str]) -> Candidate | None:
        """Return the cheapest candidate that does not use the banned rules, if it has any steps, else None."""
        candidates = self.found.candidates if self.found else ()
        best = next((c for c in candidates if banned.isdisjoint(c.applied)), None)
        return best if best is not None and best.applied else None

    def others(self, cost: NodeCost, count: int) -> Sequence[Candidate]:
        """Return candidates that differ from the cheapest, and from each other."""
        found = distinct(self.found.candidates, cost, 1 + count)[1:] if self.found else ()
        return [candidate for candidate in found if candidate.applied]


@dataclass(frozen=True, eq=False)
class _Assembly:
    """The kinds of regions of a graph, from whose results wholes are composed."""

    before: Candidate
    """The graph that was cut."""
    kinds: Sequence[_Kind]
    known: dict[tuple[Candidate | None, ...], tuple[Candidate, frozenset[Value]]] = field(default_factory=dict)
    """Composed wholes by the candidates chosen for each kind, each with the values at which it was cut."""


def _kinds(regions: Iterable[GraphRegion], reuse: bool) -> list[_Kind]:
    """Group regions by structure, in order of first occurrence; each is a kind of its own if results are not reused."""
    kinds: list[_Kind] = []
    alike: dict[object, list[_Kind]] = {}
    numbers: dict[object, int] = {}
    for number, region in enumerate(regions):
        candidates = alike.setdefault(output_forms(region.graph, numbers), []) if reuse else []
        for kind in candidates:
            same = correspondence(kind.first.graph, region.graph)
            if same is not None:
                kind.members.append(RegionInstance(number, region, kind.first.graph, same=same))
                break
        else:
            itself = {node: node for node in region.graph.nodes}
            kinds.append(_Kind(region, [RegionInstance(number, region, region.graph, same=itself)]))
            candidates.append(kinds[-1])
    return kinds


class _Sharing:
    """A cost in which static values that are stored already need no memory."""

    def __init__(self, cost: Cost, stored: Set[Node]) -> None:
        self._stored = stored
        self._cost = cost
        self.graph_cost, self.node_cost, self.for_part = cost.graph_cost, cost.node_cost, cost.for_part
        self.estimate, self.revise = cost.estimate, cost.revise

    def value_bytes(self, value: Value) -> int:
        return 0 if value.node in self._stored else self._cost.value_bytes(value)


class Partition:
    """The search of one large graph."""

    def __init__(
        self,
        graph: Graph,
        matcher: Matcher,
        cost: Cost,
        limits: Limits,
        report: ProgressCallback | None,
        strategy: Callable[[Graph, Matcher, Cost, Limits, ProgressCallback | None], Explorer],
    ) -> None:
        """Create a search; ``strategy`` makes the explorer of a region."""
        self._graph, self._matcher, self._cost, self._limits = graph, matcher, cost, limits
        self._report, self._strategy, self._now = report, strategy, limits.now
        self._pool: dict[frozenset[str], Candidate] = {}
        self._stops: set[SearchStop] = set()
        self._stored: set[Node] = set()
        self._built = self._expansions = 0
        self._gain = 0.0
        self._estimates: dict[Graph, CostEstimate] = {}
        self._variants: list[tuple[float, _Assembly, Mapping[_Kind, Candidate]]] = []

    def run(self) -> SearchResult:
        """Run the whole search; a keyboard interrupt ends it with the best known so far."""
        self._started = self._now()
        stored = static_bytes(self._cost, self._graph)
        self._original = Candidate(self._graph, self._graph, self._estimated(self._graph).seconds, static_bytes=stored)
        self._keep(self._original)
        try:
            self._explore_all()
            self._vary()
        except KeyboardInterrupt:
            self._stops.add(SearchStop.INTERRUPTED)
        return self._result()

    def _estimated(self, graph: Graph) -> CostEstimate:
        """Return the estimate of a whole, remembered, since a graph that is cut was often composed before."""
        known = self._estimates.get(graph)
        if known is None:
            known = self._estimates[graph] = self._cost.estimate(graph)
        return known

    def _explore_all(self) -> None:
        """Search the regions of the graph, then those of the best graph so far, which is cut at other values."""
        best, avoid = self._original, frozenset[Value]()
        for _ in range(PASSES):
            if self._must_stop():
                break
            regions = cut(best.graph, avoid)
            cut_values = frozenset([value for region in regions for value in region.outputs])
            if cut_values == avoid:
                break
            after, outputs = self._improved(best, self._explored(best.graph, regions))
            if after.seconds < best.seconds - PRECISION * best.seconds:
                best, avoid = after, outputs
            else:
                avoid = cut_values

    def _must_stop(self) -> bool:
        """Return whether no more regions are to be searched; if the time is up, record that as a reason to stop."""
        return self._is_out_of_time() or SearchStop.INTERRUPTED in self._stops or self._built >= self._limits.budget

    @property
    def _left(self) -> float:
        return self._limits.seconds - (self._now() - self._started)

    def _is_out_of_time(self) -> bool:
        """Return whether the time is up; if so, record that as a reason to stop."""
        is_up = self._left <= 0
        if is_up:
            self._stops.add(SearchStop.TIME)
        return is_up

    def _explored(self, graph: Graph, regions: Sequence[GraphRegion]) -> list[_Kind]:
        """Group the regions of a graph by kind, and search each kind as long as there are time and budget.

        A keyboard interrupt ends this too; the results until then are still composed.
        """
        kinds, whole = _kinds(regions, self._limits.reuse), self._estimated(graph)
        waiting = sum(kind.size for kind in kinds)
        try:
            for kind in kinds:
                if self._must_stop():
                    break
                self._explore(kind, whole, kind.size / max(waiting, 1))
                waiting -= kind.size
        except KeyboardInterrupt:
            self._stops.add(SearchStop.INTERRUPTED)
        return kinds

    def _explore(self, kind: _Kind, whole: CostEstimate, share: float) -> None:
        """Search a kind of region with its share of what is left."""
        left, region = self._limits.budget - self._built, kind.first
        inputs = {node.value: value for node, value in zip(region.graph.inputs, region.inputs, strict=True)}
        cost = _Sharing(self._cost.for_part(whole, inputs, region.outputs), frozenset(self._stored))
        stored = self._original.static_bytes
        more = (self._limits.most_bytes(stored) - stored) / len(kind.members)
        limits = replace(
            self._limits,
            alpha=1 + SLACK * (self._limits.alpha - 1),
            budget=min(left, max(LEAST_BUDGET, round(left * share))),
            patience=self._patience(kind, whole),
            # The time may have run out since the last check; a limit must be above 0.
            seconds=max(1e-9, min(self._left, max(1.0, 2 * share * self._left))),
            static_bytes=static_bytes(cost, kind.first.graph) + more,
            results=VARIANTS,
        )
        before = self._built, self._expansions, self._gain
        report = (lambda progress: self._tell(before, kind, progress)) if self._report is not None else None
        found = kind.found = self._strategy(kind.first.graph, self._matcher, cost, limits, report).run()
        self._built, self._expansions = before[0] + found.built, before[1] + found.expansions
        self._gain += kind.gain(found.best)
        self._stops.add(found.stop_reason)
        self._stored |= {node for node in found.best.graph.nodes if node.is_static and node.inputs}

    def _patience(self, kind: _Kind, whole: CostEstimate) -> int:
        """Return the patience for a kind of region by its share of the whole's cost."""
        seconds = len(kind.members) * sum(map(self._cost.node_cost, kind.first.graph.nodes))
        share = min(1.0, seconds / whole.seconds / PATIENT_SHARE) if 0 < seconds < whole.seconds else 1.0
        return min(self._limits.patience, max(LEAST_PATIENCE, round(share * self._limits.patience)))

    def _tell(self, before: tuple[int, int, float], kind: _Kind, progress: Progress) -> None:
        """Report progress within a region as progress of the whole."""
        gain = before[2] + (progress.original_seconds - progress.best_seconds) * len(kind.members)
        seconds, built = self._original.seconds, before[0] + progress.built
        spent = self._now() - self._started
        if self._report is not None:
            self._report(
                Progress(built, before[1] + progress.expansions, seconds, best_seconds=seconds - gain, seconds=spent)
            )

    def _improved(self, before: Candidate, kinds: Sequence[_Kind]) -> tuple[Candidate, frozenset[Value]]:
        """Return the best whole composed of the best candidate of each kind, and the values at which it was cut.

        The whole is also composed without certain rules, since weights may belong to several regions: only the whole
        shows how much is stored.
        """
        best = before, frozenset[Value]()
        assembly = _Assembly(before, kinds)
        waiting = [frozenset[str]()]
        for banned in waiting:
            if banned and self._is_out_of_time():
                break
            chosen = {kind: candidate for kind in kinds if (candidate := kind.choose(banned)) is not None}
            after, outputs = self._compose(assembly, chosen)
            self._keep(after)
            if self._is_valid(after) and after.seconds < best[0].seconds:
                best = after, outputs
            if not banned or not self._is_valid(after):
                used = {rule for candidate in chosen.values() for rule in candidate.applied}
                more = [banned | {rule} for rule in sorted(used) if banned | {rule} not in waiting]
                waiting += more[: WHOLES - len(waiting)]
        self._note_variants(assembly)
        return self._reduced(assembly) if best[0] is before else best

    def _note_variants(self, assembly: _Assembly) -> None:
        """Record wholes of other candidates than the best of each kind, with their expected costs."""
        count = self._limits.results - 1
        others = {kind: found for kind in assembly.kinds if (found := kind.others(self._cost, count))}
        for rank in range(max(map(len, others.values()), default=0)):
            chosen = {kind: found[min(rank, len(found) - 1)] for kind, found in others.items()}
            gain = sum(kind.gain(candidate) for kind, candidate in chosen.items())
            self._variants.append((assembly.before.seconds - gain, assembly, chosen))

    def _vary(self) -> None:
        """Compose and keep the most promising of the recorded wholes; others are not composed."""
        missing = self._limits.results - 1
        for expected, assembly, chosen in sorted(self._variants, key=lambda variant: variant[0]):
            if not missing or self._is_out_of_time():
                break
            used = frozenset(assembly.before.applied).union(*[candidate.applied for candidate in chosen.values()])
            if self._is_better(expected, used):
                missing -= self._keep(self._compose(assembly, chosen)[0])

    def _reduced(self, assembly: _Assembly) -> tuple[Candidate, frozenset[Value]]:
        """Return a whole that fits the limit, leaving kinds unchanged that gain the least per stored byte."""
        chosen = {kind: best for kind in assembly.kinds if (best := kind.choose(frozenset())) is not None}
        while True:
            after, outputs = self._compose(assembly, chosen)
            if self._is_valid(after) or not chosen:
                self._keep(after)
                return after, outputs
            if self._is_out_of_time():
                return assembly.before, frozenset()
            chosen.pop(min(chosen, key=lambda kind: _worth(kind, chosen[kind])))

    def _compose(self, assembly: _Assembly, chosen: Mapping[_Kind, Candidate]) -> tuple[Candidate, frozenset[Value]]:
        """Return the whole with chosen candidates in place of regions, and the values at which it was cut."""
        known = assembly.known.get(key := tuple(map(chosen.get, assembly.kinds)))
        if known is None:
            places = [(place, chosen.get(kind)) for kind in assembly.kinds for place in kind.members]
            made = Composition(assembly.before, sorted(places, key=lambda pair: pair[0].number))
            seconds, stored = self._estimated(made.graph).seconds, static_bytes(self._cost, made.graph)
            whole = Candidate(self._graph, made.graph, seconds, static_bytes=stored, applied=made.applied, steps=made)
            known = assembly.known[key] = whole, made.cut_values
        return known

    def _is_valid(self, candidate: Candidate) -> bool:
        return candidate.static_bytes <= self._limits.most_bytes(self._original.static_bytes)

    def _keep(self, candidate: Candidate) -> bool:
        """Keep a whole unless it stores too much or one of the same rules is as cheap; return whether it was kept."""
        used = frozenset(candidate.applied)
        keeps = self._is_valid(candidate) and self._is_better(candidate.seconds, used)
        if keeps:
            self._pool[used] = candidate
        return keeps

    def _is_better(self, seconds: float, used: frozenset[str]) -> bool:
        """Return whether every known whole that uses these rules is certainly slower."""
        known = self._pool.get(used)
        return known is None or seconds < known.seconds - PRECISION * self._original.seconds

    def _result(self) -> SearchResult:
        best = sorted(self._pool.values(), key=lambda candidate: (candidate.seconds, len(candidate.applied)))
        best, is_whole = finalists_or_cheapest(best, self._original, self._cost, self._limits.results)
        return SearchResult(
            self._original,
            tuple(best),
            self._stop_reason if is_whole else SearchStop.INTERRUPTED,
            expansions=self._expansions,
            built=self._built,
            seconds=self._now() - self._started,
        )

    @property
    def _stop_reason(self) -> SearchStop:
        """The reason why the whole search ended; a region that used up its share of budget or time is stalled."""
        if SearchStop.INTERRUPTED in self._stops:
            return SearchStop.INTERRUPTED
        if SearchStop.TIME in self._stops and self._left <= 0:
            return SearchStop.TIME
        if self._built >= self._limits.budget:
            return SearchStop.BUDGET
        return SearchStop.STALLED if self._stops - {SearchStop.EXHAUSTED} else SearchStop.EXHAUSTED


def _worth(kind: _Kind, candidate: Candidate) -> float:
    """Return the seconds that a candidate gains per additional byte that it stores."""
    if kind.found is None:
        return 0.0
    more = candidate.static_bytes - kind.found.original.static_bytes
    return kind.gain(candidate) / more if more > 0 else float("inf")
